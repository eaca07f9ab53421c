"""The lease that a writable session takes when it has been open for a while.

A young session has none: collection spares young objects anyway. From AUTOMATIC_AFTER_SECONDS on,
all that the session and its forks wrote is under a lease, and before a commit the session makes
sure that this was so all the time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from icefloe.engine.retention import leases
from icefloe.engine.retention.background import keep_calling
from icefloe.engine.retention.leases import Lease

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

AUTOMATIC_AFTER_SECONDS = 300.0
"""Age from which a session has a lease."""
_DELAY_SECONDS = 30.0
"""By how much the thread that takes it may be late, on a busy machine."""
SAFE_CUTOFF_SECONDS = AUTOMATIC_AFTER_SECONDS + _DELAY_SECONDS
"""Collection with a cutoff less long ago warns."""


class _WatchedLease(Lease):
    """A lease whose holder may find out by itself that all is there."""

    def note_lapse(self) -> None:
        """What the lease protects was not protected for a while, before it was taken."""
        self._lapsed = True

    def forget_lapses(self) -> None:
        """All that the lease protects was found to be there, since it was last renewed."""
        self._lapsed = False


class SessionLease:
    """Takes a lease for a session when it is time, and renews it until the session ends."""

    def __init__(self, storage: Storage, base: SnapshotId) -> None:
        """Watch a session that starts now on a snapshot."""
        self._storage = storage
        self._base = base
        self._started = leases.seconds_awake_or_asleep()
        self._lock = threading.Lock()
        self._lease: _WatchedLease | None = None
        self._ended = False
        keep_calling(self._keep, AUTOMATIC_AFTER_SECONDS)

    def _keep(self) -> bool:
        """Take or renew the lease; called by a thread."""
        with self._lock:
            if self._ended:
                return False
            if self._lease is None:
                self._take()
            else:
                self._lease.renew()
            return True

    def _take(self) -> None:
        lease = _WatchedLease(self._storage, snapshots=[self._base], since=self._started)
        lease.take()
        if leases.seconds_awake_or_asleep() - self._started > SAFE_CUTOFF_SECONDS:
            # The thread had no chance: the machine slept, or was too busy.
            lease.note_lapse()
        self._lease = lease

    def confirm(self) -> bool:
        """Whether all that the session wrote was protected until now, and is from now on.

        If not, it may be gone, and whoever needs it must look.
        """
        with self._lock:
            age = leases.seconds_awake_or_asleep() - self._started
            if self._lease is None and age < AUTOMATIC_AFTER_SECONDS:
                return True
            if self._lease is None:
                self._take()
            assert self._lease is not None
            return self._lease.renew()

    def looked(self) -> None:
        """All that the session wrote was found to be there, under the lease that holds now."""
        with self._lock:
            if self._lease is not None:
                self._lease.forget_lapses()

    def end(self) -> None:
        """Give up the lease: the session is over."""
        with self._lock:
            self._ended = True
            if self._lease is not None:
                self._lease.release()
