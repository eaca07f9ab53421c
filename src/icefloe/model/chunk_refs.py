"""Chunk references: one at a time as values, many at a time as columns."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Self

import numpy as np

from icefloe.model.ids import ChunkFileId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt


class ChunkKind(IntEnum):
    """Where the bytes of a chunk are. The numbers are part of the format."""

    UNINITIALIZED = 0
    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3


# Attributes of an enumeration are slow to look up, and these are needed for each chunk.
_NATIVE = int(ChunkKind.NATIVE)
_INLINE = int(ChunkKind.INLINE)


class InlineRef(Record, frozen=True):
    """A chunk whose bytes stand in the manifest itself."""

    data: bytes


class PendingRef(InlineRef, frozen=True):
    """A chunk that waits in memory to be written with others as one chunk file.

    Only the uncommitted changes of a session hold these; in columns they are like inline chunks.
    """


class NativeRef(Record, frozen=True):
    """A chunk, or a slice of a pack, in the repository's own chunk files."""

    file: ChunkFileId
    offset: int
    length: int
    checksum: int = 0
    """CRC-32C of the bytes; 0 when none was recorded."""


class VirtualRef(Record, frozen=True):
    """A range of an object outside of the repository."""

    location: str
    offset: int
    length: int
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970: the object must not have changed after this moment."""


ChunkRef = InlineRef | NativeRef | VirtualRef


class StringColumn:
    """Immutable strings in one buffer, so that a million of them are two Python objects."""

    __slots__ = ("data", "ends")

    def __init__(self, data: bytes, ends: npt.NDArray[np.uint64]) -> None:
        """Take the UTF-8 bytes of all strings and the end of each."""
        self.data = data
        self.ends = ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> Self:
        """Pack Python strings."""
        encoded = [s.encode("utf-8") for s in strings]
        lengths = np.fromiter(map(len, encoded), dtype=np.uint64, count=len(encoded))
        return cls(b"".join(encoded), np.cumsum(lengths, dtype=np.uint64))

    @classmethod
    def concat(cls, columns: Sequence[StringColumn]) -> Self:
        """Join columns end to end."""
        columns = [c for c in columns if len(c)] or columns[:1]
        shifts = np.cumsum([0] + [len(c.data) for c in columns[:-1]], dtype=np.uint64)
        ends = [c.ends + shift for c, shift in zip(columns, shifts, strict=True)]
        return cls(b"".join(c.data for c in columns), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = int(self.ends[row - 1]) if row else 0
        return self.data[start : int(self.ends[row])].decode("utf-8")

    def starts(self) -> npt.NDArray[np.uint64]:
        """Where each string begins."""
        starts = np.empty_like(self.ends)
        starts[:1] = 0
        starts[1:] = self.ends[:-1]
        return starts

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """A column of chosen rows, without an object per string."""
        data, ends = gather_bytes(self.data, self.starts()[rows], self.ends[rows])
        return type(self)(data, ends)

    def slice(self, start: int, stop: int) -> Self:
        """Consecutive rows."""
        if start == 0 and stop == len(self.ends):
            return self
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop else 0
        return type(self)(self.data[first:last], self.ends[start:stop] - np.uint64(first))

    def tolist(self) -> list[str]:
        """Python strings; for reports, not for hot paths."""
        return [self[row] for row in range(len(self))]


def gather_bytes(
    data: bytes, starts: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64]
) -> tuple[bytes, npt.NDArray[np.uint64]]:
    """Copy many slices of a buffer end to end; returns them and the end of each."""
    lengths = (ends - starts).astype(np.int64)
    new_ends = np.cumsum(lengths)
    total = int(new_ends[-1]) if len(new_ends) else 0
    # Byte k of slice i comes from starts[i] + k: a running count with a jump at each slice.
    jumps = starts.astype(np.int64) - (new_ends - lengths)
    source = np.repeat(jumps, lengths) + np.arange(total, dtype=np.int64)
    gathered = np.frombuffer(data, dtype=np.uint8)[source] if total else np.empty(0, np.uint8)
    return gathered.tobytes(), new_ends.astype(np.uint64)


class Locations:
    """The dictionary of virtual sources: URL and checksum of each."""

    __slots__ = ("etags", "modified", "urls")

    def __init__(
        self, urls: StringColumn, etags: StringColumn, modified: npt.NDArray[np.int64]
    ) -> None:
        """Take parallel columns; an empty etag or a zero time means that there is none."""
        self.urls = urls
        self.etags = etags
        self.modified = modified

    @classmethod
    def of(cls, entries: Sequence[tuple[str, str | None, int | None]]) -> Self:
        """Pack (url, etag, seconds) entries."""
        return cls(
            StringColumn.of(url for url, _, _ in entries),
            StringColumn.of(etag or "" for _, etag, _ in entries),
            np.array([seconds or 0 for _, _, seconds in entries], dtype=np.int64),
        )

    @classmethod
    def none(cls) -> Self:
        """No sources."""
        return cls.of([])

    @classmethod
    def concat(cls, parts: Sequence[Locations]) -> Self:
        """Join dictionaries end to end."""
        return cls(
            StringColumn.concat([p.urls for p in parts]),
            StringColumn.concat([p.etags for p in parts]),
            np.concatenate([p.modified for p in parts]),
        )

    def __len__(self) -> int:
        return len(self.urls)

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Chosen entries."""
        return type(self)(self.urls.take(rows), self.etags.take(rows), self.modified[rows])

    def slice(self, start: int, stop: int) -> Self:
        """Consecutive entries."""
        return type(self)(
            self.urls.slice(start, stop), self.etags.slice(start, stop), self.modified[start:stop]
        )


