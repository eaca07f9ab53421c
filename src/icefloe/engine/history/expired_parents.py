"""Where expiry cut the history: snapshots that have the first one as their parent from then on.

Snapshots are never altered, and later ones remember their ancestors; so a cut is an object of its
own, named by the oldest snapshot that was kept. Cuts are only ever added, in any order and by
anyone, and one is removed when its snapshot is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import msgspec

from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError
from icefloe.model.ids import SnapshotId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.storage.port import Storage

CUTS_FOLDER = "maintenance/cuts"


class _Cut(msgspec.Struct):
    root: str


_decoder = msgspec.json.Decoder(_Cut)


class Cuts:
    """The cuts of a repository in a storage."""

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._storage = storage

    def all(self) -> frozenset[SnapshotId]:
        """Snapshots behind which the history is cut; none where a storage cannot list.

        There, whoever meets a snapshot that is missing asks with `root_behind`.
        """
        return frozenset(self._listed())

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
        """The snapshot that follows one in the history, if the history is cut behind it."""
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
        """Cut the history behind a snapshot; to do it again is no error."""
        self._storage.create(cut_key(snapshot_id), msgspec.json.encode(_Cut(str(root))))

    def remove(self, snapshot_ids: Iterable[SnapshotId]) -> None:
        """Forget cuts behind snapshots that are gone."""
        keys = [cut_key(snapshot_id) for snapshot_id in snapshot_ids]
        if keys:
            self._storage.delete_many(keys)


class SeenCuts(Cuts):
    """The cuts as they were when they were first asked for, for who walks many histories."""

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        super().__init__(storage)
        self._seen: frozenset[SnapshotId] | None = None
        self._roots: dict[SnapshotId, SnapshotId] = {}

    def all(self) -> frozenset[SnapshotId]:
        """Snapshots behind which the history is cut."""
        if self._seen is None:
            self._seen = super().all()
        return self._seen

    def root_behind(self, snapshot_id: SnapshotId) -> SnapshotId | None:
        """The snapshot that follows one in the history, if the history is cut behind it."""
        root = self._roots.get(snapshot_id)
        if root is None:
            root = super().root_behind(snapshot_id)
            if root is not None:
                self._roots[snapshot_id] = root
        return root


def cut_key(snapshot_id: SnapshotId) -> str:
    """Key of the object that cuts the history behind a snapshot."""
    return f"{CUTS_FOLDER}/{quote(str(snapshot_id), safe='')}"
