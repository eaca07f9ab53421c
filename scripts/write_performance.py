"""Write the tables and plots of the performance page from what `make bench` measured and kept.

`make plots` runs it; a test compares. The tables are between `<!-- measured: NAME -->` and
`<!-- end -->` in the pages below; what is around them is written by hand.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.goals import goal_of  # noqa: E402
from benchmarks.measurements import Measured, kept  # noqa: E402
from scripts.performance_plots import Bars, Panel, draw_bars, draw_growth, readable  # noqa: E402

PAGES = [ROOT / "docs" / "explanation" / "performance.md", ROOT / "README.md"]
PICTURES = ROOT / "docs" / "explanation" / "pictures"
BLOCK = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
OLD, NEW = "icechunk", "icechunk-newest"
LIKE_OFFICIAL = "icefloe-nosync"


class Table(NamedTuple):
    """Which cases a table has, in which order, and which peers are its columns."""

    cases: tuple[str, ...]
    """Patterns."""
    ours: tuple[str, ...] = (LIKE_OFFICIAL, "icefloe")
    """Whose ratio is shown: the first that took part in a case."""
    others: tuple[str, ...] = (OLD, NEW)
    bytes_and_memory: bool = False
    is_cpu_shown: bool = True
    is_compared: bool = True
    is_counted: bool = False
    """Requests, and how many were in progress at a time, instead of seconds."""
    is_memory_added: bool = False
    """With the memory that the operation added to the process."""


HEADLINES = {
    "import-and-read": "a new process: import, open, read one small array",
    "refs-commit-1e6": "set and commit 1,000,000 virtual references, as columns",
    "refs-commit-list": "the same as a list of `VirtualChunkSpec`",
    "refs-read-chunk-1e6": "open, read one chunk of 1,000,000",
    "refs-change-chunk-1e6": "change and commit one chunk of 1,000,000",
    "official-read-chunk-v2": "open, read one chunk of 1,000,000 in an official repository",
    "official-change-chunk-v2": "change and commit one of them",
    "small-write-none": "write 200,000 chunks of 1 KiB through zarr, commit",
    "read-64k-none": "read 4,096 chunks of 64 KiB through zarr",
    "ingest-copy": "ingest 120 NetCDF files as copies: Spark; dask",
}
"""The rows of the README, in its words."""
OFFICIAL_FORMAT = ("icefloe-icechunk1", "icefloe-icechunk2")
GENERATIONS = (LIKE_OFFICIAL, "icefloe-store", "icefloe-dataset", *OFFICIAL_FORMAT)
NAMES = {
    OLD: "1.1",
    NEW: "2",
    "icefloe": "icefloe, fsync",
    LIKE_OFFICIAL: "icefloe",
    "icefloe-store": "`store`",
    "icefloe-dataset": "`dataset`",
    "icefloe-icechunk1": "official 1",
    "icefloe-icechunk2": "official 2",
    "icefloe-loop": "plain processes",
    "icefloe-table": "`table`",
    "icefloe-sql": "SQL",
    "icefloe-view": "view",
    "icefloe-reduce": "`reduce`",
    "parquet": "Parquet",
    "zarr-local": "zarr",
    "zarrs": "zarrs",
}
AT_ONE_MILLION = (
    "refs-*-1e6",
    *(f"refs-commit-{how}" for how in ("list", "scattered", "native")),
    "small-arrays-*",
)
TABLES = {
    "headlines": Table(tuple(HEADLINES), (LIKE_OFFICIAL, *OFFICIAL_FORMAT, "icefloe")),
    "official-format": Table(("official-*",), OFFICIAL_FORMAT),
    "small-operations": Table(
        ("import*", "create", "empty-commit", "one-chunk-commit", "cold-open", "many-commits"),
        others=(OLD, NEW, "icefloe"),
    ),
    "chunks": Table(
        ("small-*-none", "small-*-zstd", "*-64k-*", "large-*"),
        others=(OLD, NEW, "zarr-local", "zarrs"),
    ),
    "regions": Table(("region-*-none", "region-*-zstd"), others=(OLD, NEW, "tensorstore")),
    "manifests": Table((*AT_ONE_MILLION, "refs-*-1e7"), bytes_and_memory=True),
    "generations": Table(AT_ONE_MILLION, others=GENERATIONS[1:], is_compared=False),
    "branches-and-tags": Table(("references-*",)),
    "distance": Table(("distance-*",), ("icefloe",), is_cpu_shown=False),
    "requests": Table(("distance-*",), ("icefloe",), is_compared=False, is_counted=True),
    "growth": Table(("growth-*",), others=(OLD, NEW, *GENERATIONS[1:])),
    "jobs": Table(("ingest-*", "rechunk-*"), others=(OLD,)),
    "driver": Table(
        ("driver-*",), ("icefloe",), others=(), is_compared=False, is_memory_added=True
    ),
    "fill": Table(("fill-*",), ("icefloe",), others=("icefloe-loop",)),
    "tables": Table(
        ("tables-*",),
        ("icefloe-table", "icefloe-reduce"),
        others=("parquet", "icefloe-sql", "icefloe-view", "icefloe-reduce"),
    ),
}
PLOTS = {
    "headline": ("headlines", "official icechunk, the better of its versions"),
    "official-format": ("official-format", "official icechunk, the better of its versions"),
    "chunks": ("chunks", "official icechunk, the better of its versions"),
    "manifests": ("manifests", "official icechunk, the better of its versions"),
    "distance": ("distance", "official icechunk, the better of its versions"),
    "jobs": ("jobs", "dask with official icechunk"),
    "tables": ("tables", "Parquet"),
}
"""Pictures of bars: which table they show, and what icefloe is compared with there."""
GROWTH = {
    "growth-references": "refs-",
    "growth-operations": "growth-",
}
"""Pictures of lines over sizes: how the names of their cases begin."""


def chosen(table: Table, measured: dict[str, Measured]) -> list[Measured]:
    """The kept cases of a table, by the order of its patterns, each once."""
    names = [name for pattern in table.cases for name in measured if fnmatch(name, pattern)]
    cases = [measured[name] for name in dict.fromkeys(names)]
    return [case for case in cases if not table.is_counted or is_counted(case)]


def is_counted(case: Measured) -> bool:
    return any("requests" in values for values in case.peers.values())


def requests_of(case: Measured, peer: str) -> str:
    """How many requests, and how many of them at a time."""
    count, at_a_time = (case.median(peer, each) for each in ("requests", "requests_at_a_time"))
    if count is None or at_a_time is None:
        return ""
    return f"{count:,.0f}, {at_a_time:,.0f} at a time"


def ours_in(table: Table, case: Measured) -> str:
    return next((peer for peer in table.ours if peer in case.peers), table.ours[0])


def times(case: Measured, peer: str, *, is_cpu_shown: bool) -> str:
    """Wall time, then CPU time."""
    if peer in case.errors:
        return "failed"
    wall, cpu = case.median(peer, "wall_seconds"), case.median(peer, "cpu_seconds")
    if wall is None:
        return ""
    return f"{readable(wall)} · {readable(cpu)}" if cpu and is_cpu_shown else readable(wall)


def ratios(case: Measured, peer: str, *, is_cpu_shown: bool) -> str:
    wall = case.ratio(peer, "wall_seconds")
    cpu = case.ratio(peer, "cpu_seconds") if is_cpu_shown else None
    shown = [emphasised(value, goal_of(case.name)) for value in (wall, cpu) if value is not None]
    return " · ".join(shown)


def emphasised(value: float, goal: float | None) -> str:
    """Bold, where it misses the goal by more than what rounding hides."""
    digits = ".0f" if value >= 10 else ".2f" if value >= 0.1 else ".2g"
    text = f"{value:{digits}}"
    return f"**{text}**" if goal is not None and value > goal * 1.005 else text


def size(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:,.0f} KB"


def versions(cases: list[Measured]) -> dict[str, str]:
    """Names of the official versions in the newest of these runs."""
    newest = max(cases, key=lambda case: str(case.about["date"]))
    found = newest.about["versions"]
    return {OLD: found.get("icechunk", NAMES[OLD]), NEW: found.get("icechunk, newest", NAMES[NEW])}


def title_of(case: Measured) -> str:
    return case.title.replace(", codec none", "").replace(", codec zstd", ", zstd")


def has_cpu(case: Measured) -> bool:
    """Whether it was measured as it is now; of earlier runs only wall times were kept."""
    return any("cpu_seconds" in values for values in case.peers.values())


def rows_of(name: str, measured: dict[str, Measured]) -> list[list[str]]:
    """The heading and the rows of a table."""
    table = TABLES[name]
    cases = chosen(table, measured)
    names = {**NAMES, **versions(cases)}
    others = [
        peer
        for peer in table.others
        if any(peer in case.peers or peer in case.errors for case in cases)
    ]
    goals = table.is_compared and any(goal_of(case.name) is not None for case in cases)
    first = names[table.ours[0]] if name == "tables" else "icefloe"
    heading = ["case", first, *(names[peer] for peer in others)]
    heading += ["ratio"] if table.is_compared else []
    heading += ["goal"] if goals else []
    heading += ["bytes written: icefloe", "official", "peak memory: icefloe", "official"] * (
        table.bytes_and_memory
    )
    heading += ["memory added"] if table.is_memory_added else []
    lines = [heading]
    for case in cases:
        peer = ours_in(table, case)
        title = HEADLINES[case.name] if name == "headlines" else title_of(case)
        line = [title if has_cpu(case) else f"{title} †"]
        # Where the ways to ask are columns, each stays in its own.
        mine = table.ours[0] if name == "tables" else peer
        for each in (mine, *(each if each != mine else "" for each in others)):
            if table.is_counted:
                line.append(requests_of(case, each))
            else:
                line.append(times(case, each, is_cpu_shown=table.is_cpu_shown) if each else "")
        if table.is_compared:
            line.append(ratios(case, peer, is_cpu_shown=table.is_cpu_shown))
        goal = goal_of(case.name)
        line += [f"{goal:g}" if goal is not None else ""] if goals else []
        if table.bytes_and_memory:
            memory = [case.median(peer, "peak_memory_mib"), case.best("peak_memory_mib")]
            line += [size(case.median(peer, "written_bytes")), size(case.best("written_bytes"))]
            line += ["" if value is None else f"{value:,.0f} MiB" for value in memory]
        if table.is_memory_added:
            added = case.median(peer, "added_memory_mib")
            line.append("" if added is None else f"{added:,.0f} MiB")
        lines.append(line)
    return lines


def markdown(lines: list[list[str]]) -> str:
    rule = ["--", *["--:"] * (len(lines[0]) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def how_measured(cases: list[Measured]) -> str:
    """One line for each run: when, how often, and how busy the machine was."""
    runs: dict[str, list[Measured]] = {}
    for case in cases:
        day = str(case.about["date"])[:10]
        runs.setdefault(day if has_cpu(case) else f"† {day}", []).append(case)
    parts = []
    for date, those in sorted(runs.items()):
        counts = sorted({case.repetitions for case in those})
        often = " or ".join("once" if count == 1 else f"{count} times" for count in counts)
        shares = [
            (value, other)
            for case in those
            for values in case.peers.values()
            for value, other in zip(
                values.get("stolen_share", ()), values.get("busy_share", ()), strict=True
            )
        ]
        load = ""
        if shares:
            stolen = sum(value for value, _ in shares) / len(shares)
            busy = sum(value for _, value in shares) / len(shares)
            load = f", cores {busy:.0%} busy, {stolen:.0%} of their time taken by the host"
        else:
            load = ", wall times only"
        parts.append(f"{date} ({often}{load})")
    return f"*Measured {'; '.join(parts)}.*"


def block(name: str, measured: dict[str, Measured]) -> str:
    """What stands between the markers of a table."""
    if name.startswith("plot-"):
        return picture(name.removeprefix("plot-"))
    cases = chosen(TABLES[name], measured)
    if not cases:
        patterns = ",".join(TABLES[name].cases)
        return f"Not measured yet: `make bench ARGS=\"--cases '{patterns}' --keep\"`.\n"
    text = markdown(rows_of(name, measured)) + "\n"
    return text if name == "headlines" else f"{text}\n{how_measured(cases)}\n"


def picture(name: str) -> str:
    path = PICTURES / f"{name}.svg"
    return f"![The figures below as a plot](pictures/{name}.svg)\n" if path.exists() else ""


def bars_of(name: str, measured: dict[str, Measured]) -> list[Bars]:
    """Rows with times of both."""
    found = []
    for case in chosen(TABLES[name], measured):
        ours = case.median(ours_in(TABLES[name], case), "wall_seconds")
        theirs = case.best("wall_seconds")
        if ours and theirs:
            title = HEADLINES[case.name] if name == "headlines" else title_of(case)
            found.append(Bars(title.replace("`", ""), ours, theirs))
    return found


def panels_of(beginning: str, measured: dict[str, Measured]) -> list[Panel]:
    """For each growing operation the CPU time of every peer, over the size."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case in measured.values():
        group = case.parameters.get("growth")
        if group is None or not case.name.startswith(beginning):
            continue
        at = case.parameters["size" if "size" in case.parameters else "references"]
        for peer in case.peers:
            seconds = case.median(peer, "cpu_seconds")
            if seconds:
                points = found.setdefault(group, {}).setdefault(peer, [])
                points.append((float(at), seconds))
    return [
        Panel(group, {peer: sorted(points) for peer, points in lines.items()})
        for group, lines in found.items()
        if any(len(points) > 1 for points in lines.values())
    ]


