"""Plots of the performance page as SVG text: pairs of bars, and lines over growing sizes.

Plain text, so that the same figures always give the same file, which a test compares.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from benchmarks.colours import COLOURS

OURS, THEIRS = "#1f6f8b", "#c9a227"
FONT = 'font-family="system-ui, sans-serif"'
GROWING = {
    "refs-commit": "set and commit all references",
    "refs-read-chunk": "open, read one chunk",
    "refs-read-coordinate": "open, read a small array beside",
    "refs-change-chunk": "change and commit one chunk",
    "growth-commit": "commit after commits",
    "growth-open": "open after commits",
    "growth-tag": "create a tag among branches and tags",
    "growth-commit-among-references": "commit among branches and tags",
    "growth-node": "open, read one node of many",
    "growth-garbage": "collect objects",
}
WIDTH, HEIGHT, PER_LINE = 280, 200, 3
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Bars(NamedTuple):
    """One row: what was done, and the seconds of icefloe and of what it is compared with."""

    case: str
    ours: float
    theirs: float


class Panel(NamedTuple):
    """One growing operation: for each peer its sizes and seconds."""

    name: str
    lines: dict[str, list[tuple[float, float]]]


def readable(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{float(f'{seconds:.3g}'):,.6g} s"


def decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten around some values."""
    low = math.floor(math.log10(min(values)) - 0.05)
    return low, max(low + 1, math.ceil(math.log10(max(values)) + 0.001))


def _opening(width: int, height: int, font_size: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" {FONT} font-size="{font_size}">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    )


def draw_bars(rows: list[Bars], against: str) -> str:
    """Pairs of bars on a logarithmic axis, each pair below its label: narrow screens show both."""
    left, width, height = 10, 560, 58
    low, high = decades([value for row in rows for value in (row.ours, row.theirs)])

    def x(seconds: float) -> float:
        return round(left + width * (math.log10(seconds) - low) / (high - low), 1)

    bottom = 34 + height * len(rows)
    parts = [
        _opening(640, bottom + 46, 13),
        f'<rect x="10" y="8" width="12" height="12" fill="{OURS}"/>',
        '<text x="27" y="19">icefloe</text>',
        f'<rect x="90" y="8" width="12" height="12" fill="{THEIRS}"/>',
        f'<text x="107" y="19">{escape(against)}</text>',
        f'<text x="{left}" y="{bottom + 38}" fill="#555555">',
        "wall time (logarithmic; shorter is better)</text>",
    ]
    for decade in range(low, high + 1):
        at = x(10.0**decade)
        anchor = "start" if decade == low else "middle"
        parts.append(
            f'<line x1="{at}" x2="{at}" y1="30" y2="{bottom}" stroke="#dddddd"/>'
            f'<text x="{at}" y="{bottom + 18}" text-anchor="{anchor}" fill="#555555">'
            f"{readable(10.0**decade)}</text>"
        )
    for number, row in enumerate(rows):
        top = 36 + height * number
        parts.append(f'<text x="{left + 4}" y="{top + 14}">{escape(row.case)}</text>')
        for offset, seconds, colour in ((20, row.ours, OURS), (35, row.theirs, THEIRS)):
            length = round(x(seconds) - left, 1)
            parts.append(
                f'<rect x="{left}" y="{top + offset}" width="{length}" '
                f'height="12" fill="{colour}"/>'
                f'<text x="{x(seconds) + 5:.1f}" y="{top + offset + 10}" font-size="11">'
                f"{readable(seconds)}</text>"
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_growth(panels: list[Panel], labels: dict[str, str]) -> str:
    """A panel for each operation: CPU time over size, both logarithmic, a line for each peer."""
    peers = [peer for peer in COLOURS if any(peer in panel.lines for panel in panels)]
    legend_lines = math.ceil(len(peers) / 4)
    top = 26 + 20 * legend_lines
    total = (PER_LINE * WIDTH + 20, top + HEIGHT * math.ceil(len(panels) / PER_LINE) + 6)
    parts = [
        _opening(*total, 11),
        '<text x="20" y="18" font-size="13">',
        "CPU time over size, both logarithmic; a flat line does not grow</text>",
    ]
    for number, peer in enumerate(peers):
        x, y = 20 + 205 * (number % 4), 36 + 20 * (number // 4)
        parts.append(
            f'<line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" stroke="{COLOURS[peer]}" '
            f'stroke-width="2.5"/><text x="{x + 24}" y="{y}">'
            f"{escape(labels.get(peer, peer))}</text>"
        )
    for number, panel in enumerate(panels):
        corner = (10 + WIDTH * (number % PER_LINE), top + HEIGHT * (number // PER_LINE))
        parts += _panel(panel, *corner)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: int, top: int) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    sizes = [math.log10(size) for size, _ in points]
    first, last = math.floor(min(sizes) + 1e-6), math.ceil(max(sizes) - 1e-6)
    low, high = decades([seconds for _, seconds in points])
    box = (left + 52, top + 24, WIDTH - 70, HEIGHT - 58)

    def x(size: float) -> float:
        return round(box[0] + box[2] * (math.log10(size) - first) / (last - first), 1)

    def y(seconds: float) -> float:
        return round(box[1] + box[3] * (high - math.log10(seconds)) / (high - low), 1)

    title = GROWING.get(panel.name, panel.name)
    parts = [f'<text x="{box[0]}" y="{top + 14}" font-size="12">{escape(title)}</text>']
    for decade in range(first, last + 1):
        at = x(10.0**decade)
        parts.append(
            f'<line x1="{at}" x2="{at}" y1="{box[1]}" y2="{box[1] + box[3]}" stroke="#eeeeee"/>'
            f'<text x="{at}" y="{box[1] + box[3] + 14}" text-anchor="middle" fill="#555555">'
            f"10{str(decade).translate(_SUPERSCRIPT)}</text>"
        )
    for decade in range(low, high + 1):
        at = y(10.0**decade)
        parts.append(
            f'<line x1="{box[0]}" x2="{box[0] + box[2]}" y1="{at}" y2="{at}" stroke="#dddddd"/>'
            f'<text x="{box[0] - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#555555">'
            f"{readable(10.0**decade)}</text>"
        )
    for peer in (peer for peer in COLOURS if peer in panel.lines):
        line = " ".join(f"{x(size)},{y(seconds)}" for size, seconds in panel.lines[peer])
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{COLOURS[peer]}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{x(size)}" cy="{y(seconds)}" r="2.6" fill="{COLOURS[peer]}"/>'
            for size, seconds in panel.lines[peer]
        ]
    return parts
