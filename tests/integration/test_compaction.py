"""Compaction: fewer and fuller chunk files, the same bytes, and nobody else disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe import ChunkPackingConfig, ConflictDetector, Repository, RepositoryConfig
from icefloe.engine.branches import commits
from icefloe.engine.commit.rewritten_manifests import rewrite_manifests
from icefloe.errors import (
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    NodeNotFoundError,
    RefNotFoundError,
)
from icefloe.formats.registry import detect
from icefloe.testing.faults import FaultyStorage
from icefloe.upkeep.compaction import LocalPackWriter
from tests.builders import new_repository
from tests.formats import PUBLISHING, folder, how
from tests.integration.maintained import DAY, HOUR, NATIVE, PACKED, fill, make, names, values, wait
from tests.property.hierarchy import observe

if TYPE_CHECKING:
    from icefloe.model.manifest import ArrayChunks

pytestmark = pytest.mark.usefixtures("each_generation")


def table(repo: Repository, path: str = "/a", branch: str = "main") -> ArrayChunks:
    found = repo.readonly_session(branch).tree.chunk_table(path)
    assert found is not None
    return found


def test_small_files_become_one_pack_in_the_order_of_the_grid() -> None:
    repo = make(NATIVE)
    for place in (2, 0, 3, 1):
        fill(repo, place + 1, chunks=slice(place, place + 1))
    assert len(names(repo, "chunks")) == 4
    estimate = repo.compact(branch="main", dry_run=True)
    assert len(names(repo, "chunks")) == 4
    before = repo.lookup_branch("main")
    summary = repo.compact("tidy up", branch="main", metadata={"why": "small files"})
    assert summary.snapshot_id == repo.lookup_branch("main") != before
    assert estimate == icefloe.CompactionSummary(None, 4, 1, 4, 4, 4)
    assert (summary.old_files, summary.new_files, summary.chunks) == (4, 1, 4)
    info = repo.lookup_snapshot(summary.snapshot_id)
    assert (info.message, info.metadata, info.parent_id) == (
        "tidy up",
        {"why": "small files"},
        before,
    )
    refs = table(repo).refs
    assert len(np.unique(refs.sources)) == 1
    assert refs.offsets.tolist() == [0, 1, 2, 3]
    assert values(repo, branch="main") == [1, 2, 3, 4]
    assert repo.diff(from_snapshot_id=before, to_branch="main").is_empty()
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    collected = repo.garbage_collect(HOUR)
    assert (collected.chunks_deleted, len(names(repo, "chunks"))) == (4, 1)
    assert values(repo, branch="main") == [1, 2, 3, 4]
    # One small file is left, and nothing to join it with.
    assert repo.compact(branch="main").snapshot_id is None
    assert [entry.kind for entry in repo.operations()].count("compact") == 2


def test_sparse_files_are_written_anew_and_dead_bytes_go() -> None:
    repo = make(PACKED)
    fill(repo, 1)
    fill(repo, 2, chunks=slice(0, 3))
    options: dict[str, Any] = {"branch": "main", "small_file_bytes": 0}
    assert repo.compact(**options, min_live_share=0.1, dry_run=True).old_files == 0
    summary = repo.compact(**options)
    assert (summary.old_files, summary.chunks, summary.bytes_copied) == (1, 1, 1)
    assert summary.bytes_freed == 4
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    assert repo.chunk_file_stats().dead_share == 0
    assert values(repo, branch="main") == [2, 2, 2, 1]


def test_large_chunks_and_full_packs_stay_where_they_are() -> None:
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=0, chunk_packing=ChunkPackingConfig(max_chunk_bytes=10)
    )
    repo = new_repository(config=config)
    with repo.transaction("main", message="x") as store:
        root = zarr.create_group(store)
        root.create_array("large", shape=(80,), chunks=(20,), dtype="u1", compressors=None)[:] = 1
        root.create_array("small", shape=(8,), chunks=(4,), dtype="u1", compressors=None)[:] = 1
    assert len(names(repo, "chunks")) == 5
    assert repo.compact(branch="main").snapshot_id is None


def test_packs_have_their_size_and_arrays_can_be_chosen() -> None:
    repo = make(NATIVE)
    with repo.transaction("main", message="another") as store:
        array = zarr.create_array(
            store, name="b", shape=(10,), chunks=(1,), dtype="u1", compressors=None
        )
        array[:] = np.arange(1, 11)
    fill(repo, 7)
    summary = repo.compact(branch="main", arrays=["b"], pack_bytes=4, small_file_bytes=4)
    assert (summary.old_files, summary.new_files) == (10, 3)
    sources = table(repo, "/b").refs.sources
    assert np.unique(sources, return_counts=True)[1].tolist() == [4, 4, 2]
    assert len(np.unique(table(repo).refs.sources)) == 4
    assert zarr.open_array(repo.readonly_session("main").store, path="b")[:].tolist() == [
        *range(1, 11)
    ]


def test_arrays_that_share_a_file_with_chosen_ones_move_along() -> None:
    repo = make(PACKED)
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=0, chunk_packing=ChunkPackingConfig(pack_bytes=8)
    )
    repo = repo.reopen(config)
    with repo.transaction("main", message="two arrays in a pack") as store:
        for name in ("b", "c"):
            array = zarr.create_array(
                store, name=name, shape=(4,), chunks=(1,), dtype="u1", compressors=None
            )
            array[:] = 1
    options: dict[str, Any] = {"branch": "main", "arrays": "b", "small_file_bytes": 0}
    # Each of the two uses half of the file: nothing is dead.
    assert repo.compact(**options, min_live_share=0.9).old_files == 0
    with repo.transaction("main", message="over a part of both") as store:
        for name in ("b", "c"):
            zarr.open_array(store, path=name)[1:] = 2
    summary = repo.compact(**options)
    assert (summary.old_files, summary.chunks, summary.bytes_freed) == (1, 2, 8)
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    assert repo.chunk_file_stats().dead_share == 0
    store = repo.readonly_session("main").store
    for name in ("b", "c"):
        assert zarr.open_array(store, path=name)[:].tolist() == [1, 2, 2, 2]
    with pytest.raises(NodeNotFoundError, match="'d'"):
        repo.compact(branch="main", arrays=["b", "d"], dry_run=True)


def test_manifests_forget_the_files_that_are_not_used_any_more() -> None:
    repo = make(NATIVE)
    with repo.transaction("main", message="many") as store:
        zarr.create_array(store, name="b", shape=(200,), chunks=(1,), dtype="u1", compressors=None)[
            :
        ] = 1
    repo.compact(branch="main")
    assert len(table(repo, "/b").refs.files) == 1


def test_it_can_be_looked_at_on_a_branch_first() -> None:
    repo = make(NATIVE)
    fill(repo, 5)
    before = repo.lookup_branch("main")
    assert repo.compact(branch="main", to_branch="tidy", dry_run=True).old_files == 4
    assert repo.list_branches() == {"main"}
    summary = repo.compact(branch="main", to_branch="tidy")
    assert repo.lookup_branch("main") == before
    assert repo.lookup_branch("tidy") == summary.snapshot_id
    assert values(repo, branch="tidy") == [5] * 4
    with pytest.raises(RefNotFoundError):
        repo.compact(branch="nowhere")
    refused: list[dict[str, Any]] = [{"pack_bytes": 0}, {"min_live_share": 2}]
    for wrong in refused:
        with pytest.raises(InvalidInputError):
            repo.compact(branch="main", **wrong)


def interrupted(repo: Repository, act: object, times: int = 1) -> Repository:
    """The repository through a storage that lets others act before a compaction is published."""
    left = [times]
    publishes, references = PUBLISHING[repo.generation], folder("refs")

    class Interrupted(FaultyStorage):
        def _run(self, verb: Any, key: Any, run: Any) -> Any:
            if verb == publishes and key.startswith(references) and left[0]:
                left[0] -= 1
                act()
            return super()._run(verb, key, run)

    return Repository.open(Interrupted(repo.storage))


def test_chunks_that_others_changed_meanwhile_keep_theirs() -> None:
    repo = make(NATIVE)
    fill(repo, 1)
    count = iter(range(10, 20))

    def rival() -> None:
        fill(repo, next(count), chunks=slice(1, 2))

    summary = interrupted(repo, rival, times=3).compact(branch="main")
    assert summary.snapshot_id == repo.lookup_branch("main")
    assert values(repo, branch="main") == [1, 12, 1, 1]
    assert [info.message for info in repo.ancestry(branch="main")][1:4] == ["12", "11", "10"]
    refs = table(repo).refs
    _, counts = np.unique(refs.files[refs.sources], axis=0, return_counts=True)
    assert sorted(counts.tolist()) == [1, 3]


@pytest.mark.parametrize("change", ["delete", "resize", "recreate", "move"])
def test_arrays_that_others_changed_meanwhile_are_as_they_left_them(change: str) -> None:
    repo = make(NATIVE)
    fill(repo, 1)

    def rival() -> None:
        session = repo.writable_session("main")
        root = zarr.open_group(session.store)
        if change == "delete":
            del root["a"]
        elif change == "resize":
            root["a"].resize((2,))
        elif change == "move":
            session.move("/a", "/b")
        else:
            root.create_array(
                "a", shape=(4,), chunks=(1,), dtype="u1", compressors=None, overwrite=True
            )[:2] = 3
        session.commit(change)

    summary = interrupted(repo, rival).compact(branch="main")
    assert (summary.snapshot_id is None) == (change in ("delete", "recreate"))
    session = repo.readonly_session("main")
    if change == "move":
        assert zarr.open_array(session.store, path="b")[:].tolist() == [1] * 4
    elif change == "delete":
        assert session.get_node("/a") is None
    else:
        assert values(repo, branch="main") == {"resize": [1, 1], "recreate": [3, 3, 0, 0]}[change]


def test_a_branch_that_was_deleted_or_reset_meanwhile() -> None:
    repo = make(NATIVE)
    fill(repo, 1)
    repo.create_branch("dev", "main")
    with pytest.raises(ConflictError, match="deleted"):
        interrupted(repo, lambda: repo.delete_branch("dev")).compact(branch="dev")
    repo.create_branch("dev", "main")
    summary = interrupted(repo, lambda: repo.reset_branch("dev", "main~1")).compact(branch="dev")
    assert summary.snapshot_id is None
    assert repo.lookup_branch("dev") == repo.lookup_branch("main~1")


def test_writers_need_not_rebase_over_a_compaction_in_vain() -> None:
    repo = make(NATIVE)
    fill(repo, 1)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[1:3] = 2
    repo.compact(branch="main")
    session.commit("over it", rebase_with=ConflictDetector())
    assert values(repo, branch="main") == [1, 2, 2, 1]


def test_a_file_that_is_missing_or_short_is_reported_and_nothing_is_published() -> None:
    for damage in ("missing", "short"):
        repo = make(PACKED)
        fill(repo, 1)
        fill(repo, 2, chunks=slice(0, 1))
        tip = repo.lookup_branch("main")
        key = detect(repo.storage).layout.chunk_file(table(repo).refs.get(3).file)
        if damage == "missing":
            repo.storage.delete_many([key])
        else:
            repo.storage.put(key, b"xy")
        with pytest.raises((FormatError, icefloe.StorageError), match=key.partition("/")[2]):
            repo.compact(branch="main")
        assert repo.lookup_branch("main") == tip


@settings(max_examples=settings().max_examples // 4)
@given(
    commits=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6),
        min_size=1,
        max_size=5,
    ),
    pack_bytes=st.integers(1, 40),
    packed=st.booleans(),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    is_old=st.booleans(),
)
def test_content_is_the_same_after_any_compaction(
    commits: list[list[tuple[int, int]]],
    pack_bytes: int,
    packed: bool,
    share: float,
    is_old: bool,
) -> None:
    config = PACKED if packed else NATIVE
    repo = Repository.create(icefloe.in_memory_storage(), config, **how(is_old=is_old))
    with repo.transaction("main", message="start") as store:
        root = zarr.create_group(store)
        for name in ("a", "b"):
            root.create_array(
                name, shape=(6, 4), chunks=(1, 2), dtype="u1", compressors=None, fill_value=0
            )
    for number, chunks in enumerate(commits, start=1):
        session = repo.writable_session("main")
        root = zarr.open_group(session.store)
        for row, column in chunks:
            root["ab"[row % 2]][row, column] = 10 * number + column
        session.commit(str(number))
    before = observe(repo.readonly_session("main"))
    summary = repo.compact(
        branch="main", pack_bytes=pack_bytes, small_file_bytes=pack_bytes, min_live_share=share
    )
    repo = Repository.open(repo.storage)
    assert observe(repo.readonly_session("main")) == before
    if summary.snapshot_id is not None:
        repo.expire_snapshots(keep_last=1)
        assert repo.chunk_file_stats().sizes.min() > 0


@pytest.mark.parametrize("what", ["compact", "rewrite_manifests"])
def test_another_repository_in_place_of_the_one_that_is_rewritten_stays(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has as many commits, so that the next entry of the branch is free there, too."""
    storage = icefloe.in_memory_storage()

    def start(value: int) -> Repository:
        config = RepositoryConfig(
            inline_chunk_threshold_bytes=0, chunk_packing=ChunkPackingConfig(max_chunk_bytes=0)
        )
        repo = Repository.create(storage, config, **how())
        with repo.transaction("main", message=f"of {value}") as store:
            zarr.create_array(store, name="a", shape=4, chunks=(1,), dtype="u1")[:] = value
        return repo

    repo = start(1)
    others: list[Repository] = []

    def replace_repository() -> None:
        if not others:
            storage.delete_many([info.key for info in storage.list("")])
            others.append(start(2))

    def write_all(writer: Any, packs: Any) -> Any:
        yield from original(writer, packs)
        replace_repository()

    def rewritten(*arguments: Any) -> Any:
        snapshot = rewrite_manifests(*arguments)
        replace_repository()
        return snapshot

    original = LocalPackWriter.write_all
    monkeypatch.setattr(LocalPackWriter, "write_all", write_all)
    monkeypatch.setattr(commits, "rewrite_manifests", rewritten)
    with pytest.raises(IcefloeError):
        repo.compact(branch="main") if what == "compact" else repo.rewrite_manifests(
            "again", branch="main"
        )
    (other,) = others
    assert [info.message for info in Repository.open(storage).ancestry(branch="main")] == [
        info.message for info in other.ancestry(branch="main")
    ]
    assert values(Repository.open(storage), branch="main") == [2, 2, 2, 2]
