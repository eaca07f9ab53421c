"""Manifests of commits: packed by the rules of seed 004, split, linked if untouched."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import icefloe
from icefloe.config import ManifestConfig, ManifestRule, ManifestSet, ManifestSplittingConfig
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations, VirtualRef
from icefloe.model.manifest import ArrayChunks
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.faults import FaultyStorage
from tests.documents import array, group, set_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.storage.port import BytesLike, Storage


def repository(
    manifest: ManifestConfig | None = None,
) -> tuple[icefloe.Repository, FaultyStorage]:
    storage = FaultyStorage(icefloe.in_memory_storage())
    config = icefloe.RepositoryConfig(manifest=manifest)
    return icefloe.Repository.create(storage, config), storage


def layout(repo: icefloe.Repository) -> dict[str, set[str]]:
    """Which arrays each manifest of main's tip holds, by the manifest's id."""
    session = repo.readonly_session("main")
    held: dict[str, set[str]] = {}
    for path in session.tree.node_paths("/"):
        node = session.get_node(path)
        assert node is not None
        for ref in node.manifests:
            held.setdefault(str(ref.manifest_id), set()).add(path)
    listed = {info.id for info in repo.lookup_snapshot(repo.lookup_branch("main")).manifests}
    assert listed == set(held)  # R1-29
    return held


def groups(repo: icefloe.Repository) -> list[list[str]]:
    return sorted(sorted(paths) for paths in layout(repo).values())


def commit_arrays(repo: icefloe.Repository, arrays: dict[str, int], chunks: int = 2) -> None:
    """Commit arrays of one dimension, given by the number of chunks of their grids."""
    session = repo.writable_session("main")
    if session.get_node("/") is None:
        session.tree.set_document("/", group())
    for path, size in arrays.items():
        session.tree.set_document(path, array((size,)))
        set_chunks(session, path, range(min(chunks, size)))
    session.commit(", ".join(arrays))


def touch(repo: icefloe.Repository, path: str, place: int = 0, data: bytes = b"\x07") -> None:
    session = repo.writable_session("main")
    session.tree.set_chunk(path, (place,), data)
    session.commit(f"touch {path}")


def test_small_arrays_share_a_manifest_and_large_ones_do_not() -> None:  # R4-11, R4-42
    # R1-34, R4-01, R4-13
    repo, _ = repository()
    commit_arrays(repo, {"/time": 10, "/lat": 4, "/lon": 4, "/t2m": 20_000})
    assert groups(repo) == [["/lat", "/lon", "/time"], ["/t2m"]]


def test_a_commit_rewrites_only_the_closure_of_what_it_changed() -> None:  # R4-51, R4-63, C2
    # R4-05, R4-58, R4-80
    repo, _ = repository()
    commit_arrays(repo, {"/time": 10, "/lat": 4, "/t2m": 20_000, "/wind": 1_000_000})
    before = layout(repo)
    touch(repo, "/time")
    after = layout(repo)
    kept = before.keys() & after.keys()
    assert sorted(p for m in kept for p in before[m]) == ["/t2m", "/wind"]
    assert groups(repo) == [["/lat", "/time"], ["/t2m"], ["/wind"]]


def test_new_small_arrays_join_the_manifest_of_the_others() -> None:  # H-38, R4-76
    repo, _ = repository()
    for number in range(5):
        commit_arrays(repo, {f"/a{number}": 3})
    assert len(layout(repo)) == 1


def in_sets(repo: icefloe.Repository) -> dict[str, list[list[str]]]:
    """The arrays of each manifest, by manifest set."""
    snapshot = repo.readonly_session("main").tree.snapshot
    held = layout(repo)
    sets: dict[str, list[list[str]]] = {}
    for info in snapshot.manifests:
        sets.setdefault(info.set_name, []).append(sorted(held[str(info.id)]))
    return {name: sorted(paths) for name, paths in sets.items()}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("cardinality", [1, 2, 3, None])
def test_a_set_has_no_more_manifests_than_it_may(cardinality: int | None, at_once: bool) -> None:
    # R4-25, R4-26, R4-67, H-38, R4-13, R4-15
    sets = [
        ManifestSet(
            name="coord", max_manifest_size=10, cardinality=cardinality, overflow_to="rest"
        ),
        ManifestSet(name="rest", arrays_per_manifest=1, cardinality=None),
    ]
    rules = [ManifestRule(target="coord", metadata_chunks=(0, 8))]
    repo, _ = repository(ManifestConfig(sets=sets, rules=rules))
    paths = [f"/a{number}" for number in range(5)]
    for some in [paths] if at_once else [[path] for path in paths]:
        commit_arrays(repo, dict.fromkeys(some, 8))  # two do not fit into one manifest
    found = in_sets(repo)
    allowed = 5 if cardinality is None else cardinality
    assert len(found["coord"]) == allowed
    assert len(found.get("rest", [])) == 5 - allowed
    assert sorted(path for each in found.values() for held in each for path in held) == paths
    touch(repo, "/a4")  # whichever set it is in, there is no more room than before
    assert {name: len(each) for name, each in in_sets(repo).items()} == {
        name: len(each) for name, each in found.items()
    }
    session = repo.readonly_session("main")
    assert all(session.get_chunk(path, (1,)) == b"\x01" for path in paths)


def test_a_full_set_takes_its_smallest_manifest_in_again() -> None:  # R4-26, H-38
    sets = [ManifestSet(name="coord", max_manifest_size=10, cardinality=2)]
    repo, _ = repository(ManifestConfig(sets=sets, rules=[ManifestRule(target="coord")]))
    for path, size in {"/a": 8, "/b": 4, "/c": 4}.items():
        commit_arrays(repo, {path: size}, chunks=size)
    assert in_sets(repo) == {"coord": [["/a"], ["/b", "/c"]]}
    commit_arrays(repo, {"/d": 5})
    assert in_sets(repo) == {"coord": [["/a"], ["/b", "/c"]], "default": [["/d"]]}


def test_deleting_an_array_takes_its_references_along() -> None:  # H-36
    repo, _ = repository()
    commit_arrays(repo, {"/a": 3, "/b": 3})
    session = repo.writable_session("main")
    session.tree.delete_node("/a")
    session.commit("gone")
    (manifest,) = repo.lookup_snapshot(repo.lookup_branch("main")).manifests
    assert manifest.num_chunk_refs == 2
    assert groups(repo) == [["/b"]]


def test_arrays_without_chunks_have_no_manifest() -> None:  # H-43
    repo, _ = repository()
    commit_arrays(repo, {"/a": 3}, chunks=0)
    assert layout(repo) == {}
    touch(repo, "/a")
    session = repo.writable_session("main")
    session.tree.clear_chunks("/a")
    session.commit("emptied")
    assert layout(repo) == {}


def test_moving_touches_no_manifest() -> None:  # R3-09
    repo, _ = repository()
    commit_arrays(repo, {"/a": 3, "/b": 3})
    before = layout(repo).keys()
    session = repo.writable_session("main")
    session.move("/a", "/z")
    session.commit("moved")
    assert layout(repo).keys() == before


def big_virtual(count: int, offsets: Any = None) -> ArrayChunks:
    if offsets is None:
        offsets = np.arange(count, dtype=np.uint64) * 100
    refs = ChunkRefs(
        kinds=np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
        sources=np.zeros(count, dtype=np.uint32),
        offsets=offsets,
        lengths=np.full(count, 100, dtype=np.uint64),
        checksums=np.zeros(count, dtype=np.uint32),
        files=np.empty((0, 12), dtype=np.uint8),
        locations=Locations.of([("s3://bucket/file.nc", None, None)]),
        inline=b"",
    )
    return ArrayChunks.from_columns(np.arange(count).reshape(-1, 1), refs)


def huge(count: int = 200_000) -> tuple[icefloe.Repository, FaultyStorage]:
    repo, storage = repository()
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/huge", array((count,)))
    session.tree.set_chunk_refs("/huge", big_virtual(count))
    session.commit("huge")
    return repo, storage


def test_huge_arrays_are_cut_into_tiles() -> None:
    repo, _ = huge()
    node = repo.readonly_session("main").get_node("/huge")
    assert node is not None
    assert node.num_refs == 200_000
    assert [ref.extents.lower[0] for ref in node.manifests] == list(range(0, 200_000, 32_768))
    assert all(ref.num_refs <= 32_768 for ref in node.manifests)


def test_one_chunk_of_a_huge_array_rewrites_one_tile_and_reads_one() -> None:  # R4-09
    repo, storage = huge()
    before = layout(repo).keys()
    reopened = icefloe.Repository.open(storage)
    session = reopened.writable_session("main")
    storage.trace.clear()
    session.tree.set_chunk("/huge", (150_000,), b"new")
    session.commit("one")
    manifests = [op for op in storage.trace if "manifests/" in str(op)]
    assert len(manifests) == 2, manifests  # one read, one written
    after = layout(repo).keys()
    assert len(before - after) == len(after - before) == 1
    reader = icefloe.Repository.open(storage).readonly_session("main")
    storage.trace.clear()
    assert reader.get_chunk("/huge", (150_000,)) == b"new"
    assert len([op for op in storage.trace if "manifests/" in str(op)]) == 1
    neighbour = reader.tree.locate("/huge", (150_001,))
    assert isinstance(neighbour, VirtualRef)
    assert neighbour.offset == 15_000_100


class Weighing(ForwardingStorage):
    """Counts the bytes that are read from manifests."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.num_bytes = 0

    def _run(self, verb: str, key: str, act: Callable[[], Any]) -> Any:
        answer = act()
        if key.startswith("manifests/") and verb.startswith("get"):
            parts = answer if isinstance(answer, list) else [answer]
            self.num_bytes += sum(map(len, parts))
        return answer


