"""Solvers decide about one conflict at a time."""

from __future__ import annotations

import pytest

from icefloe.changes.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    VersionSelection,
)

RESOLVED_BY_DEFAULT = {
    ConflictType.ChunkDoubleUpdate,
    ConflictType.DeleteOfUpdatedArray,
    ConflictType.DeleteOfUpdatedGroup,
}


@pytest.mark.parametrize("kind", ConflictType)
def test_the_detector_resolves_nothing_and_the_basic_solver_the_obvious(kind: ConflictType) -> None:
    conflict = Conflict(kind, "/a")
    assert ConflictDetector().solve(conflict) is VersionSelection.Fail
    expected = VersionSelection.UseOurs if kind in RESOLVED_BY_DEFAULT else VersionSelection.Fail
    assert BasicConflictSolver().solve(conflict) is expected
    strict = BasicConflictSolver(
        on_chunk_conflict=VersionSelection.Fail,
        fail_on_delete_of_updated_array=True,
        fail_on_delete_of_updated_group=True,
    )
    assert strict.solve(conflict) is VersionSelection.Fail


@pytest.mark.parametrize("choice", VersionSelection)
def test_whose_chunks_win_can_be_chosen(choice: VersionSelection) -> None:
    solver = BasicConflictSolver(on_chunk_conflict=choice)
    assert solver.solve(Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[1]])) is choice


def test_a_solver_must_decide() -> None:
    with pytest.raises(NotImplementedError, match=r"ConflictSolver\.solve"):
        ConflictSolver().solve(Conflict(ConflictType.ChunkDoubleUpdate, "/a"))


def test_a_conflict_tells_where_and_what_but_not_a_million_chunks() -> None:
    conflict = Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[k] for k in range(1000)])
    assert str(conflict) == f"/a: ChunkDoubleUpdate, chunks {[[k] for k in range(10)]}…"
    assert str(Conflict(ConflictType.DeleteOfUpdatedGroup, "/g")) == "/g: DeleteOfUpdatedGroup"
