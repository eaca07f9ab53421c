"""`rewrite_manifests`: the layout of the present configuration as one commit, the same data."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.config import (
    CachingConfig,
    ManifestConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.engine.branches import commits
from icefloe.engine.commit.rewritten_manifests import rewrite_manifests
from icefloe.errors import (
    ConflictError,
    InvalidInputError,
    RefNotFoundError,
    SessionStateError,
)
from tests.builders import new_repository
from tests.documents import array, chunks_of, group, make_tree, set_chunks
from tests.formats import needs_manifest_sets

if TYPE_CHECKING:
    from icefloe.model.snapshot import Snapshot
    from icefloe.repository import Repository
    from icefloe.session import Session

each_generation = pytest.mark.usefixtures("each_generation")

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"


def repository(manifest: ManifestConfig | None = None) -> Repository:
    """A repository that keeps no configuration, opened with one."""
    return reconfigured(new_repository(), manifest)


def reconfigured(repo: Repository, manifest: ManifestConfig | None) -> Repository:
    return icefloe.Repository.open(repo.storage, icefloe.RepositoryConfig(manifest=manifest))


def split_in(*sizes: int | None) -> ManifestConfig:
    """Tiles of so many chunks along each dimension; None does not cut."""
    rules = {
        ManifestSplitDimCondition.Axis(axis): size
        for axis, size in enumerate(sizes)
        if size is not None
    }
    splitting = {ManifestSplitCondition.AnyArray(): rules} if rules else {}
    return ManifestConfig(splitting=ManifestSplittingConfig.from_dict(splitting))  # type: ignore[arg-type]


def layout(repo: Repository) -> list[list[tuple[str, Any, int]]]:
    """For each manifest of main's tip: arrays, extents and counts."""
    session = repo.readonly_session("main")
    held: dict[str, list[tuple[str, Any, int]]] = {}
    for path in session.tree.node_paths("/"):
        node = session.get_node(path)
        assert node is not None
        for ref in node.manifests:
            place = (path, (ref.extents.lower, ref.extents.upper), ref.num_refs)
            held.setdefault(str(ref.manifest_id), []).append(place)
    listed = repo.lookup_snapshot(repo.lookup_branch("main")).manifests
    assert {info.id: info.num_chunk_refs for info in listed} == {
        each: sum(count for _, _, count in places) for each, places in held.items()
    }
    return sorted(held.values())


def everything(session: Session) -> dict[str, Any]:
    """Documents and chunks of all nodes."""
    found: dict[str, Any] = {}
    for path in ("/", *session.tree.node_paths("/")):
        node = session.get_node(path)
        if node is None:
            continue
        found[path] = session.tree.document(path)
        if node.is_array:
            coords = map(tuple, session.tree.chunk_coords(path).tolist())
            found[f"{path}/c"] = {each: session.get_chunk(path, each) for each in coords}
    return found


@each_generation
def test_a_commit_is_made_even_if_there_is_nothing_to_rewrite() -> None:
    repo = repository()
    first = repo.lookup_branch("main")
    second = repo.rewrite_manifests("again", branch="main", metadata={"by": "me"})
    assert repo.lookup_branch("main") == second
    info = repo.lookup_snapshot(second)
    assert (info.parent_id, info.message, info.metadata) == (first, "again", {"by": "me"})
    assert info.manifests == []
    assert repo.diff(from_snapshot_id=first, to_branch="main").is_empty()


@each_generation
def test_a_repository_takes_the_layout_of_a_new_configuration() -> None:
    needs_manifest_sets()
    repo = repository()
    make_tree(repo)
    before = everything(repo.readonly_session("main"))
    old = {info.id for info in repo.lookup_snapshot(repo.lookup_branch("main")).manifests}
    assert len(old) == 1
    repo = reconfigured(repo, split_in(4))
    repo.set_default_commit_metadata({"default": 1})
    snapshot_id = repo.rewrite_manifests("split", branch="main")
    assert layout(repo) == [
        [("/b", ((0,), (3,)), 3)],
        [("/g/a", ((0,), (4,)), 4)],
        [("/g/a", ((4,), (8,)), 4)],
        [("/g/a", ((8,), (10,)), 2)],
    ]
    fresh = icefloe.Repository.open(repo.storage)
    assert everything(fresh.readonly_session("main")) == before
    assert fresh.lookup_snapshot(snapshot_id).metadata == {"default": 1}
    assert not old & {info.id for info in fresh.lookup_snapshot(snapshot_id).manifests}
    # A file that describes nothing but itself: no chunk was touched.
    assert fresh.diff(from_snapshot_id=info_of_parent(fresh), to_branch="main").is_empty()
    whole = ManifestConfig(sets=[ManifestSet(name="default", arrays_per_manifest=1)], rules=[])
    reconfigured(fresh, whole).rewrite_manifests("one each", branch="main")
    assert layout(fresh) == [[("/b", ((0,), (3,)), 3)], [("/g/a", ((0,), (10,)), 10)]]


