"""Reading FlatBuffers as columns: one numpy array for a field of all tables of a kind.

Nothing here trusts its input. Every position is checked before bytes are read there, and every
count before memory is taken for it: a vector that many tables share may not multiply.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.formats.container import bad_file
from icefloe.model.chunk_refs import StringColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]

_MAX_SHARING = 8
"""What vectors hold altogether may be so many times as large as the body, as they may be shared."""
_FREE_BYTES = 65_536
_FEW_SLICES = 8
_MIN_VTABLE = 4
_MAX_SLOTS = 128
"""Slots beyond this are not looked at; no table that is known has more than 13."""


class Body:
    """The bytes of a FlatBuffers file."""

    __slots__ = ("data", "key", "octets")

    def __init__(self, data: bytes, key: str) -> None:
        """Take a body; `key` names the file in errors."""
        self.data = data
        self.key = key
        self.octets = np.frombuffer(data, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def bad(self, reason: str) -> Exception:
        """The error for a body that is not what it should be."""
        return bad_file(self.key, f"not the FlatBuffers that were expected: {reason}")

    def root(self) -> Tables:
        """The root table."""
        if len(self) < 8:
            raise self.bad(f"{len(self)} bytes hold no table")
        first = int.from_bytes(self.data[:4], "little")
        return Tables(self, np.array([first], dtype=np.int64))

    def gather(self, positions: Positions, dtype: str | np.dtype[Any]) -> npt.NDArray[Any]:
        """The values at some positions, of any alignment."""
        kind = np.dtype(dtype)
        self.check(positions, kind.itemsize)
        if len(positions) == 0:
            return np.empty(0, dtype=kind)
        size = kind.itemsize
        if kind.kind in "iu" and not int(np.bitwise_or.reduce(positions)) & (size - 1):
            # Numbers are aligned in any file of FlatBuffers: numpy takes half the time for those.
            words = np.frombuffer(self.data, kind, len(self) // size)
            values: npt.NDArray[Any] = words[positions >> (size.bit_length() - 1)]
            return values
        view = np.ndarray((len(self) - size + 1,), kind, self.data, 0, (1,))
        return view[positions]

    def gather_rows(self, positions: Positions, width: int) -> npt.NDArray[np.uint8]:
        """The same number of bytes at each of some positions: (n, width)."""
        if width == 0 or len(positions) == 0:
            return np.empty((len(positions), width), dtype=np.uint8)
        rows = self.gather(positions, f"V{width}")
        return rows.view(np.uint8).reshape(len(positions), width)

    def check(self, positions: Positions, size: int) -> None:
        """Raise FormatError unless `size` bytes at each of the positions are in the body."""
        if len(positions) and (int(positions.min()) < 0 or int(positions.max()) > len(self) - size):
            raise self.bad("an offset leads out of the file")

    def targets(self, positions: Positions) -> Positions:
        """Where the offsets at some positions lead; 0 for the position 0."""
        if len(positions) and not positions.all():
            targets = np.zeros(len(positions), dtype=np.int64)
            here = np.flatnonzero(positions)
            targets[here] = self.targets(positions[here])
            return targets
        # An offset of 0 leads to itself: nonsense, but it stays inside of the body.
        return positions + self.gather(positions, "<u4").astype(np.int64)


class Slices:
    """Byte strings or strings inside of a body, one for each of many tables."""

    __slots__ = ("body", "lengths", "starts")

    def __init__(self, body: Body, starts: Positions, lengths: Positions) -> None:
        """Take where each begins, 0 where there is none, and how long each is."""
        self.body = body
        self.starts = starts
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def is_there(self) -> npt.NDArray[np.bool_]:
        """Which of them exist; an empty one does."""
        return self.starts > 0

    def take(self, rows: npt.NDArray[np.integer] | slice) -> Slices:
        """Chosen rows."""
        return Slices(self.body, self.starts[rows], self.lengths[rows])

    def at(self, row: int) -> bytes | None:
        """The bytes of one; None if it does not exist."""
        start = int(self.starts[row])
        return self.body.data[start : start + int(self.lengths[row])] if start else None

    def tolist(self) -> list[bytes]:
        """The bytes of all, empty where one does not exist; for small tables."""
        data = self.body.data
        ends = (self.starts + self.lengths).tolist()
        self.check_total()
        return [data[s:e] for s, e in zip(self.starts.tolist(), ends, strict=True)]

    def texts(self) -> list[str]:
        """All as strings; raises FormatError for bytes that are not UTF-8."""
        try:
            return list(map(bytes.decode, self.tolist()))
        except UnicodeDecodeError as error:
            raise self.body.bad(f"a string is not UTF-8: {error}") from None

    def check_total(self, chosen: npt.NDArray[np.bool_] | None = None) -> int:
        """The bytes of all, or of chosen ones; raises FormatError if sharing multiplies them."""
        total = int(self.lengths.sum(where=True if chosen is None else chosen))
        if total > _FREE_BYTES + _MAX_SHARING * len(self.body):
            raise self.body.bad(f"strings that are shared would take {total} bytes")
        return total

    def joined(self) -> tuple[bytes, Positions]:
        """All end to end, and the end of each."""
        total = self.check_total()
        ends = np.cumsum(self.lengths)
        out = np.empty(total, dtype=np.uint8)
        copy_slices(out, ends - self.lengths, self.body.octets, self.starts, self.lengths)
        return out.tobytes(), ends

    def column(self) -> StringColumn:
        """All as a column of strings; raises FormatError for bytes that are not UTF-8."""
        data, ends = self.joined()
        column = StringColumn(data, ends.astype(np.uint64))
        check_utf8(column, self.body)
        return column


class Vectors:
    """Vectors of items of one size, one for each of many tables."""

    __slots__ = ("body", "counts", "starts")

    def __init__(self, body: Body, starts: Positions, counts: Positions) -> None:
        """Take where the items of each begin, 0 where there is none, and how many there are."""
        self.body = body
        self.starts = starts
        self.counts = counts

    @property
    def is_there(self) -> npt.NDArray[np.bool_]:
        """Which of them exist; an empty one does."""
        return self.starts > 0

    def items(self, size: int) -> Positions:
        """Where each item of all vectors is, end to end."""
        total = int(self.counts.sum())
        if total * size > _FREE_BYTES + _MAX_SHARING * len(self.body):
            raise self.body.bad(f"vectors that are shared would have {total} items")
        return ragged(self.starts, self.counts, size)

    def values(self, dtype: str | np.dtype[Any]) -> npt.NDArray[Any]:
        """The items of all vectors, end to end; one vector is not copied."""
        kind = np.dtype(dtype)
        if len(self.starts) == 1:
            start, count = int(self.starts[0]), int(self.counts[0])
            data = self.body.data[start : start + count * kind.itemsize]
            return np.frombuffer(data, dtype=kind)
        return self.body.gather(self.items(kind.itemsize), kind)

    def tables(self) -> Tables:
        """The tables that the items lead to, of all vectors end to end."""
        return Tables(self.body, self.body.targets(self.items(4)))

    def strings(self) -> Slices:
        """The strings that the items lead to, of all vectors end to end."""
        return _slices(self.body, self.body.targets(self.items(4)))


class Tables:
    """Many tables of one kind: each field of all of them is one column.

    Tables that follow each other mostly share their vtable, so fields are found run by run.
    """

    def __init__(self, body: Body, positions: Positions) -> None:
        """Take where the tables are; checks that they and their vtables are inside of the body."""
        self.body = body
        self.positions = positions
        vtables = positions - body.gather(positions, "<i4")
        self._run_starts = run_starts(vtables)
        heads = vtables[self._run_starts]
        self._vtables, self._numbers = np.unique(heads, return_inverse=True)
        sizes = body.gather(self._vtables, "<u2").astype(np.int64)
        if len(sizes) and int(sizes.min()) < _MIN_VTABLE:
            raise body.bad(f"a vtable has {int(sizes.min())} bytes")
        self._sizes = body.gather(self._vtables + 2, "<u2").astype(np.int64)
        """Bytes of the tables of each vtable."""
        self._slots = (sizes - _MIN_VTABLE) // 2
        if len(sizes) and int((self._vtables + sizes).max()) > len(body):
            raise body.bad("a vtable leads out of the file")
        if len(positions):
            # The last table of a run is not always the farthest: look at all.
            ends = positions + self._spread(self._sizes)
            if int(ends.max()) > len(body):
                raise body.bad("a table leads out of the file")

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def _run_lengths(self) -> Positions:
        return np.diff(np.append(self._run_starts, len(self.positions)))

    def _spread(self, values: Positions) -> Positions | np.int64:
        """The value of each vtable for each table; one number if it is the same for all."""
        if len(values) == 1 or (len(values) and (values == values[0]).all()):
            return np.int64(values[0])
        return np.repeat(values[self._numbers], self._run_lengths)

    def take(self, rows: npt.NDArray[np.integer]) -> Tables:
        """Chosen tables."""
        return Tables(self.body, self.positions[rows])

    def field(self, slot: int, size: int) -> Positions:
        """Where a field of some bytes is in each table; 0 where it is absent."""
        if len(self) == 0:
            return self.positions
        offsets = np.zeros(len(self._vtables), dtype=np.int64)
        has = np.flatnonzero(self._slots > slot)
        places = self._vtables[has] + (_MIN_VTABLE + 2 * slot)
        offsets[has] = self.body.gather(places, "<u2")
        used = offsets > 0
        if ((offsets < 4) & used).any() or ((offsets + size > self._sizes) & used).any():
            raise self.body.bad("a field lies outside of its table")
        at = self._spread(offsets)
        if isinstance(at, np.int64):
            return self.positions + at if at else np.zeros(len(self), dtype=np.int64)
        return np.where(at > 0, self.positions + at, 0)

    def has(self, slot: int) -> npt.NDArray[np.bool_]:
        """Which tables have a field."""
        return self.field(slot, 1) > 0

    def numbers(self, slot: int, dtype: str, default: int = 0) -> npt.NDArray[Any]:
        """A field of numbers; the default where it is absent."""
        kind = np.dtype(dtype)
        places = self.field(slot, kind.itemsize)
        if len(places) and places.all():
            return self.body.gather(places, kind)
        values = np.full(len(places), default, dtype=kind)
        here = np.flatnonzero(places)
        values[here] = self.body.gather(places[here], kind)
        return values

    def ids(self, slot: int, size: int, what: str) -> npt.NDArray[np.uint8]:
        """A field of ids that must be there: (n, size)."""
        return self.body.gather_rows(self._required(self.field(slot, size), what), size)

    def _required(self, places: Positions, what: str) -> Positions:
        if len(places) and not places.all():
            raise self.body.bad(f"{what} is missing")
        return places

    def _targets(self, slot: int, required: str) -> Positions:
        places = self.field(slot, 4)
        if required:
            places = self._required(places, required)
        return self.body.targets(places)

    def vectors(self, slot: int, item_size: int, required: str = "") -> Vectors:
        """A field of vectors. `required` names it where it must be there."""
        starts, counts = _counted(self.body, self._targets(slot, required), item_size)
        return Vectors(self.body, starts, counts)

    def slices(self, slot: int, required: str = "") -> Slices:
        """A field of strings, or of vectors of bytes."""
        return _slices(self.body, self._targets(slot, required))

    def tables(self, slot: int, required: str) -> Tables:
        """A field of tables that must be there."""
        return Tables(self.body, self._targets(slot, required))


def _slices(body: Body, targets: Positions) -> Slices:
    starts, lengths = _counted(body, targets, 1)
    return Slices(body, starts, lengths)


def _counted(body: Body, targets: Positions, item_size: int) -> tuple[Positions, Positions]:
    """Where the items of vectors begin and how many each has; checks that they are in the body."""
    if len(targets) and not targets.all():
        starts = np.zeros(len(targets), dtype=np.int64)
        counts = np.zeros(len(targets), dtype=np.int64)
        here = np.flatnonzero(targets)
        starts[here], counts[here] = _counted(body, targets[here], item_size)
        return starts, counts
    counts = body.gather(targets, "<u4").astype(np.int64)
    starts = targets + 4
    if len(counts) and int((starts + counts * item_size).max()) > len(body):
        raise body.bad("a vector or a string leads out of the file")
    return starts, counts


def run_starts(values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where runs of equal neighbours begin."""
    if len(values) == 0:
        return np.empty(0, dtype=np.intp)
    is_first = np.empty(len(values), dtype=np.bool_)
    is_first[0] = True
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values that occur, ascending, each once. The first call of `np.unique` loads `numpy.ma`."""
    if len(values) and (values == values[0]).all():
        return values[:1]
    ordered = np.sort(values)
    return ordered[run_starts(ordered)]


def ragged(starts: Positions, counts: Positions, size: int = 1) -> Positions:
    """Where the items of slices are, of all slices end to end."""
    if len(counts) == 1:
        return np.int64(starts[0]) + size * np.arange(int(counts[0]), dtype=np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    items = np.repeat(starts - size * (ends - counts), counts)
    items += size * np.arange(total, dtype=np.int64)
    return items


def copy_slices(
    target: npt.NDArray[np.uint8],
    target_starts: npt.NDArray[np.integer],
    source: npt.NDArray[np.uint8],
    source_starts: npt.NDArray[np.integer],
    lengths: npt.NDArray[np.integer],
) -> None:
    """Copy many slices of one buffer into another; all must be inside.

    Slices of one length are copied at once: an index for each byte would take gigabytes.
    """
    if len(lengths) <= _FEW_SLICES:
        columns = (target_starts.tolist(), source_starts.tolist(), lengths.tolist())
        for to, start, size in zip(*columns, strict=True):
            target[to : to + size] = source[start : start + size]
        return
    # Small numbers of 16 bits are sorted in one pass.
    keys = lengths.astype(np.uint16) if int(lengths.max()) < 2**16 else lengths
    order = np.argsort(keys, kind="stable")
    sizes = lengths[order]
    starts = run_starts(sizes).tolist()
    for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
        rows, size = order[first:last], int(sizes[first])
        if size == 0:
            continue
        if len(rows) == 1:
            to, start = int(target_starts[rows[0]]), int(source_starts[rows[0]])
            target[to : to + size] = source[start : start + size]
            continue
        _windows(target, size)[target_starts[rows]] = _windows(source, size)[source_starts[rows]]


def scatter(
    target: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.integer],
    values: npt.NDArray[np.uint8],
    size: int,
) -> None:
    """Write contiguous values of one size at some positions of a buffer."""
    _windows(target, size)[starts] = values.view(f"V{size}")


def _windows(octets: npt.NDArray[np.uint8], size: int) -> npt.NDArray[Any]:
    """Every slice of a size, overlapping each other."""
    return np.ndarray((len(octets) - size + 1,), f"V{size}", octets, 0, (1,))


def check_utf8(column: StringColumn, body: Body) -> None:
    """Raise FormatError unless each string of a column is UTF-8."""
    if column.data.isascii():
        return
    try:
        column.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise body.bad(f"a string is not UTF-8: {error}") from None
    octets = np.frombuffer(column.data, dtype=np.uint8)
    starts = column.starts()
    starts = starts[starts < len(octets)].astype(np.intp)
    if ((octets[starts] & 0xC0) == 0x80).any():
        raise body.bad("a string starts in the middle of a character")


def as_words(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Ids (n, size) as (n, size / 4) numbers, which are quicker to compare for equality."""
    return np.ascontiguousarray(rows).view("<u4").reshape(len(rows), -1)


def ascending(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Whether each row of some columns, the most significant first, is above the row before it."""
    count = len(columns[0])
    above = np.zeros(max(count - 1, 0), dtype=np.bool_)
    equal = np.ones(max(count - 1, 0), dtype=np.bool_)
    for column in columns:
        above |= equal & (column[1:] > column[:-1])
        equal &= column[1:] == column[:-1]
    return above
