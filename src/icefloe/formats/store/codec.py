"""The codec of the `store` generation: JSON, read and written whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.container import bad_file
from icefloe.formats.logless import LoglessCodec
from icefloe.formats.port import EncodedFile, NeedsMore
from icefloe.formats.store import manifest_json, snapshot_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks, ManifestBlock, ManifestIndex
    from icefloe.model.snapshot import Snapshot


class StoreCodec(LoglessCodec, frozen=True):
    """Values to bytes and back."""

    spec_version: int = 1

    def encode_snapshot(self, snapshot: Snapshot) -> EncodedFile:
        """Bytes of a snapshot file."""
        return _file(snapshot_json.encode_snapshot(snapshot))

    def decode_snapshot(self, data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
        """Read a snapshot file that was found under the name of `snapshot_id`."""
        return snapshot_json.decode_snapshot(data, snapshot_id, key)

    @property
    def writes_columns(self) -> bool:
        """Whether `encode_manifest` needs neither parts nor numbers if it has `arranged`."""
        return False

    def spec_version_of(self, data: bytes, key: str) -> int:
        """Version of the layout of a snapshot file."""
        if data.lstrip()[:1] != b"{":
            raise bad_file(key, f"expected a JSON object, found {data[:12]!r}")
        return self.spec_version

    def encode_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[ManifestBlock]] | None = None,
        numbers: Mapping[NodeId, int] | None = None,
        *,
        manifest_id: ManifestId | None = None,
    ) -> EncodedFile:
        """Bytes of a manifest file of at least one reference."""
        del arranged, numbers, manifest_id
        return _file(manifest_json.encode_manifest(parts))

    def decode_manifest_index(
        self, prefix: bytes, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read a manifest file, all of it: JSON has no index."""
        if len(prefix) < size:
            return NeedsMore(size)
        return manifest_json.decode_manifest(prefix, key)

    def decode_block(
        self, index: ManifestIndex, number: int, data: bytes, key: str
    ) -> ManifestBlock:
        """One block of a manifest that is in memory."""
        del data
        if index.resident is None:
            raise bad_file(key, "manifests of a store are read whole")
        return index.resident[number]

    def encode_attributes(self, rows: Sequence[bytes]) -> EncodedFile:
        """Bytes of an attribute file: one JSON object per row, verbatim."""
        return _file(manifest_json.encode_attributes(rows))

    def decode_attributes(self, data: bytes, key: str) -> list[bytes]:
        """Read an attribute file."""
        return manifest_json.decode_attributes(data, key)


def _file(data: bytes) -> EncodedFile:
    return EncodedFile(data, {"content_format": "json"})
