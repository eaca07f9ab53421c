"""Reports, tables and maps of chunks as HTML for notebooks, of bounded length, all text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy as np
    import numpy.typing as npt

_CELL = 'style="text-align:left;padding:2px 10px;vertical-align:top"'
_LONGEST = 300
_SHOWN_ROWS = 20
_SHOWN_ITEMS = 10
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_COLUMNS, _ROWS, _SIDE = 48, 12, 8


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def html_table(title: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> Markup:
    """A table under a title; the first cell of each row is its name.

    >>> html_table("stats", [("chunks", 3)]).count("<tr>")
    1
    """
    return Markup(
        f'<div class="icefloe"><strong>{escape(title)}</strong>{_rows_html(rows, header)}</div>'
    )


def _rows_html(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    head = "".join(f'<th scope="col" {_CELL}>{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row" {_CELL}>{_shown(name)}</th>'
        + "".join(f"<td {_CELL}>{_shown(value)}</td>" for value in values)
        + "</tr>"
        for name, *values in rows
    )
    thead = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table>{thead}<tbody>{body}</tbody></table>"


class Report(msgspec.Struct, frozen=True):
    """What a long call did: a table in notebooks, a few lines of text in IPython and from `print`.

    >>> class Swept(Report, frozen=True):
    ...     files: int
    ...     bytes_freed: int
    >>> Swept(3, 2048)._repr_html_().count("2.0 KiB")
    1
    """

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        return record_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 (IPython's)
        """Show it in a terminal of IPython, and where HTML is not shown."""
        printer.text("…" if cycle else str(self))


def record_html(record: msgspec.Struct) -> Markup:
    """The fields of a record that are not empty."""
    return html_table(type(record).__name__, _field_rows(record))


def readable_size(size: float) -> str:
    """A number of bytes for people.

    >>> readable_size(512), readable_size(1536)
    ('512 B', '1.5 KiB')
    """
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def chunk_map(coords: npt.NDArray[np.integer[Any]], grid: Sequence[int]) -> Markup:
    """Which chunks of a grid are in a list, as a picture: darker where there are more of them.

    The last two dimensions are drawn, large ones with several chunks in a cell. Chunks outside of
    the grid, of an array that became smaller, are drawn beside it.
    """
    import numpy as np  # not for the command line's --help, which needs the sizes of this module

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
    down, across = (_SIDE * count for count in counts.shape)
    size = f'width="{across}" height="{down}" viewBox="0 0 {across} {down}"'
    label = f"{len(coords)} chunks of a grid of {' × '.join(map(str, grid)) or 'one'}"
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
        f"<title>{label}</title>{squares}</svg>"
    )


def _field_rows(record: msgspec.Struct) -> list[tuple[str, object]]:
    return [
        (_label(name), _measured(name, value))
        for name in record.__struct_fields__
        if not _is_empty(value := getattr(record, name))
    ]


def _label(name: str) -> str:
    return name.replace("_", " ")


def _is_empty(value: object) -> bool:
    return value is None or (
        isinstance(value, str | Sequence | Mapping | AbstractSet) and not value
    )


def _measured(name: str, value: object) -> object:
    """Numbers with the unit in the name of their field."""
    words = name.split("_")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if "bytes" in words:
        return readable_size(value)
    return f"{value:,.1f} s" if "seconds" in words else value


def _shown(value: object) -> str:  # noqa: PLR0911 (one line for each kind of value)
    if isinstance(value, Markup):
        return value
    if callable(drawn := getattr(value, "_repr_html_", None)):
        return str(drawn())
    if isinstance(value, datetime):
        return escape(value.isoformat(sep=" ", timespec="seconds"))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, msgspec.Struct):
        return _rows_html(_field_rows(value))
    if isinstance(value, Mapping):
        return _rows_html(list(islice(value.items(), _SHOWN_ROWS))) + _more(value, _SHOWN_ROWS)
    if isinstance(value, Sequence | AbstractSet) and not isinstance(value, str | bytes):
        return _collection_html(value)
    return _text(value)


def _collection_html(values: Collection[object]) -> str:
    """Records as a table, anything else as a list of words."""
    first = list(islice(values, _SHOWN_ROWS))
    if first and all(isinstance(each, msgspec.Struct) for each in first):
        return _records_html(first) + _more(values, _SHOWN_ROWS)
    return ", ".join(map(_text, first[:_SHOWN_ITEMS])) + _more(values, _SHOWN_ITEMS)


def _records_html(records: list[Any]) -> str:
    names = [
        name
        for name in records[0].__struct_fields__
        if not all(_is_empty(getattr(each, name, None)) for each in records)
    ]
    rows = [
        [
            "" if _is_empty(value := getattr(each, name, None)) else _measured(name, value)
            for name in names
        ]
        for each in records
    ]
    return _rows_html(rows, [_label(name) for name in names])


def _more(values: Collection[object], shown: int) -> str:
    left = len(values) - shown
    return f" and {left:,} more" if left > 0 else ""


def _text(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
