"""What a job tells of itself: in its commit, in the Spark UI, in logs, metrics and lineage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport

import icefloe
from icefloe.spark import (
    JobEvent,
    NewArray,
    OpenLineageEvents,
    add_listener,
    copy,
    ingest,
    map_blocks,
    register,
    sql,
    write,
    write_table,
)
from icefloe.tables.job_summary import JobSummary
from tests.builders import repository_beside

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NEW = NewArray((4, 2), "f8", (2, 2), dims=("y", "x"))


def newest(repo: icefloe.Repository) -> JobSummary:
    summary = JobSummary.of(next(iter(repo.ancestry(branch="main"))).metadata)
    assert summary is not None
    return summary


def filled(spark: SparkSession, place: Path, **options: Any) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(place))
    functions: dict[str, Any] = {"a": lambda region: np.full((2, 2), region[0].start)}
    write(spark, repo, functions, create={"a": NEW}, task_bytes=1, **options)
    return repo


def test_every_commit_of_a_job_has_a_summary(spark: SparkSession, tmp_path: Path) -> None:
    repo = filled(spark, tmp_path / "repo", metadata={"by": "test"})
    first = repo.lookup_branch("main")
    written = newest(repo)
    assert written.job == "write"
    assert written.application_id == spark.sparkContext.applicationId
    assert written.application_name == spark.sparkContext.appName
    assert written.user == spark.sparkContext.sparkUser()
    assert written.spark_version == spark.version
    assert written.icefloe_version == icefloe.__version__
    assert (written.chunks, written.tasks, written.files, written.rows) == (2, 2, None, None)
    assert written.bytes_written > 0
    assert written.task_seconds > 0
    assert written.seconds > 0
    assert repo.lookup_snapshot(first).metadata["by"] == "test"
    map_blocks(spark, repo, lambda a: a + 1, "a", "b")
    earlier = repo.readonly_session(snapshot_id=first)
    map_blocks(spark, repo, lambda a: a + 1, "a", "c", source=earlier)
    assert newest(repo).input_snapshots == (first,)
    other = icefloe.Repository.create(str(tmp_path / "other"))
    copy(spark, other, repo)
    assert newest(other).input_snapshots == (repo.lookup_branch("main"),)
    rows = spark.createDataFrame([(0, 1.5), (1, 2.5)], "z int, v double")
    write_table(rows, other, group="/rows", dims=["z"])
    assert (newest(other).job, newest(other).rows) == ("write_table", 2)


def test_the_lineage_of_a_copy_names_both_repositories(spark: SparkSession, tmp_path: Path) -> None:
    source = filled(spark, tmp_path / "source")
    target = icefloe.Repository.create(str(tmp_path / "target"))
    config = FileConfig(log_file_path=str(tmp_path / "events"), append=True)
    client = OpenLineageClient(transport=FileTransport(config))

    def fail(event: JobEvent) -> None:
        raise OSError("no connection")

    stops = [add_listener(fail), add_listener(OpenLineageEvents(client))]
    try:
        copied = copy(spark, target, source).snapshot_id
        map_blocks(spark, target, lambda a: a + 1, "a", "b")
    finally:
        for stop in stops:
            stop()
    lines = (tmp_path / "events").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [each["eventType"] for each in events] == ["START", "COMPLETE"] * 2
    flows = [
        [(each["name"], each["facets"]["version"]["datasetVersion"]) for each in event[side]]
        for event in events[1::2]
        for side in ("inputs", "outputs")
    ]
    first, second = str(tmp_path / "source"), str(tmp_path / "target")
    assert flows == [
        [(first, source.lookup_branch("main"))], [(second, copied)],
        [(second, copied)], [(second, target.lookup_branch("main"))],
    ]  # fmt: skip


def test_commits_of_the_data_source_have_the_same_summary(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    base = repo.lookup_branch("main")
    rows = spark.range(6).selectExpr("id AS x", "id * 0.5D AS v").repartition(3)
    options = {"dims": "x", "chunks": '{"x": 2}', "snapshot-property.by": "test"}
    rows.write.format("icefloe").mode("append").options(**options).save(str(tmp_path / "repo"))
    register(spark, repo, "halves")
    columns = [name for name in JobSummary.__struct_fields__ if name != "files"]
    text = f"SELECT {', '.join(columns)}, metadata['by'] AS kept FROM halves.snapshots"
    (row,) = sql(spark, f"{text} WHERE job IS NOT NULL").collect()
    by_job = write_table(rows, repo, group="/by_job", dims=["x"], chunks={"x": 2})
    known = newest(repo)
    assert row.job == "df.write"
    assert row.kept == "test"
    assert row.input_snapshots == [base]
    same = ("application_id", "application_name", "user", "spark_version", "icefloe_version")
    for name in (*same, "chunks", "rows", "bytes_written"):
        assert row[name] == getattr(known, name), name
    assert row.chunks == by_job.chunks == 3
    assert row.tasks == 3
    assert row.seconds > 0
    assert row.task_seconds > 0


def test_a_summary_of_an_ingest_counts_files_of_all_rounds(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for day in range(3):
        part = xr.Dataset({"t": ("time", [10.0 + day])}, {"time": [day]})
        part.to_netcdf(data / f"{day}.nc", format="NETCDF3_64BIT")
    repo = repository_beside(data, tmp_path / "repo")
    ingest(spark, repo, f"{data}/*.nc", checkpoint_files=2, metadata={"by": "test"})
    commits = list(repo.ancestry(branch="main"))
    assert len(commits) == 2
    assert commits[0].metadata["by"] == "test"
    summary = newest(repo)
    assert (summary.job, summary.files, summary.chunks) == ("ingest", 3, 3)
    assert summary.tasks >= 6  # headers and references of each file


def test_snapshots_show_summaries_as_columns(spark: SparkSession, tmp_path: Path) -> None:
    repo = filled(spark, tmp_path / "repo")
    register(spark, repo, "weather")
    rows = sql(
        spark,
        "SELECT job, application_id, chunks, tasks, user, input_snapshots, seconds "
        "FROM weather.snapshots WHERE job IS NOT NULL",
    ).collect()
    assert len(rows) == 1
    row = rows[0]
    assert (row.job, row.chunks, row.tasks) == ("write", 2, 2)
    assert row.application_id == spark.sparkContext.applicationId
    assert row.seconds > 0
    assert len(row.input_snapshots) == 1


def test_jobs_and_stages_have_descriptions_in_the_spark_ui(
    spark: SparkSession, tmp_path: Path
) -> None:
    filled(spark, tmp_path / "described")
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    descriptions = [jobs.apply(n).description() for n in range(jobs.size())]
    texts = [each.get() for each in descriptions if each.isDefined()]
    expected = f"icefloe write: main of {(tmp_path / 'described').as_uri()} (2 tasks)"
    assert expected in texts
    number = next(n for n, each in enumerate(descriptions) if expected in str(each))
    stages = jobs.apply(number).stageIds()
    of_stages = [
        store.lastStageAttempt(stages.apply(n)).description() for n in range(stages.size())
    ]
    assert of_stages
    assert all(expected in str(each) for each in of_stages)
