"""The main job, end to end on a laptop: real files, Spark, one repository, SQL, pictures.

`make demo` runs it: Spark in local mode, everything under build/demo, no network. It ends with a
report in HTML.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import demo_chapters as chapters
import numpy as np
import xarray as xr
from demo_data import Archive, find_samples
from demo_pictures import Pictures
from demo_report import Report, body_of

import icefloe
import icefloe.spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from icefloe.spark import IngestReport

# Of other libraries, about each other.
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")

ROOT = Path(__file__).resolve().parent.parent
BROKEN, WRONG = "2008-06", "2007-11"
COLOURFUL = sys.stdout.isatty() and "NO_COLOR" not in os.environ
ARCHIVES = (
    ("sst", "OSTIA, satellites and buoys: monthly sea surface temperature at the equator"),
    ("scenarios", "Unified Model: North America 1860 to 2099, emission scenarios A1B and E1"),
    ("ocean", "NEMO: sea surface temperature of three months on its own curvilinear grid"),
    ("index", "Southern Oscillation Index: monthly, from the air pressure at Darwin since 1866"),
)
MADE_UP_ARCHIVES = (
    ("sst", "made up: monthly sea surface temperature at the equator"),
    ("scenarios", "made up: North America 1860 to 2099, scenarios A1B and E1"),
    ("ocean", "made up: sea surface temperature of three months on a curvilinear grid"),
    ("index", "made up: a monthly index, random numbers"),
)
SET_UP = """\
from pathlib import Path
from typing import Any

import icefloe
import icefloe.spark
import xarray as xr
from icefloe.spark import GapFree, HasUnits, InRange, ingest, validate
from icefloe.xarray import to_icefloe

spark = icefloe.spark.local_session(2)  # or the session of your cluster
files = Path("build/demo/files").absolute()
place = Path("build/demo/repository")
"""


LOOK = '.venv/bin/icefloe ui build/demo/repository --authorize "file://$PWD/build/demo/files/"'


def painted(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURFUL else text


class Story:
    """Numbered chapters: why, the code that does it, and what came of it."""

    def __init__(self, report: Report, *, is_synthetic: bool) -> None:
        self.is_synthetic = is_synthetic
        self.number = 0
        self.started = time.perf_counter()
        self.report = report

    def chapter(self, title: str, text: str) -> None:
        self.number += 1
        if self.is_synthetic:
            title += " (synthetic data)"
        seconds = time.perf_counter() - self.started
        print(
            f"\n{painted(f'{self.number}. {title}', '1;36')}  {painted(f'[{seconds:.0f} s]', '2')}"
        )
        self.report.chapter(f"{self.number}. {title}", text)

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Show the body of a function, and call it."""
        self.show(body_of(step))
        return step(*arguments)

    def show(self, code: str) -> None:
        for line in code.rstrip().splitlines():
            print(f"   {painted(line, '2')}")
        self.report.code(code)

    def say(self, text: str) -> None:
        for line in text.splitlines():
            print(f"   {line}")
        self.report.paragraph(text)

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

    def figure(self, name: str, caption: str) -> None:
        print(f"   {painted(f'picture: {name}', '2')}")
        if self.is_synthetic:
            caption = f"SYNTHETIC DATA. {caption}"
        self.report.figure(name, caption)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def size_of(repository: Path) -> int:
    """Bytes of a repository, without the room that local storage reserves for a full disk."""
    files = [path for path in repository.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if ".icefloe-tmp" not in path.parts)


