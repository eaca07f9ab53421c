"""The `repo` file of version 2: reading it, replacing it, and what it says of the repository.

Every change is one update of the file (section `updates` of docs/reference/format-icechunk.md):
read it, check what the change needs, copy the file to `overwritten/`, and replace it if nobody else
did meanwhile; otherwise begin again. The update is entered in the file's log of operations.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from icefloe.errors import (
    ConflictError,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
)
from icefloe.formats.icechunk import flexbuffers
from icefloe.formats.icechunk.layout import BACKUP_FOLDER, REPO_KEY
from icefloe.formats.icechunk.listed_snapshots import MetadataItems, microseconds
from icefloe.formats.icechunk.other_writers import UnlockedWriters
from icefloe.formats.icechunk.repo_document import RepoDocument
from icefloe.formats.port import DEFAULT_LEVEL
from icefloe.model.ids import SnapshotId
from icefloe.model.repo_updates import FeatureFlag, RepoAvailability, RepoStatus, UpdateType
from icefloe.storage.probe import ensure_conditional_replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.model.repo_updates import Update, UpdateKind
    from icefloe.storage.port import ObjectVersion, Storage

    Change = Callable[[RepoDocument], "tuple[UpdateKind, dict[str, Any]] | None"]

_MAX_TRIES = 1000
_LONGEST_PAUSE = 0.1
_DEFAULT_UPDATES = 1000
"""How many updates a file lists unless the configuration says otherwise."""
_FAR_FUTURE_MS = 32_503_680_000_000
"""Backups are named by the time until then, so that the newest is listed first."""
MOVE_NODE, CREATE_TAG, DELETE_TAG = 3, 4, 5
FLAGS = {MOVE_NODE: "move_node", CREATE_TAG: "create_tag", DELETE_TAG: "delete_tag"}
"""The feature flags that there are, all of them on by default."""


class _ReadFile(NamedTuple):
    """The bytes of the file, and what they say."""

    data: bytes
    document: RepoDocument


class _ReadVersion(NamedTuple):
    """The bytes of the file, what they say, and the version to replace."""

    data: bytes
    document: RepoDocument
    version: ObjectVersion


class RepoFile:
    """The file of a repository in a storage, the backups that it leaves, and its settings."""

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._storage = storage
        self._level = DEFAULT_LEVEL
        self._last_read: _ReadFile | None = None
        self._replaceable: _ReadVersion | None = None
        """The same with its version, where reading that costs nothing."""
        self._others = UnlockedWriters(storage)

    def __getstate__(self) -> Storage:
        return self._storage

    def __setstate__(self, state: Storage) -> None:
        self.__init__(state)  # type: ignore[misc]

    # --- reading

    def read(self) -> RepoDocument | None:
        """What the file says now; None if there is none."""
        try:
            if self._storage.capabilities.reads_are_immediate:
                return self._parse(self._storage.get(REPO_KEY))
            data, version = self._storage.get_with_version(REPO_KEY)
        except ObjectNotFoundError:
            return None
        document = self._parse(data)
        self._replaceable = _ReadVersion(data, document, version)
        return document

    def _parse(self, data: bytes) -> RepoDocument:
        # Other threads read, too: what is returned is what these bytes say.
        last = self._last_read
        if last is None or data != last.data:
            last = self._last_read = _ReadFile(data, RepoDocument.parse(data))
        return last.document

    @property
    def _latest(self) -> RepoDocument | None:
        """What the file said when it was read last, if it was."""
        last = self._last_read
        return None if last is None else last.document

    def document(self) -> RepoDocument:
        """What the file says now; raises FormatError if there is none."""
        found = self.read()
        if found is None:
            raise FormatError(f"{REPO_KEY} is missing from {self._storage.location}", REPO_KEY)
        return found

    def known(self) -> RepoDocument:
        """What the file said when it was read last."""
        return self._latest or self.document()

    def documents(self, newest: RepoDocument | None = None) -> Iterator[RepoDocument]:
        """The file, and the backups in which its log of operations continues, newest first."""
        document = newest or self.read()
        seen: set[str] = set()
        while document is not None:
            yield document
            name = document.before_updates
            if name is None or name in seen or "/" in name:
                return
            seen.add(name)
            key = f"{BACKUP_FOLDER}/{name}"
            try:
                document = RepoDocument.parse(self._storage.get(key), key)
            except ObjectNotFoundError:
                return  # somebody tidied up: the log ends here

    def updates(self) -> Iterator[Update]:
        """What was done to the repository, newest first, as far as it can be found."""
        last: int | None = None
        for document in self.documents():
            for row in range(len(document.updates)):
                at = int(document.updates.updated_at[row])
                if last is None or at < last:
                    last = at
                    yield document.updates.update(row)

    # --- what else the file says

    def status(self) -> RepoStatus:
        """Whether the repository may be changed."""
        return self.document().status

    def set_status(self, status: RepoStatus) -> None:
        """Set whether the repository may be changed; the only change that is always allowed."""
        now = status.set_at or utc_now()
        status = msgspec.structs.replace(status, set_at=now)
        self.update(
            lambda _: (UpdateType.RepoStatusChanged(status), {"status": status}), is_status=True
        )

    def set_metadata(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Change the metadata of the repository; returns what it is then."""
        result: dict[str, Any] = {}

        def changed(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            nonlocal result
            result = change(metadata_of(document))
            return UpdateType.MetadataChanged(), {"metadata": MetadataItems.of(result)}

        self.update(changed)
        return result

    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository."""
        return metadata_of(self.document())

    def feature_flags(self) -> list[FeatureFlag]:
        """The feature flags that there are, with their settings."""
        document = self.document()
        return [
            FeatureFlag(each, name, default_enabled=True, setting=_setting(document, each))
            for each, name in FLAGS.items()
        ]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Set a feature flag; None restores the default."""
        ids = {known: each for each, known in FLAGS.items()}
        if name not in ids:
            known = ", ".join(map(repr, ids))
            raise InvalidInputError(f"feature flags are {known}, found {name!r}")
        flag = ids[name]

        def change(document: RepoDocument) -> tuple[UpdateKind, dict[str, Any]]:
            enabled = set(document.enabled_flags or ()) - {flag}
            disabled = set(document.disabled_flags or ()) - {flag}
            if setting is not None:
                (enabled if setting else disabled).add(flag)
            return UpdateType.FeatureFlagChanged(flag, setting), {
                "enabled_flags": _flags(enabled, document.enabled_flags),
                "disabled_flags": _flags(disabled, document.disabled_flags),
            }

        self.update(change)

    def set_config(self, change: Callable[[bytes | None], bytes]) -> None:
        """Change the configuration, which is FlexBuffers; None is that there is none."""
        self.update(
            lambda document: (UpdateType.ConfigChanged(), {"config": change(document.config)})
        )

    # --- the update

    def update(
        self, change: Change, *, is_status: bool = False, is_just_read: bool = False
    ) -> RepoDocument:
        """Replace the file by its successor, again and again until nobody comes between.

        `change` says what is done and which fields change; it raises if that must not be, and
        returns None if there is nothing to do. It is called again for each state.

        If the file was read just before, that state is tried first, which saves a request. It can
        only be replaced if it is still the newest; what it forbids says nothing.
        """
        ensure_conditional_replace(self._storage)
        backup = ""
        for attempt in range(_MAX_TRIES):
            known = self._replaceable if is_just_read and attempt == 0 else None
            self._replaceable = None  # it may be replaced at any moment, first of all by this
            data, document, version = known or self._read_version()
            if backup and backup.encode() in document.updates.backups.data:
                return document  # the answer was lost, and others swapped since
            try:
                if not is_status:
                    check_status(document.status)
                self._others.warn(document.snapshots.newest)
                changed = change(document)
            except IcefloeError:
                if known is None:
                    raise
                continue
            if changed is None:
                if known is None:
                    return document
                continue
            kind, fields = changed
            now = utc_now()
            backup = f"repo.{_FAR_FUTURE_MS - microseconds(now) // 1000:014d}.{SnapshotId.random()}"
            successor = document.updated(
                kind, microseconds(now), backup, _updates_limit(document.config), **fields
            )
            encoded = successor.encode(self._level)
            self._storage.put(f"{BACKUP_FOLDER}/{backup}", data)
            try:
                self._storage.replace(REPO_KEY, encoded, version)
            except ConflictError:
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.002 * 2 ** min(attempt, 10))))
            else:
                self._last_read = _ReadFile(encoded, successor)
                return successor
        raise ConflictError(f"{REPO_KEY} was replaced by others {_MAX_TRIES} times in a row")

    def _read_version(self) -> _ReadVersion:
        try:
            data, version = self._storage.get_with_version(REPO_KEY)
            return _ReadVersion(data, self._parse(data), version)
        except ObjectNotFoundError:
            raise FormatError(
                f"{REPO_KEY} is missing from {self._storage.location}", REPO_KEY
            ) from None


