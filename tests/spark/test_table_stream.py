"""Streams of commits, on a real Spark."""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from pyspark.errors import StreamingQueryException

import icefloe
from icefloe.spark import register_storage_provider
from icefloe.tables.job_summary import JobSummary
from tests.builders import read_dataset
from tests.counting import KILLED, count
from tests.profiles import IS_DEEP
from tests.spark.deadly_storage import ARMED, deadly
from tests.spark.programs import run_program

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
    found = read_dataset(target, chunks=None)
    wanted = read_dataset(source, chunks=None)
    xr.testing.assert_equal(found.load(), wanted.load())
    commits = [info.metadata for info in target.ancestry(branch="main")]
    assert [m.get("txnVersion") for m in commits[:3]] == [2, 1, 0]
    summaries = [JobSummary.of(properties) for properties in commits[:3]]
    assert [each.rows for each in summaries] == [8, 4, 8]
    assert [each.chunks for each in summaries] == [2, 1, 1]
    for each in summaries:
        assert each.job == "df.writeStream"
        assert each.application_id == spark.sparkContext.applicationId
        assert each.application_name == spark.sparkContext.appName
        assert each.user == spark.sparkContext.sparkUser()
        assert each.tasks > 0
        assert each.bytes_written > 0
        assert each.seconds >= each.task_seconds / each.tasks > 0
    assert pa.types.is_floating(pa.array(found.v.values.ravel()).type)


def table_of(spark: SparkSession, place: Path, **options: Any) -> Any:
    stream = spark.readStream.format("icefloe")
    for name, value in options.items():
        stream = stream.option(name.replace("_", "-"), value)
    return stream.load(str(place))