def readable(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def tell_files(story: Story, archive: Archive) -> None:
    story.chapter(
        "The files",
        "Four archives, as institutes publish them: NetCDF files that differ in grid, calendar and "
        "variable names. Two things have gone wrong, as they do: the download of one month broke "
        "off, and another month holds degrees Celsius although its units say kelvin. "
        + (
            "All values are made up; the layout is that of real files."
            if archive.samples.is_synthetic
            else "(We added these two faults; all other values are the originals.)"
        ),
    )
    rows = MADE_UP_ARCHIVES if archive.samples.is_synthetic else ARCHIVES
    story.table(
        ["archive", "files", "size", "what it is"],
        [
            (name, len(list((archive.folder / name).iterdir())),
             readable(archive.size(archive.folder / name)), what)
            for name, what in rows
        ],
    )  # fmt: skip
    story.say(archive.samples.credit)


def table_of_reports(story: Story, reports: Iterable[tuple[str, IngestReport]]) -> None:
    story.table(
        ["group", "new", "replaced", "unchanged", "quarantined", "references"],
        [
            (name, len(each.new), len(each.replaced), len(each.unchanged), len(each.broken),
             each.job.chunks)
            for name, each in reports
        ],
    )  # fmt: skip


def bring_in(story: Story, spark: Any, repo: icefloe.Repository, archive: Archive) -> int:
    story.chapter(
        "Bring them in through Spark, by reference",
        "Executors read the headers of the files and record where each chunk is; no values are "
        "copied. Coordinates decide how the files fit together, and each call is one commit. The "
        "scenario is a dimension that no file has: it comes from the file names. The broken file "
        "is quarantined, and the rest is ingested.",
    )
    reports = story.run(chapters.first_delivery, spark, repo, archive.folder)
    table_of_reports(story, zip(("/sst", "/scenarios", "/index"), reports, strict=True))
    for broken in reports[0].broken:
        sizes = re.findall(r"eof = (\d+)", broken.reason)
        found, expected = map(int, sizes) if len(sizes) == 2 else (0, 0)
        name = broken.url.rpartition("/")[2]
        story.say(
            f"{broken.action.capitalize()}: {name} is truncated ({found:,} of {expected:,} bytes)."
        )
    return sum(report.job.chunks for report in reports)


def next_delivery(
    story: Story, spark: Any, repo: icefloe.Repository, archive: Archive, pictures: Pictures
) -> int:
    story.chapter(
        "A correction arrives: run the same line again",
        f"The archive delivers a complete {BROKEN}, a second version of {WRONG}, and two new "
        "months. Files that have not changed are not opened. The corrected month replaces the "
        "wrong one, the late month is inserted where it belongs, and the earlier version stays "
        "readable by its tag. (Had the archive overwritten the wrong file, reading it in the old "
        "version would raise an error: a reference records the state of the file it was made for.)",
    )
    archive.deliver([BROKEN, *archive.months[-2:]])
    archive.deliver([WRONG], version=2)
    report, again = story.run(chapters.second_delivery, spark, repo, archive.folder)
    table_of_reports(story, [("/sst", report), ("/sst, again", again)])
    before, after = story.run(chapters.before_and_after, repo)
    pictures.before_and_after("before-after.png", before, after)
    story.figure(
        "before-after.png",
        "Time travel: sea surface temperature at the equator in the version tagged first-delivery"
        f" and in the newest one. {WRONG} was far too cold, {BROKEN} was missing, and two months "
        "had not arrived. Land is grey.",
    )
    return int(report.job.chunks)


def ask(story: Story, spark: Any, repo: icefloe.Repository, pictures: Pictures) -> None:
    story.chapter(
        "Ask in SQL, weighted by area",
        "Arrays are tables. Grid cells shrink towards the pole, so a plain average would count "
        "Canada twice: the weights are the cosine of latitude. This model uses a 360-day calendar, "
        "which SQL has no type for, so its times are text.",
    )
    story.show(f'MEANS_BY_YEAR = """{chapters.MEANS_BY_YEAR}"""')
    by_year = story.run(chapters.warming, spark, repo)
    periods = [(1861, 1890), (1971, 2000), (2070, 2099)]
    means = {period: by_year.loc[period[0] : period[1]].mean() for period in periods}
    story.table(
        ["period", "A1B, °C", "E1, °C"],
        [(f"{a} to {b}", float(row["A1B"]), float(row["E1"])) for (a, b), row in means.items()],
    )
    pictures.scenarios("scenarios.png", by_year)
    story.figure(
        "scenarios.png",
        "Annual mean air temperature at 1.5 m over North America and the seas around it (15°N to "
        "60°N, 135°W to 45°W), with its running mean over 11 years: two scenarios with a common "
        "past.",
    )
    pictures.warming("warming.png", chapters.opened(repo, "scenarios").air_temperature)
    story.figure(
        "warming.png",
        "Warming from 1861-1890 to 2070-2099 in each scenario, read through references with "
        "xarray. Coastlines: Natural Earth.",
    )


def compute(story: Story, spark: Any, repo: icefloe.Repository, pictures: Pictures) -> None:
    story.chapter(
        "A climatology and anomalies, on the cluster",
        "Reductions and block functions run on numpy arrays in the executors; cells never become "
        "rows in Spark. Both results are arrays with coordinates, and each is one commit.",
    )
    for report in story.run(chapters.climatology, spark, repo):
        story.say(str(report).rpartition(";")[0])
    index = story.run(chapters.nino34, repo)
    pictures.hovmoller("anomaly.png", chapters.opened(repo, "sst").anomaly)
    story.figure(
        "anomaly.png",
        "Hovmöller diagram of the anomaly along the equator (5°S to 5°N), against the monthly "
        "means of these four and a half years: La Niña of 2007/08 and El Niño of 2009/10 in the "
        "Pacific.",
    )
    pictures.enso("enso.png", index, chapters.opened(repo, "index").SOI_Darwin)
    story.figure(
        "enso.png",
        "The Niño 3.4 index from these anomalies, and the Southern Oscillation Index (sign "
        "reversed, five-month running mean), which comes from the barometer at Darwin: two "
        "independent archives.",
    )


def work_together(
    story: Story, spark: Any, repo: icefloe.Repository, archive: Archive, pictures: Pictures
) -> None:
    story.chapter(
        "Two people, two branches, one mistake",
        "Ana and Ben work at the same time, each on a branch; readers of main see neither. Before"
        " Ana publishes, expectations check her branch: every sea surface temperature is between "
        "-2 and 40 °C, the units are right, and no month is missing.",
    )
    mistake = story.run(chapters.mistake_on_a_branch, spark, repo, archive.folder)
    checked = story.run(chapters.expectation, spark, repo)
    for failure in checked.failures:
        story.say(f"Expectation not met: {failure.detail}")
    story.say(
        "Nobody else has seen it. She reverts the commit, corrects the sign, and both branches are "
        "merged:"
    )
    story.run(chapters.mend_and_merge, repo, mistake)
    checked = chapters.expectation(spark, repo)
    if checked.failures:
        raise AssertionError(checked)
    story.say("The expectations again: all are met.")
    graph = repo.ancestry_graph()
    for line in str(graph).splitlines():
        print(f"   {line}")
    story.report.svg(graph.to_svg(), "Every job, delivery, mistake and merge of this page.")
    ocean = chapters.opened(repo, "ocean")
    pictures.ocean("ocean.png", ocean)
    story.figure(
        "ocean.png",
        "What Ben added: sea surface temperature of February 2015 in NEMO, on its own curvilinear "
        "grid.",
    )


def change_chunks(story: Story, spark: Any, repo: icefloe.Repository) -> None:
    story.chapter(
        "Chunks for time series",
        "The files have one chunk for each year: good for maps, bad for time series. Rechunking "
        "rewrites the array with other chunks in one commit. That is a trade-off, so both sides "
        "are measured, each by five new sessions.",
    )
    series, one_map = (slice(None), slice(None), 20, 24), (0, 100)
    before = [chapters.milliseconds(repo, *region) for region in (series, one_map)]
    report = story.run(chapters.rechunk, spark, repo)
    after = [chapters.milliseconds(repo, *region) for region in (series, one_map)]
    story.table(
        ["read", "before", "", "after", ""],
        [
            ("240 years at one place, both scenarios", "480 chunks", f"{before[0]:.1f} ms",
             "1 chunk", f"{after[0]:.1f} ms"),
            ("a map of one year", "1 chunk", f"{before[1]:.1f} ms",
             f"{report.chunks} chunks", f"{after[1]:.1f} ms"),
        ],
    )  # fmt: skip


def tell_costs(story: Story, archive: Archive, sizes: dict[str, int]) -> None:
    story.chapter(
        "What it cost",
        "A reference takes a few bytes for each chunk, and versions share what they have in "
        "common. Only what was computed here is stored: the climatology, anomalies, degrees Celsius"
        " and the rechunked array.",
    )
    story.table(
        ["what", "size"],
        [("all files of the archives", readable(archive.size())), *(
            (name, readable(size)) for name, size in sizes.items()
        )],
    )  # fmt: skip


def check(repo: icefloe.Repository, archive: Archive) -> None:
    """What the repository says is what the original files say."""
    folder = archive.samples.folder
    with xr.open_dataset(folder / "ostia_monthly.nc") as expected:
        sst = chapters.opened(repo, "sst")
        np.testing.assert_array_equal(sst.time, expected.time)
        np.testing.assert_array_equal(sst.surface_temperature, expected.surface_temperature)
        np.testing.assert_allclose(sst.celsius, expected.surface_temperature - 273.15, atol=1e-3)
    scenarios = chapters.opened(repo, "scenarios").air_temperature
    for name in ("A1B", "E1"):
        with xr.open_dataset(folder / f"{name}_north_america.nc") as expected:
            np.testing.assert_array_equal(scenarios.sel(scenario=name), expected.air_temperature)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo")
    parser.add_argument("--synthetic", action="store_true", help="made-up files, labelled as such")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    samples = find_samples(folder / "synthetic", synthetic=options.synthetic)
    if samples.is_synthetic:
        print(samples.credit)
    archive = Archive(samples, folder / "files")
    archive.deliver(archive.months[:-2])
    archive.truncate(BROKEN)
    archive.confuse_units(WRONG)

    report = Report(folder, samples.credit, is_synthetic=samples.is_synthetic)
    pictures = Pictures(folder, is_synthetic=samples.is_synthetic)
    story = Story(report, is_synthetic=samples.is_synthetic)
    tell_files(story, archive)
    print("\nStarting Spark in local mode ...")
    spark = icefloe.spark.local_session(cores=2, name="icefloe demo")
    try:
        tell_story(story, spark, archive, pictures)
    finally:
        spark.stop()
    page = report.write()
    if samples.is_synthetic:
        print(f"\n{samples.credit}")
    print(f"\nDone in {time.perf_counter() - story.started:.0f} s. Open {os.path.relpath(page)}")
    return 0


def tell_story(story: Story, spark: Any, archive: Archive, pictures: Pictures) -> None:
    story.chapter(
        "A repository that may refer to them",
        "A repository reads files outside of itself only where you allow it: once in its "
        "configuration, and again each time that somebody opens it.",
    )
    story.show(SET_UP + "\n\n" + body_of(chapters.opened, with_signature=True))
    place = archive.folder.parent / "repository"
    repo = story.run(chapters.create_repository, archive.folder, place)
    references = bring_in(story, spark, repo, archive)
    references += next_delivery(story, spark, repo, archive, pictures)
    sizes = {f"the repository with {references:,} references to them": size_of(place)}
    ask(story, spark, repo, pictures)
    compute(story, spark, repo, pictures)
    work_together(story, spark, repo, archive, pictures)
    change_chunks(story, spark, repo)
    sizes[f"the same with all results and {len(list(repo.ancestry(branch='main')))} commits"] = (
        size_of(place)
    )
    tell_costs(story, archive, sizes)
    check(repo, archive)
    story.chapter(
        "Look at it in a browser",
        "The viewer shows the history of a repository, its arrays, and what changed.",
    )
    story.report.next_steps(LOOK, ROOT / "docs" / "pictures" / "viewer-array.png")
    print(f"   {LOOK}")


if __name__ == "__main__":
    sys.exit(main())