def info_of_parent(repo: Repository) -> str:
    parent = repo.lookup_snapshot(repo.lookup_branch("main")).parent_id
    assert parent is not None
    return parent


CONFIGURATIONS = [
    None,
    split_in(1, None),
    split_in(3, 2),
    split_in(None, 3),
    split_in(100, 100),
    ManifestConfig(sets=[ManifestSet(name="default", arrays_per_manifest=2)], rules=[]),
    ManifestConfig(
        sets=[
            ManifestSet(name="few", max_manifest_size=12, cardinality=1, overflow_to="default"),
            ManifestSet(name="default", max_manifest_size=50),
        ],
        rules=[ManifestRule(target="few", initialized_chunks=(0, 4))],
    ),
]
GRIDS = {"/a": (5, 4), "/b": (2, 2), "/c": (7, 1), "/d": (3, 3)}
writes = st.lists(
    st.sampled_from(
        [(p, (i, j)) for p, (h, w) in GRIDS.items() for i in range(h) for j in range(w)]
    ),
    max_size=30,
)


def written(session: Session, places: list[tuple[str, tuple[int, int]]]) -> None:
    for number, (path, coords) in enumerate(places):
        session.tree.set_chunk(path, coords, bytes([number]))


@each_generation
@given(
    old=st.sampled_from(CONFIGURATIONS),
    new=st.sampled_from(CONFIGURATIONS),
    commits=st.lists(writes, min_size=1, max_size=3),
)
def test_the_layout_is_that_of_a_repository_made_in_one_commit(
    old: ManifestConfig | None, new: ManifestConfig | None, commits: list[Any]
) -> None:
    repo, model = repository(old), repository(new)
    for each in (repo, model):
        session = each.writable_session("main")
        session.tree.set_document("/", group())
        for path, grid in GRIDS.items():
            session.tree.set_document(path, array(grid))
        if each is repo:
            session.commit("nodes")
            for places in commits:
                session = repo.writable_session("main")
                written(session, places)
                session.commit("some", allow_empty=True)
        else:
            for places in commits:
                written(session, places)
            session.commit("all")
    before = everything(repo.readonly_session("main"))
    ids = {path: repo.readonly_session("main").get_node_id(path) for path in GRIDS}
    reconfigured(repo, new).rewrite_manifests("anew", branch="main")
    fresh = icefloe.Repository.open(repo.storage)
    reader = fresh.readonly_session("main")
    assert everything(reader) == before == everything(model.readonly_session("main"))
    assert {path: reader.get_node_id(path) for path in GRIDS} == ids
    assert contents(layout(fresh)) == contents(layout(model))


def contents(manifests: list[list[tuple[str, Any, int]]]) -> list[tuple[tuple[str, Any, int], ...]]:
    """Which arrays share manifests, without an order among equals."""
    return sorted(tuple(sorted(places)) for places in manifests)


@each_generation
def test_the_tip_can_be_replaced() -> None:
    repo = repository()
    first = repo.lookup_branch("main")
    with pytest.raises(SessionStateError, match="first snapshot"):
        repo.rewrite_manifests("x", branch="main", commit_method="amend")
    replaced = make_tree(repo)
    amended = repo.rewrite_manifests("rewritten", branch="main", commit_method="amend")
    assert [info.id for info in repo.ancestry(branch="main")] == [amended, first]
    diff = repo.diff(from_snapshot_id=first, to_branch="main")
    assert diff.new_arrays == {"/b", "/g/a"}
    assert len(diff.updated_chunks["/g/a"]) == 10
    old = repo.readonly_session(snapshot_id=replaced)
    assert everything(old) == everything(repo.readonly_session("main"))


