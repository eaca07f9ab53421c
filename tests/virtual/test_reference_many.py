"""Several files become one group by their coordinates; what does not fit is told before."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from icefloe.errors import InconsistentFilesError, InvalidInputError
from icefloe.ingest.apply import write_documents, write_references, write_values
from icefloe.ingest.place import references
from icefloe.model.chunk_refs import ChunkKind
from icefloe.virtual import ParseOptions, plan_files, read_file, read_header, reference_files
from tests.builders import read_dataset
from tests.virtual.files import by_xarray, month_file, session_for

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session

pytestmark = [pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")]


def opened(session: Session, group: str | None = None) -> xr.Dataset:
    return read_dataset(session, group).load()


@pytest.mark.parametrize("file_format", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_months_go_together_by_time_whatever_their_order_and_units(
    tmp_path: Path, file_format: str
) -> None:
    files = [
        month_file(tmp_path / f"{month}.nc", month, days=days, file_format=file_format)
        for month, days in ((3, 5), (1, 4), (2, 3))
    ]
    session = session_for(tmp_path)
    done = reference_files(session, files)
    assert done.references == 12
    assert [each.what for each in done.remarks] == ["attributes"]
    found = opened(session)
    xr.testing.assert_identical(found, by_xarray(files))
    assert found.time.to_index().is_monotonic_increasing
    assert session.chunk_count("/t2m", ChunkKind.VIRTUAL) == 12


def test_uncompressed_files_of_unequal_length_are_cut_to_fit(tmp_path: Path) -> None:
    # One contiguous block for each file: 4, 6 and 3 days.
    files = [
        month_file(tmp_path / f"{month}.nc", month, days=days, zlib_level=None, unlimited=False)
        for month, days in ((1, 4), (2, 6), (3, 3))
    ]
    session = session_for(tmp_path)
    reference_files(session, files)
    found = opened(session)
    xr.testing.assert_identical(found, by_xarray(files))
    # 2 divides 4 and 4 + 6; the last chunk may be shorter.
    assert found.t2m.encoding["chunks"] == (1, 3, 5)
    longer = [files[0], month_file(tmp_path / "l.nc", 2, days=2, zlib_level=None, unlimited=False)]
    other = session_for(tmp_path)
    reference_files(other, longer)
    assert opened(other).t2m.encoding["chunks"] == (2, 3, 5)
    xr.testing.assert_identical(opened(other), by_xarray(longer))


def test_two_dimensions_members_and_a_missing_file(tmp_path: Path) -> None:
    files = [
        month_file(tmp_path / f"m{member}_{month}.nc", month, seed=10 * member + month)
        for member in (1, 0, 2)
        for month in (2, 1)
        if (member, month) != (2, 1)
    ]
    session = session_for(tmp_path)
    reference_files(session, files, file_coordinates={"member": r"/m(\d+)_"})
    found = opened(session)
    assert found.t2m.dims == ("member", "time", "lat", "lon")
    assert found.member.values.tolist() == [0, 1, 2]
    for member in (0, 1):
        mine = [file for file in files if file.name.startswith(f"m{member}_")]
        np.testing.assert_array_equal(found.t2m.sel(member=member).values, by_xarray(mine).t2m)
    assert np.isnan(found.t2m.sel(member=2, time=slice("2026-01-01", "2026-01-31"))).all()
    assert not np.isnan(found.t2m.sel(member=2, time=slice("2026-02-01", None))).all()


def test_other_variables_in_other_files(tmp_path: Path) -> None:
    files = [
        month_file(tmp_path / "t.nc", 1, variables=("t2m",)),
        month_file(tmp_path / "p.nc", 1, variables=("precip",), seed=5),
        month_file(tmp_path / "t2.nc", 2, variables=("t2m",)),
    ]
    session = session_for(tmp_path)
    reference_files(session, files)
    found = opened(session)
    xr.testing.assert_equal(found, by_xarray(files, compat="no_conflicts"))
    assert np.isnan(found.precip.values[4:]).all()


def test_regions_in_latitude_that_falls(tmp_path: Path) -> None:
    north = month_file(tmp_path / "n.nc", 1, lat=(70.0, 60.0, 50.0))
    south = month_file(tmp_path / "s.nc", 1, lat=(40.0, 30.0, 20.0), seed=9)
    session = session_for(tmp_path)
    reference_files(session, [south, north])
    found = opened(session)
    assert found.lat.values.tolist() == [70, 60, 50, 40, 30, 20]
    for part in (north, south):
        with xr.open_dataset(part, engine="netcdf4") as data:
            np.testing.assert_array_equal(found.t2m.sel(lat=data.lat).values, data.t2m.values)


def test_bounds_follow_the_units_of_their_times(tmp_path: Path) -> None:
    files = []
    for month in (1, 2):
        path = month_file(tmp_path / f"{month}.nc", month)
        with netCDF4.Dataset(path, "a") as data:
            data.createDimension("nv", 2)
            data["time"].bounds = "time_bnds"
            bounds = data.createVariable("time_bnds", "f8", ("time", "nv"))
            bounds[:] = np.stack([np.arange(4), np.arange(4) + 1], axis=1)
        files.append(path)
    session = session_for(tmp_path)
    done = reference_files(session, files)
    assert "time_bnds" in done.stored_variables
    found = opened(session)
    starts = found.time_bnds.values[:, 0]
    np.testing.assert_array_equal(starts.astype(found.time.dtype), found.time.values)


# --- more files later


def test_appending_inserting_and_replacing(tmp_path: Path) -> None:
    files = {m: month_file(tmp_path / f"{m}.nc", m, days=3) for m in (1, 2, 3, 4)}
    session = session_for(tmp_path)
    reference_files(session, [files[1], files[3]])
    reference_files(session, files[4])  # appended
    reference_files(session, files[2])  # late: between others
    everything = list(files.values())
    xr.testing.assert_identical(opened(session), by_xarray(everything))
    corrected = month_file(tmp_path / "2b.nc", 2, days=3, seed=77)
    reference_files(session, corrected)
    replaced = [files[1], corrected, files[3], files[4]]
    xr.testing.assert_identical(opened(session), by_xarray(replaced))
    assert session.chunk_count("/t2m") == 12
    # A variable that only new files have is missing before them.
    extra = month_file(tmp_path / "5.nc", 5, days=3, variables=("t2m", "d2m"))
    reference_files(session, extra)
    found = opened(session)
    assert found.d2m.shape == (15, 3, 5)
    assert np.isnan(found.d2m.values[:12]).all()
    with xr.open_dataset(extra, engine="netcdf4") as data:
        np.testing.assert_array_equal(found.d2m.values[12:], data.d2m.values)


def test_replacing_by_a_file_with_fewer_chunks_leaves_none_of_the_old(tmp_path: Path) -> None:
    session = session_for(tmp_path)
    reference_files(session, month_file(tmp_path / "a.nc", 1, days=3))
    emptied = tmp_path / "b.nc"
    month_file(emptied, 1, days=3)
    with netCDF4.Dataset(emptied, "r+") as data:
        units = data["time"].units
    emptied.unlink()
    with netCDF4.Dataset(emptied, "w") as data:
        data.createDimension("time", None)
        data.createDimension("lat", 3)
        data.createDimension("lon", 5)
        time = data.createVariable("time", "f8", ("time",))
        time.units, time.calendar = units, "standard"
        time[:] = np.arange(3)
        data.createVariable("lat", "f4", ("lat",))[:] = (60.0, 50.0, 40.0)
        data.createVariable("lon", "f4", ("lon",))[:] = np.arange(5) * 1.5
        t2m = data.createVariable(
            "t2m", "i2", ("time", "lat", "lon"), fill_value=-999, zlib=True, complevel=4
        )
        t2m.set_auto_maskandscale(False)
        t2m.scale_factor, t2m.add_offset, t2m.units = 0.01, 280.0, "K"
        t2m[1] = 7
    reference_files(session, emptied)
    with xr.open_dataset(emptied, engine="netcdf4") as data:
        np.testing.assert_array_equal(opened(session).t2m.values, data.t2m.values)


# --- what does not fit


def report_of(session: Session, files: list[Path], **options: Any) -> str:
    with pytest.raises(InconsistentFilesError) as raised:
        reference_files(session, files, **options)
    assert not session.has_uncommitted_changes
    assert pickle.loads(pickle.dumps(raised.value)).differences == raised.value.differences
    return str(raised.value)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"dtype": "f4"}, ["t2m: data type", '"int16"', '"float32"']),
        ({"chunks": (2, 3, 5), "days": 4}, ["t2m: chunks", "[1, 3, 5]", "[2, 3, 5]"]),
        ({"zlib_level": None, "chunks": (1, 3, 5)}, ["t2m: codecs", "mode='copy'"]),
        ({"attributes": {"units": "degC"}}, ["t2m: attribute units", '"K"', '"degC"']),
        ({"attributes": {"scale_factor": 0.1}}, ["t2m: attribute scale_factor", "0.01", "0.1"]),
        ({"lat": (50.0, 40.0, 30.0)}, ["t2m", "several files have one part"]),
    ],
)
def test_differences_are_reported_before_anything_is_written(
    tmp_path: Path, second: dict[str, Any], said: list[str]
) -> None:
    month = 1 if "lat" in second else 2
    files = [month_file(tmp_path / "a.nc", 1), month_file(tmp_path / "b.nc", month, **second)]
    text = report_of(session_for(tmp_path), files)
    for each in said:
        assert each in text
    assert "a.nc" in text
    assert "b.nc" in text


def test_harmless_attributes_are_left_out_with_a_remark(tmp_path: Path) -> None:
    files = [
        month_file(tmp_path / f"{m}.nc", m, attributes={"comment": f"number {m}"}) for m in (1, 2)
    ]
    session = session_for(tmp_path)
    done = reference_files(session, files)
    assert "attribute comment" in [each.what for each in done.remarks]
    assert "comment" not in opened(session).t2m.attrs
    assert "number 2" in str(done)


def test_partial_chunks_in_the_middle_cannot_be_virtual(tmp_path: Path) -> None:
    files = [
        month_file(tmp_path / f"{m}.nc", m, days=d, chunks=(2, 3, 5)) for m, d in ((1, 3), (2, 4))
    ]
    text = report_of(session_for(tmp_path), files)
    assert "chunks of 2 along time do not end where files end" in text
    assert "mode='copy'" in text
    # At the end it can.
    session = session_for(tmp_path)
    files = [
        month_file(tmp_path / f"{m}b.nc", m, days=d, chunks=(2, 3, 5)) for m, d in ((1, 4), (2, 3))
    ]
    reference_files(session, files)
    xr.testing.assert_identical(opened(session), by_xarray(files))
    # And then nothing can come after it.
    text = report_of_later(session, [month_file(tmp_path / "3.nc", 3, chunks=(2, 3, 5))])
    assert "do not end where files end" in text or "come between" in text


def report_of_later(session: Session, files: list[Path]) -> str:
    before = session.tree.document("/t2m")
    with pytest.raises(InconsistentFilesError) as raised:
        reference_files(session, files)
    assert session.tree.document("/t2m") == before
    return str(raised.value)


def test_overlaps_and_interleaving(tmp_path: Path) -> None:
    a = month_file(tmp_path / "a.nc", 1, days=4)
    b = month_file(tmp_path / "b.nc", 1, days=4, first_day=2)
    text = report_of(session_for(tmp_path), [a, b])
    assert "several files have one part" in text
    c = month_file(tmp_path / "c.nc", 1, days=2)
    with netCDF4.Dataset(c, "a") as data:
        data["time"][:] = [-1, 30]
    text = report_of(session_for(tmp_path), [a, c])
    assert "lie between those of one file" in text
    d = month_file(tmp_path / "d.nc", 2, days=3)
    with netCDF4.Dataset(d, "a") as data:
        data["time"][:] = [3, 1, 2]
    assert "no order" in report_of(session_for(tmp_path), [a, d])


def test_static_variables_must_agree(tmp_path: Path) -> None:
    files = []
    for month in (1, 2):
        path = month_file(tmp_path / f"{month}.nc", month)
        with netCDF4.Dataset(path, "a") as data:
            data.createVariable("height", "f4")[:] = 2.0 * month
        files.append(path)
    assert "height: values" in report_of(session_for(tmp_path), files)
    session = session_for(tmp_path)
    reference_files(session, files, compat="override")
    assert float(opened(session).height) == 2.0


def test_arguments_are_checked(tmp_path: Path) -> None:
    session = session_for(tmp_path)
    path = month_file(tmp_path / "a.nc", 1)
    with pytest.raises(InvalidInputError, match="at least one file"):
        reference_files(session, [])
    with pytest.raises(InvalidInputError, match="each file is named once"):
        reference_files(session, [path, path])
    with pytest.raises(InvalidInputError, match="compat is"):
        reference_files(session, path, compat="maybe")
    with pytest.raises(InvalidInputError, match="check is"):
        reference_files(session, path, check="sometimes")
    with pytest.raises(InvalidInputError, match="finds no group"):
        reference_files(session, path, file_coordinates={"member": r"nothing"})
    with pytest.raises(InvalidInputError, match="has the dimension 'time' already"):
        reference_files(session, path, file_coordinates={"time": lambda _: 3})


def test_the_steps_alone_make_the_same_group(tmp_path: Path) -> None:
    files = [month_file(tmp_path / f"{m}.nc", m) for m in (2, 1)]
    session, other = session_for(tmp_path), session_for(tmp_path)
    reference_files(session, files)
    options = ParseOptions()
    sources = other.tree.virtual_sources
    headers = [read_header(file.as_uri(), sources, options) for file in files]
    headers = pickle.loads(pickle.dumps(headers))
    assert len(pickle.dumps(headers)) < 20_000
    plan = pickle.loads(pickle.dumps(plan_files(headers)))
    plan.check()
    found: dict[str, list[Any]] = {}
    for file in files:
        parsed = read_file(file.as_uri(), sources, options)
        for name, refs in references(parsed, plan).items():
            found.setdefault(name, []).append(pickle.loads(pickle.dumps(refs)))
    write_documents(other, "/", plan)
    write_values(other, "/", plan)
    write_references(other, "/", found)
    xr.testing.assert_identical(opened(session), opened(other))
