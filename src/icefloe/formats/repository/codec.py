"""The codec of the `repository` generation: writes one spec version, reads every layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.container import (
    COLUMNS_VERSION,
    HEADER_SIZE,
    WIDE_HEADER_SIZE,
    FileType,
    read_header,
)
from icefloe.formats.port import DEFAULT_LEVEL, NeedsMore
from icefloe.formats.repository import manifest_columns
from icefloe.formats.repository.columns_codec import ColumnsCodec
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.formats.container import Header
    from icefloe.formats.port import EncodedFile
    from icefloe.formats.repository.rows_codec import RowsCodec
    from icefloe.model.ids import ManifestId, NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks, ManifestBlock, ManifestIndex
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


_COLUMNS = ColumnsCodec()


def codec_of(spec_version: int) -> ColumnsCodec | RowsCodec:
    """The codec of a spec version; that of rows is imported when it is first needed."""
    if spec_version == COLUMNS_VERSION:
        return _COLUMNS
    from icefloe.formats.repository.rows_codec import RowsCodec

    return RowsCodec()


def _reader(header: Header | None) -> ColumnsCodec | RowsCodec:
    """The codec that reads a file; layouts before spec version 1 are read like that one."""
    if header is None or header.size != HEADER_SIZE:
        return codec_of(0)
    return codec_of(header.spec_version)


class RepositoryCodec(Record, frozen=True):
    """Writes the files of one spec version, and reads each file by what its header says."""

    spec_version: int = COLUMNS_VERSION
    """The version that is written."""
    level: int = DEFAULT_LEVEL
    """Of the compression by zstd."""

    @property
    def writes_columns(self) -> bool:
        """Whether `encode_manifest` needs neither parts nor numbers if it has `arranged`."""
        return codec_of(self.spec_version).writes_columns

    def spec_version_of(self, data: bytes, key: str) -> int:
        """Version of the layout of a snapshot file; 0 for layouts that are only read."""
        header = read_header(data, FileType.SNAPSHOT, key)
        return 0 if header is None or header.size != HEADER_SIZE else header.spec_version

    def encode_snapshot(self, snapshot: Snapshot) -> EncodedFile:
        """Bytes of a snapshot file."""
        return codec_of(self.spec_version).encode_snapshot(snapshot, self.level)

    def decode_snapshot(self, data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
        """Read a snapshot file that was found under the name of `snapshot_id`."""
        header = read_header(data, FileType.SNAPSHOT, key)
        return _reader(header).decode_snapshot(data, header, snapshot_id, key)

    def encode_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[ManifestBlock]] | None = None,
        numbers: Mapping[NodeId, int] | None = None,
        *,
        manifest_id: ManifestId | None = None,
    ) -> EncodedFile:
        """Bytes of a manifest file of at least one reference."""
        del numbers, manifest_id
        return codec_of(self.spec_version).encode_manifest(parts, arranged, self.level)

    def decode_manifest_index(
        self, prefix: bytes, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read the index from the first bytes of a manifest file of `size` bytes."""
        if len(prefix) < min(size, WIDE_HEADER_SIZE):
            return NeedsMore(min(size, WIDE_HEADER_SIZE))
        header = read_header(prefix, FileType.MANIFEST, key)
        return _reader(header).decode_manifest_index(prefix, header, size, key)

    def decode_block(
        self, index: ManifestIndex, number: int, data: bytes, key: str
    ) -> ManifestBlock:
        """Read one block from the bytes that the index's span names."""
        if index.resident is not None:
            return index.resident[number]
        return manifest_columns.decode_block(index, number, data, key)

    def encode_attributes(self, rows: Sequence[bytes]) -> EncodedFile:
        """Bytes of an attribute file: one JSON object per row, verbatim."""
        return codec_of(self.spec_version).encode_attributes(rows, self.level)

    def decode_attributes(self, data: bytes, key: str) -> list[bytes]:
        """Read an attribute file."""
        header = read_header(data, FileType.ATTRIBUTES, key)
        return _reader(header).decode_attributes(data, header, key)

    def encode_transaction_log(
        self, log: TransactionLog, snapshot: Snapshot | None = None
    ) -> EncodedFile:
        """Bytes of a transaction log."""
        del snapshot
        return codec_of(self.spec_version).encode_transaction_log(log, self.level)

    def decode_transaction_log(self, data: bytes, key: str) -> TransactionLog:
        """Read a transaction log."""
        header = read_header(data, FileType.TRANSACTION_LOG, key)
        return _reader(header).decode_transaction_log(data, header, key)
