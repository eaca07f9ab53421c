"""`icefloe.spark.sql` on a real Spark: what it reads, what it writes, and what it refuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from pyspark.errors import AnalysisException

import icefloe
from icefloe import spark as floe
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.spark.statements.queries import Statements
from tests.drawn_queries import COLUMNS, TIMES, queries
from tests.integration.test_common_mistakes import pattern
from tests.spark.plain_sql import PLAIN_SQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def dataset(days: int = 8) -> xr.Dataset:
    rng = np.random.default_rng(3)
    shape = (days, 4, 6)
    t2m = rng.integers(250, 310, shape).astype("f4")
    t2m[1, 2, 3] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m),
            "rain": (("time", "lat", "lon"), rng.integers(0, 9, shape) / 2),
        },
        coords={
            "time": pd.date_range("2024-01-01", periods=days),
            "lat": [60.0, 55.0, 50.0, 45.0],
            "lon": np.arange(6) * 10,
        },
    )


ENCODING = {name: {"chunks": (2, 2, 3)} for name in ("t2m", "rain")}


@pytest.fixture
def repo(spark: SparkSession, tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(tmp_path / "weather"))
    session = repo.writable_session("main")
    dataset().to_zarr(session.store, consolidated=False, encoding=ENCODING)
    repo.create_tag("v1", session.commit("eight days"))
    floe.register(spark, repo, "weather")
    return repo


def opened(repo: icefloe.Repository, branch: str = "main") -> xr.Dataset:
    return xr.open_zarr(repo.readonly_session(branch).store, consolidated=False, chunks=None).load()


def commits(repo: icefloe.Repository, branch: str = "main") -> list[str]:
    return [info.message for info in repo.ancestry(branch=branch)]


def one(frame: DataFrame) -> Any:
    ((value,),) = frame.collect()
    return value


def told(spark: SparkSession, query: str) -> str:
    return str(one(floe.sql(spark, f"EXPLAIN {query}")))


# --- queries


def test_a_query_reads_the_columns_and_chunks_that_it_needs(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    query = "SELECT sum(t2m) FROM weather WHERE time >= '2024-01-07' AND lat > 52"
    wanted = float(dataset().t2m.sel(time=slice("2024-01-07", None), lat=slice(60, 52)).sum())
    assert one(floe.sql(spark, query)) == wanted == one(spark.sql(query))
    plan = told(spark, query)
    assert "columns: time, lat, t2m (3 of 5)" in plan
    # Of 4 x 2 x 2 chunks of two variables, the last days and the north of one.
    assert "reads 2 of 32 chunks" in plan
    assert "== Physical Plan ==" in plan
    assert "reads 0 of 32 chunks" in told(spark, "SELECT count(*) FROM weather")
    assert "reads 32 of 32" in told(spark, "SELECT DISTINCT * FROM weather")


@pytest.mark.parametrize("text", PLAIN_SQL)
def test_what_plain_sql_refuses_works_with_ours(
    spark: SparkSession, repo: icefloe.Repository, text: str
) -> None:
    before = repo.lookup_branch("main")
    with pytest.raises(Exception, match=pattern(PLAIN_SQL[text])):
        spark.sql(text).collect()
    assert repo.lookup_branch("main") == before
    assert floe.sql(spark, text).count() == 1
    assert (repo.lookup_branch("main") != before) == text.startswith("DELETE")


def test_conditions_on_variables_leave_out_chunks_by_statistics(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    query = "SELECT count(*) FROM weather WHERE t2m > 308"
    assert "reads 16 of 32 chunks" in told(spark, query)
    floe.sql(spark, "CALL icefloe.system.compute_statistics(table => 'weather')")
    (reads,) = re.findall(r"reads (\d+) of 32 chunks", told(spark, query))
    assert int(reads) < 16
    assert one(floe.sql(spark, query)) == int((dataset().t2m > 308).sum())


def test_the_newest_snapshot_is_read_and_one_for_all_of_a_query(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    session = repo.writable_session("main")
    dataset(10).isel(time=slice(8, 10)).to_zarr(
        session.store, consolidated=False, append_dim="time"
    )
    session.commit("two more days")
    query = "SELECT count(DISTINCT time) FROM weather"
    assert one(floe.sql(spark, query)) == 10
    assert one(spark.sql(query)) == 8
    both = floe.sql(spark, "SELECT a.time FROM weather a JOIN weather b USING (time, lat, lon)")
    assert both.distinct().count() == 10


def test_versions_branches_and_metadata_tables(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    first = repo.lookup_branch("main")
    floe.sql(spark, "ALTER TABLE weather CREATE BRANCH dev")
    floe.sql(spark, "UPDATE weather.branch_dev SET rain = -1 WHERE lon = 0")
    assert commits(repo, "dev") == ["UPDATE weather", "eight days", "Repository initialized"]
    count = "SELECT count(*) FROM {} WHERE rain < 0"
    names = {
        "weather": 0, "weather.branch_dev": 32, "icefloe.weather.branch_dev": 32,
        "weather.tag_v1": 0,
        "weather VERSION AS OF 'dev'": 32, "weather FOR VERSION AS OF 'v1'": 0,
        f"weather FOR SYSTEM_VERSION AS OF '{first}' AS w": 0,
        "weather.branch_dev TIMESTAMP AS OF '2100-01-01'": 32,
        "weather FOR SYSTEM_TIME AS OF TIMESTAMP '2100-01-01 00:00:00' w": 0,
    }  # fmt: skip
    assert {name: one(floe.sql(spark, count.format(name))) for name in names} == names
    messages = floe.sql(spark, "SELECT message FROM weather.branch_dev.history ORDER BY steps_back")
    assert [row.message for row in messages.collect()] == commits(repo, "dev")
    refs = floe.sql(spark, "SELECT r.name FROM weather.refs r WHERE r.type = 'branch'")
    assert {row.name for row in refs.collect()} == {"main", "dev"}
    with pytest.raises(InvalidInputError, match="has no 'branches'"):
        floe.sql(spark, "SELECT * FROM weather.branches")
    with pytest.raises(InvalidInputError, match="followed by a literal"):
        floe.sql(spark, "SELECT * FROM weather VERSION AS OF other")


def test_names_of_with_and_of_spark_are_left_alone(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    spark.range(3).createOrReplaceTempView("numbers")
    query = "WITH weather AS (SELECT lat + 1 AS lat FROM weather WHERE lat = 45) {}"
    counted = floe.sql(spark, query.format("SELECT min(lat), count(*) FROM weather"))
    assert tuple(counted.first()) == (46.0, 48)
    assert floe.sql(spark, "SELECT * FROM numbers").count() == 3
    joined = "SELECT count(*) FROM numbers JOIN weather ON id * 10 = lon WHERE '{x}' = '{x}'"
    assert one(floe.sql(spark, joined)) == 3 * 32
    named = floe.sql(spark, "SELECT count(*) FROM weather WHERE time < :end", {"end": "2024-01-03"})
    assert one(named) == 48


def test_conditions_on_parts_of_times_leave_chunks_out(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    conditions = {
        "year(time) = 2024 AND day(time) IN (7, 8)": 4,
        "year(time) < 2024": 0,
        "date_trunc('week', time) = '2024-01-08'": 4,
        "CAST(time AS DATE) <= '2024-01-02'": 4,
        "time BETWEEN '2024-01-03' AND '2024-01-05'": 8,
        "dayofweek(time) = 1 OR month(time) = 2": 4,  # the seventh was a Sunday
    }
    for condition, chunks in conditions.items():
        query = f"SELECT count(t2m), sum(t2m) FROM weather WHERE {condition}"
        assert rows(floe.sql(spark, query)) == rows(spark.sql(query)), condition
        assert f"reads {chunks} of 32 chunks" in told(spark, query), condition
    read = "SELECT count(*) FROM weather WHERE weekday(time) = 0 AND hour(time) = 0"
    assert one(floe.sql(spark, read)) == 48
    by_table = floe.table(spark, repo, where="month(time) = 1 and day(time) > 7")
    assert by_table.count() == 24


@pytest.fixture(scope="module")
def drawn_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`weather` and `station` as arrays, and the same cells as plain DataFrames in `whole_…`."""
    repo = icefloe.Repository.create(str(tmp_path_factory.mktemp("drawn") / "repo"))
    session = repo.writable_session("main")
    rng = np.random.default_rng(4)

    def with_gaps(*shape: int) -> Any:
        return np.where(rng.random(shape) < 0.3, np.nan, rng.integers(0, 6, shape))

    dims = ("time", "lat", "lon")
    weather = xr.Dataset(
        {name: (dims, with_gaps(4, 4, 3)) for name in ("t2m", "rain")},
        coords={
            "time": np.array(TIMES, "M8[ns]"),
            "lat": np.arange(4),
            "lon": np.arange(3),
        },
    )
    station = xr.Dataset(
        {name: (("lat",), with_gaps(5)) for name in ("height", "t2m")},
        coords={"lat": np.arange(1, 6)},
    )
    chunks = {"t2m": {"chunks": (2, 2, 3)}, "rain": {"chunks": (1, 4, 3), "dtype": "f4"}}
    weather.to_zarr(session.store, group="weather", consolidated=False, encoding=chunks)
    station.to_zarr(session.store, group="station", consolidated=False, mode="a")
    session.commit("tables for drawn queries")
    floe.compute_statistics(spark, repo, group="weather")
    for name, columns in COLUMNS.items():
        whole = floe.register(spark, repo, name, group=name, columns=columns)
        spark.createDataFrame(whole.toArrow(), whole.schema).createOrReplaceTempView(
            f"whole_{name}"
        )
    yield
    for name in COLUMNS:
        floe.sql(spark, f"DROP TABLE {name}")


