"""Rebases changes onto what others committed meanwhile; a solver decides conflicts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from icefloe.changes.appends import NotAppendable, move_behind
from icefloe.changes.change_set import with_document
from icefloe.changes.conflicts import (
    ConflictType,
    Documents,
    MergedDocument,
    VersionSelection,
)
from icefloe.changes.detection import detect, give_up
from icefloe.changes.groups import (
    lost_groups,
    make_groups,
    merged_document,
    share,
    share_new_groups,
    spare_groups,
)
from icefloe.changes.solvers import AppendSolver, MergeSolver
from icefloe.engine.commit.write import touched_chunks, uncommitted_diff
from icefloe.engine.info import Diff
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import RebaseFailedError
from icefloe.model import paths
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.conflicts import Conflict, ConflictSolver, Resolution
    from icefloe.changes.detection import DetectedConflict
    from icefloe.engine.context import Context
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import Node, NodeTable
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog

    ShowTree = Callable[[WorkingTree], Any]
    """Makes what solvers see of a read-only tree; a session, for those that users write."""

_SETTLED_BY_APPENDING = {
    ConflictType.ZarrMetadataDoubleUpdate,
    ConflictType.ChunksUpdatedInUpdatedArray,
}

_TOLD_BY_APPENDING = {*_SETTLED_BY_APPENDING, ConflictType.ChunkDoubleUpdate}


class MergeInputs(NamedTuple):
    """The snapshots of a rebase: the one that our changes are based on, and the new base."""

    context: Context
    base: Snapshot
    head: Snapshot
    show: ShowTree


def rebase_changes(
    inputs: MergeInputs,
    ours: ChangeSet,
    theirs: TransactionLog,
    base_chunks: SnapshotChunks,
    solver: ConflictSolver,
    *,
    shown: ChangeSet | None = None,
    advice: str = "",
) -> None:
    """Turn our changes over the base into changes over their head, in place.

    Solvers see `shown` as our changes, if `ours` lacks those that they already have. `advice` is
    appended to the error.

    Raises RebaseFailedError if conflicts remain; then `ours` must not be used any more.
    """
    head = inputs.head.nodes
    before = ours.copy() if shown is None else shown
    document_of = inputs.context.files.documents_of(inputs.head)
    share_new_groups(ours, theirs, head, document_of)
    _give_up_derived(inputs, ours, theirs, base_chunks)
    spare_groups(ours, head)
    touched = touched_chunks(ours, base_chunks)
    appended: set[NodeId] = set()
    if isinstance(solver, AppendSolver):
        try:
            appended = move_behind(ours, head, theirs.new_arrays, solver.dimension, document_of)
        except NotAppendable as reason:
            advice = f"\nthe appends could not be put behind each other: {reason}"
        touched = touched_chunks(ours, base_chunks) if appended else touched
    conflicts = [
        _with_path(item, ours, head)
        for item in _detect(inputs, ours, theirs, touched)
        if not _is_settled(item, appended)
    ]
    if conflicts:
        sides = _Sides(inputs, before, theirs)
        _resolve(ours, conflicts, solver, sides, advice or _advice(conflicts, sides, solver))
    lost = lost_groups(ours, head)
    ours.rebase(head)
    make_groups(ours, lost)


def _detect(
    inputs: MergeInputs,
    ours: ChangeSet,
    theirs: TransactionLog,
    touched: Mapping[NodeId, ChunkIndex],
) -> list[DetectedConflict]:
    their_chunks = SnapshotChunks(inputs.context.files, inputs.head).some
    return detect(ours, theirs, inputs.head.nodes, touched, their_chunks)


def _is_settled(item: DetectedConflict, appended: set[NodeId]) -> bool:
    """Whether to put our appends behind theirs was all that there was to do."""
    return (
        item.node_id in appended
        and item.conflict.conflict_type in _SETTLED_BY_APPENDING
        and item.conflict.conflicted_chunks is None
    )


def _with_path(item: DetectedConflict, ours: ChangeSet, head: NodeTable) -> DetectedConflict:
    """A conflict with the path of its node, even if both sides created that node.

    As they have it already, it is not among our changes any more.
    """
    node = None if item.node_id is None else head.by_id(item.node_id)
    if node is None or ours.base.by_id(node.id) is not None or node.id in ours.new:
        return item
    conflict = msgspec.structs.replace(item.conflict, path=node.path)
    return msgspec.structs.replace(item, conflict=conflict)


def _give_up_derived(
    inputs: MergeInputs, ours: ChangeSet, theirs: TransactionLog, base_chunks: SnapshotChunks
) -> None:
    """Take their version of derived data that both sides changed, so that no solver is asked."""
    if ours.get(paths.DERIVED_GROUP) is None:
        return
    found = _detect(inputs, ours, theirs, touched_chunks(ours, base_chunks))
    for path in {item.conflict.path for item in found}:
        if paths.is_within(path, paths.DERIVED_GROUP):
            ours.discard(path)


class _Sides:
    """The three versions of a rebase, as solvers see them; each is opened when it is first used."""

    def __init__(self, inputs: MergeInputs, ours: ChangeSet, theirs: TransactionLog) -> None:
        self._inputs = inputs
        self.changes = ours
        self._theirs = theirs
        self.head = inputs.head

    @cached_property
    def base(self) -> Any:
        return self._inputs.show(WorkingTree(self._inputs.context, self._inputs.base))

    @cached_property
    def _our_tree(self) -> WorkingTree:
        return WorkingTree(self._inputs.context, self._inputs.base, self.changes.copy())

    @cached_property
    def ours(self) -> Any:
        return self._inputs.show(self._our_tree)

    @cached_property
    def theirs(self) -> Any:
        return self._inputs.show(WorkingTree(self._inputs.context, self.head))

    @property
    def our_changes(self) -> Diff:
        return uncommitted_diff(self._our_tree)

    @property
    def their_changes(self) -> Diff:
        return Diff(self._theirs, self._inputs.base.nodes, self.head.nodes)

    def created(self, conflict: Conflict) -> tuple[Node | None, Node | None]:
        """What we and they put at the path of a conflict."""
        return self.changes.get(conflict.path), self.head.nodes.get(conflict.path)

    def documents(self, conflict: Conflict) -> Documents:
        if conflict.conflict_type is ConflictType.NewNodeConflictsWithExistingNode:
            mine, other = self.created(conflict)
            base = self._inputs.base
            return Documents(None, self._document(mine, base), self._document(other, self.head))
        node = self._inputs.base.nodes.get(conflict.path) or self.changes.get(conflict.path)
        if node is None:
            return Documents(None, None, None)
        base = self._inputs.base
        return Documents(
            self._document(base.nodes.by_id(node.id), base),
            self._document(self.changes.by_id(node.id), base),
            self._document(self.head.nodes.by_id(node.id), self.head),
        )

    def _document(self, node: Node | None, snapshot: Snapshot) -> bytes | None:
        return None if node is None else self._inputs.context.files.document(node, snapshot)


def _resolve(
    ours: ChangeSet,
    conflicts: Sequence[DetectedConflict],
    solver: ConflictSolver,
    sides: _Sides,
    advice: str,
) -> None:
    """Let the solver decide each conflict; raises RebaseFailedError if it leaves one.

    As in the official package, the error then has all conflicts; its text, those that are left.
    """
    unsolved = [
        item.conflict
        for item in conflicts
        if not _apply(ours, item, solver.resolve(item.conflict, sides), sides)
    ]
    if unsolved:
        listing = "\n".join(f"  {conflict}" for conflict in unsolved)
        raise RebaseFailedError(
            f"the rebase on {sides.head.id} failed, {len(unsolved)} of {len(conflicts)} conflicts "
            f"are unresolved:\n{listing}{advice}",
            str(sides.head.id),
            [item.conflict for item in conflicts],
        )


def _apply(ours: ChangeSet, item: DetectedConflict, choice: Resolution, sides: _Sides) -> bool:
    """Do what a solver chose; says whether that is possible."""
    kind = item.conflict.conflict_type
    if isinstance(choice, MergedDocument):
        if kind is ConflictType.NewNodeConflictsWithExistingNode:
            return _share_group(ours, item, choice.document, sides)
        if kind is not ConflictType.ZarrMetadataDoubleUpdate or item.node_id is None:
            return False
        node = sides.head.nodes.by_id(item.node_id)
        if node is None:
            return False
        with_document(node, choice.document)  # raises for a document of the other kind of node
        ours.documents[item.node_id] = choice.document
        return True
    if choice is VersionSelection.UseTheirs:
        return give_up(ours, item, sides.head.nodes)
    return choice is VersionSelection.UseOurs and item.conflict.ours_can_win


def _share_group(ours: ChangeSet, item: DetectedConflict, document: bytes, sides: _Sides) -> bool:
    """Give a group that both sides created one document; False unless both are groups."""
    mine = None if item.node_id is None else ours.new.get(item.node_id)
    other = sides.head.nodes.get(item.conflict.path)
    if mine is None or other is None or mine.is_array or other.is_array:
        return False
    share(ours, mine.id, other, document, is_theirs=False)
    return True


def _advice(found: Sequence[DetectedConflict], sides: _Sides, solver: ConflictSolver) -> str:
    """What to do if both sides did the same: made a group, or arrays longer."""
    return _group_advice(found, sides, solver) + _append_advice(found, sides)


def _group_advice(found: Sequence[DetectedConflict], sides: _Sides, solver: ConflictSolver) -> str:
    for item in found:
        if item.conflict.conflict_type is not ConflictType.NewNodeConflictsWithExistingNode:
            continue
        mine, other = sides.created(item.conflict)
        if mine is None or other is None or mine.is_array or other.is_array:
            continue
        documents = sides.documents(item.conflict)
        if documents.ours is None or documents.theirs is None:
            continue
        _, contradictions = merged_document(documents.ours, documents.theirs)
        if contradictions:
            shown = "; ".join(map(str, contradictions[:3]))
            return f"\nboth sides created the group {item.conflict.path} with {shown}"
        if isinstance(solver, MergeSolver):
            continue
        return (
            f"\nboth sides created the group {item.conflict.path} with different attributes; "
            "rebase with MergeSolver() to keep those of both"
        )
    return ""


def _append_advice(found: Sequence[DetectedConflict], sides: _Sides) -> str:
    head, ours = sides.head.nodes, sides.changes
    for item in found:
        if item.conflict.conflict_type not in _TOLD_BY_APPENDING or item.node_id is None:
            continue
        nodes = (side.array_by_id(item.node_id) for side in (ours.base, ours, head))
        arrays = [None if node is None else node.array for node in nodes]
        before, mine, other = arrays
        if before is None or mine is None or other is None:
            continue
        for axis, (old, new, theirs) in enumerate(
            zip(before.shape, mine.shape, other.shape, strict=True)
        ):
            if new > old and theirs > old:
                names = before.dimension_names
                name = None if names is None else names[axis]
                if name is None:
                    return (
                        f"\nboth sides appended to dimension {axis} of {item.conflict.path}; give "
                        "it a dimension name to let icefloe put one behind the other"
                    )
                return (
                    f"\nboth sides appended along {name!r}; rebase with "
                    f"AppendSolver({name!r}) to put ours behind theirs"
                )
    return ""