def metadata_of(document: RepoDocument) -> dict[str, Any]:
    """The metadata of a repository."""
    items = document.metadata
    return {} if items is None else items.decode(f"{REPO_KEY}: the metadata of the repository")


def utc_now() -> datetime:
    """The time by this machine's clock."""
    return datetime.now(UTC)


def check_status(status: RepoStatus) -> None:
    """Raise ReadOnlyError if the status of a repository forbids to change it."""
    if status.availability is not RepoAvailability.online:
        reason = status.limited_availability_reason
        raise ReadOnlyError(
            f"the repository was made read-only{f': {reason}' if reason else ''}; "
            "Repository.set_status makes it writable again"
        )


def _setting(document: RepoDocument, flag: int) -> bool | None:
    if flag in (document.enabled_flags or ()):
        return True
    return False if flag in (document.disabled_flags or ()) else None


def check_flag(document: RepoDocument, flag: int, what: str) -> None:
    """Raise InvalidInputError if a feature flag is off."""
    if _setting(document, flag) is False:
        raise InvalidInputError(
            f"this repository does not allow {what}: its feature flag {FLAGS[flag]!r} is off; "
            "see Repository.set_feature_flag"
        )


def _flags(flags: set[int], before: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if not flags and before is None else tuple(sorted(flags))


@lru_cache(maxsize=8)
def _updates_limit(config: bytes | None) -> int:
    if config is None:
        return _DEFAULT_UPDATES
    tree = flexbuffers.decode(config, f"{REPO_KEY}: the configuration")
    limit = tree.get("num_updates_per_repo_info_file") if isinstance(tree, dict) else None
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    return _DEFAULT_UPDATES
