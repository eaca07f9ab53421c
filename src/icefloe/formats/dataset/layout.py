"""Where each object of a dataset lies (R0-45), and what lies under a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.formats.dataset.file_ids import file_of, id_of_file
from icefloe.formats.port import ObjectKind, ObjectName
from icefloe.model.ids import AttributesId, ChunkFileId, Identifier, ManifestId, SnapshotId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_KEY = "state.json"

_FOLDERS: Mapping[str, tuple[ObjectKind, type[Identifier]]] = {
    "s": (ObjectKind.SNAPSHOT, SnapshotId),
    "t": (ObjectKind.TRANSACTION_LOG, SnapshotId),
    "i": (ObjectKind.MANIFEST, ManifestId),
    "a": (ObjectKind.ATTRIBUTES, AttributesId),
    "c": (ObjectKind.CHUNK_FILE, ChunkFileId),
}


class DatasetLayout(Record, frozen=True):
    """Keys of a dataset; we name files by ids in base 32 (H-24), others by anything."""

    def snapshot(self, snapshot_id: SnapshotId) -> str:
        """Key of a structure file."""
        return f"s/{file_of(snapshot_id)}"

    def transaction_log(self, snapshot_id: SnapshotId) -> str:
        """Key that a transaction log would have; this generation has none."""
        return f"t/{file_of(snapshot_id)}"

    def manifest(self, manifest_id: ManifestId) -> str:
        """Key of a chunk manifest, which spec 000 also calls inventory."""
        return f"i/{file_of(manifest_id)}"

    def attributes(self, attributes_id: AttributesId) -> str:
        """Key of an attribute file."""
        return f"a/{file_of(attributes_id)}"

    def chunk_file(self, file_id: ChunkFileId) -> str:
        """Key of a chunk file."""
        return f"c/{file_of(file_id)}"

    def folder(self, kind: ObjectKind) -> str:
        """What the keys of all objects of a kind start with, and no others do."""
        (folder,) = (folder for folder, (held, _) in _FOLDERS.items() if held == kind)
        return f"{folder}/"

    def parse(self, key: str) -> ObjectName | None:
        """What a key names; None if no file of a dataset can have it."""
        folder, _, name = key.partition("/")
        if folder not in _FOLDERS:
            return None
        kind, id_type = _FOLDERS[folder]
        try:
            return ObjectName(kind, id_of_file(id_type, name))
        except InvalidInputError:
            return None
