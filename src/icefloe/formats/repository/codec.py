"""The codec of the `repository` generation: writes one spec version, reads all layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from icefloe.errors import InvalidInputError
from icefloe.formats.container import (
    COLUMNS_VERSION,
    DEFAULT_LEVEL,
    HEADER_SIZE,
    ROWS_VERSION,
    WIDE_HEADER_SIZE,
    Compression,
    FileType,
    Header,
    bad_file,
    body_of,
    compress,
    make_header,
    object_attributes,
    read_header,
)
from icefloe.formats.port import EncodedFile, NeedsMore
from icefloe.formats.repository import log_columns, manifest_columns, snapshot_columns
from icefloe.model.manifest import lay_out
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks, Block, ManifestIndex
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


class RepositoryCodec(Record, frozen=True):
    """Values to bytes and back, in spec version 1 (rows) or 2 (columns)."""

    spec_version: int = COLUMNS_VERSION
    """The version that is written."""
    level: int = DEFAULT_LEVEL
    """Of the compression by zstd."""

    def __post_init__(self) -> None:
        if self.spec_version not in {ROWS_VERSION, COLUMNS_VERSION}:
            raise InvalidInputError(
                f"the repository generation has spec versions {ROWS_VERSION} and "
                f"{COLUMNS_VERSION}, found {self.spec_version}"
            )

    @property
    def writes_columns(self) -> bool:
        """Whether `encode_manifest` needs neither parts nor numbers if it has `arranged`."""
        return self.spec_version == COLUMNS_VERSION

    def spec_version_of(self, data: bytes, key: str) -> int:
        """Version of the layout of a snapshot file; 0 for layouts that are only read."""
        header = read_header(data, FileType.SNAPSHOT, key)
        return 0 if header is None or header.size != HEADER_SIZE else header.spec_version

    # --- snapshots

    def encode_snapshot(self, snapshot: Snapshot) -> EncodedFile:
        """Bytes of a snapshot file."""
        if self.spec_version == COLUMNS_VERSION:
            body = snapshot_columns.encode_snapshot(snapshot)
        else:
            from icefloe.formats.repository import rows

            body = rows.encode_snapshot(snapshot)
        return self._file(FileType.SNAPSHOT, body)

    def decode_snapshot(self, data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
        """Read a snapshot file that was found under the name of `snapshot_id`."""
        header = read_header(data, FileType.SNAPSHOT, key)
        if _is_columns(header):
            return snapshot_columns.decode_snapshot(body_of(data, header, key), snapshot_id, key)
        from icefloe.formats.repository import row_reader

        return row_reader.decode_snapshot(data, header, snapshot_id, key)

    # --- manifests

    def encode_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[Block]] | None = None,
        numbers: Mapping[NodeId, int] | None = None,
    ) -> EncodedFile:
        """Bytes of a manifest file of at least one reference."""
        del numbers
        if self.spec_version == COLUMNS_VERSION:
            return manifest_columns.encode_manifest(*(arranged or lay_out(parts)), self.level)
        from icefloe.formats.repository import rows

        return self._file(FileType.MANIFEST, rows.encode_manifest(parts))

    def decode_manifest_index(
        self, prefix: bytes, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read the index from the first bytes of a manifest file of `size` bytes."""
        if len(prefix) < min(size, WIDE_HEADER_SIZE):
            return NeedsMore(min(size, WIDE_HEADER_SIZE))
        header = read_header(prefix, FileType.MANIFEST, key)
        if _is_columns(header):
            if header.compression != Compression.NONE:
                raise bad_file(key, "a manifest of spec version 2 is compressed in parts only")
            return manifest_columns.decode_manifest_index(prefix, size, key)
        if len(prefix) < size:
            return NeedsMore(size)
        from icefloe.formats.repository import row_reader

        return row_reader.decode_manifest(prefix, header, key)

    def decode_block(self, index: ManifestIndex, number: int, data: bytes, key: str) -> Block:
        """Read one block from the bytes that the index's span names."""
        if index.resident is not None:
            return index.resident[number]
        return manifest_columns.decode_block(index, number, data, key)

    # --- attribute files

    def encode_attributes(self, rows: Sequence[bytes]) -> EncodedFile:
        """Bytes of an attribute file: one JSON object per row, verbatim."""
        if self.spec_version == COLUMNS_VERSION:
            body = log_columns.encode_attributes(rows)
        else:
            from icefloe.formats.repository import rows as row_format

            body = row_format.encode_attributes(rows)
        return self._file(FileType.ATTRIBUTES, body)

    def decode_attributes(self, data: bytes, key: str) -> list[bytes]:
        """Read an attribute file."""
        header = read_header(data, FileType.ATTRIBUTES, key)
        if header is None:
            raise bad_file(key, "not an attribute file: it does not start with the magic bytes")
        if _is_columns(header):
            return log_columns.decode_attributes(body_of(data, header, key), key)
        from icefloe.formats.repository import row_reader

        return row_reader.decode_attributes(data, header, key)

    # --- transaction logs

    def encode_transaction_log(self, log: TransactionLog) -> EncodedFile:
        """Bytes of a transaction log."""
        if self.spec_version == COLUMNS_VERSION:
            body = log_columns.encode_transaction_log(log)
        else:
            from icefloe.formats.repository import rows

            body = rows.encode_transaction_log(log)
        return self._file(FileType.TRANSACTION_LOG, body)

    def decode_transaction_log(self, data: bytes, key: str) -> TransactionLog:
        """Read a transaction log."""
        header = read_header(data, FileType.TRANSACTION_LOG, key)
        if _is_columns(header):
            return log_columns.decode_transaction_log(body_of(data, header, key), key)
        from icefloe.formats.repository import row_reader

        return row_reader.decode_transaction_log(data, header, key)

    def _file(self, file_type: FileType, body: bytes) -> EncodedFile:
        kind = (self.spec_version, file_type, Compression.ZSTD)
        return EncodedFile(
            make_header(*kind) + compress(body, self.level), object_attributes(*kind)
        )


def _is_columns(header: Header | None) -> TypeGuard[Header]:
    return (
        header is not None and header.size == HEADER_SIZE and header.spec_version == COLUMNS_VERSION
    )
