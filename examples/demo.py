"""The main job, end to end on a laptop: files, Spark, one repository, SQL, pictures.

`make demo` runs it: Spark in local mode, everything under build/demo, no network. It ends with a
report in HTML.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from demo_files import break_file, write_month
from demo_report import Report

import icefloe
import icefloe.spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

# Of other libraries, about each other.
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")

ROOT = Path(__file__).resolve().parent.parent
MONTHS = [f"{year}-{month:02}" for year in (2023, 2024) for month in range(1, 13)]
BROKEN = "2024-05"
PLACES = {"Basel": (47.5, 7.5), "Nairobi": (-2.5, 37.5), "Manaus": (-2.5, -60.0)}
COLOURFUL = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def painted(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURFUL else text


class Story:
    """Numbered chapters, with the call that does the work shown beside what came of it."""

    def __init__(self, report: Report) -> None:
        self.number = 0
        self.started = time.perf_counter()
        self.report = report

    def chapter(self, title: str) -> None:
        self.number += 1
        print(f"\n{painted(f'{self.number}. {title}', '1;36')}")
        self.report.chapter(f"{self.number}. {title}")

    def call(self, code: str) -> None:
        for line in code.splitlines():
            print(f"   {painted('>>> ' + line, '2')}")
        self.report.code(code)

    def say(self, text: object) -> None:
        for line in str(text).rstrip().splitlines():
            print(f"   {line}")
        self.report.text(str(text))

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        cells = [[_cell(value) for value in row] for row in rows]
        columns = list(zip(headings, *cells, strict=True))
        widths = [max(map(len, column)) for column in columns]

        def line(row: Sequence[str]) -> str:
            return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))

        print(f"   {painted(line(headings), '1')}")
        for row in cells:
            print(f"   {line(row)}".rstrip())
        self.report.table(headings, cells)


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


# --- the chapters --------------------------------------------------------------------------------


def make_files(story: Story, folder: Path) -> Path:
    story.chapter("Files arrive: a month of weather in each, one of them broken")
    files = folder / "files"
    files.mkdir(parents=True)
    for month in MONTHS[:-1]:
        write_month(files, month)
    break_file(files / f"reanalysis-{BROKEN}.nc")
    size = sum(path.stat().st_size for path in files.iterdir())
    story.say(f"{len(MONTHS) - 1} NetCDF files, {size / 1e6:.0f} MB: t2m (packed), pr, daily")
    return files


def create(story: Story, folder: Path, files: Path) -> icefloe.Repository:
    story.chapter("Create a repository that may refer to these files")
    prefix = files.as_uri() + "/"
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(files)))
    )
    story.call('repo = icefloe.Repository.create("build/demo/repository", config, …)')
    return icefloe.Repository.create(
        folder / "repository", config, authorize_virtual_chunk_access={prefix: None}
    )


def ingest_virtually(
    story: Story, spark: SparkSession, repo: icefloe.Repository, files: Path
) -> None:
    story.chapter("Bring them in through Spark, by reference: no value is copied")
    story.call('icefloe.spark.ingest(spark, repo, "files/*.nc", on_broken="quarantine")')
    report = icefloe.spark.ingest(
        spark, repo, str(files / "*.nc"), on_broken="quarantine", message="2023 to November 2024"
    )
    story.say(report)


def append(story: Story, spark: SparkSession, repo: icefloe.Repository, files: Path) -> None:
    story.chapter("December arrives, and the broken file again: run the same job")
    repo.create_tag("november", repo.lookup_branch("main"))
    for month in (BROKEN, MONTHS[-1]):
        write_month(files, month)
    story.call('icefloe.spark.ingest(spark, repo, "files/*.nc")')
    report = icefloe.spark.ingest(
        spark, repo, str(files / "*.nc"), message="December 2024, and May again"
    )
    story.say(report)
    again = icefloe.spark.ingest(spark, repo, str(files / "*.nc"))
    story.say(f"once more, nothing is new: {len(again.unchanged)} files unchanged, no commit")


def copy_in(story: Story, spark: SparkSession, repo: icefloe.Repository, files: Path) -> None:
    story.chapter("The same files as a copy: decoded, in chunks of a quarter, compressed")
    chunks = {"time": 92, "lat": 73, "lon": 48}
    story.call('icefloe.spark.ingest(spark, repo, "files/*.nc", mode="copy", group="/copy", …)')
    report = icefloe.spark.ingest(
        spark,
        repo,
        str(files / "*.nc"),
        mode="copy",
        group="/copy",
        decode=True,
        chunks=chunks,
        message="A copy of both years",
    )
    story.say(report)


def query(story: Story, spark: SparkSession, repo: icefloe.Repository) -> None:
    story.chapter("Arrays are tables: ask with SQL")
    story.call('icefloe.spark.register(spark, repo, "weather")')
    icefloe.spark.register(
        spark, repo, "weather", sel={"lat": slice(35.0, 60.0), "lon": slice(-10.0, 30.0)}
    )
    sql = """SELECT year(time) AS year, quarter(time) AS quarter,
       avg(t2m) - 273.15 AS mean, max(t2m) - 273.15 AS warmest,
       sum(pr) / count(DISTINCT lat, lon) AS rain
