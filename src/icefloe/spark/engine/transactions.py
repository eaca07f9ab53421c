"""Which transactions of applications a version has in it, so that a repeated job does nothing.

Each application has a small group in `/.transactions`, whose attributes name it and its newest
version. As part of the snapshot this is true of branches, resets, merges and copies, and expiry
does not forget it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from icefloe.changes.conflicts import ConflictDetector, VersionSelection
from icefloe.errors import FormatError
from icefloe.model import paths
from icefloe.model.record import Record

if TYPE_CHECKING:
    from icefloe.changes.conflicts import Conflict
    from icefloe.repository import Repository
    from icefloe.session import Session

TXN_APP_ID = "txnAppId"
TXN_VERSION = "txnVersion"
FOLDER = "/.transactions"


class Transaction(Record, frozen=True):
    """A version of an application: a job that must be done once."""

    app_id: str
    version: int

    @property
    def path(self) -> str:
        """Where the newest version of the application is kept."""
        return f"{FOLDER}/{hashlib.sha256(self.app_id.encode()).hexdigest()[:24]}"

    @property
    def properties(self) -> dict[str, Any]:
        """What the commit says of it."""
        return {TXN_APP_ID: self.app_id, TXN_VERSION: self.version}

    @classmethod
    def of(cls, app_id: str | None, version: int | None) -> Transaction | None:
        """The transaction that options name, if they do."""
        return None if app_id is None or version is None else cls(app_id, version)


def find_transaction(repository: Repository, branch: str, wanted: Transaction) -> str | None:
    """The commit of a branch that did a transaction, or a later one of its application.

    Where that commit has expired, it is the tip, which has its changes in it. Commits that say
    so, but are from writers that keep no groups about it, count while they are in the history.
    """
    session = repository.readonly_session(branch)
    kept = _kept_version(session, wanted)
    if kept is not None and kept < wanted.version:
        return None
    if kept is None and session.get_node(FOLDER) is not None:
        return None
    for snapshot in repository.ancestry(snapshot_id=session.snapshot_id):
        if snapshot.metadata.get(TXN_APP_ID) == wanted.app_id:
            done = snapshot.metadata.get(TXN_VERSION)
            if isinstance(done, int) and done >= wanted.version:
                return snapshot.id
            break
    return None if kept is None else session.snapshot_id


def _kept_version(session: Session, wanted: Transaction) -> int | None:
    node = session.get_node(wanted.path)
    if node is None:
        return None
    try:
        attributes = json.loads(session.tree.document(wanted.path) or b"{}")["attributes"]
        app_id, version = attributes[TXN_APP_ID], attributes[TXN_VERSION]
    except (KeyError, TypeError, ValueError):
        app_id = version = None
    if app_id != wanted.app_id or not isinstance(version, int):
        raise FormatError(
            f"{wanted.path} should say which version of {wanted.app_id!r} was the last; delete "
            "that group to let the job run",
            wanted.path,
        )
    return version


class Ledger(ConflictDetector):
    """Keeps the transaction of a session that is about to commit, and through rebases.

    While a session is rebased its changes are disjoint but for what others keep here, too.
    """

    def __init__(self, session: Session, done: Transaction | None) -> None:
        """Take the session, and the transaction if it has a name."""
        self._session = session
        self._done = done
        self._made: list[str] = []

    def write(self) -> None:
        """Let the version of the session have the transaction in it."""
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
        """Take away the groups that were made, before a rebase: others may have made them."""
        for path in reversed(self._made):
            self._session.tree.delete_node(path)
        self._made.clear()

    def solve(self, conflict: Conflict) -> VersionSelection:
        """Our version is the newer one: otherwise the transaction would be found done."""
        if paths.is_within(conflict.path, FOLDER) and conflict.ours_can_win:
            return VersionSelection.UseOurs
        return super().solve(conflict)
