"""The codec of the `dataset` generation: Parquet tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from icefloe.formats.container import bad_file
from icefloe.formats.dataset import attributes_table, manifest_table, structure_table
from icefloe.formats.logless import LoglessCodec
from icefloe.formats.port import DEFAULT_LEVEL, EncodedFile, NeedsMore
from icefloe.model.manifest import lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks, ManifestBlock, ManifestIndex
    from icefloe.model.snapshot import Snapshot


class StructureSchema(msgspec.Struct):
    """Which schema the structure files of a dataset have; once it is wide, it stays so."""

    is_wide: bool = False


class DatasetCodec(LoglessCodec, frozen=True):
    """Values to bytes and back."""

    level: int = DEFAULT_LEVEL
    """Of the compression by zstd."""
    spec_version: int = 1
    schema: StructureSchema = msgspec.field(default_factory=StructureSchema)

    def encode_snapshot(self, snapshot: Snapshot) -> EncodedFile:
        """Bytes of a structure file."""
        rows = structure_table.StructureRows(snapshot)
        self.schema.is_wide |= rows.need_wide_schema
        return _file(rows.encode(self.level, is_wide=self.schema.is_wide))

    def decode_snapshot(self, data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
        """Read a structure file that was found under the name of `snapshot_id`."""
        return structure_table.decode_snapshot(data, snapshot_id, key)

    @property
    def writes_columns(self) -> bool:
        """Whether `encode_manifest` needs neither parts nor numbers if it has `arranged`."""
        return False

    def spec_version_of(self, data: bytes, key: str) -> int:
        """Version of the layout of a structure file."""
        if data[:4] != b"PAR1":
            raise bad_file(key, f"expected a Parquet file, found {data[:12]!r}")
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
        del manifest_id
        index, blocks = arranged or lay_out(parts)
        return _file(manifest_table.encode_manifest(index, blocks, self.level, numbers or {}))

    def decode_manifest_index(
        self, prefix: bytes, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read the index, here from the last bytes of a file of `size` bytes."""
        return manifest_table.decode_index(prefix, size, key)

    def decode_block(
        self, index: ManifestIndex, number: int, data: bytes, key: str
    ) -> ManifestBlock:
        """Read one block, which is a row group, from the bytes that the index's span names."""
        return manifest_table.decode_block(index, number, data, key)

    def encode_attributes(self, rows: Sequence[bytes]) -> EncodedFile:
        """Bytes of an attribute file: one JSON object per row, verbatim."""
        return _file(attributes_table.encode_attributes(rows, self.level))

    def decode_attributes(self, data: bytes, key: str) -> list[bytes]:
        """Read an attribute file."""
        return attributes_table.decode_attributes(data, key)


def _file(data: bytes) -> EncodedFile:
    return EncodedFile(data, {"content_format": "parquet"})
