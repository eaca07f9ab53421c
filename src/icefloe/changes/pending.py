"""Chunks that wait in memory for their pack, as columns over the buffers that they came in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from icefloe.model.chunk_index import ChunkIndex, bounding_box
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations, PendingRef
from icefloe.model.ids import ChunkFileId
from icefloe.model.located import Located
from icefloe.model.manifest import ArrayChunks
from icefloe.model.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    BytesLike = bytes | bytearray | memoryview

_NO_FILES = np.empty((0, ChunkFileId.SIZE), dtype=np.uint8)
_FEW_CHUNKS = 64
_NO_LOCATIONS = Locations.none()


class PendingChunks:
    """Some chunks of one array, in row-major order. Only `is_taken` ever changes."""

    __slots__ = ("buffers", "index", "is_taken", "lengths", "offsets", "sources")

    def __init__(
        self,
        index: ChunkIndex,
        buffers: tuple[BytesLike, ...],
        sources: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Take coordinates and, for each, the number of its buffer and its place in there."""
        self.index = index
        self.buffers = buffers
        self.sources = sources
        self.offsets = offsets
        self.lengths = lengths
        self.is_taken = False
        """Whether a pack with these chunks is on its way. Then they are not joined with others."""

    @classmethod
    def of(cls, coords: Sequence[tuple[int, ...]], refs: Sequence[PendingRef], rank: int) -> Self:
        """Columns of chunks that were written one by one; their bytes are not copied."""
        if len(coords) <= _FEW_CHUNKS:
            # Without arrays of coordinates: a commit may have thousands of small tables.
            order = sorted(range(len(refs)), key=coords.__getitem__)
            index = ChunkIndex.of_sorted([coords[row] for row in order], rank)
        else:
            table = np.array(coords, dtype=np.uint64).reshape(len(coords), rank)
            index, rows = ChunkIndex.from_coords(table)
            order = rows.tolist()
        buffers = tuple([refs[row].data for row in order])
        lengths = np.fromiter(map(len, buffers), dtype=np.int64, count=len(buffers))
        sources = np.arange(len(buffers), dtype=np.uint32)
        return cls(index, buffers, sources, np.zeros(len(buffers), dtype=np.int64), lengths)

    @classmethod
    def of_segments(cls, index: ChunkIndex, segments: Segments) -> Self:
        """Chunks that came together, in row-major order."""
        sources = np.zeros(len(segments), dtype=np.uint32)
        return cls(index, (segments.data,), sources, segments.offsets, segments.lengths)

    @classmethod
    def merge(cls, older: PendingChunks, newer: PendingChunks) -> PendingChunks:
        """One table of two; where coordinates repeat, the newer one wins."""
        coords = np.concatenate([older.index.coords(), newer.index.coords()])
        box = bounding_box(coords)
        linear = box.linearize(coords)
        positions, from_end = np.unique(linear[::-1], return_index=True)
        rows = len(linear) - 1 - from_end
        joined = cls(
            ChunkIndex.from_sorted(box, positions),
            older.buffers + newer.buffers,
            np.concatenate([older.sources, newer.sources + np.uint32(len(older.buffers))])[rows],
            np.concatenate([older.offsets, newer.offsets])[rows],
            np.concatenate([older.lengths, newer.lengths])[rows],
        )
        return joined.compact() if joined.is_wasteful else joined

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all chunks."""
        return int(self.lengths.sum())

    @property
    def is_wasteful(self) -> bool:
        """Whether most of the bytes that are held belong to chunks that were overwritten."""
        return sum(map(len, self.buffers)) > 2 * self.nbytes + 4096

    def get(self, row: int) -> PendingRef:
        """One chunk as a value."""
        start = int(self.offsets[row])
        buffer = self.buffers[int(self.sources[row])]
        return PendingRef(bytes(buffer[start : start + int(self.lengths[row])]))

    def located(self, rows: npt.NDArray[np.intp], at: npt.NDArray[np.intp]) -> Iterator[Located]:
        """Chunks `at` as inline references, buffer by buffer; they are the wanted ones `rows`."""
        sources = self.sources[at]
        if len(self.buffers) > 1 and len(np.unique(sources)) > 1:
            # A copy, so that there is not a group for each of many small buffers.
            joined = Segments.of(list(self.pieces(at)))
            yield Located(rows, inline_refs(bytes(joined.data), joined.offsets, joined.lengths))
            return
        buffer = bytes(self.buffers[int(sources[0])])
        yield Located(rows, inline_refs(buffer, self.offsets[at], self.lengths[at]))

    def pieces(self, rows: npt.NDArray[np.intp]) -> Iterator[memoryview | bytes]:
        """The bytes of chosen chunks."""
        views = [memoryview(buffer) for buffer in self.buffers]
        starts = self.offsets[rows]
        ends = (starts + self.lengths[rows]).tolist()
        for source, start, end in zip(
            self.sources[rows].tolist(), starts.tolist(), ends, strict=True
        ):
            yield views[source][start:end]

    def joined(self, rows: npt.NDArray[np.intp]) -> bytes | memoryview:
        """The bytes of chosen chunks end to end; not copied if they are so already."""
        if len(self.buffers) == 1:
            segments = Segments(self.buffers[0], self.offsets, self.lengths)
            return segments.joined(rows)
        return b"".join(self.pieces(rows))

    def take(self, rows: npt.NDArray[np.intp]) -> PendingChunks:
        """Chosen chunks, at least one, in ascending order; buffers are shared."""
        coords = self.index.coords()[rows]
        box = bounding_box(coords)
        return PendingChunks(
            ChunkIndex.from_sorted(box, box.linearize(coords)),
            self.buffers,
            self.sources[rows],
            self.offsets[rows],
            self.lengths[rows],
        )

    def compact(self) -> PendingChunks:
        """The same chunks in a buffer that holds nothing else."""
        data = bytes(self.joined(np.arange(len(self))))
        ends = np.cumsum(self.lengths)
        return PendingChunks.of_segments(
            self.index, Segments(data, ends - self.lengths, self.lengths)
        )

    def without(self, gone: ChunkIndex) -> PendingChunks | None:
        """The chunks whose coordinates are not in `gone`; None if none is left."""
        kept = np.flatnonzero(gone.find_many(self.index.coords()) < 0)
        if len(kept) == len(self):
            return self
        return self.take(kept) if len(kept) else None

    def as_inline(self) -> ArrayChunks:
        """The chunks as inline references, for callers that only inspect the table."""
        chunks = self if len(self.buffers) == 1 else self.compact()
        data = bytes(chunks.buffers[0])
        return ArrayChunks(self.index, inline_refs(data, chunks.offsets, chunks.lengths))


def inline_refs(
    data: bytes, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> ChunkRefs:
    """References to pieces of a buffer."""
    count = len(offsets)
    return ChunkRefs(
        kinds=np.full(count, ChunkKind.INLINE, dtype=np.uint8),
        sources=np.zeros(count, dtype=np.uint32),
        offsets=offsets.astype(np.uint64),
        lengths=lengths.astype(np.uint64),
        checksums=np.zeros(count, dtype=np.uint32),
        files=_NO_FILES,
        locations=_NO_LOCATIONS,
        inline=data,
    )
