"""Spec version 1 of the `repository` generation: bodies row by row, and all older layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.formats.container import ROWS_VERSION, FileType, bad_file, make_file
from icefloe.formats.port import NeedsMore
from icefloe.formats.repository import row_reader, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.formats.container import Header
    from icefloe.formats.port import EncodedFile
    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks, ManifestBlock, ManifestIndex
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


class RowsCodec:
    """Writes the files of spec version 1; reads these, and those of every older layout."""

    spec_version: int = ROWS_VERSION
    writes_columns: bool = False

    def encode_snapshot(self, snapshot: Snapshot, level: int) -> EncodedFile:
        """Bytes of a snapshot file."""
        return _file(FileType.SNAPSHOT, rows.encode_snapshot(snapshot), level)

    def decode_snapshot(
        self, data: bytes, header: Header | None, snapshot_id: SnapshotId, key: str
    ) -> Snapshot:
        """Read a snapshot file."""
        return row_reader.decode_snapshot(data, header, snapshot_id, key)

    def encode_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[ManifestBlock]] | None,
        level: int,
    ) -> EncodedFile:
        """Bytes of a manifest file: one sorted map."""
        del arranged
        return _file(FileType.MANIFEST, rows.encode_manifest(parts), level)

    def decode_manifest_index(
        self, prefix: bytes, header: Header | None, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read a manifest file, all of it: rows have no index."""
        if len(prefix) < size:
            return NeedsMore(size)
        return row_reader.decode_manifest(prefix, header, key)

    def encode_attributes(self, rows_of_json: Sequence[bytes], level: int) -> EncodedFile:
        """Bytes of an attribute file."""
        return _file(FileType.ATTRIBUTES, rows.encode_attributes(rows_of_json), level)

    def decode_attributes(self, data: bytes, header: Header | None, key: str) -> list[bytes]:
        """Read an attribute file."""
        if header is None:
            raise bad_file(key, "not an attribute file: it does not start with the magic bytes")
        return row_reader.decode_attributes(data, header, key)

    def encode_transaction_log(self, log: TransactionLog, level: int) -> EncodedFile:
        """Bytes of a transaction log."""
        return _file(FileType.TRANSACTION_LOG, rows.encode_transaction_log(log), level)

    def decode_transaction_log(
        self, data: bytes, header: Header | None, key: str
    ) -> TransactionLog:
        """Read a transaction log."""
        return row_reader.decode_transaction_log(data, header, key)


def _file(file_type: FileType, body: bytes, level: int) -> EncodedFile:
    return make_file(ROWS_VERSION, file_type, body, level)
