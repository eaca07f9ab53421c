"""Puts right what can be put right without guessing.

That is what follows from what is still there: a log is the difference of two snapshots. What cannot
be derived is left alone, and the report says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from icefloe.maintenance.findings import Problem, ProblemKind
from icefloe.model.ids import SnapshotId
from icefloe.versioning.history import compared_step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.versioning.context import Context

logger = logging.getLogger(__name__)


def repair_problems(context: Context, problems: Iterable[Problem]) -> list[Problem]:
    """Repair what can be repaired; returns the problems that this was."""
    repaired: list[Problem] = []
    logs = {
        problem.snapshot_id: problem
        for problem in problems
        if problem.repairable and problem.kind is ProblemKind.TRANSACTION_LOG
    }
    for snapshot_id, problem in logs.items():
        _rewrite_log(context, SnapshotId.parse(snapshot_id))
        logger.info("wrote the log of %s anew", snapshot_id)
        repaired.append(problem)
    context.storage.sync()
    return repaired


def _rewrite_log(context: Context, snapshot_id: SnapshotId) -> None:
    files = context.files
    snapshot = files.read_snapshot(snapshot_id)
    assert snapshot.parent_id is not None
    parent = files.read_snapshot(snapshot.parent_id)
    # The only object that is ever written a second time: its old bytes are of no use to anyone.
    files.write_transaction_log(snapshot_id, compared_step(files, parent, snapshot))
