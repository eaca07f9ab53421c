"""Where each object of a repository lies (R1-08), and what lies under a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.formats.port import ObjectKind, ObjectName
from icefloe.model.ids import AttributesId, ChunkFileId, Identifier, ManifestId, SnapshotId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

REFS_FOLDER = "refs"

_FOLDERS: Mapping[str, tuple[ObjectKind, type[Identifier]]] = {
    "snapshots": (ObjectKind.SNAPSHOT, SnapshotId),
    "transactions": (ObjectKind.TRANSACTION_LOG, SnapshotId),
    "manifests": (ObjectKind.MANIFEST, ManifestId),
    "attributes": (ObjectKind.ATTRIBUTES, AttributesId),
    "chunks": (ObjectKind.CHUNK_FILE, ChunkFileId),
}


class RepositoryLayout(Record, frozen=True):
    """Keys of a repository; names are ids in base 32 without extension (H-24)."""

    def snapshot(self, snapshot_id: SnapshotId) -> str:
        """Key of a snapshot file."""
        return f"snapshots/{snapshot_id}"

    def transaction_log(self, snapshot_id: SnapshotId) -> str:
        """Key of the log of the commit that made a snapshot."""
        return f"transactions/{snapshot_id}"

    def manifest(self, manifest_id: ManifestId) -> str:
        """Key of a manifest file."""
        return f"manifests/{manifest_id}"

    def attributes(self, attributes_id: AttributesId) -> str:
        """Key of an attribute file."""
        return f"attributes/{attributes_id}"

    def chunk_file(self, file_id: ChunkFileId) -> str:
        """Key of a chunk file."""
        return f"chunks/{file_id}"

    def folder(self, kind: ObjectKind) -> str:
        """What the keys of all objects of a kind start with, and no others do."""
        (folder,) = (folder for folder, (held, _) in _FOLDERS.items() if held == kind)
        return f"{folder}/"

    def parse(self, key: str) -> ObjectName | None:
        """What a key names; None unless it is the key that we would give that object."""
        folder, _, name = key.partition("/")
        if folder not in _FOLDERS:
            return None
        kind, id_type = _FOLDERS[folder]
        try:
            identifier = id_type.parse(name)
        except InvalidInputError:
            return None
        # Lower case and look-alike letters are read leniently; as names they are other objects.
        return ObjectName(kind, identifier) if str(identifier) == name else None
