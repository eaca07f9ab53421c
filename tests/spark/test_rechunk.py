"""Rechunking on a real Spark: same values, other chunks, one commit."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark import rechunk

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

VALUES = np.random.default_rng(1).normal(size=(24, 20, 30)).astype("f4")


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    hours = root.create_array("time", shape=24, dtype="i4", dimension_names=("time",))
    hours[:] = np.arange(24)
    for name in ("t", "u"):
        array = root.create_array(
            name,
            shape=VALUES.shape,
            dtype="f4",
            chunks=(1, 20, 30),
            dimension_names=("time", "y", "x"),
            attributes={"units": "K"},
            fill_value=-1.0,
        )
        array[:] = VALUES
    session.commit("maps")
    return repo


def opened(repo: icefloe.Repository, path: str, **version: Any) -> zarr.Array[Any]:
    return zarr.open_array(repo.readonly_session(**version).store, path=path, mode="r")


def test_maps_become_time_series(spark: SparkSession, repo: icefloe.Repository) -> None:
    before = repo.lookup_branch("main")
    report = rechunk(spark, repo, ["t", "u"], {"time": -1, "y": 5, "x": 7}, task_bytes=10_000)
    for name in ("t", "u"):
        new = opened(repo, name, branch="main")
        assert new.chunks == (24, 5, 7)
        assert np.array_equal(new[:], VALUES)
        assert new.attrs["units"] == "K"
        assert new.fill_value == -1
        assert new.metadata.dimension_names == ("time", "y", "x")
    assert opened(repo, "t", snapshot_id=before).chunks == (1, 20, 30)
    history = list(repo.ancestry(branch="main"))
    assert [history[0].id, history[1].id] == [report.snapshot_id, before]
    assert report.plan.tasks > 2


def test_two_passes_where_memory_is_short(
    spark: SparkSession, repo: icefloe.Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = 24 * 5 * 6 * 4 * 3
    rechunk(spark, repo, "t", (24, 5, 1), memory_bytes=7200, dry_run=True)
    assert "two passes" in capsys.readouterr().out
    assert memory > 7200
    report = rechunk(spark, repo, "t", (24, 5, 1), memory_bytes=7200)
    assert np.array_equal(opened(repo, "t", branch="main")[:], VALUES)
    assert repo.lookup_branch("main") == report.snapshot_id
    assert len(list(repo.ancestry(branch="main"))) == 3


def test_shards_and_back_at_another_path(spark: SparkSession, repo: icefloe.Repository) -> None:
    rechunk(spark, repo, "t", (4, 5, 5), shards=(12, 10, -1), to="series/t")
    sharded = opened(repo, "series/t", branch="main")
    assert sharded.shards == (12, 10, 30)
    assert sharded.chunks == (4, 5, 5)
    assert np.array_equal(sharded[:], VALUES)
    assert opened(repo, "series/time", branch="main")[:].tolist() == list(range(24))
    assert opened(repo, "t", branch="main").chunks == (1, 20, 30)
    rechunk(spark, repo, "series/t", (24, 20, 30))
    assert opened(repo, "series/t", branch="main").shards is None
    assert np.array_equal(opened(repo, "series/t", branch="main")[:], VALUES)


def test_a_chunk_that_does_not_fit_is_refused_before_anything_runs(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    with pytest.raises(InvalidInputError, match="memory_bytes=1000"):
        rechunk(spark, repo, "t", (24, 20, 30), memory_bytes=1000)


def test_a_task_keeps_to_its_memory(tmp_path: Path) -> None:
    """The function that executors run, here, so that its memory can be measured."""
    from icefloe.arrays.grid import Piece, blocks, whole
    from icefloe.spark.engine.job import grid_of
    from icefloe.spark.engine.worker import SessionSpec
    from icefloe.spark.jobs.fill import Filling, _fill_pieces, _FillWork
    from icefloe.spark.jobs.inputs import RepositoryArray
    from icefloe.spark.jobs.rechunk import STEP_SHARE, plan_rechunk
    from icefloe.tables import zarr_arrays as arrays

    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    values = np.random.default_rng(2).normal(size=(64, 256, 256))
    new = arrays.NewArray(values.shape, "f8", (1, 256, 256), dims=("t", "y", "x"))
    arrays.create(session, "t", new)
    session.write_region("/t", ..., values)
    session.commit("maps")
    base = repo.readonly_session("main")
    session = repo.writable_session("main")
    new = arrays.NewArray(values.shape, "f8", (64, 32, 32), dims=("t", "y", "x"))
    arrays.create(session, "t", new, overwrite=True)
    grid = grid_of(session, "/t")
    memory = 24 * 2**20
    plan = plan_rechunk(
        grid.shape, (1, 256, 256), grid.chunk_shape, item_bytes=8, memory_bytes=memory
    )
    steps = np.ceil(np.divide(plan.stages[-1].region_shape, grid.chunk_shape)).astype(int)
    pieces = [Piece("/t", box) for box in blocks(grid.box, steps.tolist())]
    stored = grid_of(base, "/t")
    spec = SessionSpec.of(base)
    reader = RepositoryArray(spec, "/t", steps=stored, step_bytes=memory // STEP_SHARE)
    shared = _FillWork(
        SessionSpec.of(session),
        {"/t": grid},
        {"/t": whole(grid.shape)},
        Filling({"/t": reader}, 2**62, memory // STEP_SHARE),
    )
    list(_fill_pieces((pieces[0],), shared))  # imports and caches are not counted
    tracemalloc.start()
    outputs = list(_fill_pieces((pieces[-1],), shared))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outputs
    assert plan.region_bytes >= memory // 6, "the budget is used"
    assert peak <= memory
