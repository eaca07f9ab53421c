"""Storage providers: registered by the driver, chosen by name in options and in SQL text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.spark import register_functions, register_storage_provider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session with a data source and functions of its own."""
    return spark.newSession()


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    made = icefloe.Repository.create(tmp_path / "data")
    writer = made.writable_session("main")
    group = zarr.open_group(writer.store, mode="a")
    group.create_array("v", shape=(4,), chunks=(2,), dtype="i4", dimension_names=["x"])[:] = 7
    writer.commit("numbers")
    return made


def opens_below(folder: str) -> Callable[[str], Any]:
    """A closure, which no process could import: `ours://name` is a folder."""

    def open_ours(url: str) -> Any:
        import icefloe

        return icefloe.local_filesystem_storage(f"{folder}/{url.removeprefix('ours://')}")

    return open_ours


def test_sql_text_cannot_name_code(session: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "made-by-sql"
    text = f"!!python/object/apply:os.mkdir [{target}]"
    with pytest.raises(Exception, match="no storage provider 'yaml:unsafe_load' is registered"):
        session.sql(
            f"CREATE TEMPORARY VIEW v USING icefloe OPTIONS (path '{text}', "
            "`storage-provider` 'yaml:unsafe_load')"
        )
    assert not target.exists()


def test_functions_cannot_name_code(session: SparkSession, tmp_path: Path) -> None:
    register_functions(session)
    target = tmp_path / "made-by-sql"
    text = f"!!python/object/apply:os.mkdir [{target}]"
    with pytest.raises(Exception, match="no storage provider 'yaml:unsafe_load' is registered"):
        session.sql(
            f"SELECT * FROM icefloe_refs('{text}', storage_provider => 'yaml:unsafe_load')"
        ).collect()
    assert not target.exists()


def test_a_registered_provider_reads_and_writes(
    session: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    register_storage_provider(session, "ours", opens_below(str(tmp_path)))
    options = {"storage-provider": "ours"}
    rows = session.read.format("icefloe").options(**options).load("ours://data").collect()
    assert [tuple(row) for row in rows] == [(x, 7) for x in range(4)]

    frame = session.createDataFrame([(x, x * 10) for x in range(4)], "x long, v int")
    frame.write.format("icefloe").options(operation="upsert", dims="x", **options).mode(
        "append"
    ).save("ours://data")
    read = repo.readonly_session("main").read_region("/v")
    np.testing.assert_array_equal(read, [0, 10, 20, 30])

    register_functions(session)
    query = "SELECT name FROM icefloe_refs('ours://data', storage_provider => 'ours')"
    assert [row.name for row in session.sql(query).collect()] == ["main"]


def test_a_registered_provider_serves_sql_and_streams(
    session: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    register_storage_provider(session, "first", opens_below("/nowhere"))
    register_storage_provider(session, "ours", opens_below(str(tmp_path)))
    session.sql(
        "CREATE TEMPORARY VIEW numbers USING icefloe "
        "OPTIONS (path 'ours://data', `storage-provider` 'ours')"
    )
    assert session.sql("SELECT sum(v) AS total FROM numbers").collect()[0].total == 28
    icefloe.Repository.create(tmp_path / "copy")
    source = session.readStream.format("icefloe").option("storage-provider", "ours")
    sink = source.load("ours://data").writeStream.format("icefloe")
    sink = sink.option("storage-provider", "ours").option("dims", "x")
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start("ours://copy")
    query.awaitTermination()
    copied = icefloe.Repository.open(tmp_path / "copy").readonly_session("main")
    np.testing.assert_array_equal(copied.read_region("/v"), [7, 7, 7, 7])
