"""Announcements: what a garbage collection that is running is about to delete.

A collection writes its announcement and then reads leases and references for the last time; an
operation that needs a snapshot or a file takes a lease (`pins.py`) or moves a branch, and reads
announcements after that. Each writes before it reads, so at least one of the two sees the other
(G4).
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import msgspec

from icefloe.engine.retention.leases import LeaseFiles
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.storage.clock import storage_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import ObjectInfo, Storage

COLLECTIONS_FOLDER = "maintenance/collections"


class Announcement(msgspec.Struct):
    """The objects that a running collection may delete: snapshots by id, others by age."""

    snapshots: list[str]
    cutoff_seconds: float
    """Nothing younger is deleted: seconds since 1970, by the storage's clock."""


_decoder = msgspec.json.Decoder(Announcement | list[str])


def announcement_key(lease_id: str) -> str:
    """Key of the announcement of the collection that holds a lease."""
    return f"{COLLECTIONS_FOLDER}/{lease_id}"


def announce(
    storage: Storage, lease_id: str, snapshots: Iterable[SnapshotId], cutoff: datetime
) -> None:
    """Announce the snapshots that a collection is about to delete, and its cutoff."""
    announcement = Announcement(sorted(map(str, snapshots)), cutoff.timestamp())
    storage.put(announcement_key(lease_id), msgspec.json.encode(announcement))


def list_announcements(storage: Storage) -> dict[str, ObjectInfo]:
    """All announcements by the id of their collection's lease, whether it still holds or not.

    A collection takes its lease before it announces: read leases after this, not before.
    """
    prefix = f"{COLLECTIONS_FOLDER}/"
    return {info.key[len(prefix) :]: info for info in storage.list(prefix)}


def running_collections(
    storage: Storage, clock: Callable[[], datetime | None] = lambda: None
) -> list[Announcement]:
    """Announcements of the collections whose lease holds now.

    `clock` is asked for the storage's time if there are any; without an answer, the storage is.
    """
    listed = list_announcements(storage)
    if not listed:
        return []
    moment = clock() or storage_now(storage)
    active = {lease.id for lease in LeaseFiles(storage).active(moment)}
    running = []
    for lease_id, info in listed.items():
        if lease_id in active:
            with contextlib.suppress(ObjectNotFoundError):  # the collection has ended
                running.append(_decode(storage.get(info.key), info.key))
    return running


def _decode(data: bytes, key: str) -> Announcement:
    try:
        decoded = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{key}: the announcement of a collection is damaged: {error}", key
        ) from None
    if isinstance(decoded, Announcement):
        return decoded
    # An earlier version of icefloe announced snapshots only: any file may be about to go.
    return Announcement(decoded, math.inf)
