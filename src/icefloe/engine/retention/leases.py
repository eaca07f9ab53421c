"""Leases: small objects that keep garbage collection away from what somebody still needs.

A lease protects every object that is younger than its beginning, and the snapshots that it names
with everything they refer to. It holds as long as it is renewed, by the storage's clock. Each
renewal writes a new object and then deletes the previous one; a holder whose previous object is
gone knows that a collection broke the lease. `Lease.renew` and `LeaseFiles.break_lapsed` both write
before they read, so at least one of the two notices the other.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from icefloe.engine.retention.background import keep_calling
from icefloe.errors import IcefloeError, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.model.ids import SnapshotId
from icefloe.model.record import Record
from icefloe.storage.concurrency import each_at_once, together
from icefloe.storage.presence import is_there
from icefloe.storage.workers import do_later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from icefloe.storage.port import ObjectInfo, Storage

logger = logging.getLogger(__name__)

LEASES_FOLDER = "maintenance/leases"
DEFAULT_LIFETIME = timedelta(hours=1)
_MARGIN_SECONDS = 60.0
"""How much further back a lease reaches, for clocks of whole seconds and slow requests."""
_RENEWALS_PER_LIFETIME = 4
_MAX_WRITES = 3
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALWAYS = timedelta(days=100 * 365)
"""Older than any object."""


def seconds_awake_or_asleep() -> float:
    """A monotonic clock that also counts the time the machine sleeps, where the system has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def default_holder() -> str:
    """The host and process id, as the holder of a lease and in the log of operations."""
    return f"{socket.gethostname()}:{os.getpid()}"


class _LeaseFile(msgspec.Struct):
    holder: str
    snapshots: list[str]
    covers_seconds: float | None
    """How long before this file was written the lease begins; None if only for snapshots."""
    lifetime_seconds: float
    begins_seconds: float | None = None
    """When the lease begins by the storage's clock, in seconds since 1970, once that is known."""


_decoder = msgspec.json.Decoder(_LeaseFile)


class StoredLease(Record, frozen=True):
    """A lease as it was read from a storage."""

    id: str
    holder: str
    begins: datetime | None
    """Objects written from this moment on are protected; None if only snapshots are."""
    ends: datetime
    """When it lapses unless it is renewed."""
    snapshots: tuple[SnapshotId, ...]
    keys: tuple[str, ...]


def _beginning(body: _LeaseFile, written: datetime) -> datetime | None:
    if body.covers_seconds is None:
        return None
    if body.begins_seconds is not None:
        return _EPOCH + timedelta(seconds=body.begins_seconds)
    return written - timedelta(seconds=body.covers_seconds)