def rows(frame: DataFrame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


# A query on a cluster takes about a second: DuckDB tries more of them in tests/property.
@settings(max_examples=max(5, settings.default.max_examples // 4))
@given(query=queries())
def test_drawn_queries_give_what_they_give_on_whole_tables(
    spark: SparkSession, drawn_tables: None, query: str
) -> None:
    plain = re.sub(r"\b(weather|station)\b", r"whole_\1", query)
    assert rows(floe.sql(spark, query)) == rows(spark.sql(plain))


# --- statements


def test_insert_appends_and_overwrites(spark: SparkSession, repo: icefloe.Repository) -> None:
    floe.sql(
        spark,
        "INSERT INTO weather SELECT time + INTERVAL 8 DAYS, lat, lon, rain, t2m + 1 FROM weather "
        "WHERE time < '2024-01-03'",
    )
    wanted = dataset().isel(time=slice(0, 2))
    wanted = wanted.assign_coords(time=wanted.time + np.timedelta64(8, "D"))
    wanted["t2m"] = wanted.t2m + 1
    xr.testing.assert_equal(opened(repo), xr.concat([dataset(), wanted], "time"))
    assert one(floe.sql(spark, "SELECT count(DISTINCT time) FROM weather")) == 10
    assert one(spark.sql("SELECT count(DISTINCT time) FROM weather")) == 10  # the view follows
    floe.sql(
        spark,
        "INSERT OVERWRITE weather (lon, lat, time, t2m) SELECT lon, lat, time, 1 FROM weather "
        "WHERE lat = 60 AND time = '2024-01-10'",
    )
    assert (opened(repo).t2m.sel(lat=60, time="2024-01-10") == 1).all()
    assert commits(repo)[:2] == ["INSERT OVERWRITE weather", "INSERT INTO weather"]
    with pytest.raises(InvalidInputError, match="takes 5 columns in this order: time, lat, lon"):
        floe.sql(spark, "INSERT INTO weather SELECT time, t2m FROM weather")
    with pytest.raises(InvalidInputError, match="not behind its end"):
        floe.sql(spark, "INSERT INTO weather BY NAME SELECT * FROM weather WHERE lon = 0")
    assert len(commits(repo)) == 4


def test_delete_and_update_change_cells(spark: SparkSession, repo: icefloe.Repository) -> None:
    floe.sql(spark, "DELETE FROM weather AS w WHERE w.lat = 50 AND w.t2m > 280")
    wanted = dataset()
    hole = (wanted.lat == 50) & (wanted.t2m > 280)
    wanted = wanted.where(~hole)
    xr.testing.assert_equal(opened(repo), wanted)
    floe.sql(spark, "UPDATE weather SET t2m = t2m * 2, rain = lat + lon WHERE time = '2024-01-02'")
    day = wanted.time == np.datetime64("2024-01-02")
    wanted["t2m"] = wanted.t2m.where(~day, wanted.t2m * 2)
    wanted["rain"] = wanted.rain.where(~day, wanted.lat + wanted.lon).transpose(*wanted.t2m.dims)
    xr.testing.assert_equal(opened(repo), wanted)
    assert len(commits(repo)) == 4
    nothing = floe.sql(spark, "DELETE FROM weather WHERE lat = 1")
    assert nothing.first().snapshot_id is None
    with pytest.raises(InvalidInputError, match="SET changes variables"):
        floe.sql(spark, "UPDATE weather SET lat = 1")
    with pytest.raises(InvalidInputError, match="change the tip of a branch"):
        floe.sql(spark, "DELETE FROM weather.tag_v1")
    assert len(commits(repo)) == 4


def test_an_update_does_not_undo_a_commit_that_comes_while_it_is_computed(
    spark: SparkSession, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sets was computed from what was there when it began."""
    query = Statements.query

    def query_slowly(self: Statements, text: str) -> DataFrame:
        rows = query(self, text)
        if "CAST" in text:
            session = repo.writable_session("main")
            zarr.open_array(session.store, path="rain")[0, 0, 0] = 99
            session.commit("meanwhile")
        return rows

    before = float(opened(repo).rain[0, 0, 1])
    with monkeypatch.context() as context:
        context.setattr(Statements, "query", query_slowly)
        with pytest.raises(icefloe.RebaseFailedError):
            floe.sql(spark, "UPDATE weather SET rain = rain + 1 WHERE time = '2024-01-01'")
    assert opened(repo).rain[0, 0, :2].values.tolist() == [99, before]


def test_merge_sets_adds_and_clears_cells(spark: SparkSession, repo: icefloe.Repository) -> None:
    new = dataset(9).isel(time=slice(7, 9), lat=[0]).assign_coords(lat=[60.0])
    frame = new.to_dataframe().reset_index()
    frame["time"] = frame["time"].astype("datetime64[us]")
    rows = spark.createDataFrame(frame).selectExpr(
        "time::timestamp_ntz", "lat", "lon", "t2m", "rain"
    )
    rows.createOrReplaceTempView("updates")
    floe.sql(
        spark,
        """MERGE INTO weather t USING (SELECT * FROM updates) s
        ON t.time = s.time AND t.lat = s.lat AND t.lon = s.lon
        WHEN MATCHED AND s.lon >= 40 THEN DELETE
        WHEN MATCHED THEN UPDATE SET t2m = s.t2m + t.t2m
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND t.time = '2024-01-01' THEN UPDATE SET rain = 99""",
    )
    found = opened(repo)
    old = dataset()
    at = {"lat": 60.0, "time": "2024-01-08"}
    assert np.isnan(found.t2m.sel(at).sel(lon=[40, 50])).all()
    same = {"lon": slice(0, 30)}
    np.testing.assert_array_equal(
        found.t2m.sel(at).sel(same),
        old.t2m.sel(at).sel(same) + new.t2m.isel(time=0, lat=0).sel(same),
    )
    np.testing.assert_array_equal(found.rain.sel(at).sel(same), old.rain.sel(at).sel(same))
    np.testing.assert_array_equal(
        found.t2m.sel(lat=60.0, time="2024-01-09"), new.t2m.isel(time=1, lat=0)
    )
    assert np.isnan(found.t2m.sel(lat=55.0, time="2024-01-09")).all()
    assert (found.rain.sel(time="2024-01-01") == 99).all()
    xr.testing.assert_equal(found.isel(time=slice(1, 7)).t2m, old.isel(time=slice(1, 7)).t2m)
    assert commits(repo)[0] == "MERGE INTO weather"


def test_tables_are_created_declared_and_dropped(
    spark: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    url = str(tmp_path / "made" / "daily")
    create = f"""CREATE TABLE daily USING icefloe LOCATION '{url}'
        OPTIONS (dims 'time,lat', chunks '{{"time": 4}}', group '/means')
        AS SELECT time, lat, avg(t2m) AS t2m FROM weather GROUP BY time, lat"""
    with pytest.raises(
        InvalidInputError, match=r"SQL may not open .* allowed are URLs below: none"
    ):
        floe.sql(spark, create)
    inside = {"locations": [str(tmp_path / "made")]}
    floe.sql(spark, create, **inside)
    wanted = dataset().t2m.mean("lon")
    made = icefloe.Repository.open(url)
    found = xr.open_zarr(made.readonly_session("main").store, group="means", consolidated=False)
    np.testing.assert_allclose(found.t2m.sortby("lat"), wanted.sortby("lat"), rtol=1e-6)
    with pytest.raises(AlreadyExistsError, match="has arrays already"):
        floe.sql(spark, create, **inside)
    by_url = f"SELECT count(*) FROM icefloe.`{url}#/means` WHERE lat > 50"
    assert one(floe.sql(spark, by_url, **inside)) == 16
    with pytest.raises(InvalidInputError, match="may not open"):
        floe.sql(spark, f"SELECT * FROM `{url}/../../weather`", **inside)
    floe.sql(
        spark,
        f"""CREATE TABLE declared (day INT, v DOUBLE COMMENT 'a value') USING icefloe
        OPTIONS (path '{tmp_path / "made" / "other"}', dims 'day') TBLPROPERTIES ('title' = 'T')""",
        **inside,
    )
    assert floe.sql(spark, "SELECT v FROM declared WHERE day > 1").count() == 0
    floe.sql(spark, "INSERT INTO declared VALUES (1, 2.5), (2, NULL)")
    assert rows(floe.sql(spark, "SELECT * FROM declared")) == ["(1, 2.5)", "(2, None)"]
    other = icefloe.Repository.open(str(tmp_path / "made" / "other"))
    assert commits(other) == [
        "INSERT INTO declared",
        "CREATE TABLE declared",
        "Repository initialized",
    ]
    assert opened(other).v.attrs["long_name"] == "a value"
    assert opened(other).attrs["title"] == "T"
    floe.sql(spark, "DROP TABLE declared")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        floe.sql(spark, "SELECT * FROM declared")


def test_alter_table_sets_attributes_and_renames(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    floe.sql(spark, "ALTER TABLE weather SET TBLPROPERTIES ('title' = 'Weather', 'note' = 'x')")
    floe.sql(spark, "ALTER TABLE weather UNSET TBLPROPERTIES ('note')")
    floe.sql(spark, "ALTER TABLE weather ALTER COLUMN t2m SET TBLPROPERTIES ('units' = 'K')")
    floe.sql(spark, "ALTER TABLE weather ALTER COLUMN rain COMMENT 'rain of a day'")
    floe.sql(spark, "ALTER TABLE weather RENAME COLUMN rain TO precipitation")
    found = opened(repo)
    assert found.attrs == {"title": "Weather"}
    assert found.t2m.attrs == {"units": "K"}
    assert found.precipitation.attrs == {"long_name": "rain of a day"}
    assert commits(repo)[0] == "ALTER TABLE weather RENAME COLUMN rain TO precipitation"
    assert len(commits(repo)) == 7
    floe.sql(spark, "ALTER TABLE weather RENAME TO wetter")
    assert one(floe.sql(spark, "SELECT max(precipitation) FROM wetter")) == float(
        dataset().rain.max()
    )
    assert len(commits(repo)) == 7
    with pytest.raises(InvalidInputError, match="RENAME COLUMN takes a variable"):
        floe.sql(spark, "ALTER TABLE wetter RENAME COLUMN lat TO latitude")
    floe.sql(spark, "DROP TABLE wetter")


def test_branches_are_created_moved_and_dropped(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    first = repo.lookup_tag("v1")
    floe.sql(spark, "DELETE FROM weather WHERE lon = 0")
    floe.sql(spark, "ALTER TABLE weather CREATE TAG v2")
    floe.sql(spark, "ALTER TABLE weather CREATE BRANCH IF NOT EXISTS old AS OF VERSION 'v1'")
    assert repo.lookup_branch("old") == first
    assert repo.lookup_tag("v2") == repo.lookup_branch("main")
    floe.sql(spark, "ALTER TABLE weather CREATE OR REPLACE BRANCH old")
    assert repo.lookup_branch("old") == repo.lookup_branch("main")
    floe.sql(spark, "ALTER TABLE weather DROP BRANCH old")
    floe.sql(spark, "ALTER TABLE weather DROP BRANCH IF EXISTS old")
    assert repo.list_branches() == {"main"}


def test_procedures_call_the_engine(spark: SparkSession, repo: icefloe.Repository) -> None:
    first = repo.lookup_branch("main")

    def call(text: str) -> list[Any]:
        return floe.sql(spark, f"CALL icefloe.system.{text}").collect()

    floe.sql(spark, "DELETE FROM weather WHERE lon = 0")
    second = repo.lookup_branch("main")
    (moved,) = call(f"rollback_to_snapshot('weather', '{first}')")
    assert tuple(moved) == (second, first)
    assert one(floe.sql(spark, "SELECT count(t2m) FROM weather WHERE lon = 0")) == 32
    call(f"set_current_snapshot(table => 'weather', snapshot_id => '{second}')")
    assert repo.lookup_branch("main") == second
    assert [row.snapshot_id for row in call("ancestors_of('weather')")][:2] == [second, first]
    floe.sql(spark, "ALTER TABLE weather CREATE BRANCH dev")
    floe.sql(spark, "DELETE FROM weather.branch_dev WHERE lon = 10")
    call("fast_forward('weather', 'main', 'dev')")
    assert repo.lookup_branch("main") == repo.lookup_branch("dev")
    assert call("rewrite_manifests('weather')")[0].snapshot_id == repo.lookup_branch("main")
    call("rewrite_data_files(table => 'weather')")
    assert call("verify('weather', deep => true)") == []
    expired = call(
        "expire_snapshots('weather', retain_last => 1, older_than => TIMESTAMP '2100-01-01')"
    )
    assert second in {row.snapshot_id for row in expired}
    tip = repo.lookup_branch("main")
    for text in (
        f"set_current_snapshot('weather.tag_v1', '{first}')",
        "materialize('weather.tag_v1')",
    ):
        with pytest.raises(InvalidInputError, match="change the tip of a branch"):
            call(text)
    assert repo.lookup_branch("main") == tip
    assert call("ancestors_of('weather.tag_v1')")[0].snapshot_id == first
    (removed,) = call("remove_orphan_files('weather', dry_run => true)")
    assert removed.bytes_deleted == 0  # nothing is that old
    with pytest.raises(InvalidInputError, match="there is no procedure 'rm'"):
        call("rm('weather')")
    with pytest.raises(InvalidInputError, match="expected a literal"):
        call("verify(table => version())")
    with pytest.raises(InvalidInputError, match=r"takes \(table, \[older_than\]"):
        call("expire_snapshots('weather', keep => 3)")


def test_plain_spark_says_what_to_use_instead_without_a_traceback(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    spark.sql("CREATE TABLE lost (a INT) USING icefloe")
    try:
        with pytest.raises(AnalysisException, match=r"use icefloe\.spark\.sql for it") as error:
            spark.sql("SELECT * FROM lost").collect()
        assert "Traceback" not in str(error.value)
    finally:
        spark.sql("DROP TABLE lost")


def test_what_cannot_be_read_is_refused_in_a_sentence(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the statement"):
        floe.sql(spark, "SELECT FROM weather WHERE (")
    with pytest.raises(InvalidInputError, match="expected one statement, found 2"):
        floe.sql(spark, "SELECT 1; SELECT 2")
    with pytest.raises(InvalidInputError, match="no registered table"):
        floe.sql(spark, "SELECT * FROM other VERSION AS OF 'x'")
    with pytest.raises(InvalidInputError, match="is the name of a table"):
        floe.sql(spark, "CALL icefloe.system.verify(3)")
    deep = "SELECT " + "(" * 5000 + "1" + ")" * 5000
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        floe.sql(spark, deep)
