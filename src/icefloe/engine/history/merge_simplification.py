"""Takes out of two sides of a merge what both did alike and what only moved: no conflicts there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.changes.compare import same_refs
from icefloe.changes.documents import same_document
from icefloe.changes.solvers import AppendSolver
from icefloe.engine.history.chunk_contents import changed_chunks, chosen, same_chunks
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


class Grown(Record, frozen=True):
    """How both sides made an array longer: chunks from `start` on along a dimension are new."""

    axis: int
    start: int

    def is_new(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of some chunks (n, rank) were appended."""
        found: npt.NDArray[np.bool_] = coords[:, self.axis] >= self.start
        return found


class Meeting:
    """Our changes over a base, where they meet a head that others made of it."""

    def __init__(self, context: Context, base: Snapshot, head: Snapshot, ours: ChangeSet) -> None:
        """Take both sides; our changes are changed in place."""
        self._context = context
        self._base = base
        self._head = head
        self._ours = ours
        self._base_chunks = SnapshotChunks(context.files, base)
        self._head_chunks = SnapshotChunks(context.files, head)

    def grown(self, solver: ConflictSolver) -> dict[NodeId, Grown]:
        """The arrays to whose end both sides put something, if the solver is to join that."""
        found: dict[NodeId, Grown] = {}
        if not isinstance(solver, AppendSolver):
            return found
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
                found[node_id] = Grown(axis, -(-length // before.chunk_shape[axis]))
        return found

    def has_taken(self, grown: dict[NodeId, Grown]) -> bool:
        """Whether they took over some of what we appended, by a pick of a part of our commits.

        Chunk files tell: nobody writes to one twice.
        """
        for node_id, growth in grown.items():
            edits, node = self._ours.chunks.get(node_id), self._head.nodes.array_by_id(node_id)
            mine = None if edits is None else edits.own()[0]
            theirs = None if node is None or mine is None else self._head_chunks.table(node)
            if mine is None or theirs is None:
                continue
            coords = mine.index.coords()
            rows = theirs.index.find_many(coords)
            both = np.flatnonzero((rows >= 0) & growth.is_new(coords))
            refs = mine.refs.take(both)
            alike = same_refs(refs, theirs.refs.take(rows[both]))
            if (alike & (refs.kinds == ChunkKind.NATIVE)).any():
                return True
        return False

    def drop_what_is_there(self, grown: dict[NodeId, Grown]) -> None:
        """Forget changes of ours that they have already, as after an earlier pick of a part.

        What both appended is none of it, however equal it is: ours goes behind theirs.
        """
        ours, head = self._ours, self._head.nodes
        touched = {*ours.new, *ours.documents, *ours.places, *ours.deleted, *ours.chunks}
        for node_id in touched:
            known = head.by_id(node_id)
            if known is None:
                ours.deleted.pop(node_id, None)
            else:
                self._drop_node(node_id, known, is_grown=node_id in grown)
        for node_id, edits in ours.chunks.items():
            array = head.array_by_id(node_id)
            if array is not None:
                theirs = self._head_chunks.table(array) if array.manifests else None
                _drop_same_chunks(edits, theirs, grown.get(node_id))
        self._tidy()

    def _drop_node(self, node_id: NodeId, known: Node, *, is_grown: bool) -> None:
        ours = self._ours
        document = self._context.files.documents_of(self._head)
        created = ours.new.get(node_id)
        if (
            created is not None
            and created.path == known.path
            and same_document(document(known), created.document)
        ):
            del ours.new[node_id]
        written = None if is_grown else ours.documents.get(node_id)
        if written is not None and same_document(document(known), written):
            del ours.documents[node_id]
        if ours.places.get(node_id) == known.path:
            del ours.places[node_id]

    def without_moved(self, theirs: TransactionLog, grown: dict[NodeId, Grown]) -> TransactionLog:
        """What they changed, without chunks whose bytes are what they were, in what is disputed.

        Chunks of ours that have the bytes of the base, or of theirs, are forgotten, too. Only
        chunks of which no checksum is known are read.
        """
        updated = dict(theirs.updated_chunks)
        for node_id, index in theirs.updated_chunks.items():
            old, new = self._base.nodes.array_by_id(node_id), self._head.nodes.array_by_id(node_id)
            disputed = self._disputed(node_id, index)
            if disputed is None or new is None:
                continue
            before = None if old is None else self._base_chunks.some(old, disputed)
            after = self._head_chunks.some(new, disputed)
            left = _without_unchanged(index, disputed, changed_chunks(before, after, self._context))
            if left is None:
                del updated[node_id]
            else:
                updated[node_id] = left
            if node_id in self._ours.chunks:
                self._forget(node_id, disputed, before, after, grown.get(node_id))
        for node_id in theirs.deleted_arrays & self._ours.chunks.keys():
            self._forget_all_moved(node_id)
        self._tidy()
        return msgspec.structs.replace(theirs, updated_chunks=updated)

    def _disputed(self, node_id: NodeId, index: ChunkIndex) -> ChunkIndex | None:
        """Chunks of theirs that we changed as well, or deleted with the whole array."""
        if node_id in self._ours.deleted:
            return index
        edits = self._ours.chunks.get(node_id)
        touched = None if edits is None else edits.touched(None)
        return None if touched is None else chosen(touched.intersection(index))

    def _forget(
        self,
        node_id: NodeId,
        index: ChunkIndex,
        before: ArrayChunks | None,
        after: ArrayChunks | None,
        growth: Grown | None,
    ) -> None:
        """Forget our edits of some chunks if they say what the base or the others say."""
        edits = self._ours.chunks[node_id]
        coords = index.coords()
        mine = edits.own()[0]
        for other, is_kept in ((before, None), (after, growth)):
            alike = _alike(mine, other, coords, self._context)
            if is_kept is not None:
                alike &= ~is_kept.is_new(coords)
            if gone := chosen(coords[alike]):
                edits.discard(gone)

    def _forget_all_moved(self, node_id: NodeId) -> None:
        """Forget chunks that only moved in an array that they deleted."""
        edits, node = self._ours.chunks[node_id], self._base.nodes.array_by_id(node_id)
        touched = edits.touched(None)
        if node is not None and touched is not None:
            self._forget(node_id, touched, self._base_chunks.some(node, touched), None, None)

    def _tidy(self) -> None:
        ours = self._ours
        ours.chunks = {i: edits for i, edits in ours.chunks.items() if not edits.is_empty}
        ours.rebase(ours.base)


def _without_unchanged(
    index: ChunkIndex, disputed: ChunkIndex, changed: ChunkIndex | None
) -> ChunkIndex | None:
    """Chunks without those disputed ones that have not changed; None if none is left."""
    coords = index.coords()
    is_kept = disputed.find_many(coords) < 0
    if changed is not None:
        is_kept |= changed.find_many(coords) >= 0
    return chosen(coords[is_kept])


def _alike(
    mine: ArrayChunks | None,
    other: ArrayChunks | None,
    coords: npt.NDArray[np.uint64],
    context: Context,
) -> npt.NDArray[np.bool_]:
    """At which coordinates two tables have the same bytes, or both nothing."""
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


def _drop_same_chunks(edits: ChunkEdits, theirs: ArrayChunks | None, growth: Grown | None) -> None:
    """Forget edits that set a chunk to what it is already, or delete what is not there."""
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
    found = np.concatenate(same)
    index = chosen(found if growth is None else found[~growth.is_new(found)])
    if index is not None:
        edits.discard(index)
