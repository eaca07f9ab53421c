"""Columns of integers and strings as compact MessagePack values (spec version 2).

A column of `count` integers is one of
  value                       all are equal;
  [value, value, ...]         a few, as they are;
  [base, planes]              base + residual;
  [first, base, planes]       the first, then each is the one before + base + residual.
`planes` holds the residuals byte by byte: the lowest byte of all, then the next, as many as the
largest needs. Zstd finds the patterns in such planes. Arithmetic is modulo 2**64.

A column of `count` strings is `[lengths, data]`, or `[lengths, first, places, number of places,
planes]`: the strings as rows of a table, padded with zeros at the right, are equal to the first row
but at some places; the bytes at each of those places are one plane.

A column that is longer than MAX_FREE_VALUES has at least one plane, so that no small file can ask
for much memory.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.formats.container import bad_file
from icefloe.model.chunk_refs import StringColumn

if TYPE_CHECKING:
    import numpy.typing as npt

    IntegerArray = npt.NDArray[np.integer]
    Column = list[int] | npt.NDArray[np.uint64]

MAX_FREE_VALUES = 65_536
MAX_VALUES = 2**26
"""No column is longer than this."""
MAX_VALUE = 2**63 - 1
_LISTED_VALUES = 16
"""Up to so many values are written as they are: quicker for the many small files."""
_FEW_VALUES = 4096
"""Up to so many values are Python integers in a list, which are quicker to handle one by one."""
_WRAP = 2**64
MAX_STRING_EXPANSION = 1024
"""A table of strings may be this many times as large as what is stored of it."""
MAX_STRING_TABLE_BYTES = 64 * 1024 * 1024
_FEW_STRINGS = 8
_TABLE_ROWS = 4096
"""Rows of a table of strings that are looked at together: few enough for a processor's cache."""


def _width(largest: int) -> int:
    """How many bytes a residual needs."""
    return (largest.bit_length() + 7) // 8


def _planes(residuals: npt.NDArray[np.uint64], width: int) -> bytes:
    octets = np.ascontiguousarray(residuals, dtype="<u8").view(np.uint8).reshape(-1, 8)
    if width == 1:
        return octets[:, 0].tobytes()
    return octets[:, :width].tobytes(order="F")


def pack_integers(values: IntegerArray) -> int | list[Any]:
    """Pack a column; values are below 2**63 and may be negative."""
    count = len(values)
    if count <= 1:
        return int(values[0]) if count else 0
    if count <= _LISTED_VALUES:
        return pack_list(values.tolist())
    signed = values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)
    low, high = int(signed.min()), int(signed.max())
    least = int(count > MAX_FREE_VALUES)
    if low == high and not least:
        return low
    width = max(_width(high - low), least)
    if width > 1 or count > 2:
        # A difference may leave 64 bits; it then wraps round, here and when it is summed up again.
        steps = signed[1:] - signed[:-1]
        step = int(steps.min())
        spread = (int(steps.max()) - step) % _WRAP
        narrow = max(_width(spread), least)
        if narrow < width:
            residuals = steps.view(np.uint64) - np.uint64(step % _WRAP)
            return [int(signed[0]), step, _planes(residuals, narrow) if narrow else b""]
    residuals = signed.view(np.uint64) - np.uint64(low % _WRAP)
    return [low, _planes(residuals, width)]


def pack_list(values: list[int]) -> int | list[Any]:
    """Pack a column of Python integers."""
    if len(values) > _LISTED_VALUES:
        return pack_integers(np.array(values, dtype=np.int64))
    if not values:
        return 0
    return values[0] if values.count(values[0]) == len(values) else values


def packed_width(packed: int | list[Any], count: int) -> float:
    """Bytes that a packed column takes per value before compression."""
    if isinstance(packed, int):
        return 0.0
    return len(packed[-1]) / count if isinstance(packed[-1], bytes) else 8.0