class LeaseFiles:
    """The leases in the storage of a repository."""

    def __init__(self, storage: Storage) -> None:
        """Read nothing yet."""
        self._storage = storage

    def find(self, but: str | None = None) -> list[StoredLease]:
        """All leases, including those that have lapsed, but for one that the caller holds."""
        files = self._files()
        if but is not None:
            files.pop(but, None)
        leases = each_at_once(self._storage, lambda each: self._find(*each), files.items())
        return [lease for lease in leases if lease is not None]

    def ids(self) -> set[str]:
        """Ids of all leases, including those that have lapsed."""
        return set(self._files())

    def _files(self) -> dict[str, list[ObjectInfo]]:
        """The files of each lease by its id."""
        prefix = f"{LEASES_FOLDER}/"
        files: dict[str, list[ObjectInfo]] = {}
        for info in self._storage.list(prefix):
            files.setdefault(info.key[len(prefix) :].partition("/")[0], []).append(info)
        return files

    def _find(self, lease_id: str, infos: Sequence[ObjectInfo]) -> StoredLease | None:
        """Read one lease from its files; None if it was released in the meantime."""
        while infos:
            try:
                return self._read(lease_id, infos)
            except ObjectNotFoundError:
                # Renewed in the meantime, or released: then the listing is empty.
                infos = list(self._storage.list(f"{LEASES_FOLDER}/{lease_id}/"))
        return None

    def _read(self, lease_id: str, infos: Sequence[ObjectInfo]) -> StoredLease:
        newest = infos[-1]  # names are numbers of equal length, listed in order
        written = newest.last_modified.astimezone(UTC)
        data = self._storage.get(newest.key)
        try:
            body = _decoder.decode(data)
            snapshots = tuple(SnapshotId.from_text(text) for text in body.snapshots)
            begins = _beginning(body, written)
            ends = written + timedelta(seconds=body.lifetime_seconds)
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidInputError, OverflowError):
            # What it protects is unknown, so it protects everything, for as long as leases hold.
            logger.warning("lease %s is damaged", newest.key)
            body = _LeaseFile(
                holder="unknown",
                snapshots=[],
                covers_seconds=0,
                lifetime_seconds=DEFAULT_LIFETIME.total_seconds(),
            )
            snapshots, begins = (), datetime.min.replace(tzinfo=UTC)
            ends = written + DEFAULT_LIFETIME
        keys = tuple(info.key for info in infos)
        return StoredLease(
            id=lease_id,
            holder=body.holder,
            begins=begins,
            ends=ends,
            snapshots=snapshots,
            keys=keys,
        )

    def active(self, now: datetime) -> list[StoredLease]:
        """The leases that hold at a moment of the storage's clock."""
        return [lease for lease in self.find() if lease.ends >= now]

    def break_lapsed(
        self, now: datetime, known: list[StoredLease] | None = None
    ) -> list[StoredLease]:
        """Delete leases that have lapsed, of those that are known; returns those that still hold.

        A holder that renews at the same time either finds its lease broken, or is among these.
        """
        leases = self.find() if known is None else known
        lapsed = {lease.id: lease for lease in leases if lease.ends < now}
        if not lapsed:
            return leases
        self._storage.delete_many([key for lease in lapsed.values() for key in lease.keys])
        for lease in lapsed.values():
            logger.warning("lease %s of %s had lapsed", lease.id, lease.holder)
        return [lease for lease in self.find() if lease.ends >= now or lease.id in lapsed]


