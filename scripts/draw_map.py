"""Draw the packages ("rooms") of the code: what each is for, how large it is, and who imports whom.

    .venv/bin/python scripts/draw_map.py            # write docs/pictures/rooms.svg
    .venv/bin/python scripts/draw_map.py --check    # fail if rooms or imports differ

Rooms are the packages and modules directly below `icefloe`, in the order of the layers contract in
pyproject.toml. A bar is as long as the room has lines of code, without blank lines, comments and
docstrings; a package's subpackages are segments of its bar. A cell of the matrix counts imports of
modules of the column's room by modules of the row's room. As imports point down, all of them are to
the right of the diagonal.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from html import escape
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
PACKAGE = "icefloe"
SOURCE = ROOT / "src" / PACKAGE

ROW = 24
NAME_WIDTH = 108
BAR_WIDTH = 330
NUMBER_WIDTH = 100
TOP = 110
MARGIN = 16
INK, PALE, BLUE, GRID = "#1f2933", "#61707f", "#2b6cb0", "#e4e8ec"
SHADES = ("#3b6ea5", "#5f8fc0", "#86aed3", "#aecbe3")


class Room(NamedTuple):
    """A package or module directly below the root package."""

    name: str
    layer: int
    modules: int
    parts: tuple[tuple[str, int], ...]
    """Lines of code of each subpackage; those of its own modules have an empty name."""

    @property
    def lines(self) -> int:
        """Lines of code."""
        return sum(lines for _, lines in self.parts)


def layers() -> list[list[str]]:
    """Names of rooms by layer, the highest first, as the contract has them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if each["id"] == "layers"]
    return [line.split(" | ") for line in contract["layers"]]


