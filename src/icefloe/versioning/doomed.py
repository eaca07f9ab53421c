"""Keeps snapshots from being named and collected at the same moment.

A collection says which snapshots it is about to delete, and then reads leases and references.
Whoever lets a branch or tag point to a snapshot takes a lease on it, and then reads what
collections say. Each writes before it reads, so at least one of the two sees the other.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from icefloe.errors import ObjectNotFoundError, SnapshotNotFoundError
from icefloe.versioning.leases import Lease, LeaseFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.formats.port import Layout
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

COLLECTIONS_FOLDER = "maintenance/collections"
_PIN_LIFETIME = timedelta(minutes=10)
_decoder = msgspec.json.Decoder(list[str])


def doomed_key(lease_id: str) -> str:
    """Key of the list of snapshots that the collection under a lease is about to delete."""
    return f"{COLLECTIONS_FOLDER}/{lease_id}"


def announce(storage: Storage, lease_id: str, doomed: Iterable[SnapshotId]) -> None:
    """Say which snapshots a collection is about to delete."""
    storage.put(doomed_key(lease_id), msgspec.json.encode(sorted(map(str, doomed))))


def announcements(storage: Storage) -> dict[str, str]:
    """Keys of all such lists by the id of the collection's lease."""
    prefix = f"{COLLECTIONS_FOLDER}/"
    return {info.key[len(prefix) :]: info.key for info in storage.list(prefix)}


@contextlib.contextmanager
def pinned(storage: Storage, layout: Layout, snapshot_id: SnapshotId) -> Iterator[None]:
    """Keep a snapshot from being collected until something else does.

    Raises SnapshotNotFoundError if it is gone, or about to be.
    """
    lease = Lease(storage, snapshots=[snapshot_id], lifetime=_PIN_LIFETIME, protects_new=False)
    lease.take()
    try:
        _refuse_doomed(storage, lease, snapshot_id)
        try:
            storage.head(layout.snapshot(snapshot_id))
        except ObjectNotFoundError:
            raise SnapshotNotFoundError(
                f"snapshot {snapshot_id} does not exist in {storage.location}", str(snapshot_id)
            ) from None
        yield
    finally:
        lease.release()


def _refuse_doomed(storage: Storage, lease: Lease, snapshot_id: SnapshotId) -> None:
    found = announcements(storage)
    if not found:
        return
    assert lease.written_at is not None
    active = {other.id for other in LeaseFiles(storage).active(lease.written_at)}
    for collection, key in found.items():
        try:
            doomed = _decoder.decode(storage.get(key)) if collection in active else []
        except ObjectNotFoundError:
            continue
        if str(snapshot_id) in doomed:
            raise SnapshotNotFoundError(
                f"snapshot {snapshot_id} is reached by no branch or tag, and a garbage collection "
                "that runs at this moment is about to delete it; choose another snapshot",
                str(snapshot_id),
            )
