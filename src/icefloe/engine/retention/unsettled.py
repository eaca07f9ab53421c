"""Commits of a session whose outcome is unknown: did one of them succeed after all?

An attempt is bound to the tip that it was made for. Once the branch has another tip whose history
does not contain the attempt, it can no longer succeed, and committing again is safe.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from icefloe.errors import ConflictError, SnapshotNotFoundError
from icefloe.formats.port import LiveTip

if TYPE_CHECKING:
    from icefloe.engine.history.walk import History
    from icefloe.formats.port import BranchTip
    from icefloe.model.ids import SnapshotId


class Unsettled:
    """Snapshots that a session tried to publish on top of, or in place of, its base."""

    def __init__(self) -> None:
        """Start without attempts."""
        self._attempts: set[SnapshotId] = set()

    def __bool__(self) -> bool:
        return bool(self._attempts)

    def add(self, snapshot_id: SnapshotId) -> None:
        """Record that a snapshot may be published from now on."""
        self._attempts.add(snapshot_id)

    def settle(self, snapshot_id: SnapshotId) -> None:
        """Record that a snapshot was not published, and cannot be any more."""
        self._attempts.discard(snapshot_id)

    def forget(self) -> None:
        """Forget all attempts."""
        self._attempts.clear()

    def refuse_landed(self, history: History, base: SnapshotId, tip: BranchTip | None) -> None:
        """Raise ConflictError if an attempt is part of the branch, or if nobody can tell.

        Args:
            history: The history of the repository.
            base: The snapshot that the session is based on. No attempt has landed if the history
                of the tip reaches it without passing one.
            tip: The newest state of the branch.
        """
        if not self._attempts or not isinstance(tip, LiveTip) or tip.snapshot_id == base:
            return
        with contextlib.suppress(SnapshotNotFoundError):  # collected after it had expired
            for stub in history.recorded_stubs(tip.snapshot_id):
                if stub.id == base:
                    return
                if stub.id in self._attempts:
                    raise ConflictError(
                        "an earlier commit of this session, whose outcome was unknown, has landed: "
                        f"snapshot {stub.id} of branch {tip.branch!r} has its changes, which are "
                        "not applied twice; start a new session, or discard_changes() and rebase",
                        str(base),
                        str(tip.snapshot_id),
                    )
        raise ConflictError(
            f"the history of branch {tip.branch!r} no longer tells whether an earlier commit of "
            "this session, whose outcome is unknown, was part of it; look at the branch, then "
            "start a new session",
            str(base),
            str(tip.snapshot_id),
        )
