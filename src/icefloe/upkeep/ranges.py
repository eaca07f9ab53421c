"""The distinct byte ranges that many chunk references cover, sorted by object and offset."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.engine.retention.id_sets import ID_TYPE, WIDE_ID_TYPE, as_ids, without_names
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.ids import ChunkFileId

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.model.chunk_refs import ChunkRefs

KEY_TYPE = np.dtype(f"S{WIDE_ID_TYPE.itemsize + 16}")
"""A range as a byte string that sorts by object, offset and length."""
_MAX_PENDING = 1 << 21


class Ranges(NamedTuple):
    """Distinct byte ranges of objects, sorted by object, offset and length."""

    sources: npt.NDArray[np.bytes_]
    """Ids of chunk files, or digests of locations."""
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]

    @property
    def total_bytes(self) -> int:
        """Sum of all lengths."""
        return int(self.lengths.sum())

    def by_source(self) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.int64], SourceSums]:
        """The distinct objects, the first row of each, and what is used of it."""
        sources, first, counts = np.unique(self.sources, return_index=True, return_counts=True)
        ends = self.offsets + self.lengths
        covered = self.lengths.copy()
        # Ranges that overlap the next one count for what is theirs alone.
        same = self.sources[1:] == self.sources[:-1]
        over = np.flatnonzero(same & (ends[:-1] > self.offsets[1:]))
        if len(over):
            covered = self._without_overlaps(ends)
        used = np.add.reduceat(covered, first) if len(first) else np.empty(0, np.uint64)
        reach = np.maximum.reduceat(ends, first) if len(first) else np.empty(0, np.uint64)
        return sources, first.astype(np.int64), SourceSums(used, reach, counts)

    def _without_overlaps(self, ends: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """How many bytes each range adds to those before it; icefloe writes no such files."""
        covered = np.zeros(len(ends), dtype=np.uint64)
        reached, source = 0, None
        rows = zip(self.sources.tolist(), self.offsets.tolist(), ends.tolist(), strict=True)
        for row, (current, start, end) in enumerate(rows):
            if current != source:
                source, reached = current, 0
            covered[row] = max(0, end - max(start, reached))
            reached = max(reached, end)
        return covered


class SourceSums(NamedTuple):
    """What is used of each object."""

    used_bytes: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    """Where the last range of each object ends."""
    counts: npt.NDArray[np.int64]


class RangeSet:
    """A growing set of byte ranges."""

    def __init__(self, part: int = 0, parts: int = 1) -> None:
        """Start empty; with several parts, take only the ranges of objects that belong to one."""
        self._part = part
        self._parts = parts
        self._sorted = np.empty(0, dtype=KEY_TYPE)
        self._pending: list[npt.NDArray[np.bytes_]] = []
        self._count = 0
        self._names: dict[bytes, bytes] = {}
        """Names of chunk files by the digests that are in their place."""

    def add_native(self, refs: ChunkRefs) -> None:
        """Add the ranges of chunk files."""
        rows = np.flatnonzero(refs.kinds == ChunkKind.NATIVE)
        if len(rows):
            short = without_names(refs.files)
            if short is not refs.files:
                ids = zip(as_ids(short).tolist(), as_ids(refs.files).tolist(), strict=True)
                self._names.update({each: name for each, name in ids if each != name})
            self._add(refs, rows, short)

    def add_virtual(self, refs: ChunkRefs) -> None:
        """Add the ranges of virtual sources."""
        rows = np.flatnonzero(refs.kinds == ChunkKind.VIRTUAL)
        if len(rows):
            digests = [
                hashlib.blake2b(url.encode(), digest_size=ChunkFileId.SIZE).digest()
                for url in refs.locations.urls.tolist()
            ]
            table = np.frombuffer(b"".join(digests), dtype=np.uint8)
            self._add(refs, rows, table.reshape(-1, ChunkFileId.SIZE))

    def _add(
        self, refs: ChunkRefs, rows: npt.NDArray[np.intp], sources: npt.NDArray[np.uint8]
    ) -> None:
        if self._parts > 1:
            mine = sources[refs.sources[rows], 0] % self._parts == self._part
            rows = rows[mine]
        self._pending.append(range_keys(refs, rows, sources))
        self._count += len(rows)
        if self._count > max(_MAX_PENDING, len(self._sorted)):
            self._settle()

    def _settle(self) -> None:
        if self._pending:
            self._sorted = np.unique(np.concatenate([self._sorted, *self._pending]))
            self._pending, self._count = [], 0

    def ranges(self) -> Ranges:
        """All ranges."""
        self._settle()
        size = WIDE_ID_TYPE.itemsize
        table = self._sorted.view(np.uint8).reshape(-1, KEY_TYPE.itemsize)
        id_type = WIDE_ID_TYPE if table[:, ID_TYPE.itemsize : size].any() else ID_TYPE
        sources = np.ascontiguousarray(table[:, : id_type.itemsize]).view(id_type).ravel()
        offsets = np.ascontiguousarray(table[:, size : size + 8]).view(">u8").ravel()
        lengths = np.ascontiguousarray(table[:, size + 8 :]).view(">u8").ravel()
        if self._names:
            named = np.array([self._names.get(each, each) for each in sources.tolist()])
            order = np.argsort(named, kind="stable")
            sources, offsets, lengths = named[order], offsets[order], lengths[order]
        return Ranges(sources, offsets.astype(np.uint64), lengths.astype(np.uint64))


def range_keys(
    refs: ChunkRefs, rows: npt.NDArray[np.intp], sources: npt.NDArray[np.uint8]
) -> npt.NDArray[np.bytes_]:
    """The ranges of some references as byte strings; `sources` are the ids of their objects.

    Each string begins with an id of at most WIDE_SIZE bytes (see `without_names`).
    """
    sources = without_names(sources)
    keys = np.zeros((len(rows), KEY_TYPE.itemsize), dtype=np.uint8)
    size = WIDE_ID_TYPE.itemsize
    keys[:, : sources.shape[1]] = sources[refs.sources[rows]]
    # Big-endian numbers sort as byte strings do.
    keys[:, size : size + 8] = _big_endian(refs.offsets[rows])
    keys[:, size + 8 :] = _big_endian(refs.lengths[rows])
    texts: npt.NDArray[np.bytes_] = keys.view(KEY_TYPE).ravel()
    return texts


def _big_endian(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    return values.astype(">u8").view(np.uint8).reshape(-1, 8)