class Lease:
    """Protects what is written or read while the lease is held from garbage collection.

    A context manager: entering it writes the lease, a background thread renews it, and leaving it
    releases it. Made by `Repository.lease`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        holder: str | None = None,
        snapshots: Iterable[SnapshotId] = (),
        lifetime: timedelta = DEFAULT_LIFETIME,
        since: float | None = None,
        protects_new: bool = True,
    ) -> None:
        """Choose what to protect; nothing is written before `take`.

        Args:
            storage: Where the repository is.
            holder: Who holds the lease, for people; the host and process by default.
            snapshots: Snapshots to protect with everything they refer to.
            lifetime: How long the lease holds after its last renewal.
            since: From which moment of `seconds_awake_or_asleep` on new objects are protected; now
                by default.
            protects_new: Whether to protect new objects at all.
        """
        if lifetime < timedelta(minutes=1):
            raise InvalidInputError(f"a lease holds for a minute or more, found {lifetime}")
        self.id = str(SnapshotId.random())
        self.holder = holder or default_holder()
        self.lifetime = lifetime
        self.written_at: datetime | None = None
        """When the lease was last renewed, by the storage's clock."""
        self._storage = storage
        self._snapshots = [str(snapshot_id) for snapshot_id in snapshots]
        self._since = seconds_awake_or_asleep() if since is None else since
        self._protects_new = protects_new
        self._begins: float | None = None
        self._number = -1
        self._released = False
        self._lapsed = False
        self._had_previous = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<icefloe.Lease {self.id} of {self.holder!r}>"

    def _key(self, number: int) -> str:
        return f"{LEASES_FOLDER}/{self.id}/{number:08d}.json"

    def take(self) -> None:
        """Write the lease, without starting to renew it."""
        with self._lock:
            self._write()

    def renew(self) -> bool:
        """Renew the lease for another lifetime; False if it lapsed at any time before.

        After a lapse the lease holds again, but what it protected may be gone.
        """
        with self._lock:
            if not self._released:
                self._renew()
            return not self._lapsed

    def _renew(self) -> None:
        before = self.written_at
        self._write()
        assert before is not None
        assert self.written_at is not None
        if not self._had_previous:
            self._lapsed = True  # and a collection broke it
            return
        # No collection broke it, but one that read it in the meantime may have ignored it.
        self._lapsed |= self.written_at - before > self.lifetime
        self._later(partial(self._delete, self._number - 1))

    def _write(self) -> None:
        for _ in range(_MAX_WRITES):
            if self._write_once():
                return
            self._lapsed = True
        raise StorageError(
            f"{self._storage.location} does not keep {self._key(self._number)}, a lease that was "
            "just written; the machine was paused again and again, or the storage loses objects"
        )

    def _write_once(self) -> bool:
        """Write the next file; False if a collection broke it before its time could be read."""
        covers = self._put_next()
        number = self._number
        written_at, self._had_previous = together(
            self._storage,
            self._time,
            lambda: number > 0 and is_there(self._storage, self._key(number - 1)),
        )
        if written_at is None:
            return False
        self.written_at = written_at
        if covers is not None and self._begins is None:
            # From now on by the storage's clock alone: the local one may have stopped.
            self._begins = (self.written_at - _EPOCH).total_seconds() - covers
        return True

    def _put_next(self) -> float | None:
        """Write the next file; returns how many seconds before now the lease begins, if at all."""
        covers = None
        if self._protects_new:
            covers = seconds_awake_or_asleep() - self._since + _MARGIN_SECONDS
        body = _LeaseFile(
            holder=self.holder,
            snapshots=self._snapshots,
            covers_seconds=covers,
            lifetime_seconds=self.lifetime.total_seconds(),
            begins_seconds=self._begins,
        )
        self._storage.put(self._key(self._number + 1), msgspec.json.encode(body))
        self._number += 1
        return covers

    def _time(self) -> datetime | None:
        """When the newest file was written, by the storage's clock; None if it is gone."""
        try:
            info = self._storage.head(self._key(self._number))
        except ObjectNotFoundError:
            return None
        return info.last_modified.astimezone(UTC)

    def is_broken(self) -> bool:
        """Whether a collection broke the lease.

        If not, every collection that begins later reads references after this moment.
        """
        return not is_there(self._storage, self._key(self._number))

    def release(self) -> None:
        """Release the lease. If its file cannot be deleted, it expires."""
        with self._lock:
            if self._number < 0 or self._released:
                return
            self._released = True
            self._delete(self._number)

    def _delete(self, number: int) -> None:
        try:
            self._storage.delete_many([self._key(number)])
        except IcefloeError as error:
            logger.warning("lease %s was left behind: %s", self.id, error)

    def release_later(self) -> None:
        """Release the lease without waiting for it, where that takes long."""
        self._later(self.release)

    def _later(self, tidy: Callable[[], None]) -> None:
        """Do what nobody depends on: files that are left behind lapse by themselves."""
        do_later(self._storage, tidy)

    def renew_later(self) -> None:
        """Have a background thread renew the lease as long as this object lives."""
        pause = self.lifetime.total_seconds() / _RENEWALS_PER_LIFETIME
        keep_calling(self._renew_in_time, pause)

    def _renew_in_time(self) -> bool:
        if self._released:
            return False
        if not self.renew():
            logger.warning("lease %s of %s had lapsed before it was renewed", self.id, self.holder)
        return True

    def __enter__(self) -> Lease:
        self.take()
        self.renew_later()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def lease_on_everything(storage: Storage, holder: str) -> Lease:
    """A lease that protects every object, however old."""
    since = seconds_awake_or_asleep() - _ALWAYS.total_seconds()
    return Lease(storage, holder=holder, since=since)