def unpack_integers(
    packed: Any, count: int, key: str, *, limit: int | None = MAX_VALUE
) -> npt.NDArray[np.uint64]:
    """Unpack a column whose values must be from 0 to `limit`; None: any, modulo 2**64."""
    if count > MAX_VALUES:
        raise bad_file(key, f"a column of {count} values is more than {MAX_VALUES}")
    if type(packed) is int:
        return _constant(packed, count, key, limit)
    if type(packed) is not list or not packed:
        raise bad_file(key, f"not a column of integers: {str(packed)[:60]}")
    if type(packed[-1]) is int:
        return np.array(_listed(packed, count, key, limit), dtype=np.uint64)
    *numbers, planes = packed
    if len(numbers) not in {1, 2} or type(planes) is not bytes:
        raise bad_file(key, f"not a column of integers: {str(packed)[:60]}")
    for number in numbers:
        _check_integer(number, key)
    values = _from_planes(numbers, planes, count, key)
    if limit is not None and count and (largest := int(values.max())) > limit:
        raise _out_of_range(key, largest, limit)
    return values


def _constant(value: int, count: int, key: str, limit: int | None) -> npt.NDArray[np.uint64]:
    if count > MAX_FREE_VALUES:
        raise bad_file(key, f"a column of {count} values is given as one")
    if limit is not None and not 0 <= value <= limit:
        raise _out_of_range(key, value, limit)
    if count == 1:
        return np.array((value % _WRAP,), dtype=np.uint64)
    values = np.empty(count, dtype=np.uint64)
    values.fill(value % _WRAP)
    return values


def _listed(packed: list[Any], count: int, key: str, limit: int | None) -> list[int]:
    """Values that are given one by one."""
    if len(packed) != count:
        raise bad_file(key, f"expected a column of {count} integers, found {len(packed)}")
    for value in packed:
        _check_integer(value, key)
    if limit is None:
        return [value % _WRAP for value in packed]
    if min(packed) < 0 or max(packed) > limit:
        raise _out_of_range(key, max(packed), limit)
    return packed


def _from_planes(numbers: list[int], planes: bytes, count: int, key: str) -> npt.NDArray[np.uint64]:
    if not planes and count > MAX_FREE_VALUES:
        raise bad_file(key, f"a column of {count} values has no planes")
    if len(numbers) == 1:
        values = _residuals(planes, count, key)
        values += np.uint64(numbers[0] % _WRAP)
        return values
    if count == 0:
        raise bad_file(key, "a column of no values has a first one")
    first, step = numbers
    values = np.empty(count, dtype=np.uint64)
    values[0] = first % _WRAP
    values[1:] = _residuals(planes, count - 1, key)
    values[1:] += np.uint64(step % _WRAP)
    return np.cumsum(values, out=values)


def _residuals(planes: bytes, count: int, key: str) -> npt.NDArray[np.uint64]:
    width, rest = divmod(len(planes), count) if count else (0, len(planes))
    if rest or width > 8:
        raise bad_file(key, f"{len(planes)} bytes cannot be a column of {count} integers")
    if width == 0:
        return np.zeros(count, dtype=np.uint64)
    octets = np.frombuffer(planes, dtype=np.uint8)
    if width == 1:
        return octets.astype(np.uint64)
    table = np.zeros((count, 8), dtype=np.uint8)
    for plane in range(width):
        table[:, plane] = octets[plane * count : (plane + 1) * count]
    return table.view("<u8").ravel().astype(np.uint64, copy=False)


def _check_integer(number: Any, key: str) -> None:
    if type(number) is not int:
        raise bad_file(key, f"not an integer: {str(number)[:60]}")


def _out_of_range(key: str, value: int, limit: int) -> Exception:
    return bad_file(key, f"a number is out of range: expected 0 to {limit}, found {value}")


