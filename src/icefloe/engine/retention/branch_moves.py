"""Retries of moves of a branch that garbage collections or other writers also move.

Before it deletes anything, a garbage collection publishes the tip of every branch again (G7 in
`collection.py`), so that a move in progress fails instead of naming objects that are about to be
deleted. Such a move may be tried again from the new tip, as long as it writes or pins everything
again: what it wrote before may have been deleted.
"""

from __future__ import annotations

import contextlib
import random
import time
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from icefloe.errors import ConflictError, RebaseFailedError
from icefloe.formats.port import LiveTip

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.config.settings import Settings
    from icefloe.formats.port import Refs

_Result = TypeVar("_Result")

_MAX_MOVES = 10_000
"""A branch that moved more often since was moved by others, too."""


def retry_after_collection(
    refs: Refs,
    tip: LiveTip,
    move: Callable[[LiveTip], _Result],
    before_retry: Callable[[LiveTip], None] = lambda _: None,
) -> _Result:
    """Call `move` to advance a branch; again if only garbage collections moved the branch.

    Args:
        refs: The branches.
        tip: The state of the branch to start from.
        move: Advances the branch from the state that it gets. Whatever it writes or pins for that,
            it must write or pin on each call.
        before_retry: Called with the new state of the branch before each retry, to make sure that
            what `move` does not write again is still there.

    Raises:
        ConflictError: If the branch has another snapshot, or had one in between.
    """
    while True:
        try:
            return move(tip)
        except ConflictError as error:
            if error.actual_parent not in {None, str(tip.snapshot_id)}:
                raise
            republished = _republished(refs, tip)
            if republished is None:
                raise
            before_retry(republished)
            tip = republished


def _republished(refs: Refs, tip: LiveTip) -> LiveTip | None:
    """The newest state of a branch if all states since `tip` have its snapshot, else None."""
    newest = refs.tip(tip.branch)
    if not isinstance(newest, LiveTip) or newest.sequence <= tip.sequence:
        return None
    moves = newest.sequence - tip.sequence
    if newest.snapshot_id != tip.snapshot_id or (refs.numbers_moves and moves > _MAX_MOVES):
        return None
    states = refs.entries(newest, tip.sequence + 1)
    is_complete = len(states) == moves or not refs.numbers_moves
    is_same = is_complete and all(
        isinstance(state, LiveTip) and state.snapshot_id == tip.snapshot_id for state in states
    )
    return newest if is_same else None


def undo_creation(refs: Refs, tip: LiveTip) -> None:
    """Delete a branch that was just created, unless somebody has moved it since."""
    with contextlib.suppress(ConflictError):
        retry_after_collection(refs, tip, lambda state: refs.advance(state, None))


def retry_on_conflict(
    settings: Settings,
    work: Callable[[], _Result],
    *,
    tries: int | None = None,
    before_retry: Callable[[], None] = lambda: None,
) -> _Result:
    """Call `work` until no other writer gets in its way, with growing pauses in between.

    Args:
        settings: How long to pause, and how often to retry unless `tries` says so.
        work: Reads the tip of a branch, builds on it and advances the branch.
        tries: How often to retry; the last ConflictError is raised after that.
        before_retry: Called after each pause.
    """
    limit = settings.publish_max_tries if tries is None else tries
    for attempt in count():
        try:
            return work()
        except RebaseFailedError:
            raise
        except ConflictError:
            if attempt >= limit:
                raise
        back_off(settings, attempt)
        before_retry()
    raise AssertionError  # count() does not end


def back_off(settings: Settings, attempt: int) -> None:
    """Sleep for a random time, which grows with each attempt, so that writers fall out of step."""
    longest = settings.publish_initial_backoff_ms * 2 ** min(attempt, 30)
    pause = min(longest, settings.publish_max_backoff_ms)
    time.sleep(random.uniform(0, pause) / 1000)
