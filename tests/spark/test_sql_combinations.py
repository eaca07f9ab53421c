"""SQL where several things meet: packed values, virtual chunks, branches, texts, nulls, orders."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe import spark as floe
from icefloe.errors import InvalidInputError
from icefloe.virtual import reference_files
from tests.builders import repository_beside
from tests.virtual.files import month_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:.*Numcodecs codecs.*"),
]
PACKED = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 273.15, "_FillValue": -999}


def rows(spark: SparkSession, text: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in floe.sql(spark, text, **options).collect()]


def opened(repo: icefloe.Repository, branch: str = "main") -> xr.Dataset:
    store = repo.readonly_session(branch).store
    return xr.open_zarr(store, consolidated=False, chunks=None).load()


def test_packed_values_and_texts_on_a_branch_of_icechunk_2(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = icefloe.Repository.create(str(tmp_path / "obs"), generation="icechunk", spec_version=2)
    session = repo.writable_session("main")
    values = 280 + np.arange(12.0).reshape(4, 3)
    dataset = xr.Dataset(
        {
            "t": (("time", "station"), values),
            "n": (("time", "station"), np.arange(12, dtype="i4").reshape(4, 3)),
        },
        coords={
            "time": pd.date_range("2024-01-31", periods=4, freq="12h"),
            "station": np.array(["a", "b c", "it's"], object),
        },
    )
    encoding = {"t": {**PACKED, "chunks": (2, 2)}, "n": {"chunks": (2, 2)}}
    dataset.to_zarr(session.store, consolidated=False, encoding=encoding)
    session.commit("observations")
    floe.register(spark, repo, "obs")
    floe.sql(spark, "ALTER TABLE obs CREATE BRANCH dev")
    floe.sql(spark, "UPDATE obs.branch_dev SET t = NULL WHERE station = 'b c' AND hour(time) = 0")
    wanted = np.where(
        np.array([True, False])[[0, 1, 0, 1]][:, None] & (np.arange(3) == 1), np.nan, values
    )
    np.testing.assert_allclose(opened(repo, "dev").t, wanted, atol=0.051)
    # An empty selection changes nothing, and says so.
    for text in (
        "UPDATE obs.branch_dev SET t = 1 WHERE station = 'nowhere'",
        "INSERT OVERWRITE obs.branch_dev SELECT * FROM obs WHERE false",
    ):
        assert rows(spark, text) == [(None, 0)]
    with pytest.raises(InvalidInputError, match=r"n of obs cannot be.*UPDATE obs SET t = NULL"):
        floe.sql(spark, "DELETE FROM obs.branch_dev WHERE station = 'a'")
    with pytest.raises(InvalidInputError, match="'n' has 4 nulls"):
        floe.sql(spark, "UPDATE obs.branch_dev SET n = NULL WHERE station = 'a'")
    # Days are added for one station: those of the others are missing.
    floe.sql(
        spark,
        """MERGE INTO obs.branch_dev d USING (
            SELECT time + INTERVAL 2 DAYS AS time, station, n, t + 1 AS t FROM obs
            WHERE station = 'it\\'s'
        ) s ON d.time = s.time AND d.station = s.station WHEN NOT MATCHED THEN INSERT *""",
    )
    found = opened(repo, "dev").t
    assert found.shape == (8, 3)
    np.testing.assert_allclose(found[:4], wanted, atol=0.051)
    np.testing.assert_allclose(found[4:, 2], values[:, 2] + 1, atol=0.11)
    assert found[4:, :2].isnull().all()
    assert rows(spark, "SELECT count(*), count(t) FROM obs.branch_dev") == [(24, 14)]
    assert rows(spark, "SELECT count(*), count(t) FROM obs") == [(12, 12)]
    for new in ("`a/b`", "T"):
        with pytest.raises(InvalidInputError, match="a name without '/' that no other column has"):
            floe.sql(spark, f"ALTER TABLE obs.branch_dev RENAME COLUMN n TO {new}")
    floe.sql(spark, "DROP TABLE obs")


def test_virtual_arrays_are_changed_cell_by_cell(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    start = "days since 2026-01-01"
    files = [
        str(month_file(data / f"{n}.nc", n, days=2, first_day=20 * n, start=start)) for n in (1, 2)
    ]
    repo = repository_beside(data, tmp_path / "repo")
    session = repo.writable_session("main")
    reference_files(session, files)
    session.commit("references")
    before = opened(repo).t2m
    floe.register(spark, repo, "era")
    floe.sql(spark, "ALTER TABLE era CREATE BRANCH fix")
    floe.sql(spark, "UPDATE era.branch_fix SET t2m = 300 WHERE lat = 60 AND month(time) = 1")
    floe.sql(spark, "DELETE FROM era.branch_fix WHERE time = (SELECT max(time) FROM era)")
    wanted = before.where(~((before.lat == 60) & (before.time.dt.month == 1)), 300)
    wanted = wanted.where(wanted.time < before.time.max())
    xr.testing.assert_allclose(opened(repo, "fix").t2m, wanted)
    floe.sql(
        spark,
        """MERGE INTO era.branch_fix t USING era s
        ON t.time = s.time AND t.lat = s.lat AND t.lon = s.lon
        WHEN MATCHED AND t.t2m IS NULL AND s.t2m IS NOT NULL THEN UPDATE SET *""",
    )
    xr.testing.assert_allclose(opened(repo, "fix").t2m, wanted.fillna(before))
    xr.testing.assert_equal(opened(repo).t2m, before)
    floe.sql(spark, "DROP TABLE era")


def test_procedures_on_virtual_and_unsigned_values_of_icechunk_2(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    start = "days since 2026-01-01"
    file = month_file(data / "1.nc", 1, days=4, start=start, chunks=(2, 3, 5))
    repo = repository_beside(data, tmp_path / "repo", generation="icechunk", spec_version=2)
    session = repo.writable_session("main")
    reference_files(session, [str(file)])
    root = zarr.open_group(session.store)
    shape = root["t2m"].shape
    packed: dict[str, Any] = {
        "_Unsigned": "true",
        "scale_factor": 0.5,
        "add_offset": 10.0,
        "_FillValue": -1,
    }
    root.create_array(
        "u", shape=shape, chunks=(2, 3, 5), dtype="i1", dimension_names=("time", "lat", "lon"),
        attributes=packed, fill_value=-1,
    )[:] = np.arange(100, 160, dtype="u1").view("i1").reshape(shape)  # fmt: skip
    first = session.commit("references")
    repo.create_tag("v1", first)
    before = opened(repo)
    floe.register(spark, repo, "era")

    def call(text: str, **options: Any) -> list[Any]:
        return floe.sql(spark, f"CALL icefloe.system.{text}", **options).collect()

    (computed,) = call("compute_statistics('era')")
    assert (computed.snapshot_id, computed.chunks) == (repo.lookup_branch("main"), 4)
    # Values beyond 127 are negative where they are stored.
    query = "SELECT count(*) FROM era WHERE u > 75"
    assert rows(spark, query) == [(int((before.u > 75).sum()),)]
    plan = floe.sql(spark, f"EXPLAIN {query}").first().plan
    assert re.search(r"reads 1 of \d+ chunks", plan)
    assert [(row.problem, row.chunks) for row in call("check_virtual_sources('era')")] == [
        (None, 2)
    ]

    floe.sql(spark, "ALTER TABLE era CREATE BRANCH dev")
    floe.sql(spark, "UPDATE era.branch_dev SET u = 20 WHERE lat = 60")
    changed = repo.lookup_branch("dev")
    (picked,) = call(f"cherrypick_snapshot('era', '{changed}')")
    assert tuple(picked) == (changed, repo.lookup_branch("main"))
    xr.testing.assert_equal(opened(repo).u, before.u.where(before.lat != 60, 20))
    at = {info.id: info.written_at for info in repo.ancestry(branch="main")}[computed.snapshot_id]
    (moved,) = call(f"rollback_to_timestamp('era', TIMESTAMP '{at:%Y-%m-%d %H:%M:%S.%f}')")
    assert tuple(moved) == (picked.current_snapshot_id, computed.snapshot_id)
    call("set_current_snapshot('era', ref => 'v1')")
    assert repo.lookup_branch("main") == first

    assert call("materialize('era', dry_run => true)")[0].snapshot_id is None
    (copied,) = call("materialize('era', arrays => '/t2m')")
    assert (copied.chunks, copied.snapshot_id) == (2, repo.lookup_branch("main"))
    assert call("check_virtual_sources('era')") == []
    assert call("verify('era', deep => true)") == []
    call("rewrite_manifests('era')")
    place = str(tmp_path / "moved")
    arguments = f"location => '{place}', generation => 'store'"
    with pytest.raises(InvalidInputError, match="SQL may not open"):
        call(f"migrate('era', {arguments})")
    (migrated,) = call(f"migrate('era', {arguments})", locations=[str(tmp_path)])
    assert (migrated.generation, migrated.branches, migrated.problems) == ("store", 2, [])
    xr.testing.assert_equal(opened(icefloe.Repository.open(place)), before)
    floe.sql(spark, "DROP TABLE era")


def test_columns_keep_the_order_of_create_table(spark: SparkSession, tmp_path: Path) -> None:
    inside = {"locations": [str(tmp_path)]}
    table = f"USING icefloe LOCATION '{tmp_path / 'made'}' OPTIONS (dims 'name', group '{{}}')"
    floe.sql(
        spark, f"CREATE TABLE first (z INT, name STRING, a INT) {table.format('/x')}", **inside
    )
    floe.sql(spark, "INSERT INTO first VALUES (1, 'a', 10)")
    floe.sql(spark, "INSERT INTO first VALUES (2, 'b', 20)")  # not by the order of arrays
    assert rows(spark, "SELECT * FROM first ORDER BY name") == [(1, "a", 10), (2, "b", 20)]
    assert spark.table("first").columns == ["z", "name", "a"]
    query = "AS SELECT name, z AS t, a AS k FROM first"
    floe.sql(spark, f"CREATE TABLE second {table.format('/y')} {query}", **inside)
    floe.sql(spark, "INSERT INTO second VALUES ('c', 3, 30)")
    floe.sql(spark, "INSERT INTO second SELECT 'd', t + 1, k + 10 FROM second WHERE name = 'c'")
    assert rows(spark, "SELECT * FROM second WHERE name > 'b' ORDER BY 1") == [
        ("c", 3, 30), ("d", 4, 40),
    ]  # fmt: skip
    floe.sql(spark, "ALTER TABLE second RENAME COLUMN t TO zz")
    assert floe.sql(spark, "SELECT * FROM second").columns == ["name", "zz", "k"]
    for name in ("first", "second"):
        floe.sql(spark, f"DROP TABLE {name}")


@contextmanager
def time_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("zoned", [False, True])
def test_hours_that_a_time_zone_does_not_have_are_written(
    spark: SparkSession, tmp_path: Path, zoned: bool
) -> None:
    """Stored times are UTC: no hour is left out in March, and none comes twice in November."""
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    session = repo.writable_session("main")
    hours = pd.date_range("2024-03-10", periods=12, freq="h").append(
        pd.date_range("2024-11-03", periods=12, freq="h")
    )
    values = np.arange(24.0)
    xr.Dataset({"v": ("time", values)}, {"time": hours}).to_zarr(session.store, consolidated=False)
    session.commit("two days on which clocks change")
    with time_zone(spark, "America/New_York"):
        floe.register(spark, repo, "clocks", zoned_times=zoned)
        floe.sql(spark, "UPDATE clocks SET v = v + 100")
        np.testing.assert_array_equal(opened(repo).v, values + 100)
        floe.sql(
            spark,
            """MERGE INTO clocks t USING (SELECT time, v - 100 AS v FROM clocks) s
            ON t.time = s.time WHEN MATCHED THEN UPDATE SET *""",
        )
        np.testing.assert_array_equal(opened(repo).v, values)
        # A day of the session's zone may have 25 hours, half of one is always 12.
        later = "time + INTERVAL 12 HOURS + INTERVAL 12 HOURS"
        floe.sql(spark, f"INSERT INTO clocks SELECT {later}, v FROM clocks WHERE v >= 12")
        np.testing.assert_array_equal(opened(repo).v, [*values, *values[12:]])
        np.testing.assert_array_equal(opened(repo).time[24:], hours[12:] + np.timedelta64(24, "h"))
        floe.sql(spark, "DELETE FROM clocks WHERE v >= 3")
        np.testing.assert_array_equal(opened(repo).v.count(), 3)
        floe.sql(spark, "DROP TABLE clocks")


@pytest.fixture
def weather(spark: SparkSession, tmp_path: Path) -> Iterator[icefloe.Repository]:
    """Three days at two places, as `weather`, with the tag v1."""
    repo = icefloe.Repository.create(str(tmp_path / "weather"))
    session = repo.writable_session("main")
    shape = (3, 2)
    xr.Dataset(
        {name: (("time", "lat"), np.arange(6.0).reshape(shape)) for name in ("t2m", "rain")},
        coords={
            "time": pd.date_range("2024-01-01", periods=3),
            "lat": [60.0, 50.0],
            "zone": ("lat", np.array(["n", "s"], object)),
        },
    ).to_zarr(session.store, consolidated=False)
    repo.create_tag("v1", session.commit("three days"))
    floe.register(spark, repo, "weather")
    yield repo
    floe.sql(spark, "DROP TABLE IF EXISTS weather")


def test_merge_takes_versions_columns_and_names_of_with(
    spark: SparkSession, weather: icefloe.Repository
) -> None:
    before = opened(weather).t2m
    floe.sql(spark, "UPDATE weather SET t2m = t2m + 10, rain = -1")
    floe.sql(
        spark,
        """WITH cold AS (SELECT 60.0D AS place, 1 AS more)
        MERGE INTO weather t USING (SELECT place, more FROM cold) AS s(lat, k) ON t.lat = s.lat
        WHEN MATCHED AND t.time > :since THEN UPDATE SET t2m = t2m + k""",
        {"since": "2024-01-01"},
    )
    wanted = before + 10
    wanted[1:, 0] += 1
    xr.testing.assert_equal(opened(weather).t2m, wanted)
    floe.sql(
        spark,
        """MERGE INTO weather t USING weather VERSION AS OF 'v1' s
        ON t.time = s.time AND t.lat = s.lat WHEN MATCHED THEN UPDATE SET t2m = s.t2m""",
    )
    xr.testing.assert_equal(opened(weather).t2m, before)
    assert (opened(weather).rain == -1).all()
    floe.sql(
        spark,
        "WITH c AS (SELECT 50 AS lat) UPDATE weather SET rain = 7 WHERE lat IN (SELECT * FROM c)",
    )
    floe.sql(
        spark, "WITH c AS (SELECT 60 AS lat) DELETE FROM weather WHERE lat IN (SELECT * FROM c)"
    )
    np.testing.assert_array_equal(opened(weather).rain, [[np.nan, 7]] * 3)
    floe.sql(
        spark,
        """WITH new AS (SELECT time + INTERVAL 3 DAYS AS time, lat, 5 AS t2m FROM weather)
        INSERT INTO weather (time, lat, t2m) SELECT time, lat, t2m FROM new""",
    )
    assert opened(weather).t2m.shape == (6, 2)
    assert (opened(weather).t2m[3:] == 5).all()


WRONG = {
    "MERGE INTO weather t USING weather s ON t.lat = s.lat WHEN MATCHED THEN UPDATE SET t2n = 1": (
        r"UPDATE sets variables \(rain, t2m\), found 't2n'"
    ),
    "MERGE INTO weather t USING weather s ON t.lat = s.lat WHEN MATCHED THEN UPDATE SET zone = 1": (
        "found 'zone'"
    ),
    "MERGE INTO weather t USING weather s ON t.lat = s.lat AND t.time > s.time "
    "WHEN NOT MATCHED THEN INSERT (time, lat, t2n) VALUES (s.time, s.lat, 1)": "found 't2n'",
    "MERGE INTO weather t USING weather s ON t.lat = ? WHEN MATCHED THEN UPDATE SET t2m = 1": (
        "parameters of MERGE have names"
    ),
    "ALTER TABLE weather ADD COLUMN x INT": "ALTER TABLE takes SET and UNSET TBLPROPERTIES",
    "ALTER TABLE weather RENAME TO `a b`": "the name of a table consists of letters",
    "CREATE TABLE `a b` (x INT) USING icefloe LOCATION '/x'": "the name of a table consists of",
    "CREATE TABLE a (x INT, y NOTHING) USING icefloe LOCATION '{0}' OPTIONS (dims 'x')": "NOTHING",
    "CREATE TABLE a (x INT, X INT) USING icefloe LOCATION '{0}' OPTIONS (dims 'x')": "'x' twice",
    "CREATE TABLE a (x INT, y INT) USING icefloe LOCATION '{0}' OPTIONS (dims 'z')": (
        "the dimension 'z' is none of the columns x, y"
    ),
    "CREATE TABLE a (x INT) USING icefloe LOCATION '{0}' OPTIONS (dims 'x') AS SELECT 1 AS x": (
        "takes columns and types from the query"
    ),
    "TRUNCATE TABLE weather": "DELETE FROM weather makes all cells missing",
    "VACUUM weather RETAIN 168 HOURS": r"CALL icefloe\.system\.expire_snapshots\('weather'\)",
    "OPTIMIZE weather": r"CALL icefloe\.system\.rewrite_data_files\('weather'\)",
    "RESTORE TABLE weather TO VERSION AS OF 3": "set_current_snapshot",
    "ANALYZE TABLE weather COMPUTE STATISTICS": "compute_statistics",
    "DESCRIBE HISTORY weather": r"SELECT \* FROM weather\.snapshots",
    "CALL icefloe.system.verify('weather', 'yes')": "deep of verify is true or false, found 'yes'",
    "CALL icefloe.system.verify('weather', true, 3)": "found 3 arguments",
    "CALL icefloe.system.verify('weather', table => 'weather')": "'table' is given twice",
    "CALL icefloe.system.expire_snapshots('weather', retain_last => '3')": "is a whole number",
    "CALL icefloe.system.rollback_to_snapshot('weather', 3)": "snapshot_id of rollback_to_snapsho",
    "SELECT * FROM weather TIMESTAMP AS OF 1700000000000": "expected a time such as",
    "SELECT t2m FROM weather WHERE when > 3": "put names that are words of SQL in backquotes",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_are_told_in_a_sentence_and_change_nothing(
    spark: SparkSession, weather: icefloe.Repository, tmp_path: Path, text: str
) -> None:
    before = weather.lookup_branch("main")
    with pytest.raises(Exception, match=WRONG[text]) as error:
        floe.sql(spark, text.format(tmp_path / "new"), locations=[str(tmp_path)]).collect()
    assert "Traceback" not in str(error.value)
    assert weather.lookup_branch("main") == before
    assert not (tmp_path / "new").exists()
    assert rows(spark, "SELECT count(*) FROM weather") == [(6,)]


@pytest.mark.parametrize("how", [{"decode": False}, {"layout": "chunks"}])
def test_tables_that_show_no_decoded_cells_are_not_written_to(
    spark: SparkSession, weather: icefloe.Repository, how: dict[str, Any]
) -> None:
    before = weather.lookup_branch("main")
    floe.register(spark, weather, "raw", **how)
    for text in (
        "UPDATE raw SET t2m = 1",
        "DELETE FROM raw",
        "INSERT INTO raw TABLE raw",
        "MERGE INTO raw t USING weather s ON t.lat = s.lat WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(InvalidInputError, match="can only be read"):
            floe.sql(spark, text)
    assert weather.lookup_branch("main") == before
    floe.sql(spark, "DROP TABLE raw")


def test_names_in_databases_of_spark_are_not_ours(
    spark: SparkSession, weather: icefloe.Repository
) -> None:
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        floe.sql(spark, "DROP TABLE default.weather")
    assert rows(spark, "SELECT count(*) FROM weather") == [(6,)]


def test_a_table_alone_is_a_query_of_the_newest_snapshot(
    spark: SparkSession, weather: icefloe.Repository
) -> None:
    session = weather.writable_session("main")
    zarr.open_array(session.store, path="t2m")[0, 0] = 99
    session.commit("from elsewhere")
    assert 99 in {row.t2m for row in floe.sql(spark, "TABLE weather").collect()}
    assert "reads 2 of 2 chunks" in floe.sql(spark, "EXPLAIN TABLE weather").first().plan


def test_create_or_replace_leaves_nothing_of_the_old_table(
    spark: SparkSession, weather: icefloe.Repository
) -> None:
    session = weather.writable_session("main")
    zarr.open_group(session.store).create_group("inside").create_array("a", shape=1, dtype="i4")
    session.commit("a group in the group")
    url = weather.storage.location
    floe.sql(
        spark,
        f"""CREATE OR REPLACE TABLE weather USING icefloe LOCATION '{url}' OPTIONS (dims 'lat')
        AS SELECT lat, max(t2m) AS warmest FROM weather GROUP BY lat""",
        locations=[url],
    )
    assert rows(spark, "SELECT * FROM weather ORDER BY lat") == [(50.0, 5.0), (60.0, 4.0)]
    assert set(opened(weather).variables) == {"lat", "warmest"}
    store = weather.readonly_session("main").store
    assert "a" in zarr.open_group(store, path="inside", mode="r")
    assert rows(spark, "SELECT count(rain) FROM weather.tag_v1") == [(6,)]
    newest = next(iter(weather.ancestry(branch="main")))
    assert newest.message == "CREATE TABLE weather"
