"""Finds where our uncommitted changes meet what others committed meanwhile. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.changes.conflicts import Conflict, ConflictType
from icefloe.model import paths
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.ids import NodeId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.model.nodes import Node, NodeTable
    from icefloe.model.transaction_log import TransactionLog


class Found(Record, frozen=True, eq=False):
    """A conflict with what is needed to give up our side of it."""

    conflict: Conflict
    node_id: NodeId | None = None
    common_chunks: Any = None
    """Coordinates (n, rank) that both sides wrote."""


def detect(
    ours: ChangeSet,
    theirs: TransactionLog,
    head: NodeTable,
    touched: Mapping[NodeId, ChunkIndex],
) -> list[Found]:
    """Conflicts of our changes, over our base, with their log that led from it to `head`.

    `touched` says which chunks we set or deleted in each array.
    """
    found = [
        *_new_nodes(ours, theirs, head),
        *_documents(ours, theirs),
        *_chunks(ours, theirs, touched),
        *_deletes(ours, theirs),
        *_moves(ours, theirs, head),
    ]
    order = {kind: place for place, kind in enumerate(_REPORT_ORDER)}
    return sorted(
        found, key=lambda f: (order.get(f.conflict.conflict_type, len(order)), f.conflict.path)
    )


# The order in which the official package reports conflicts of one node.
_REPORT_ORDER = (
    ConflictType.ZarrMetadataDoubleUpdate,
    ConflictType.ChunksUpdatedInUpdatedArray,
    ConflictType.ChunkDoubleUpdate,
)


def _base_path(ours: ChangeSet, node_id: NodeId) -> str:
    node = ours.base.by_id(node_id) or ours.new.get(node_id)
    return "/" if node is None else node.path


def _new_nodes(ours: ChangeSet, theirs: TransactionLog, head: NodeTable) -> Iterator[Found]:
    their_arrays = {node.path for i in theirs.new_arrays if (node := head.by_id(i)) is not None}
    for node_id, node in ours.new.items():
        existing = head.get(node.path)
        if existing is not None and existing.id not in ours.deleted:
            kind = ConflictType.NewNodeConflictsWithExistingNode
            yield Found(Conflict(kind, node.path), node_id)
        parent = paths.parent(node.path)
        while parent is not None:
            if parent in their_arrays:
                yield Found(Conflict(ConflictType.NewNodeInInvalidGroup, parent), node_id)
                break
            parent = paths.parent(parent)


def _documents(ours: ChangeSet, theirs: TransactionLog) -> Iterator[Found]:
    updated = theirs.updated_arrays | theirs.updated_groups
    for node_id in ours.documents:
        path = _base_path(ours, node_id)
        if node_id in updated:
            yield Found(Conflict(ConflictType.ZarrMetadataDoubleUpdate, path), node_id)
        if node_id in theirs.deleted_arrays:
            yield Found(Conflict(ConflictType.ZarrMetadataUpdateOfDeletedArray, path), node_id)
        if node_id in theirs.deleted_groups:
            yield Found(Conflict(ConflictType.ZarrMetadataUpdateOfDeletedGroup, path), node_id)


def _chunks(
    ours: ChangeSet, theirs: TransactionLog, touched: Mapping[NodeId, ChunkIndex]
) -> Iterator[Found]:
    for node_id, index in touched.items():
        if node_id in ours.new:
            continue
        path = _base_path(ours, node_id)
        if node_id in theirs.deleted_arrays:
            coords = _as_lists(index.coords())
            kind = ConflictType.ChunksUpdatedInDeletedArray
            yield Found(Conflict(kind, path, coords), node_id)
            continue
        if node_id in theirs.updated_arrays:
            yield Found(Conflict(ConflictType.ChunksUpdatedInUpdatedArray, path), node_id)
        their_index = theirs.updated_chunks.get(node_id)
        common = None if their_index is None else index.intersection(their_index)
        if common is not None and len(common):
            kind = ConflictType.ChunkDoubleUpdate
            yield Found(Conflict(kind, path, _as_lists(common)), node_id, common)


def _deletes(ours: ChangeSet, theirs: TransactionLog) -> Iterator[Found]:
    arrays = theirs.updated_arrays | theirs.updated_chunks.keys()
    for node_id, node in ours.deleted.items():
        if node.is_array and node_id in arrays:
            yield Found(Conflict(ConflictType.DeleteOfUpdatedArray, node.path), node_id)
        if not node.is_array and node_id in theirs.updated_groups:
            yield Found(Conflict(ConflictType.DeleteOfUpdatedGroup, node.path), node_id)


def _moves(ours: ChangeSet, theirs: TransactionLog, head: NodeTable) -> Iterator[Found]:
    """Moves commute with edits of chunks and documents, which go by id; not with other nodes."""
    kind = ConflictType.MoveOfChangedNode
    moved = {move.node_id for move in theirs.moves}
    gone = theirs.deleted_arrays | theirs.deleted_groups
    created = list(_created_by(theirs, head))
    for node_id, place in ours.places.items():
        source = _base_path(ours, node_id)
        taken = head.get(place)
        if node_id in moved or node_id in gone or (taken is not None and taken.id != node_id):
            yield Found(Conflict(kind, source), node_id)
        for node in created:
            if paths.is_within(node.path, source) and node.path != place:
                yield Found(Conflict(kind, node.path), node_id)
    for move in theirs.moves:
        if move.node_id in ours.deleted:
            yield Found(Conflict(kind, move.source), move.node_id)
        for node_id, node in ours.new.items():
            if paths.is_within(node.path, move.source):
                yield Found(Conflict(kind, node.path), node_id)


def _created_by(theirs: TransactionLog, head: NodeTable) -> Iterator[Node]:
    for node_id in theirs.new_arrays | theirs.new_groups:
        node = head.by_id(node_id)
        if node is not None:
            yield node


def _as_lists(coords: npt.NDArray[np.uint64]) -> list[list[int]]:
    lists: list[list[int]] = coords.tolist()
    return lists


def give_up_chunks(ours: ChangeSet, found: Found) -> None:
    """Drop our writes of the chunks that both sides wrote, in favour of theirs."""
    assert found.node_id is not None
    index, _ = ChunkIndex.from_coords(found.common_chunks)
    ours.chunks[found.node_id].discard(index)
