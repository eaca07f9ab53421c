"""Rows into arrays, without Spark: grids, operations, encodings and refusals."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.errors import AlreadyExistsError, ConflictError, InvalidInputError
from icefloe.spark.engine.tasks import pack
from icefloe.spark.engine.transactions import Transaction
from icefloe.spark.tables import staging
from icefloe.spark.tables.staging import StagedCommit, commit_staged, stage
from icefloe.tables.job_summary import JobSummary
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan
from icefloe.tables.target_arrays import RowSummary, WriteRequest, dims_of, prepare

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(str(tmp_path / "r"))


def write(
    repo: icefloe.Repository,
    rows: pa.Table,
    *,
    tasks: int = 3,
    txn: Any = (None, None),
    **request: Any,
) -> str | None:
    context = pickle.dumps(repo._context)
    asked = WriteRequest(**request)
    session = repo.writable_session("main")
    dims = dims_of(session, asked, rows.schema)
    size = -(-rows.num_rows // tasks) or 1
    parts = [
        stage(context, dims, rows.slice(start, size).to_batches(max_chunksize=7))
        for start in range(0, max(1, rows.num_rows), size)
    ]
    parts = pickle.loads(pickle.dumps(parts))
    how = StagedCommit("main", "rows", {"by": "test"}, Transaction.of(*txn), tries=3)
    return commit_staged(repo, asked, rows.schema, dims, parts, how)


def opened(repo: icefloe.Repository, **arguments: Any) -> xr.Dataset:
    store = repo.readonly_session("main").store
    return xr.open_zarr(store, consolidated=False, chunks=None, **arguments)


def rows_of(dataset: xr.Dataset) -> pa.Table:
    frame = dataset.to_dataframe().reset_index()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    times = [
        pa.field(f.name, pa.timestamp("us")) if pa.types.is_timestamp(f.type) else f
        for f in table.schema
    ]
    return table.cast(pa.schema(times)).replace_schema_metadata(None)


def sample(days: int = 4, start: str = "2020-01-01") -> xr.Dataset:
    rng = np.random.default_rng(days)
    return xr.Dataset(
        {
            "t": (("time", "x"), rng.normal(size=(days, 5)).astype("f4")),
            "n": (("time", "x"), rng.integers(-5, 5, (days, 5))),
        },
        coords={"time": pd.date_range(start, periods=days), "x": [10, 20, 30, 40, 50]},
    )


def test_rows_create_arrays_that_xarray_reads(repo: icefloe.Repository) -> None:
    dataset = sample()
    rows = rows_of(dataset).take(np.random.default_rng(0).permutation(20))
    first = write(repo, rows, dims=("time", "x"), chunks={"time": 3, "x": 2})
    xr.testing.assert_identical(opened(repo).drop_attrs(), dataset)
    assert opened(repo).t.encoding["chunks"] == (3, 2)
    properties = repo.lookup_snapshot(first).metadata
    assert properties["by"] == "test"
    summary = JobSummary.of(properties)
    assert (summary.job, summary.rows, summary.chunks) == ("df.write", 20, 12)
    assert summary.input_snapshots == (repo.lookup_snapshot(first).parent_id,)
    assert len(list(repo.ancestry(branch="main"))) == 2


@pytest.mark.parametrize("operation", ["append", "upsert"])
@pytest.mark.parametrize("generation", [{}, {"generation": "icechunk", "spec_version": 2}])
def test_new_cells_without_a_row_are_missing_where_the_fill_value_is_a_number(
    operation: Any, generation: dict[str, Any], tmp_path: Path
) -> None:
    # As xarray stores packed values: -999 is missing, and cells that nobody wrote are 0.
    packed = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 273.15, "_FillValue": -999}
    repo = icefloe.Repository.create(str(tmp_path / "r"), **generation)
    session = repo.writable_session("main")
    dataset = sample()[["t"]].assign(other=sample().t + 1, n=sample().t.astype("i4"))
    encoding = {name: {**packed, "chunks": (3, 2)} for name in ("t", "other")}
    encoding["n"] = {"chunks": (3, 2)}
    dataset.to_zarr(session.store, consolidated=False, zarr_format=3, encoding=encoding)
    session.commit("packed")
    assert opened(repo).t.encoding["_FillValue"] == -999
    new = rows_of(sample(5, "2020-01-05")).select(["time", "x", "t"])
    some = new.filter(pc.and_(pc.equal(new["x"], new["x"][0]), pc.is_valid(new["t"])))
    write(repo, some, operation=operation)
    found = opened(repo)
    assert found.sizes == {"time": 9, "x": 5}
    np.testing.assert_allclose(found.t[:4], dataset.t, atol=0.051)
    np.testing.assert_allclose(found.t[4:, 0], sample(5, "2020-01-05").t[:, 0], atol=0.051)
    assert found.t[4:, 1:].isnull().all()
    assert found.other[4:].isnull().all()
    np.testing.assert_allclose(found.other[:4], dataset.other, atol=0.051)
    assert (found.n[4:] == 0).all()  # has nothing that means missing


def test_nulls_that_an_array_cannot_store_are_refused_before_tasks_run(
    repo: icefloe.Repository,
) -> None:
    whole = pa.table({"x": [0, 1], "n": [1, 2]})
    write(repo, whole, dims=("x",))
    plan_of = WriteRequest(operation="upsert")
    gone = pa.table({"x": [0], "n": pa.array([None], pa.int64())})
    summary = RowSummary(
        schema=gone.schema, values={"x": gone["x"].combine_chunks()}, rows=1, nulls={"n": 1}
    )
    with pytest.raises(InvalidInputError, match="'n' has 1 nulls, but the array has no _FillValue"):
        prepare(repo.writable_session("main"), plan_of, summary)


def test_append_adds_days(repo: icefloe.Repository) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"), chunks={"time": 3})
    write(repo, rows_of(sample(2, "2020-01-05")))
    both = xr.concat([sample(), sample(2, "2020-01-05")], "time")
    xr.testing.assert_identical(opened(repo).drop_attrs(), both)


def test_append_refuses_what_is_there(repo: icefloe.Repository) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"))
    with pytest.raises(InvalidInputError, match=r"5 rows are outside .*time=2020-01-04"):
        write(repo, rows_of(sample(2, "2020-01-04")))
    with pytest.raises(InvalidInputError, match="belongs before"):
        write(repo, rows_of(sample(1, "2019-12-01")))
    with pytest.raises(AlreadyExistsError, match="upsert"):
        write(repo, rows_of(sample()), operation="create", dims=("time", "x"))
    assert len(list(repo.ancestry(branch="main"))) == 2


def test_upsert_sets_cells_and_grows(repo: icefloe.Repository) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"), chunks={"time": 2, "x": 2})
    rows = rows_of(sample(3, "2020-01-03")).filter(pa.array([True, False, True] * 5))
    write(repo, rows, operation="upsert")
    found, old = opened(repo), sample()
    assert found.sizes == {"time": 5, "x": 5}
    given = {(r["time"], r["x"]): r["t"] for r in rows.to_pylist()}
    for i, time in enumerate(pd.date_range("2020-01-01", periods=5)):
        for j, x in enumerate([10, 20, 30, 40, 50]):
            wanted = given.get((time.to_pydatetime(), x))
            if wanted is None:
                wanted = old.t.values[i, j] if i < 4 else np.nan
            np.testing.assert_equal(found.t.values[i, j], np.float32(wanted))


def test_overwrite_replaces_a_region(repo: icefloe.Repository) -> None:
    dataset = sample()
    write(repo, rows_of(dataset[["t"]]), dims=("time", "x"), chunks={"time": 2, "x": 2})
    rows = rows_of((dataset[["t"]] + 100).isel(time=slice(1, 3), x=[0, 2]))
    write(repo, rows.slice(0, 3), operation="overwrite")
    wanted = dataset.t.copy(deep=True)
    wanted[1:3, [0, 2]] = np.nan
    for row in rows.slice(0, 3).to_pylist():
        wanted.loc[{"time": row["time"], "x": row["x"]}] = row["t"]
    np.testing.assert_array_equal(opened(repo).t, wanted)
    # A region that the rows do not reach at all is emptied, too.
    write(repo, rows.slice(0, 1), operation="overwrite", region={"x": {"start": 10, "stop": 40}})
    left = opened(repo).t
    assert int(left.sel(time="2020-01-02", x=slice(10, 40)).notnull().sum()) == 1
    assert left.sel(x=50).notnull().all()
    assert left.sel(time="2020-01-01").notnull().all()


def test_replace_makes_new_arrays(repo: icefloe.Repository) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"))
    write(repo, rows_of(sample(2, "1999-01-01")), operation="replace", dims=("x", "time"))
    found = opened(repo)
    assert found.t.dims == ("x", "time")
    np.testing.assert_array_equal(found.t.transpose("time", "x"), sample(2, "1999-01-01").t)


def test_duplicates_are_refused_with_examples(repo: icefloe.Repository) -> None:
    rows = rows_of(sample())
    twice = pa.concat_tables([rows, rows.slice(3, 2)])
    with pytest.raises(InvalidInputError) as caught:
        write(repo, twice, dims=("time", "x"))
    assert "2 rows are for cells that have a row already" in str(caught.value)
    assert "x=40" in str(caught.value)
    assert len(list(repo.ancestry(branch="main"))) == 1


def test_gaps_are_missing_whatever_the_type(repo: icefloe.Repository) -> None:
    rows = pa.table(
        {
            "x": pa.array([0, 1, 3]),
            "i": pa.array([7, None, 9], pa.int16()),
            "f": pa.array([0.5, None, 1.5]),
            "s": pa.array(["a", None, "c"]),
            "b": pa.array([True, None, False]),
            "t": pa.array([pd.Timestamp("2020-01-01T00:00:00.5"), None, None], pa.timestamp("us")),
        }
    )
    write(repo, rows, dims=("x",), coordinates={"x": [0, 1, 2, 3]})
    scan = Scan(repo.readonly_session("main"), ScanRequest())
    found = pa.Table.from_batches([b for boxes in scan.splits() for b in scan.read(boxes)])
    wanted = rows.to_pydict()
    for name in "ifsbt":
        column = found.column(name).to_pylist()
        assert column == [wanted[name][0], None, None, wanted[name][2]], name


def test_encodings_are_obeyed(repo: icefloe.Repository) -> None:
    rows = pa.table({"x": [0, 1, 2], "v": [1.5, 2.5, None], "w": [1, 2, 3]})
    write(
        repo,
        rows,
        dims=("x",),
        encoding={
            "v": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1, "_FillValue": -99},
            "w": {"dtype": "u1", "chunks": [2]},
        },
        attributes={"v": {"units": "m"}},
    )
    raw = opened(repo, mask_and_scale=False)
    assert raw.v.dtype == np.int16
    assert raw.v.values.tolist() == [1, 3, -99]
    assert raw.v.attrs["units"] == "m"
    assert raw.w.dtype == np.uint8
    np.testing.assert_array_equal(opened(repo).v, [1.5, 2.5, np.nan])


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"x": [0], "v": [300]}, "do not fit into uint8"),
        ({"x": [0], "v": [1.5]}, "no whole numbers"),
        ({"x": [0], "v": [None]}, "has 1 nulls"),
        ({"x": [0], "v": [255]}, "means missing"),
        ({"x": [1.5], "v": [1]}, "coordinate is of"),
    ],
)
def test_values_that_do_not_fit(
    repo: icefloe.Repository, rows: dict[str, Any], reason: str
) -> None:
    start = pa.table({"x": [0, 1], "v": pa.array([1, 2], pa.int16())})
    encoding = {"v": {"dtype": "u1"}}
    if "missing" in reason:
        encoding["v"]["_FillValue"] = 255  # type: ignore[assignment]
    write(repo, start, dims=("x",), encoding=encoding)
    columns = {"x": rows["x"], "v": pa.array(rows["v"], pa.int64() if None in rows["v"] else None)}
    with pytest.raises(InvalidInputError, match=reason):
        write(repo, pa.table(columns), operation="upsert")


def test_numbered_dimensions(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    dataset = xr.Dataset({"v": (("y", "x"), np.zeros((2, 2)))})
    dataset.to_zarr(session.store, consolidated=False, zarr_format=3)
    session.commit("zeros")
    write(repo, pa.table({"y": [3, 0], "x": [1, 0], "v": [1.0, 2.0]}), operation="upsert")
    np.testing.assert_array_equal(opened(repo).v, [[2, 0], [0, 0], [np.nan, np.nan], [np.nan, 1]])


def test_a_new_variable_joins_the_grid(repo: icefloe.Repository) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"))
    more = rows_of(sample()[["t"]] * 2).rename_columns(["time", "x", "twice"]).slice(0, 7)
    write(repo, more, dims=("time", "x"))
    found = opened(repo)
    assert int(found.twice.notnull().sum()) == 7
    np.testing.assert_array_equal(found.t, sample().t)
    # Its own coordinates would tear the group apart: those that others use stay.
    write(repo, more.slice(0, 2), dims=("time", "x"), operation="replace")
    assert int(opened(repo).twice.notnull().sum()) == 2
    outside = more.set_column(1, "x", pa.array([1] * 7)).rename_columns(["time", "x", "thrice"])
    with pytest.raises(InvalidInputError, match="7 rows are outside"):
        write(repo, outside, dims=("time", "x"))


def test_other_arrays_along_the_dimension_grow_too(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    dataset = sample().assign(co2=("time", np.arange(4.0)))
    dataset.to_zarr(session.store, consolidated=False, zarr_format=3)
    session.commit("start")
    write(repo, rows_of(sample(1, "2020-01-05")))
    assert opened(repo).sizes == {"time": 5, "x": 5}


def test_a_repeated_transaction_is_no_second_commit(repo: icefloe.Repository) -> None:
    rows = rows_of(sample())
    first = write(repo, rows, dims=("time", "x"), txn=("job", 3))
    assert write(repo, rows, dims=("time", "x"), txn=("job", 3)) == first
    assert write(repo, rows, dims=("time", "x"), txn=("job", 2)) == first
    assert write(repo, rows_of(sample(1, "2020-02-01")), txn=("job", 4)) != first


def test_a_branch_that_moves_meanwhile(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"))
    other = rows_of(sample(1, "2020-01-05"))
    real = icefloe.Session.commit
    turns: list[Any] = []

    def commit(session: Any, *arguments: Any, **named: Any) -> Any:
        if not turns:
            turns.append(1)
            write(repo, other)
        return real(session, *arguments, **named)

    monkeypatch.setattr(icefloe.Session, "commit", commit)
    write(repo, rows_of(sample(2, "2020-01-06")))
    assert opened(repo).sizes["time"] == 7
    monkeypatch.setattr(icefloe.Session, "commit", _never)
    with pytest.raises(ConflictError):
        write(repo, rows_of(sample(1, "2020-03-01")))


def _never(*_: Any, **__: Any) -> str:
    raise ConflictError("moved")


def test_statistics_are_kept_with_the_rows(repo: icefloe.Repository) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"), chunks={"time": 2}, statistics=True)
    session = repo.readonly_session("main")
    top = float(sample().t[2:].max())
    scan = Scan(session, ScanRequest(where=f"t > {top}"))
    assert [boxes[:, 0].tolist() for boxes in scan.splits()] in ([[[0, 2]]], [])
    assert not Scan(session, ScanRequest(where="n > 100")).splits()


def test_coordinates_that_are_too_many_to_travel(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_MAX_DISTINCT", 3)
    write(repo, rows_of(sample()), dims=("time", "x"))
    xr.testing.assert_identical(opened(repo).drop_attrs(), sample())


def test_no_rows_no_commit(repo: icefloe.Repository) -> None:
    empty = pa.table({"x": pa.array([], pa.int64()), "v": pa.array([], pa.float64())})
    assert write(repo, empty, dims=("x",)) is None


@given(st.data())
def test_any_rows_in_any_order_make_the_same_arrays(data: Any) -> None:
    rank = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 5)) for _ in range(rank)]
    dims = [f"d{axis}" for axis in range(rank)]
    cells = int(np.prod(shape))
    places = np.array(np.unravel_index(np.arange(cells), shape)).T
    keep = data.draw(st.lists(st.integers(0, cells - 1), min_size=1, unique=True))
    rows = pa.table(
        {**{d: places[keep, a] * 2.5 for a, d in enumerate(dims)}, "v": np.array(keep, dtype="i4")}
    )
    chunks = {d: data.draw(st.integers(1, n)) for d, n in zip(dims, shape, strict=True)}
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    wanted = np.full(cells, np.nan)
    wanted[keep] = keep
    grid = {d: (np.arange(n) * 2.5).tolist() for d, n in zip(dims, shape, strict=True)}
    request = WriteRequest(dims=tuple(dims), chunks=chunks, coordinates=grid)
    session = repo.writable_session("main")
    found = RowSummary(rows.schema, {}, rows.num_rows, {"v": 0})
    plan = prepare(session, request, found)
    fragments = [
        staging.Fragment(
            pickle.dumps(staging.files_of(session).write(pack(rows.slice(at, 3)))),
            1,
        )
        for at in range(0, rows.num_rows, 3)
    ]
    staging._write(session, plan, fragments)
    session.commit("rows")
    np.testing.assert_array_equal(opened(repo).v.values.astype(float).ravel(), wanted)


def test_append_says_what_to_do_with_cells_that_exist(repo: icefloe.Repository) -> None:
    write(repo, rows_of(sample()), dims=("time", "x"))
    row = rows_of(sample(1, "2020-01-04")).slice(0, 1)
    with pytest.raises(
        InvalidInputError,
        match=r"1 row is outside .* \(upsert, or MERGE INTO in SQL, sets existing cells\)",
    ):
        write(repo, pa.concat_tables([row, rows_of(sample(1, "2020-01-05"))]))
    with pytest.raises(InvalidInputError, match=r"no array that is named like .*'other'"):
        write(repo, rows_of(sample(1)[["t"]].rename(t="other")))


def test_xarray_reads_texts_with_gaps(repo: icefloe.Repository) -> None:
    rows = pa.table({"x": [0, 1, 3], "s": ["a", None, "c"]})
    write(repo, rows, dims=("x",))
    found = opened(repo)
    assert found.s.values.tolist()[::2] == ["a", "c"]
    assert found.s.isnull().values.tolist() == [False, True, False]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "julian"])
def test_times_of_other_calendars_are_written_as_texts(
    repo: icefloe.Repository, calendar: str
) -> None:
    texts = ["2000-02-28T00:00:00", "2000-03-01T12:00:00"]
    rows = pa.table({"time": texts, "v": [1.0, 2.0]})
    encoding = {"time": {"units": "hours since 1999-12-30", "calendar": calendar}}
    write(repo, rows, dims=("time",), encoding=encoding)
    write(repo, pa.table({"time": ["2001-01-30T06:00:00"], "v": [3.0]}))
    found = opened(repo)
    wanted = [*texts, "2001-01-30T06:00:00"]
    assert [time.isoformat() for time in found.time.values] == wanted
    assert found.time.values[0].calendar == calendar
    assert found.v.values.tolist() == [1, 2, 3]
    scan = Scan(repo.readonly_session("main"), ScanRequest())
    assert scan.plan.coordinates["time"].to_pylist() == wanted
    for wrong in ("2001-02-31T00:00:00", "2001-02-03", "yesterday", "2001-13-01T00:00:00"):
        with pytest.raises(
            InvalidInputError, match=f"of the calendar {calendar} are texts such as"
        ):
            write(repo, pa.table({"time": [wrong], "v": [3.0]}))


def test_texts_with_units_need_a_calendar(repo: icefloe.Repository) -> None:
    rows = pa.table({"time": ["2000-02-28T00:00:00"], "v": [1.0]})
    with pytest.raises(InvalidInputError, match="make timestamps"):
        write(repo, rows, dims=("time",), encoding={"time": {"units": "days since 2000-01-01"}})


def test_time_spans_come_back(repo: icefloe.Repository) -> None:
    spans = pa.array([6 * 3600_000_000, None, 18 * 3600_000_000], pa.duration("us"))
    rows = pa.table({"x": [0, 1, 2], "span": spans})
    write(repo, rows, dims=("x",), encoding={"span": {"units": "hours"}})
    assert opened(repo).span.dtype.kind == "m"
    assert opened(repo).span.dt.total_seconds().fillna(-1).values.tolist() == [21600, -1, 64800]
    scan = Scan(repo.readonly_session("main"), ScanRequest())
    (batch,) = [batch for boxes in scan.splits() for batch in scan.read(boxes)]
    assert batch.column("span").equals(spans)
    finer = pa.table({"x": [1], "span": pa.array([1], pa.duration("us"))})
    with pytest.raises(InvalidInputError, match="1 time spans that are no whole number"):
        write(repo, finer, operation="upsert")
    with pytest.raises(InvalidInputError, match="units of time spans"):
        write(repo, rows, dims=("x",), operation="replace", encoding={"span": {"units": "metres"}})
