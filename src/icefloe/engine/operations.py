"""The log of operations: what was done to a repository, when and by whom, as small objects.

Commits are not written here a second time: every state of a branch is kept for ever, and the log
shows them from there. What else happened is one object each, written after the fact; that it could
not be written is no reason to fail.
"""

from __future__ import annotations

import heapq
import logging
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.engine.retention.leases import default_holder
from icefloe.errors import IcefloeError
from icefloe.formats.port import LiveTip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.engine.history.walk import History
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

logger = logging.getLogger(__name__)

OPERATIONS_FOLDER = "maintenance/operations"
_LAST_MILLISECOND = 10**14


class Operation(msgspec.Struct, frozen=True):
    """Something that was done to a repository."""

    kind: str
    """Such as `commit`, `create_branch`, `expire_snapshots`, `garbage_collect`, `compact`."""
    at: datetime
    """When it was finished."""
    job: str
    """Who did it: the host and process, or the name that was given; empty if unknown."""
    details: dict[str, Any]


def commits_newest_first(history: History) -> Iterator[Operation]:
    """The commits of all branches that exist, each once, by the time that they tell."""
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
            "commit" if snapshot.parent_id is not None else "create",
            snapshot.written_at,
            str(metadata.get("job", "")),
            {
                "branch": branch,
                "snapshot_id": str(snapshot.id),
                "message": snapshot.message,
                "metadata": metadata,
            },
        )


def merged(*parts: Iterator[Operation]) -> Iterator[Operation]:
    """Operations of several sources, each newest first, as one."""
    return heapq.merge(*parts, key=_time, reverse=True)


def _time(operation: Operation) -> datetime:
    return operation.at


class _OperationFile(msgspec.Struct):
    kind: str
    job: str
    details: dict[str, Any]


_decoder = msgspec.json.Decoder(_OperationFile)


class OperationLog:
    """The operations that were written down in a storage."""

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._storage = storage

    def add(self, kind: str, details: dict[str, Any], job: str | None = None) -> None:
        """Write down that something was done; only says so in the log if that fails."""
        # Newer ones sort first; that our clock may be wrong only changes the order of the listing.
        moment = _LAST_MILLISECOND - int(datetime.now(UTC).timestamp() * 1000)
        key = f"{OPERATIONS_FOLDER}/{moment:014d}-{secrets.token_hex(6)}.json"
        body = msgspec.json.encode(_OperationFile(kind, job or default_holder(), details))
        try:
            self._storage.put(key, body)
            self._storage.sync()
        except IcefloeError as error:
            logger.warning("operation %s was done but not written down: %s", kind, error)

    def newest_first(self) -> Iterator[Operation]:
        """All operations; times are those of the storage's clock."""
        for info in self._storage.list(f"{OPERATIONS_FOLDER}/"):
            try:
                body = _decoder.decode(self._storage.get(info.key))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                logger.warning("%s is damaged: %s", info.key, error)
                continue
            yield Operation(body.kind, info.last_modified.astimezone(UTC), body.job, body.details)
