"""Cuts: where expiry ended a history, by giving a snapshot the first one as its parent.

Snapshots are never altered, and later ones record their ancestors; so a cut is an object of its
own, named after the oldest snapshot that was retained. Cuts are only added, in any order and by
anyone, and a cut is deleted together with its snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError
from icefloe.model.ids import SnapshotId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import Storage

CUTS_FOLDER = "maintenance/cuts"


class _Cut(msgspec.Struct):
    root: str


_decoder = msgspec.json.Decoder(_Cut)


class Cuts:
    """The cuts in the storage of a repository."""

    def __init__(self, storage: Storage) -> None:
        """Read nothing yet."""
        self._storage = storage

    def all(self) -> frozenset[SnapshotId]:
        """Snapshots after which the history is cut; empty if the storage cannot list.

        In that case, ask `root_behind` when a parent is missing.
        """
        return frozenset(self._listed())

    def reread(self) -> frozenset[SnapshotId]:
        """The cuts as they are now, also where earlier ones are remembered."""
        return self.all()

    def _listed(self) -> Iterator[SnapshotId]:
        if not self._storage.capabilities.can_list:
            return
        prefix = f"{CUTS_FOLDER}/"
        for info in self._storage.list(prefix):
            try:
                yield SnapshotId.from_text(unquote(info.key[len(prefix) :]))
            except InvalidInputError:
                continue

    def root_behind(self, snapshot_id: SnapshotId) -> SnapshotId | None:
        """The snapshot that a cut made the parent of another; None if there is no cut."""
        key = cut_key(snapshot_id)
        try:
            data = self._storage.get(key)
        except ObjectNotFoundError:
            return None
        try:
            return SnapshotId.from_text(_decoder.decode(data).root)
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidInputError) as error:
            raise FormatError(f"{key}: expected the id of a snapshot: {error}", key) from None

    def add(self, snapshot_id: SnapshotId, root: SnapshotId) -> None:
        """Cut the history after a snapshot; doing it again is not an error."""
        self._storage.create(cut_key(snapshot_id), msgspec.json.encode(_Cut(str(root))))


class CachedCuts(Cuts):
    """The cuts as they were when first read, for callers that walk many histories."""

    def __init__(self, storage: Storage) -> None:
        """Read nothing yet."""
        super().__init__(storage)
        self._seen: frozenset[SnapshotId] | None = None
        self._roots: dict[SnapshotId, SnapshotId] = {}

    def all(self) -> frozenset[SnapshotId]:
        """Snapshots after which the history is cut."""
        if self._seen is None:
            self._seen = super().all()
        return self._seen

    def reread(self) -> frozenset[SnapshotId]:
        """The cuts as they are now, which are remembered from now on."""
        self._seen = None
        return self.all()

    def root_behind(self, snapshot_id: SnapshotId) -> SnapshotId | None:
        """The snapshot that a cut made the parent of another; None if there is no cut."""
        root = self._roots.get(snapshot_id)
        if root is None:
            root = super().root_behind(snapshot_id)
            if root is not None:
                self._roots[snapshot_id] = root
        return root


def cut_key(snapshot_id: SnapshotId) -> str:
    """Key of the cut after a snapshot."""
    return f"{CUTS_FOLDER}/{quote(str(snapshot_id), safe='')}"
