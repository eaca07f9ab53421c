"""Finds where our uncommitted changes meet what others committed meanwhile. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.changes.conflicts import Conflict, ConflictType
from icefloe.changes.documents import differing_keys
from icefloe.model import paths
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.ids import NodeId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode, Node, NodeTable
    from icefloe.model.transaction_log import TransactionLog


class DetectedConflict(Record, frozen=True, eq=False):
    """A conflict, and what is needed to give up our side of it."""

    conflict: Conflict
    node_id: NodeId | None = None
    common_chunks: Any = None
    """Coordinates (n, rank) that both sides wrote."""


def detect(
    ours: ChangeSet,
    theirs: TransactionLog,
    head: NodeTable,
    touched: Mapping[NodeId, ChunkIndex],
    their_chunks: Callable[[ArrayNode, ChunkIndex], ArrayChunks | None],
) -> list[DetectedConflict]:
    """Conflicts of our changes, over our base, with their log that led from it to `head`.

    `touched` has the chunks that we set or deleted in each array; `their_chunks` gives the chunks
    that an array of theirs has at some places.
    """
    conflicts = [
        *_new_nodes(ours, head),
        *_arrays_over_nodes(ours, head),
        *_documents(ours, theirs),
        *_chunks(ours, theirs, touched),
        *_hidden_chunks(ours, theirs, head, touched, their_chunks),
        *_deletes(ours, theirs),
        *_our_moves(ours, theirs, head),
        *_their_moves(ours, theirs),
    ]
    return sorted(
        conflicts, key=lambda f: (_REPORT_ORDER[f.conflict.conflict_type], f.conflict.path)
    )


_REPORT_ORDER = {
    kind: place
    for place, kind in enumerate(
        (
            ConflictType.NewNodeConflictsWithExistingNode,
            ConflictType.NewNodeInInvalidGroup,
            ConflictType.ZarrMetadataDoubleUpdate,
            ConflictType.ZarrMetadataUpdateOfDeletedArray,
            ConflictType.ZarrMetadataUpdateOfDeletedGroup,
            ConflictType.ChunksUpdatedInDeletedArray,
            ConflictType.ChunksUpdatedInUpdatedArray,
            ConflictType.ChunkDoubleUpdate,
            ConflictType.DeleteOfUpdatedArray,
            ConflictType.DeleteOfUpdatedGroup,
            ConflictType.MoveOfChangedNode,
        )
    )
}
"""The order in which the official package reports kinds of conflicts; by path within a kind."""


_MEANING_OF_CHUNKS = {"data_type", "chunk_grid", "codecs", "storage_transformers"}
"""Keys of a document without which nobody can tell what is in a chunk."""


def _base_path(ours: ChangeSet, node_id: NodeId) -> str:
    node = ours.base.by_id(node_id) or ours.new.get(node_id)
    return "/" if node is None else node.path


def _new_nodes(ours: ChangeSet, head: NodeTable) -> Iterator[DetectedConflict]:
    for node_id, node in ours.new.items():
        existing = head.get(node.path) or head.by_id(node_id)
        if existing is not None and not _leaves(ours, existing):
            kind = ConflictType.NewNodeConflictsWithExistingNode
            yield DetectedConflict(Conflict(kind, node.path), node_id)
        parent = paths.parent(node.path)
        while parent is not None:
            if _became_array(parent, ours, head):
                yield DetectedConflict(
                    Conflict(ConflictType.NewNodeInInvalidGroup, parent), node_id
                )
                break
            parent = paths.parent(parent)


def _arrays_over_nodes(ours: ChangeSet, head: NodeTable) -> Iterator[DetectedConflict]:
    """Arrays that we put in place of groups of the base, into which they put nodes."""
    for node_id in (*ours.new, *ours.places):
        array = ours.array_by_id(node_id)
        if array is None:
            continue
        existing = head.get(array.path)
        if existing is not None and not _leaves(ours, existing):
            continue  # a conflict already
        if any(not _leaves(ours, each) for each in head.below(array.path)):
            is_new = node_id in ours.new
            kind = ConflictType.NewNodeInInvalidGroup if is_new else ConflictType.MoveOfChangedNode
            yield DetectedConflict(Conflict(kind, _base_path(ours, node_id)), node_id)


def _leaves(ours: ChangeSet, node: Node) -> bool:
    """Whether we delete or move a node of their head, so that its path becomes free."""
    return node.id in ours.deleted or node.id in ours.places


def _became_array(path: str, ours: ChangeSet, head: NodeTable) -> bool:
    """Whether they put an array where our base has none; ours may have had nodes below it."""
    theirs, before = head.get(path), ours.base.get(path)
    if theirs is None or not theirs.is_array or _leaves(ours, theirs):
        return False
    return before is None or not before.is_array


def _documents(ours: ChangeSet, theirs: TransactionLog) -> Iterator[DetectedConflict]:
    updated = theirs.updated_arrays | theirs.updated_groups
    for node_id in ours.documents:
        path = _base_path(ours, node_id)
        if node_id in updated:
            yield DetectedConflict(Conflict(ConflictType.ZarrMetadataDoubleUpdate, path), node_id)
        if node_id in theirs.deleted_arrays:
            yield DetectedConflict(
                Conflict(ConflictType.ZarrMetadataUpdateOfDeletedArray, path), node_id
            )
        if node_id in theirs.deleted_groups:
            yield DetectedConflict(
                Conflict(ConflictType.ZarrMetadataUpdateOfDeletedGroup, path), node_id
            )


def _chunks(
    ours: ChangeSet, theirs: TransactionLog, touched: Mapping[NodeId, ChunkIndex]
) -> Iterator[DetectedConflict]:
    for node_id, index in touched.items():
        if node_id in ours.new:
            continue
        path = _base_path(ours, node_id)
        if node_id in theirs.deleted_arrays:
            yield DetectedConflict(
                Conflict(ConflictType.ChunksUpdatedInDeletedArray, path), node_id
            )
            continue
        if node_id in theirs.updated_arrays:
            yield DetectedConflict(
                Conflict(ConflictType.ChunksUpdatedInUpdatedArray, path), node_id
            )
        their_index = theirs.updated_chunks.get(node_id)
        common = None if their_index is None else index.intersection(their_index)
        if common is not None and len(common):
            kind = ConflictType.ChunkDoubleUpdate
            yield DetectedConflict(Conflict(kind, path, common.tolist()), node_id, common)


def _hidden_chunks(
    ours: ChangeSet,
    theirs: TransactionLog,
    head: NodeTable,
    touched: Mapping[NodeId, ChunkIndex],
    their_chunks: Callable[[ArrayNode, ChunkIndex], ArrayChunks | None],
) -> Iterator[DetectedConflict]:
    """Chunks that they wrote, and that our metadata hides or gives another meaning.

    What we deleted with it is a chunk that both wrote; here is what we did not see.
    """
    for node_id in ours.documents.keys() & theirs.updated_chunks.keys():
        before, mine = ours.base.array_by_id(node_id), ours.array_by_id(node_id)
        other = head.array_by_id(node_id)
        if before is None or mine is None or other is None:
            continue
        coords = theirs.updated_chunks[node_id].coords()
        coords = coords[_is_hidden(before, mine, other, coords)]
        if node_id in touched:
            coords = coords[touched[node_id].find_many(coords) < 0]
        if len(coords) == 0:
            continue
        left = their_chunks(other, ChunkIndex.from_coords(coords)[0])
        if left is not None:
            kind = ConflictType.ChunksUpdatedInUpdatedArray
            chunks = left.index.coords().tolist()
            yield DetectedConflict(Conflict(kind, _base_path(ours, node_id), chunks), node_id)


def _is_hidden(
    before: ArrayNode, mine: ArrayNode, other: ArrayNode, coords: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Which of their chunks (n, rank) are no longer seen, or seen otherwise, with our metadata."""
    hidden = np.zeros(len(coords), dtype=np.bool_)
    changed = differing_keys(before.outline, mine.outline)
    if changed & differing_keys(other.outline, mine.outline) & _MEANING_OF_CHUNKS:
        return ~hidden
    lengths = zip(before.array.shape, mine.array.shape, other.array.shape, strict=True)
    for axis, (old, new, theirs) in enumerate(lengths):
        if new < old and new < theirs:
            shape = mine.array.chunk_shape
            # Also of the last chunk something may be cut off.
            first = 0 if shape is None else new // shape[axis]
            hidden |= coords[:, axis] >= first
    return hidden


