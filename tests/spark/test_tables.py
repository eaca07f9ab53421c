"""Arrays as tables on a real Spark, against xarray."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pyspark.errors import AnalysisException

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark import blocks, compute_statistics, register, register_functions, table
from tests.builders import read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def weather(days: int = 20) -> xr.Dataset:
    rng = np.random.default_rng(7)
    t2m = rng.normal(280, 10, (days, 30, 40)).astype("f4")
    t2m[3, 2, 1] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m),
            "rain": (("time", "lat", "lon"), rng.integers(0, 90, (days, 30, 40)) / 10),
        },
        coords={
            "time": pd.date_range("2020-01-20", periods=days),
            "lat": np.linspace(60, 31, 30),
            "lon": np.arange(40, dtype="f4") * 0.25,
            "height": (("lat", "lon"), rng.integers(0, 3000, (30, 40)).astype("i4")),
        },
    )


ENCODING = {
    "t2m": {"chunks": (5, 15, 20)},
    "rain": {
        "chunks": (5, 15, 20), "dtype": "i2", "scale_factor": 0.1, "_FillValue": -1,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(tmp_path_factory.mktemp("tables") / "weather"))
    session = repo.writable_session("main")
    dataset = weather()
    dataset.isel(time=slice(0, 15)).to_zarr(
        session.store, consolidated=False, zarr_format=3, encoding=ENCODING
    )
    repo.create_tag("first", session.commit("fifteen days", {"author": "a test"}))
    session = repo.writable_session("main")
    dataset.isel(time=slice(15, 20)).to_zarr(
        session.store, consolidated=False, zarr_format=3, append_dim="time"
    )
    session.commit("five more")
    return repo


@pytest.fixture(scope="module")
def url(repo: icefloe.Repository) -> str:
    return str(repo.storage.location).removeprefix("file://")


def as_xarray(repo: icefloe.Repository, **version: Any) -> xr.Dataset:
    session = repo.readonly_session(**(version or {"branch": "main"}))
    return read_dataset(session, chunks=None)


def same(spark_frame: DataFrame, dataset: xr.Dataset) -> None:
    dims = ["time", "lat", "lon"]
    ours = spark_frame.toArrow().to_pandas().sort_values(dims).reset_index(drop=True)
    theirs = dataset.to_dataframe(dim_order=dims).reset_index().sort_values(dims)
    assert set(ours.columns) == set(theirs.columns)
    assert len(ours) == len(theirs)
    for name in theirs.columns:
        if name == "time":
            assert (ours.time.to_numpy("M8[us]") == theirs.time.to_numpy("M8[us]")).all()
        else:
            np.testing.assert_array_equal(ours[name].to_numpy(), theirs[name].to_numpy())


def test_a_group_is_a_table(spark: SparkSession, repo: icefloe.Repository, url: str) -> None:
    frame = spark.read.format("icefloe").load(url)
    assert frame.schema.simpleString() == (
        "struct<time:timestamp_ntz,lat:double,lon:float,height:int,rain:double,t2m:float>"
    )
    same(frame, as_xarray(repo))


def test_the_helper_gives_the_same_cells(
    spark: SparkSession, repo: icefloe.Repository, url: str
) -> None:
    same(table(spark, url), as_xarray(repo))
    same(table(spark, repo, partition_bytes=20_000), as_xarray(repo))
    same(table(spark, repo, local_bytes=0), as_xarray(repo))


# What is little is read by the driver. Spark must not notice.


def is_read_here(frame: DataFrame) -> bool:
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert ("MapInArrow" in plan) != ("LocalRelation" in plan)
    return "LocalRelation" in plan


SELECTIONS = [
    {"variables": "t2m", "sel": {"time": "2020-01-25", "lat": 60}},  # few cells
    {"isel": {"time": slice(0, 3)}},  # lines of cells
    {"where": "t2m > 300 and lat < 45"},
    {"where": "rain > 1", "columns": ["lon", "t2m"]},
    {"sel": {"time": slice("2021", None)}},
    {"zoned_times": True, "where": "time > '2020-02-01'", "columns": ["time", "t2m"]},
    {"variables": "rain", "isel": {"lat": 3}, "layout": "chunks"},
    {"columns": ["height"]},
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_little_is_read_by_the_driver(
    spark: SparkSession, repo: icefloe.Repository, selection: dict[str, Any]
) -> None:
    here, there = table(spark, repo, **selection), table(spark, repo, local_bytes=0, **selection)
    assert is_read_here(here)
    assert here.schema == there.schema
    rows, wanted = (sorted(map(str, frame.collect())) for frame in (here, there))
    assert rows == wanted


def test_much_is_read_by_tasks(spark: SparkSession, repo: icefloe.Repository) -> None:
    assert not is_read_here(table(spark, repo, local_bytes=24_000 * 12 - 1))
    assert is_read_here(table(spark, repo, local_bytes=24_000 * 12))
    assert not is_read_here(table(spark, repo, partition_bytes=1_000_000))
    # Nothing is read of nothing, by nobody.
    assert is_read_here(table(spark, repo, sel={"time": slice("2021", None)}, local_bytes=0))


def test_names_that_mean_something_to_sql(spark: SparkSession, tmp_path: Path) -> None:
    repo = icefloe.Repository.create(str(tmp_path / "r"))
    session = repo.writable_session("main")
    values = np.arange(6.0).reshape(2, 3)
    coords = {"x y": [5, 6], "z.w": np.array(["p", "q", "r"], dtype=object)}
    dataset = xr.Dataset(dict.fromkeys(("a.b", "c`d"), (("x y", "z.w"), values)), coords=coords)
    dataset.to_zarr(session.store, consolidated=False, zarr_format=3)
    own = xr.Dataset(dict.fromkeys(("_position", "_start", "v"), (("x", "y"), values)))
    own.to_zarr(session.store, group="own", consolidated=False, zarr_format=3)
    case = xr.Dataset(dict.fromkeys(("T", "t"), (("x", "y"), values)))
    case.to_zarr(session.store, group="case", consolidated=False, zarr_format=3)
    session.commit("x")
    found = table(spark, repo, where="`a.b` > 2 and `z.w` <> 'q'", local_bytes=0)
    assert [tuple(row) for row in found.collect()] == [(6, "p", 3, 3), (6, "r", 5, 5)]
    found = table(spark, repo, group="own", local_bytes=0)
    assert found.agg({"_position": "sum", "_start": "sum"}).first() == (15, 15)
    with pytest.raises(InvalidInputError, match="the columns T and t for one"):
        table(spark, repo, group="case")
    assert table(spark, repo, group="case", columns="t").count() == 6
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert table(spark, repo, group="case", where="T > 1", local_bytes=0).count() == 4
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_coordinates_of_every_kind_come_back_from_lines(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = icefloe.Repository.create(str(tmp_path / "r"))
    session = repo.writable_session("main")
    coords = {
        "name": ("name", np.array(["a'b", 'c"d', "e\\f"], dtype=object)),
        "time": ("time", pd.date_range("2020-01-01", periods=4, freq="90min")),
        "level": ("level", np.array([1, 5], dtype="i2")),
        "gap": ("gap", np.array([1.0, np.nan])),
    }
    for group, dim in enumerate(coords):
        size = len(coords[dim][1])
        values = np.arange(3 * size).reshape(3, size)
        dataset = xr.Dataset({"v": (("row", dim), values)}, coords={dim: coords[dim]})
        dataset.to_zarr(session.store, group=str(group), consolidated=False, zarr_format=3)
    session.commit("x")
    for group, dim in enumerate(coords):
        rows = table(spark, repo, group=str(group)).orderBy("v").collect()
        wanted = spark.read.format("icefloe").option("group", group).load(str(tmp_path / "r"))
        assert rows == wanted.orderBy("v").collect()
        assert [row.row for row in rows] == np.repeat(np.arange(3), len(coords[dim][1])).tolist()


def test_versions(spark: SparkSession, repo: icefloe.Repository, url: str) -> None:
    reader = spark.read.format("icefloe")
    assert reader.option("tag", "first").load(url).count() == 15 * 30 * 40
    first = repo.lookup_tag("first")
    assert spark.read.format("icefloe").option("snapshot-id", first).load(url).count() == 18_000
    assert table(spark, url, snapshot_id=first).count() == 18_000
    moment = repo.lookup_snapshot(first).written_at
    assert table(spark, url, as_of=moment).count() == 18_000
    milliseconds = str(int(moment.timestamp() * 1000) + 1)
    found = spark.read.format("icefloe").option("as-of-timestamp", milliseconds).load(url)
    assert found.count() == 18_000
    both = spark.read.format("icefloe").option("tag", "first").option("branch", "main")
    with pytest.raises(AnalysisException, match="name one version"):
        both.load(url)


def test_the_snapshot_is_pinned_at_load(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "r")
    repo = icefloe.Repository.create(url)
    for days in (4, 5):
        session = repo.writable_session("main")
        weather(days).to_zarr(session.store, consolidated=False, zarr_format=3, mode="w")
        session.commit(f"{days} days")
        if days == 4:
            frame, helper = spark.read.format("icefloe").load(url), table(spark, url)
            view = spark.sql(f"CREATE TEMP VIEW pinned USING icefloe OPTIONS (path '{url}')")
            assert view is not None
    assert frame.count() == helper.count() == 4 * 1200
    assert spark.sql("select count(*) from pinned").first()[0] == 4 * 1200
    assert spark.read.format("icefloe").load(url).count() == 5 * 1200
    spark.catalog.dropTempView("pinned")


# The table of facts on filter push-down: a source that implements it answers all four wrongly.


def test_one_frame_with_two_filters_gives_two_answers(spark: SparkSession, url: str) -> None:
    frame = spark.read.format("icefloe").option("variables", "t2m").load(url)
    one = frame.filter("lat = 60")
    assert len(one.collect()) == 20 * 40
    assert frame.count() == 24_000


def test_a_union_of_two_filters_has_both(spark: SparkSession, url: str) -> None:
    frame = spark.read.format("icefloe").option("columns", "lat,t2m").load(url)
    both = frame.filter("lat = 60").union(frame.filter("lat = 31"))
    assert both.groupBy("lat").count().orderBy("lat").collect() == [(31.0, 800), (60.0, 800)]


def test_a_join_of_two_filters_has_both(spark: SparkSession, url: str) -> None:
    frame = spark.read.format("icefloe").option("columns", "time,lat,lon").load(url)
    north, south = frame.filter("lat = 60").alias("n"), frame.filter("lat = 31").alias("s")
    joined = north.join(south, ["time", "lon"]).select("n.lat", "s.lat").distinct()
    assert joined.collect() == [(60.0, 31.0)]


def test_two_subqueries_of_a_view_differ(spark: SparkSession, url: str) -> None:
    spark.read.format("icefloe").option("columns", "lat").load(url).createOrReplaceTempView("v")
    query = "select (select count(*) from v where lat = 60), (select count(*) from v)"
    assert spark.sql(query).first() == (800, 24_000)
    spark.catalog.dropTempView("v")


def test_the_source_does_not_push_filters() -> None:
    from pyspark.sql.datasource import DataSourceReader

    from icefloe.spark.tables.datasource import TableReader

    assert TableReader.pushFilters is DataSourceReader.pushFilters


def test_options_choose_cells(spark: SparkSession, repo: icefloe.Repository, url: str) -> None:
    frame = (
        spark.read.format("icefloe")
        .option("variables", "t2m")
        .option("sel", '{"time": {"start": "2020-01-25", "stop": "2020-01"}, "lat": 60}')
        .option("isel", '{"lon": {"stop": 3}}')
        .option("columns", "time,lat,lon,t2m")
        .load(url)
    )
    wanted = as_xarray(repo)[["t2m"]].drop_vars("height")
    same(frame, wanted.sel(time=slice("2020-01-25", "2020-01"), lat=[60]).isel(lon=slice(3)))
    few = spark.read.format("icefloe").option("where", "t2m > 300 and lat < 40").load(url)
    data = as_xarray(repo).t2m
    assert few.count() == int((data.sel(lat=slice(39.99, None)) > 300).sum())


def test_helper_arguments_choose_cells(
    spark: SparkSession, repo: icefloe.Repository, url: str
) -> None:
    data = as_xarray(repo)
    found = table(
        spark, url, variables="t2m", sel={"time": slice("2020-01-25", None)}, where="t2m > 300"
    )
    wanted = data.t2m.sel(time=slice("2020-01-25", None))
    assert found.count() == int((wanted > 300).sum())
    # Functions are Spark's: the scan reads all and the filter is right.
    found = table(spark, url, variables="t2m", where="month(time) = 2 and abs(t2m - 280) < 1")
    february = data.t2m.sel(time="2020-02")
    assert found.count() == int((abs(february - 280) < 1).sum())
    with pytest.raises(InvalidInputError, match="no variable 'wind'"):
        table(spark, url, variables="wind")
    with pytest.raises(InvalidInputError, match="layout is 'cells' or 'chunks', found 'rows'"):
        table(spark, url, layout="rows")  # type: ignore[arg-type]


def test_filters_on_outer_coordinates_run_before_the_explode(spark: SparkSession, url: str) -> None:
    cells = table(spark, url, variables=["t2m", "rain"], local_bytes=0)
    frame = cells.filter("time > '2020-02-01'").select("t2m")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    generate, scan = plan.index("Generate"), plan.index("MapInArrow")
    assert "2020-02-01" in plan[generate:scan]
    assert "rain" not in plan[:scan]


def test_a_schema_prunes_columns(spark: SparkSession, url: str) -> None:
    frame = spark.read.format("icefloe").schema("t2m float, time timestamp_ntz").load(url)
    assert frame.columns == ["t2m", "time"]
    assert frame.agg({"time": "max"}).first()[0].isoformat() == "2020-02-08T00:00:00"
    wide = spark.read.format("icefloe").schema("t2m double").load(url)
    assert wide.dtypes == [("t2m", "double")]
    assert wide.filter("t2m is null").count() == 1


def test_chunks_as_rows(spark: SparkSession, repo: icefloe.Repository, url: str) -> None:
    frame = spark.read.format("icefloe").option("layout", "chunks").load(url)
    assert frame.count() == 4 * 2 * 2
    data = as_xarray(repo).t2m
    for block in blocks(table(spark, url, variables="t2m", layout="chunks").toArrow()):
        t2m = block.values("t2m")
        assert t2m.dtype == np.float32
        assert t2m.shape == block.shape
        part = data.sel({dim: block.coordinate(dim) for dim in ("time", "lat", "lon")})
        np.testing.assert_array_equal(t2m, part)


def test_sql_views_and_functions(spark: SparkSession, repo: icefloe.Repository, url: str) -> None:
    register(spark, url, "weather", variables=["t2m"])
    (found,) = spark.sql("select max(t2m) from weather where lat between 40 and 50").first()
    assert found == float(as_xarray(repo).t2m.sel(lat=slice(50, 40)).max())
    register_functions(spark)
    rows = spark.sql(f"select message from icefloe_snapshots('{url}', branch => 'main')").collect()
    assert [row.message for row in rows] == ["five more", "fifteen days", "Repository initialized"]
    kinds = spark.sql(f"select * from icefloe_snapshots('{url}') where metadata is not null")
    assert kinds.filter("metadata['author'] = 'a test'").count() == 1
    spark.catalog.dropTempView("weather")


INSPECTED = {
    "snapshots": 3, "refs": 2, "history": 3, "nodes": 7, "chunks": None, "manifests": None,
    "files": None, "transactions": None, "virtual_sources": 0, "statistics": 0, "ingested_files": 0,
}  # fmt: skip


@pytest.mark.parametrize("what", INSPECTED)
def test_tables_about_a_repository(spark: SparkSession, url: str, what: str) -> None:
    rows = spark.read.format("icefloe").option("inspect", what).load(url).collect()
    if INSPECTED[what] is not None:
        assert len(rows) == INSPECTED[what]
    else:
        assert len(rows) > 0
    if what == "chunks":
        assert len([r for r in rows if r.path == "/t2m"]) == 4 * 2 * 2
    if what == "nodes":
        t2m = next(r for r in rows if r.path == "/t2m")
        assert (t2m.shape, t2m.chunks, t2m.data_type) == ([20, 30, 40], 16, "float32")
    if what == "transactions":
        assert ("updated_chunk", "/t2m", 4) in {(r.change, r.path, r.chunks) for r in rows}


def test_changes_since_a_snapshot(spark: SparkSession, repo: icefloe.Repository, url: str) -> None:
    first = repo.lookup_tag("first")
    changed = (
        spark.read.format("icefloe")
        .option("start-snapshot-id", first)
        .option("end-snapshot-id", repo.lookup_branch("main"))
        .option("variables", "t2m")
        .load(url)
    )
    assert changed.select("time").distinct().count() == 5
    assert changed.count() == 6000
    assert table(spark, url, changed_since=first, variables="t2m").count() == 6000
    none = table(spark, url, changed_since=repo.lookup_branch("main"), variables="t2m")
    assert none.count() == 0


def test_statistics_prune_conditions(spark: SparkSession, tmp_path: Path) -> None:
    repo = icefloe.Repository.create(str(tmp_path / "r"))
    session = repo.writable_session("main")
    dataset = xr.Dataset({"v": (("y", "x"), np.arange(10_000).reshape(100, 100))})
    encoding = {"v": {"chunks": (10, 50)}}
    dataset.to_zarr(session.store, consolidated=False, zarr_format=3, encoding=encoding)
    session.commit("data")
    report = compute_statistics(spark, repo)
    assert report.chunks == 0
    assert report.plan.chunks == 20
    assert compute_statistics(spark, repo).snapshot_id is None
    few = table(spark, repo, where="v >= 9940", partition_bytes=1)
    assert few.count() == 60
    assert (
        len(
            spark.read.format("icefloe")
            .option("where", "v >= 9940")
            .option("partition-bytes", 1)
            .load(str(tmp_path / "r"))
            .rdd.glom()
            .collect()
        )
        == 2
    )
    rows = spark.read.format("icefloe").option("inspect", "statistics").load(str(tmp_path / "r"))
    assert rows.filter("path = '/v' and is_current").agg({"high": "max"}).first()[0] == 9999


def test_mistakes_are_told(spark: SparkSession, url: str) -> None:
    reader = spark.read.format("icefloe")
    with pytest.raises(AnalysisException, match="did you mean 'variables'"):
        reader.option("variabels", "t2m").load(url)
    with pytest.raises(AnalysisException, match="the repository doesn't exist"):
        spark.read.format("icefloe").load(url + "-not")
    with pytest.raises(InvalidInputError, match="in the memory"):
        table(spark, icefloe.Repository.create(icefloe.in_memory_storage()))
    logged = logging.getLogger("DataFrameQueryContextLogger")
    assert not logged.isEnabledFor(logging.ERROR)  # the exception is enough
    with pytest.raises(AnalysisException, match="inspect is one of"):
        spark.read.format("icefloe").option("inspect", "everything").load(url)
