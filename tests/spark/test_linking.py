"""Big jobs: executors write the manifests and the driver links them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import icefloe
from icefloe.config import ManifestConfig, ManifestSplittingConfig
from icefloe.errors import TaskFailedError
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.manifest import ArrayChunks
from icefloe.spark import NewArray, write
from icefloe.spark.engine.chunk_tables import WrittenChunks, to_table
from icefloe.spark.engine.job import Job, JobOptions
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.tables import zarr_arrays as arrays
from tests.spark.many_references import link_references, virtual_references

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

ANY = icefloe.ManifestSplitCondition.AnyArray()
FIRST = icefloe.ManifestSplitDimCondition.Axis(0)


def make(tmp_path: Path, rows: int) -> icefloe.Repository:
    splitting = ManifestSplittingConfig.from_dict({ANY: {FIRST: rows}})
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    return icefloe.Repository.create(storage, config)


def test_virtual_references_never_reach_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("references came to the driver")

    monkeypatch.setattr("icefloe.engine.tree.working_tree.WorkingTree.set_chunk_refs", refuse)
    repo = make(tmp_path, 128)
    report = link_references(spark, repo, 60_000)
    monkeypatch.undo()
    assert report.chunks == 60_000
    session = repo.readonly_session("main")
    found = session.tree.chunk_table("/a")
    expected = virtual_references(0, 600)
    assert len(session.get_node("/a").manifests) == 5
    assert np.array_equal(found.index.coords(), expected.index.coords())
    assert np.array_equal(found.refs.offsets, expected.refs.offsets)
    assert session.tree.locate("/a", (599, 99)) == expected.refs.get(59_999)


def numbers(region: tuple[Any, ...]) -> np.ndarray:
    return np.arange(region[0].start, region[0].stop)[:, None] * 10 + np.arange(3)


def test_chunks_that_tasks_write_are_linked_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.spark.engine.job.LINK_ABOVE_CHUNKS", 1)
    repo = make(tmp_path, 4)
    new = NewArray((22, 3), "f8", (1, 1), fill_value=0.0)
    report = write(spark, repo, {"a": numbers}, create={"a": new}, task_bytes=100)
    assert report.chunks == 66
    write(spark, repo, {"a": lambda region: -numbers(region)}, region=(slice(2, 9),))
    expected = numbers((slice(0, 22),)).astype(float)
    expected[2:9] *= -1
    found = repo.readonly_session("main")
    np.testing.assert_array_equal(found.read_region("/a"), expected)
    assert len(found.get_node("/a").manifests) == 6
    assert all(info.checksum for info in found.tree.snapshot.manifests)


def test_two_tasks_with_one_chunk_commit_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def same(item: Any, shared: Any) -> Iterator[Any]:
        written = WrittenChunks(virtual_references(0, 2), None)
        yield TaskOutput("/a", to_table(written), written.num_chunks)

    repo = make(tmp_path, 4)
    for linked in (True, False):
        job = Job(spark, repo, "twice", JobOptions())
        arrays.create(job.session, "/a", NewArray((8, 100), "f4", (1, 1)))
        with pytest.raises(TaskFailedError, match="wrote the same chunks of /a"):
            job.run(same, [0, 1], None, linked=linked)


def sparse_references(count: int, rows: int, seed: int) -> ArrayChunks:
    """References anywhere in an array, in the order of the grid."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(rows * 100, count, replace=False))
    table = virtual_references(0, -(-count // 100))
    coords = np.stack(np.divmod(places, 100), axis=1)
    return ArrayChunks.from_columns(coords, table.refs.slice(0, count))


def splitting(tmp_path: Path, split_size: int | None) -> icefloe.Repository:
    sets = [icefloe.ManifestSet(name="default", split_size=split_size)]
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(sets=sets, rules=[]))
    storage = icefloe.local_filesystem_storage(str(tmp_path / "repo"))
    return icefloe.Repository.create(storage, config)


def run_linked(
    spark: SparkSession,
    repo: icefloe.Repository,
    rows: int,
    *tables: Any,
    deleted: ChunkIndex = None,
) -> int:
    """A job in which each task writes one table of references."""

    def work(number: Any, shared: Any) -> Iterator[Any]:
        gone = deleted if number == 0 else None
        written = WrittenChunks(tables[number], gone)
        yield TaskOutput("/a", to_table(written), written.num_chunks)

    job = Job(spark, repo, "link", JobOptions())
    if job.session.get_node("/a") is None:
        arrays.create(job.session, "/a", NewArray((rows, 100), "f4", (1, 1)))
    job.run(work, list(range(len(tables))), None, linked=True)
    linked = sum(map(len, job.session.tree.changes.linked.values()))
    job.commit(job.plan([], len(tables)))
    return linked


def layout(repo: icefloe.Repository) -> list[int]:
    session = repo.readonly_session("main")
    names = {info.id: info.set_name for info in session.tree.snapshot.manifests}
    refs = session.get_node("/a").manifests
    assert {names[ref.manifest_id] for ref in refs} == {"default"}
    assert repo.verify(deep=True).is_clean
    return [ref.num_refs for ref in refs]


def test_a_manifest_set_decides_how_executors_split(
    spark: SparkSession, tmp_path: Path
) -> None:  # R4-14
    rows, limit = 10_000, 1_000
    repo = splitting(tmp_path, limit)
    whole = sparse_references(5_000, rows, 1)
    coords = whole.index.coords()
    # Tasks write here and there: each has references in all parts of the array.
    tables = [
        ArrayChunks.from_sorted(coords[start::3], whole.refs.take(np.arange(start, 5_000, 3)))
        for start in range(3)
    ]
    assert run_linked(spark, repo, rows, *tables) > 1
    sizes = layout(repo)
    assert sum(sizes) == 5_000
    assert max(sizes) <= limit
    assert len(sizes) <= 10, "however many tiles of the grid they are spread over"
    found = repo.readonly_session("main").tree.chunk_table("/a")
    assert np.array_equal(found.index.coords(), coords)
    assert np.array_equal(found.refs.offsets, whole.refs.offsets)
    # The same references again, and one less: as many manifests as an ordinary commit makes.
    run_linked(spark, repo, rows, *tables[1:])
    assert layout(repo) == sizes
    gone = whole.index.coords()[:1]
    run_linked(spark, repo, rows, tables[1], deleted=ChunkIndex.from_coords(gone)[0])
    assert sum(layout(repo)) == 4_999
    assert len(layout(repo)) == len(sizes)
    repo.rewrite_manifests("again", branch="main")
    assert len(layout(repo)) == len(sizes)


def test_few_references_of_a_big_job_are_packed_as_a_whole(
    spark: SparkSession, tmp_path: Path
) -> None:  # R4-14
    repo = splitting(tmp_path, 1_000)
    assert run_linked(spark, repo, 10_000, sparse_references(300, 10_000, 2)) == 0
    assert layout(repo) == [300]
    run_linked(spark, repo, 10_000, sparse_references(300, 10_000, 3))
    assert len(layout(repo)) == 1


def test_executors_leave_to_the_driver_what_was_split_in_another_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = splitting(tmp_path, 1_000)
    table = virtual_references(0, 90)
    assert run_linked(spark, repo, 90, table) == 9
    sets = [icefloe.ManifestSet(name="default", split_size=700)]
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(sets=sets, rules=[]))
    repo = icefloe.Repository.open(repo.storage, config)
    run_linked(spark, repo, 90, virtual_references(12, 50))
    session = repo.readonly_session("main")
    assert session.tree.chunk_table("/a").index.is_dense
    assert np.array_equal(session.tree.chunk_table("/a").refs.offsets, table.refs.offsets)
    assert sum(layout(repo)) == 9_000


def test_a_big_job_splits_nothing_where_the_set_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:  # R4-14
    repo = splitting(tmp_path, None)
    assert run_linked(spark, repo, 600, virtual_references(0, 600)) == 0
    assert layout(repo) == [60_000]
