"""Tables of arrays against xarray, without Spark: columns, decoding, selection, conditions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.tables.decoding import Reading
from icefloe.tables.schema import read_table_schema
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan
from tests.builders import read_dataset


def stored(dataset: xr.Dataset, **arguments: object) -> icefloe.Session:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    dataset.to_zarr(session.store, consolidated=False, zarr_format=3, **arguments)  # type: ignore[call-overload]
    session.commit("data")
    return repo.readonly_session("main")


def frame(session: icefloe.Session, **request: Any) -> pd.DataFrame:
    scan = Scan(session, ScanRequest(**request))
    batches = [batch for boxes in scan.splits() for batch in scan.read(boxes)]
    return pa.Table.from_batches(batches, schema=scan.schema).to_pandas()


def weather() -> xr.Dataset:
    rng = np.random.default_rng(1)
    t2m = rng.normal(280, 10, (10, 4, 6)).astype("f4")
    t2m[2, 1, 3] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K"}),
            "rain": (("time", "lat", "lon"), rng.integers(0, 90, (10, 4, 6)).astype("f8") / 10),
            "height": (("lat", "lon"), rng.integers(0, 3000, (4, 6)).astype("i4")),
            "co2": (("time",), np.arange(10.0) + 400),
        },
        coords={
            "time": pd.date_range("2020-01-30", periods=10, freq="12h"),
            "lat": np.array([60.0, 50.5, 40.25, 30.0], dtype="f4"),
            "lon": np.arange(6) * 1.5,
        },
    )


ENCODING = {
    "t2m": {"chunks": (3, 2, 4)},
    "rain": {"dtype": "i2", "scale_factor": 0.1, "add_offset": 1.0, "_FillValue": -999},
    "time": {"units": "hours since 2020-01-01", "dtype": "i4", "chunks": (4,)},
}


@pytest.fixture(scope="module")
def session() -> icefloe.Session:
    return stored(weather(), encoding=ENCODING)


def expected(session: icefloe.Session, names: list[str]) -> pd.DataFrame:
    dataset = read_dataset(session, chunks=None)[names]
    return dataset.to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()


def same(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    order = ["time", "lat", "lon"]
    ours = ours.sort_values(order).reset_index(drop=True)
    theirs = theirs.sort_values(order).reset_index(drop=True)
    assert set(ours.columns) == set(theirs.columns)
    for name in theirs.columns:
        if theirs[name].dtype.kind == "M":
            assert (ours[name].to_numpy("M8[us]") == theirs[name].to_numpy("M8[us]")).all()
        else:
            np.testing.assert_array_equal(ours[name].to_numpy(), theirs[name].to_numpy())


def test_all_cells_are_as_xarray_gives_them(session: icefloe.Session) -> None:
    names = ["t2m", "rain"]
    same(frame(session, variables=("t2m", "rain")), expected(session, names))


def test_variables_with_fewer_dimensions_are_repeated(session: icefloe.Session) -> None:
    names = ("t2m", "height", "co2")
    same(frame(session, variables=names), expected(session, list(names)))


def test_types_are_those_of_the_data(session: icefloe.Session) -> None:
    layout = read_table_schema(session, variables=["t2m", "rain", "height"])
    kinds = {field.name: field.type for field in layout.schema()}
    assert kinds == {
        "time": pa.timestamp("us"),
        "lat": pa.float32(),
        "lon": pa.float64(),
        "t2m": pa.float32(),
        "rain": pa.float64(),
        "height": pa.int32(),
    }


def test_several_tables_in_one_group_must_be_told_apart(session: icefloe.Session) -> None:
    with pytest.raises(InvalidInputError, match=r"several tables.*\(time, lat, lon\): .*t2m"):
        read_table_schema(session)
    assert [v.name for v in read_table_schema(session, dims=["lat", "lon"]).values] == ["height"]
    named = read_table_schema(session, dims=["lon", "time", "lat"])
    assert named.dims == ("lon", "time", "lat")
    assert named.shape == (6, 10, 4)


SELECTIONS = [
    {"time": slice("2020-02", None)},
    {"time": "2020-01-31"},
    {"time": slice("2020-01-31T12:00", "2020-02-02")},
    {"lat": slice(55, 35)},
    {"time": slice("2020-01-31", "2020-01")},
    {"lat": 50.5, "lon": [0.0, 4.5]},
    {"lon": slice(1.0, 4.6), "time": slice("2020-02-01", "2020-02-01")},
]


@pytest.mark.parametrize("sel", SELECTIONS, ids=str)
def test_sel_means_what_it_means_in_xarray(session: icefloe.Session, sel: dict[str, Any]) -> None:
    dataset = read_dataset(session, chunks=None)[["t2m"]].sel(sel)
    lifted = dataset.expand_dims([d for d in ("time", "lat", "lon") if d not in dataset.dims])
    theirs = lifted.to_dataframe().reset_index()
    same(frame(session, variables=("t2m",), sel=sel), theirs)


@pytest.mark.parametrize(
    "isel", [{"time": -1}, {"time": slice(1, 8, 3), "lat": [0, 2]}, {"lon": {"stop": 2}}], ids=str
)
def test_isel_means_what_it_means_in_xarray(session: icefloe.Session, isel: dict[str, Any]) -> None:
    plain = {k: slice(v["stop"]) if isinstance(v, dict) else v for k, v in isel.items()}
    dataset = read_dataset(session, chunks=None)[["t2m"]].isel(plain)
    lifted = dataset.expand_dims([d for d in ("time", "lat", "lon") if d not in dataset.dims])
    same(frame(session, variables=("t2m",), isel=isel), lifted.to_dataframe().reset_index())


CONDITIONS = {
    "t2m > 285": lambda f: f.t2m > 285,
    "t2m IS NULL": lambda f: f.t2m.isna(),
    "not (t2m between 270 and 290)": lambda f: (f.t2m < 270) | (f.t2m > 290),
    "time >= '2020-02-01' and lat in (50.5, 30) and rain < 5": lambda f: (
        (f.time >= "2020-02-01") & f.lat.isin([50.5, 30]) & (f.rain < 5)
    ),
    "lat > 50 or lon = 1.5": lambda f: (f.lat > 50) | (f.lon == 1.5),
    "(time < timestamp '2020-01-31 12:00:00' or time = '2020-02-02') and NOT lon <> 3": lambda f: (
        ((f.time < "2020-01-31 12:00") | (f.time == "2020-02-02")) & (f.lon == 3)
    ),
    "month(time) = 1 and hour(TIME) >= 12": lambda f: (
        (f.time.dt.month == 1) & (f.time.dt.hour > 11)
    ),
    "dayofyear(time) between 31 and 32 or t2m > 290": lambda f: (
        f.time.dt.day_of_year.isin([31, 32]) | (f.t2m > 290)
    ),
    "not dayofweek(time) in (1, 7) and 5 = weekofyear(time)": lambda f: (
        (f.time.dt.day_of_week < 5) & (f.time.dt.isocalendar().week == 5)
    ),
    "year(time) = 2020 and quarter(time) = 1 and day(time) <> 1 and second(time) = 0": lambda f: (
        f.time.dt.day != 1
    ),
    "310 < T2M or `rain` not in (1, 2.5)": lambda f: (f.t2m > 310) | ~f.rain.isin([1, 2.5]),
}


@pytest.mark.parametrize("where", CONDITIONS)
def test_where_leaves_the_rows_that_pandas_leaves(session: icefloe.Session, where: str) -> None:
    whole = frame(session, variables=("t2m", "rain"))
    wanted = whole[CONDITIONS[where](whole)]
    same(frame(session, variables=("t2m", "rain"), where=where), wanted)
    few = frame(session, variables=("t2m", "rain"), where=where, columns=("lon", "time", "lat"))
    same(few, wanted[["lon", "time", "lat"]])


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("t2m + 1 > 3", "cannot read"),
        ("t2m > rain", "cannot read"),
        ("wind > 3", "names 'wind'"),
        ("t2m >", "the end"),
        ("t2m > 1 garbage", "cannot read"),
        ("time > 'yesterday'", "ISO 8601"),
        ("lat = 'x'", "cannot be compared"),
        ("month(lat) = 1", "'lat' is of float"),
        ("month(time) = 1.5", "cannot read"),
        ("month(time) = 99999999999", "cannot read"),
        ("month(time) IS NULL", "cannot read"),
        ("month(month(time)) = 1", "cannot read"),
        ("century(time) = 20", "cannot read"),
    ],
)
def test_conditions_that_are_not_understood(
    session: icefloe.Session, where: str, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        frame(session, variables=("t2m", "rain"), where=where)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"sel": {"lat": 41}}, "no value 41"),
        ({"sel": {"depth": 1}}, "dimensions of the table"),
        ({"sel": {"lat": 30}, "isel": {"lat": 1}}, "choose one"),
        ({"isel": {"lat": 9}}, "outside of a dimension of 4"),
        ({"isel": {"lat": 0.5}}, "is a number"),
        ({"columns": ("t2m", "wind")}, "no column 'wind'"),
        ({"sel": {"time": 5}}, "has times"),
    ],
)
def test_requests_that_are_refused(
    session: icefloe.Session, request_: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        frame(session, variables=("t2m",), **request_)


def test_nearest(session: icefloe.Session) -> None:
    found = frame(session, variables=("t2m",), sel={"lat": {"nearest": 41}, "time": "2020-02-01"})
    assert set(found.lat) == {40.25}


def test_coordinates_prune_before_anything_is_read(session: icefloe.Session) -> None:
    whole = Scan(session, ScanRequest(variables=("t2m",), task_bytes=1))
    assert len(whole.splits()) == 4 * 2 * 2
    one = Scan(session, ScanRequest(variables=("t2m",), task_bytes=1, sel={"time": "2020-01-30"}))
    assert len(one.splits()) == 2 * 2
    either = "lat > 55 and t2m > 0 or lat > 55 and lon > 7 and t2m > 3"
    some = Scan(session, ScanRequest(variables=("t2m",), task_bytes=1, where=either))
    assert len(some.splits()) == 4 * 2
    january = "month(time) = 1 and t2m > 0"
    assert num_splits(session, january) == 2 * 2 * 2
    assert num_splits(session, f"{january} or month(time) = 1 and lat > 0") == 2 * 2 * 2
    assert num_splits(session, "month(time) = 3 or month(time) = 4 and lat > 0") == 0


def num_splits(session: icefloe.Session, where: str) -> int:
    request = ScanRequest(variables=("t2m",), task_bytes=1, where=where)
    return len(Scan(session, request).splits())


def test_lines_hold_the_same_cells(session: icefloe.Session) -> None:
    for inner in (1, 2, 3):
        scan = Scan(session, ScanRequest(variables=("t2m",), layout="lines", inner_dims=inner))
        rows = [row for boxes in scan.splits() for b in scan.read(boxes) for row in b.to_pylist()]
        found = {}
        dims = ("time", "lat", "lon")
        for row in rows:
            outer = [row[d] for d in dims[: 3 - inner]]
            for number, value in enumerate(row["t2m"]):
                place = np.unravel_index(number, row["_extent"])
                inside = [
                    scan.plan.coordinates[d][int(s + p)].as_py()
                    for d, s, p in zip(dims[3 - inner :], row["_start"], place, strict=True)
                ]
                found[(*outer, *inside)] = value
        whole = frame(session, variables=("t2m",))
        assert len(found) == len(whole)
        for time, lat, lon, t2m in whole.itertuples(index=False):
            value = found[(time.to_pydatetime(), lat, lon)]
            assert (value is None and np.isnan(t2m)) or value == t2m


def test_chunk_rows_say_where_they_are(session: icefloe.Session) -> None:
    scan = Scan(session, ScanRequest(variables=("t2m",), layout="chunks"))
    whole = weather().t2m.to_numpy()
    seen = np.zeros(whole.shape, dtype=int)
    for boxes in scan.splits():
        for batch in scan.read(boxes):
            for row in batch.to_pylist():
                at = tuple(slice(c, c + s) for c, s in zip(row["chunk"], row["shape"], strict=True))
                values = np.array(row["t2m"], dtype="f4").reshape(row["shape"])
                np.testing.assert_array_equal(values, whole[at])
                assert len(row["lat"]) == row["shape"][1]
                seen[at] += 1
    assert (seen == 1).all()


def test_auxiliary_coordinates_and_numbered_dimensions() -> None:
    dataset = xr.Dataset(
        {"v": (("y", "x"), np.arange(6).reshape(2, 3))},
        coords={"place": (("y", "x"), np.array([list("abc"), list("def")], dtype=object))},
    )
    found = frame(stored(dataset))
    assert list(found.columns) == ["y", "x", "place", "v"]
    assert found.place.tolist() == list("abcdef")
    assert found.y.tolist() == [0, 0, 0, 1, 1, 1]


def test_conditions_on_texts() -> None:
    names = np.array(["a", "b", "c"], dtype=object)
    dataset = xr.Dataset({"v": ("name", [1, 2, 3])}, coords={"name": names})
    session = stored(dataset)
    assert frame(session, where="name = 'b' or v = 3").v.tolist() == [2, 3]
    assert frame(session, where="name >= 'b' and v < 3").v.tolist() == [2]


def test_fractions_are_compared_with_integers_that_no_float_has() -> None:
    numbers = np.array([-(2**63), -3, 2, 3, 2**53 + 1, 2**63 - 1])
    session = stored(xr.Dataset({"v": ("x", numbers)}))
    assert frame(session, where="v > 2.5").v.tolist() == numbers[3:].tolist()
    assert frame(session, where="v <= -2.5 or v = 2.0").v.tolist() == numbers[:3].tolist()


def test_bounds_are_no_data_of_their_own() -> None:
    dataset = xr.Dataset(
        {"v": ("time", [1.0, 2.0]), "time_bnds": (("time", "nv"), [[0, 1], [1, 2]])},
        coords={"time": ("time", [0, 1], {"bounds": "time_bnds"})},
    )
    assert list(frame(stored(dataset)).columns) == ["time", "v"]


def test_scalars_make_one_row() -> None:
    assert frame(stored(xr.Dataset({"pi": ((), 3.14)}))).to_dict("list") == {"pi": [3.14]}


def test_empty_dimension_gives_no_rows() -> None:
    found = frame(stored(xr.Dataset({"v": (("x",), np.zeros(0))}, coords={"x": np.zeros(0)})))
    assert len(found) == 0


@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
)
def test_extreme_numbers_survive(dtype: str) -> None:
    limits = np.finfo(dtype) if dtype[0] == "f" else np.iinfo(dtype)
    values = np.array([limits.min, 0, 1, limits.max], dtype=dtype)
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("v", data=values, dimension_names=["x"])
    found = frame(session)
    assert [type(values[0].item())(v) for v in found.v] == values.tolist()


def test_other_types() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    values = {
        "flag": np.array([True, False]),
        "z": np.array([1 + 2j, 3 - 1j]),
        "when": np.array(["2020-01-01T01", "NaT"], dtype="M8[s]"),
        "lasts": np.array([3, 4], dtype="m8[ms]"),
        "fixed": np.array(["ab", "c"], dtype="<U2"),
        "raw": np.array([b"ab", b"c"], dtype="S2"),
        "free": np.array(["x", "yy"], dtype=np.dtypes.StringDType()),
        "big_endian": np.array([1, 256], dtype=">i2"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, column in values.items():
            group.create_array(name, data=column, dimension_names=["x"])
        scan = Scan(session, ScanRequest())
        (batch,) = [b for boxes in scan.splits() for b in scan.read(boxes)]
    found = batch.to_pydict()
    assert found["flag"] == [True, False]
    assert found["z"] == [{"re": 1.0, "im": 2.0}, {"re": 3.0, "im": -1.0}]
    assert found["when"] == [pd.Timestamp("2020-01-01T01").to_pydatetime(), None]
    assert [d.total_seconds() for d in found["lasts"]] == [0.003, 0.004]
    assert found["fixed"] == ["ab", "c"]
    assert found["raw"] == [b"ab", b"c"]
    assert found["free"] == ["x", "yy"]
    assert found["big_endian"] == [1, 256]


def cf(values: np.ndarray, **attributes: Any) -> pa.Array:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("v", data=values, dimension_names=["x"], attributes=attributes)
    scan = Scan(session, ScanRequest())
    (batch,) = [b for boxes in scan.splits() for b in scan.read(boxes)]
    return batch.column("v")


def test_missing_values_are_nulls() -> None:
    assert cf(np.array([1, -9, 3, 7]), _FillValue=-9, missing_value=[7]).to_pylist() == [
        1, None, 3, None,
    ]  # fmt: skip
    assert cf(np.array([1.0, np.nan])).to_pylist() == [1.0, None]
    assert cf(np.array([1, 1e20], dtype="f4"), missing_value=1e20).to_pylist() == [1.0, None]
    assert cf(np.array(["a", ""], dtype=np.dtypes.StringDType()), _FillValue="").to_pylist() == [
        "a", None,
    ]  # fmt: skip


def test_unsigned_and_bool() -> None:
    assert cf(np.array([-1, 5], dtype="i1"), _Unsigned="true", _FillValue=-1).to_pylist() == [
        None, 5,
    ]  # fmt: skip
    assert cf(np.array([-2, 5], dtype="i1"), _Unsigned="true").to_pylist() == [254, 5]
    assert cf(np.array([1, 0], dtype="i1"), dtype="bool").to_pylist() == [True, False]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "all_leap", "julian"])
@pytest.mark.parametrize("unit", ["days", "hours", "seconds"])
def test_other_calendars_become_texts(calendar: str, unit: str) -> None:
    import cftime

    rng = np.random.default_rng(3)
    values = rng.integers(0, 3_000_000, 200)
    values = values // 24 if unit == "days" else values
    units = f"{unit} since 1850-02-03 06:30:00"
    wanted = cftime.num2date(values, units, calendar)
    found = cf(values, units=units, calendar=calendar).to_pylist()
    assert found == [d.isoformat() for d in wanted]


@pytest.mark.parametrize(
    "units",
    [
        "days since 1970-01-01",
        "hours since 1900-01-01 00:00:0.0",
        "minutes since 2000-1-1 6:00",
        "seconds since 1999-12-31T23:59:59Z",
        "milliseconds since 1980-01-06 00:00:00 +02:00",
        "days since 0001-01-01 00:00:00",
        "microseconds since 1970-01-01",
    ],
)
@pytest.mark.parametrize("calendar", ["standard", "proleptic_gregorian"])
def test_real_times_are_those_of_cftime(units: str, calendar: str) -> None:
    import cftime

    values = np.array([0, 1, 59, 24 * 365, 738_000], dtype="i8")
    if units.startswith("days since 0001"):
        values = values[-1:]
    wanted = cftime.num2date(values, units, calendar)
    found = cf(values, units=units, calendar=calendar).to_pylist()
    assert [t.isoformat() for t in found] == [d.isoformat() for d in wanted]


def test_fractions_of_days() -> None:
    found = cf(np.array([0.5, 1 / 86400, np.nan]), units="days since 2000-01-01").to_pylist()
    assert [None if t is None else t.isoformat() for t in found] == [
        "2000-01-01T12:00:00", "2000-01-01T00:00:01", None,
    ]  # fmt: skip


def test_undecoded(session: icefloe.Session) -> None:
    plain = frame(session, variables=("rain",), reading=Reading(decode=False))
    assert plain.time.dtype == np.int32
    assert plain.rain.dtype == np.int16


def test_zoned_times(session: icefloe.Session) -> None:
    layout = read_table_schema(session, variables=["rain"], reading=Reading(zoned_times=True))
    assert layout.field("time").type == pa.timestamp("us", "UTC")


def test_a_missing_group_is_told_with_those_that_exist(session: icefloe.Session) -> None:
    with pytest.raises(icefloe.IcefloeError, match=r"group /nope does not exist; .* groups /$"):
        read_table_schema(session, "nope")
    with pytest.raises(icefloe.IcefloeError, match="/t2m is an array"):
        read_table_schema(session, "t2m")
    empty = icefloe.Repository.create(icefloe.in_memory_storage()).readonly_session("main")
    with pytest.raises(icefloe.IcefloeError, match="this version is empty"):
        read_table_schema(empty)


def test_dimensions_that_no_variable_has_are_told_with_those_that_exist(
    session: icefloe.Session,
) -> None:
    with pytest.raises(InvalidInputError, match=r"\(lat, long\); there are .*\(lat, lon\): height"):
        read_table_schema(session, dims=["lat", "long"])


def test_scalars_beside_arrays_are_no_second_table() -> None:
    dataset = xr.Dataset({"v": ("x", [1, 2]), "crs": ((), 0)})
    session = stored(dataset)
    assert list(frame(session).columns) == ["x", "v"]
    assert frame(session, variables=("v", "crs")).crs.tolist() == [0, 0]


def test_masks_choose_positions() -> None:
    session = stored(xr.Dataset({"v": ("x", [1, 2, 3])}))
    assert frame(session, isel={"x": [True, False, True]}).v.tolist() == [1, 3]
    with pytest.raises(InvalidInputError, match="is a number"):
        frame(session, isel={"x": [True, False]})


def test_a_boolean_column_is_a_condition() -> None:
    session = stored(xr.Dataset({"b": ("x", [True, False, True]), "v": ("x", [1, 2, 3])}))
    assert frame(session, where="b and v > 1").v.tolist() == [3]
    assert frame(session, where="not b or (b)").v.tolist() == [1, 2, 3]
    with pytest.raises(InvalidInputError, match="'v' is of int64, which cannot be compared"):
        frame(session, where="v")


def test_time_spans_of_xarray() -> None:
    spans = np.array([[1, 2], [3, "NaT"]], "m8[h]").astype("m8[ns]")
    leads = np.array([0, 1500], "m8[ns]")
    session = stored(xr.Dataset({"age": (("x", "lead"), spans)}, coords={"lead": leads}))
    found = frame(session)
    assert found.age.dtype == found.lead.dtype == "m8[us]"
    assert found.age.isna().tolist() == [False, False, False, True]
    assert (found.age[:3].to_numpy() == spans.ravel()[:3]).all()
    # Microseconds are what Spark has.
    assert found.lead.to_numpy().astype(int).tolist() == [0, 1, 0, 1]
    assert frame(session, reading=Reading(decode=False)).age.dtype == "i8"
    assert len(frame(session, sel={"lead": np.timedelta64(0, "us")})) == 2


def test_dates_of_cftime_choose_times() -> None:
    for calendar in ("360_day", "standard"):
        times = xr.date_range("2000-02-28", periods=4, calendar=calendar, use_cftime=True)
        session = stored(xr.Dataset({"v": ("time", [1, 2, 3, 4])}, coords={"time": times}))
        assert frame(session, sel={"time": times[2]}).v.tolist() == [3]
        assert frame(session, sel={"time": slice(times[1], times[2])}).v.tolist() == [2, 3]


def test_names_of_its_own_are_no_columns_of_a_layout() -> None:
    session = stored(
        xr.Dataset({"shape": (("x", "y"), [[1, 2]]), "_start": (("x", "y"), [[1, 2]])})
    )
    for layout in ("chunks", "lines"):
        with pytest.raises(InvalidInputError, match=f"the layout '{layout}' has the columns"):
            Scan(session, ScanRequest(layout=layout))
    assert Scan(session, ScanRequest(layout="chunks", columns=("_start",))).schema.names == [
        *("chunk", "shape", "_start"),
    ]


def test_the_cost_of_a_selection_is_that_of_its_chunks() -> None:
    encoding = {"v": {"chunks": (2, 5)}}
    session = stored(xr.Dataset({"v": (("x", "y"), np.zeros((8, 20)))}), encoding=encoding)
    scan = Scan(session, ScanRequest(isel={"y": 3}))
    assert scan.plan.cost(scan.splits()) == (4, 4 * 10 * 8)
    scan = Scan(session, ScanRequest(isel={"x": [0, 7], "y": slice(4, 6)}))
    assert scan.plan.cost(scan.splits()) == (4, 4 * 10 * 8)
    assert scan.plan.cost([]) == (0, 0)