def unpack_integer(value: Any, key: str, *, limit: int = MAX_VALUE) -> int:
    """Check a single number from 0 to `limit`."""
    _check_integer(value, key)
    if not 0 <= value <= limit:
        raise _out_of_range(key, value, limit)
    return int(value)


def unpack_column(packed: Any, count: int, key: str, *, limit: int = MAX_VALUE) -> Column:
    """Unpack a column for use one by one: short ones as a list, long ones as an array."""
    if type(packed) is int and count <= _FEW_VALUES:
        if count and not 0 <= packed <= limit:
            raise _out_of_range(key, packed, limit)
        return [packed] * count
    if type(packed) is int and count <= MAX_FREE_VALUES:
        # One value that is seen many times: thousands of nodes are often alike.
        if not 0 <= packed <= limit:
            raise _out_of_range(key, packed, limit)
        return np.broadcast_to(np.uint64(packed), count)
    if type(packed) is list and packed and type(packed[-1]) is int:
        return _listed(packed, count, key, limit)
    values = unpack_integers(packed, count, key, limit=limit)
    return values.tolist() if count <= _FEW_VALUES else values


def ends_of(lengths: Column) -> Column:
    """Where contiguous parts of some lengths end."""
    if isinstance(lengths, list):
        return list(accumulate(lengths))
    return np.cumsum(lengths, dtype=np.uint64)


def unpack_boxes(lower: Any, shapes: Any, ranks: Column, key: str) -> tuple[Column, Column]:
    """Lower corners and shapes of boxes, end to end, each of at most 2**63 - 1 positions."""
    if len(ranks) == 0:
        return [], []
    corners = int(sum(ranks) if isinstance(ranks, list) else ranks.sum())
    low = unpack_column(lower, corners, key)
    extents = unpack_column(shapes, corners, key)
    if corners == 0:
        return low, extents
    farthest, largest, smallest = (
        (max(low), max(extents), min(extents))
        if isinstance(low, list) and isinstance(extents, list)
        else (int(np.max(low)), int(np.max(extents)), int(np.min(extents)))
    )
    if smallest == 0 or farthest + largest > MAX_VALUE:
        raise bad_file(key, "extents are empty, or reach beyond 2**63 chunks")
    deepest = max(ranks) if isinstance(ranks, list) else int(ranks.max())
    if largest**deepest > MAX_VALUE:
        # Some box may be too large: look at each of them.
        end = 0
        for rank in ranks:
            start, end = end, end + int(rank)
            if prod(map(int, extents[start:end])) > MAX_VALUE:
                raise bad_file(key, "extents span more than 2**63 chunks")
    return low, extents


def lengths_of(column: StringColumn) -> npt.NDArray[np.uint64]:
    """Number of bytes of each string."""
    return column.ends - column.starts()


def pack_strings(column: StringColumn) -> list[Any]:
    """Pack a column of strings."""
    count = len(column)
    if count < _FEW_STRINGS:
        return [pack_integers(lengths_of(column)), column.data]
    lengths = lengths_of(column)
    longest = int(lengths.max())
    packed = pack_integers(lengths)
    if longest * count > 2 * len(column.data):
        # A few long strings among short ones: a table would be mostly padding.
        return [packed, column.data]
    table = _Table(column, lengths, longest)
    first = table.rows(0, 1)[0]
    differs = np.zeros(longest, dtype=np.bool_)
    for start in range(0, count, _TABLE_ROWS):
        differs |= (table.rows(start, start + _TABLE_ROWS) != first).any(axis=0)
    places = np.flatnonzero(differs)
    if len(column.data) > _largest_table(len(places) * count, longest):
        return [packed, column.data]
    planes = np.empty((len(places), count), dtype=np.uint8)
    for start in range(0, count, _TABLE_ROWS):
        rows = slice(start, start + _TABLE_ROWS)
        planes[:, rows] = table.rows(rows.start, rows.stop).T[places]
    return [packed, first.tobytes(), pack_integers(places), len(places), planes.tobytes()]


