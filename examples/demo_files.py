"""Makes the files of the demo: a small made-up reanalysis, one NetCDF file for each month."""

from __future__ import annotations

from typing import TYPE_CHECKING

import netCDF4
import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pathlib import Path

MISSING = -32768
SCALE, OFFSET = 0.01, 260.0


def write_month(folder: Path, month: str) -> Path:
    """Write one month; the same month always has the same values."""
    start = pd.Timestamp(month)
    times = pd.date_range(start, periods=start.days_in_month, freq="D")
    lat, lon = np.arange(-90, 90.1, 2.5), np.arange(-180, 180, 2.5)
    temperature, rain = _weather(times, lat, lon)
    packed = np.rint((temperature - OFFSET) / SCALE).astype("i2")
    packed[:, 0, :] = MISSING  # nothing is measured at the south pole

    path = folder / f"reanalysis-{month}.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.setncatts({"Conventions": "CF-1.11", "title": "A small made-up reanalysis"})
        for name, values in (("time", times), ("lat", lat), ("lon", lon)):
            file.createDimension(name, len(values))
        time = file.createVariable("time", "i4", ("time",))
        time.setncatts({"standard_name": "time", "units": "days since 2020-01-01"})
        time[:] = (times - pd.Timestamp("2020-01-01")).days
        for name, values, units in (("lat", lat, "degrees_north"), ("lon", lon, "degrees_east")):
            coordinate = file.createVariable(name, "f4", (name,))
            coordinate.units = units
            coordinate[:] = values
        dims, chunks = ("time", "lat", "lon"), (1, len(lat), len(lon))
        options = {"zlib": True, "complevel": 1, "shuffle": True, "chunksizes": chunks}
        t2m = file.createVariable("t2m", "i2", dims, fill_value=np.int16(MISSING), **options)
        t2m.setncatts({"long_name": "2 metre temperature", "units": "K"})
        t2m.setncatts({"scale_factor": SCALE, "add_offset": OFFSET})
        t2m.set_auto_maskandscale(False)
        t2m[:] = packed
        pr = file.createVariable("pr", "f4", dims, **options)
        pr.setncatts({"long_name": "precipitation", "units": "mm day-1"})
        pr[:] = rain
    return path


def break_file(path: Path) -> None:
    """Cut a file short, as an interrupted download does."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3])


def _land(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """Where something like continents is, from 0 to 1."""
    north, east = lat[:, None], lon[None, :]
    humps = (
        *((52, 80, 20, 50), (5, 20, 22, 18), (48, -100, 18, 28)),
        *((-15, -60, 20, 14), (-25, 134, 9, 15)),
    )
    heights = [
        np.exp(-(((north - y) / height) ** 4) - ((east - x) / width) ** 4)
        for y, x, height, width in humps
    ]
    return np.max(heights, axis=0)


def _weather(
    times: pd.DatetimeIndex, lat: np.ndarray, lon: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(times[0].value // 10**9)
    day = times.day_of_year.to_numpy()[:, None, None]
    phi, theta = np.deg2rad(lat)[None, :, None], np.deg2rad(lon)[None, None, :]
    waves = np.zeros((len(times), len(lat), len(lon)))
    for number, strength, speed in ((2, 3.0, 4), (3, 2.5, 7), (5, 2.0, 13), (7, 1.0, 21)):
        tilt = number * theta + (number + 1) * phi - 2 * np.pi * day * speed / 90
        waves += strength * np.cos(tilt) * np.sin(2 * phi) ** 2
    land = _land(lat, lon)
    season = -np.cos(2 * np.pi * (day - 15) / 365.25) * np.sin(phi) * (0.5 + 1.3 * land)
    warming = 0.03 * (times.year - 2020).to_numpy()[:, None, None]
    temperature = 250 + 48 * np.cos(phi) ** 2 + 14 * season + 1.5 * waves + warming
    temperature = temperature + random.normal(0, 0.8, size=waves.shape)
    belt = np.rad2deg(phi) - 8 * np.sin(2 * np.pi * (day - 100) / 365.25)
    wet = 9 * np.exp(-((belt / 9) ** 2)) * (0.6 + land) + np.maximum(waves, 0) + 0.3
    return temperature, (random.gamma(0.6, 1.0, size=waves.shape) * wet).astype("f4")