@pytest.mark.parametrize(
    "manifest",
    [None, ManifestConfig(sets=[ManifestSet(name="default")])],
    ids=["split", "one manifest"],
)
def test_a_small_read_reads_few_bytes_of_a_large_manifest(manifest: ManifestConfig | None) -> None:
    # R4-08, R4-04
    count = 600_000
    offsets = np.random.default_rng(5).integers(0, 2**40, count, dtype=np.uint64)
    storage = Weighing(icefloe.in_memory_storage())
    config = icefloe.RepositoryConfig(manifest=manifest)
    session = icefloe.Repository.create(storage, config).writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/huge", array((count,)))
    session.tree.set_chunk_refs("/huge", big_virtual(count, offsets))
    session.tree.set_document("/small", array((3,)))
    set_chunks(session, "/small", range(3))
    session.commit("both")
    total = sum(info.size_bytes for info in session.tree.snapshot.manifests)
    assert total > 1_000_000
    reader = icefloe.Repository.open(storage).readonly_session("main")
    storage.num_bytes = 0
    assert reader.get_chunk("/small", (1,)) == b"\x01"
    assert 0 < storage.num_bytes < total / 5
    reader = icefloe.Repository.open(storage).readonly_session("main")
    storage.num_bytes = 0
    ref = reader.tree.locate("/huge", (345_678,))
    assert isinstance(ref, VirtualRef)
    assert ref.offset == offsets[345_678]
    assert 0 < storage.num_bytes < total / 5


