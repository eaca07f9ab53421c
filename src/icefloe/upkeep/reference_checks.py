"""Looks at every state that a branch ever had, and fills gaps between them.

A gap hides what comes after it from whoever finds the newest state by its number. To fill it says
nothing about where the branch is: that is what the newest state says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.upkeep.findings import Problem, ProblemKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from icefloe.formats.port import BranchState, Refs
    from icefloe.model.ids import SnapshotId


def check_branch(refs: Refs, branch: str) -> tuple[SnapshotId | None, list[Problem]]:
    """The newest snapshot of a branch that can be told, and what is wrong with its states."""
    states = list(refs.states(branch))
    good = [state for state in states if state.tip is not None]
    tip = good[0].tip if good else None
    problems = [_problem(branch, state, states[0], good) for state in states if state.tip is None]
    return None if tip is None else tip.snapshot_id, problems


def _problem(
    branch: str, state: BranchState, newest: BranchState, good: list[BranchState]
) -> Problem:
    before = next((other for other in good if other.sequence < state.sequence), None)
    last = (
        "no entry before it can be read"
        if before is None
        else f"the last good entry before it is {_text(before)}"
    )
    fillable = state.is_missing and newest.tip is not None
    if newest.tip is not None:
        last += f"; the branch stands at {_text(newest)}"
    return Problem(
        ProblemKind.REFERENCE,
        f"branch {branch!r}: {state.fault}; {last}; {_outlook(state, newest, before)}",
        key=state.key,
        repairable=fillable,
    )


def _outlook(state: BranchState, newest: BranchState, before: BranchState | None) -> str:
    """What repair would do, or what is left to do by hand."""
    if state.is_missing and newest.tip is not None:
        return (
            f"until number {state.sequence} is there again, storages without ordered listings "
            "take the branch for older than it is; repair repeats the entry before it there, and "
            "the branch stays where it stands"
        )
    if state.sequence < newest.sequence:
        return "repair leaves it alone: what it pointed to cannot be derived, and nobody needs it"
    back = f", or delete it, and the branch is at {_text(before)} again" if before else ""
    return (
        "repair leaves it alone: the commit that it stands for may have been acknowledged; "
        f"restore the object from a copy{back}"
    )


def _text(state: BranchState) -> str:
    assert state.tip is not None
    target = state.tip.snapshot_id
    where = "the branch as deleted" if target is None else f"snapshot {target}"
    return f"number {state.sequence} ({where})"


def fill_gaps(refs: Refs, keys: Collection[str]) -> Iterator[str]:
    """Fill gaps in the sequences of branches; yields the keys that were written."""
    refs = refs.view()
    for branch in sorted(refs.branches()):
        before: SnapshotId | None = None
        states = list(refs.states(branch))[::-1]
        if not states or states[-1].tip is None:
            continue  # nobody knows where the branch stands
        first = next(state.tip for state in states if state.tip is not None)
        assert first is not None
        before = first.snapshot_id
        for state in states:
            if state.tip is not None:
                before = state.tip.snapshot_id
            elif state.is_missing and state.key in keys and refs.fill_gap(state, before):
                yield state.key
