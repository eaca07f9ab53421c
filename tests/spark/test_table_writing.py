"""Rows of DataFrames into arrays on a real Spark, against numpy and xarray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from pyspark.errors import AnalysisException

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark import table, write_table
from tests.builders import read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(str(tmp_path / "r"))


def url_of(repo: icefloe.Repository) -> str:
    return str(repo.storage.location).removeprefix("file://")


def opened(repo: icefloe.Repository) -> xr.Dataset:
    return read_dataset(repo, chunks=None)


def sample(days: int = 6, start: str = "2020-01-01") -> xr.Dataset:
    rng = np.random.default_rng(days)
    return xr.Dataset(
        {
            "t": (("time", "x"), rng.normal(size=(days, 50)).astype("f4")),
            "n": (("time", "x"), rng.integers(-5, 5, (days, 50))),
        },
        coords={"time": pd.date_range(start, periods=days), "x": np.arange(50) * 0.5},
    )


def frame_of(spark: SparkSession, dataset: xr.Dataset) -> DataFrame:
    found = pa.Table.from_pandas(dataset.to_dataframe().reset_index(), preserve_index=False)
    kinds = [
        pa.field(f.name, pa.timestamp("us")) if pa.types.is_timestamp(f.type) else f
        for f in found.schema
    ]
    return spark.createDataFrame(found.cast(pa.schema(kinds)))


def commits(repo: icefloe.Repository) -> int:
    return len(list(repo.ancestry(branch="main")))


def test_write_table_creates_appends_and_upserts(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    rows = frame_of(spark, sample()).orderBy("n")
    report = write_table(
        rows, repo, dims=["time", "x"], chunks={"time": 4, "x": 20}, message="first"
    )
    assert report.snapshot_id == repo.lookup_branch("main")
    xr.testing.assert_identical(opened(repo).drop_attrs(), sample())
    write_table(frame_of(spark, sample(3, "2020-01-07")), repo)
    both = xr.concat([sample(), sample(3, "2020-01-07")], "time")
    xr.testing.assert_identical(opened(repo).drop_attrs(), both)
    changed = table(spark, repo, sel={"x": slice(0, 3)}).selectExpr("time", "x", "t + 1 t", "n")
    write_table(changed, repo, operation="upsert")
    wanted = both.t.copy(deep=True)
    wanted[:, :7] += np.float32(1)
    np.testing.assert_array_equal(opened(repo).t, wanted)
    assert commits(repo) == 4


def test_write_table_refuses_and_commits_nothing(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    rows = frame_of(spark, sample())
    with pytest.raises(InvalidInputError, match="7 rows are for cells that have a row already"):
        write_table(rows.union(rows.limit(7)), repo, dims=["time", "x"])
    assert commits(repo) == 1
    write_table(rows, repo, dims=["time", "x"])
    outside = rows.selectExpr("time + interval 10 days time", "if(x < 1, -x - 1, x) x", "t", "n")
    with pytest.raises(InvalidInputError, match=r"12 rows are outside .* x=-1.0"):
        write_table(outside, repo)
    assert commits(repo) == 2


def test_times_with_a_zone_are_utc(spark: SparkSession, repo: icefloe.Repository) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows = spark.createDataFrame(
            pa.table(
                {
                    "time": pa.array(sample().time.values.astype("M8[us]").repeat(50)).cast(
                        pa.timestamp("us", "UTC")
                    ),
                    "x": np.tile(sample().x.values, 6),
                    "t": sample().t.values.ravel(),
                }
            )
        )
        assert dict(rows.dtypes)["time"] == "timestamp"
        write_table(rows, repo, dims=["time", "x"])
        found = table(spark, repo, zoned_times=True, where="time >= '2020-01-02 00:00:00'")
        # Five hours later in UTC: the second day is out.
        assert found.select("time").distinct().count() == 4
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    np.testing.assert_array_equal(opened(repo).time, sample().time)
    np.testing.assert_array_equal(opened(repo).t, sample().t)


def test_a_transaction_is_done_once(spark: SparkSession, repo: icefloe.Repository) -> None:
    rows = frame_of(spark, sample())
    first = write_table(rows, repo, dims=["time", "x"], txn_app_id="a", txn_version=1)
    again = write_table(rows, repo, dims=["time", "x"], txn_app_id="a", txn_version=1)
    assert again.repeated
    assert again.snapshot_id == first.snapshot_id
    dry = write_table(frame_of(spark, sample(1, "2021-01-01")), repo, dry_run=True)
    assert dry.snapshot_id is None
    assert commits(repo) == 2


def test_the_writer_of_the_data_source(spark: SparkSession, repo: icefloe.Repository) -> None:
    url = url_of(repo)
    rows = frame_of(spark, sample())

    def save(frame: Any, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("icefloe").mode(mode).options(**options)
        writer.option("txnAppId", "job").save(url)

    save(
        rows.repartition(3, "n"), dims="time,x", chunks='{"time": 4, "x": 20}', txnVersion=1,
        message="by Spark", **{"snapshot-property.source": "test"},
    )  # fmt: skip
    tip = repo.lookup_snapshot(repo.lookup_branch("main"))
    assert tip.message == "by Spark"
    assert tip.metadata["source"] == "test"
    save(rows, dims="time,x", txnVersion=1)
    assert repo.lookup_branch("main") == tip.id
    save(frame_of(spark, sample(2, "2020-01-07")), txnVersion=2)
    both = xr.concat([sample(), sample(2, "2020-01-07")], "time")
    xr.testing.assert_identical(opened(repo).drop_attrs(), both)
    save(frame_of(spark, sample(2, "2020-01-07") * 0), txnVersion=3, operation="overwrite")
    assert float(abs(opened(repo).t[6:]).max()) == 0
    save(frame_of(spark, sample(1)), "overwrite", dims="x,time", txnVersion=4)
    assert opened(repo).t.dims == ("x", "time")
    with pytest.raises(AnalysisException, match="rows are outside of the grid"):
        save(frame_of(spark, sample(1)), txnVersion=5)
    with pytest.raises(AnalysisException, match="unknown option"):
        save(rows, txnVersion=6, dimension="x")
    too_few: dict[str, Any] = {"max-staged-bytes": 100}
    with pytest.raises(Exception, match=r"Use icefloe\.spark\.write_table"):
        save(rows, txnVersion=7, **too_few)
    assert commits(repo) == 5
    # What was done stays done, also when the commits that say so are gone.
    repo.expire_snapshots(keep_last=1)
    save(frame_of(spark, sample(1)), "overwrite", dims="x,time", txnVersion=3)
    assert commits(repo) == 2


def test_a_failed_write_commits_and_deletes_nothing(
    spark: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    rows = frame_of(spark, sample()).repartition(2)
    broken = rows.selectExpr("time", "x", "if(x = 24, raise_error('boom'), t) t", "n")
    before = {path for path in (tmp_path / "r").rglob("*") if path.is_file()}
    with pytest.raises(Exception, match="boom"):
        broken.write.format("icefloe").mode("append").option("dims", "time,x").save(url_of(repo))
    assert commits(repo) == 1
    assert before <= {path for path in (tmp_path / "r").rglob("*") if path.is_file()}
