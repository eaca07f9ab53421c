"""Filling arrays by functions of the region: one commit, equal to a serial write."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import AlreadyExistsError, InvalidInputError, RebaseFailedError, TaskFailedError
from icefloe.spark import NewArray, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

SHAPE = (10, 7)


def values_at(region: tuple[Any, ...]) -> np.ndarray:
    rows = np.arange(region[0].start, region[0].stop)[:, None]
    columns = np.arange(region[1].start, region[1].stop)[None, :]
    return rows * 100 + columns


EXPECTED = values_at((slice(0, 10), slice(0, 7)))
NEW = NewArray(SHAPE, "f4", (3, 4), dims=("y", "x"), attributes={"units": "K"})


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))


def read(repo: icefloe.Repository, path: str, branch: str = "main") -> zarr.Array[Any]:
    return zarr.open_array(repo.readonly_session(branch).store, path=path, mode="r")


def test_a_new_array_in_one_commit(spark: SparkSession, repo: icefloe.Repository) -> None:
    before = len(list(repo.ancestry(branch="main")))
    report = write(
        spark,
        repo,
        {"group/t": values_at},
        create={"group/t": NEW},
        coords={"y": np.arange(10), "x": (("x",), np.arange(7), {"units": "m"})},
        task_bytes=200,
        message="filled",
        metadata={"by": "test"},
    )
    array = read(repo, "group/t")
    assert np.array_equal(array[:], EXPECTED)
    assert array.attrs["units"] == "K"
    assert array.metadata.dimension_names == ("y", "x")
    assert read(repo, "x").attrs["units"] == "m"
    history = list(repo.ancestry(branch="main"))
    assert len(history) == before + 1
    assert history[0].id == report.snapshot_id
    assert history[0].message == "filled"
    assert history[0].metadata["by"] == "test"
    assert report.plan.tasks > 1
    assert report.chunks == report.plan.chunks == 8
    assert "committed as" in str(report)


def test_distributed_and_serial_writes_give_equal_repositories(
    spark: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    write(spark, repo, {"t": values_at}, create={"t": NEW}, task_bytes=1)
    other = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "other")))
    session = other.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array = root.create_array(
        "t", shape=SHAPE, dtype="f4", chunks=(3, 4), dimension_names=("y", "x"),
        attributes={"units": "K"},
    )  # fmt: skip
    array[:] = EXPECTED
    session.commit("serial")
    ours, theirs = repo.readonly_session("main"), other.readonly_session("main")
    assert ours.tree.document("/t") == theirs.tree.document("/t")
    coords = ours.tree.chunk_coords("/t")
    assert np.array_equal(coords, theirs.tree.chunk_coords("/t"))
    for place in map(tuple, coords.tolist()):
        assert ours.get_chunk("/t", place) == theirs.get_chunk("/t", place)
    assert len(ours.tree.snapshot.manifests) == len(theirs.tree.snapshot.manifests)


def test_regions_and_appends_touch_nothing_else(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    write(spark, repo, {"t": values_at}, create={"t": NEW})
    write(spark, repo, {"t": lambda region: -1}, region={"y": slice(2, 5)})
    expected = EXPECTED.copy()
    expected[2:5] = -1
    assert np.array_equal(read(repo, "t")[:], expected)
    write(spark, repo, {"t": values_at}, append_dim="y", append_size=4, task_bytes=1)
    grown = read(repo, "t")
    assert grown.shape == (14, 7)
    assert np.array_equal(grown[:10], expected)
    assert np.array_equal(grown[10:], values_at((slice(10, 14), slice(0, 7))))


def test_a_dry_run_prints_the_plan_and_does_nothing(
    spark: SparkSession, repo: icefloe.Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    before = repo.lookup_branch("main")
    report = write(spark, repo, {"t": values_at}, create={"t": NEW}, dry_run=True)
    assert report.snapshot_id is None
    printed = capsys.readouterr().out
    assert "write: /t" in printed
    assert "tasks      1 of about 280 B" in printed
    assert "chunks     8" in printed
    assert "manifests  1" in printed
    assert repo.lookup_branch("main") == before


def test_a_transaction_is_done_once(spark: SparkSession, repo: icefloe.Repository) -> None:
    named: dict[str, Any] = {"txn_app_id": "daily", "txn_version": 1}
    first = write(spark, repo, {"t": values_at}, create={"t": NEW}, **named)
    again = write(spark, repo, {"t": lambda _: 7}, create={"t": NEW}, overwrite=True, **named)
    assert again.repeated
    assert again.snapshot_id == first.snapshot_id
    assert np.array_equal(read(repo, "t")[:], EXPECTED)
    later = write(spark, repo, {"t": lambda _: 7}, txn_app_id="daily", txn_version=2)
    assert not later.repeated
    assert (read(repo, "t")[:] == 7).all()
    with pytest.raises(InvalidInputError, match="both"):
        write(spark, repo, {"t": values_at}, txn_app_id="daily")


def moving(path: str, region: tuple[Any, ...], value: int) -> Callable[..., Any]:
    """A function that commits to the branch behind the job's back, once."""

    def act(_: Any) -> Any:
        repo = icefloe.Repository.open(icefloe.local_filesystem_storage(path))
        session = repo.writable_session("main")
        array = zarr.open_array(session.store, path="t", mode="r+")
        if array[region].min() != value:
            array[region] = value
            session.commit("meanwhile")
        return 5

    return act


