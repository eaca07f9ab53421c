"""Variables that the repository itself stores, of files that arrive in parts and in other types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
) -> Path:
    """Three days of a variable, and one without time."""
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("time", None)
        data.createDimension("x", width)
        time = data.createVariable("time", time_type, ("time",))  # type: ignore[call-overload]
        time.units = units
        time[:] = first + np.arange(3)
        data.createVariable("x", x_type, ("x",))[:] = np.arange(width) / 10  # type: ignore[call-overload]
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