class _Table:
    """Strings as rows of one width, some at a time; short ones are filled up with zeros."""

    def __init__(self, column: StringColumn, lengths: npt.NDArray[np.uint64], width: int) -> None:
        self._octets = np.frombuffer(column.data, dtype=np.uint8)
        self._ends = column.ends
        self._lengths = lengths
        self._width = width

    def rows(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        lengths = self._lengths[start:stop]
        shortest, longest = int(lengths.min()), int(lengths.max())
        begin = int(self._ends[start - 1]) if start else 0
        octets = self._octets[begin : begin + int(lengths.sum())]
        if shortest == longest == self._width:
            return octets.reshape(len(lengths), self._width)
        rows = np.zeros((len(lengths), self._width), dtype=np.uint8)
        if shortest == longest:
            rows[:, :longest] = octets.reshape(len(lengths), longest)
        else:
            rows[np.arange(self._width, dtype=np.uint32) < lengths.astype(np.uint32)[:, None]] = (
                octets
            )
        return rows


def unpack_strings(packed: Any, count: int, key: str) -> StringColumn:
    """Unpack a column of strings; all are checked to be UTF-8."""
    if type(packed) is not list or len(packed) not in {2, 5} or type(packed[-1]) is not bytes:
        raise bad_file(key, "not a column of strings")
    lengths = unpack_integers(packed[0], count, key, limit=2**31)
    data = packed[1] if len(packed) == 2 else _from_template(packed, lengths, key)
    ends = np.cumsum(lengths, dtype=np.uint64)
    if len(data) != (int(ends[-1]) if count else 0):
        raise bad_file(key, f"strings have {len(data)} bytes, their lengths say otherwise")
    column = StringColumn(data, ends)
    _check_utf8(column, key)
    return column


def _from_template(packed: list[Any], lengths: npt.NDArray[np.uint64], key: str) -> bytes:
    _, first, packed_places, num_places, planes = packed
    count = len(lengths)
    num_places = unpack_integer(num_places, key, limit=2**31)
    longest = len(first) if type(first) is bytes else -1
    # The planes are in the file, so this also bounds the table: see the check of its size below.
    if longest < 0 or num_places > longest or num_places * count != len(planes):
        raise bad_file(key, "the planes of a column of strings do not fit")
    total = int(lengths.sum()) if count else 0
    if longest * count > 2 * total:
        raise bad_file(key, "a column of strings is mostly padding")
    if total > _largest_table(len(planes), longest):
        raise bad_file(key, "a column of strings is too large for its planes")
    if count and int(lengths.max()) > longest:
        raise bad_file(key, "a string is longer than the first row of its table")
    places = unpack_integers(packed_places, num_places, key, limit=max(longest - 1, 0))
    table = np.empty((count, longest), dtype=np.uint8)
    table[:] = np.frombuffer(first, dtype=np.uint8)
    table[:, places.astype(np.intp)] = np.frombuffer(planes, np.uint8).reshape(num_places, count).T
    if total == longest * count:
        return table.tobytes()
    return table[np.arange(longest, dtype=np.uint64) < lengths[:, None]].tobytes()


def _largest_table(planes: int, longest: int) -> int:
    """How many bytes of strings may come of some bytes in a file."""
    expanded = min(MAX_STRING_EXPANSION * (planes + longest), MAX_STRING_TABLE_BYTES)
    return max(MAX_FREE_VALUES, expanded)


def _check_utf8(column: StringColumn, key: str) -> None:
    if column.data.isascii():
        return
    try:
        column.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_file(key, f"a string is not UTF-8: {error}") from None
    octets = np.frombuffer(column.data, dtype=np.uint8)
    starts = column.starts()
    starts = starts[starts < len(octets)].astype(np.intp)
    if ((octets[starts] & 0xC0) == 0x80).any():
        raise bad_file(key, "a string starts in the middle of a character")
