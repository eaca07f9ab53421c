"""Net differences between snapshots, for merges: without what was changed and changed back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.changes.compare import compare_chunks, net_moves, same_refs
from icefloe.changes.documents import same_document
from icefloe.engine.history.walk import compared, fetch_to_compare
from icefloe.errors import DamagedChunkError
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.transaction_log import TransactionLog
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.history.walk import History
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.snapshot import Snapshot


def net_difference(history: History, before: Snapshot, after: Snapshot) -> TransactionLog:
    """The difference between any two snapshots, without changes that were undone.

    Read from the logs if one descends from the other. Otherwise the two are compared, and chunks
    that a compaction moved do not count.
    """
    if before.id == after.id:
        return TransactionLog()
    path = history.between(before.id, after.id)
    log = None if path is None else history.combined_log(before.id, path)
    has_logs = log is not None
    if log is None:
        log = compared(history.files, before, after)
        if before.parent_id == after.id:
            log = _reverse_of(history, before, log)
    files = history.files
    if log.updated_chunks and not files.storage.capabilities.reads_are_immediate:
        fetch_to_compare(files, [before, after])
    chunks_before, chunks_after = SnapshotChunks(files, before), SnapshotChunks(files, after)
    # Logs do not mention chunks that only moved: what they mention was written.
    compare = compare_chunks if has_logs else changed_chunks
    updated: dict[NodeId, ChunkIndex] = {}
    for node_id, index in log.updated_chunks.items():
        old, new = before.nodes.array_by_id(node_id), after.nodes.array_by_id(node_id)
        changed: ChunkIndex | None = index
        if old is not None and new is not None:
            changed = compare(chunks_before.some(old, index), chunks_after.some(new, index))
        if changed is not None:
            updated[node_id] = changed
    same = {
        node_id
        for node_id in log.updated_arrays | log.updated_groups
        if (was := before.nodes.by_id(node_id)) is not None
        and (now := after.nodes.by_id(node_id)) is not None
        and same_document(files.document(was, before), files.document(now, after))
    }
    return msgspec.structs.replace(
        log,
        updated_chunks=updated,
        updated_arrays=log.updated_arrays - same,
        updated_groups=log.updated_groups - same,
        moves=net_moves(list(before.nodes), list(after.nodes)) if log.moves else (),
    )


def _reverse_of(history: History, reverted: Snapshot, log: TransactionLog) -> TransactionLog:
    """The difference from a commit to its parent, with only the chunks that the commit logged."""
    own_log = history.known_log(reverted.id)
    if own_log is None:
        return log
    updated: dict[NodeId, ChunkIndex] = {}
    for node_id, index in log.updated_chunks.items():
        logged: ChunkIndex | None = index
        if reverted.nodes.by_id(node_id) is not None:
            own = own_log.updated_chunks.get(node_id)
            logged = None if own is None else index_of(index.intersection(own))
        if logged is not None:
            updated[node_id] = logged
    return msgspec.structs.replace(log, updated_chunks=updated)


def changed_chunks(
    before: ArrayChunks | None, after: ArrayChunks | None, context: Context | None = None
) -> ChunkIndex | None:
    """Coordinates of chunks whose bytes differ or that only one side has; None if there are none.

    Native chunks are compared by checksum. If one of the two has none, both are read where there is
    a context to read them with, and count as different otherwise.
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
    return index_of(np.delete(coords, both[alike], axis=0))


def same_chunks(
    left: ChunkRefs, right: ChunkRefs, context: Context | None = None
) -> npt.NDArray[np.bool_]:
    """Which rows of two tables of equal length have the same bytes, in whatever file."""
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
                return False  # unknown, so a conflict

        same[unknown] = context.files.in_parallel(is_equal, unknown.tolist())
    return same


def index_of(coords: npt.NDArray[np.uint64]) -> ChunkIndex | None:
    """Coordinates (n, rank) as an index; None if there are none."""
    return ChunkIndex.from_coords(coords)[0] if len(coords) else None
