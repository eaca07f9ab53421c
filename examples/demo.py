"""The story of a climate dataset that is versioned from its first day, on local files.

`make demo` runs it. Everything is written under build/demo: the repository, and a picture of two
versions of the same day and their difference. Nothing needs a network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

import icefloe
from icefloe.xarray import to_icefloe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parent.parent
FAULTY_DAY = "2026-01-17"
STATION = {"lat": 47.5, "lon": 7.5}
COLOURFUL = sys.stdout.isatty() and "NO_COLOR" not in os.environ


# --- what it prints ------------------------------------------------------------------------------


def painted(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURFUL else text


class Story:
    """Numbered chapters, with the call that does the work shown beside what came of it."""

    def __init__(self) -> None:
        self.chapter_number = 0
        self.started = time.perf_counter()

    def chapter(self, title: str) -> None:
        self.chapter_number += 1
        print(f"\n{painted(f'{self.chapter_number}. {title}', '1;36')}")

    def call(self, code: str) -> None:
        print(f"   {painted('>>> ' + code, '2')}")

    def say(self, text: str) -> None:
        print(f"   {text}")

    def report(self, difference: icefloe.Diff) -> None:
        for line in str(difference).strip().splitlines():
            self.say(f"  {line}".rstrip())

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        rows = [list(row) for row in rows]
        columns = list(zip(headings, *rows, strict=True))
        widths = [max(len(cell) for cell in column) for column in columns]

        def line(cells: Sequence[str]) -> str:
            return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))

        self.say(painted(line(headings), "1").rstrip())
        self.say("  ".join("─" * width for width in widths))
        for row in rows:
            self.say(line(row).rstrip())

    def end(self) -> None:
        print(f"\nDone in {time.perf_counter() - self.started:.1f} s.")


# --- the data ------------------------------------------------------------------------------------


def one_month(month: str, seed: int) -> xr.Dataset:
    """Daily near-surface temperature and precipitation of one month on a 2.5 degree grid."""
    random = np.random.default_rng(seed)
    start = pd.Timestamp(month)
    times = pd.date_range(start, periods=start.days_in_month, freq="D")
    lat = np.arange(-90, 90.1, 2.5)
    lon = np.arange(-180, 180, 2.5)
    day = times.day_of_year.to_numpy()[:, None, None]
    latitude = np.deg2rad(lat)[None, :, None]
    longitude = np.deg2rad(lon)[None, None, :]

    season = -np.cos(2 * np.pi * (day - 15) / 365.25) * np.sin(latitude)
    waves = np.zeros((len(times), len(lat), len(lon)))
    for number, strength, speed in ((2, 3.0, 4), (3, 2.5, 7), (5, 2.0, 13), (7, 1.0, 21)):
        tilt = number * longitude + (number + 1) * latitude - 2 * np.pi * day * speed / 90
        waves += strength * np.cos(tilt) * np.sin(2 * latitude) ** 2
    temperature = 250 + 48 * np.cos(latitude) ** 2 + 14 * season + 2 * waves
    temperature += random.normal(0, 0.8, size=waves.shape)
    wet = 3 * np.exp(-((np.rad2deg(latitude) / 12) ** 2)) + np.maximum(waves, 0) / 4
    rain = random.gamma(0.6, 1.0, size=waves.shape) * wet / 86400

    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {
            "tas": (dims, temperature.astype("float32"), {
                "standard_name": "air_temperature",
                "long_name": "Near-surface air temperature",
                "units": "K",
                "cell_methods": "time: mean",
            }),
            "pr": (dims, rain.astype("float32"), {
                "standard_name": "precipitation_flux",
                "long_name": "Precipitation",
                "units": "kg m-2 s-1",
                "cell_methods": "time: mean",
            }),
        },
        coords={
            "time": ("time", times, {"standard_name": "time", "axis": "T"}),
            "lat": ("lat", lat, {"standard_name": "latitude", "units": "degrees_north"}),
            "lon": ("lon", lon, {"standard_name": "longitude", "units": "degrees_east"}),
        },
        attrs={"Conventions": "CF-1.11", "title": "A small made-up reanalysis"},
    )  # fmt: skip


def january_with_a_faulty_sensor() -> xr.Dataset:
    """One region reads 25 K too warm for a day."""
    january = one_month("2026-01", seed=1)
    region = {"time": FAULTY_DAY, "lat": slice(40, 55), "lon": slice(0, 20)}
    january["tas"].loc[region] += 25
    return january


def encoding() -> dict[str, dict[str, object]]:
    chunks = (31, 73, 72)
    return {
        "tas": {"chunks": chunks},
        "pr": {"chunks": chunks},
        "time": {"units": "days since 2026-01-01", "calendar": "standard", "chunks": (365,)},
    }


def dataset(session: icefloe.Session) -> xr.Dataset:
    return xr.open_zarr(session.store, consolidated=False)


def at_the_station(data: xr.Dataset, name: str = "tas") -> str:
    value = data[name].sel(**STATION).sel(time=FAULTY_DAY)
    return f"{float(value) - 273.15:.1f} °C"


# --- the story -----------------------------------------------------------------------------------


def create(story: Story, folder: Path) -> icefloe.Repository:
    story.chapter("Create a repository: an ordinary folder, it could be a bucket")
    location = folder / "repository"
    story.call(f'repo = icefloe.Repository.create("{location.relative_to(folder.parent)}")')
    repo = icefloe.Repository.create(location)
    story.say(f"branches: {sorted(repo.list_branches())}")
    return repo


def write_january(story: Story, repo: icefloe.Repository) -> str:
    story.chapter("Write January with xarray, then commit")
    data = january_with_a_faulty_sensor()
    sizes = ", ".join(f"{name} {size}" for name, size in data.sizes.items())
    story.say(f"{', '.join(map(str, data.data_vars))} over {sizes}; {data.nbytes / 1e6:.0f} MB")
    session = repo.writable_session("main")
    story.call("to_icefloe(january, session); session.commit(...)")
    to_icefloe(data, session, mode="w", encoding=encoding())
    snapshot = session.commit("January 2026", {"source": "station network", "level": "raw"})
    story.say(f"snapshot {snapshot}")
    return snapshot


def append_february(story: Story, repo: icefloe.Repository) -> str:
    story.chapter("February arrives: append along time")
    session = repo.writable_session("main")
    story.call('to_icefloe(february, session, append_dim="time", mode="a-")')
    to_icefloe(one_month("2026-02", seed=2), session, append_dim="time", mode="a-")
    story.say("what the session would commit:")
    story.report(session.status())
    snapshot = session.commit("February 2026", {"source": "station network", "level": "raw"})
    data = dataset(repo.readonly_session("main"))
    first, last = data.time.values[[0, -1]].astype("datetime64[D]")
    story.say(f"main now holds {data.sizes['time']} days, {first} to {last}")
    repo.create_tag("2026-02-release", snapshot)
    story.say("tagged as '2026-02-release'; a tag never moves")
    return snapshot


def correct_on_a_branch(story: Story, repo: icefloe.Repository) -> str:
    story.chapter("A sensor was faulty: correct it on a branch, main stays as it is")
    repo.create_branch("recalibration", repo.lookup_branch("main"))
    session = repo.writable_session("recalibration")
    data = dataset(session)
    region = data[["tas"]].sel(time=[FAULTY_DAY], lat=slice(40, 55), lon=slice(0, 20))
    story.call('to_icefloe(corrected, session, region="auto")  # finds its place by coordinates')
    to_icefloe(region.load() - 25, session, region="auto")
    snapshot = session.commit("Correct the sensor fault of 17 January", {"ticket": 42})
    on_main = at_the_station(dataset(repo.readonly_session("main")))
    on_branch = at_the_station(dataset(repo.readonly_session("recalibration")))
    story.say(f"47.5° N 7.5° E on {FAULTY_DAY}:  main {on_main},  recalibration {on_branch}")
    return snapshot


def compare(story: Story, repo: icefloe.Repository) -> None:
    story.chapter("What differs? Asked of the history, no data is read")
    story.call('repo.diff(from_branch="main", to_branch="recalibration")')
    story.report(repo.diff(from_branch="main", to_branch="recalibration"))


def adopt(story: Story, repo: icefloe.Repository, corrected: str) -> None:
    story.chapter("The correction is reviewed: move main onto it")
    story.call('repo.reset_branch("main", corrected, from_snapshot_id=<what we reviewed>)')
    repo.reset_branch("main", corrected, from_snapshot_id=repo.lookup_branch("main"))
    story.say("refused if somebody had moved main meanwhile; nobody has")


def two_writers(story: Story, repo: icefloe.Repository) -> None:
    story.chapter("Two people write to main at the same time")
    anna, ben = repo.writable_session("main"), repo.writable_session("main")
    import zarr

    rain = zarr.open_array(anna.store, path="pr", mode="r+")
    rain[:, :, :72] = np.asarray(rain[:, :, :72]) * np.float32(1.02)
    temperature = zarr.open_array(ben.store, path="tas", mode="r+")
    temperature[31:, :, 72:] = np.asarray(temperature[31:, :, 72:]) + np.float32(0.1)
    anna.commit("Gauge undercatch: precipitation +2 %")
    story.say("Anna changed precipitation and committed first.")
    try:
        ben.commit("Lapse rate: February +0.1 K")
    except icefloe.ConflictError as error:
        story.say(f"Ben changed temperature; his commit is refused: {type(error).__name__},")
        story.say(f"  he started from {error.expected_parent}, main is at {error.actual_parent}")
    story.call("ben.rebase(icefloe.ConflictDetector()); ben.commit(...)")
    ben.rebase(icefloe.ConflictDetector())
    ben.commit("Lapse rate: February +0.1 K")
    story.say("The changes do not overlap: both are in, one after the other.")

    anna, ben = repo.writable_session("main"), repo.writable_session("main")
    for session, value in ((anna, 247.0), (ben, 251.5)):
        zarr.open_array(session.store, path="tas", mode="r+")[0, 0, 0] = np.float32(value)
    anna.commit("South pole: first opinion")
    try:
        ben.rebase(icefloe.ConflictDetector())
    except icefloe.RebaseFailedError as error:
        story.say("Then both write the same chunk. That needs a person:")
        for conflict in error.conflicts:
            name, chunks = conflict.conflict_type.name, conflict.conflicted_chunks
            story.say(f"  {name} in {conflict.path}, chunks {chunks}")
    else:
        raise AssertionError("writing one chunk twice must be a conflict")


def rename(story: Story, repo: icefloe.Repository, folder: Path) -> None:
    story.chapter("Rename an array: no data is copied")
    before = objects_by_folder(folder)
    session = repo.writable_session("main")
    story.call('session.move("/tas", "/air_temperature")')
    session.move("/tas", "/air_temperature")
    session.commit("Call temperature by its full name")
    after = objects_by_folder(folder)
    written = {name: count - before[name] for name, count in after.items() if count > before[name]}
    story.say(f"objects written: {written}")
    names = list(map(str, dataset(repo.readonly_session("main")).data_vars))
    story.say(f"variables now: {', '.join(sorted(names))}")


def travel(story: Story, repo: icefloe.Repository, after_january: datetime) -> None:
    story.chapter("Travel in time")
    tagged = repo.readonly_session(tag="2026-02-release")
    earlier = repo.readonly_session(branch="main", as_of=after_january)
    back = repo.readonly_session("main~1")
    rows = []
    for label, session in (
        ('readonly_session(tag="2026-02-release")', tagged),
        ('readonly_session("main", as_of=<just after January>)', earlier),
        ('readonly_session("main~1")', back),
        ('readonly_session("main")', repo.readonly_session("main")),
    ):
        data = dataset(session)
        name = "tas" if "tas" in data else "air_temperature"
        rows.append([label, str(data.sizes["time"]), name, at_the_station(data, name)])
    story.table(["version", "days", "variable", FAULTY_DAY], rows)


def history(story: Story, repo: icefloe.Repository) -> None:
    story.chapter("The history of main")
    rows = []
    for info in repo.ancestry(branch="main"):
        note = ", ".join(f"{key}={value}" for key, value in info.metadata.items())
        written = info.written_at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]
        rows.append([info.id, written, info.message, "" if note.startswith("__") else note])
    story.table(["snapshot", "written", "message", "metadata"], rows)


def objects_by_folder(folder: Path) -> Counter[str]:
    repository = folder / "repository"
    files = (path.relative_to(repository) for path in repository.rglob("*") if path.is_file())
    return Counter(path.parts[0] for path in files if len(path.parts) > 1)


def on_disk(story: Story, folder: Path) -> None:
    story.chapter("What is on disk")
    repository = folder / "repository"
    sizes: Counter[str] = Counter()
    for path in repository.rglob("*"):
        if path.is_file():
            sizes[path.relative_to(repository).parts[0]] += path.stat().st_size
    counts = objects_by_folder(folder)
    rows = [[name, str(counts[name] or 1), f"{sizes[name] / 1024:,.1f}"] for name in sorted(sizes)]
    story.table(["folder", "objects", "KiB"], rows)


def draw(story: Story, repo: icefloe.Repository, corrected: str, folder: Path) -> Path:
    """Two versions of one day and their difference, as maps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    story.chapter("Draw two versions of the same day and their difference")
    before = dataset(repo.readonly_session(tag="2026-02-release")).tas.sel(time=FAULTY_DAY)
    after = dataset(repo.readonly_session(snapshot_id=corrected)).tas.sel(time=FAULTY_DAY)
    figure, axes = plt.subplots(1, 3, figsize=(14, 3.6), layout="constrained", sharey=True)
    shared = {"cmap": "RdYlBu_r", "vmin": -40, "vmax": 40, "shading": "nearest"}
    panels = [
        ("tag 2026-02-release", before - 273.15, shared),
        ("branch recalibration", after - 273.15, shared),
        ("difference", after - before, {**shared, "cmap": "RdBu_r", "vmin": -25, "vmax": 25}),
    ]
    for axis, (title, values, options) in zip(axes, panels, strict=True):
        mesh = axis.pcolormesh(values.lon, values.lat, values, **options)
        axis.set(title=title, xlabel="longitude (° E)", xticks=range(-180, 181, 60))
        axis.set_yticks(range(-90, 91, 30))
        unit = "K" if title == "difference" else "°C"
        figure.colorbar(mesh, ax=axis, shrink=0.9, label=unit)
    axes[0].set_ylabel("latitude (° N)")
    figure.suptitle(f"Near-surface air temperature on {FAULTY_DAY}, two versions of one dataset")
    path = folder / "two-versions.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    story.say(f"see {path}")
    return path


def tell(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    story = Story()
    repo = create(story, folder)
    write_january(story, repo)
    after_january = datetime.now(UTC)
    append_february(story, repo)
    corrected = correct_on_a_branch(story, repo)
    compare(story, repo)
    adopt(story, repo, corrected)
    two_writers(story, repo)
    rename(story, repo, folder)
    travel(story, repo, after_january)
    history(story, repo)
    on_disk(story, folder)
    draw(story, repo, corrected, folder)
    story.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "demo")
    tell(parser.parse_args().folder.resolve())


if __name__ == "__main__":
    main()
