"""The report of the demo: pictures and a page of HTML that shows what was done."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import xarray as xr

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2733; }
h1, h2 { font-weight: 600; color: #0b3c5d; } h2 { margin-top: 2.2rem; font-size: 1.2rem; }
pre { background: #f3f6f9; padding: .7rem 1rem; border-radius: 6px; overflow-x: auto;
      font-size: .85rem; }
pre.code { border-left: 4px solid #328cc1; }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem; text-align: right; }
tr:nth-child(even) { background: #f3f6f9; } th { border-bottom: 2px solid #328cc1; }
img, svg { max-width: 100%; }
"""


class Report:
    """Collects what the demo says; writes it with pictures as one page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[str] = []
        self._pictures: list[str] = []

    def chapter(self, title: str) -> None:
        self._parts.append(f"<h2>{escape(title)}</h2>")

    def code(self, text: str) -> None:
        self._parts.append(f'<pre class="code">{escape(text)}</pre>')

    def text(self, text: str) -> None:
        self._parts.append(f"<pre>{escape(text.rstrip())}</pre>")

    def svg(self, picture: str) -> None:
        self._parts[-1] = picture  # better than the same as text

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
        lines = (
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        self._parts.append(f"<table><tr>{head}</tr>{''.join(lines)}</table>")

    # --- pictures

    def maps(self, name: str, climate: xr.DataArray, months: tuple[int, ...]) -> None:
        titles = {1: "January", 4: "April", 7: "July", 10: "October"}
        figure, axes = plt.subplots(2, 2, figsize=(11, 6), layout="constrained")
        for axis, month in zip(axes.flat, months, strict=True):
            drawn = self._map(axis, climate.sel(month=month) - 273.15, "RdYlBu_r", (-45, 35))
            axis.set_title(titles[month])
        figure.colorbar(drawn, ax=axes, label="mean temperature, °C", shrink=0.8)
        figure.suptitle("Climatology 2023 and 2024, reduced on Spark")
        self._save(figure, name)

    def rain(self, name: str, values: xr.DataArray) -> None:
        figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
        drawn = self._map(axis, values, "YlGnBu", (0, float(np.nanquantile(values, 0.99))))
        figure.colorbar(drawn, ax=axis, label="mm per day")
        axis.set_title("Mean precipitation, December 2024, read through references")
        self._save(figure, name)

    def series(self, name: str, lines: Mapping[str, xr.DataArray]) -> None:
        figure, axis = plt.subplots(figsize=(11, 3.6), layout="constrained")
        for place, line in lines.items():
            axis.plot(line["time"].values, line.values - 273.15, lw=0.9, label=place)
        axis.set_ylabel("°C")
        axis.grid(alpha=0.3)
        axis.legend(loc="lower center", ncols=len(lines), frameon=False)
        axis.set_ylim(bottom=-35)
        axis.set_title("Two years at three places, from chunks made for time series")
        self._save(figure, name)

    @staticmethod
    def _map(axis: Any, values: xr.DataArray, colours: str, limits: tuple[float, float]) -> Any:
        axis.set_xticks([-120, -60, 0, 60, 120])
        axis.set_yticks([-60, -30, 0, 30, 60])
        return axis.pcolormesh(
            values["lon"],
            values["lat"],
            values.values,
            cmap=colours,
            vmin=limits[0],
            vmax=limits[1],
        )

    def _save(self, figure: Any, name: str) -> None:
        figure.savefig(self._folder / name, dpi=110)
        plt.close(figure)
        self._pictures.append(name)

    def write(self) -> Path:
        """Write the page; returns where it is."""
        pictures = "".join(f'<p><img src="{name}" alt="{name}"></p>' for name in self._pictures)
        page = self._folder / "report.html"
        page.write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>icefloe demo</title>'
            f"<style>{STYLE}</style><h1>What the demo did</h1>{pictures}{''.join(self._parts)}"
            "</html>",
            encoding="utf-8",
        )
        return page