FROM weather GROUP BY 1, 2 ORDER BY 1, 2"""
    story.call(sql)
    rows = spark.sql(sql).collect()
    story.table(["year", "quarter", "mean °C", "warmest °C", "rain mm"], rows)


def climatology(story: Story, spark: SparkSession, repo: icefloe.Repository) -> xr.DataArray:
    story.chapter("A monthly climatology, computed on the cluster")
    call = 'icefloe.spark.reduce(spark, repo, "/t2m", "mean", "/climate/t2m", by="time.month")'
    story.call(call)
    report = icefloe.spark.reduce(
        spark, repo, "/t2m", "mean", "/climate/t2m", by="time.month", message="Climatology"
    )
    story.say(report)
    return opened(repo, group="climate")["t2m"].load()


def rechunk(story: Story, spark: SparkSession, repo: icefloe.Repository) -> None:
    story.chapter("Chunks for time series: rechunk, in one transaction")
    before = time_of_series(repo)
    story.call('icefloe.spark.rechunk(spark, repo, "/copy/t2m", {"time": -1, "lat": 8, "lon": 8})')
    report = icefloe.spark.rechunk(
        spark,
        repo,
        "/copy/t2m",
        {"time": -1, "lat": 8, "lon": 8},
        message="Chunks for time series",
    )
    story.say(report)
    after = time_of_series(repo)
    story.say(f"two years at one place: {before * 1e3:.0f} ms before, {after * 1e3:.0f} ms now")


def time_of_series(repo: icefloe.Repository) -> float:
    session = repo.readonly_session("main")
    session.read_region("/copy/t2m", (slice(0, 1), 0, 0))  # opens the manifest
    started = time.perf_counter()
    session.read_region("/copy/t2m", (slice(None), 40, 75))
    return time.perf_counter() - started


def look_back(story: Story, repo: icefloe.Repository) -> tuple[xr.Dataset, xr.Dataset]:
    story.chapter("What happened? History, differences, time travel")
    story.call("print(repo.ancestry_graph())")
    story.say(repo.ancestry_graph())
    story.report.svg(repo.ancestry_graph().to_svg())
    story.call('print(repo.diff(from_tag="november", to_branch="main"))')
    diff = repo.diff(from_tag="november", to_branch="main")
    counts = {path: len(index) for path, index in diff.chunk_indexes().items()}
    story.table(["array", "chunks written"], sorted(counts.items()))
    old, new = opened(repo, tag="november"), opened(repo)
    for name, data in (("november", old), ("main", new)):
        days = data.sizes["time"]
        first, last = data.time.values[[0, -1]].astype("datetime64[D]")
        story.say(f"{name}: {days} days, {first} to {last}")
    return old, new


def opened(
    repo: icefloe.Repository, group: str | None = None, tag: str | None = None
) -> xr.Dataset:
    session = repo.readonly_session(None if tag else "main", tag=tag)
    return xr.open_zarr(session.store, group=group, consolidated=False, chunks=None)


def draw(report: Report, repo: icefloe.Repository, climate: xr.DataArray, new: xr.Dataset) -> None:
    report.maps("climatology.png", climate, months=(1, 4, 7, 10))
    series = opened(repo, group="copy")["t2m"]
    lines = {name: series.sel(lat=lat, lon=lon) for name, (lat, lon) in PLACES.items()}
    report.series("places.png", lines)
    rain = new["pr"].sel(time=slice("2024-12-01", "2024-12-31")).mean("time")
    report.rain("december.png", rain)


# --- all of it -----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo")
    folder: Path = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    report = Report(folder)
    story = Story(report)

    print("Starting Spark in local mode ...")
    spark = icefloe.spark.local_session(cores=2, name="icefloe demo")
    try:
        files = make_files(story, folder)
        repo = create(story, folder, files)
        ingest_virtually(story, spark, repo, files)
        append(story, spark, repo, files)
        query(story, spark, repo)
        climate = climatology(story, spark, repo)
        copy_in(story, spark, repo, files)
        rechunk(story, spark, repo)
        _, new = look_back(story, repo)
        check(repo, files)
    finally:
        spark.stop()
    draw(report, repo, climate, new)
    page = report.write()
    print(f"\nDone in {time.perf_counter() - story.started:.0f} s. Open {os.path.relpath(page)}")
    return 0


def check(repo: icefloe.Repository, files: Path) -> None:
    """What the repository says is what the files say."""
    with xr.open_mfdataset(str(files / "*.nc"), chunks=None) as expected:
        for group in (None, "copy"):
            found = opened(repo, group=group)
            np.testing.assert_array_equal(found["time"], expected["time"])
            for name in ("t2m", "pr"):
                day = {"time": slice("2024-05-10", "2024-05-12")}
                np.testing.assert_allclose(
                    found[name].sel(day), expected[name].sel(day), rtol=1e-6, equal_nan=True
                )


if __name__ == "__main__":
    sys.exit(main())
