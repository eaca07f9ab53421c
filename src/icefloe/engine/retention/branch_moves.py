"""Moves branches although a garbage collection may come between, which moves them, too.

Before it deletes, a collection adds an entry for the same snapshot to every branch, so that whoever
is about to move one notices it. They may go on from there, if they make or look for anew what they
made or found before: it may be gone.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from icefloe.errors import ConflictError
from icefloe.formats.port import LiveTip

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.formats.port import Refs

_Result = TypeVar("_Result")


def moved_from(refs: Refs, tip: LiveTip, move: Callable[[LiveTip], _Result]) -> _Result:
    """Let `move` advance a branch from where it stands, once more if it still stands there.

    What `move` writes, or pins, it must write or pin each time: what it did before may have been
    collected. Raises ConflictError if the branch has gone on to another snapshot.
    """
    while True:
        try:
            return move(tip)
        except ConflictError:
            newest = refs.tip(tip.branch)
            if not isinstance(newest, LiveTip) or newest.sequence <= tip.sequence:
                raise
            if newest.snapshot_id != tip.snapshot_id:
                raise
            tip = newest


def take_back(refs: Refs, tip: LiveTip) -> None:
    """Delete a branch that was just created, unless somebody else has done more with it."""
    with contextlib.suppress(ConflictError):
        moved_from(refs, tip, lambda place: refs.advance(place, None))
