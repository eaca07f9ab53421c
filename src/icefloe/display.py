"""The ancestry graph of a repository, as text for terminals and as SVG for notebooks."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from icefloe.engine.history.newest import read_log_page
from icefloe.model.bounded_text import first_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.engine.history.newest import LogEntry
    from icefloe.engine.history.walk import History
    from icefloe.model.ids import SnapshotId


class AncestryGraph:
    """All snapshots that branches and tags reach, newest first.

    `print` it in a terminal; notebooks show it as a picture.

    Examples:
        >>> import icefloe
        >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> graph = repo.ancestry_graph()
        >>> graph.rows[0].branches
        ('main',)
    """

    def __init__(self, rows: list[LogEntry], *, plain: bool = False) -> None:
        """Take the snapshots, children before parents; `plain` draws them without colours."""
        self.rows = rows
        self.plain = plain

    @classmethod
    def of(
        cls,
        history: History,
        *,
        merges: bool = True,
        start: SnapshotId | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """Read the graph of a repository, or the history of one snapshot.

        Args:
            history: Where to read.
            merges: Whether to show what was merged, for which every snapshot is read.
            start: The snapshot; all that branches and tags point to by default.
            plain: Whether to draw without colours.
        """
        starts = None if start is None else [start]
        return cls(read_log_page(history, None, starts, merges=merges).entries, plain=plain)

    def __str__(self) -> str:
        lines: list[str] = []
        for step in self.steps():
            row = step.row
            marks = " ".join("*" if i == step.place else "|" for i in range(step.width))
            title = _title(row)
            merged = f" [merges {', '.join(row.merged_ids)}]" if row.merged_ids else ""
            time = row.written_at.isoformat(sep=" ", timespec="seconds")
            lines.append(f"{marks}  {row.id}{_labels(row)} {time} {title}{merged}")
            if step.ends is not None:
                # Two lanes meet: the one further right ends here.
                joined = ("/" if i == step.ends else "|" for i in range(step.width))
                lines.append(" ".join(joined).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def to_svg(self) -> str:
        """Draw the graph as SVG: one row per snapshot, and a line from each to its parent.

        A dashed line leads from a merge to the tip that it merged.
        """
        places: dict[str, tuple[int, int]] = {}
        width = 1
        for number, step in enumerate(self.steps()):
            places[step.row.id] = (step.place, number)
            width = max(width, step.width)
        text_at = _LANE * width + _LANE
        lines = [_svg_merge(places, row, each) for row in self.rows for each in row.merged_ids]
        lines += [_svg_line(places, row) for row in self.rows]
        dots = [_svg_row(places[row.id], row, text_at) for row in self.rows]
        if self.plain:
            lines = [_without_colour(each) for each in lines if each]
            dots = [_without_colour(each) for each in dots]
        longest = max((len(_svg_text(row)) for row in self.rows), default=0)
        across, down = text_at + 7 * longest + 220, _ROW * len(self.rows)
        size = f'width="{across}" height="{down}" viewBox="0 0 {across} {down}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_SVG_FONT} {_INK}>',
                *(line for line in lines if line),
                *dots,
                "</svg>",
            ]
        )

    def _repr_svg_(self) -> str:
        """Draw the graph for notebooks that take pictures only."""
        return self.to_svg()

    def _repr_html_(self) -> str:
        """Draw the graph for notebooks, in the text colour of the page, be it light or dark."""
        return f'<div class="icefloe" style="overflow-x:auto">{self.to_svg()}</div>'

    def steps(self) -> Iterator[GraphStep]:
        """Each snapshot with its lane, among the lanes that run beside it."""
        lanes: list[str] = []
        for row in self.rows:
            if row.id not in lanes:
                lanes.append(row.id)
            place, width = lanes.index(row.id), len(lanes)
            joined = [i for i, lane in enumerate(lanes) if lane == row.parent_id and i != place]
            ends = joins = None
            if row.parent_id is None:
                del lanes[place]
            elif joined:
                joins, ends = sorted((place, joined[0]))
                lanes[joins] = row.parent_id
                del lanes[ends]
            else:
                lanes[place] = row.parent_id
            yield GraphStep(row=row, place=place, width=width, ends=ends, joins=joins)


class GraphStep(NamedTuple):
    """Where a snapshot is drawn."""

    row: LogEntry
    place: int
    """Its lane."""
    width: int
    """How many lanes there are."""
    ends: int | None
    """The lane that ends below it, joining another."""
    joins: int | None = None
    """The lane that this one joins."""


_SVG_FONT = 'font-family="monospace" font-size="12"'
_INK = 'fill="currentColor" role="img" aria-label="commit graph"'
_FAINT = 'fill-opacity="0.65"'
_LANE = 18
_ROW = 24
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")


def _without_colour(element: str) -> str:
    return re.sub(r"#[0-9a-f]{3,6}\b", "currentColor", element)


def _title(row: LogEntry) -> str:
    return first_line(row.message)


def _labels(row: LogEntry) -> str:
    names = [printable(name) for name in (*row.branches, *(f"tag: {tag}" for tag in row.tags))]
    return f" ({', '.join(names)})" if names else ""


def _svg_text(row: LogEntry) -> str:
    return f"{row.id[:8]}{_labels(row)} {_title(row)[:80]}"


def _middle(place: tuple[int, int]) -> tuple[int, int]:
    lane, number = place
    return _LANE * lane + _LANE // 2, _ROW * number + _ROW // 2


def _colour(lane: int) -> str:
    return _COLOURS[lane % len(_COLOURS)]


def _svg_line(places: dict[str, tuple[int, int]], row: LogEntry) -> str:
    parent = places.get(row.parent_id or "")
    if parent is None:
        return ""
    (x, y), (to_x, to_y) = _middle(places[row.id]), _middle(parent)
    path = (
        f"M {x} {y} L {x} {to_y - _ROW // 2} L {to_x} {to_y}"
        if x != to_x
        else (f"M {x} {y} L {to_x} {to_y}")
    )
    stroke = _colour(max(places[row.id][0], parent[0]))
    return f'<path d="{path}" stroke="{stroke}" stroke-width="2" fill="none"/>'


def _svg_merge(places: dict[str, tuple[int, int]], row: LogEntry, merged_id: str) -> str:
    merged = places.get(merged_id)
    if merged is None:
        return ""
    (x, y), (to_x, to_y) = _middle(places[row.id]), _middle(merged)
    stroke = f'stroke="{_colour(merged[0])}" stroke-width="1.5" stroke-dasharray="3 2"'
    # Beside the lane that it leaves, so that both are visible.
    bend = (x + to_x) // 2 if x != to_x else x + _LANE // 2
    path = f"M {x} {y} L {bend} {y + _ROW // 2} L {bend} {to_y - _ROW // 2} L {to_x} {to_y}"
    return f'<path d="{path}" {stroke} fill="none"/>'


def _svg_row(place: tuple[int, int], row: LogEntry, text_at: int) -> str:
    x, y = _middle(place)
    names = (
        f'<tspan dx="6" font-weight="bold">{escape(_labels(row).strip())}</tspan>'
        if _labels(row)
        else ""
    )
    return (
        f'<circle cx="{x}" cy="{y}" r="5" fill="{_colour(place[0])}"/>'
        f'<text x="{text_at}" y="{y + 4}"><title>{escape(row.id)}</title>'
        f"<tspan {_FAINT}>{escape(row.id[:8])}</tspan>{names} {escape(_title(row)[:80])} "
        f"<tspan {_FAINT}>{row.written_at:%Y-%m-%d %H:%M}</tspan></text>"
    )
