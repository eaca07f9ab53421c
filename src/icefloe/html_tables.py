"""Small tables and maps of chunks as HTML, for notebooks. All text is escaped."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

_CELL = 'style="text-align:left;padding:2px 10px;vertical-align:top"'
_LONGEST = 300
_COLUMNS, _ROWS, _SIDE = 48, 12, 8


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def html_table(title: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> Markup:
    """A table under a title; the first cell of each row is its name.

    >>> html_table("stats", [("chunks", 3)]).count("<tr>")
    1
    """
    head = "".join(f'<th scope="col" {_CELL}>{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row" {_CELL}>{_shown(name)}</th>'
        + "".join(f"<td {_CELL}>{_shown(value)}</td>" for value in values)
        + "</tr>"
        for name, *values in rows
    )
    thead = f"<thead><tr>{head}</tr></thead>" if head else ""
    return Markup(
        f'<div class="icefloe"><strong>{escape(title)}</strong>'
        f"<table>{thead}<tbody>{body}</tbody></table></div>"
    )


def record_html(record: msgspec.Struct) -> Markup:
    """The fields of a report that are not empty."""
    fields = msgspec.structs.asdict(record).items()
    rows = [
        (name.replace("_", " "), value) for name, value in fields if value not in (None, [], (), {})
    ]
    return html_table(type(record).__name__, rows)


def chunk_map(coords: npt.NDArray[np.integer[Any]], grid: Sequence[int]) -> Markup:
    """Which chunks of a grid are in a list, as a picture: darker where there are more of them.

    The last two dimensions are drawn, large ones with several chunks in a cell. Chunks outside of
    the grid, of an array that became smaller, are drawn beside it.
    """
    places = np.zeros((len(coords), 2), dtype=np.int64)
    dims = min(2, len(grid))
    if dims:
        places[:, 2 - dims :] = np.asarray(coords, dtype=np.int64)[:, -dims:]
    shape = np.maximum(([1, 1, *grid])[-2:], places.max(axis=0, initial=-1) + 1).tolist()
    rows, columns = (min(n, limit) for n, limit in zip(shape, (_ROWS, _COLUMNS), strict=True))
    cells = places * (rows, columns) // np.maximum(shape, 1)
    counts = np.zeros((max(rows, 1), max(columns, 1)))
    np.add.at(counts, (cells[:, 0], cells[:, 1]), 1)
    most = max(1.0, float(counts.max(initial=0)))
    squares = "".join(
        f'<rect x="{x * _SIDE}" y="{y * _SIDE}" width="{_SIDE - 1}" height="{_SIDE - 1}" '
        f'fill="#1f77b4" fill-opacity="{0.1 + 0.9 * count / most if count else 0.06:.2f}"/>'
        for (y, x), count in np.ndenumerate(counts)
    )
    size = f'width="{counts.shape[1] * _SIDE}" height="{counts.shape[0] * _SIDE}"'
    label = f"{len(coords)} chunks of a grid of {' × '.join(map(str, grid)) or 'one'}"
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
        f"<title>{label}</title>{squares}</svg>"
    )


def _shown(value: object) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, datetime):
        return escape(value.isoformat(sep=" ", timespec="seconds"))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
