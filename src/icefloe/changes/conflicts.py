"""Kinds of conflicts between two writers, and rules that settle them."""

from __future__ import annotations

from enum import Enum

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


class Conflict(Record, frozen=True):
    """One thing that both sides changed."""

    conflict_type: ConflictType
    path: str
    conflicted_chunks: list[list[int]] | None = None

    @property
    def ours_can_win(self) -> bool:
        """Whether our change can be laid over theirs: the node is there, and there once."""
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


class ConflictSolver:
    """Decides what becomes of each conflict. Subclass it to write your own rules."""

    def solve(self, conflict: Conflict) -> VersionSelection:
        """Whether our change is kept, dropped in favour of theirs, or the rebase fails.

        What cannot be done fails too: to keep our change of a node that they deleted, to have two
        nodes at one path, or to drop anything but chunks.
        """
        raise NotImplementedError(f"{type(self).__name__}.solve({conflict})")


class ConflictDetector(ConflictSolver):
    """Reports every conflict and resolves none: only disjoint changes are rebased."""

    def solve(self, conflict: Conflict) -> VersionSelection:  # noqa: ARG002
        """Refuse."""
        return VersionSelection.Fail


class BasicConflictSolver(ConflictSolver):
    """Resolves what has an obvious answer: double writes of chunks, deletes of changed nodes."""

    def __init__(
        self,
        *,
        on_chunk_conflict: VersionSelection = VersionSelection.UseOurs,
        fail_on_delete_of_updated_array: bool = False,
        fail_on_delete_of_updated_group: bool = False,
    ) -> None:
        """Choose whose chunks win, and whether deleting what others changed is an error."""
        self.on_chunk_conflict = on_chunk_conflict
        self.fail_on_delete_of_updated_array = fail_on_delete_of_updated_array
        self.fail_on_delete_of_updated_group = fail_on_delete_of_updated_group

    def solve(self, conflict: Conflict) -> VersionSelection:
        """Apply the choices that were made at construction."""
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