def batches_of(stream: Any, checkpoint: Path) -> list[list[Any]]:
    """The rows of each batch until the stream has caught up."""
    batches: list[list[Any]] = []
    query = (
        stream.writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return batches


def test_append_to_an_empty_repository_creates_its_arrays(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = icefloe.Repository.create(str(tmp_path / "source"))
    target = icefloe.Repository.create(str(tmp_path / "target"))
    add(source, 2, "2020-01-01", encoding={"v": {"chunks": (1, 4)}, "time": {"chunks": (1,)}})
    for start in ("2020-01-03", "2020-01-05"):
        query = (
            table_of(spark, tmp_path / "source")
            .writeStream.format("icefloe")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("dims", "time,x")
            .option("operation", "append")
            .trigger(availableNow=True)
            .start(str(tmp_path / "target"))
        )
        assert query.awaitTermination(120)
        xr.testing.assert_equal(read_dataset(target).load(), read_dataset(source).load())
        add(source, 2, start, append_dim="time")


def test_change_data_tells_deletes_and_the_values_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "source"
    repo = icefloe.Repository.create(str(place))
    chunks = {"v": {"chunks": (2, 4)}, "time": {"chunks": (8,)}}
    first = add(repo, 2, "2020-01-01", encoding=chunks)
    moment = repo.lookup_snapshot(first).written_at.isoformat()
    with repo.transaction("main", message="one cell changes, another goes") as store:
        values = zarr.open_array(store, path="v")
        values[0, 1], values[1, 2] = 50.0, np.nan
    second = repo.lookup_branch("main")
    third = add(repo, 1, "2020-01-03", append_dim="time")
    told = {
        second: [
            ("delete", 2, 2, 6.0),
            ("update_postimage", 1, 1, 50.0),
            ("update_preimage", 1, 1, 1.0),
        ],
        third: [("insert", 3, x, float(x)) for x in range(4)],
    }

    def plain(rows: list[Any]) -> list[Any]:
        return sorted((row["_change_type"], row["time"].day, row["x"], row["v"]) for row in rows)

    options: dict[str, Any] = {"change_data": True, "max_commits_per_trigger": 1}
    begun = table_of(spark, place, starting_snapshot_id=first, **options)
    batches = batches_of(begun, tmp_path / "by id")
    assert [plain(rows) for rows in batches] == list(told.values())
    assert [{row["_commit_snapshot_id"] for row in rows} for rows in batches] == [{second}, {third}]
    by_time = table_of(spark, place, stream_from_timestamp=moment, **options)
    assert batches_of(by_time, tmp_path / "by time") == batches
    (whole,) = batches_of(table_of(spark, place, change_data=True), tmp_path / "all")
    assert {row["_change_type"] for row in whole} == {"insert"}
    assert len(whole) == 11
    latest = table_of(spark, place, starting_snapshot_id="latest", **options)
    assert sum(map(len, batches_of(latest, tmp_path / "latest"))) == 0

    changes = spark.read.format("icefloe").option("change-data", True)
    between = changes.option("start-snapshot-id", first).option("end-snapshot-id", second)
    assert plain(between.load(str(place)).collect()) == told[second]
    kinds = between.load(str(place)).where("v > 3").select("_change_type").collect()
    assert sorted(row[0] for row in kinds) == ["delete", "update_postimage"]


def test_a_stream_whose_processes_are_killed_writes_everything_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = icefloe.Repository.create(str(tmp_path / "source"))
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    target = icefloe.Repository.create(str(tmp_path / "target"), config=config)
    target.save_config()
    session = spark.newSession()
    register_storage_provider(session, "deadly", deadly(str(tmp_path)))

    def run() -> None:
        query = (
            table_of(session, tmp_path / "source")
            .writeStream.format("icefloe")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("storage-provider", "deadly")
            .option("dims", "time,x")
            .option("operation", "append")
            .trigger(availableNow=True)
            .start(str(tmp_path / "target"))
        )
        assert query.awaitTermination(120)

    add(source, 1, "2020-01-01", encoding={"v": {"chunks": (1, 4)}, "time": {"chunks": (1,)}})
    armed = tmp_path / ARMED
    # A task that writes rows, a commit that is not published, and one that is.
    moments = ["before chunks/", "before refs/", "after refs/"]
    for day, moment in enumerate(moments, start=2):
        armed.write_text(moment)
        with pytest.raises(StreamingQueryException) as failed:
            run()
        assert not armed.exists(), failed.value
        add(source, 1, f"2020-01-0{day}", append_dim="time")
    run()
    xr.testing.assert_equal(read_dataset(target).load(), read_dataset(source).load())
    commits = [info.metadata for info in target.ancestry(branch="main")][:-1]
    assert [each["txnVersion"] for each in commits] == [1, 0]
    assert len({each["txnAppId"] for each in commits}) == 1


KILLS = 20 if IS_DEEP else 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_stream_that_is_killed_at_random_writes_everything_once(tmp_path: Path) -> None:
    """Each kill is at a random moment of a run that has work left."""
    source = icefloe.Repository.create(str(tmp_path / "source"))
    target = icefloe.Repository.create(str(tmp_path / "target"))
    add(source, 1, "2020-01-01", encoding={"v": {"chunks": (1, 4)}, "time": {"chunks": (1,)}})
    chance = Random(2020)
    days_written, killed = 1, 0
    for attempt in range(2 * KILLS + 4):
        if killed == KILLS:
            break
        for _ in range(4):
            start = pd.Timestamp("2020-01-01") + pd.Timedelta(days=days_written)
            add(source, 1, str(start.date()), append_dim="time")
            days_written += 1
        moment = (str(attempt % 3), str(chance.uniform(0, 3)))
        done = run_program("stream_program.py", str(tmp_path), *moment)
        killed += done.code == -signal.SIGKILL
    assert killed == KILLS
    count(KILLED, killed)
    # Some were killed with batches behind them, and all with batches ahead.
    assert 1 < len(list(target.ancestry(branch="main"))) <= days_written
    for _ in range(4):  # on a busy machine Spark may wait too briefly for its Python workers
        done = run_program("stream_program.py", str(tmp_path))
        if "batches" in done.told:
            break
    assert done["batches"] > 0
    xr.testing.assert_equal(read_dataset(target).load(), read_dataset(source).load())
    commits = [info.metadata for info in target.ancestry(branch="main")][:-1]
    # Each batch is one commit, and all are of one query.
    assert [each["txnVersion"] for each in commits] == list(range(len(commits)))[::-1]
    assert len({each["txnAppId"] for each in commits}) == 1