def test_appending_touches_the_last_tile_only() -> None:  # R4-10
    repo, _ = huge(70_000)
    before = layout(repo).keys()
    session = repo.writable_session("main")
    session.tree.set_document("/huge", array((70_010,)))
    set_chunks(session, "/huge", range(70_000, 70_010))
    session.commit("append")
    after = layout(repo).keys()
    assert len(before & after) == 2
    assert len(after) == 3


class Together(ForwardingStorage):
    """Writes no manifest before a second one is on its way."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.meeting = threading.Barrier(2, timeout=30)

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        if key.startswith("manifests/"):
            self.meeting.wait()
        super().put(key, data, attributes)


def test_manifests_are_written_at_the_same_time() -> None:  # R4-78
    repo = icefloe.Repository.create(Together(icefloe.in_memory_storage()))
    commit_arrays(repo, {"/time": 10, "/t2m": 900_000})
    assert groups(repo) == [["/t2m"], ["/time"]]


def test_splitting_as_the_user_says() -> None:  # api-facts 37, 38, R4-14
    any_array = icefloe.ManifestSplitCondition.AnyArray()
    axis = icefloe.ManifestSplitDimCondition.Axis(0)
    splitting = ManifestSplittingConfig.from_dict({any_array: {axis: 3}})
    repo, _ = repository(ManifestConfig(splitting=splitting))
    commit_arrays(repo, {"/a": 10}, chunks=10)
    assert len(layout(repo)) == 4
    before = layout(repo).keys()
    touch(repo, "/a", 4)
    assert len(before & layout(repo).keys()) == 3
    session = repo.readonly_session("main")
    assert session.tree.chunk_coords("/a").ravel().tolist() == list(range(10))


def test_other_tiles_than_before_are_made_where_something_changes() -> None:
    repo, storage = repository()
    commit_arrays(repo, {"/a": 12, "/b": 3}, chunks=12)
    any_array = icefloe.ManifestSplitCondition.name_matches("^a$")
    axis = icefloe.ManifestSplitDimCondition.Axis(0)
    splitting = ManifestSplittingConfig.from_dict({any_array: {axis: 4}})
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    repo = icefloe.Repository.open(storage, config)
    assert groups(repo) == [["/a", "/b"]]
    touch(repo, "/a", 5)
    assert groups(repo) == [["/a"], ["/a"], ["/a"], ["/b"]]
    session = repo.readonly_session("main")
    expected = {n: b"\x07" if n == 5 else b"\x01" for n in range(12)}
    assert {n: session.get_chunk("/a", (n,)) for n in range(12)} == expected


@pytest.mark.parametrize("spec_version", [1, 2])
def test_set_names_survive(spec_version: int) -> None:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=spec_version)
    commit_arrays(repo, {"/a": 3})
    commit_arrays(icefloe.Repository.open(storage), {"/b": 3})
    assert len(layout(icefloe.Repository.open(storage))) == 1


def split(*axes: int | None) -> ManifestConfig:
    """Every array called `a` is cut into tiles of so many chunks along each dimension."""
    sizes: dict[icefloe.ManifestSplitDimCondition, int] = {
        icefloe.ManifestSplitDimCondition.Axis(axis): size
        for axis, size in enumerate(axes)
        if size is not None
    }
    condition = icefloe.ManifestSplitCondition.name_matches("^a$")
    return ManifestConfig(splitting=ManifestSplittingConfig.from_dict({condition: sizes}))


def reopened(storage: FaultyStorage, manifest: ManifestConfig) -> icefloe.Repository:
    return icefloe.Repository.open(storage, icefloe.RepositoryConfig(manifest=manifest))


def extents(repo: icefloe.Repository, path: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    node = repo.readonly_session("main").get_node(path)
    assert node is not None
    return [(ref.extents.lower, ref.extents.upper) for ref in node.manifests]


def test_an_array_that_is_to_be_split_is_cut_when_a_neighbour_changes() -> None:  # R4-02
    repo, storage = repository()
    commit_arrays(repo, {"/a": 6, "/b": 3}, chunks=6)
    repo = reopened(storage, split(3))
    touch(repo, "/b")
    assert groups(repo) == [["/a"], ["/a"], ["/b"]]
    assert extents(repo, "/a") == [((0,), (3,)), ((3,), (6,))]


def test_extents_never_overlap_when_the_cut_changes_its_direction() -> None:
    repo, storage = repository(split(1))
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((3, 2)))
    for coords in ((0, 0), (0, 1), (1, 1), (2, 0), (2, 1)):
        session.tree.set_chunk("/a", coords, b"\x01")
    session.commit("rows; the second reaches the second column only")
    repo = reopened(storage, split(None, 1))
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (0, 0), b"\x02")
    session.commit("columns")
    assert extents(repo, "/a") == [((0, 0), (3, 1)), ((0, 1), (3, 2))]
    assert len(repo.readonly_session("main").tree.chunk_coords("/a")) == 5


def test_a_full_set_is_not_written_again_for_an_array_that_it_cannot_take() -> None:
    sets = [ManifestSet(name="coord", max_manifest_size=10)]
    rules = [ManifestRule(target="coord", metadata_chunks=(0, 10))]
    repo, _ = repository(ManifestConfig(sets=sets, rules=rules))
    commit_arrays(repo, {"/a": 8}, chunks=8)
    (full,) = layout(repo)
    commit_arrays(repo, {"/b": 3})
    assert full in layout(repo)
    assert groups(repo) == [["/a"], ["/b"]]


def test_an_array_that_is_no_longer_split_comes_together_again_when_its_set_is_packed() -> None:
    sets = [ManifestSet(name="one", max_manifest_size=100)]
    rules = [ManifestRule(target="one", path=".*")]
    repo, storage = repository(ManifestConfig(sets=sets, rules=rules))
    commit_arrays(repo, {"/a": 3, "/b": 3}, chunks=3)
    repo = reopened(storage, split(3))
    session = repo.writable_session("main")
    session.tree.set_document("/a", array((9,)))
    session.tree.set_chunk("/a", (7,), b"\x01")
    session.commit("a tile beside the shared manifest")
    assert groups(repo) == [["/a"], ["/a", "/b"]]
    repo = icefloe.Repository.open(storage)
    commit_arrays(repo, {"/c": 3})  # takes the set's only manifest in again
    assert groups(repo) == [["/a", "/b", "/c"]]
    assert extents(repo, "/a") == [((0,), (8,))]
    assert repo.readonly_session("main").tree.chunk_coords("/a").ravel().tolist() == [0, 1, 2, 7]
