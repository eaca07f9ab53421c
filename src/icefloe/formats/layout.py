"""Where the objects of a generation are: a folder for each kind, and a file for each id."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from icefloe.errors import InvalidInputError
from icefloe.formats.port import ObjectKind, ObjectName
from icefloe.model.ids import AttributesId, ChunkFileId, Identifier, ManifestId, SnapshotId
from icefloe.model.record import Record

_ID_TYPES: Mapping[ObjectKind, type[Identifier]] = {
    ObjectKind.SNAPSHOT: SnapshotId,
    ObjectKind.TRANSACTION_LOG: SnapshotId,
    ObjectKind.MANIFEST: ManifestId,
    ObjectKind.ATTRIBUTES: AttributesId,
    ObjectKind.CHUNK_FILE: ChunkFileId,
}


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
