"""Streams of commits, on a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import xarray as xr

import icefloe

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def days(count: int, start: str) -> xr.Dataset:
    values = np.arange(count * 4.0).reshape(count, 4)
    return xr.Dataset(
        {"v": (("time", "x"), values)},
        coords={"time": pd.date_range(start, periods=count), "x": np.arange(4)},
    )


def add(repo: icefloe.Repository, count: int, start: str, **arguments: Any) -> str:
    session = repo.writable_session("main")
    days(count, start).to_zarr(session.store, consolidated=False, zarr_format=3, **arguments)
    return session.commit(f"from {start}")


def test_each_commit_flows_from_one_repository_to_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = icefloe.Repository.create(str(tmp_path / "source"))
    target = icefloe.Repository.create(str(tmp_path / "target"))
    add(source, 2, "2020-01-01", encoding={"v": {"chunks": (1, 4)}, "time": {"chunks": (1,)}})

    def run() -> Any:
        stream = (
            spark.readStream.format("icefloe")
            .option("max-commits-per-trigger", 1)
            .load(str(tmp_path / "source"))
        )
        query = (
            stream.writeStream.format("icefloe")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("dims", "time,x")
            .option("operation", "upsert")
            .trigger(availableNow=True)
            .start(str(tmp_path / "target"))
        )
        assert query.awaitTermination(120)
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert sum(run()) == 8
    add(source, 1, "2020-01-03", append_dim="time")
    add(source, 2, "2020-01-04", append_dim="time")
    assert sum(run()) == 12
    assert sum(run()) == 0
    found = xr.open_zarr(target.readonly_session("main").store, consolidated=False, chunks=None)
    wanted = xr.open_zarr(source.readonly_session("main").store, consolidated=False, chunks=None)
    xr.testing.assert_equal(found.load(), wanted.load())
    commits = [info.metadata for info in target.ancestry(branch="main")]
    assert [m.get("txnVersion") for m in commits[:3]] == [2, 1, 0]
    assert pa.types.is_floating(pa.array(found.v.values.ravel()).type)
