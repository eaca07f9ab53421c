"""Records which transactions a snapshot contains, so that a repeated job does nothing.

Each application has a small group in `/.transactions`, whose attributes are its name and its newest
version. As part of the snapshot, the record is right after branching, resets, merges and copies,
and expiry does not lose it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from icefloe.changes.conflicts import ConflictDetector, VersionSelection
from icefloe.engine.port import parsed_document
from icefloe.errors import FormatError
from icefloe.model import paths
from icefloe.model.record import Record

if TYPE_CHECKING:
    from icefloe.changes.conflicts import Conflict
    from icefloe.repository import Repository
    from icefloe.zarr_store.session_port import SessionPort

TXN_APP_ID = "txnAppId"
TXN_VERSION = "txnVersion"
FOLDER = "/.transactions"


class Transaction(Record, frozen=True):
    """A version of an application: a job that must be committed only once."""

    app_id: str
    version: int

    @property
    def path(self) -> str:
        """The group that records the newest version of the application."""
        return f"{FOLDER}/{hashlib.sha256(self.app_id.encode()).hexdigest()[:24]}"

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the commit."""
        return {TXN_APP_ID: self.app_id, TXN_VERSION: self.version}

    @classmethod
    def of(cls, app_id: str | None, version: int | None) -> Transaction | None:
        """Return the transaction that options name, if they do."""
        return None if app_id is None or version is None else cls(app_id, version)


def find_transaction(repository: Repository, branch: str, transaction: Transaction) -> str | None:
    """Find the commit on a branch that made a transaction, or a later one of its application.

    If that commit has expired, it is the tip, which contains its changes. Commits of writers that
    do not record transactions in groups are found by their properties, while they are in the
    history.
    """
    session = repository.readonly_session(branch)
    recorded = _recorded_version(session, transaction)
    if recorded is not None and recorded < transaction.version:
        return None
    if recorded is None and session.get_node(FOLDER) is not None:
        return None
    for snapshot in repository.ancestry(snapshot_id=session.snapshot_id):
        if snapshot.metadata.get(TXN_APP_ID) == transaction.app_id:
            done = snapshot.metadata.get(TXN_VERSION)
            if isinstance(done, int) and done >= transaction.version:
                return snapshot.id
            break
    return None if recorded is None else session.snapshot_id


def _recorded_version(session: SessionPort, transaction: Transaction) -> int | None:
    path = transaction.path
    if session.get_node(path) is None:
        return None
    try:
        attributes = parsed_document(session.tree, path)["attributes"]
        app_id, version = attributes[TXN_APP_ID], attributes[TXN_VERSION]
    except (KeyError, TypeError, ValueError):
        app_id = version = None
    if app_id != transaction.app_id or not isinstance(version, int):
        raise FormatError(
            f"{path} should say which version of {transaction.app_id!r} was the last; delete "
            "that group to let the job run",
            path,
        )
    return version


class Ledger(ConflictDetector):
    """Records the transaction of a session before each attempt to commit it.

    As a conflict solver it lets a rebase fail for any conflict but those about these records.
    """

    def __init__(self, session: SessionPort, done: Transaction | None) -> None:
        """Record `done`, the transaction of a session, if it has one."""
        self._session = session
        self._done = done
        self._made: list[str] = []

    def write(self) -> None:
        """Write the record into the session."""
        root = self._session.get_node(paths.ROOT)
        if self._done is None or (root is not None and root.is_array):
            return
        if self._session.get_node(FOLDER) is None:
            self._set(FOLDER, {})
        self._set(self._done.path, self._done.properties)

    def _set(self, path: str, attributes: dict[str, Any]) -> None:
        if self._session.get_node(path) is None:
            self._made.append(path)
        document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        self._session.tree.set_document(path, json.dumps(document).encode())

    def withdraw(self) -> None:
        """Delete the groups that `write` created, before a rebase: others may have created them."""
        for path in reversed(self._made):
            self._session.tree.delete_node(path)
        self._made.clear()

    def solve(self, conflict: Conflict) -> VersionSelection:
        """Prefer our record, which is newer: otherwise the transaction would have been found."""
        if paths.is_within(conflict.path, FOLDER) and conflict.ours_can_win:
            return VersionSelection.UseOurs
        return super().solve(conflict)
