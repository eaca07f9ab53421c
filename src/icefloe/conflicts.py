"""Conflicts and who solves them: the names of the official package's module."""

from __future__ import annotations

from icefloe.changes.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    VersionSelection,
)
from icefloe.changes.solvers import (
    AppendSolver,
    MergeSolver,
)

__all__ = [
    "AppendSolver",
    "BasicConflictSolver",
    "Conflict",
    "ConflictDetector",
    "ConflictSolver",
    "ConflictType",
    "MergeSolver",
    "VersionSelection",
]
