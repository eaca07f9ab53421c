"""Where the objects of a generation are: a folder for each kind, and a file for each id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.port import ObjectKind, ObjectName
from icefloe.model.ids import AttributesId, ChunkFileId, Identifier, ManifestId, SnapshotId
from icefloe.model.record import Record

if TYPE_CHECKING:
    import numpy.typing as npt

_ID_TYPES: Mapping[ObjectKind, type[Identifier]] = {
    ObjectKind.SNAPSHOT: SnapshotId,
    ObjectKind.TRANSACTION_LOG: SnapshotId,
    ObjectKind.MANIFEST: ManifestId,
    ObjectKind.ATTRIBUTES: AttributesId,
    ObjectKind.CHUNK_FILE: ChunkFileId,
}


def _name(identifier: Identifier) -> str:
    return str(identifier)


def _parse(kind: type[Identifier], name: str) -> Identifier:
    return kind.parse(name)


class FolderLayout(Record, frozen=True, kw_only=True):
    """A layout by folders; generations differ in the names of folders and files."""

    folders: Mapping[ObjectKind, str]
    file_name: Callable[[Identifier], str]
    """The name of the file of an id, in its folder."""
    parse_name: Callable[[type[Identifier], str], Identifier]
    """Undoes `file_name`; raises InvalidInputError. It may accept other spellings, too."""

    def snapshot(self, snapshot_id: SnapshotId) -> str:
        """Key of a snapshot file."""
        return self._key(ObjectKind.SNAPSHOT, snapshot_id)

    def transaction_log(self, snapshot_id: SnapshotId) -> str:
        """Key of the log of the commit that made a snapshot, also where no commit writes one."""
        return self._key(ObjectKind.TRANSACTION_LOG, snapshot_id)

    def manifest(self, manifest_id: ManifestId) -> str:
        """Key of a manifest file."""
        return self._key(ObjectKind.MANIFEST, manifest_id)

    def attributes(self, attributes_id: AttributesId) -> str:
        """Key of an attribute file."""
        return self._key(ObjectKind.ATTRIBUTES, attributes_id)

    def chunk_file(self, file_id: ChunkFileId) -> str:
        """Key of a chunk file."""
        return self._key(ObjectKind.CHUNK_FILE, file_id)

    def _key(self, kind: ObjectKind, identifier: Identifier) -> str:
        return f"{self.folders[kind]}/{self.file_name(identifier)}"

    def folder(self, kind: ObjectKind) -> str:
        """What the keys of all objects of a kind start with, and no others do."""
        return f"{self.folders[kind]}/"

    def parse_many(
        self, kind: ObjectKind, keys: Sequence[str]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """The ids (n, bytes) of keys of one kind that have icefloe's form, and which have it.

        The others are for `parse`: keys of another implementation, or of no object at all.
        """
        from icefloe.model.id_columns import decode_column, text_length

        size = Identifier.SIZE
        none = np.zeros((len(keys), size), np.uint8), np.zeros(len(keys), np.bool_)
        sample = self._key(kind, _ID_TYPES[kind](bytes(size)))
        try:
            column = np.array(keys, dtype=np.bytes_)
        except UnicodeEncodeError:
            return none
        if column.dtype.itemsize < len(sample):
            return none
        # Zero bytes behind a key that is shorter than the longest are no letters of an id.
        texts = np.frombuffer(column, dtype=np.uint8).reshape(len(keys), -1)
        letters = slice(at := len(self.folder(kind)), at + text_length(size))
        ids, is_id = decode_column(texts[:, letters], size)
        expected = np.zeros(texts.shape[1], dtype=np.uint8)
        expected[: len(sample)] = np.frombuffer(sample.encode(), dtype=np.uint8)
        same = texts == expected
        same[:, letters] = True
        return ids, is_id & same.all(axis=1)

    def parse(self, key: str) -> ObjectName | None:
        """What a key names; None unless it is the key that we would give that object."""
        folder, _, name = key.partition("/")
        for kind, held in self.folders.items():
            if held != folder:
                continue
            try:
                identifier = self.parse_name(_ID_TYPES[kind], name)
            except InvalidInputError:
                return None
            # Lower case and look-alike letters are read leniently; as names they are other objects.
            return ObjectName(kind, identifier) if self.file_name(identifier) == name else None
        return None


BASE32_LAYOUT = FolderLayout(
    folders={
        ObjectKind.SNAPSHOT: "snapshots",
        ObjectKind.TRANSACTION_LOG: "transactions",
        ObjectKind.MANIFEST: "manifests",
        ObjectKind.ATTRIBUTES: "attributes",
        ObjectKind.CHUNK_FILE: "chunks",
    },
    file_name=_name,
    parse_name=_parse,
)
"""Files named by ids in base 32 (R1-08, H-24)."""
