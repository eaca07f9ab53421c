"""The codec of the `icechunk` generation: writes one version, reads each file by its header."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from icefloe.errors import InvalidInputError
from icefloe.formats.icechunk.container import FlatFileType, make_file, open_file, read_version
from icefloe.formats.port import DEFAULT_LEVEL, NeedsMore
from icefloe.model.ids import ManifestId
from icefloe.model.manifest import lay_out
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.formats.port import EncodedFile
    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks, ManifestBlock, ManifestIndex
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog


class IcechunkCodec(Record, frozen=True):
    """Writes the files of one version; a repository that was migrated has files of both."""

    spec_version: int = 2
    """The version that is written."""
    level: int = DEFAULT_LEVEL
    """Of the compression by zstd."""

    @property
    def writes_columns(self) -> bool:
        """Whether `encode_manifest` needs neither parts nor numbers if it has `arranged`."""
        return True

    def spec_version_of(self, data: bytes, key: str) -> int:
        """Version of a snapshot file."""
        return read_version(data, FlatFileType.SNAPSHOT, key)

    def encode_snapshot(self, snapshot: Snapshot) -> EncodedFile:
        """Bytes of a snapshot file."""
        from icefloe.formats.icechunk.snapshot_tables import encode_snapshot

        return self._file(FlatFileType.SNAPSHOT, encode_snapshot(snapshot, self.spec_version))

    def decode_snapshot(self, data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
        """Read a snapshot file that was found under the name of `snapshot_id`."""
        from icefloe.formats.icechunk.snapshot_tables import decode_snapshot

        file = open_file(data, FlatFileType.SNAPSHOT, key)
        return decode_snapshot(file.body, file.spec_version, snapshot_id, key)

    def encode_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[ManifestBlock]] | None = None,
        numbers: Mapping[NodeId, int] | None = None,
        *,
        manifest_id: ManifestId | None = None,
    ) -> EncodedFile:
        """Bytes of a manifest file of at least one reference."""
        from icefloe.formats.icechunk.manifest_records import encode_manifest

        del numbers
        index, blocks = arranged or lay_out(parts)
        written_id = manifest_id or ManifestId.random()
        body = encode_manifest(written_id, index, blocks, self.spec_version)
        return self._file(FlatFileType.MANIFEST, body)

    def decode_manifest_index(
        self, prefix: bytes, size: int, key: str
    ) -> ManifestIndex | NeedsMore:
        """Read a manifest file of `size` bytes: all of it, as it cannot be read in parts."""
        from icefloe.formats.icechunk.manifest_tables import decode_manifest

        if len(prefix) < size:
            return NeedsMore(size)
        return decode_manifest(open_file(prefix, FlatFileType.MANIFEST, key).body, key)

    def decode_block(
        self, index: ManifestIndex, number: int, data: bytes, key: str
    ) -> ManifestBlock:
        """The block of a number, which came with the index."""
        del data, key
        assert index.resident is not None
        return index.resident[number]

    def encode_attributes(self, rows: Sequence[bytes]) -> EncodedFile:
        """There are no attribute files."""
        del rows
        _no_attribute_files()

    def decode_attributes(self, data: bytes, key: str) -> list[bytes]:
        """There are no attribute files."""
        del data, key
        _no_attribute_files()

    def encode_transaction_log(
        self, log: TransactionLog, snapshot: Snapshot | None = None
    ) -> EncodedFile:
        """Bytes of the transaction log of a snapshot."""
        from icefloe.formats.icechunk.log_tables import encode_transaction_log

        assert snapshot is not None
        body = encode_transaction_log(log, snapshot, self.spec_version)
        return self._file(FlatFileType.TRANSACTION_LOG, body)

    def decode_transaction_log(self, data: bytes, key: str) -> TransactionLog:
        """Read a transaction log."""
        from icefloe.formats.icechunk.log_tables import decode_transaction_log

        return decode_transaction_log(open_file(data, FlatFileType.TRANSACTION_LOG, key).body, key)

    def _file(self, file_type: FlatFileType, body: bytes) -> EncodedFile:
        return make_file(self.spec_version, file_type, body, self.level)


def _no_attribute_files() -> NoReturn:
    raise InvalidInputError("the icechunk format has no attribute files")
