"""Medians, ratios to the official package, and how they are shown: terminal, markdown, plot."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.case import OFFICIAL
from benchmarks.colours import COLOURS
from benchmarks.growth import draw_growth
from benchmarks.peers import PEERS

if TYPE_CHECKING:
    from pathlib import Path

HEADINGS = (
    "case",
    "peer",
    "fsync",
    "wall",
    "× official",
    "CPU",
    "× official",
    "spread",
    "peak MiB",
    "× official",
    "KiB written",
    "× official",
    "objects",
    "KiB on disk",
)
MEDIAN_OF = (
    "wall_seconds",
    "cpu_seconds",
    "peak_memory_mib",
    "written_bytes",
    "disk_objects",
    "disk_bytes",
)
RATIOS = {
    "wall_ratio": "wall_seconds",
    "cpu_ratio": "cpu_seconds",
    "memory_ratio": "peak_memory_mib",
    "written_ratio": "written_bytes",
}
LEAST_RATIO, GREATEST_RATIO = 0.02, 50.0
"""What the plot shows; beyond, an arrow."""

Summary = dict[str, Any]


def summarise(results: list[dict[str, Any]]) -> list[Summary]:
    """One row per case and peer, in the order in which the cases ran."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["case"], result["peer"]), []).append(result)
    rows = []
    names = ("case", "peer", "title", "parameters", "against")
    for group in groups.values():
        row: Summary = {name: group[0][name] for name in names}
        good = [result for result in group if "error" not in result]
        if len(good) < len(group):
            row["error"] = next(result["error"] for result in group if "error" in result)
        else:
            for name in MEDIAN_OF:
                row[name] = statistics.median(result[name] for result in good)
            walls = [result["wall_seconds"] for result in good]
            row["spread"] = (max(walls) - min(walls)) / row["wall_seconds"]
        rows.append(row)
    cases = list(dict.fromkeys(row["case"] for row in rows))
    rows.sort(key=lambda row: (cases.index(row["case"]), list(PEERS).index(row["peer"])))
    add_ratios(rows, results)
    return rows


def add_ratios(rows: list[Summary], results: list[dict[str, Any]]) -> None:
    """Relative to the better of the official versions (or what a case is compared with).

    Of each repetition, then the median: what disturbs the machine disturbs both sides of a ratio.
    """
    for row in rows:
        if "error" in row:
            continue
        mine = [result for result in results if result["case"] == row["case"]]
        failed = {result["peer"] for result in mine if "error" in result}
        for name, measure in RATIOS.items():
            ratios = []
            for result in (result for result in mine if result["peer"] == row["peer"]):
                bases = [
                    other[measure]
                    for other in mine
                    if other["repetition"] == result["repetition"]
                    and other["peer"] in row["against"]
                    and other["peer"] not in failed
                ]
                if bases and min(bases):
                    ratios.append(result[measure] / min(bases))
            if ratios:
                row[name] = statistics.median(ratios)


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.3g} ms"


def ratio(row: Summary, name: str) -> str:
    return f"{row[name]:.2f}" if name in row else ""


def cells(row: Summary, about: dict[str, Any]) -> list[str]:
    names = [row["title"], about["labels"][row["peer"]]]
    if "error" in row:
        return [*names, f"failed: {row['error']}", *[""] * (len(HEADINGS) - 3)]
    return [
        *names,
        "yes" if about["durability"][row["peer"]] == "fsync" else "no",
        duration(row["wall_seconds"]),
        ratio(row, "wall_ratio"),
        duration(row["cpu_seconds"]),
        ratio(row, "cpu_ratio"),
        f"{row['spread']:.0%}",
        f"{row['peak_memory_mib']:.0f}",
        ratio(row, "memory_ratio"),
        f"{row['written_bytes'] / 1024:,.0f}",
        ratio(row, "written_ratio"),
        f"{row['disk_objects']:,.0f}",
        f"{row['disk_bytes'] / 1024:,.0f}",
    ]


