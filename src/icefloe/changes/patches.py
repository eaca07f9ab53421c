"""The difference of two states as changes that can be laid over a third. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.manifest import ArrayChunks
from icefloe.model.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.nodes import ArrayNode, Node, NodeTable
    from icefloe.model.transaction_log import TransactionLog


def patch(
    before: NodeTable,
    after: NodeTable,
    log: TransactionLog,
    document_of: Callable[[Node], bytes],
    chunks_after: Callable[[ArrayNode], ArrayChunks | None],
) -> ChangeSet:
    """The changes from one state to another, as those of a session on the first.

    Args:
        before: Nodes of the first state.
        after: Nodes of the second state.
        log: What differs, at least; naming more than differs does no harm.
        document_of: Gives the whole document of a node of the second state.
        chunks_after: Gives the chunks of an array of the second state.
    """
    changes = ChangeSet(before)
    for node in after:
        old = before.by_id(node.id)
        if old is None:
            changes.new[node.id] = make_node(node.id, node.path, document_of(node))
        elif old.path != node.path:
            changes.places[node.id] = node.path
    for node_id in log.updated_arrays | log.updated_groups:
        changed = after.by_id(node_id)
        if changed is not None and node_id not in changes.new:
            changes.documents[node_id] = document_of(changed)
    changes.deleted = {node.id: node for node in before if after.by_id(node.id) is None}
    for node_id in {*log.updated_chunks, *changes.new}:
        array = after.array_by_id(node_id)
        if array is None:
            continue
        touched = None if node_id in changes.new else log.updated_chunks[node_id]
        edits = _edits(array, touched, chunks_after(array))
        if edits is not None:
            changes.chunks[node_id] = edits
    changes.rebase(before)
    return changes


def _edits(
    array: ArrayNode, touched: ChunkIndex | None, present: ArrayChunks | None
) -> ChunkEdits | None:
    """Edits that make the touched chunks what they are; without `touched`, all of them."""
    edits = ChunkEdits(array.array.rank)
    if touched is None:
        if present is None:
            return None
        edits.set_many(present)
        return edits
    coords = touched.coords()
    rows = np.full(len(coords), -1, dtype=np.intp)
    if present is not None:
        rows = present.index.find_many(coords)
        kept = rows >= 0
        if kept.any():
            edits.set_many(ArrayChunks.from_sorted(coords[kept], present.refs.take(rows[kept])))
    gone = coords[rows < 0]
    if len(gone):
        edits.delete_many(ChunkIndex.from_coords(gone)[0])
    return None if edits.is_empty else edits
