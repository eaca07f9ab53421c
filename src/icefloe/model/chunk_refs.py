"""Chunk references: one at a time as values, many at a time as columns."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from icefloe.model.ids import ChunkFileId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    _Number = TypeVar("_Number", bound=np.unsignedinteger)
    _Dictionary = TypeVar("_Dictionary", "npt.NDArray[np.uint8]", "Locations", bytes)


class ChunkKind(IntEnum):
    """Where the bytes of a chunk are. The numbers are part of the format."""

    UNINITIALIZED = 0
    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3

    # The names of the official package since 2.0.
    uninitialized = UNINITIALIZED
    native = NATIVE
    virtual = VIRTUAL
    inline = INLINE


# Attributes of an enumeration are slow to look up, and these are needed for each chunk.
_NATIVE = int(ChunkKind.NATIVE)
_VIRTUAL = int(ChunkKind.VIRTUAL)
_INLINE = int(ChunkKind.INLINE)
_FEW_RUNS = 64
"""Contiguous slices are copied together if there are at most this many runs of them."""


class InlineRef(Record, frozen=True):
    """A chunk whose bytes are stored in the manifest itself."""

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
        strings = list(strings)
        joined = "".join(strings)
        if joined.isascii():  # as many bytes as characters: no object per string
            lengths = np.fromiter(map(len, strings), dtype=np.uint64, count=len(strings))
            return cls(joined.encode("ascii"), np.cumsum(lengths, dtype=np.uint64))
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

    def rows_with(self, text: str) -> npt.NDArray[np.intp]:
        """The rows that hold a string, without an object per string."""
        expected = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
        starts = self.starts()
        rows = np.flatnonzero(self.ends - starts == len(expected))
        places = starts[rows, None] + np.arange(len(expected), dtype=np.uint64)
        is_equal: npt.NDArray[np.bool_] = np.all(
            np.frombuffer(self.data, dtype=np.uint8)[places] == expected, axis=1
        )
        return rows[is_equal]

    def slice(self, start: int, stop: int) -> Self:
        """Consecutive rows."""
        if start == 0 and stop == len(self.ends):
            return self
        first = int(self.ends[start - 1]) if start else 0
        last = int(self.ends[stop - 1]) if stop else 0
        return type(self)(self.data[first:last], self.ends[start:stop] - np.uint64(first))

    def pieces(self) -> list[bytes]:
        """The bytes of each string."""
        ends = self.ends.tolist()
        return [self.data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def tolist(self) -> list[str]:
        """All strings, without a loop in Python."""
        slices = map(slice, self.starts().tolist(), self.ends.tolist())
        return list(map(bytes.decode, map(self.data.__getitem__, slices)))


def gather_bytes(
    data: bytes, starts: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64]
) -> tuple[bytes, npt.NDArray[np.uint64]]:
    """Copy many slices of a buffer end to end; returns them and the end of each."""
    lengths = (ends - starts).astype(np.int64)
    new_ends = np.cumsum(lengths)
    total = int(new_ends[-1]) if len(new_ends) else 0
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    if total and len(breaks) < _FEW_RUNS:
        # Mostly contiguous, with some rows added or left out.
        firsts, lasts = [0, *(breaks + 1).tolist()], [*breaks.tolist(), len(ends) - 1]
        bounds = zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
        return b"".join([data[start:end] for start, end in bounds]), new_ends.astype(np.uint64)
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

    def choose(self, used: slice | npt.NDArray[np.intp]) -> Self:
        """Entries as `used_entries` finds them."""
        return self.slice(used.start, used.stop) if isinstance(used, slice) else self.take(used)

    def slice(self, start: int, stop: int) -> Self:
        """Consecutive entries."""
        return type(self)(
            self.urls.slice(start, stop), self.etags.slice(start, stop), self.modified[start:stop]
        )


def _distinct(
    dictionaries: Sequence[_Dictionary], rows: Sequence[int]
) -> tuple[list[_Dictionary], npt.NDArray[np.uint64]]:
    """The dictionaries of parts that are joined, and for each row where its own one begins.

    Parts of one manifest share their dictionaries, which must not be repeated for each part.
    """
    starts: dict[int, int] = {}
    distinct: list[_Dictionary] = []
    end = 0
    for dictionary in dictionaries:
        if len(dictionary) and id(dictionary) not in starts:
            starts[id(dictionary)] = end
            distinct.append(dictionary)
            end += len(dictionary)
    before = [starts.get(id(dictionary), 0) for dictionary in dictionaries]
    return distinct or [dictionaries[0]], np.repeat(np.array(before, dtype=np.uint64), rows)


def of_one_width(files: Sequence[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
    """Dictionaries of chunk files, the narrower ones filled up with zeros (see `Identifier`)."""
    width = max(column.shape[1] for column in files)
    return [
        column
        if column.shape[1] == width
        else np.pad(column, ((0, 0), (0, width - column.shape[1])))
        for column in files
    ]


# Dictionaries may have so much more than is used before they are worth the work of compacting.
_SPARE_ENTRIES = 64
_SPARE_BYTES = 4096
_NO_FILES = np.empty((0, ChunkFileId.SIZE), dtype=np.uint8)
_NO_LOCATIONS = Locations.none()


class ChunkRefs:
    """Many chunk references as parallel columns; immutable.

    `sources` numbers a row of `files` for a native chunk and of `locations` for a virtual one.
    Inline bytes are in `inline`, at the row's offset and length.
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
        if len(refs) > 1 and all(isinstance(ref, InlineRef) for ref in refs):
            return cls._of_inline([ref.data for ref in refs])  # type: ignore[union-attr]
        rows: list[tuple[int, int, int, int, int]] = []
        files: dict[ChunkFileId, int] = {}
        locations: dict[tuple[str, str | None, int | None], int] = {}
        inline: list[bytes] = []
        inline_end = 0
        for ref in refs:
            if isinstance(ref, InlineRef):
                size = len(ref.data)
                rows.append((_INLINE, 0, inline_end, size, 0))
                inline.append(ref.data)
                inline_end += size
            elif isinstance(ref, NativeRef):
                source = files.setdefault(ref.file, len(files))
                rows.append((_NATIVE, source, ref.offset, ref.length, ref.checksum))
            else:
                entry = (ref.location, ref.etag, ref.last_modified)
                source = locations.setdefault(entry, len(locations))
                rows.append((_VIRTUAL, source, ref.offset, ref.length, 0))
        kinds, sources, offsets, lengths, checksums = zip(*rows, strict=True) if rows else [()] * 5
        return cls(
            np.array(kinds, dtype=np.uint8),
            np.array(sources, dtype=np.uint32),
            np.array(offsets, dtype=np.uint64),
            np.array(lengths, dtype=np.uint64),
            np.array(checksums, dtype=np.uint32),
            cls.file_column(list(files)),
            Locations.of(list(locations)) if locations else _NO_LOCATIONS,
            b"".join(inline),
        )

    @staticmethod
    def file_column(ids: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        """Ids of chunk files as a dictionary (n, bytes), filled up with zeros to one width."""
        if not ids:
            return _NO_FILES
        width = max(map(len, ids))
        if any(len(each) != width for each in ids):
            ids = [each.ljust(width, b"\0") for each in ids]
        return np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, width)

    @classmethod
    def _of_inline(cls, data: Sequence[bytes]) -> Self:
        lengths = np.fromiter(map(len, data), dtype=np.uint64, count=len(data))
        zeros = np.zeros(len(data), dtype=np.uint32)
        return cls(
            np.full(len(data), _INLINE, dtype=np.uint8),
            zeros,
            np.cumsum(lengths) - lengths,
            lengths,
            zeros,
            _NO_FILES,
            _NO_LOCATIONS,
            b"".join(data),
        )

    @classmethod
    def empty(cls) -> Self:
        """No references."""
        return cls.of([])

    @classmethod
    def concat(cls, parts: Sequence[ChunkRefs]) -> Self:
        """Join tables end to end; their dictionaries are joined too, shared ones once."""
        if len(parts) == 1 and type(parts[0]) is cls:
            return parts[0]
        kinds = np.concatenate([p.kinds for p in parts])
        # What each row's numbers must grow by, now that dictionaries are appended to others.
        rows = [len(p) for p in parts]
        files, file_shifts = _distinct([p.files for p in parts], rows)
        locations, location_shifts = _distinct([p.locations for p in parts], rows)
        inline, inline_shifts = _distinct([p.inline for p in parts], rows)
        sources = np.concatenate([p.sources for p in parts])
        if len(files) > 1 or len(locations) > 1:
            shifts = np.where(kinds == _NATIVE, file_shifts, location_shifts)
            sources += shifts.astype(np.uint32)
        offsets = np.concatenate([p.offsets for p in parts])
        if len(inline) > 1:
            offsets += np.where(kinds == _INLINE, inline_shifts, np.uint64(0))
        return cls(
            kinds,
            sources,
            offsets,
            np.concatenate([p.lengths for p in parts]),
            np.concatenate([p.checksums for p in parts]),
            files[0] if len(files) == 1 else np.concatenate(of_one_width(files)),
            locations[0] if len(locations) == 1 else Locations.concat(locations),
            inline[0] if len(inline) == 1 else b"".join(inline),
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
            return NativeRef(
                file=file, offset=offset, length=length, checksum=int(self.checksums[row])
            )
        etag = self.locations.etags[source] or None
        modified = int(self.locations.modified[source]) or None
        return VirtualRef(
            location=self.locations.urls[source],
            offset=offset,
            length=length,
            etag=etag,
            last_modified=modified,
        )

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

    def parts(
        self,
        rows: npt.NDArray[np.integer],
        starts: npt.NDArray[np.integer],
        lengths: npt.NDArray[np.integer],
    ) -> ChunkRefs:
        """References of parts of chunks: some bytes of each of the rows, which may be repeated.

        Checksums are of whole chunks, so these have none. The parts are inside of their chunks.
        """
        return ChunkRefs(
            self.kinds[rows],
            self.sources[rows],
            self.offsets[rows] + starts.astype(np.uint64),
            lengths.astype(np.uint64),
            np.zeros(len(rows), dtype=np.uint32),
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

    def patched(
        self,
        other: ChunkRefs,
        rows: npt.NDArray[np.intp],
        is_new: npt.NDArray[np.bool_],
    ) -> ChunkRefs:
        """A copy with rows of another table: each replaces a row or, if new, is put before it."""
        count = len(self)
        joined = ChunkRefs.concat([self, other])
        replaced, inserted = rows[~is_new], rows[is_new]

        def column(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
            old, new = values[:count], values[count:]
            old[replaced] = new[~is_new]
            return np.insert(old, inserted, new[is_new]) if len(inserted) else old

        return ChunkRefs(
            column(joined.kinds),
            column(joined.sources),
            column(joined.offsets),
            column(joined.lengths),
            column(joined.checksums),
            joined.files,
            joined.locations,
            joined.inline,
        )

    @property
    def has_packs(self) -> bool:
        """Whether many rows share few files, which may then be listed more than once."""
        return 1 < len(self.files) <= len(self) // 2

    def with_distinct_files(self) -> ChunkRefs:
        """The same references with each file listed once."""
        files, numbers = distinct_files(self.files)
        if len(files) == len(self.files):
            return self
        native = np.flatnonzero(self.kinds == _NATIVE)
        sources = self.sources.copy()
        sources[native] = numbers[self.sources[native]]
        return ChunkRefs(
            self.kinds,
            sources,
            self.offsets,
            self.lengths,
            self.checksums,
            files,
            self.locations,
            self.inline,
        )

    @property
    def is_wasteful(self) -> bool:
        """Whether most of the dictionaries or of the inline bytes is not used by any row."""
        entries = len(self.files) + len(self.locations)
        if entries > _SPARE_ENTRIES + 2 * len(self):
            return True
        if len(self.files) > _SPARE_ENTRIES:
            # Chunks that moved into few packs leave the names of many files behind.
            is_used = np.zeros(len(self.files), dtype=np.bool_)
            is_used[self.sources[self.kinds == _NATIVE]] = True
            if len(self.files) > _SPARE_ENTRIES + 2 * int(is_used.sum()):
                return True
        if not self.inline:
            return False
        held = int(self.lengths[self.kinds == _INLINE].sum())
        return len(self.inline) > _SPARE_BYTES + 2 * held

    def compact(self) -> ChunkRefs:
        """The same references with dictionaries and inline bytes that hold only what is used."""
        sources = np.zeros_like(self.sources)
        offsets = self.offsets
        files, locations, inline = _NO_FILES, _NO_LOCATIONS, b""
        native = np.flatnonzero(self.kinds == _NATIVE)
        if len(native):
            used, sources[native] = used_entries(self.sources[native])
            files = self.files[used]
        virtual = np.flatnonzero(self.kinds == _VIRTUAL)
        if len(virtual):
            used, sources[virtual] = used_entries(self.sources[virtual])
            locations = self.locations.choose(used)
        held = np.flatnonzero(self.kinds == _INLINE)
        if len(held):
            starts, lengths = offsets[held], self.lengths[held]
            inline, ends = gather_bytes(self.inline, starts, starts + lengths)
            offsets = offsets.copy()
            offsets[held] = ends - lengths
        return ChunkRefs(
            self.kinds, sources, offsets, self.lengths, self.checksums, files, locations, inline
        )


def distinct_files(
    files: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Ids of chunk files (n, bytes) without repetitions, and the new number of each old one."""
    packed = np.ascontiguousarray(files).view(f"V{files.shape[1]}").ravel()
    _, kept, numbers = np.unique(packed, return_index=True, return_inverse=True)
    return files[kept], numbers.astype(np.int64)


def used_entries(
    sources: npt.NDArray[np.uint32],
) -> tuple[slice | npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """The entries of a dictionary that are used, and each source as a number among them."""
    if len(sources) == 1:
        only = int(sources[0])
        return slice(only, only + 1), np.zeros(1, dtype=np.int64)
    low, high = int(sources.min()), int(sources.max())
    numbers = sources.astype(np.int64)
    numbers -= low
    span = high - low + 1
    if span > 16 * len(sources) + 1024:
        used, inverse = np.unique(sources, return_inverse=True)
        return used.astype(np.intp), inverse.astype(np.int64)
    flags = np.zeros(span, dtype=bool)
    flags[numbers] = True
    if flags.all():
        return slice(low, high + 1), numbers
    ranks = np.cumsum(flags, dtype=np.int64) - 1
    return np.flatnonzero(flags) + low, ranks[numbers]