@each_generation
def test_what_is_not_possible() -> None:
    repo = repository()
    with pytest.raises(RefNotFoundError):
        repo.rewrite_manifests("x", branch="absent")
    wrong: Any = "squash"
    with pytest.raises(InvalidInputError, match="new_commit"):
        repo.rewrite_manifests("x", branch="main", commit_method=wrong)
    with pytest.raises(TypeError):
        repo.rewrite_manifests("x", branch="main", metadata={1: 2})  # type: ignore[dict-item]
    assert len(list(repo.ancestry(branch="main"))) == 1


@each_generation
def test_a_branch_that_moves_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repository()
    make_tree(repo)
    rewrite = rewrite_manifests

    def slowly(files: Any, base: Snapshot, settings: Any) -> Snapshot:
        session = repo.writable_session("main")
        set_chunks(session, "/b", [5], b"\x05")
        session.commit("meanwhile")
        return rewrite(files, base, settings)

    monkeypatch.setattr(commits, "rewrite_manifests", slowly)
    with pytest.raises(ConflictError):
        repo.rewrite_manifests("x", branch="main")
    assert next(repo.ancestry(branch="main")).message == "meanwhile"
    assert chunks_of(repo.readonly_session("main"), "/b")[5] == b"\x05"


@each_generation
def test_sessions_are_rebased_over_it() -> None:
    repo = repository()
    make_tree(repo)
    session = repo.writable_session("main")
    set_chunks(session, "/g/a", [3], b"\x33")
    session.tree.delete_node("/b")
    reconfigured(repo, split_in(2)).rewrite_manifests("split", branch="main")
    session.commit("ours", rebase_with=icefloe.ConflictDetector())
    fresh = icefloe.Repository.open(repo.storage).readonly_session("main")
    expected = dict.fromkeys(range(10), b"\x01") | {3: b"\x33"}
    assert chunks_of(fresh, "/g/a") == expected
    assert fresh.get_node("/b") is None


async def test_the_async_form() -> None:
    repo = repository()
    make_tree(repo)
    snapshot_id = await repo.rewrite_manifests_async("x", branch="main")
    assert repo.lookup_branch("main") == snapshot_id


def test_memory_is_bounded_by_manifests_and_not_by_the_array() -> None:
    side, count = 1_000, 1_000_000
    config = icefloe.RepositoryConfig(caching=CachingConfig(num_chunk_refs=0))
    repo = new_repository(config=config)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((side, side)))
    session.set_virtual_refs(
        "a",
        shape=(side, side),
        locations="s3://bucket/object",
        offsets=np.arange(count),
        lengths=1,
        validate_containers=False,
    )
    session.commit("million")
    reader = icefloe.Repository.open(repo.storage, config)
    manifests = layout(reader)
    peaks = []
    for work in (
        lambda: reader.readonly_session("main").tree.chunk_table("/a"),
        lambda: reader.rewrite_manifests("again", branch="main"),
    ):
        tracemalloc.start()
        work()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert layout(reader) == manifests
    assert peaks[1] < peaks[0] / 2


@each_generation
@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the reference repositories are not there")
@pytest.mark.parametrize("folder", ["gen3-bare-msgpack", "gen3-header39"])
def test_repositories_of_old_layouts(folder: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / folder, tmp_path / "copy")
    repo = icefloe.Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "copy")))
    for branch in sorted(repo.list_branches()):
        before = repo.readonly_session(branch)
        arrays = [
            path
            for path in before.tree.node_paths("/")
            if (node := before.get_node(path)) is not None and node.is_array
        ]
        tables = {path: refs_of(before, path) for path in arrays}
        assert {path: before.chunk_count(path) for path in arrays} == {
            path: len(table) for path, table in tables.items()
        }
        repo.rewrite_manifests("anew", branch=branch)
        after = icefloe.Repository.open(repo.storage).readonly_session(branch)
        assert {path: refs_of(after, path) for path in arrays} == tables


def refs_of(session: Session, path: str) -> dict[tuple[int, ...], Any]:
    places = map(tuple, session.tree.chunk_coords(path).tolist())
    return {place: session.tree.locate(path, place) for place in places}