def test_a_branch_that_moved_elsewhere_is_no_conflict(
    spark: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    write(spark, repo, {"t": values_at}, create={"t": NEW})
    theirs = moving(str(tmp_path / "repo"), (slice(9, 10), slice(4, 7)), 1)
    write(spark, repo, {"t": theirs}, region=(slice(0, 3),))
    found = read(repo, "t")[:]
    assert (found[:3] == 5).all()
    assert (found[9, 4:] == 1).all()  # type: ignore[call-overload]
    assert [s.message for s in repo.ancestry(branch="main")][:2] == ["write", "meanwhile"]


def test_a_real_conflict_commits_nothing(
    spark: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    write(spark, repo, {"t": values_at}, create={"t": NEW})
    theirs = moving(str(tmp_path / "repo"), (slice(0, 1), slice(0, 7)), 1)
    with pytest.raises(RebaseFailedError):
        write(spark, repo, {"t": theirs}, region=(slice(0, 3),))
    assert (read(repo, "t")[0] == 1).all()
    with pytest.raises(AlreadyExistsError, match="append_dim"):
        write(spark, repo, {"t": values_at}, create={"t": NEW})


def test_a_failing_function_is_named_and_commits_nothing(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    before = repo.lookup_branch("main")

    def broken(region: Any) -> Any:
        if region[0].start == 3:
            raise ValueError("no data for that day")
        return 0

    with pytest.raises(TaskFailedError, match=r"array /t, region \[3:6, 0:4\].*no data for"):
        write(spark, repo, {"t": broken}, create={"t": NEW}, task_bytes=1)
    with pytest.raises(TaskFailedError, match=r"shape \(2,\); expected \(10, 7\)"):
        write(spark, repo, {"t": lambda _: np.zeros(2)}, create={"t": NEW})
    assert repo.lookup_branch("main") == before


def test_a_repository_in_memory_is_refused(spark: SparkSession) -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    with pytest.raises(InvalidInputError, match="memory of this process"):
        write(spark, repo, {"t": values_at}, create={"t": NEW})


def test_shards_are_written_whole(spark: SparkSession, repo: icefloe.Repository) -> None:
    new = NewArray((10, 7), "i4", (2, 2), shards=(4, 4), fill_value=-9)
    report = write(spark, repo, {"t": values_at}, create={"t": new}, task_bytes=1)
    assert report.chunks == 6
    assert np.array_equal(read(repo, "t")[:], EXPECTED)


def waiting(folder: Path, name: str, wait_for: str | None = None) -> Callable[..., Any]:
    """A function that says that it runs, and lets another job commit before it ends."""

    def act(region: Any) -> Any:
        (folder / name).touch()
        for _ in range(600):
            if wait_for is None or (folder / wait_for).exists():
                return values_at(region)
            time.sleep(0.1)
        raise AssertionError(f"{wait_for} did not come")

    return act


@pytest.mark.parametrize(
    ("generation", "linked"),
    [("repository", False), ("repository", True), ("store", False), ("dataset", False)],
)
def test_two_jobs_fill_an_empty_repository(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    generation: str,
    linked: bool,
) -> None:
    """Both create the root and a group on their way; that is no conflict."""
    if linked:
        monkeypatch.setattr("icefloe.spark.engine.job.LINK_ABOVE_CHUNKS", 0)
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(str(tmp_path / "repo")), generation=generation
    )
    whole: dict[str, Any] = {"task_bytes": 1 << 20}
    slow = waiting(tmp_path, "started", "committed")
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(
            write, spark, repo, {"g/slow": slow}, create={"g/slow": NEW}, message="slow", **whole
        )
        quick = waiting(tmp_path, "also started", "started")
        write(spark, repo, {"g/quick": quick}, create={"g/quick": NEW}, message="quick", **whole)
        (tmp_path / "committed").touch()
        last.result()
    assert [s.message for s in repo.ancestry(branch="main")][:2] == ["slow", "quick"]
    assert np.array_equal(read(repo, "g/quick")[:], EXPECTED)
    assert np.array_equal(read(repo, "g/slow")[:], EXPECTED)
    assert repo.verify(deep=True).is_clean
