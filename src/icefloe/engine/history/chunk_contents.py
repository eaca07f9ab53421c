"""Tells chunks that changed from chunks that are only somewhere else, as after a compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.compare import compare_chunks, same_refs
from icefloe.errors import DamagedChunkError
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.manifest import ArrayChunks


def changed_chunks(
    before: ArrayChunks | None, after: ArrayChunks | None, context: Context | None = None
) -> ChunkIndex | None:
    """Coordinates of chunks with other bytes, or that only one side has; None if there are none.

    Native chunks are compared by their checksums. Where one of the two has none, they are read if
    there is a context to read them with, and count as different otherwise.
    """
    changed = compare_chunks(before, after)
    if changed is None or before is None or after is None:
        return changed
    coords = changed.coords()
    rows_before, rows_after = before.index.find_many(coords), after.index.find_many(coords)
    both = np.flatnonzero((rows_before >= 0) & (rows_after >= 0))
    alike = same_chunks(
        before.refs.take(rows_before[both]), after.refs.take(rows_after[both]), context
    )
    return chosen(np.delete(coords, both[alike], axis=0))


def same_chunks(
    left: ChunkRefs, right: ChunkRefs, context: Context | None = None
) -> npt.NDArray[np.bool_]:
    """For tables of equal length: which rows have the same bytes, wherever these are."""
    same = same_refs(left, right)
    native = (left.kinds == ChunkKind.NATIVE) & (right.kinds == ChunkKind.NATIVE)
    open_ = native & ~same & (left.lengths == right.lengths)
    is_known = (left.checksums != 0) & (right.checksums != 0)
    same |= open_ & is_known & (left.checksums == right.checksums)
    unknown = np.flatnonzero(open_ & ~is_known)
    if context is not None and len(unknown):
        read = context.chunk_files.read

        def is_equal(row: int) -> bool:
            try:
                return read(left.get(row)) == read(right.get(row))
            except DamagedChunkError:
                return False  # nobody knows; then it is a conflict

        same[unknown] = context.files.in_parallel(is_equal, unknown.tolist())
    return same


def chosen(coords: npt.NDArray[np.uint64]) -> ChunkIndex | None:
    """Coordinates (n, rank) as an index; None if there are none."""
    return ChunkIndex.from_coords(coords)[0] if len(coords) else None
