"""Repairs what can be derived from what is still there, without guessing.

A log is the difference of two snapshots, and a gap among the entries of a branch says nothing about
its newest one. Everything else is left alone, and the report says so.
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

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from icefloe.engine.context import Context
    from icefloe.formats.port import Refs

logger = logging.getLogger(__name__)


def repair_problems(context: Context, problems: Iterable[Problem]) -> list[Problem]:
    """Repair what can be repaired; returns the problems that were."""
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
    filled = list(_filled_gaps(refs, gaps.keys()))
    for key in filled:
        logger.info("repeated the entry before it as %s", key)
    return [gaps[key] for key in filled]


def _rewrite_log(context: Context, snapshot_id: SnapshotId) -> bool:
    """Write a log by comparing snapshots; False if its snapshot was collected in the meantime."""
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
    # The only object that is ever written a second time: its old bytes are of no use.
    files.write_transaction_log(snapshot, msgspec.structs.replace(log, repaired_for=snapshot_id))
    return True


def _filled_gaps(refs: Refs, keys: Collection[str]) -> Iterator[str]:
    """Fill gaps in the sequences of branches; yields the keys that were written.

    A gap hides later states from clients that find the newest one by its number. Filling it says
    nothing about where the branch is: the newest state does.
    """
    refs = refs.view()
    for branch in sorted(refs.branches()):
        states = list(refs.states(branch))[::-1]
        if not states or states[-1].tip is None:
            continue  # where the branch points is unknown
        before = next(state.tip for state in states if state.tip).snapshot_id
        for state in states:
            if state.tip is not None:
                before = state.tip.snapshot_id
            elif state.is_missing and state.key in keys and refs.fill_gap(state, before):
                yield state.key
