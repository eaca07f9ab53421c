"""The log of operations: what was done to a repository, when and by whom.

Commits are not written here again: every state of a branch is retained, and the log reads them from
there. Every other operation is one small object, written afterwards, and in the background where
that takes a round trip. If it cannot be written, the operation succeeds all the same.
"""

from __future__ import annotations

import heapq
import logging
import os
import secrets
from concurrent.futures import wait
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.engine.retention.leases import default_holder
from icefloe.errors import IcefloeError
from icefloe.formats.port import LiveTip
from icefloe.storage.workers import do_later

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from icefloe.engine.history.walk import History
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

logger = logging.getLogger(__name__)

OPERATIONS_FOLDER = "maintenance/operations"
_LAST_MILLISECOND = 10**14

_unwritten: set[Future[None]] = set()
"""Entries that this process has not written yet."""
os.register_at_fork(after_in_child=_unwritten.clear)


class Operation(msgspec.Struct, frozen=True):
    """An operation on a repository: an entry of `Repository.operations`."""

    kind: str
    """Such as `commit`, `create_branch`, `expire_snapshots`, `garbage_collect`, `compact`."""
    at: datetime
    """When it finished."""
    job: str
    """Who did it: the host and process, or the `job` argument; empty if unknown."""
    details: dict[str, Any]


def commits_newest_first(history: History) -> Iterator[Operation]:
    """The commits of all branches, each once, by the time that they record."""
    tips = [(name, history.refs.tip(name)) for name in sorted(history.refs.branches())]
    seen: set[SnapshotId] = set()
    return heapq.merge(
        *(
            _commits_of(history, name, tip.snapshot_id, seen)
            for name, tip in tips
            if isinstance(tip, LiveTip)
        ),
        key=_time,
        reverse=True,
    )


def _commits_of(
    history: History, branch: str, tip: SnapshotId, seen: set[SnapshotId]
) -> Iterator[Operation]:
    for snapshot in history.ancestry(tip):
        if snapshot.id in seen:
            return
        seen.add(snapshot.id)
        metadata = snapshot.public_metadata()
        yield Operation(
            kind="commit" if snapshot.parent_id is not None else "create",
            at=snapshot.written_at,
            job=str(metadata.get("job", "")),
            details={
                "branch": branch,
                "snapshot_id": str(snapshot.id),
                "message": snapshot.message,
                "metadata": metadata,
            },
        )


def operations(storage: Storage, history: History) -> Iterator[Operation]:
    """All operations, commits among them, newest first."""
    logged = OperationLog(storage).newest_first()
    return heapq.merge(logged, commits_newest_first(history), key=_time, reverse=True)


def _time(operation: Operation) -> datetime:
    return operation.at


class _OperationFile(msgspec.Struct):
    kind: str
    job: str
    details: dict[str, Any]


_decoder = msgspec.json.Decoder(_OperationFile)


def _entry(kind: str, details: dict[str, Any], job: str | None) -> tuple[str, bytes]:
    """The key and the content of an entry."""
    # Newer ones sort first; a wrong local clock only changes the order of the listing.
    moment = _LAST_MILLISECOND - int(datetime.now(UTC).timestamp() * 1000)
    key = f"{OPERATIONS_FOLDER}/{moment:014d}-{secrets.token_hex(6)}.json"
    return key, msgspec.json.encode(_OperationFile(kind, job or default_holder(), details))


class OperationLog:
    """The operations that are logged in a storage."""

    def __init__(self, storage: Storage) -> None:
        """Read nothing yet."""
        self._storage = storage

    def add(self, kind: str, details: dict[str, Any], job: str | None = None) -> str:
        """Log an operation; a failure to do so is only a warning. Returns the key of the entry."""
        key, body = _entry(kind, details, job)
        self._write(kind, key, body)
        return key

    def add_later(self, kind: str, details: dict[str, Any], job: str | None = None) -> None:
        """Like `add`, without waiting for it; who reads the log in this process does that."""
        key, body = _entry(kind, details, job)
        writing = do_later(self._storage, lambda: self._write(kind, key, body))
        if writing is not None:
            _unwritten.add(writing)
            writing.add_done_callback(_unwritten.discard)

    def _write(self, kind: str, key: str, body: bytes) -> None:
        try:
            self._storage.put(key, body)
            self._storage.sync()
        except IcefloeError as error:
            logger.warning("operation %s was done but could not be logged: %s", kind, error)

    def take_back(self, key: str) -> None:
        """Delete the entry of an operation that was undone."""
        try:
            self._storage.delete_many([key])
        except IcefloeError as error:
            logger.warning("%s tells of an operation that was undone: %s", key, error)

    def newest_first(self) -> Iterator[Operation]:
        """All logged operations, with times by the storage's clock."""
        wait(list(_unwritten))
        for info in self._storage.list(f"{OPERATIONS_FOLDER}/"):
            try:
                body = _decoder.decode(self._storage.get(info.key))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                logger.warning("%s is damaged: %s", info.key, error)
                continue
            yield Operation(
                kind=body.kind,
                at=info.last_modified.astimezone(UTC),
                job=body.job,
                details=body.details,
            )
