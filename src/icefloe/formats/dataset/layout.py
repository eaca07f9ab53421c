"""Where each object of a dataset lies (R0-45), and what lies under a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.formats.port import ObjectKind, ObjectName
from icefloe.model.ids import AttributesId, ChunkFileId, Identifier, ManifestId, SnapshotId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_KEY = "state.json"
_EXTENSION = ".parquet"

_FOLDERS: Mapping[str, tuple[ObjectKind, type[Identifier], str]] = {
    "s": (ObjectKind.SNAPSHOT, SnapshotId, _EXTENSION),
    "t": (ObjectKind.TRANSACTION_LOG, SnapshotId, _EXTENSION),
    "i": (ObjectKind.MANIFEST, ManifestId, _EXTENSION),
    "a": (ObjectKind.ATTRIBUTES, AttributesId, _EXTENSION),
    "c": (ObjectKind.CHUNK_FILE, ChunkFileId, ""),
}


class DatasetLayout(Record, frozen=True):
    """Keys of a dataset; names are ids in base 32 (H-24)."""

    def snapshot(self, snapshot_id: SnapshotId) -> str:
        """Key of a structure file."""
        return f"s/{snapshot_id}.parquet"

    def transaction_log(self, snapshot_id: SnapshotId) -> str:
        """Key that a transaction log would have; this generation has none."""
        return f"t/{snapshot_id}.parquet"

    def manifest(self, manifest_id: ManifestId) -> str:
        """Key of a chunk manifest, which spec 000 also calls inventory."""
        return f"i/{manifest_id}.parquet"

    def attributes(self, attributes_id: AttributesId) -> str:
        """Key of an attribute file."""
        return f"a/{attributes_id}.parquet"

    def chunk_file(self, file_id: ChunkFileId) -> str:
        """Key of a chunk file."""
        return f"c/{file_id}"

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
        return ObjectName(kind, identifier) if f"{identifier}{extension}" == name else None
