"""Reads the bytes of many chunks: near ones in one request, several requests at a time.

Python code runs per request, never per chunk, unless a chunk is damaged.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.errors import FormatError, ObjectNotFoundError, StorageError, VirtualChunkError
from icefloe.model.chunk_refs import ChunkKind, VirtualRef, distinct_files, of_one_width
from icefloe.model.ids import ChunkFileId
from icefloe.model.segments import FoundChunks, Segments
from icefloe.objects.checksums import checksums
from icefloe.objects.chunk_cache import CachedRead
from icefloe.objects.chunks import wrong_checksum
from icefloe.storage.port import ReadingInto
from icefloe.storage.ranges import SpanColumns, coalesce_columns
from icefloe.storage.workers import ThreadJob, in_any_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.located import Located
    from icefloe.objects.chunks import ChunkFiles

    Buffers = Sequence[memoryview | None]

_GAP_BYTES = 1024 * 1024
"""Reading so many bytes for nothing costs less than another request."""
_IMMEDIATE_GAP_BYTES = 32 * 1024
"""The same where a request is a system call."""
_IMMEDIATE_THREADS = 4
_SMALL_SPAN_BYTES = 64 * 1024
"""Spans that are on average smaller are joined: consumers like few buffers."""
_LARGEST_POSITION = 2**62
_START = np.zeros(1, dtype=np.int64)


class ReadLimits(NamedTuple):
    """How many chunks are read at once."""

    gap_bytes: int | None = None
    """Unwanted bytes between chunks that are still fetched together; None: as suits the storage."""
    request_bytes: int = 8 * 1024 * 1024
    concurrency: int = 16
    buffered_bytes: int = 128 * 1024 * 1024


def gap_bytes(limits: ReadLimits, *, is_immediate: bool) -> int:
    """Unwanted bytes that are still fetched rather than left out by another request."""
    if limits.gap_bytes is not None:
        return limits.gap_bytes
    return _IMMEDIATE_GAP_BYTES if is_immediate else _GAP_BYTES


class _NativeChunks(NamedTuple):
    """Chunks to read from chunk files, as columns."""

    rows: npt.NDArray[np.intp]
    files: npt.NDArray[np.uint8]
    sources: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    checksums: npt.NDArray[np.uint32]

    def take(self, chosen: npt.NDArray[np.intp]) -> _NativeChunks:
        """Chosen rows."""
        return _NativeChunks(
            rows=self.rows[chosen],
            files=self.files,
            sources=self.sources[chosen],
            offsets=self.offsets[chosen],
            lengths=self.lengths[chosen],
            checksums=self.checksums[chosen],
        )


class _Fetched(NamedTuple):
    """Chunks that arrived, with what must be compared."""

    found: FoundChunks
    checksums: npt.NDArray[np.uint32] | None = None
    key: str = ""


class BulkReader:
    """Reads located chunks."""

    def __init__(
        self,
        chunk_files: ChunkFiles,
        limits: ReadLimits,
        explain: Callable[[int, str, str], FormatError],
        *,
        verify: bool = False,
        buffers: Buffers | None = None,
    ) -> None:
        """Take where chunks are and how to read them.

        Args:
            chunk_files: Chunk files and virtual sources.
            limits: How many at once.
            explain: The error for the wanted chunk of a number, of what is wrong and of a key.
            verify: Whether to compare bytes with the checksums that were recorded.
            buffers: Where the caller wants the bytes of each wanted chunk, or None. A chunk that
                fits is read there if the storage can do that; then its buffer is the data of its
                segment. All others are found elsewhere.
        """
        self._files = chunk_files
        self._limits = limits
        self._explain = explain
        self._verify = verify
        self._is_immediate = chunk_files.storage.capabilities.reads_are_immediate
        self._buffers = buffers if isinstance(chunk_files.storage, ReadingInto) else None

    def read(self, located: Sequence[Located]) -> Iterator[FoundChunks]:
        """The bytes of chunks as they arrive; segments are pieces of what was fetched."""
        cache = self._files.cache
        cached = None if cache is None else CachedRead(cache, located)
        if cached is not None:
            yield from cached.held
            located = cached.missing
        for group in located:
            held = np.flatnonzero(group.refs.kinds == ChunkKind.INLINE)
            if len(held):
                yield _held(group, held)
        virtual = list(self._virtual_jobs(located))
        jobs = [*virtual, *self._native_jobs(located)]
        limits = self._limits
        at_a_time = min(limits.concurrency, len(jobs))
        if self._is_immediate and not virtual:
            at_a_time = min(at_a_time, _IMMEDIATE_THREADS)
        for fetched in in_any_order(jobs, at_a_time=at_a_time, max_bytes=limits.buffered_bytes):
            if self._verify:
                # Not in the threads that fetch: computing needs the interpreter.
                for part in fetched:
                    self._compare(part)
            for part in fetched:
                if cached is not None:
                    cached.keep(part.found, part.checksums)
                yield part.found

    # --- chunk files

    def _native_jobs(self, located: Sequence[Located]) -> Iterator[ThreadJob[list[_Fetched]]]:
        native = _native(located)
        if native is None:
            return
        self._check_positions(native)
        empty = np.flatnonzero(native.lengths == 0)
        if len(empty):
            nothing = np.zeros(len(empty), dtype=np.int64)
            found = FoundChunks(native.rows[empty], Segments(b"", nothing, nothing))
            yield ThreadJob(0, lambda: [_Fetched(found)])
            native = native.take(np.flatnonzero(native.lengths))
            if len(native.rows) == 0:
                return
        gap = 0
        if self._buffers is None:
            gap = gap_bytes(self._limits, is_immediate=self._is_immediate)
        spans = coalesce_columns(
            native.sources,
            native.offsets,
            native.lengths,
            gap=gap,
            max_bytes=self._limits.request_bytes,
        )
        for first, last in self._shares(spans):
            size = int(spans.lengths[first:last].sum())
            yield ThreadJob(size, partial(self._fetch, native, spans, first, last))

    def _shares(self, spans: SpanColumns) -> Iterator[tuple[int, int]]:
        """Which spans one thread fetches: one, or many small ones where that is quicker."""
        if not self._is_immediate:
            yield from ((at, at + 1) for at in range(len(spans)))
            return
        filled = np.cumsum(spans.lengths) // self._limits.request_bytes
        cuts = np.flatnonzero(np.diff(filled)) + 1
        bounds = [0, *cuts.tolist(), len(spans)]
        yield from pairwise(bounds)

    def _fetch(
        self, native: _NativeChunks, spans: SpanColumns, first: int, last: int
    ) -> list[_Fetched]:
        """Fetch some spans, file by file."""
        objects = spans.objects[first:last]
        cuts = (np.flatnonzero(objects[1:] != objects[:-1]) + 1 + first).tolist()
        bounds = [first, *cuts, last]
        found = []
        for start, stop in pairwise(bounds):
            found += self._fetch_of_file(native, spans, start, stop)
        return found

    def _fetch_of_file(
        self, native: _NativeChunks, spans: SpanColumns, first: int, last: int
    ) -> list[_Fetched]:
        key = self._files.layout.chunk_file(
            ChunkFileId(native.files[int(spans.objects[first])].tobytes())
        )
        if self._buffers is not None:
            filled = self._fill(native, spans, (first, last), key)
            if filled is not None:
                return filled
        ranges = list(
            zip(spans.starts[first:last].tolist(), spans.lengths[first:last].tolist(), strict=True)
        )
        try:
            if len(ranges) == 1:
                bodies = [self._files.storage.get(key, *ranges[0])]
            else:
                bodies = self._files.storage.get_ranges(key, ranges)
        except (ObjectNotFoundError, StorageError) as error:
            raise self._failed(native, spans, (first, last), key, error) from error
        fetched = []
        for piece in _pieces(spans, first, bodies):
            chosen = spans.order[piece.members]
            segments = Segments(piece.data, piece.offsets, native.lengths[chosen])
            found = FoundChunks(native.rows[chosen], segments)
            fetched.append(_Fetched(found, native.checksums[chosen], key))
        return fetched

    def _fill(
        self, native: _NativeChunks, spans: SpanColumns, share: tuple[int, int], key: str
    ) -> list[_Fetched] | None:
        """Read spans to where the caller wants their chunks; None if one of them does not fit."""
        storage, places = self._files.storage, self._buffers
        assert isinstance(storage, ReadingInto)
        assert places is not None
        members = slice(int(spans.bounds[share[0]]), int(spans.bounds[share[1]]))
        chosen = spans.order[members]
        rows, lengths = native.rows[chosen], native.lengths[chosen]
        buffers = [places[row] for row in rows.tolist()]
        pairs = zip(buffers, lengths.tolist(), strict=True)
        fitting = [
            buffer for buffer, length in pairs if buffer is not None and len(buffer) == length
        ]
        # The chunks of a span follow each other without gaps, unless references overlap.
        if len(fitting) < len(rows) or lengths.sum() != spans.lengths[slice(*share)].sum():
            return None
        try:
            for at in range(*share):
                low, high = (int(bound) - members.start for bound in spans.bounds[at : at + 2])
                storage.get_into(key, int(spans.starts[at]), fitting[low:high])
        except (ObjectNotFoundError, StorageError) as error:
            raise self._failed(native, spans, share, key, error) from error
        return [
            _Fetched(
                FoundChunks(rows[at : at + 1], Segments(buffer, _START, lengths[at : at + 1])),
                native.checksums[chosen[at : at + 1]],
                key,
            )
            for at, buffer in enumerate(fitting)
        ]

    def _compare(self, fetched: _Fetched) -> None:
        recorded = fetched.checksums
        if recorded is None or not recorded.any():
            return
        computed = checksums(*fetched.found.segments)
        wrong = np.flatnonzero((computed != recorded) & (recorded != 0))
        if len(wrong):
            at = int(wrong[0])
            what = wrong_checksum(int(computed[at]), int(recorded[at]))
            raise self._explain(int(fetched.found.rows[at]), what, fetched.key)

    def _failed(
        self,
        native: _NativeChunks,
        spans: SpanColumns,
        share: tuple[int, int],
        key: str,
        error: ObjectNotFoundError | StorageError,
    ) -> Exception:
        """The error for a file that cannot be read; it names a chunk if the file is at fault."""
        members = spans.order[int(spans.bounds[share[0]]) : int(spans.bounds[share[1]])]
        furthest = members[np.argmax(native.offsets[members] + native.lengths[members])]
        offset, length = int(native.offsets[furthest]), int(native.lengths[furthest])
        what = self._files.fault_of_file(key, offset, length, error)
        return error if what is None else self._explain(int(native.rows[furthest]), what, key)

    def _check_positions(self, native: _NativeChunks) -> None:
        """A reference comes from a file: sums of what it says must not overflow."""
        wrong = np.flatnonzero(
            (native.offsets < 0)
            | (native.offsets > _LARGEST_POSITION)
            | (native.lengths < 0)
            | (native.lengths > _LARGEST_POSITION)
        )
        if len(wrong):
            at = int(wrong[0])
            file_id = ChunkFileId(native.files[int(native.sources[at])].tobytes())
            key = self._files.layout.chunk_file(file_id)
            raise self._explain(
                int(native.rows[at]), "its reference says that it begins or ends nowhere", key
            )

    # --- virtual chunks

    def _virtual_jobs(self, located: Sequence[Located]) -> Iterator[ThreadJob[list[_Fetched]]]:
        for group in located:
            virtual = group.refs.kinds == ChunkKind.VIRTUAL
            odd = (group.refs.offsets > _LARGEST_POSITION) | (
                group.refs.lengths > _LARGEST_POSITION
            )
            for at in np.flatnonzero(virtual & odd).tolist():
                yield ThreadJob(0, partial(self._alone, int(group.rows[at]), group.refs, at))
            chosen = np.flatnonzero(virtual & ~odd)
            if len(chosen) == 0:
                continue
            refs, rows = group.refs.take(chosen), group.rows[chosen]
            spans = coalesce_columns(
                refs.sources,
                refs.offsets.astype(np.int64),
                refs.lengths.astype(np.int64),
                gap=self._virtual_gap(refs),
                max_bytes=self._limits.request_bytes,
            )
            for at in range(len(spans)):
                size = int(spans.lengths[at])
                yield ThreadJob(size, partial(self._fetch_virtual, rows, refs, spans, at))

    def _virtual_gap(self, refs: ChunkRefs) -> int:
        if self._limits.gap_bytes is not None:
            return self._limits.gap_bytes
        is_local = refs.locations.urls[int(refs.sources[0])].startswith("file:")
        return _IMMEDIATE_GAP_BYTES if is_local else _GAP_BYTES

    def _fetch_virtual(
        self, rows: npt.NDArray[np.intp], refs: ChunkRefs, spans: SpanColumns, at: int
    ) -> list[_Fetched]:
        members = slice(int(spans.bounds[at]), int(spans.bounds[at + 1]))
        chosen = spans.order[members]
        if len(chosen) > 1:
            one = refs.get(int(chosen[0]))
            assert isinstance(one, VirtualRef)
            length = int(spans.lengths[at])
            whole = VirtualRef(
                location=one.location,
                offset=int(spans.starts[at]),
                length=length,
                etag=one.etag,
                last_modified=one.last_modified,
            )
            try:
                data = self._files.virtual.read(whole, 0, length)
            except VirtualChunkError:
                data = b""
            if len(data) == length:
                lengths = refs.lengths[chosen].astype(np.int64)
                segments = Segments(data, spans.within[members], lengths)
                return [_Fetched(FoundChunks(rows[chosen], segments))]
        # Alone, each of them is read, or has the error, that it should.
        return [found for each in chosen for found in self._alone(int(rows[each]), refs, int(each))]

    def _alone(self, row: int, refs: ChunkRefs, at: int) -> list[_Fetched]:
        ref = refs.get(at)
        assert isinstance(ref, VirtualRef)
        data = self._files.virtual.read(ref, 0, ref.length)
        return [_Fetched(FoundChunks(np.array([row]), Segments.of([data])))]


class _Piece(NamedTuple):
    """Some consecutive members of spans, in one buffer."""

    data: bytes
    members: slice
    offsets: npt.NDArray[np.int64]


def _pieces(spans: SpanColumns, first: int, bodies: Sequence[bytes]) -> Iterator[_Piece]:
    """Fetched spans, small ones joined."""
    last = first + len(bodies)
    total = int(spans.lengths[first:last].sum())
    if len(bodies) > 1 and total < _SMALL_SPAN_BYTES * len(bodies):
        counts = np.diff(spans.bounds[first : last + 1])
        ends = np.cumsum(spans.lengths[first:last])
        members = slice(int(spans.bounds[first]), int(spans.bounds[last]))
        begin = np.repeat(ends - spans.lengths[first:last], counts)
        yield _Piece(b"".join(bodies), members, spans.within[members] + begin)
        return
    for at, data in enumerate(bodies, first):
        members = slice(int(spans.bounds[at]), int(spans.bounds[at + 1]))
        yield _Piece(data, members, spans.within[members])


def _held(group: Located, rows: npt.NDArray[np.intp]) -> FoundChunks:
    """Chunks whose bytes are at hand."""
    refs = group.refs
    if len(rows) == len(group.rows):
        wanted, offsets, lengths = group.rows, refs.offsets, refs.lengths
    else:
        wanted, offsets, lengths = group.rows[rows], refs.offsets[rows], refs.lengths[rows]
    segments = Segments(refs.inline, offsets.astype(np.int64), lengths.astype(np.int64))
    return FoundChunks(wanted, segments)


def _native(located: Sequence[Located]) -> _NativeChunks | None:
    """All wanted chunks that are in chunk files; each file has one number."""
    parts = []
    for group in located:
        chosen = np.flatnonzero(group.refs.kinds == ChunkKind.NATIVE)
        if len(chosen) == len(group.rows) and len(chosen):
            parts.append(group)
        elif len(chosen):
            parts.append(group._replace(rows=group.rows[chosen], refs=group.refs.take(chosen)))
    if not parts:
        return None
    files = parts[0].refs.files
    sources = parts[0].refs.sources.astype(np.int64)
    if len(parts) > 1:
        starts = np.cumsum([0, *(len(part.refs.files) for part in parts)])
        files = np.concatenate(of_one_width([part.refs.files for part in parts]))
        sources = np.concatenate(
            [part.refs.sources + start for part, start in zip(parts, starts[:-1], strict=True)]
        ).astype(np.int64)
    if len(files) > 1:
        files, numbers = distinct_files(files)
        sources = numbers[sources]
    return _NativeChunks(
        rows=np.concatenate([part.rows for part in parts]),
        files=files,
        sources=sources,
        offsets=np.concatenate([part.refs.offsets for part in parts]).astype(np.int64),
        lengths=np.concatenate([part.refs.lengths for part in parts]).astype(np.int64),
        checksums=np.concatenate([part.refs.checksums for part in parts]),
    )
