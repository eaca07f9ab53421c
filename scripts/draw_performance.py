"""Draw the plots of the performance page from its tables, which are what `make bench` measured.

So a plot never says anything else than the table beside it; a test compares. `make plots` draws.
"""

from __future__ import annotations

import math
import re
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "performance.md"
PICTURES = PAGE.parent / "pictures"
OURS = "icefloe"
OFFICIAL = ("official", "1.1.21", "2.3.0")
UNITS = {"ms": 1e-3, "s": 1.0}
HEADLINES = (
    "set and commit 1,000,000 virtual references in 10,000 files",
    "open, read one chunk of 1,000,000",
    "change and commit one chunk of 1,000,000",
    "write 200,000 × 1 KiB, commit",
    "read 4,096 × 64 KiB",
    "write 1,024 × 1 MiB",
)


class Timing(NamedTuple):
    """One row: what was done, and the seconds of icefloe and of the better official version."""

    case: str
    ours: float
    official: float


def seconds_in(cell: str) -> list[float]:
    """All times in a cell: `1.9, 0.83 s` are two, `10 ms` is one; the middle of `1.0 to 2.5 s`."""
    match = re.fullmatch(r"([\d., to]+) (ms|s)", cell.strip().replace("*", ""))
    if match is None:
        return []
    unit = UNITS[match[2]]
    parts = [[float(number) for number in part.split(" to ")] for part in re.split(r", ", match[1])]
    return [sum(part) / len(part) * unit for part in parts]


def timings(heading: str) -> list[Timing]:
    """The rows of the first table below a heading that have times of both."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(f"{heading}\n"))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = cells[0]
    ours = names.index(OURS)
    theirs = [number for number, name in enumerate(names) if name in OFFICIAL]
    found = []
    for row in cells[2:]:
        if len(row) != len(names):
            break  # the next table
        mine = seconds_in(row[ours])
        official = [time for number in theirs for time in seconds_in(row[number])]
        if mine and official:
            found.append(Timing(row[0].replace("`", ""), mine[0], min(official)))
    return found


def drawn(rows: list[Timing]) -> str:
    """Pairs of bars on a logarithmic axis, as SVG."""
    left, width, height = 420, 380, 44
    low = 10 ** math.floor(math.log10(min(min(row.ours, row.official) for row in rows)) - 0.3)
    high = 10 ** math.ceil(math.log10(max(max(row.ours, row.official) for row in rows)))
    decades = round(math.log10(high / low))

    def x(seconds: float) -> float:
        return round(left + width * math.log10(seconds / low) / decades, 1)

    bottom = 34 + height * len(rows)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {bottom + 34}" '
    svg += 'font-family="system-ui, sans-serif" font-size="13">'
    legend = '<rect x="420" y="8" width="12" height="12" fill="#1f6f8b"/>'
    legend += '<text x="437" y="19">icefloe</text>'
    legend += '<rect x="500" y="8" width="12" height="12" fill="#c9a227"/>'
    legend += '<text x="517" y="19">official icechunk, the better of its versions</text>'
    axis = f'<text x="{left - 34}" y="{bottom + 18}" text-anchor="end" fill="#555555">'
    axis += "time (logarithmic; shorter is better)</text>"
    parts = [svg, f'<rect width="860" height="{bottom + 34}" fill="#ffffff"/>', legend, axis]
    for decade in range(decades + 1):
        value = low * 10**decade
        parts.append(
            f'<line x1="{x(value)}" x2="{x(value)}" y1="30" y2="{bottom}" stroke="#dddddd"/>'
            f'<text x="{x(value)}" y="{bottom + 18}" text-anchor="middle" fill="#555555">'
            f"{readable(value)}</text>"
        )
    for number, row in enumerate(rows):
        top = 36 + height * number
        parts.append(
            f'<text x="{left - 10}" y="{top + 21}" text-anchor="end">{escape(row.case)}</text>'
        )
        for offset, seconds, colour in ((0, row.ours, "#1f6f8b"), (16, row.official, "#c9a227")):
            length = round(x(seconds) - left, 1)
            parts.append(
                f'<rect x="{left}" y="{top + offset}" width="{length}" '
                f'height="13" fill="{colour}"/>'
                f'<text x="{x(seconds) + 5}" y="{top + offset + 11}" font-size="11">'
                f"{readable(seconds)}</text>"
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def readable(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{float(f'{seconds:.3g}'):,.6g} s"


def pictures() -> dict[Path, str]:
    """The plots and where they are kept."""
    chunks, manifests = timings("Chunks through zarr"), timings("Manifests")
    by_case = {row.case: row for row in [*chunks, *manifests]}
    return {
        PICTURES / "headline.svg": drawn([by_case[case] for case in HEADLINES]),
        PICTURES / "chunks.svg": drawn(chunks),
        PICTURES / "manifests.svg": drawn(manifests),
    }


def main() -> None:
    for path, picture in pictures().items():
        path.write_text(picture)


if __name__ == "__main__":
    main()