def _deletes(ours: ChangeSet, theirs: TransactionLog) -> Iterator[DetectedConflict]:
    arrays = (theirs.updated_arrays | theirs.updated_chunks.keys()) - theirs.deleted_arrays
    for node_id, node in ours.deleted.items():
        if node_id in arrays:
            yield DetectedConflict(Conflict(ConflictType.DeleteOfUpdatedArray, node.path), node_id)
        elif node_id in theirs.updated_groups - theirs.deleted_groups:
            yield DetectedConflict(Conflict(ConflictType.DeleteOfUpdatedGroup, node.path), node_id)


def _our_moves(
    ours: ChangeSet, theirs: TransactionLog, head: NodeTable
) -> Iterator[DetectedConflict]:
    """Moves commute with edits of chunks and documents, which go by id; not with other nodes."""
    kind = ConflictType.MoveOfChangedNode
    moved = {move.node_id for move in theirs.moves}
    groups = {node.path for node in ours.new.values() if not node.is_array}
    groups.update(ours.places.values())
    for node_id, place in ours.places.items():
        node, taken = head.by_id(node_id), head.get(place)
        if node is None or node_id in moved or (taken is not None and not _leaves(ours, taken)):
            yield DetectedConflict(Conflict(kind, _base_path(ours, node_id)), node_id)
    for move in ours.net_moves():
        parent = paths.parent(move.target) or paths.ROOT
        if parent not in groups and not _stays_group(parent, ours, head):
            yield DetectedConflict(Conflict(kind, move.source), move.node_id)
        node = head.by_id(move.node_id)
        for newcomer in () if node is None else head.below(node.path):
            # They put a node into what we move; it would stay behind.
            if not _leaves(ours, newcomer):
                yield DetectedConflict(Conflict(kind, newcomer.path), newcomer.id)


