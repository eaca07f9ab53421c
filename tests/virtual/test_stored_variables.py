"""Variables that the repository itself stores, of files that arrive in parts and in other types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from icefloe.errors import InconsistentFilesError
from icefloe.virtual import reference_files
from tests.builders import read_dataset
from tests.virtual.files import by_xarray, session_for

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session

pytestmark = [pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")]


LATE = {0: ("v", "w"), 1: ("w",), 2: ("v", "w")}
"""The variables of three files, of which the second comes late."""


def series_file(
    path: Path,
    first: float,
    *,
    width: int = 2,
    time_type: str = "f8",
    units: str = "days since 2000-01-01",
    x_type: str = "f4",
    static: float = 0.0,
    names: tuple[str, ...] = ("v",),
    step: float = 0.1,
) -> Path:
    """Three days of a variable, and one without time."""
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("time", None)
        data.createDimension("x", width)
        time = data.createVariable("time", time_type, ("time",))
        time.units = units
        time[:] = first + np.arange(3)
        data.createVariable("x", x_type, ("x",))[:] = np.arange(width) * step
        values = np.arange(3 * width).reshape(3, width) + 1000 * first + 1
        for name in names:
            variable = data.createVariable(name, "f4", ("time", "x"), zlib=True, fill_value=-1)
            variable[:] = values
        data.createVariable("static", "f8", ("x",), zlib=True)[:] = np.arange(width) + static
    return path


def opened(session: Session) -> xr.Dataset:
    return read_dataset(session, None).load()


def refusal(session: Session, files: Any, **options: Any) -> str:
    with pytest.raises(InconsistentFilesError) as raised:
        reference_files(session, files, **options)
    return str(raised.value)


@pytest.mark.parametrize("before", [["v"], []], ids=["stored", "referenced"])
def test_a_late_file_moves_stored_values_of_any_size(tmp_path: Path, before: list[str]) -> None:
    files = [series_file(tmp_path / f"{n}.nc", 3 * n, width=400_000) for n in range(3)]
    session = session_for(tmp_path)
    reference_files(session, [files[0], files[2]], loadable_variables=before)
    reference_files(session, files[1], loadable_variables=["v"])
    xr.testing.assert_equal(opened(session), by_xarray(files))


def test_large_stored_variables_are_compared_with_later_files(tmp_path: Path) -> None:
    width = 1_100_000
    session = session_for(tmp_path)
    reference_files(
        session, series_file(tmp_path / "0.nc", 0, width=width), loadable_variables=["static"]
    )
    other = series_file(tmp_path / "1.nc", 3, width=width, static=1.0)
    assert "static: values" in refusal(session, other, loadable_variables=["static"])


@pytest.mark.parametrize("stored", [["v"], []], ids=["stored", "referenced"])
def test_a_late_file_without_a_variable_leaves_missing_values(
    tmp_path: Path, stored: list[str]
) -> None:
    files = [series_file(tmp_path / f"{n}.nc", 3 * n, names=names) for n, names in LATE.items()]
    session = session_for(tmp_path)
    reference_files(session, [files[0], files[2]], loadable_variables=stored)
    reference_files(session, files[1], loadable_variables=stored)
    xr.testing.assert_equal(opened(session), by_xarray(files, compat="no_conflicts"))


@pytest.mark.parametrize(
    ("types", "x_types"),
    [(("i4", "f8"), ("f4", "f4")), (("f4", "f8"), ("f4", "f4")), (("i2", "i8"), ("i4", "f8"))],
)
def test_coordinates_of_other_types_of_numbers_go_together(
    tmp_path: Path, types: tuple[str, str], x_types: tuple[str, str]
) -> None:
    files = [
        series_file(tmp_path / f"{n}.nc", 3 * n, time_type=types[n], x_type=x_types[n], step=1)
        for n in range(2)
    ]
    at_once = session_for(tmp_path)
    reference_files(at_once, files)
    xr.testing.assert_equal(opened(at_once), by_xarray(files))
    # The repository keeps its type where it can express what comes later.
    one_by_one = session_for(tmp_path)
    for file in files:
        reference_files(one_by_one, file)
    xr.testing.assert_equal(opened(one_by_one), by_xarray(files))


def test_coordinates_that_the_type_of_the_repository_cannot_express(tmp_path: Path) -> None:
    session = session_for(tmp_path)
    reference_files(session, series_file(tmp_path / "0.nc", 0, time_type="i4"))
    halves = series_file(tmp_path / "1.nc", 3.5)
    text = refusal(session, halves)
    assert "time: type of values" in text
    assert "ingest all files at once" in text


def test_numbers_that_no_common_type_can_express(tmp_path: Path) -> None:
    files = [
        series_file(tmp_path / "0.nc", float(2**60), time_type="i8", units="1"),
        series_file(tmp_path / "1.nc", 2.0**61, units="1"),
    ]
    with netCDF4.Dataset(files[0], "a") as data:
        data["time"][:] = 2**60 + 1 + np.arange(3) * 1000
    with netCDF4.Dataset(files[1], "a") as data:
        data["time"][:] = 2.0**61 * (1 + np.arange(3))
    assert "time: type of values" in refusal(session_for(tmp_path), files)


def test_rounded_coordinates_of_another_type(tmp_path: Path) -> None:
    files = [
        series_file(tmp_path / "0.nc", 0, x_type="f4"),
        series_file(tmp_path / "1.nc", 3, x_type="f8"),
    ]
    session = session_for(tmp_path)
    reference_files(session, files[0])
    assert "a tolerance makes them equal" in refusal(session, files[1])
    reference_files(session, files[1], tolerance=1e-6)
    found = opened(session)
    assert found.x.dtype == np.float32
    assert found.sizes == {"time": 6, "x": 2}


def test_labels_of_other_lengths_go_together(tmp_path: Path) -> None:
    files = []
    for number, names in enumerate((["ab", "cd"], ["xyz"])):
        files.append(tmp_path / f"{number}.h5")
        with h5py.File(files[-1], "w") as file:
            file["v"] = np.arange(len(names)) + number
            file["station"] = np.array(names, f"S{len(names[0])}")
            file["station"].make_scale("station")
            file["v"].dims[0].attach_scale(file["station"])
    session = session_for(tmp_path)
    reference_files(session, files)
    found = opened(session)
    assert found.station.values.tolist() == [b"ab", b"cd", b"xyz"]
    assert found.v.values.tolist() == [0, 1, 1]


# --- hints


def station_file(path: Path, names: list[str], ids: list[int] | None = None) -> Path:
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("station", len(names))
        data.createDimension("length", 6)
        if ids is None:
            data.createVariable("station", str, ("station",))[:] = np.array(names, dtype=object)
        data.createVariable("v", "f4", ("station",))[:] = np.arange(len(names))
        if ids is not None:
            label = data.createVariable("name", "S1", ("station", "length"))
            label[:] = netCDF4.stringtochar(np.array(names, "S6"))
    return path


def test_hints_for_labels_in_no_order(tmp_path: Path) -> None:
    files = [
        station_file(tmp_path / f"{n}.nc", names)
        for n, names in enumerate((["Zz", "Bb", "Mm"], ["Cc", "Aa"]))
    ]
    assert "file_order={'station': 'name'}" in refusal(session_for(tmp_path), files)
    session = session_for(tmp_path)
    reference_files(session, files, file_order={"station": "name"})
    assert opened(session).station.values.tolist() == ["Zz", "Bb", "Mm", "Cc", "Aa"]


def test_hints_for_times_that_repeat_in_a_file(tmp_path: Path) -> None:
    files = [series_file(tmp_path / f"{n}.nc", 3 * n) for n in range(2)]
    with netCDF4.Dataset(files[0], "a") as data:
        data["time"][:] = [0, 1, 1]
    assert "file_order={'time': 'name'}" in refusal(session_for(tmp_path), files)
    session = session_for(tmp_path)
    reference_files(session, files, file_order={"time": "name"})
    expected = xr.concat([xr.open_dataset(f) for f in files], "time", data_vars="minimal")
    xr.testing.assert_equal(opened(session), expected.load())


def test_hints_for_stations_without_a_coordinate(tmp_path: Path) -> None:
    files = [
        station_file(tmp_path / f"{n}.nc", names, ids=[])
        for n, names in enumerate((["a", "b"], ["c", "d"]))
    ]
    assert "file_order={'station': 'name'}" in refusal(session_for(tmp_path), files)
    session = session_for(tmp_path)
    reference_files(session, files, file_order={"station": "name"})
    assert opened(session).sizes["station"] == 4


def snapshot_file(path: Path, day: int) -> Path:
    """One moment, whose time is a scalar, on a grid with coordinates in two dimensions."""
    with netCDF4.Dataset(path, "w") as data:
        for dim in ("y", "x"):
            data.createDimension(dim, 2)
        time = data.createVariable("time", "f8", ())
        time.units = f"hours since 2000-01-{day:02d}"
        time[...] = 6
        variable = data.createVariable("v", "f4", ("y", "x"))
        variable.coordinates = "time lat"
        variable[:] = day
        data.createVariable("lat", "f4", ("y", "x"))[:] = [[1, 2], [3, 4]]
    return path


def test_hints_for_scalar_coordinates_that_differ(tmp_path: Path) -> None:
    files = [snapshot_file(tmp_path / f"{n}.nc", n) for n in (1, 2)]
    text = refusal(session_for(tmp_path), files)
    assert text.count("concat_dims=['time']") == 2, text
    assert "override" not in text
    session = session_for(tmp_path)
    reference_files(session, files, concat_dims=["time"])
    found = opened(session)
    assert found.time.values.astype("M8[D]").astype(str).tolist() == ["2000-01-01", "2000-01-02"]
    assert found.v.values[:, 0, 0].tolist() == [1, 2]


def test_hints_for_members_on_a_curved_grid(tmp_path: Path) -> None:
    files = []
    for number in range(2):
        files.append(tmp_path / f"r{number}.nc")
        with netCDF4.Dataset(files[-1], "w") as data:
            for dim in ("time", "y", "x"):
                data.createDimension(dim, 2)
            data.createVariable("time", "f8", ("time",))[:] = [0, 1]
            data.createVariable("v", "f4", ("time", "y", "x"))[:] = number
    text = refusal(session_for(tmp_path), files)
    assert "file_coordinates={'member'" in text
    assert "file_order" not in text


def test_fill_values_are_shown_as_numbers_with_the_option_that_solves_them(tmp_path: Path) -> None:
    files = []
    for number, fill in enumerate((-9.0, -99.0)):
        files.append(tmp_path / f"{number}.nc")
        with netCDF4.Dataset(files[-1], "w") as data:
            data.createDimension("time", None)
            data.createVariable("time", "f8", ("time",))[:] = [number]
            data.createVariable("v", "f4", ("time",), fill_value=fill)[:] = [number]
    text = refusal(session_for(tmp_path), files)
    assert "-9.0: file" in text.partition("attribute _FillValue")[2]
    assert text.count("mode='copy', decode=True") == 2
    assert "mode='copy')" not in text