def lines_of_code(path: Path) -> int:
    """Lines that hold code: neither blank, nor a comment, nor a docstring."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def read_room(name: str, layer: int) -> Room:
    """Measure a room."""
    folder = SOURCE / name
    if not folder.is_dir():
        return Room(name, layer, 1, (("", lines_of_code(folder.with_suffix(".py"))),))
    parts: Counter[str] = Counter()
    modules = sorted(folder.rglob("*.py"))
    for path in modules:
        inner = path.relative_to(folder).parts
        parts[inner[0] if len(inner) > 1 else ""] += lines_of_code(path)
    return Room(name, layer, len(modules), tuple(sorted(parts.items(), key=lambda part: -part[1])))


def read_rooms() -> list[Room]:
    """All rooms, from the highest layer to the lowest."""
    return [read_room(name, number) for number, names in enumerate(layers()) for name in names]


def imports_between(rooms: list[Room]) -> Counter[tuple[str, str]]:
    """How many imports of modules there are from one room to another, types left out."""
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    known = {room.name for room in rooms}
    counts: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = (_room_of(module), _room_of(imported))
            if pair[0] != pair[1] and known.issuperset(pair):
                counts[pair] += 1
    return counts


def _room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def draw(rooms: list[Room], imports: Counter[tuple[str, str]]) -> str:
    """The picture as SVG, legible on light and dark pages."""
    matrix_left = MARGIN + NAME_WIDTH + BAR_WIDTH + NUMBER_WIDTH
    width = matrix_left + ROW * len(rooms) + MARGIN
    height = TOP + ROW * len(rooms) + 46
    body = [
        f'<rect width="{width}" height="{height}" fill="#ffffff" rx="8"/>',
        _text(MARGIN, 30, "The packages of icefloe", 17, INK, weight="600"),
        _text(
            MARGIN, 52, "Lines of code; imports point down, so the lower left is empty.", 12, PALE
        ),
    ]
    body += _matrix_grid(rooms, matrix_left)
    longest = max(room.lines for room in rooms)
    for row, room in enumerate(rooms):
        body += _bar(room, TOP + row * ROW, longest)
        column_x = matrix_left + row * ROW + ROW / 2 + 4
        body.append(
            f'<text transform="translate({column_x:g},{TOP - 8}) rotate(-55)" font-size="11" '
            f'fill="{PALE}">{escape(room.name)}</text>'
        )
        body += _cells(rooms, imports, row, matrix_left)
    total = sum(room.lines for room in rooms)
    modules = sum(room.modules for room in rooms)
    caption = (
        f"{total:,} lines of code in {modules} modules; "
        f"{sum(imports.values()):,} imports between packages"
    )
    body.append(_text(MARGIN, height - 16, caption, 12, PALE))
    font = "font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="Packages of the code, their sizes and imports" '
        f"{font}>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _bar(room: Room, y: int, longest: int) -> list[str]:
    out = [_text(MARGIN + NAME_WIDTH - 8, y + 16, room.name, 13, INK, anchor="end", weight="600")]
    x = float(MARGIN + NAME_WIDTH)
    for number, (part, lines) in enumerate(room.parts):
        length = BAR_WIDTH * lines / longest
        label = f"{room.name}/{part}" if part else room.name
        out.append(
            f'<rect x="{x:.1f}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" '
            f'fill="{SHADES[number % len(SHADES)]}"><title>{escape(label)}: {lines:,} lines</title>'
            "</rect>"
        )
        if part and length > 7 * len(part):
            out.append(_text(x + 5, y + 16, part, 10.5, "#ffffff"))
        x += length
    out.append(_text(x + 6, y + 16, f"{room.lines:,}", 11, PALE))
    return out


def _matrix_grid(rooms: list[Room], left: int) -> list[str]:
    side = ROW * len(rooms)
    out = []
    for number in range(len(rooms) + 1):
        at = number * ROW
        is_border = number in (0, len(rooms)) or rooms[number].layer != rooms[number - 1].layer
        colour = "#c3ccd5" if is_border else GRID
        out.append(
            f'<path d="M{left},{TOP + at}h{side}M{left + at},{TOP}v{side}" stroke="{colour}"/>'
        )
    for number in range(len(rooms)):
        at = number * ROW
        out.append(
            f'<rect x="{left + at}" y="{TOP + at}" width="{ROW}" height="{ROW}" fill="{GRID}"/>'
        )
    return out


def _cells(rooms: list[Room], imports: Counter[tuple[str, str]], row: int, left: int) -> list[str]:
    out = []
    for column, other in enumerate(rooms):
        count = imports[rooms[row].name, other.name]
        if count:
            x, y = left + column * ROW, TOP + row * ROW
            strength = min(1.0, 0.15 + count / 60)
            title = f"{rooms[row].name} imports {other.name}: {count}"
            out.append(
                f'<g><title>{escape(title)}</title><rect x="{x + 1}" y="{y + 1}" width="{ROW - 2}" '
                f'height="{ROW - 2}" fill="{BLUE}" fill-opacity="{strength:.2f}"/>'
                + _text(
                    x + ROW / 2,
                    y + 16,
                    str(count),
                    10,
                    "#ffffff" if strength > 0.5 else INK,
                    "middle",
                )
                + "</g>"
            )
    return out


def _text(
    x: float, y: float, text: str, size: float, colour: str, anchor: str = "start", weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"'
        f"{bold}>{escape(text)}</text>"
    )


def faults(picture: str, rooms: list[Room], imports: Counter[tuple[str, str]]) -> list[str]:
    """What the picture shows otherwise than the code: rooms and imports, whatever their number."""
    out = [f"room {room.name} is not on it" for room in rooms if f">{room.name}<" not in picture]
    drawn = set(re.findall(r"<title>(\w+) imports (\w+):", picture))
    out += [
        f"{room} imports {other}, which it does not show" for room, other in imports.keys() - drawn
    ]
    out += [f"{room} does not import {other} any more" for room, other in drawn - imports.keys()]
    return out


def main() -> int:
    """Write the picture, or compare it with the code."""
    rooms = read_rooms()
    imports = imports_between(rooms)
    if "--check" in sys.argv[1:]:
        problems = faults(PICTURE.read_text(encoding="utf-8"), rooms, imports)
        for problem in problems:
            print(f"{PICTURE.relative_to(ROOT)}: {problem}; run `make map`", file=sys.stderr)
        return 1 if problems else 0
    PICTURE.write_text(draw(rooms, imports), encoding="utf-8")
    total = sum(room.lines for room in rooms)
    print(f"{PICTURE.relative_to(ROOT)}: {len(rooms)} rooms, {total:,} lines of code")
    return 0


if __name__ == "__main__":
    sys.exit(main())
