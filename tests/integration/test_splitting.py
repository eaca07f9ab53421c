"""Arrays of many chunks: a manifest set decides whether, and how, they have several manifests."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import icefloe
from icefloe.config import ManifestConfig, ManifestRule, ManifestSet, from_json, from_yaml, to_json
from icefloe.engine.commit.linked_tiles import link_tiles, write_tiles
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.manifest import ArrayChunks
from icefloe.session import ForkSession
from icefloe.testing.faults import FaultyStorage
from tests.builders import new_repository
from tests.documents import array, group
from tests.formats import how, needs_manifest_sets
from tests.seed_configurations import DEFAULTS, EXAMPLE

if TYPE_CHECKING:
    from icefloe.config import RepositoryConfig
    from icefloe.model.nodes import ManifestRef

pytestmark = pytest.mark.usefixtures("each_generation")

Places = np.ndarray


def references(places: Places) -> ArrayChunks:
    """Virtual references at some coordinates (n, rank)."""
    count = len(places)
    refs = ChunkRefs(
        kinds=np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
        sources=np.zeros(count, dtype=np.uint32),
        offsets=np.arange(count, dtype=np.uint64) * 100,
        lengths=np.full(count, 100, dtype=np.uint64),
        checksums=np.zeros(count, dtype=np.uint32),
        files=np.empty((0, 12), dtype=np.uint8),
        locations=Locations.of([("s3://bucket/file.nc", None, None)]),
        inline=b"",
    )
    return ArrayChunks.from_columns(places, refs)


def spread(count: int, shape: tuple[int, ...]) -> Places:
    """So many different coordinates, anywhere in a grid."""
    rng = np.random.default_rng(count)
    numbers = rng.choice(np.prod(shape), count, replace=False)
    return np.stack(np.unravel_index(numbers, shape), axis=1)


def rows(stop: int, start: int = 0) -> Places:
    return np.arange(start, stop).reshape(-1, 1)


def repository(config: RepositoryConfig | None = None) -> icefloe.Repository:
    repo = new_repository(config=config)
    with repo.transaction("main", message="root") as store:
        store.session.tree.set_document("/", group())
    return repo


def write(
    repo: icefloe.Repository, path: str, shape: tuple[int, ...], places: Places | None = None
) -> None:
    session = repo.writable_session("main")
    session.tree.set_document(path, array(shape))
    if places is not None:
        session.tree.set_chunk_refs(path, references(places))
    session.commit(f"{path}: {shape}")


def delete(repo: icefloe.Repository, path: str, places: Places) -> None:
    session = repo.writable_session("main")
    session.tree.set_chunk_refs(path, None, references(places).index)
    session.commit("delete")


def manifests(repo: icefloe.Repository, path: str) -> tuple[ManifestRef, ...]:
    node = repo.readonly_session("main").get_node(path)
    assert node is not None
    return node.manifests


def sets(repo: icefloe.Repository, path: str) -> list[str]:
    """The set of each manifest of an array."""
    snapshot = repo.readonly_session("main").tree.snapshot
    names = {info.id: info.set_name for info in snapshot.manifests}
    return [names[ref.manifest_id] for ref in manifests(repo, path)]


def places_of(repo: icefloe.Repository, path: str) -> list[list[int]]:
    found: list[list[int]] = repo.readonly_session("main").tree.chunk_coords(path).tolist()
    return found


def splitting(split_size: int, **others: Any) -> RepositoryConfig:
    each = ManifestSet(name="default", split_size=split_size)
    return icefloe.RepositoryConfig(manifest=ManifestConfig(sets=[each], rules=[], **others))


# --- configurations as the seed writes them


@pytest.mark.parametrize("kept", [False, True])
def test_the_example_of_the_seed_gives_one_manifest_per_array(kept: bool) -> None:  # R4-14
    # R4-65, R4-28, R4-31, R4-37
    config = from_yaml(EXAMPLE)
    repo = repository(from_json(to_json(config)) if kept else config)
    write(repo, "/t2m", (50_000,), rows(50_000))
    write(repo, "/wind", (40_000, 2), np.argwhere(np.ones((40_000, 2))))
    write(repo, "/huge", (2_000_000,), rows(200_000))
    write(repo, "/time", (500,), rows(500))
    write(repo, "/small", (200,), rows(200))
    assert sets(repo, "/t2m") == sets(repo, "/wind") == ["default"]
    assert sets(repo, "/huge") == ["big-array"]
    assert sets(repo, "/time") == ["coord1"]
    assert sets(repo, "/small") == ["coord2"]
    shared = {ref.manifest_id for path in ("/t2m", "/wind") for ref in manifests(repo, path)}
    assert len(shared) == 2, "packed by different commits, each in a manifest of its own"
    assert repo.verify().is_clean


def test_the_default_configuration_of_the_seed_splits_nothing() -> None:  # R4-14, R4-42
    repo = repository(from_yaml(DEFAULTS))
    write(repo, "/t2m", (1_200_000,), rows(100_000))
    write(repo, "/time", (5_000,), rows(5_000))
    assert sets(repo, "/t2m") == ["default"]
    assert sets(repo, "/time") == ["coordinates"]
    with repo.transaction("main", message="one chunk") as store:
        store.session.tree.set_chunk("/t2m", (99_999,), b"x")
    assert [ref.num_refs for ref in manifests(repo, "/t2m")] == [100_000]


def test_our_own_default_splits_huge_arrays_in_their_set() -> None:  # R4-14
    repo = repository()
    write(repo, "/t2m", (200_000,), rows(200_000))
    assert sets(repo, "/t2m") == ["default"] * 7
    assert [ref.extents.lower[0] for ref in manifests(repo, "/t2m")] == [*range(0, 200_000, 32_768)]


def test_splitting_can_be_switched_off_and_on_again() -> None:  # R4-14
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, **how())
    write(repo, "/a", (100_000,), rows(100_000))
    assert len(manifests(repo, "/a")) == 4
    off = icefloe.RepositoryConfig(manifest=ManifestConfig(sets=[ManifestSet(name="default")]))
    repo = icefloe.Repository.open(storage, off)
    repo.rewrite_manifests("together", branch="main")
    assert sets(repo, "/a") == ["default"]
    assert repo.readonly_session("main").chunk_count("/a") == 100_000
    repo = icefloe.Repository.open(storage)
    repo.rewrite_manifests("split", branch="main")
    assert sets(repo, "/a") == ["default"] * 4
    assert places_of(repo, "/a") == rows(100_000).tolist()


# --- sparse arrays


@pytest.mark.parametrize(
    ("shape", "places", "count"),
    [
        ((2_000_000,), np.array([[0], [1_000_000], [1_999_999]]), 1),
        ((10_000, 10_000), spread(2_000, (10_000, 10_000)), 1),
        ((10_000, 10_000), spread(100_000, (10_000, 10_000)), 4),
        ((100, 100, 100, 100), spread(100_000, (100, 100, 100, 100)), 4),
    ],
    ids=["3", "2000", "100000", "4d"],
)
def test_sparse_arrays_have_few_manifests(
    shape: tuple[int, ...], places: Places, count: int
) -> None:  # R4-14
    repo = repository()
    write(repo, "/a", shape, places)
    assert len(manifests(repo, "/a")) == count
    assert places_of(repo, "/a") == sorted(places.tolist())
    repo.rewrite_manifests("again", branch="main")
    assert len(manifests(repo, "/a")) == count
    assert places_of(repo, "/a") == sorted(places.tolist())


def test_an_array_that_grows_by_a_chunk_here_and_there_stays_in_few_manifests() -> None:
    repo = repository(splitting(8))
    places = spread(60, (10_000,))
    for at in range(0, 60, 3):
        write(repo, "/a", (10_000,), places[at : at + 3])
        refs = manifests(repo, "/a")
        assert all(ref.num_refs <= 8 for ref in refs)
        at_random = -(-(at + 3) // 8) * 3
        assert len(refs) <= at_random
    assert places_of(repo, "/a") == sorted(places.tolist())


def test_a_chunk_of_a_sparse_array_rewrites_one_manifest() -> None:  # R4-05, R4-09
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, **how())
    places = spread(200_000, (10_000, 10_000))
    write(repo, "/a", (10_000, 10_000), places)
    before = {ref.manifest_id for ref in manifests(repo, "/a")}
    write(icefloe.Repository.open(storage), "/a", (10_000, 10_000), places[:1])
    after = {ref.manifest_id for ref in manifests(repo, "/a")}
    assert len(before - after) == len(after - before) == 1


# --- arrays that grow, shrink and move


def test_an_array_is_split_when_it_grows_and_comes_together_when_it_shrinks() -> None:
    repo = repository(splitting(100))
    write(repo, "/a", (1_000,), rows(60))
    write(repo, "/b", (50,), rows(50))
    assert sets(repo, "/a") == ["default"]
    write(repo, "/a", (1_000,), rows(100))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [100]
    write(repo, "/a", (1_000,), rows(230, 100))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [100, 100, 30]
    delete(repo, "/a", rows(190, 100))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [100, 10, 30]
    delete(repo, "/a", rows(10))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [100, 30]
    delete(repo, "/a", rows(40, 10))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [100]
    assert places_of(repo, "/a") == [*map(list, [*rows(100, 40), *rows(230, 190)])]
    delete(repo, "/a", rows(230))
    assert manifests(repo, "/a") == ()
    assert repo.verify(deep=True).is_clean


def test_neighbours_of_what_is_deleted_come_together() -> None:
    repo = repository(splitting(20))
    places = np.concatenate([rows(60), rows(88, 80), rows(128, 120), rows(155, 140)])
    write(repo, "/a", (160,), places)
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [20, 20, 20, 8, 8, 15]
    before = manifests(repo, "/a")
    delete(repo, "/a", rows(155, 140))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [20, 20, 20, 16]
    assert manifests(repo, "/a")[:3] == before[:3]
    delete(repo, "/a", rows(20))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [20, 20, 16]


def test_an_array_is_split_when_another_one_of_its_manifest_changes() -> None:  # R4-58
    needs_manifest_sets()
    storage = icefloe.in_memory_storage()
    whole = icefloe.RepositoryConfig(manifest=ManifestConfig(sets=[ManifestSet(name="default")]))
    repo = icefloe.Repository.create(storage, whole, **how())
    session = repo.writable_session("main")
    for path, count in (("/a", 5), ("/b", 50)):
        session.tree.set_document(path, array((1_000,)))
        session.tree.set_chunk_refs(path, references(rows(count)))
    session.commit("both")
    repo = icefloe.Repository.open(storage, splitting(20))
    write(repo, "/a", (1_000,), rows(6, 5))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [6]
    assert [ref.num_refs for ref in manifests(repo, "/b")] == [20, 20, 10]


def test_a_split_array_leaves_the_manifest_that_it_shared() -> None:  # R4-58
    needs_manifest_sets()
    repo = repository(splitting(100))
    session = repo.writable_session("main")
    for path, count in (("/a", 60), ("/b", 50)):
        session.tree.set_document(path, array((1_000,)))
        session.tree.set_chunk_refs(path, references(rows(count)))
    session.commit("both")
    assert manifests(repo, "/a")[0].manifest_id == manifests(repo, "/b")[0].manifest_id
    write(repo, "/a", (1_000,), rows(150, 60))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [100, 50]
    (other,) = manifests(repo, "/b")
    snapshot = repo.readonly_session("main").tree.snapshot
    assert {info.id: info.num_chunk_refs for info in snapshot.manifests}[other.manifest_id] == 50


def test_arrays_move_between_sets_that_split_and_sets_that_do_not() -> None:  # R4-33, R4-35
    needs_manifest_sets()
    rules = [
        ManifestRule(target="few", initialized_chunks=(0, 20)),
        ManifestRule(target="whole", path="/whole/.*"),
        ManifestRule(target="split", initialized_chunks=(0, 200)),
    ]
    config = icefloe.RepositoryConfig(
        manifest=ManifestConfig(
            sets=[
                ManifestSet(name="few", max_manifest_size=100, overflow_to="split"),
                ManifestSet(name="whole", arrays_per_manifest=1, cardinality=None),
                ManifestSet(name="split", max_manifest_size=500, split_size=50),
            ],
            rules=rules,
        )
    )
    repo = repository(config)
    with repo.transaction("main", message="group") as store:
        store.session.tree.set_document("/whole", group())
    write(repo, "/a", (90,), rows(20))
    assert sets(repo, "/a") == ["few"]
    write(repo, "/a", (120,), rows(21, 20))
    assert sets(repo, "/a") == ["split"]
    write(repo, "/a", (120,), rows(120, 21))
    assert sets(repo, "/a") == ["split"] * 3
    with repo.transaction("main", message="move") as store:
        store.session.move("/a", "/whole/a")
    assert sets(repo, "/whole/a") == ["split"] * 3, "moving touches no manifest"
    write(repo, "/whole/a", (120,), rows(1))
    assert sets(repo, "/whole/a") == ["whole"]
    with repo.transaction("main", message="back") as store:
        store.session.move("/whole/a", "/a")
    write(repo, "/a", (300,), rows(210, 120))
    assert sets(repo, "/a") == ["default"], "too many chunks for the rule of the splitting set"
    delete(repo, "/a", rows(210, 10))
    assert sets(repo, "/a") == ["split"], "few chunks, in a grid that is too large for `few`"
    write(repo, "/a", (100,), rows(1))
    assert sets(repo, "/a") == ["few"]
    assert places_of(repo, "/a") == rows(10).tolist()


def test_what_overflows_into_a_set_that_splits_is_split() -> None:  # R4-25, R4-67
    needs_manifest_sets()
    config = icefloe.RepositoryConfig(
        manifest=ManifestConfig(
            sets=[
                ManifestSet(name="one", max_manifest_size=100),
                ManifestSet(name="default", split_size=30),
            ],
            rules=[ManifestRule(target="one")],
        )
    )
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config, **how())
    write(repo, "/a", (90,), rows(90))
    write(repo, "/b", (80,), rows(80))
    assert sets(repo, "/a") == ["one"]
    assert sets(repo, "/b") == ["default"] * 3
    write(repo, "/b", (80,), rows(1))
    assert sets(repo, "/b") == ["default"] * 3
    write(repo, "/c", (200,), rows(110))
    assert sets(repo, "/c") == ["default"] * 4
    repo.rewrite_manifests("again", branch="main")
    assert sorted([*sets(repo, "/a"), *sets(repo, "/b")]) in (
        ["default"] * 3 + ["one"],
        ["default"] * 4 + ["one"],
    )
    for path, count in (("/a", 90), ("/b", 80), ("/c", 110)):
        assert places_of(repo, path) == rows(count).tolist()


# --- other configurations than before


def test_pieces_of_an_older_configuration_come_together_where_something_changes() -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, splitting(10), **how())
    write(repo, "/a", (100,), rows(100))
    before = manifests(repo, "/a")
    assert len(before) == 10
    repo = icefloe.Repository.open(storage, splitting(40))
    write(repo, "/a", (100,), rows(6, 5))
    after = manifests(repo, "/a")
    assert [ref.num_refs for ref in after] == [40, *[10] * 6]
    assert set(before[4:]) == set(after[1:])
    whole = icefloe.RepositoryConfig(manifest=ManifestConfig(sets=[ManifestSet(name="default")]))
    repo = icefloe.Repository.open(storage, whole)
    write(repo, "/b", (10,), rows(10))
    assert len(manifests(repo, "/a")) == 7, "another array changed"
    write(repo, "/a", (100,), rows(100, 99))
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [100]
    assert places_of(repo, "/a") == rows(100).tolist()


def test_pieces_of_another_configuration_do_not_count_as_manifests_of_a_set() -> None:  # R4-26
    needs_manifest_sets()
    storage = icefloe.in_memory_storage()

    def config(**properties: Any) -> RepositoryConfig:
        one = ManifestSet(name="one", max_manifest_size=100, **properties)
        rules = [ManifestRule(target="one")]
        return icefloe.RepositoryConfig(manifest=ManifestConfig(sets=[one], rules=rules))

    repo = icefloe.Repository.create(storage, config(split_size=10), **how())
    write(repo, "/a", (60,), rows(60))
    assert sets(repo, "/a") == ["one"] * 6
    repo = icefloe.Repository.open(storage, config(cardinality=1))
    before = manifests(repo, "/a")
    write(repo, "/b", (10,), rows(10))
    write(repo, "/c", (10,), rows(10))
    assert manifests(repo, "/a") == before
    assert manifests(repo, "/b")[0].manifest_id == manifests(repo, "/c")[0].manifest_id
    assert sets(repo, "/b") == ["one"]
    write(repo, "/a", (60,), rows(1))
    assert len({ref.manifest_id for path in "abc" for ref in manifests(repo, f"/{path}")}) == 1
    assert places_of(repo, "/a") == rows(60).tolist()


# --- sessions that meet


def test_writers_of_one_split_array_meet() -> None:  # R4-63
    repo = repository(splitting(20))
    write(repo, "/a", (1_000,), rows(100))
    ours, theirs = repo.writable_session("main"), repo.writable_session("main")
    ours.tree.set_chunk_refs("/a", references(rows(150, 100)))
    theirs.tree.set_chunk_refs("/a", references(rows(900, 895)), references(rows(60, 5)).index)
    theirs.commit("theirs")
    ours.commit("ours", rebase_with=icefloe.ConflictDetector())
    expected = [*range(5), *range(60, 150), *range(895, 900)]
    assert places_of(repo, "/a") == [[place] for place in expected]
    assert all(ref.num_refs <= 20 for ref in manifests(repo, "/a"))
    assert len(manifests(repo, "/a")) <= 8


def test_branches_that_split_one_array_are_merged() -> None:
    repo = repository(splitting(20))
    write(repo, "/a", (1_000,), rows(30))
    repo.create_branch("other", repo.lookup_branch("main"))
    write(repo, "/a", (1_000,), rows(80, 30))
    session = repo.writable_session("other")
    session.tree.set_chunk_refs("/a", references(rows(700, 640)))
    session.commit("other")
    repo.merge("other", "main")
    assert places_of(repo, "/a") == [[place] for place in [*range(80), *range(640, 700)]]
    assert all(ref.num_refs <= 20 for ref in manifests(repo, "/a"))


def test_forks_write_into_one_split_array() -> None:
    repo = repository(splitting(20))
    write(repo, "/a", (1_000,), rows(50))
    session = repo.writable_session("main")
    forks = [pickle.loads(pickle.dumps(session.fork())) for _ in range(4)]
    for number, fork in enumerate(forks):
        fork.tree.set_chunk("/a", (200 + number,), b"x")
        fork.tree.delete_chunk("/a", (number,))
    session.merge(*forks)
    session.commit("together")
    assert places_of(repo, "/a") == [[place] for place in [*range(4, 50), *range(200, 204)]]
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [16, 20, 10, 4]


def test_linked_manifests_that_are_too_small_come_together_in_the_commit() -> None:
    """Tasks that know nothing of each other write parts of one sparse array."""
    repo = repository(splitting(20))
    write(repo, "/a", (1_000,), rows(25))
    session = repo.writable_session("main")
    for start in (100, 140, 500):
        part = pickle.loads(pickle.dumps(ForkSession.part_of(session)))
        part.tree.set_chunk_refs("/a", references(rows(start + 4, start)))
        tiles = write_tiles(part.tree, "/a")
        assert tiles is not None
        link_tiles(session.tree, "/a", tiles)
    session.tree.delete_chunk("/a", (24,))
    session.tree.set_chunk("/a", (101,), b"edited")
    session.commit("linked")
    starts = [*range(24), *range(100, 104), *range(140, 144), *range(500, 504)]
    assert places_of(repo, "/a") == [[place] for place in starts]
    assert repo.readonly_session("main").get_chunk("/a", (101,)) == b"edited"
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [20, 4, 8, 4]
    assert sets(repo, "/a") == ["default"] * 4
    assert repo.verify(deep=True).is_clean


def test_a_linked_manifest_of_an_array_with_few_references_is_packed() -> None:
    repo = repository(splitting(20))
    write(repo, "/a", (1_000,), rows(5))
    session = repo.writable_session("main")
    part = ForkSession.part_of(session)
    part.tree.set_chunk_refs("/a", references(rows(504, 500)))
    tiles = write_tiles(part.tree, "/a")
    assert tiles is not None
    link_tiles(session.tree, "/a", tiles)
    session.commit("linked")
    assert [ref.num_refs for ref in manifests(repo, "/a")] == [9]


def test_compacting_a_split_array_keeps_its_manifests_small() -> None:
    repo = repository(splitting(20))
    for start in (0, 30):
        session = repo.writable_session("main")
        session.tree.set_document("/a", array((1_000,)))
        for place in range(start, start + 25):
            session.tree.set_chunk("/a", (place,), bytes([place]) * 600)
        session.commit("chunks")
    before = [ref.num_refs for ref in manifests(repo, "/a")]
    assert repo.compact(branch="main").snapshot_id is not None
    assert [ref.num_refs for ref in manifests(repo, "/a")] == before == [20, 15, 15]
    session = repo.readonly_session("main")
    assert session.get_chunk("/a", (54,)) == bytes([54]) * 600
