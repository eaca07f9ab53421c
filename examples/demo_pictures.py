"""The pictures of the demo: maps with coastlines, axes with units, colour maps that are fair."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

LAND = "#b9b9b4"
COLOURS = {"A1B": "#b2182b", "E1": "#2166ac"}
mpl.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "white",
        "savefig.dpi": 120,
    }
)


@cache
def coastlines() -> list[np.ndarray]:
    """Lines of longitude and latitude: Natural Earth, 1:50 million, thinned. Public domain."""
    with np.load(Path(__file__).parent / "coastlines.npz") as stored:
        points, lengths = stored["points"] / 100, stored["lengths"].astype(int)
    return list(np.split(points, np.cumsum(lengths)[:-1]))


def east_west(degrees: float) -> str:
    degrees = (degrees + 180) % 360 - 180
    if degrees in (0, -180):
        return f"{abs(degrees):.0f}°"
    return f"{abs(degrees):.0f}°{'E' if degrees > 0 else 'W'}"


def north_south(degrees: float) -> str:
    return f"{abs(degrees):.0f}°{'N' if degrees > 0 else 'S' if degrees < 0 else ''}"


class Pictures:
    """Draws into files of a folder."""

    def __init__(self, folder: Path, *, is_synthetic: bool) -> None:
        self._folder = folder
        self._is_synthetic = is_synthetic

    def before_and_after(self, name: str, before: xr.DataArray, after: xr.DataArray) -> None:
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
        months = after.time.dt.strftime("%Y-%m").values
        for axis, version, title in zip(
            axes, (before, after), ("first-delivery", "now"), strict=True
        ):
            section = version.sel(latitude=0, method="nearest") - 273.15
            rows = dict(zip(version.time.dt.strftime("%Y-%m").values, section.values, strict=True))
            nothing = np.full(section.sizes["longitude"], np.nan)
            values = np.stack([rows.get(month, nothing) for month in months])
            axis.set_facecolor("white")
            land = np.isnan(section.values).all(axis=0)
            drawn = self._section(axis, after, values, land, "viridis", (20, 32))
            axis.set_title(title)
        figure.colorbar(drawn, ax=axes, label="sea surface temperature, °C", extend="min")
        self._save(figure, name)

    def hovmoller(self, name: str, anomaly: xr.DataArray) -> None:
        figure, axis = plt.subplots(figsize=(9, 5), layout="constrained")
        area = np.cos(np.deg2rad(anomaly.latitude))
        section = anomaly.weighted(area).mean("latitude")
        land = np.isnan(section.values).all(axis=0)
        drawn = self._section(axis, anomaly, section.values, land, "RdBu_r", (-2.5, 2.5))
        figure.colorbar(drawn, ax=axis, label="anomaly, K", extend="both")
        axis.axvspan(190, 240, facecolor="none", edgecolor="black", lw=1, ls="--")
        axis.annotate("Niño 3.4", (215, 1.01), xycoords=("data", "axes fraction"), ha="center")
        self._save(figure, name)

    @staticmethod
    def _section(
        axis: Any,
        array: xr.DataArray,
        values: np.ndarray,
        land: np.ndarray,
        colours: str,
        limits: tuple[float, float],
    ) -> Any:
        longitude, times = array.longitude.values, array.time.values
        drawn = axis.pcolormesh(
            longitude, times, values, cmap=colours, vmin=limits[0], vmax=limits[1]
        )
        shade = np.where(land, 1.0, np.nan)[None, :].repeat(len(times), axis=0)
        axis.pcolormesh(longitude, times, shade, cmap=mpl.colors.ListedColormap([LAND]))
        axis.set_xticks(range(0, 360, 60), [east_west(each) for each in range(0, 360, 60)])
        axis.set_xlabel("longitude")
        return drawn

    def scenarios(self, name: str, by_year: pd.DataFrame) -> None:
        figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
        smooth = by_year.rolling(11, center=True).mean()
        for scenario, colour in COLOURS.items():
            axis.plot(by_year.index, by_year[scenario], color=colour, lw=0.7, alpha=0.45)
            axis.plot(smooth.index, smooth[scenario], color=colour, lw=2.2)
            axis.annotate(
                scenario,
                (by_year.index[-1] + 2, smooth[scenario].dropna().iloc[-1]),
                color=colour,
                weight="bold",
                va="center",
            )
        axis.set(xlabel="year", ylabel="area-weighted mean, °C", xlim=(1858, 2116))
        axis.grid(alpha=0.25)
        self._save(figure, name)

    def warming(self, name: str, temperature: xr.DataArray) -> None:
        years = np.array([time.year for time in temperature.time.values])
        early = temperature.isel(time=(years >= 1861) & (years <= 1890)).mean("time")
        late = temperature.isel(time=(years >= 2070) & (years <= 2099)).mean("time")
        change = late - early
        figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
        for axis, scenario in zip(axes, COLOURS, strict=True):
            drawn = axis.pcolormesh(
                change.longitude,
                change.latitude,
                change.sel(scenario=scenario),
                cmap="magma_r",
                vmin=0,
                vmax=10,
            )
            self._map(axis, (225, 315), (15, 60), range(230, 316, 20), range(20, 61, 10))
            axis.set_title(f"Scenario {scenario}")
        figure.colorbar(drawn, ax=axes, label="warming, K", extend="max")
        self._save(figure, name)

    def ocean(self, name: str, ocean: xr.Dataset) -> None:
        # The last column of the grid is the neighbour of the first one.
        longitude, latitude, values = (
            np.pad(each.values, ((0, 0), (0, 1)), mode="wrap")
            for each in (ocean.nav_lon, ocean.nav_lat, ocean.tos.isel(time_counter=1))
        )
        longitude = 53 + (longitude - 53) % 360  # cut where there is little sea
        # Cells across the cut or the poles of the grid would be drawn across the whole map.
        wide = (np.abs(np.diff(longitude, axis=1))[:-1] > 20) | (
            np.abs(np.diff(longitude, axis=0))[:, :-1] > 20
        )
        figure, axis = plt.subplots(figsize=(10, 4.1), layout="constrained")
        axis.set_facecolor(LAND)
        cells = np.ma.masked_where(wide | np.isnan(values[:-1, :-1]), values[:-1, :-1])
        drawn = axis.pcolormesh(longitude, latitude, cells, cmap="viridis", vmin=-2, vmax=30)
        self._map(axis, (53, 413), (-78, 67), range(60, 411, 60), range(-60, 61, 30))
        figure.colorbar(drawn, ax=axis, label="sea surface temperature, °C", shrink=0.85)
        self._save(figure, name)

    def enso(self, name: str, nino: xr.DataArray, soi: xr.DataArray) -> None:
        soi = soi.sel(time=slice("2006-01", "2010-12"))
        figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
        for sign, colour in ((1, "#b2182b"), (-1, "#2166ac")):
            axis.fill_between(
                nino.time.values, 0, nino, where=sign * nino > 0, interpolate=True,
                color=colour, alpha=0.6, lw=0,
            )  # fmt: skip
        axis.plot(nino.time.values, nino.values, color="black", lw=1)
        axis.set_ylabel("Niño 3.4 anomaly, K")
        axis.set_ylim(-2.4, 2.4)
        other = axis.twinx()
        other.spines.right.set_visible(True)
        smooth = soi.rolling(time=5, center=True).mean()
        other.plot(soi.time.values, -smooth.values, color="#1b7837", lw=1.8)
        other.set_ylabel("-SOI (five-month mean), standardised", color="#1b7837")
        other.set_ylim(-2.4, 2.4)
        axis.grid(alpha=0.25)
        self._save(figure, name)

    @staticmethod
    def _map(
        axis: Any,
        east: tuple[float, float],
        north: tuple[float, float],
        meridians: range,
        parallels: range,
    ) -> None:
        for line in coastlines():
            for shift in (0, 360):
                longitude = line[:, 0] + shift
                if longitude.max() >= east[0] and longitude.min() <= east[1]:
                    axis.plot(longitude, line[:, 1], color="black", lw=0.6)
        axis.set(xlim=east, ylim=north)
        axis.set_xticks(list(meridians), [east_west(each) for each in meridians])
        axis.set_yticks(list(parallels), [north_south(each) for each in parallels])
        axis.set_aspect(1 / np.cos(np.deg2rad(np.clip(np.mean(north), -50, 50))))

    def _save(self, figure: Any, name: str) -> None:
        if self._is_synthetic:
            figure.text(
                0.5, 0.5, "SYNTHETIC DATA", fontsize=34, color="red", alpha=0.25, rotation=20,
                ha="center", va="center",
            )  # fmt: skip
        figure.savefig(self._folder / name)
        plt.close(figure)
