"""Writing FlatBuffers from columns: all tables of a kind at once, without an object for each.

A body is laid out from its front: parents come before their children, as offsets only lead
forward. Sections are added in that order, which says where everything is; offsets are filled in
when the section that they lead to is there.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.icechunk.container import IDENTIFIER, MAX_LARGE_BODY_BYTES
from icefloe.formats.icechunk.tables import copy_slices, distinct
from icefloe.model.chunk_refs import StringColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from icefloe.formats.icechunk.tables import Positions

OFFSET = "<u4"
"""The type of a field that is a string, a vector or a table."""


class TableRecords:
    """Tables of one kind, as an array of records that the caller fills."""

    __slots__ = ("positions", "records", "start")

    def __init__(self, start: int, records: npt.NDArray[Any]) -> None:
        """Take where the first table is in the body, and a record for each table.

        Fields are named `s0`, `s1`, ... by their slots.
        """
        stride = records.dtype.itemsize
        self.start = start
        self.records = records
        self.positions: Positions = np.arange(
            start, start + stride * len(records), stride, dtype=np.int64
        )
        """Where each table is."""

    def put(self, slot: int, values: Any) -> None:
        """Fill a field with values; bytes are one id."""
        self.records[f"s{slot}"] = np.void(bytes(values)) if isinstance(values, bytes) else values

    def point(self, slot: int, targets: Positions | int, rows: Any = slice(None)) -> None:
        """Fill a field with offsets that lead to some positions."""
        name = f"s{slot}"
        fields = self.records.dtype.fields
        assert fields is not None
        places = self.positions[rows] + fields[name][1]
        self.records[name][rows] = targets - places


class Offsets(NamedTuple):
    """Vectors of offsets that the caller fills."""

    vectors: Positions
    """Where each vector is."""
    places: Positions
    """Where each offset is, of all vectors end to end."""
    words: npt.NDArray[np.uint32]
    """The words of the section, counts among them."""
    start: int

    def point(self, targets: Positions | int) -> None:
        """Fill all offsets, of all vectors end to end."""
        self.words[(self.places - self.start) // 4] = targets - self.places


class Builder:
    """A body that grows at its end."""

    def __init__(self) -> None:
        """Begin with the place for the offset of the root table."""
        self._head = np.frombuffer(bytearray(bytes(4) + IDENTIFIER), dtype=np.uint8)
        self._parts: list[npt.NDArray[Any]] = [self._head]
        self._end = len(self._head)
        self._vtables: dict[bytes, int] = {}

    def append(self, part: npt.NDArray[Any], align: int = 4, shift: int = 0) -> int:
        """Add bytes at the end; returns where. `shift` bytes behind it, it is aligned."""
        padding = -(self._end + shift) % align
        if padding:
            self._parts.append(np.zeros(padding, dtype=np.uint8))
        start = self._end + padding
        self._end = start + part.nbytes
        if self._end > MAX_LARGE_BODY_BYTES:
            raise InvalidInputError(
                f"a metadata file would have {self._end} bytes, but the format ends at 2 GiB; "
                "split the manifests of large arrays"
            )
        self._parts.append(part)
        return start

    def tables(
        self,
        count: int,
        fields: Mapping[int, str | tuple[str, int]],
        absent: Mapping[int, npt.NDArray[np.bool_]] | None = None,
    ) -> TableRecords:
        """Add tables with some slots; `absent` says for some slots which tables lack them.

        Types are those of numpy; an id of 12 bytes is `V12`.
        """
        dtype = _record_type(tuple(fields.items()))
        records = np.zeros(count, dtype=dtype)
        if not absent:
            vtable = self._vtable(dtype, set())
            section = TableRecords(self.append(records, align=8), records)
            records["soffset"] = section.positions - vtable
            return section
        variants = np.zeros(count, dtype=np.int64)
        for bit, mask in enumerate(absent.values()):
            variants |= mask.astype(np.int64) << bit
        needed = distinct(variants).tolist()
        vtables = {
            variant: self._vtable(dtype, {s for bit, s in enumerate(absent) if variant >> bit & 1})
            for variant in needed
        }
        section = TableRecords(self.append(records, align=8), records)
        at = np.array([vtables[variant] for variant in needed], dtype=np.int64)
        records["soffset"] = section.positions - at[np.searchsorted(needed, variants)]
        return section

    def _vtable(self, dtype: np.dtype[Any], absent: set[int]) -> int:
        """Where the vtable of such tables is; equal ones are written once."""
        vtable = vtable_of(dtype, absent)
        place = self._vtables.get(vtable)
        if place is None:
            place = self._vtables[vtable] = self.append(np.frombuffer(vtable, np.uint8), align=2)
        return place

    def slices(
        self,
        data: bytes | memoryview | npt.NDArray[np.uint8],
        ends: npt.NDArray[np.integer] | Sequence[int],
    ) -> Positions:
        """Add contiguous strings or vectors of bytes; returns where each is."""
        stops = np.asarray(ends, dtype=np.int64)
        if len(stops) == 0:
            return stops
        starts = np.empty_like(stops)
        starts[0] = 0
        starts[1:] = stops[:-1]
        lengths = stops - starts
        # A count before, at least one zero behind, and filled up to 4 bytes.
        words = (lengths >> 2) + 2
        stop_words = words.cumsum()
        places: Positions = stop_words - words
        out = np.zeros(4 * int(stop_words[-1]), dtype=np.uint8)
        out.view("<u4")[places] = lengths
        places *= 4
        copy_slices(out, places + 4, np.frombuffer(data, dtype=np.uint8), starts, lengths)
        places += self.append(out)
        return places

    def texts(self, strings: Iterable[str]) -> Positions:
        """Add strings; returns where each is."""
        column = StringColumn.of(strings)
        return self.slices(column.data, column.ends)

    def blobs(self, pieces: Sequence[bytes]) -> Positions:
        """Add vectors of bytes; returns where each is."""
        return self.slices(b"".join(pieces), np.cumsum([len(piece) for piece in pieces]))

    def vectors(
        self, counts: npt.NDArray[np.integer] | Sequence[int], items: npt.NDArray[Any]
    ) -> Positions:
        """Add contiguous vectors of numbers or structs; returns where each is."""
        width = items.dtype.itemsize
        align = items.dtype.alignment if items.dtype.kind != "V" else _struct_alignment(items.dtype)
        unit = max(align, 4)
        if len(counts) == 1:
            flat = np.zeros(unit + items.nbytes, dtype=np.uint8)
            flat[unit - 4 : unit].view("<u4")[0] = len(items)
            flat[unit:] = np.ascontiguousarray(items).view(np.uint8).ravel()
            return np.array([self.append(flat, align=unit) + unit - 4], dtype=np.int64)
        lengths = np.asarray(counts, dtype=np.int64)
        # Items begin at a multiple of the unit, the count lies right before them.
        sizes = (lengths * width + 4 + unit - 1) // unit * unit
        places = np.cumsum(sizes) - sizes + (unit - 4)
        out = np.zeros(int(sizes.sum()) + unit, dtype=np.uint8)
        out.view("<u4")[places // 4] = lengths
        source = np.ascontiguousarray(items).view(np.uint8).ravel()
        ends = np.cumsum(lengths) * width
        copy_slices(out, places + 4, source, ends - lengths * width, lengths * width)
        return self.append(out, align=8) + places

    def offsets(self, counts: npt.NDArray[np.integer] | Sequence[int]) -> Offsets:
        """Add vectors of offsets, which the caller fills later."""
        if len(counts) == 1:
            count = int(counts[0])
            words = np.zeros(count + 1, dtype=np.uint32)
            words[0] = count
            start = self.append(words)
            items = np.arange(start + 4, start + 4 + 4 * count, 4, dtype=np.int64)
            vectors = np.array([start], dtype=np.int64)
            return Offsets(vectors=vectors, places=items, words=words, start=start)
        lengths = np.asarray(counts, dtype=np.int64)
        sizes = lengths + 1
        places = np.cumsum(sizes) - sizes
        words = np.zeros(int(sizes.sum()), dtype=np.uint32)
        words[places] = lengths
        is_item = np.ones(len(words), dtype=np.bool_)
        is_item[places] = False
        start = self.append(words)
        return Offsets(
            vectors=start + 4 * places,
            places=start + 4 * np.flatnonzero(is_item),
            words=words,
            start=start,
        )

    def finish(self, root: int) -> bytes:
        """The whole body, whose root table is at a position."""
        self._head.view("<u4")[0] = root
        return b"".join([part.view(np.uint8).data for part in self._parts if part.size])


def _struct_alignment(dtype: np.dtype[Any]) -> int:
    """Of a record: that of its largest field; plain bytes have none."""
    if dtype.fields is None:
        return 1
    return max(
        _struct_alignment(field[0]) if field[0].kind == "V" else field[0].itemsize
        for field in dtype.fields.values()
    )


@cache
def _record_type(fields: tuple[tuple[int, str | tuple[str, int]], ...]) -> np.dtype[Any]:
    """A record of a table: the offset of its vtable, then the fields, the widest first."""
    sizes = {slot: np.dtype(kind) for slot, kind in fields}
    # Ids are plain bytes, which may lie anywhere: last, so that the others are aligned.
    ordered = sorted(sizes, key=lambda slot: (sizes[slot].kind == "V", -sizes[slot].itemsize, slot))
    names, places = ["soffset"], [0]
    formats: list[np.dtype[Any]] = [np.dtype("<i4")]
    end = 4
    for slot in ordered:
        kind = sizes[slot]
        align = 1 if kind.kind == "V" else kind.itemsize
        end += -end % align
        names.append(f"s{slot}")
        formats.append(kind)
        places.append(end)
        end += kind.itemsize
    return np.dtype(
        {"names": names, "formats": formats, "offsets": places, "itemsize": end + -end % 8}
    )


def vtable_of(dtype: np.dtype[Any], absent: set[int] | frozenset[int] = frozenset()) -> bytes:
    """The vtable of tables that are such records, but for some slots."""
    assert dtype.fields is not None
    places = {int(name[1:]): at[1] for name, at in dtype.fields.items() if name != "soffset"}
    slots = max(places, default=-1) + 1
    words = np.zeros(2 + slots, dtype="<u2")
    words[0], words[1] = words.nbytes, dtype.itemsize
    for slot, place in places.items():
        words[2 + slot] = 0 if slot in absent else place
    return words.tobytes()
