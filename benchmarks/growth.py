"""How cases grow: cases with the parameter `growth` over their size or number of references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.colours import COLOURS

if TYPE_CHECKING:
    from pathlib import Path

MEASURES = {
    # On a machine that does other things too, wall times of milliseconds say little.
    "cpu_seconds": ("CPU time, s", 1.0),
    "peak_memory_mib": ("peak memory of the process, MiB", 1.0),
    "written_bytes": ("written, KiB", 1024.0),
}
HEADINGS = {
    "refs-commit": "set and commit all",
    "refs-read-chunk": "open, read one chunk",
    "refs-read-coordinate": "open, read a small\narray next to it",
    "refs-change-chunk": "change and commit\none chunk",
    "growth-commit": "commit after\ncommits",
    "growth-open": "open after\ncommits",
    "growth-tag": "create a tag among\nbranches and tags",
    "growth-commit-among-references": "commit among\nbranches and tags",
    "growth-node": "open, read one node\nof many",
    "growth-garbage": "collect\nobjects",
}


def draw_growth(about: dict[str, Any], rows: list[dict[str, Any]], path: Path) -> bool:
    """A row of panels for each growing case, a column for each measure; False if there is none."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    growing = [row for row in rows if "growth" in row["parameters"] and "error" not in row]
    groups = list(dict.fromkeys(row["parameters"]["growth"] for row in growing))
    if not groups:
        return False
    figure, panels = plt.subplots(
        len(groups),
        len(MEASURES),
        figsize=(11, 0.8 + 2.2 * len(groups)),
        layout="constrained",
        sharex=True,
        sharey="col",
        squeeze=False,
    )
    for group, line in zip(groups, panels, strict=True):
        chosen = [row for row in growing if row["parameters"]["growth"] == group]
        for (measure, (_, unit)), axes in zip(MEASURES.items(), line, strict=True):
            draw_panel(axes, chosen, measure, unit, about["labels"])
        line[0].set_ylabel(HEADINGS.get(group, group))
    for (heading, _), axes in zip(MEASURES.values(), panels[0], strict=True):
        axes.set_title(heading, fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("references, or what the line says")
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _size_of(parameters: dict[str, Any]) -> int:
    return int(parameters["size"] if "size" in parameters else parameters["references"])


def draw_panel(
    axes: Any, rows: list[dict[str, Any]], measure: str, unit: float, labels: dict[str, str]
) -> None:
    if not any(row[measure] for row in rows):
        axes.text(0.5, 0.5, "nothing", transform=axes.transAxes, ha="center", color="#888888")
    for peer in (peer for peer in COLOURS if any(row["peer"] == peer for row in rows)):
        points = sorted(
            (_size_of(row["parameters"]), row[measure] / unit)
            for row in rows
            if row["peer"] == peer and row[measure]
        )
        if points:
            axes.plot(
                *zip(*points, strict=True), "o-", color=COLOURS[peer], label=labels[peer], ms=4
            )
            axes.set_yscale("log")
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(visible=True, which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
