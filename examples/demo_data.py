"""The files of the demo: sample data of the Met Office, or synthetic files of the same layout.

The package `iris-sample-data` carries the files (British Crown copyright, Open Government Licence).
Where it is not installed, files with the same names, variables and grids are made up, and
everything that shows them says so.
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

ATTRIBUTION = (
    "Contains public sector information licensed under the Open Government Licence: Met Office "
    "model and satellite data from the package iris-sample-data, British Crown copyright 2018. "
    "Southern Oscillation Index: K. E. Trenberth (1984), NCAR."
)
SYNTHETIC = (
    "SYNTHETIC DATA: the demo made it up, because the package iris-sample-data is not installed, "
    "or because --synthetic asked for it."
)
OSTIA, SOI = "ostia_monthly.nc", "SOI_Darwin.nc"
SCENARIOS = ("A1B_north_america.nc", "E1_north_america.nc")
NEMO = tuple(f"nemo_1m_2015{month:02}01-2015{month + 1:02}01_grid-T.nc" for month in range(1, 4))


@dataclass(frozen=True)
class Samples:
    """Where the original files are, and what must be said about them."""

    folder: Path
    is_synthetic: bool

    @property
    def credit(self) -> str:
        return SYNTHETIC if self.is_synthetic else ATTRIBUTION


def find_samples(folder: Path, *, synthetic: bool = False) -> Samples:
    """The files of iris-sample-data if it is installed, else synthetic ones below `folder`."""
    package = importlib.util.find_spec("iris_sample_data")
    if synthetic or package is None or package.origin is None:
        write_synthetic(folder)
        return Samples(folder, is_synthetic=True)
    return Samples(Path(package.origin).parent / "sample_data", is_synthetic=False)


class Archive:
    """The files as the archives of several institutes hold them, below one folder."""

    def __init__(self, samples: Samples, folder: Path) -> None:
        self.samples = samples
        self.folder = folder
        self.sst = folder / "sst"
        self.scenarios = folder / "scenarios"
        self.ocean = folder / "ocean"
        self.index = folder / "index"
        for each in (self.sst, self.scenarios, self.ocean, self.index):
            each.mkdir(parents=True)
        for name in SCENARIOS:
            shutil.copy(samples.folder / name, self.scenarios)
        for name in NEMO:
            shutil.copy(samples.folder / "NEMO" / name, self.ocean)
        shutil.copy(samples.folder / SOI, self.index)
        with netCDF4.Dataset(samples.folder / OSTIA) as whole:
            time = whole["time"]
            dates = netCDF4.num2date(time[:], time.units, time.calendar)
            self.months = [date.strftime("%Y-%m") for date in dates]

    def deliver(self, months: list[str], version: int = 1) -> None:
        """Write one file for each month of sea surface temperature: the values of the original."""
        with netCDF4.Dataset(self.samples.folder / OSTIA) as whole:
            whole.set_auto_maskandscale(False)
            for month in months:
                _cut(whole, self.months.index(month), self.sst_file(month, version))

    def sst_file(self, month: str, version: int = 1) -> Path:
        return self.sst / f"ostia-{month}-v{version}.nc"

    def truncate(self, month: str) -> None:
        """Cut a file short, as an interrupted download does."""
        path = self.sst_file(month)
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 3])

    def confuse_units(self, month: str) -> None:
        """Store degrees Celsius while the attribute still says kelvin: a mistake one meets."""
        with netCDF4.Dataset(self.sst_file(month), "a") as file:
            file["surface_temperature"][:] -= 273.15

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def size(self, folder: Path | None = None) -> int:
        paths = self.files() if folder is None else folder.iterdir()
        return sum(path.stat().st_size for path in paths)


def _cut(whole: netCDF4.Dataset, step: int, path: Path) -> None:
    """Copy one step along time into a file of its own, attributes and all."""
    with netCDF4.Dataset(path, "w") as file:
        file.setncatts({name: whole.getncattr(name) for name in whole.ncattrs()})
        for name, dimension in whole.dimensions.items():
            file.createDimension(name, 1 if name == "time" else len(dimension))
        for name, variable in whole.variables.items():
            attributes = {key: variable.getncattr(key) for key in variable.ncattrs()}
            fill = attributes.pop("_FillValue", None)
            shape = tuple(len(file.dimensions[each]) for each in variable.dimensions)
            copy = file.createVariable(
                name,
                variable.dtype,
                variable.dimensions,
                fill_value=fill,
                zlib=len(shape) == 3,
                chunksizes=shape if len(shape) == 3 else None,
            )
            copy.setncatts(attributes)
            copy.set_auto_maskandscale(False)
            has_time = "time" in variable.dimensions
            copy[...] = variable[step : step + 1] if has_time else variable[...]


# --- synthetic files of the same layout ----------------------------------------------------------


def write_synthetic(folder: Path) -> None:
    """Write files with the names, variables and kinds of grids of the original ones."""
    (folder / "NEMO").mkdir(parents=True)
    random = np.random.default_rng(20)
    _synthetic_sst(folder / OSTIA, random)
    for name, warming in zip(SCENARIOS, (5.0, 2.5), strict=True):
        _synthetic_scenario(folder / name, warming, random)
    for number, name in enumerate(NEMO):
        _synthetic_ocean(folder / "NEMO" / name, number)
    with _created(folder / SOI, time=540) as file:
        _variable(
            file, "time", "i8", ("time",), np.arange(540) * 365.2425 / 12 + 70000,
            units="days since 1800-01-01", standard_name="time", calendar="gregorian",
        )  # fmt: skip
        _variable(
            file, "SOI_Darwin", "f4", ("time",), random.normal(0, 1, 540),
            fill=np.float32(-99.9), long_name="synthetic index",
        )  # fmt: skip


def _created(path: Path, **sizes: int) -> netCDF4.Dataset:
    file = netCDF4.Dataset(path, "w")
    file.setncatts({"Conventions": "CF-1.5", "title": SYNTHETIC})
    for name, size in sizes.items():
        file.createDimension(name, size)
    return file


def _variable(
    file: netCDF4.Dataset,
    name: str,
    dtype: str,
    dims: tuple[str, ...],
    values: Any,
    fill: Any = None,
    **attributes: Any,
) -> None:
    chunks = None
    if len(dims) == 3:
        chunks = [1, *(len(file.dimensions[each]) for each in dims[1:])]
    variable = file.createVariable(
        name, dtype, dims, fill_value=fill, chunksizes=chunks, zlib=len(dims) == 3
    )
    variable.setncatts(attributes)
    variable[...] = values


def _grid(file: netCDF4.Dataset, latitude: np.ndarray, longitude: np.ndarray) -> None:
    for name, values, units in (
        ("latitude", latitude, "degrees_north"),
        ("longitude", longitude, "degrees_east"),
    ):
        _variable(file, name, "f4", (name,), values, standard_name=name, units=units)


def _synthetic_sst(path: Path, random: np.random.Generator) -> None:
    latitude, longitude = np.linspace(-5, 4.4444, 18), np.arange(432) / 1.2
    month = np.arange(54)[:, None, None]
    east = np.deg2rad(longitude)[None, None, :]
    values = 300.8 + 1.5 * np.cos(east - 2.6) + 0.8 * np.cos(np.pi * (month - 1) / 6)
    values = values + 1.5 * np.sin(month / 7) * np.exp(-(((longitude - 220) / 40) ** 2))
    values = values + random.normal(0, 0.1, (54, 18, 432))
    values[:, :, (longitude > 9) & (longitude < 43)] = 1e20  # where Africa is
    values[:, :, (longitude > 280) & (longitude < 310)] = 1e20  # and South America
    with _created(path, time=54, latitude=18, longitude=432) as file:
        _grid(file, latitude, longitude)
        dates = np.arange("2006-04", "2010-10", dtype="datetime64[M]").astype("datetime64[h]")
        _variable(
            file, "time", "f8", ("time",), dates.astype(int) + 360, axis="T",
            standard_name="time", units="hours since 1970-01-01 00:00:00", calendar="gregorian",
        )  # fmt: skip
        _variable(
            file, "surface_temperature", "f4", ("time", "latitude", "longitude"), values,
            fill=np.float32(1e20), standard_name="surface_temperature", units="K",
        )  # fmt: skip


def _synthetic_scenario(path: Path, warming: float, random: np.random.Generator) -> None:
    latitude, longitude = np.linspace(15, 60, 37), np.linspace(225, 315, 49)
    years = np.arange(1860, 2100)
    rise = warming / (1 + np.exp(-(years - 2040) / 25))
    values = 300 - 0.6 * (latitude[:, None] - 15) + 0 * longitude
    values = values + rise[:, None, None] + random.normal(0, 0.4, (240, 37, 49))
    with _created(path, time=240, latitude=37, longitude=49) as file:
        _grid(file, latitude, longitude)
        _variable(
            file, "time", "f8", ("time",), ((years - 1970) * 360 + 150) * 24.0, axis="T",
            standard_name="time", units="hours since 1970-01-01 00:00:00", calendar="360_day",
        )  # fmt: skip
        _variable(
            file, "air_temperature", "f4", ("time", "latitude", "longitude"), values,
            standard_name="air_temperature", units="K",
        )  # fmt: skip


def _synthetic_ocean(path: Path, number: int) -> None:
    lat, lon = np.meshgrid(np.linspace(-84, 84, 165), np.arange(73.5, 433.5, 2), indexing="ij")
    values = 30 * np.cos(np.deg2rad(lat - 3 * number)) ** 2 - 2
    values[np.abs((lon - 400) / 20) + np.abs(lat / 40) < 1] = 1e20  # land
    with _created(path, time_counter=1, y=165, x=180) as file:
        _variable(file, "nav_lat", "f4", ("y", "x"), lat, units="degrees_north")
        _variable(file, "nav_lon", "f4", ("y", "x"), (lon + 180) % 360 - 180, units="degrees_east")
        _variable(
            file, "time_centered", "f8", ("time_counter",), 3578256000.0 + number * 2592000,
            standard_name="time", units="seconds since 1900-01-01 00:00:00", calendar="360_day",
        )  # fmt: skip
        _variable(file, "time_counter", "f8", ("time_counter",), 0.0, axis="T")
        _variable(
            file, "tos", "f4", ("time_counter", "y", "x"), values[None],
            fill=np.float32(1e20), standard_name="sea_surface_temperature", units="degree_C",
        )  # fmt: skip
