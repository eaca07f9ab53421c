"""Where each object of a store lies (R3-27), and what lies under a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.formats.port import ObjectKind, ObjectName
from icefloe.formats.store.object_ids import file_name
from icefloe.model.ids import AttributesId, ChunkFileId, Identifier, ManifestId, SnapshotId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

REFS_FOLDER = "r"
_EXTENSION = ".json"

_FOLDERS: Mapping[str, tuple[ObjectKind, type[Identifier], str]] = {
    "s": (ObjectKind.SNAPSHOT, SnapshotId, _EXTENSION),
    "t": (ObjectKind.TRANSACTION_LOG, SnapshotId, _EXTENSION),
    "m": (ObjectKind.MANIFEST, ManifestId, _EXTENSION),
    "a": (ObjectKind.ATTRIBUTES, AttributesId, _EXTENSION),
    "c": (ObjectKind.CHUNK_FILE, ChunkFileId, ""),
}


class StoreLayout(Record, frozen=True):
    """Keys of a store; names are ids of 16 bytes in base 32 (H-24)."""

    def snapshot(self, snapshot_id: SnapshotId) -> str:
        """Key of a snapshot file."""
        return f"s/{file_name(snapshot_id)}.json"

    def transaction_log(self, snapshot_id: SnapshotId) -> str:
        """Key that a transaction log would have; this generation has none."""
        return f"t/{file_name(snapshot_id)}.json"

    def manifest(self, manifest_id: ManifestId) -> str:
        """Key of a manifest file."""
        return f"m/{file_name(manifest_id)}.json"

    def attributes(self, attributes_id: AttributesId) -> str:
        """Key of an attribute file."""
        return f"a/{file_name(attributes_id)}.json"

    def chunk_file(self, file_id: ChunkFileId) -> str:
        """Key of a chunk file."""
        return f"c/{file_name(file_id)}"

    def folder(self, kind: ObjectKind) -> str:
        """What the keys of all objects of a kind start with, and no others do."""
        (folder,) = (folder for folder, (held, _, _) in _FOLDERS.items() if held == kind)
        return f"{folder}/"

    def parse(self, key: str) -> ObjectName | None:
        """What a key names; None unless it is the key that we would give that object."""
        folder, _, name = key.partition("/")
        if folder not in _FOLDERS:
            return None
        kind, id_type, extension = _FOLDERS[folder]
        try:
            identifier = id_type.parse(name.removesuffix(extension))
        except InvalidInputError:
            return None
        same = f"{file_name(identifier)}{extension}" == name
        return ObjectName(kind, identifier) if same else None
