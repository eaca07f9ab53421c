"""Reads a table, writes one back and inspects it, for programs on sessions of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import icefloe
from icefloe.spark import (
    register,
    register_functions,
    register_storage_provider,
    table,
    write_table,
)
from icefloe.spark import sql as run_sql
from icefloe.spark.engine.application import Application
from icefloe.tables.job_summary import JobSummary

VALUES = np.arange(600.0).reshape(20, 30)


def use_tables(spark: Any, url: str) -> tuple[dict[str, Any], Any]:
    """What rows say of a new repository, and arrays of rows; and these rows."""
    repo = icefloe.Repository.create(url)
    writer = repo.writable_session("main")
    xr.Dataset({"v": (("y", "x"), VALUES)}, coords={"y": np.arange(20) * 0.5}).to_zarr(
        writer.store, consolidated=False, zarr_format=3, encoding={"v": {"chunks": (5, 30)}}
    )
    writer.commit("data")
    frame = spark.read.format("icefloe").option("partition-bytes", 1).load(url)
    rows = table(spark, repo, where="v >= 300", partition_bytes=1)
    doubled = rows.selectExpr("y", "x", "v * 2 AS v")
    write_table(doubled, repo, group="doubled", dims=["y", "x"], progress=False)
    session = repo.readonly_session("main")
    found = {
        "sum": frame.agg({"v": "sum"}).collect()[0][0] == float(VALUES.sum()),
        "doubled": np.array_equal(session.read_region("/doubled/v"), VALUES[10:] * 2),
        "little": table(spark, repo, variables="v", where="v > 590").count() == 9,
    }
    return {**found, "sql": use_sql(spark, repo)}, doubled


def use_sql(spark: Any, repo: Any) -> Any:
    """Change a table, and join it with a metadata table, by statements."""
    register(spark, repo, "flow", variables="v", partition_bytes=1)
    run_sql(spark, "UPDATE flow SET v = -1 WHERE y = 0.5 AND x < 3")
    joined = (
        "SELECT count(*), min(v) FROM flow f JOIN flow.refs r ON r.name = 'main' WHERE f.v < :top"
    )
    plan = run_sql(spark, f"EXPLAIN {joined}", {"top": 0}).collect()[0][0]
    return [list(run_sql(spark, joined, {"top": 0}).collect()[0]), "snapshot" in plan]


def write_by_format(rows: Any, url: str) -> dict[str, Any]:
    """Write with the data source itself, and read the history by SQL."""
    spark = rows.sparkSession
    (
        rows.write.format("icefloe").mode("append")
        .options(group="again", dims="y,x", message="by the writer").save(url)
    )  # fmt: skip
    # Not importable anywhere: it travels as it is.
    register_storage_provider(spark, "ours", lambda _: icefloe.local_filesystem_storage(url))
    provided = spark.read.format("icefloe").options(group="again", storage_provider="ours")
    register_functions(spark)
    told = spark.sql(f"SELECT message FROM icefloe_history('{url}') WHERE steps_back = 0").collect()
    repo = icefloe.Repository.open(url)
    session = repo.readonly_session("main")
    # The server knows its application; what a client of Spark Connect sees of it is the same.
    summary = JobSummary.of(next(iter(repo.ancestry(branch="main"))).metadata)
    known = Application.of(spark)
    return {
        "summary": [
            summary.job,
            summary.rows,
            summary.application_id == known.id,
            summary.application_name == known.name,
            summary.user == known.user,
            summary.spark_version == known.version,
        ],
        "told": told[0][0],
        "again": np.array_equal(session.read_region("/again/v"), VALUES[10:] * 2),
        "provided": provided.load("ours://").count() == VALUES[10:].size,
    }
