"""Keeps snapshots from being named and collected at the same moment.

A collection says which snapshots it is about to delete, and then reads leases and references.
Whoever lets a branch or tag point to a snapshot takes a lease on it, and then reads what
collections say. Each writes before it reads, so at least one of the two sees the other.
"""

from __future__ import annotations

import contextlib
import math
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from icefloe.engine.retention.leases import DEFAULT_LIFETIME, Lease, LeaseFiles
from icefloe.errors import FormatError, ObjectNotFoundError, SnapshotNotFoundError
from icefloe.storage.clock import storage_now
from icefloe.storage.presence import is_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from icefloe.formats.port import Layout
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import ObjectInfo, Storage

COLLECTIONS_FOLDER = "maintenance/collections"
_PIN_LIFETIME = timedelta(minutes=10)


class Announcement(msgspec.Struct):
    """What a collection that runs is about to delete."""

    snapshots: list[str]
    cutoff_seconds: float
    """Nothing younger is deleted: seconds since 1970, by the storage's clock."""


_decoder = msgspec.json.Decoder(Announcement | list[str])


def _decode(data: bytes, key: str) -> Announcement:
    try:
        said = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{key}: what a collection said is damaged: {error}", key) from None
    # One of an earlier version of icefloe says only which snapshots; any file may be meant.
    return said if isinstance(said, Announcement) else Announcement(said, math.inf)


def doomed_key(lease_id: str) -> str:
    """Key of the list of snapshots that the collection under a lease is about to delete."""
    return f"{COLLECTIONS_FOLDER}/{lease_id}"


def announce(
    storage: Storage, lease_id: str, doomed: Iterable[SnapshotId], cutoff: datetime
) -> None:
    """Say which snapshots a collection is about to delete, and that other objects are older."""
    said = Announcement(sorted(map(str, doomed)), cutoff.timestamp())
    storage.put(doomed_key(lease_id), msgspec.json.encode(said))


def announcements(storage: Storage) -> dict[str, ObjectInfo]:
    """All such lists by the id of the collection's lease.

    A collection announces after it took its lease, so leases are read after this.
    """
    prefix = f"{COLLECTIONS_FOLDER}/"
    return {info.key[len(prefix) :]: info for info in storage.list(prefix)}


def running_collections(storage: Storage, now: datetime | None = None) -> list[Announcement]:
    """What collections say that may be deleting, at a moment of the storage's clock."""
    found = announcements(storage)
    if not found:
        return []
    moment = storage_now(storage) if now is None else now
    active = {lease.id for lease in LeaseFiles(storage).active(moment)}
    running = []
    for collection, info in found.items():
        if collection in active:
            with contextlib.suppress(ObjectNotFoundError):  # it is over
                running.append(_decode(storage.get(info.key), info.key))
    return running


class SnapshotLease(Lease):
    """A lease on snapshots that are there and stay; taking it fails if one is gone or about to be.

    It protects what is written from now on, too, unless told otherwise.
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
        """Claim snapshots of a repository."""
        super().__init__(
            storage,
            holder=holder,
            snapshots=snapshots,
            lifetime=lifetime,
            protects_new=protects_new,
        )
        self._layout = layout
        self._claimed = snapshots

    def take(self) -> None:
        """Write the lease, and then look; raises SnapshotNotFoundError if that was too late."""
        super().take()
        try:
            self._look()
        except BaseException:
            self.release()
            raise

    def confirm(self) -> None:
        """Look again if the lease lapsed before references to the snapshots were written.

        Raises SnapshotNotFoundError if one of them is gone, or about to be.
        """
        if self.is_broken():
            self.take()

    def _look(self) -> None:
        for snapshot_id in self._claimed:
            _refuse_doomed(self._storage, self, snapshot_id)
            self._check_exists(snapshot_id)

    def _check_exists(self, snapshot_id: SnapshotId) -> None:
        if not is_there(self._storage, self._layout.snapshot(snapshot_id)):
            raise SnapshotNotFoundError(
                f"snapshot {snapshot_id} does not exist in {self._storage.location}",
                str(snapshot_id),
            )


@contextlib.contextmanager
def pinned(storage: Storage, layout: Layout, snapshot_id: SnapshotId) -> Iterator[SnapshotLease]:
    """Keep a snapshot from being collected until something else does.

    Raises SnapshotNotFoundError if it is gone, or about to be. It holds for ten minutes: who does
    something that does not fail by itself if a collection came by asks the lease to `confirm`.
    """
    lease = SnapshotLease(
        storage, layout, [snapshot_id], lifetime=_PIN_LIFETIME, protects_new=False
    )
    lease.take()
    try:
        yield lease
    finally:
        lease.release()


def _refuse_doomed(storage: Storage, lease: Lease, snapshot_id: SnapshotId) -> None:
    for collection in running_collections(storage, lease.written_at):
        if str(snapshot_id) in collection.snapshots:
            raise SnapshotNotFoundError(
                f"snapshot {snapshot_id} is reached by no branch or tag, and a garbage collection "
                "that runs at this moment is about to delete it; choose another snapshot",
                str(snapshot_id),
            )
