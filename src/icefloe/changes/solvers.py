"""Solvers that merge: branches that grew apart, and appends that follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.changes.conflicts import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    MergedDocument,
    VersionSelection,
    check_solver,
)
from icefloe.changes.documents import ATTRIBUTES, differing_keys, merge_documents
from icefloe.changes.groups import merged_document

if TYPE_CHECKING:
    from icefloe.changes.conflicts import Conflict, ConflictSolver, Resolution, Sides

_HARMLESS_KEYS = {ATTRIBUTES, "dimension_names"}


class MergeSolver(BasicConflictSolver):
    """Merges metadata key by key, and keeps chunks of arrays whose chunks still mean the same.

    Chunks that both sides wrote fail unless you choose a side; so do deletions of nodes that the
    other side changed, unless you allow them.
    """

    def __init__(
        self,
        *,
        on_chunk_conflict: VersionSelection = VersionSelection.Fail,
        fail_on_delete_of_updated_array: bool = True,
        fail_on_delete_of_updated_group: bool = True,
    ) -> None:
        """Choose whose chunks win, and whether deleting a node that others changed is an error."""
        super().__init__(
            on_chunk_conflict=on_chunk_conflict,
            fail_on_delete_of_updated_array=fail_on_delete_of_updated_array,
            fail_on_delete_of_updated_group=fail_on_delete_of_updated_group,
        )

    def resolve(self, conflict: Conflict, sides: Sides) -> Resolution:
        """Compare the documents of both sides where they decide."""
        if conflict.conflict_type is ConflictType.ZarrMetadataDoubleUpdate:
            documents = sides.documents(conflict)
            if documents.base and documents.ours and documents.theirs:
                merged, conflicts = merge_documents(
                    documents.base, documents.ours, documents.theirs
                )
                if not conflicts:
                    return MergedDocument(merged)
            return VersionSelection.Fail
        if conflict.conflict_type is ConflictType.ChunksUpdatedInUpdatedArray:
            documents = sides.documents(conflict)
            # With chunks, it is our metadata that hides those of theirs.
            if conflict.conflicted_chunks is None and documents.base and documents.theirs:
                changed = differing_keys(documents.base, documents.theirs)
                if changed <= _HARMLESS_KEYS:
                    return VersionSelection.UseOurs
            return VersionSelection.Fail
        if conflict.conflict_type is ConflictType.NewNodeConflictsWithExistingNode:
            documents = sides.documents(conflict)
            if documents.ours and documents.theirs:
                merged, conflicts = merged_document(documents.ours, documents.theirs)
                if not conflicts:
                    return MergedDocument(merged)
            return VersionSelection.Fail
        return self.solve(conflict)


class AppendSolver(ConflictDetector):
    """Places concurrent appends along one dimension one after the other.

    Our appended data is placed after the data that others appended meanwhile: in all arrays that
    have the dimension, including coordinates. Both must end at chunk boundaries. Another solver
    resolves all other conflicts.
    """

    def __init__(self, dimension: str, others: ConflictSolver | None = None) -> None:
        """Take the name of the dimension, and the solver for all other conflicts.

        Args:
            dimension: As in the arrays' `dimension_names`, for example `time`.
            others: Resolves other conflicts; ConflictDetector if not given.
        """
        self.dimension = dimension
        self.others = ConflictDetector() if others is None else others
        check_solver(self.others)

    def resolve(self, conflict: Conflict, sides: Sides) -> Resolution:
        """Leave it to the other solver: appends were already placed one after the other."""
        return self.others.resolve(conflict, sides)

    def solve(self, conflict: Conflict) -> VersionSelection:
        """Leave it to the other solver."""
        return self.others.solve(conflict)


def configured_solver(name: str) -> ConflictSolver:
    """The solver that a configuration names by `rebase_with`."""
    if name == "detect":
        return ConflictDetector()
    if name == "merge":
        return MergeSolver()
    choice = VersionSelection.UseOurs if name == "ours" else VersionSelection.UseTheirs
    return BasicConflictSolver(on_chunk_conflict=choice)
