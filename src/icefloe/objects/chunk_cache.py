"""The bytes of chunks that were read, for repositories that are configured to keep some.

Whole chunks are kept, under all that their reference says, so that another version of a chunk is
another entry:

- Chunks in chunk files, which are never altered, in the scope of the storage (`shared_caches`). One
  that is not as its checksum says is not kept.
- Virtual chunks whose reference has the version of the source, by etag or time: the
  reader has compared these. Only the same reader, which may read there, finds them again.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_refs import ChunkKind, NativeRef, VirtualRef
from icefloe.model.ids import ChunkFileId
from icefloe.model.segments import FoundChunks, Segments
from icefloe.objects.checksums import checksum, checksums

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.located import Located
    from icefloe.objects.cache import ByteCache

_ENTRY_BYTES = 256
"""The size of an entry besides the bytes of its chunk."""


class ChunkCache:
    """Chunks of one repository in a cache that others may share."""

    def __init__(self, cache: ByteCache[Hashable, bytes], scope: Hashable) -> None:
        """Take where to keep them, and what the chunk files of this repository are known by."""
        self._cache = cache
        self._scope = scope
        self._own = object()
        """Identifies the reader of virtual chunks, and what it may read."""

    def find(self, ref: NativeRef | VirtualRef) -> bytes | None:
        """A whole chunk, if it is kept."""
        key = self._key(ref)
        return None if key is None else self._cache.get(key)

    def keep(self, ref: NativeRef | VirtualRef, data: bytes) -> None:
        """Keep a whole chunk, unless it is damaged or may change."""
        key = self._key(ref)
        if key is None or len(data) != ref.length:
            return
        if isinstance(ref, NativeRef) and ref.checksum and checksum(data) != ref.checksum:
            return
        self.put(key, data)

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep a whole chunk that is as it should be."""
        self._cache.put(key, data, len(data) + _ENTRY_BYTES)

    def get_many(self, keys: Sequence[Hashable]) -> list[bytes | None]:
        """The cached chunk of each key, or None."""
        return self._cache.get_many(keys)

    def _key(self, ref: NativeRef | VirtualRef) -> Hashable | None:
        if isinstance(ref, NativeRef):
            return self._scope, ref.file, ref.offset, ref.length, ref.checksum
        if ref.etag is None and ref.last_modified is None:
            return None
        return self._own, ref.location, ref.offset, ref.length, ref.etag, ref.last_modified

    def keys(self, refs: ChunkRefs, rows: npt.NDArray[np.intp]) -> Iterator[Hashable | None]:
        """The cache keys of native and virtual chunks; None for others."""
        if (refs.kinds[rows] != ChunkKind.NATIVE).any():
            for row in rows.tolist():
                ref = refs.get(row)
                assert isinstance(ref, NativeRef | VirtualRef)
                yield self._key(ref)
            return
        used, sources = np.unique(refs.sources[rows], return_inverse=True)
        files = [ChunkFileId(refs.files[source].tobytes()) for source in used.tolist()]
        yield from zip(
            repeat(self._scope),
            map(files.__getitem__, sources.tolist()),
            refs.offsets[rows].tolist(),
            refs.lengths[rows].tolist(),
            refs.checksums[rows].tolist(),
            strict=False,
        )


class CachedRead:
    """The chunks that are cached, and those that must be read and are cached then."""

    def __init__(self, cache: ChunkCache, located: Sequence[Located]) -> None:
        """Look up all chunks of a request."""
        self._cache = cache
        self._keys: dict[int, Hashable] = {}
        self.held: list[FoundChunks] = []
        """Chunks that are at hand."""
        self.missing: list[Located] = []
        """All others."""
        for group in located:
            self._look(group)

    def _look(self, group: Located) -> None:
        # Inline chunks are at hand anyway, and for empty ones nothing is read.
        outside = (group.refs.kinds != ChunkKind.INLINE) & (group.refs.lengths > 0)
        looked = np.flatnonzero(outside)
        keys = list(self._cache.keys(group.refs, looked))
        cached = self._cache.get_many(keys)
        hits = [place for place, data in enumerate(cached) if data is not None]
        if hits:
            pieces = [data for data in cached if data is not None]
            self.held.append(FoundChunks(group.rows[looked[hits]], Segments.of(pieces)))
        rows = group.rows[looked].tolist()
        self._keys.update(
            (row, key)
            for row, key, data in zip(rows, keys, cached, strict=True)
            if key is not None and data is None
        )
        left = np.ones(len(group.rows), dtype=np.bool_)
        left[looked[hits]] = False
        if left.all():
            self.missing.append(group)
        elif left.any():
            chosen = np.flatnonzero(left)
            self.missing.append(
                group._replace(rows=group.rows[chosen], refs=group.refs.take(chosen))
            )

    def keep(self, chunks: FoundChunks, recorded: npt.NDArray[np.uint32] | None) -> None:
        """Cache chunks that were read, except those whose checksum differs."""
        is_sound = np.ones(len(chunks.rows), dtype=np.bool_)
        if recorded is not None and recorded.any():
            is_sound = (checksums(*chunks.segments) == recorded) | (recorded == 0)
        for at in np.flatnonzero(is_sound).tolist():
            key = self._keys.get(int(chunks.rows[at]))
            if key is not None:
                self._cache.put(key, bytes(chunks.segments.piece(at)))
