"""Spec version 2 of the `repository` generation: bodies of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.container import (
    COLUMNS_VERSION,
    Compression,
    FileType,
    bad_file,
    body_of,
    make_file,
)
from icefloe.formats.repository import manifest_columns
from icefloe.formats.snapshot_columns import decode_snapshot, encode_snapshot
from icefloe.model.manifest import lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.formats.container import Header
    from icefloe.formats.port import EncodedFile, NeedsMore
    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks, ManifestBlock, ManifestIndex
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


class ColumnsCodec:
    """Writes and reads the files of spec version 2."""

    spec_version: int = COLUMNS_VERSION
    writes_columns: bool = True

    def encode_snapshot(self, snapshot: Snapshot, level: int) -> EncodedFile:
        """Bytes of a snapshot file."""
        return _file(FileType.SNAPSHOT, encode_snapshot(snapshot), level)

    def decode_snapshot(
        self, data: bytes, header: Header | None, snapshot_id: SnapshotId, key: str
    ) -> Snapshot:
        """Read a snapshot file."""
        return decode_snapshot(body_of(data, header, key), snapshot_id, key)

    def encode_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[ManifestBlock]] | None,
        level: int,
    ) -> EncodedFile:
        """Bytes of a manifest file: an index and blocks, each compressed separately."""
        return manifest_columns.encode_manifest(*(arranged or lay_out(parts)), level)

    def decode_manifest_index(
        self, prefix: bytes, header: Header | None, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read the index from the first bytes of a manifest file."""
        if header is None or header.compression != Compression.NONE:
            raise bad_file(key, "a manifest of spec version 2 is compressed in parts only")
        return manifest_columns.decode_manifest_index(prefix, size, key)

    def encode_attributes(self, rows: Sequence[bytes], level: int) -> EncodedFile:
        """Bytes of an attribute file."""
        from icefloe.formats.repository import log_columns

        return _file(FileType.ATTRIBUTES, log_columns.encode_attributes(rows), level)

    def decode_attributes(self, data: bytes, header: Header | None, key: str) -> list[bytes]:
        """Read an attribute file."""
        from icefloe.formats.repository import log_columns

        return log_columns.decode_attributes(body_of(data, header, key), key)

    def encode_transaction_log(self, log: TransactionLog, level: int) -> EncodedFile:
        """Bytes of a transaction log."""
        from icefloe.formats.repository import log_columns

        return _file(FileType.TRANSACTION_LOG, log_columns.encode_transaction_log(log), level)

    def decode_transaction_log(
        self, data: bytes, header: Header | None, key: str
    ) -> TransactionLog:
        """Read a transaction log."""
        from icefloe.formats.repository import log_columns

        return log_columns.decode_transaction_log(body_of(data, header, key), key)


def _file(file_type: FileType, body: bytes, level: int) -> EncodedFile:
    return make_file(COLUMNS_VERSION, file_type, body, level)
