"""The lease that a writable session takes automatically after it has been open for a while.

A young session needs none, because garbage collection retains young objects anyway. From
AUTOMATIC_AFTER_SECONDS on, a lease protects everything that the session and its forks wrote, and
before a commit the session makes sure that the lease never lapsed.
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
"""Age at which a session takes a lease."""
_DELAY_SECONDS = 30.0
"""How late the background thread may take it, on a busy machine."""
SAFE_CUTOFF_SECONDS = AUTOMATIC_AFTER_SECONDS + _DELAY_SECONDS
"""Garbage collection warns about a cutoff that is more recent than this."""


class _WatchedLease(Lease):
    """A lease whose holder can check for itself that nothing was lost in a lapse."""

    def note_lapse(self) -> None:
        """Record that there was no protection for a while before the lease was taken."""
        self._lapsed = True

    def forget_lapses(self) -> None:
        """Record that everything it protects was found to be there after its last renewal."""
        self._lapsed = False


class SessionLease:
    """Takes a lease for a session at the right age, and renews it until the session ends."""

    def __init__(self, storage: Storage, base: SnapshotId) -> None:
        """Start the clock for a session that begins now, based on a snapshot."""
        self._storage = storage
        self._base = base
        self._started = leases.seconds_awake_or_asleep()
        self._lock = threading.Lock()
        self._lease: _WatchedLease | None = None
        self._ended = False
        keep_calling(self._keep, AUTOMATIC_AFTER_SECONDS)

    def _keep(self) -> bool:
        """Take or renew the lease; called by the background thread."""
        with self._lock:
            if self._ended:
                return False
            if self._lease is None:
                self._take()
            else:
                self._lease.renew()
            return True

    def _take(self) -> _WatchedLease:
        lease = _WatchedLease(self._storage, snapshots=[self._base], since=self._started)
        lease.take()
        if leases.seconds_awake_or_asleep() - self._started > SAFE_CUTOFF_SECONDS:
            # The background thread was late: the machine slept, or was too busy.
            lease.note_lapse()
        self._lease = lease
        return lease

    def confirm(self) -> bool:
        """Whether everything that the session wrote has been protected so far, and is from now on.

        If not, it may be gone: check that it is there, then call `note_all_present`.
        """
        with self._lock:
            age = leases.seconds_awake_or_asleep() - self._started
            if self._lease is None and age < AUTOMATIC_AFTER_SECONDS:
                return True
            return (self._lease or self._take()).renew()

    def note_all_present(self) -> None:
        """Record that everything the session wrote was found, under the lease that holds now."""
        with self._lock:
            if self._lease is not None:
                self._lease.forget_lapses()

    def end(self) -> None:
        """Release the lease: the session is over."""
        with self._lock:
            self._ended = True
            if self._lease is not None:
                self._lease.release()
