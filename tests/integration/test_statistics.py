"""Sizes, dead bytes, what files hold, and the log of what was done."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import ChunkStorageStats, Repository, RepositoryConfig, VirtualChunkSpec
from icefloe.engine.retention.id_sets import IdSet, are_in, id_bytes, id_column
from icefloe.model.chunk_refs import ChunkRefs, InlineRef, NativeRef, VirtualRef
from icefloe.model.ids import ChunkFileId
from icefloe.upkeep import sizes as statistics
from icefloe.upkeep.ranges import RangeSet
from tests.integration.maintained import DAY, HOUR, NATIVE, PACKED, clock, fill, make, wait

FILES = [ChunkFileId(bytes([number]) * 11 + bytes([number % 2])) for number in range(3)]
FILES.append(ChunkFileId(bytes(range(16))))


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=40
    )
)
def test_used_bytes_are_those_of_a_plain_model(rows: list[tuple[int, int, int]]) -> None:
    refs = ChunkRefs.of([NativeRef(FILES[f], start, length) for f, start, length in rows])
    found = RangeSet()
    found.add_native(refs)
    ranges = found.ranges()
    assert len(ranges.sources) == len(set(rows))
    assert ranges.total_bytes == sum(length for _, _, length in set(rows))
    used: dict[bytes, set[int]] = {}
    for file, start, length in rows:
        used.setdefault(bytes(FILES[file]), set()).update(range(start, start + length))
    sources, first, sums = ranges.by_source()
    assert {id_bytes(s): int(n) for s, n in zip(sources, sums.used_bytes, strict=True)} == {
        file: len(places) for file, places in used.items()
    }
    assert [int(end) - 1 for end in sums.ends] == [max(used[id_bytes(s)]) for s in sources]
    assert sums.counts.sum() == len(set(rows))
    assert first[0] == 0


# Ids of others have 16 bytes; zeros at the end of ids of either width are what is hard.
some_ids = st.lists(
    st.sampled_from([12, 16])
    .flatmap(lambda size: st.binary(max_size=size).map(lambda data: data.ljust(size, b"\0")))
    .map(ChunkFileId)
)


@given(some_ids, some_ids)
def test_sets_of_ids_are_those_of_a_plain_model(one: list[bytes], two: list[bytes]) -> None:
    ids = IdSet()
    ids.add_each(one)
    ids.add(id_column(one[: len(one) // 2]))
    assert list(map(id_bytes, ids.sorted().tolist())) == sorted(set(one))
    asked = [*two, *one]
    found = are_in(id_column(asked), ids.sorted())
    assert found.tolist() == [each in set(one) for each in asked]


def test_what_references_share_counts_once() -> None:
    repo = make(PACKED)
    fill(repo, 1)
    fill(repo, 2, chunks=slice(0, 1))
    repo.create_branch("dev", "main")
    fill(repo, 3, "dev", slice(0, 1))
    # Four chunks of one byte each, then one more on main and one more on dev.
    assert repo.chunk_storage_stats() == ChunkStorageStats(native_bytes=6)
    branches = repo.branch_storage_stats()
    assert {name: stats.native_bytes for name, stats in branches.items()} == {"main": 5, "dev": 6}
    assert repo.array_storage_stats("dev") == {"/a": ChunkStorageStats(native_bytes=4)}
    sizes = list(repo.snapshot_storage_stats("dev"))
    assert [size.message for size in sizes] == ["3", "2", "1", "start", "Repository initialized"]
    assert [size.added.native_bytes for size in sizes] == [1, 1, 4, 0, 0]
    assert [size.total.native_bytes for size in sizes] == [4, 4, 4, 0, 0]
    assert [size.chunks for size in sizes] == [4, 4, 4, 0, 0]


def test_kinds_are_told_apart_and_add_up() -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=4)
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="x", anonymous=True))
    )
    repo = Repository.create(icefloe.in_memory_storage(), config)
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("i", shape=(4,), chunks=(2,), dtype="u1", compressors=None)[:] = 1
    root.create_array("n", shape=(16,), chunks=(8,), dtype="u1", compressors=None)[:] = 1
    root.create_array("v", shape=(3,), chunks=(1,), dtype="u1", compressors=None)
    specs = [VirtualChunkSpec([i], "s3://bucket/x", 10 * (i // 2), 10) for i in range(3)]
    session.set_virtual_refs("/v", specs)
    session.commit("all kinds")
    stats = repo.chunk_storage_stats()
    assert stats == ChunkStorageStats(native_bytes=16, virtual_bytes=20, inlined_bytes=4)
    assert (stats.non_virtual_bytes, stats.total_bytes) == (20, 40)
    assert sum(repo.array_storage_stats("main").values(), ChunkStorageStats()) == stats
    assert (stats + stats).total_bytes == 80
    with pytest.warns(DeprecationWarning, match="chunk_storage_stats"):
        assert repo.total_chunks_storage() == 16


def test_dead_bytes_of_packs_are_reported() -> None:
    repo = make(PACKED)
    fill(repo, 1)
    fill(repo, 2, chunks=slice(0, 3))
    files = repo.chunk_file_stats()
    assert (len(files), files.dead_share) == (2, 0.0)
    repo.expire_snapshots(keep_last=1)
    files = repo.chunk_file_stats()
    by_size = np.argsort(files.sizes)
    assert files.sizes[by_size].tolist() == [3, 4]
    assert files.live_bytes[by_size].tolist() == [3, 1]
    assert files.dead_bytes[by_size].tolist() == [0, 3]
    assert files.chunks[by_size].tolist() == [3, 1]
    assert files.dead_share == pytest.approx(3 / 7)
    assert "42.9% of them dead" in repr(files)
    repo.storage.delete_many([f"chunks/{files.names()[0]}"])
    assert sorted(repo.chunk_file_stats().sizes.tolist())[0] == -1


def test_many_references_are_counted_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    repo = make(NATIVE)
    for value in range(1, 6):
        fill(repo, value)
    whole, files = repo.chunk_storage_stats(), repo.chunk_file_stats()
    monkeypatch.setattr(statistics, "REFS_AT_ONCE", 7)
    assert repo.chunk_storage_stats() == whole == ChunkStorageStats(native_bytes=20)
    again = repo.chunk_file_stats()
    assert again.names() == files.names()
    assert again.live_bytes.tolist() == files.live_bytes.tolist()


def test_what_files_hold_can_be_looked_at() -> None:
    repo = make()
    snapshot_id = fill(repo, 1)
    repo.create_tag("v1", snapshot_id)
    (manifest,) = repo.lookup_snapshot(snapshot_id).manifests
    shown = json.loads(repo.inspect_manifest(manifest.id))
    assert shown["num_chunk_refs"] == 4
    assert shown["arrays"][0]["extents"] == [[0, 4]]
    assert shown["arrays"][0]["chunks"] == {"native": 4, "virtual": 0, "inline": 0}
    log = json.loads(repo.inspect_transaction_log("main", pretty=False))
    assert (log["snapshot_id"], log["is_known"]) == (snapshot_id, True)
    ((chunks,),) = [list(log["updated_chunks"].values())]
    assert chunks == {"count": 4, "first": [[0], [1], [2], [3]]}
    info = json.loads(repo.inspect_repo_info())
    assert info["branches"] == {"main": {"snapshot_id": snapshot_id, "sequence": 2}}
    assert info["tags"] == {"v1": snapshot_id}
    assert (info["generation"], info["spec_version"]) == ("repository", 2)
    with pytest.raises(icefloe.InvalidInputError):
        repo.inspect_manifest("../not an id")
    with pytest.raises(icefloe.NotFoundError, match=r"there is no manifest .*list_manifest_files"):
        repo.inspect_manifest(str(FILES[0]))


def test_inline_and_virtual_rows_are_no_ranges_of_files() -> None:
    refs = ChunkRefs.of([InlineRef(b"abc"), VirtualRef("s3://x", 0, 5), NativeRef(FILES[1], 2, 7)])
    native, virtual = RangeSet(), RangeSet()
    native.add_native(refs)
    virtual.add_virtual(refs)
    assert native.ranges().lengths.tolist() == [7]
    assert virtual.ranges().lengths.tolist() == [5]


def test_the_log_tells_what_was_done_when_and_by_whom() -> None:
    repo = make()
    wait(repo, DAY)
    repo.set_default_commit_metadata({"job": "ingest"})
    fill(repo, 1)
    repo.create_branch("dev", "main")
    repo.create_tag("v1", "main")
    repo.reset_branch("dev", "main~1")
    repo.delete_branch("dev")
    repo.expire_snapshots(timedelta(0), job="nightly")
    repo.garbage_collect(HOUR, job="nightly")
    log = list(repo.operations())
    assert sorted(entry.kind for entry in log) == sorted(
        [
            "garbage_collect",
            "expire_snapshots",
            "delete_branch",
            "reset_branch",
            "create_tag",
            "create_branch",
            "commit",
            "create",
        ]
    )
    by_kind = {entry.kind: entry for entry in log}
    assert by_kind["garbage_collect"].job == by_kind["expire_snapshots"].job == "nightly"
    assert by_kind["commit"].job == "ingest"
    assert by_kind["create_tag"].details == {
        "tag": "v1",
        "snapshot_id": repo.lookup_branch("main"),
    }
    assert by_kind["garbage_collect"].at == clock(repo).now
    assert by_kind["garbage_collect"].details["snapshots_deleted"] == 1
    assert all(isinstance(entry.at, datetime) and entry.at.tzinfo for entry in log)


def test_the_log_names_what_moved_a_branch_without_a_commit() -> None:
    repo = make()
    start = repo.lookup_branch("main")
    fill(repo, 1)
    before = fill(repo, 2)
    squashed = repo.squash("main", start, message="one")
    repo.create_branch("dev", "main")
    tip = fill(repo, 3, "dev")
    repo.merge("dev", "main")  # moves it forward
    repo.publish("dev", "main")  # is there already
    repo.rewrite_manifests("anew", branch="main", commit_method="amend")
    noted = {entry.kind: entry.details for entry in repo.operations() if entry.kind != "commit"}
    assert noted.keys() == {"create", "squash", "create_branch", "publish", "rewrite_manifests"}
    assert noted["squash"] == {"branch": "main", "from": before, "to": squashed}
    assert noted["publish"] == {"branch": "main", "from": squashed, "to": tip}


def test_a_damaged_entry_of_the_log_is_left_out() -> None:
    repo = make()
    repo.create_tag("v1", "main")
    repo.storage.put("maintenance/operations/00-damaged.json", b"{")
    assert [entry.kind for entry in repo.operations()].count("create_tag") == 1
