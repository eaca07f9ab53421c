"""Kinds of conflicts between two writers, and rules that settle them."""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from icefloe.errors import InvalidTypeError
from icefloe.model.record import Record


class ConflictType(Enum):
    """What happened on both sides. The numbers are part of the public API."""

    NewNodeConflictsWithExistingNode = 1
    NewNodeInInvalidGroup = 2
    ZarrMetadataDoubleUpdate = 3
    ZarrMetadataUpdateOfDeletedArray = 4
    ZarrMetadataUpdateOfDeletedGroup = 5
    ChunkDoubleUpdate = 6
    ChunksUpdatedInDeletedArray = 7
    ChunksUpdatedInUpdatedArray = 8
    DeleteOfUpdatedArray = 9
    DeleteOfUpdatedGroup = 10
    MoveOfChangedNode = 11
    MoveOperationCannotBeRebased = MoveOfChangedNode  # the official name since 2.0


class Conflict(Record, frozen=True):
    """A node, or chunks of an array, that both sides changed."""

    conflict_type: ConflictType
    path: str
    conflicted_chunks: list[list[int]] | None = None

    @property
    def ours_can_win(self) -> bool:
        """Whether our change can be applied on top of theirs: the node exists, once."""
        return self.conflict_type in _OURS_CAN_WIN

    def __str__(self) -> str:
        chunks = self.conflicted_chunks
        where = "" if chunks is None else f", chunks {chunks[:10]}{'…' if len(chunks) > 10 else ''}"
        return f"{self.path}: {self.conflict_type.name}{where}"


_OURS_CAN_WIN = {
    ConflictType.ZarrMetadataDoubleUpdate,
    ConflictType.ChunkDoubleUpdate,
    ConflictType.ChunksUpdatedInUpdatedArray,
    ConflictType.DeleteOfUpdatedArray,
    ConflictType.DeleteOfUpdatedGroup,
}


class VersionSelection(Enum):
    """Whose version of a chunk wins."""

    Fail = 0
    UseOurs = 1
    UseTheirs = 2


class Documents(Record, frozen=True):
    """A node's zarr.json in the three versions of a merge; None where it does not exist."""

    base: bytes | None
    ours: bytes | None
    theirs: bytes | None


class MergedDocument(Record, frozen=True):
    """A solver's answer if both changed metadata or created a group: the merged document."""

    document: bytes


class Sides(Protocol):
    """What a solver can inspect: the three versions, and the changes of both sides.

    `base`, `ours` and `theirs` are read-only sessions, so values are read as always, by
    `zarr.open_group(sides.theirs.store, mode="r")` or `sides.ours.read_region(…)`.
    """

    @property
    def base(self) -> Any:
        """The snapshot that both sides started from."""

    @property
    def ours(self) -> Any:
        """That snapshot with the changes that are being rebased."""

    @property
    def theirs(self) -> Any:
        """The snapshot that others committed meanwhile."""

    @property
    def our_changes(self) -> Any:
        """A Diff of base and ours."""

    @property
    def their_changes(self) -> Any:
        """A Diff of base and theirs."""

    def documents(self, conflict: Conflict) -> Documents:
        """The metadata of the node of a conflict in all versions, wherever it was moved."""


Resolution = VersionSelection | MergedDocument


class ConflictSolver:
    """Resolves conflicts. Subclass it to write your own rules.

    Define `solve` if the kind and path of a conflict are enough, or `resolve` to inspect the
    metadata and values of both sides.
    """

    def solve(self, conflict: Conflict) -> VersionSelection:
        """Whether our change is kept, dropped in favour of theirs, or the rebase fails.

        The impossible also fails: keeping our change of a node that they deleted, having two nodes
        at one path, or dropping a node that we created or moved. Dropping our deletion of a group
        also keeps its contents.
        """
        raise NotImplementedError(f"{type(self).__name__}.solve({conflict})")

    def resolve(self, conflict: Conflict, sides: Sides) -> Resolution:  # noqa: ARG002
        """Like `solve`, with access to both sides; metadata and groups of both may be merged."""
        return self.solve(conflict)


def check_solver(solver: object) -> None:
    """Raise InvalidTypeError immediately, not at the first conflict, unless this is a solver."""
    if isinstance(solver, ConflictSolver):
        return
    description = repr(solver)
    if isinstance(solver, type) and issubclass(solver, ConflictSolver):
        description = f"the class itself: {solver.__name__} instead of {solver.__name__}()"
    raise InvalidTypeError(
        "a solver is a ConflictSolver, such as BasicConflictSolver(), MergeSolver() or one of a "
        f"class derived from ConflictSolver; found {description}"
    )


class ConflictDetector(ConflictSolver):
    """Reports every conflict and resolves none: only disjoint changes are rebased."""

    def solve(self, conflict: Conflict) -> VersionSelection:  # noqa: ARG002
        """Refuse."""
        return VersionSelection.Fail


class BasicConflictSolver(ConflictSolver):
    """Resolves conflicts by fixed rules: double writes of chunks, deletions of changed nodes."""

    def __init__(
        self,
        *,
        on_chunk_conflict: VersionSelection = VersionSelection.UseOurs,
        fail_on_delete_of_updated_array: bool = False,
        fail_on_delete_of_updated_group: bool = False,
    ) -> None:
        """Choose whose chunks win, and whether deleting a node that others changed is an error."""
        if not isinstance(on_chunk_conflict, VersionSelection):
            raise InvalidTypeError(
                "on_chunk_conflict is VersionSelection.UseOurs, UseTheirs or Fail, found "
                f"{on_chunk_conflict!r}"
            )
        self.on_chunk_conflict = on_chunk_conflict
        self.fail_on_delete_of_updated_array = fail_on_delete_of_updated_array
        self.fail_on_delete_of_updated_group = fail_on_delete_of_updated_group

    def solve(self, conflict: Conflict) -> VersionSelection:
        """Apply the rules chosen at construction."""
        match conflict.conflict_type:
            case ConflictType.ChunkDoubleUpdate:
                return self.on_chunk_conflict
            case ConflictType.DeleteOfUpdatedArray:
                refuse = self.fail_on_delete_of_updated_array
            case ConflictType.DeleteOfUpdatedGroup:
                refuse = self.fail_on_delete_of_updated_group
            case _:
                refuse = True
        return VersionSelection.Fail if refuse else VersionSelection.UseOurs
