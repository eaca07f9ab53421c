"""Puts right what can be put right without guessing.

That is what follows from what is still there: a log is the difference of two snapshots, and a gap
among the entries of a branch says nothing about its newest one. What cannot be derived is left
alone, and the report says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from icefloe.engine.history.walk import compared_step
from icefloe.errors import IcefloeError
from icefloe.model.ids import SnapshotId
from icefloe.storage.presence import is_there
from icefloe.upkeep.findings import Problem, ProblemKind
from icefloe.upkeep.reference_checks import fill_gaps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.engine.context import Context

logger = logging.getLogger(__name__)


def repair_problems(context: Context, problems: Iterable[Problem]) -> list[Problem]:
    """Repair what can be repaired; returns the problems that this was."""
    problems = list(problems)
    repaired = _fill_gaps(context, problems)
    logs = {
        problem.snapshot_id: problem
        for problem in problems
        if problem.repairable and problem.kind is ProblemKind.TRANSACTION_LOG
    }
    for snapshot_id, problem in logs.items():
        if _rewrite_log(context, SnapshotId.from_text(snapshot_id)):
            logger.info("wrote the log of %s again", snapshot_id)
            repaired.append(problem)
    context.storage.sync()
    return repaired


def _fill_gaps(context: Context, problems: list[Problem]) -> list[Problem]:
    gaps = {
        problem.key: problem
        for problem in problems
        if problem.repairable and problem.kind is ProblemKind.REFERENCE
    }
    if not gaps:
        return []
    refs = context.format.make_refs(context.storage)
    filled = list(fill_gaps(refs, gaps.keys()))
    for key in filled:
        logger.info("repeated the entry before it as %s", key)
    return [gaps[key] for key in filled]


def _rewrite_log(context: Context, snapshot_id: SnapshotId) -> bool:
    """Write a log from what differs; False if its snapshot has been collected meanwhile."""
    files = context.files
    try:
        snapshot = files.read_snapshot(snapshot_id)
        assert snapshot.parent_id is not None
        parent = files.read_snapshot(snapshot.parent_id)
        log = compared_step(files, parent, snapshot)
    except IcefloeError:
        if is_there(context.storage, context.format.layout.snapshot(snapshot_id)):
            raise
        return False
    # The only object that is ever written a second time: its old bytes are of no use to anyone.
    files.write_transaction_log(snapshot_id, msgspec.structs.replace(log, repaired_for=snapshot_id))
    return True
