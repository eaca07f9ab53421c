"""Maintenance jobs on a real Spark do what their counterparts do on one machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import zarr

import icefloe
import icefloe.spark as floe
from icefloe.engine.retention.candidate_files import LocalFiles
from icefloe.engine.retention.id_sets import id_bytes
from icefloe.engine.retention.marking import native_files
from icefloe.engine.retention.stored_objects import key_ranges, list_in_parts, list_objects
from icefloe.errors import IcefloeError, InvalidInputError, SessionStateError
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import ChunkFileId, SnapshotId
from icefloe.spark.engine import runner
from icefloe.spark.engine.worker import pickled_context
from icefloe.spark.jobs import orphan_files
from icefloe.upkeep.findings import Problem, ProblemKind
from icefloe.virtual import reference_files
from tests.builders import read_array, repository_beside
from tests.formats import FORMATS
from tests.spark.maintained import (
    CHUNKS,
    EXPIRED,
    HOUR,
    copied,
    keys,
    plain,
    repository_with_garbage,
    row,
    write_values,
)
from tests.virtual.files import month_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize("kind", ["columns", "dataset"])
def test_orphan_files_are_those_that_garbage_collection_finds(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    repo = repository_with_garbage(tmp_path / "one", **FORMATS[kind])
    held = repo.lookup_snapshot(EXPIRED[repo.storage.location]).id
    other = copied(repo, tmp_path / "other")
    with repo.lease(snapshot_ids=held), other.lease(snapshot_ids=held):
        expected = other.garbage_collect(HOUR, dry_run=True)
        dry = floe.remove_orphan_files(spark, repo, HOUR, dry_run=True)
        assert row(dry) == plain(expected)
        assert expected.chunks_deleted >= CHUNKS
        before = keys(repo)
        assert row(floe.remove_orphan_files(spark, str(tmp_path / "one"), HOUR)) == plain(
            other.garbage_collect(HOUR)
        )
    assert keys(repo) == keys(other) < before
    assert repo.verify(deep=True).is_clean
    held_no_more = plain(other.garbage_collect(HOUR))
    assert held_no_more["chunks_deleted"] >= CHUNKS
    assert row(floe.remove_orphan_files(spark, repo, HOUR)) == held_no_more
    logged = [entry for entry in repo.operations() if entry.kind == "garbage_collect"]
    assert {entry.job for entry in logged} == {"remove_orphan_files"}


def test_a_collection_whose_driver_died_goes_on_when_it_is_called_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository_with_garbage(tmp_path / "one")
    other = copied(repo, tmp_path / "other")
    garbage = other.garbage_collect(HOUR)
    collect = runner.collect_frame
    monkeypatch.setattr(orphan_files, "FILES_PER_ROUND", garbage.chunks_deleted // 2 + 1)

    def die(*args: Any, label: str, **options: Any) -> Any:
        if label.endswith("delete 2 of 2"):
            raise KeyboardInterrupt
        return collect(*args, label=label, **options)

    with monkeypatch.context() as patch:
        patch.setattr(orphan_files, "collect_frame", die)
        with pytest.raises(KeyboardInterrupt):
            floe.remove_orphan_files(spark, repo, HOUR)
    assert keys(other) < keys(repo)
    assert repo.verify(deep=True).is_clean
    left = row(floe.remove_orphan_files(spark, repo, HOUR))
    assert 0 < left["chunks_deleted"] < garbage.chunks_deleted
    assert left["snapshots_deleted"] == 0
    assert keys(repo) == keys(other)
    assert read_array(repo, branch="main").tolist() == list(range(50, 50 + CHUNKS))


def test_a_task_that_was_suspended_does_not_delete(tmp_path: Path) -> None:  # G4
    repo = repository_with_garbage(tmp_path / "one")
    context = repo.readonly_session("main").tree.context
    (part,) = list_in_parts(context.storage, context.format.layout, ObjectKind.CHUNK_FILE)
    batch = pa.record_batch({"id": orphan_files._id_array(part.ids)})
    before = keys(repo)
    lapsed = datetime.now(UTC) - timedelta(seconds=5)
    shared = orphan_files._Deleting(pickled_context(context), lapsed, 8)
    with pytest.raises(SessionStateError, match="suspended for longer than its lease"):
        list(orphan_files._delete_files([batch], shared))
    assert keys(repo) == before


@pytest.mark.parametrize("kind", FORMATS)
def test_ranges_of_keys_have_each_object_once(kind: str, tmp_path: Path) -> None:
    repo = repository_with_garbage(tmp_path / "one", **FORMATS[kind])
    context = repo.readonly_session("main").tree.context
    storage, layout = context.storage, context.format.layout
    everything = list_objects(storage, layout, ObjectKind.CHUNK_FILE)
    for count in (1, 2, 7, 100):
        ranges = key_ranges(layout, ObjectKind.CHUNK_FILE, count)
        assert len(ranges) == count
        parts = [
            part
            for each in ranges
            for part in list_in_parts(storage, layout, ObjectKind.CHUNK_FILE, each)
        ]
        ids = np.concatenate([part.ids for part in parts])
        assert ids.tolist() == everything.ids.tolist()
    assert LocalFiles(context, 1, everything).totals().files == len(everything)


def test_executors_cannot_maintain_what_is_in_the_memory_of_the_driver(
    spark: SparkSession,
) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with pytest.raises(InvalidInputError, match="workers cannot see the repository"):
        floe.remove_orphan_files(spark, repo, HOUR)


def test_a_deep_verification_finds_what_one_machine_finds(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = repository_with_garbage(tmp_path / "one")
    with repo.transaction("main", message="a number, and inline chunks") as store:
        zarr.create_array(store, name="scalar", data=np.array(7.0), compressors=None)
    assert floe.verify(spark, repo, deep=True).collect() == []
    session = repo.readonly_session("main")
    gone, short, wrong = (tmp_path / "one" / "chunks" / name for name in used_files(session)[:3])
    gone.unlink()
    short.write_bytes(short.read_bytes()[:2])
    wrong.write_bytes(b"\xff" * wrong.stat().st_size)
    for deep in (False, True):
        expected = icefloe.Repository.open(str(tmp_path / "one")).verify(deep=deep).problems
        found = floe.verify(spark, repo, deep=deep).collect()
        assert {problem.kind for problem in expected} >= {"chunk-file"}
        assert sorted(map(as_problem, found), key=str) == sorted(expected, key=str)
    assert {"checksum"} < {problem.kind for problem in expected}


def test_a_repository_whose_newest_snapshot_is_lost_is_verified(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = repository_with_garbage(tmp_path / "one")
    tip = SnapshotId.parse(repo.lookup_branch("main"))
    (tmp_path / "one" / repo.context.format.layout.snapshot(tip)).unlink()
    opened = icefloe.Repository.open_for_repair(tmp_path / "one")
    found = [as_problem(row) for row in floe.verify(spark, opened).collect()]
    assert {problem.kind for problem in found} == {ProblemKind.SNAPSHOT}
    assert found == list(opened.verify().problems)


def used_files(session: Any) -> list[str]:
    """Names of the chunk files that an array uses."""
    (table,) = session.tree.chunk_tables("/a")
    return [str(ChunkFileId(id_bytes(each))) for each in native_files(table.refs).tolist()]


def as_problem(found: Any) -> Problem:
    fields = found.asDict()
    fields["chunks"] = tuple(map(tuple, fields["chunks"]))
    return Problem(**fields | {"kind": ProblemKind(fields["kind"])})


def test_packs_are_rewritten_as_on_one_machine(spark: SparkSession, tmp_path: Path) -> None:
    repo = repository_with_garbage(tmp_path / "one")
    other = copied(repo, tmp_path / "other")
    options: dict[str, Any] = {"branch": "main", "pack_bytes": 20, "max_chunk_bytes": 4}
    dry = floe.rewrite_data_files(spark, repo, dry_run=True, **options)
    assert row(dry) == plain(other.compact(dry_run=True, **options))
    before, values = repo.lookup_branch("main"), read_array(repo, branch="main")
    summary = row(floe.rewrite_data_files(spark, repo, "pack", **options))
    expected = plain(other.compact(**options))
    assert expected["new_files"] == 3  # five chunks of four bytes fit into one
    assert summary == expected | {"snapshot_id": repo.lookup_branch("main")}
    assert read_array(repo, branch="main").tolist() == values.tolist()
    assert [info.message for info in repo.ancestry(branch="main")][:2] == [
        "pack",
        repo.lookup_snapshot(before).message,
    ]
    assert repo.verify(deep=True).is_clean
    again = row(floe.rewrite_data_files(spark, repo, **options, small_file_bytes=1))
    assert again["snapshot_id"] is None


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
def test_jobs_that_cannot_read_everything_commit_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    files = [month_file(data / f"{m}.nc", m) for m in (1, 2)]
    virtual = repository_beside(data, tmp_path / "virtual")
    reference_files(virtual.writable_session("main"), files, commit="two months")
    files[1].unlink()
    native = repository_with_garbage(tmp_path / "native")
    lost = used_files(native.readonly_session("main"))[0]
    (tmp_path / "native" / "chunks" / lost).unlink()
    options: dict[str, Any] = {"pack_bytes": 20, "max_chunk_bytes": 4}
    for repo, job in (
        (virtual, lambda: floe.materialize(spark, virtual)),
        (native, lambda: floe.rewrite_data_files(spark, native, **options)),
    ):
        tip = repo.lookup_branch("main")
        with pytest.raises(IcefloeError):
            job()
        assert repo.lookup_branch("main") == tip


def test_history_expires_and_manifests_are_rewritten_by_jobs(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = repository_with_garbage(tmp_path / "one")
    for value in (70, 80):
        write_values(repo, value)
    other = copied(repo, tmp_path / "other")
    dry = floe.expire_snapshots(spark, repo, keep_last=1, dry_run=True)
    expired = floe.expire_snapshots(spark, repo, keep_last=1)
    assert dry.collect() == expired.collect()
    assert {each.snapshot_id for each in expired.collect()} == other.expire_snapshots(keep_last=1)
    (done,) = floe.rewrite_manifests(spark, repo, "again").collect()
    assert done.snapshot_id == repo.lookup_branch("main")
    assert read_array(repo, branch="main").tolist() == read_array(other, branch="main").tolist()


def test_a_migration_copies_chunk_files_by_executors_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository_with_garbage(tmp_path / "one")
    expected = plain(repo.migrate(str(tmp_path / "local"), generation="dataset"))
    target = str(tmp_path / "target")
    dry = row(floe.migrate(spark, repo, target, generation="dataset", dry_run=True))
    assert dry == expected | {"copied": {}, "problems": []}
    assert not (tmp_path / "target").exists()

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("icefloe.upkeep.migration._Migration._copy_manifests", die)
        with pytest.raises(KeyboardInterrupt):
            floe.migrate(spark, repo, target, generation="dataset")
    assert not icefloe.Repository.exists(target)
    done = row(floe.migrate(spark, repo, target, generation="dataset"))
    assert done == expected | {"copied": {}, "problems": []}  # the first run had copied them
    copy = icefloe.Repository.open(target)
    assert read_array(copy, tag="v1").tolist() == read_array(repo, tag="v1").tolist()
    assert copy.verify(deep=True).is_clean


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
def test_virtual_chunks_are_checked_and_copied_by_executors(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    files = [month_file(data / f"{m}.nc", m, variables=("t2m", "d2m")) for m in (1, 2, 3)]
    repo = repository_beside(data, tmp_path / "repo")
    reference_files(repo.writable_session("main"), files, commit="three months")
    before = read_array(repo, "t2m", branch="main")
    expected = repo.check_virtual_sources()
    sources = floe.check_virtual_sources(spark, repo).collect()
    assert [each.asDict() | {"arrays": tuple(each.arrays)} for each in sources] == [
        {name: getattr(each, name) for name in each.__struct_fields__} for each in expected.sources
    ]
    dry = row(floe.materialize(spark, repo, arrays="t2m", dry_run=True))
    assert dry == plain(repo.materialize("main", arrays="t2m", dry_run=True))
    done = row(floe.materialize(spark, repo, arrays="t2m"))
    assert done == dry | {"snapshot_id": repo.lookup_branch("main")}
    (data / "1.nc").unlink()
    assert read_array(repo, "t2m", branch="main").tolist() == before.tolist()
    found = floe.check_virtual_sources(spark, repo, arrays="d2m").where("problem IS NOT NULL")
    assert [each.problem for each in found.collect()] == ["missing"]
    assert floe.check_virtual_sources(spark, repo, arrays="t2m").count() == 0