def text_table(rows: list[list[str]]) -> str:
    """Columns of equal width; the case is named once; a line between cases."""
    table = [list(HEADINGS), *rows]
    widths = [
        max(len(line[i]) for line in table if not is_failure(line)) for i in range(len(HEADINGS))
    ]
    lines = []
    previous = ""
    for number, line in enumerate(table):
        title = line[0]
        shown = ["" if title == previous else title, *line[1:]]
        if number > 0 and title != previous:
            lines.append("  ".join("─" * width for width in widths))
        previous = title
        aligned = [
            value.ljust(width) if i < 3 else value.rjust(width)
            for i, (value, width) in enumerate(zip(shown, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def is_failure(line: list[str]) -> bool:
    return line[2].startswith("failed")


def markdown_table(rows: list[list[str]]) -> str:
    rule = ["--"] * 3 + ["--:"] * (len(HEADINGS) - 3)
    return "\n".join("| " + " | ".join(line) + " |" for line in [list(HEADINGS), rule, *rows])


def markdown_summary(about: dict[str, Any], rows: list[list[str]]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    load = ", ".join(str(value) for value in about["load_average_at_start"])
    quick = " **Quick run: small sizes, not for conclusions.**" if about["quick"] else ""
    return f"""# Benchmark results

{about["date"]}, Python {about["python"]}, {about["system"]}, {about["cores"]} cores,
load at start {load}.
{libraries}.
Medians of {about["repetitions"]} interleaved repetitions, each in a process of its own.{quick}

- Operations done several times in a process count with their median, so the first is not special.
- CPU counts all threads of the process.
- *× official*: relative to the better of the official versions that took part (tables: to
  Parquet), the median of each repetition's ratio; below 1 is better.
- CPU counts the processes that were started, too, where Spark or dask takes part.
- *spread*: (slowest - fastest) / median of the wall times.
- *fsync*: whether the data is on the disk when a commit returns. icefloe does that by default on
  local files; the peers cannot. Compare like with like: "icefloe, no fsync" with the peers.
- *peak MiB*: resident memory of the process, interpreter and libraries included.
- *KiB written*: files that were new after the measured part.
- Files are in the operating system's cache when they are read.

{markdown_table(rows)}

![Wall and CPU time relative to the official package](summary.png)
"""


def draw(about: dict[str, Any], rows: list[Summary], path: Path) -> bool:
    """Wall and CPU time of every peer relative to the official one, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in rows if "wall_ratio" in row]
    if not shown:
        return False
    titles = list(dict.fromkeys(row["title"] for row in shown))
    height = 1.4 + 0.42 * len(titles)
    figure, panels = plt.subplots(1, 2, figsize=(12, height), layout="constrained", sharey=True)
    for axes, measure, heading in zip(
        panels, ("wall_ratio", "cpu_ratio"), ("wall time", "CPU time"), strict=True
    ):
        draw_panel(axes, shown, titles, measure, about["labels"])
        axes.set_title(heading)
    panels[0].set_yticks(range(len(titles)), titles)
    panels[0].invert_yaxis()
    figure.supxlabel("relative to the official icechunk (left is better)", fontsize=10)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def draw_panel(
    axes: Any, rows: list[Summary], titles: list[str], measure: str, labels: dict[str, str]
) -> None:
    peers = [name for name in PEERS if name not in OFFICIAL]
    axes.axvline(1, color=COLOURS[OFFICIAL[0]], linewidth=1.5, label=labels[OFFICIAL[0]])
    for position, peer in enumerate(peers):
        height = (position - (len(peers) - 1) / 2) * 0.17
        points = [row for row in rows if row["peer"] == peer]
        if not points:
            continue
        ratios = [min(max(row[measure], LEAST_RATIO), GREATEST_RATIO) for row in points]
        heights = [titles.index(row["title"]) + height for row in points]
        axes.plot(ratios, heights, "o", markersize=5, color=COLOURS[peer], label=labels[peer])
        for shown, y in zip(ratios, heights, strict=True):
            if shown in (LEAST_RATIO, GREATEST_RATIO):  # off the scale: an arrow
                marker = "<" if shown == LEAST_RATIO else ">"
                axes.plot(shown, y, marker, markersize=9, color=COLOURS[peer])
    axes.set_xscale("log")
    axes.set_xlim(LEAST_RATIO / 1.3, GREATEST_RATIO * 1.3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.grid(axis="x", which="both", alpha=0.2)
    for border in range(1, len(titles)):
        axes.axhline(border - 0.5, color="black", alpha=0.08, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def write_reports(about: dict[str, Any], results: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    raw = {"about": about, "results": results}
    (folder / "results.json").write_text(json.dumps(raw, indent=1) + "\n")
    summary = summarise(results)
    rows = [cells(row, about) for row in summary]
    (folder / "summary.md").write_text(markdown_summary(about, rows))
    names = ["results.json", "summary.md"]
    names += ["summary.png"] if draw(about, summary, folder / "summary.png") else []
    names += ["growth.png"] if draw_growth(about, summary, folder / "growth.png") else []
    print("\n" + text_table(rows) + "\n")
    print(f"Wrote {', '.join(names)} in {folder}")
