"""What leads from one snapshot to another, for merges: without what is as it was in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from icefloe.changes.compare import compare_chunks, net_moves
from icefloe.changes.documents import same_document
from icefloe.engine.history.chunk_contents import changed_chunks, chosen
from icefloe.engine.history.walk import compared
from icefloe.model.transaction_log import TransactionLog
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    from icefloe.engine.history.walk import History
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import NodeId
    from icefloe.model.snapshot import Snapshot


def net_difference(history: History, before: Snapshot, after: Snapshot) -> TransactionLog:
    """What differs between any two states, without what was changed and changed back.

    By the logs if one descends from the other. Otherwise the two are compared, and chunks that a
    compaction moved are no difference.
    """
    if before.id == after.id:
        return TransactionLog()
    path = history.between(before.id, after.id)
    log = None if path is None else history.told(path)
    is_told = log is not None
    if log is None:
        log = compared(history.files, before, after)
        if before.parent_id == after.id:
            log = _undone(history, before, log)
    files = history.files
    chunks_before, chunks_after = SnapshotChunks(files, before), SnapshotChunks(files, after)
    # Logs do not tell of chunks that only moved; what they tell was written.
    compare = compare_chunks if is_told else changed_chunks
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


def _undone(history: History, undone: Snapshot, log: TransactionLog) -> TransactionLog:
    """What leads from a commit back to its parent: chunks that it said to have changed only."""
    told = history.known_log(undone.id)
    if told is None:
        return log
    updated: dict[NodeId, ChunkIndex] = {}
    for node_id, index in log.updated_chunks.items():
        kept: ChunkIndex | None = index
        if undone.nodes.by_id(node_id) is not None:
            said = told.updated_chunks.get(node_id)
            kept = None if said is None else chosen(index.intersection(said))
        if kept is not None:
            updated[node_id] = kept
    return msgspec.structs.replace(log, updated_chunks=updated)
