"""Removes from the two sides of a merge what both did alike, and chunks that only moved.

Neither is a conflict. Moved chunks have the same bytes in another file, as after a compaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.changes.compare import same_refs
from icefloe.changes.documents import same_document
from icefloe.changes.solvers import AppendSolver
from icefloe.engine.history.net_difference import changed_chunks, index_of, same_chunks
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.record import Record
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.changes.conflicts import ConflictSolver
    from icefloe.engine.context import Context
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


class CommonAppend(Record, frozen=True):
    """An array to which both sides appended: chunks from `start` on along `axis` are new."""

    axis: int
    start: int

    def is_new(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of some chunks (n, rank) were appended."""
        is_new: npt.NDArray[np.bool_] = coords[:, self.axis] >= self.start
        return is_new


class MergeSides:
    """The two sides of a merge: our changes to a base, and the head that others made of it."""

    def __init__(self, context: Context, base: Snapshot, head: Snapshot, ours: ChangeSet) -> None:
        """Take both sides; our changes are altered in place."""
        self._context = context
        self._base = base
        self._head = head
        self._ours = ours
        self._base_chunks = SnapshotChunks(context.files, base)
        self._head_chunks = SnapshotChunks(context.files, head)
        self._common_moves: set[NodeId] = set()
        """Nodes that both sides moved to the same path, if our moves of them are retained."""

    def common_appends(self, solver: ConflictSolver) -> dict[NodeId, CommonAppend]:
        """The arrays to which both sides appended; empty unless the solver joins appends."""
        appends: dict[NodeId, CommonAppend] = {}
        if not isinstance(solver, AppendSolver):
            return appends
        for node_id in self._ours.documents:
            nodes = (
                t.array_by_id(node_id) for t in (self._base.nodes, self._ours, self._head.nodes)
            )
            arrays = [None if node is None else node.array for node in nodes]
            before, mine, other = arrays
            if before is None or mine is None or other is None or before.chunk_shape is None:
                continue
            names = before.dimension_names or ()
            if solver.dimension not in names:
                continue
            axis = names.index(solver.dimension)
            length = before.shape[axis]
            if mine.shape[axis] > length and other.shape[axis] > length:
                appends[node_id] = CommonAppend(axis, -(-length // before.chunk_shape[axis]))
        return appends

    def share_appended_chunks(self, appends: dict[NodeId, CommonAppend]) -> bool:
        """Whether the head has some chunks that we appended, after a pick of some of our commits.

        Chunk files show it: no two writers write to one file.
        """
        for node_id, append in appends.items():
            edits, node = self._ours.chunks.get(node_id), self._head.nodes.array_by_id(node_id)
            mine = None if edits is None else edits.own()[0]
            theirs = None if node is None or mine is None else self._head_chunks.table(node)
            if mine is None or theirs is None:
                continue
            coords = mine.index.coords()
            rows = theirs.index.find_many(coords)
            both = np.flatnonzero((rows >= 0) & append.is_new(coords))
            refs = mine.refs.take(both)
            alike = same_refs(refs, theirs.refs.take(rows[both]))
            if (alike & (refs.kinds == ChunkKind.NATIVE)).any():
                return True
        return False

    def drop_common_changes(self, appends: dict[NodeId, CommonAppend]) -> None:
        """Drop our changes that the head already has, as after an earlier pick.

        Not what both appended, however equal it is: ours goes behind theirs.
        """
        ours, head = self._ours, self._head.nodes
        for node_id in {*ours.new, *ours.documents}:
            known = head.by_id(node_id)
            if known is not None:
                self._drop_node(node_id, known, is_appended=node_id in appends)
        self._drop_common_departures()
        for node_id, edits in ours.chunks.items():
            array = head.array_by_id(node_id)
            if array is not None:
                theirs = self._head_chunks.table(array) if array.manifests else None
                _drop_same_chunks(edits, theirs, appends.get(node_id))
        self._tidy()

    def _drop_node(self, node_id: NodeId, known: Node, *, is_appended: bool) -> None:
        ours = self._ours
        document = self._context.files.documents_of(self._head)
        created = ours.new.get(node_id)
        if (
            created is not None
            and created.path == known.path
            and same_document(document(known), created.document)
        ):
            del ours.new[node_id]
        written = None if is_appended else ours.documents.get(node_id)
        if written is not None and same_document(document(known), written):
            del ours.documents[node_id]

    def _drop_common_departures(self) -> None:
        """Drop deletions and moves that the head has, too.

        If our other changes need a path that became free, all are retained: over the base, two
        nodes would have that path.
        """
        ours, head = self._ours, self._head.nodes
        deleted = [node_id for node_id in ours.deleted if head.by_id(node_id) is None]
        moved = {
            node_id
            for node_id, place in ours.places.items()
            if (known := head.by_id(node_id)) is not None and known.path == place
        }
        used = {node.path for node in ours.new.values()}
        used.update(place for node_id, place in ours.places.items() if node_id not in moved)
        if any(ours.base.get(path) is not None for path in used):
            self._common_moves = moved
            return
        for node_id in deleted:
            del ours.deleted[node_id]
        for node_id in moved:
            del ours.places[node_id]

    def without_relocated_chunks(
        self, theirs: TransactionLog, appends: dict[NodeId, CommonAppend]
    ) -> TransactionLog:
        """Their changes without disputed chunks that have the same bytes as in the base.

        Also drops our edits whose bytes equal those of the base, or theirs, and moves that both
        sides made. Reads only chunks without a known checksum.
        """
        updated = dict(theirs.updated_chunks)
        for node_id, index in theirs.updated_chunks.items():
            old, new = self._base.nodes.array_by_id(node_id), self._head.nodes.array_by_id(node_id)
            disputed = self._disputed(node_id, index)
            if disputed is None or new is None:
                continue
            before = None if old is None else self._base_chunks.some(old, disputed)
            after = self._head_chunks.some(new, disputed)
            changed = changed_chunks(before, after, self._context)
            remaining = _without_unchanged(index, disputed, changed)
            if remaining is None:
                del updated[node_id]
            else:
                updated[node_id] = remaining
            if node_id in self._ours.chunks:
                self._drop_equal_edits(node_id, disputed, before, after, appends.get(node_id))
        for node_id in theirs.deleted_arrays & self._ours.chunks.keys():
            self._drop_relocated(node_id)
        self._tidy()
        moves = tuple(move for move in theirs.moves if move.node_id not in self._common_moves)
        return msgspec.structs.replace(theirs, updated_chunks=updated, moves=moves)

    def _disputed(self, node_id: NodeId, index: ChunkIndex) -> ChunkIndex | None:
        """Chunks of theirs that we changed, too, or deleted with the whole array."""
        if node_id in self._ours.deleted:
            return index
        edits = self._ours.chunks.get(node_id)
        touched = None if edits is None else edits.touched(None)
        return None if touched is None else index_of(touched.intersection(index))

    def _drop_equal_edits(
        self,
        node_id: NodeId,
        index: ChunkIndex,
        before: ArrayChunks | None,
        after: ArrayChunks | None,
        append: CommonAppend | None,
    ) -> None:
        """Drop our edits of some chunks if they equal the base or the head."""
        edits = self._ours.chunks[node_id]
        coords = index.coords()
        mine = edits.own()[0]
        for other, spared in ((before, None), (after, append)):
            is_equal = _are_equal(mine, other, coords, self._context)
            if spared is not None:
                is_equal &= ~spared.is_new(coords)
            if equal := index_of(coords[is_equal]):
                edits.discard(equal)

    def _drop_relocated(self, node_id: NodeId) -> None:
        """Drop our edits that only moved chunks, in an array that they deleted."""
        edits, node = self._ours.chunks[node_id], self._base.nodes.array_by_id(node_id)
        touched = edits.touched(None)
        if node is not None and touched is not None:
            before = self._base_chunks.some(node, touched)
            self._drop_equal_edits(node_id, touched, before, None, None)

    def _tidy(self) -> None:
        ours = self._ours
        ours.chunks = {i: edits for i, edits in ours.chunks.items() if not edits.is_empty}
        ours.rebase(ours.base)


def _without_unchanged(
    index: ChunkIndex, disputed: ChunkIndex, changed: ChunkIndex | None
) -> ChunkIndex | None:
    """Chunks without the disputed ones that did not change; None if none is left."""
    coords = index.coords()
    remains = disputed.find_many(coords) < 0
    if changed is not None:
        remains |= changed.find_many(coords) >= 0
    return index_of(coords[remains])


def _are_equal(
    mine: ArrayChunks | None,
    other: ArrayChunks | None,
    coords: npt.NDArray[np.uint64],
    context: Context,
) -> npt.NDArray[np.bool_]:
    """At which coordinates two tables have the same bytes, or both have no chunk."""
    rows = [
        np.full(len(coords), -1) if table is None else table.index.find_many(coords)
        for table in (mine, other)
    ]
    same: npt.NDArray[np.bool_] = (rows[0] < 0) & (rows[1] < 0)
    both = np.flatnonzero((rows[0] >= 0) & (rows[1] >= 0))
    if mine is not None and other is not None and len(both):
        left, right = mine.refs.take(rows[0][both]), other.refs.take(rows[1][both])
        same[both] = same_chunks(left, right, context)
    return same


def _drop_same_chunks(
    edits: ChunkEdits, theirs: ArrayChunks | None, append: CommonAppend | None
) -> None:
    """Drop edits that set a chunk to what the head has, or delete one that it does not have."""
    mine, gone = edits.own()
    same = []
    if mine is not None and theirs is not None:
        coords = mine.index.coords()
        rows = theirs.index.find_many(coords)
        both = np.flatnonzero(rows >= 0)
        alike = same_refs(mine.refs.take(both), theirs.refs.take(rows[both]))
        same.append(coords[both[alike]])
    if gone is not None:
        coords = gone.coords()
        same.append(coords if theirs is None else coords[theirs.index.find_many(coords) < 0])
    if not same:
        return
    coords = np.concatenate(same)
    index = index_of(coords if append is None else coords[~append.is_new(coords)])
    if index is not None:
        edits.discard(index)