def _shifts(sizes: list[int], rows: list[int]) -> npt.NDArray[np.uint64]:
    """For each row of parts that are joined, the sizes of the parts before its own."""
    before = np.cumsum([0, *sizes[:-1]], dtype=np.uint64)
    return np.repeat(before, rows)


_NO_FILES = np.empty((0, ChunkFileId.SIZE), dtype=np.uint8)


class ChunkRefs:
    """Many chunk references as parallel columns; immutable.

    `sources` numbers a row of `files` for a native chunk and of `locations` for a virtual one.
    Inline bytes lie in `inline`, at the row's offset and length.
    """

    __slots__ = (
        "checksums",
        "files",
        "inline",
        "kinds",
        "lengths",
        "locations",
        "offsets",
        "sources",
    )

    def __init__(
        self,
        kinds: npt.NDArray[np.uint8],
        sources: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        checksums: npt.NDArray[np.uint32],
        files: npt.NDArray[np.uint8],
        locations: Locations,
        inline: bytes,
    ) -> None:
        """Take columns of equal length and the dictionaries that they point into."""
        self.kinds = kinds
        self.sources = sources
        self.offsets = offsets
        self.lengths = lengths
        self.checksums = checksums
        self.files = files
        self.locations = locations
        self.inline = inline

    @classmethod
    def of(cls, refs: Sequence[ChunkRef]) -> Self:
        """Columns of a few references that are Python values."""
        count = len(refs)
        kinds = np.empty(count, dtype=np.uint8)
        sources = np.zeros(count, dtype=np.uint32)
        offsets = np.zeros(count, dtype=np.uint64)
        lengths = np.zeros(count, dtype=np.uint64)
        checksums = np.zeros(count, dtype=np.uint32)
        files: dict[ChunkFileId, int] = {}
        locations: dict[tuple[str, str | None, int | None], int] = {}
        inline = bytearray()
        for row, ref in enumerate(refs):
            match ref:
                case NativeRef():
                    kinds[row] = ChunkKind.NATIVE
                    sources[row] = files.setdefault(ref.file, len(files))
                    offsets[row] = ref.offset
                    lengths[row] = ref.length
                    checksums[row] = ref.checksum
                case VirtualRef():
                    kinds[row] = ChunkKind.VIRTUAL
                    entry = (ref.location, ref.etag, ref.last_modified)
                    sources[row] = locations.setdefault(entry, len(locations))
                    offsets[row] = ref.offset
                    lengths[row] = ref.length
                case InlineRef():
                    kinds[row] = ChunkKind.INLINE
                    offsets[row] = len(inline)
                    lengths[row] = len(ref.data)
                    inline += ref.data
        return cls(
            kinds,
            sources,
            offsets,
            lengths,
            checksums,
            np.frombuffer(b"".join(files), dtype=np.uint8).reshape(-1, ChunkFileId.SIZE),
            Locations.of(list(locations)),
            bytes(inline),
        )

    @classmethod
    def empty(cls) -> Self:
        """No references."""
        return cls.of([])

    @classmethod
    def concat(cls, parts: Sequence[ChunkRefs]) -> Self:
        """Join tables end to end; their dictionaries are joined too."""
        if len(parts) == 1 and type(parts[0]) is cls:
            return parts[0]
        kinds = np.concatenate([p.kinds for p in parts])
        # What each row's numbers must grow by, now that dictionaries lie behind others.
        rows = [len(p) for p in parts]
        files = _shifts([len(p.files) for p in parts], rows)
        locations = _shifts([len(p.locations) for p in parts], rows)
        inline = _shifts([len(p.inline) for p in parts], rows)
        sources = np.concatenate([p.sources for p in parts])
        sources += np.where(kinds == _NATIVE, files, locations).astype(np.uint32)
        offsets = np.concatenate([p.offsets for p in parts])
        offsets += np.where(kinds == _INLINE, inline, np.uint64(0))
        return cls(
            kinds,
            sources,
            offsets,
            np.concatenate([p.lengths for p in parts]),
            np.concatenate([p.checksums for p in parts]),
            np.concatenate([p.files for p in parts]),
            Locations.concat([p.locations for p in parts]),
            b"".join([p.inline for p in parts]),
        )

    def __len__(self) -> int:
        return len(self.kinds)

    def __repr__(self) -> str:
        return f"ChunkRefs({len(self)} references)"

    @property
    def nbytes(self) -> int:
        """Memory that the columns take, for caches."""
        columns = (self.kinds, self.sources, self.offsets, self.lengths, self.checksums, self.files)
        dictionaries = len(self.inline) + len(self.locations.urls.data) + 24 * len(self.locations)
        return sum(c.nbytes for c in columns) + dictionaries

    def get(self, row: int) -> ChunkRef:
        """One reference as a value."""
        kind = int(self.kinds[row])
        offset, length = int(self.offsets[row]), int(self.lengths[row])
        if kind == _INLINE:
            return InlineRef(self.inline[offset : offset + length])
        source = int(self.sources[row])
        if kind == _NATIVE:
            file = ChunkFileId(self.files[source].tobytes())
            return NativeRef(file, offset, length, int(self.checksums[row]))
        etag = self.locations.etags[source] or None
        modified = int(self.locations.modified[source]) or None
        return VirtualRef(self.locations.urls[source], offset, length, etag, modified)

    def tolist(self) -> list[ChunkRef]:
        """All references as values; for reports and small tables."""
        return [self.get(row) for row in range(len(self))]

    def take(self, rows: npt.NDArray[np.integer]) -> ChunkRefs:
        """Chosen rows; dictionaries are shared with this table."""
        return ChunkRefs(
            self.kinds[rows],
            self.sources[rows],
            self.offsets[rows],
            self.lengths[rows],
            self.checksums[rows],
            self.files,
            self.locations,
            self.inline,
        )

    def slice(self, start: int, stop: int) -> ChunkRefs:
        """Consecutive rows; columns and dictionaries are shared with this table."""
        return ChunkRefs(
            self.kinds[start:stop],
            self.sources[start:stop],
            self.offsets[start:stop],
            self.lengths[start:stop],
            self.checksums[start:stop],
            self.files,
            self.locations,
            self.inline,
        )

    def compact(self) -> ChunkRefs:
        """The same references with dictionaries and inline bytes that hold only what is used."""
        sources = np.zeros_like(self.sources)
        offsets = self.offsets.copy()
        native = self.kinds == ChunkKind.NATIVE
        used, inverse = np.unique(self.sources[native], return_inverse=True)
        as_void = np.ascontiguousarray(self.files[used]).view(f"V{ChunkFileId.SIZE}").ravel()
        unique, first, where = _unique_in_order(as_void)
        sources[native] = where[inverse]
        files = self.files[used][first] if len(unique) else _NO_FILES
        virtual = self.kinds == ChunkKind.VIRTUAL
        used, inverse = np.unique(self.sources[virtual], return_inverse=True)
        sources[virtual] = inverse
        locations = self.locations.take(used)
        is_inline = self.kinds == ChunkKind.INLINE
        starts = self.offsets[is_inline]
        inline, ends = gather_bytes(self.inline, starts, starts + self.lengths[is_inline])
        offsets[is_inline] = ends - self.lengths[is_inline]
        return ChunkRefs(
            self.kinds, sources, offsets, self.lengths, self.checksums, files, locations, inline
        )


def _unique_in_order(
    values: npt.NDArray[np.void],
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Unique values in order of appearance, where each was first, and each value's number."""
    unique, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return unique[order], first[order], rank[inverse]