def pictures(measured: dict[str, Measured]) -> dict[Path, str]:
    """All plots that there are figures for, and where they are kept."""
    found = {}
    for name, (table, against) in PLOTS.items():
        bars = bars_of(table, measured)
        if bars:
            found[PICTURES / f"{name}.svg"] = draw_bars(bars, against)
    names = {**NAMES, **versions(list(measured.values()))}
    labels = {peer: name.replace("`", "") for peer, name in names.items()}
    labels.update({OLD: f"official {names[OLD]}", NEW: f"official {names[NEW]}"})
    labels.update({peer: f"icefloe, {labels[peer]}" for peer in GENERATIONS[1:]})
    for name, beginning in GROWTH.items():
        panels = panels_of(beginning, measured)
        if panels:
            found[PICTURES / f"{name}.svg"] = draw_growth(panels, labels)
    return found


def _apart(text: str) -> str:
    """With empty lines around, as tables need them."""
    return f"\n{text}\n" if text else ""


def pages(measured: dict[str, Measured]) -> dict[Path, str]:
    """The pages, with their tables as they should be."""
    return {
        page: BLOCK.sub(
            lambda match: f"{match[1]}{_apart(block(match[2], measured))}{match[3]}",
            page.read_text(),
        )
        for page in PAGES
    }


def main() -> None:
    measured = kept()
    for path, text in pictures(measured).items():
        path.write_text(text)
    for path, text in pages(measured).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
