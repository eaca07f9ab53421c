"""Values as people read them: sizes, times, shapes, and text that is safe to print."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.html_tables import readable_size
from icefloe.model.bounded_text import first_line, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "SHORT_ID",
    "cell",
    "counted",
    "first_line",
    "moment",
    "number",
    "parse_size",
    "plain",
    "printable",
    "shape",
    "short_id",
    "size",
]

SHORT_ID = 8
"""How many characters of an id people see; programs get all of them."""


def short_id(snapshot_id: str | None) -> str:
    """The beginning of an id, as tables show it."""
    return "" if snapshot_id is None else printable(snapshot_id[:SHORT_ID])


def size(count: int | None) -> str:
    """A number of bytes in binary units.

    >>> size(1536)
    '1.5 KiB'
    """
    return "" if count is None else readable_size(count)


def moment(time: datetime) -> str:
    """A time in UTC, to the minute."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def number(count: int | None) -> str:
    """A count with separators."""
    return "" if count is None else f"{count:,}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun.

    >>> counted(1, "branch", "branches"), counted(2, "branch", "branches"), counted(0, "tag")
    ('1 branch', '2 branches', '0 tags')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def shape(extents: Sequence[int] | None) -> str:
    """A shape as `720 × 1440`."""
    if extents is None:
        return "irregular"
    return " × ".join(map(str, extents)) or "scalar"


def plain(value: Any) -> str:
    """Any value of a table, in one line."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set):
        return ", ".join(map(plain, value))
    return printable(value)


def cell(value: Any) -> str:
    """A value of data, exactly: times as they are stored, to the last digit.

    >>> cell(datetime(2020, 1, 1, 12, 30, 15))
    '2020-01-01 12:30:15'
    """
    return printable(value) if isinstance(value, datetime) else plain(value)


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """A number of bytes such as `4096`, `32MiB` or `1.5 GiB`; units are powers of 1024.

    >>> parse_size("32MiB")
    33554432
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(f"expected a size such as 4096, 512KiB or 32MiB, found {text!r}")
    power = " KMGT".index((match[2] or " ")[0].upper().replace("B", " "))
    return int(float(match[1]) * 1024**power)
