"""Pins: leases on existing snapshots, for operations that let a branch or tag point to them.

A pin is written before announcements are read, so that either the pin's holder learns that a
garbage collection is about to delete the snapshot, or the collection finds the pin (G4).
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from icefloe.engine.retention.announcements import running_collections
from icefloe.engine.retention.leases import DEFAULT_LIFETIME, Lease
from icefloe.errors import SnapshotNotFoundError
from icefloe.storage.concurrency import each_at_once, together
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from icefloe.formats.port import Layout
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

_Found = TypeVar("_Found")
_Result = TypeVar("_Result")

_PIN_LIFETIME = timedelta(minutes=10)


class SnapshotLease(Lease):
    """A lease on snapshots; taking it fails if one of them is gone, or is about to be deleted.

    Unless `protects_new` is False it also protects everything that is written from now on.
    """

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        snapshots: Sequence[SnapshotId],
        *,
        holder: str | None = None,
        lifetime: timedelta = DEFAULT_LIFETIME,
        protects_new: bool = True,
    ) -> None:
        """Choose the snapshots of a repository; `take` writes the lease."""
        super().__init__(
            storage,
            holder=holder,
            snapshots=snapshots,
            lifetime=lifetime,
            protects_new=protects_new,
        )
        self._layout = layout
        self._claimed = snapshots
        self._is_begun = False

    def begin(self) -> None:
        """Write the lease; it counts once `take` has checked the snapshots."""
        with self._lock:
            if self._protects_new:
                self._write()
            else:
                self._put_next()  # its time matters only if a collection is running
        self._is_begun = True

    def take(self) -> None:
        """Write the lease unless it is begun, then check the snapshots.

        Raises:
            SnapshotNotFoundError: If one is gone, or a running collection is about to delete it.
        """
        if not self._is_begun:
            self.begin()
        self._is_begun = False
        try:
            self._refuse_announced()
            # Not at the same time: a collection deletes snapshots before its announcement.
            check = partial(check_snapshot, self._storage, self._layout)
            each_at_once(self._storage, check, self._claimed)
        except BaseException:
            self.release()
            raise

    def confirm(self) -> None:
        """Take the lease again if it lapsed and was broken.

        Raises:
            SnapshotNotFoundError: If one of the snapshots was lost because of that.
        """
        if self.is_broken():
            self.take()

    def _refuse_announced(self) -> None:
        claimed = set(map(str, self._claimed))
        for collection in running_collections(self._storage, self._time):
            for snapshot_id in claimed.intersection(collection.snapshots):
                raise SnapshotNotFoundError(
                    f"snapshot {snapshot_id} is reached by no branch or tag, and a garbage "
                    "collection that runs at this moment is about to delete it; choose another "
                    "snapshot",
                    snapshot_id,
                )


def check_snapshot(storage: Storage, layout: Layout, snapshot_id: SnapshotId) -> None:
    """Raise SnapshotNotFoundError unless a snapshot exists."""
    if not is_there(storage, layout.snapshot(snapshot_id)):
        raise SnapshotNotFoundError(
            f"snapshot {snapshot_id} does not exist in {storage.location}", str(snapshot_id)
        )


@contextlib.contextmanager
def pinned(storage: Storage, layout: Layout, snapshot_id: SnapshotId) -> Iterator[SnapshotLease]:
    """Keep a snapshot from being collected while something is made to point to it.

    A pin holds for ten minutes. After an operation that does not itself fail when a collection
    ran in between, call `confirm` on the lease.

    Raises:
        SnapshotNotFoundError: If the snapshot is gone, or about to be deleted.
    """
    with pinned_beside(storage, layout, snapshot_id, lambda: None, lambda _: None) as (lease, _):
        yield lease


@contextlib.contextmanager
def pinned_beside(
    storage: Storage,
    layout: Layout,
    snapshot_id: SnapshotId,
    work: Callable[[], _Found],
    then: Callable[[_Found], _Result],
) -> Iterator[tuple[SnapshotLease, _Result]]:
    """Like `pinned`, with the result of reading something else at the same time.

    Announcements of collections are read after `work`, at the same time as what comes `then`.
    """
    lease = _pin(storage, layout, snapshot_id)
    try:
        _, found = together(storage, lease.begin, work)
        _, result = together(storage, lease.take, lambda: then(found))
        yield lease, result
    finally:
        lease.release_later()


@contextlib.contextmanager
def pinned_during(
    storage: Storage, layout: Layout, snapshot_id: SnapshotId, work: Callable[[], _Result]
) -> Iterator[_Result]:
    """Like `pinned`, with the result of work that need not wait for the pin.

    Not for reading a branch's tip: announcements of collections must be read after that.
    """
    lease = _pin(storage, layout, snapshot_id)
    try:
        _, result = together(storage, lease.take, work)
        yield result
    finally:
        lease.release_later()


def _pin(storage: Storage, layout: Layout, snapshot_id: SnapshotId) -> SnapshotLease:
    return SnapshotLease(storage, layout, [snapshot_id], lifetime=_PIN_LIFETIME, protects_new=False)
