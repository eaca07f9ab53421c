"""Reads a table, writes one back and inspects it, on the kind of session that is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import xarray as xr

import icefloe
from icefloe.spark import local_session, register_functions, table, write_table
from icefloe.spark.session import prepare_environment


def session(kind: str):
    settings = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    if kind == "connect":
        return local_session(2, memory="1g", connect=True, config=settings)
    from pyspark.sql import SparkSession

    prepare_environment()
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for key, value in {**settings, "spark.executor.memory": "1g"}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(kind: str, folder: str) -> None:
    spark = session(kind)
    url = str(Path(folder) / "r")
    repo = icefloe.Repository.create(url)
    writer = repo.writable_session("main")
    values = np.arange(600.0).reshape(20, 30)
    xr.Dataset({"v": (("y", "x"), values)}, coords={"y": np.arange(20) * 0.5}).to_zarr(
        writer.store, consolidated=False, zarr_format=3, encoding={"v": {"chunks": (5, 30)}}
    )
    writer.commit("data")
    frame = spark.read.format("icefloe").option("partition-bytes", 1).load(url)
    assert frame.agg({"v": "sum"}).collect()[0][0] == values.sum()
    rows = table(spark, repo, where="v >= 300", partition_bytes=1)
    assert rows.count() == 300
    doubled = rows.selectExpr("y", "x", "v * 2 AS v")
    write_table(doubled, repo, group="doubled", dims=["y", "x"], progress=False)
    found = xr.open_zarr(repo.readonly_session("main").store, group="doubled", consolidated=False)
    assert np.array_equal(found.v.values, values[10:] * 2)
    if kind != "connect":
        spark.stop()
        return
    (
        doubled.write.format("icefloe").mode("append")
        .options(group="again", dims="y,x", message="by the writer").save(url)
    )  # fmt: skip
    register_functions(spark)
    told = spark.sql(f"SELECT message FROM icefloe_history('{url}') WHERE steps_back = 0").collect()
    assert told[0][0] == "by the writer"
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.write("done\n")