def _their_moves(ours: ChangeSet, theirs: TransactionLog) -> Iterator[DetectedConflict]:
    kind = ConflictType.MoveOfChangedNode
    for move in theirs.moves:
        if move.node_id in ours.deleted:
            yield DetectedConflict(Conflict(kind, move.source), move.node_id)
        for node_id, created in ours.new.items():
            if paths.is_within(created.path, move.source):
                yield DetectedConflict(Conflict(kind, created.path), node_id)


def _stays_group(path: str, ours: ChangeSet, head: NodeTable) -> bool:
    node = head.get(path)
    return node is not None and not node.is_array and not _leaves(ours, node)


def give_up(ours: ChangeSet, collision: DetectedConflict, head: NodeTable) -> bool:
    """Drop our side of a conflict in favour of theirs; False if that would leave half of a change.

    Nodes that we created or moved cannot be dropped: what else we did may build on them.
    """
    kind, node_id = collision.conflict.conflict_type, collision.node_id
    if node_id is None:
        return False
    if collision.common_chunks is not None:
        index, _ = ChunkIndex.from_coords(collision.common_chunks)
        ours.chunks[node_id].discard(index)
    elif kind in _OUR_DOCUMENTS:
        del ours.documents[node_id]
    elif kind is ConflictType.ChunksUpdatedInDeletedArray:
        ours.chunks.pop(node_id, None)
        ours.linked.pop(node_id, None)
    elif kind in _OUR_DELETES:
        return _give_up_delete(ours, node_id, head)
    else:
        return False
    return True


_OUR_DOCUMENTS = {
    ConflictType.ZarrMetadataDoubleUpdate,
    ConflictType.ZarrMetadataUpdateOfDeletedArray,
    ConflictType.ZarrMetadataUpdateOfDeletedGroup,
}
_OUR_DELETES = {ConflictType.DeleteOfUpdatedArray, ConflictType.DeleteOfUpdatedGroup}


def _give_up_delete(ours: ChangeSet, node_id: NodeId, head: NodeTable) -> bool:
    """Undo our deletion of a node, with its children and parents, in favour of theirs."""
    node = head.by_id(node_id)
    if node is None:
        return False
    above = []
    parent = paths.parent(node.path)
    while parent is not None:
        above.append(parent)
        parent = paths.parent(parent)
    stay = [
        each
        for deleted in ours.deleted
        if (each := head.by_id(deleted)) is not None
        and (each.path in above or paths.is_within(each.path, node.path))
    ]
    taken = {each.path for each in ours.new.values()} | set(ours.places.values())
    parents = [head.get(path) for path in above]
    if any(each.path in taken for each in stay) or any(
        each is not None and each.id in ours.places for each in parents
    ):
        return False
    for each in stay:
        del ours.deleted[each.id]
    return True
