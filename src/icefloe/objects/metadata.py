"""Typed reads and writes of a repository's metadata files, with caches of decoded values."""

from __future__ import annotations

import logging
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from icefloe.errors import FormatError, ObjectNotFoundError, SnapshotNotFoundError
from icefloe.formats.file_sums import sum_of
from icefloe.formats.port import NeedsMore
from icefloe.model.ids import FIRST_SNAPSHOT_ID, AttributesId, ManifestId
from icefloe.model.manifest import Manifest, ManifestBlock, ManifestFileInfo, ManifestIndex, lay_out
from icefloe.model.snapshot import AttributesFileInfo, FileSum
from icefloe.objects.checksums import new_checksum
from icefloe.objects.chunk_cache import ChunkCache
from icefloe.objects.expected import (
    NOBODY,
    Referrer,
    check_file,
    differs,
    not_expected,
    sum_of_stored,
)
from icefloe.objects.shared_caches import CacheBudget, caches_for
from icefloe.storage.concurrency import in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from icefloe.formats.port import EncodedFile, Generation
    from icefloe.model.ids import NodeId, SnapshotId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.transaction_log import TransactionLog
    from icefloe.objects.uploads import Uploads
    from icefloe.storage.port import Storage

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")

WHOLE_FILE_BYTES = 256 * 1024
"""Manifests up to this size are fetched in one request; of larger ones, the index comes first."""
INDEX_PREFIX_BYTES = 64 * 1024
MAX_PARALLEL_FILES = 16


def _load_nothing(number: int) -> ManifestBlock:
    raise AssertionError(f"block {number} was not asked for")


def _as_read(snapshot: Snapshot) -> Snapshot:
    return snapshot


class MetadataFiles:
    """The snapshots, manifests, attribute files and logs of one repository."""

    def __init__(
        self,
        storage: Storage,
        fmt: Generation,
        budget: CacheBudget | None = None,
        parallel: int = MAX_PARALLEL_FILES,
        *,
        verify: bool = False,
        listed: Callable[[], Mapping[SnapshotId, FileSum]] | None = None,
        complete: Callable[[Snapshot], Snapshot] = _as_read,
    ) -> None:
        """Take where the files are, how they are laid out, and how many to handle at a time.

        What is read whole is always compared with what its snapshot remembers of it. `verify` also
        reads complete manifests of which only parts are needed. `listed` returns what references
        remember of snapshot files; each is compared when it is read. `complete` adds to a snapshot
        what references know of it and its file does not say, such as its parent; as that may
        change, it is asked each time.
        """
        self._complete = complete
        self._listed = listed
        self._parallel = parallel
        self._verify = verify
        self._verified: set[ManifestId] = set()
        self.storage = storage
        self.format = fmt
        self._given: dict[SnapshotId, bytes] = {}
        self._first: Snapshot | None = None
        self._written: Snapshot | None = None
        self._uploads: Uploads | None = None
        self._caches, self._scope = caches_for(storage, budget or CacheBudget(), fmt.name)
        # Expiry by anybody may give a snapshot another parent: who opens again, reads again.
        own = object() if fmt.replaces_snapshots else None
        self._snapshots_scope = self._scope if own is None else (self._scope, own)

    def through(self, uploads: Uploads) -> MetadataFiles:
        """The same files for who writes several of them at a time, and then waits for all."""
        twin = copy(self)
        twin.__dict__["_uploads"] = uploads
        return twin

    # --- snapshots and logs

    def give_snapshot_file(self, snapshot_id: SnapshotId, data: bytes) -> None:
        """Seed the cache with a snapshot file that was already read."""
        self._given[snapshot_id] = data

    def read_snapshot(self, snapshot_id: SnapshotId, *, reread: bool = False) -> Snapshot:
        """Read a snapshot; raises SnapshotNotFoundError. `reread` ignores the cache."""
        prefetched = self._given.pop(snapshot_id, None)
        snapshot = None if reread else self._kept_snapshot(snapshot_id)
        if snapshot is not None:
            return self._complete(snapshot)
        # A caller that needs the current state does not join a read that began earlier.
        return self._caches.flights.do(
            (self._snapshots_scope, snapshot_id, reread),
            lambda: self._read_snapshot(snapshot_id, prefetched, reread=reread),
        )

    def _read_snapshot(
        self, snapshot_id: SnapshotId, prefetched: bytes | None, *, reread: bool
    ) -> Snapshot:
        snapshot = None if reread else self._kept_snapshot(snapshot_id)
        if snapshot is not None:
            return self._complete(snapshot)  # somebody else was quicker
        key = self.format.layout.snapshot(snapshot_id)
        try:
            data = prefetched or self.storage.get(key)
        except ObjectNotFoundError:
            raise SnapshotNotFoundError(
                f"snapshot {snapshot_id} does not exist in {self.storage.location}",
                str(snapshot_id),
            ) from None
        expected = None if self._listed is None else self._listed().get(snapshot_id)
        if expected is not None:
            check_file(data, expected, "snapshot", key, Referrer(snapshot_id))
        snapshot = self.format.codec.decode_snapshot(data, snapshot_id, key)
        snapshot = msgspec.structs.replace(snapshot, own_file=sum_of(data))
        logger.debug("read snapshot %s: %d bytes", snapshot_id, len(data))
        self._keep_snapshot(snapshot, 10 * len(data))
        return self._complete(snapshot)

    def find_snapshots(self, snapshot_ids: Sequence[SnapshotId]) -> list[Snapshot | None]:
        """Read snapshots in parallel where that is quicker; None for missing ones."""
        if self.storage.capabilities.reads_are_immediate or all(
            self.has_snapshot(each) for each in snapshot_ids
        ):
            return [self.find_snapshot(each) for each in snapshot_ids]
        return self.in_parallel(self.find_snapshot, snapshot_ids)

    def find_snapshot(self, snapshot_id: SnapshotId) -> Snapshot | None:
        """Read a snapshot, if it is there."""
        try:
            return self.read_snapshot(snapshot_id)
        except SnapshotNotFoundError:
            return None

    def known_file(self, snapshot_id: SnapshotId) -> FileSum | None:
        """Size and checksum of the file of a snapshot, if that is at hand."""
        snapshot = self._kept_snapshot(snapshot_id)
        return None if snapshot is None else snapshot.own_file

    def last_written(self) -> Snapshot | None:
        """The snapshot that was written last, if any."""
        return self._written

    def chunk_cache(self) -> ChunkCache | None:
        """Where the bytes of chunks are kept; None if none are."""
        if self._caches.chunks.max_bytes == 0:
            return None
        return ChunkCache(self._caches.chunks, self._scope)

    def forget(self) -> None:
        """Drop everything that is cached, after objects were deleted."""
        self._caches.clear()
        self._first = None

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        """Whether a snapshot is at hand without reading it."""
        return self._kept_snapshot(snapshot_id) is not None

    def _kept_snapshot(self, snapshot_id: SnapshotId) -> Snapshot | None:
        if snapshot_id == FIRST_SNAPSHOT_ID:
            return self._first
        return self._caches.snapshots.get((self._snapshots_scope, snapshot_id))

    def _keep_snapshot(self, snapshot: Snapshot, nbytes: int) -> None:
        if snapshot.id == FIRST_SNAPSHOT_ID:
            # All repositories have it, and each another one.
            self._first = snapshot
        else:
            self._caches.snapshots.put((self._snapshots_scope, snapshot.id), snapshot, nbytes)

    def write_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """Write a snapshot, which is invisible until a reference points to it.

        Returns it with what its child remembers of the file.
        """
        file = self.format.codec.encode_snapshot(snapshot)
        self._put(self.format.layout.snapshot(snapshot.id), file)
        snapshot = msgspec.structs.replace(snapshot, own_file=sum_of(file.data))
        self._keep_snapshot(snapshot, 10 * len(file.data))
        self._written = snapshot
        return snapshot

    def create_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot whose file must not exist; raises AlreadyExistsError."""
        file = self.format.codec.encode_snapshot(snapshot)
        key = self.format.layout.snapshot(snapshot.id)
        self.storage.create(key, file.data, self._attributes(file))
        self._written = msgspec.structs.replace(snapshot, own_file=sum_of(file.data))
        self._keep_snapshot(self._written, 10 * len(file.data))

    def read_transaction_log(
        self, snapshot_id: SnapshotId, *, check: bool = True, of: Snapshot | None = None
    ) -> TransactionLog | None:
        """Read what a commit changed; None if it has no log (the first one; some layouts).

        `check` says whether it must be the file that the snapshot remembers, `of` is the snapshot
        where the caller has it.
        """
        if not self.format.keeps_logs:
            return None
        key = self.format.layout.transaction_log(snapshot_id)
        entry = self._caches.logs.get((self._scope, snapshot_id)) if check else None
        if entry is None:
            try:
                data = self.storage.get(key)
            except ObjectNotFoundError:
                return None
            entry = self.format.codec.decode_transaction_log(data, key), sum_of(data)
        log, file = entry
        if not check:
            return log
        # Who rebases needs no snapshot to read its log; one that is at hand is asked all the same.
        snapshot = of or self._kept_snapshot(snapshot_id)
        if snapshot is None and self._verify:
            snapshot = self.read_snapshot(snapshot_id)
        expected = None if snapshot is None else snapshot.log_file
        if expected is not None and log.repaired_for != snapshot_id and differs(file, expected):
            raise not_expected(file, expected, "transaction log", key, Referrer(snapshot_id))
        self._caches.logs.put((self._scope, snapshot_id), entry, log.num_changes)
        return log

    def write_transaction_log(self, snapshot: Snapshot, log: TransactionLog) -> FileSum | None:
        """Write what the commit of a snapshot changed, in generations that keep logs.

        Returns what the snapshot should remember of the file.
        """
        if not self.format.keeps_logs:
            return None
        file = self.format.codec.encode_transaction_log(log, snapshot)
        self._put(self.format.layout.transaction_log(snapshot.id), file)
        written = sum_of(file.data)
        # Repair writes a log a second time: what is kept of it is not the first one.
        self._caches.logs.put((self._scope, snapshot.id), (log, written), log.num_changes)
        return written if self.format.keeps_checksums else None

    # --- manifests

    def manifest(
        self,
        manifest_id: ManifestId,
        size_bytes: int,
        file_checksum: int = 0,
        referrer: Referrer = NOBODY,
    ) -> Manifest:
        """Open a manifest: its index now, its blocks when they are needed.

        `size_bytes` is the size of the file and `file_checksum` its CRC-32C; 0 where an old layout
        does not say. The latter is compared if the file is read whole; errors name the referrer.
        """
        expected = FileSum(size_bytes, file_checksum)
        index = self._caches.indexes.get((self._scope, manifest_id))
        is_unverified = self._verify and file_checksum and manifest_id not in self._verified
        # A small file that is yet to be read is compared then.
        if is_unverified and (index is not None or size_bytes > WHOLE_FILE_BYTES):
            self._verify_manifest(manifest_id, expected, referrer)
        if index is None:
            index = self._caches.flights.do(
                (self._scope, manifest_id),
                lambda: self._kept_index(manifest_id, expected, referrer),
            )
        if index.resident is not None:
            return Manifest(index, index.resident.__getitem__)
        return Manifest(index, lambda number: self._block(manifest_id, index, number))

    def has_manifest(self, manifest_id: ManifestId) -> bool:
        """Whether a manifest, or the index of a large one, is at hand without reading it."""
        return self._caches.indexes.get((self._scope, manifest_id)) is not None

    def is_at_hand(self, manifest_id: ManifestId, node_id: NodeId, coords: Sequence[int]) -> bool:
        """Whether a chunk can be found in a manifest without reading anything."""
        index = self._caches.indexes.get((self._scope, manifest_id))
        if index is None:
            return False
        if index.resident is not None:
            return True
        number = Manifest(index, _load_nothing).block_for(node_id, coords)
        if number is None:
            return True
        return self._caches.blocks.get((self._scope, manifest_id, number)) is not None

    def write_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        set_name: str = "",
        numbers: Mapping[NodeId, int] | None = None,
    ) -> ManifestFileInfo:
        """Write the references of some arrays as one manifest of a manifest set.

        `numbers` are the `other_numbers` of the snapshot that it is for.
        """
        return self._write_manifest(parts, lay_out(parts), set_name, numbers)

    @property
    def writes_columns(self) -> bool:
        """Whether a manifest can be written from its columns alone."""
        return self.format.codec.writes_columns

    def write_arranged(
        self, index: ManifestIndex, blocks: list[ManifestBlock], set_name: str
    ) -> ManifestFileInfo:
        """Write a manifest whose rows are arranged already; only where `writes_columns`."""
        return self._write_manifest((), (index, blocks), set_name)

    def _write_manifest(
        self,
        parts: Sequence[tuple[NodeId, ArrayChunks]],
        arranged: tuple[ManifestIndex, list[ManifestBlock]],
        set_name: str,
        numbers: Mapping[NodeId, int] | None = None,
    ) -> ManifestFileInfo:
        manifest_id = ManifestId.random()
        index, blocks = arranged
        file = self.format.codec.encode_manifest(parts, arranged, numbers, manifest_id=manifest_id)
        self._put(self.format.layout.manifest(manifest_id), file)
        if len(file.data) <= WHOLE_FILE_BYTES:
            # Whoever writes a small manifest is often the next to read it.
            index = msgspec.structs.replace(index, resident=tuple(blocks))
            self._caches.indexes.put((self._scope, manifest_id), index, index.nbytes)
        count = int(index.block_rows[-1])
        info = ManifestFileInfo(
            id=manifest_id, size_bytes=len(file.data), num_chunk_refs=count, set_name=set_name
        )
        if not self.format.keeps_checksums:
            return info
        return msgspec.structs.replace(info, checksum=new_checksum(file.data))

    def _verify_manifest(
        self, manifest_id: ManifestId, expected: FileSum, referrer: Referrer
    ) -> None:
        """Compare all bytes of a manifest, once."""
        key = self.format.layout.manifest(manifest_id)
        try:
            found = sum_of_stored(self.storage, key, expected.size_bytes)
        except ObjectNotFoundError:
            raise self._missing(key) from None
        if differs(found, expected):
            raise not_expected(found, expected, "manifest", key, referrer)
        self._verified.add(manifest_id)

    def _read_index(
        self, manifest_id: ManifestId, expected: FileSum, referrer: Referrer
    ) -> ManifestIndex:
        key = self.format.layout.manifest(manifest_id)
        size = expected.size_bytes
        if size <= WHOLE_FILE_BYTES:
            data = self._get(key)
            size = len(data)
            if expected.checksum:
                check_file(data, expected, "manifest", key, referrer)
                self._verified.add(manifest_id)
        else:
            data = self._index_bytes(key, INDEX_PREFIX_BYTES, size)
        answer = self.format.codec.decode_manifest_index(data, size, key)
        if isinstance(answer, NeedsMore):
            if answer.length > size or answer.length <= len(data):
                raise FormatError(
                    f"{key}: the index would need {answer.length} of {size} bytes", key
                )
            data = self._index_bytes(key, answer.length, size)
            answer = self.format.codec.decode_manifest_index(data, size, key)
        if isinstance(answer, NeedsMore):
            raise FormatError(f"{key}: the index does not end where it says", key)
        if answer.resident is None and len(data) == size:
            for number, (start, length) in enumerate(answer.block_spans.tolist()):
                block = self.format.codec.decode_block(
                    answer, number, data[start : start + length], key
                )
                self._caches.blocks.put((self._scope, manifest_id, number), block, block.nbytes)
        return answer

    def _kept_index(
        self, manifest_id: ManifestId, expected: FileSum, referrer: Referrer
    ) -> ManifestIndex:
        index = self._caches.indexes.get((self._scope, manifest_id))
        if index is None:
            index = self._read_index(manifest_id, expected, referrer)
            self._caches.keep_index((self._scope, manifest_id), index)
        return index

    def _index_bytes(self, key: str, length: int, size: int) -> bytes:
        """The part of a manifest file that its index is in, or the beginning of that part."""
        if self.format.index_at_end and length < size:
            return self._get(key, length, size - length)
        return self._get(key, length)

    def _block(self, manifest_id: ManifestId, index: ManifestIndex, number: int) -> ManifestBlock:
        block = self._caches.blocks.get((self._scope, manifest_id, number))
        if block is None:
            key = self.format.layout.manifest(manifest_id)
            start, length = index.block_spans[number].tolist()
            data = self.storage.get(key, start, length)
            block = self.format.codec.decode_block(index, number, data, key)
            self._caches.blocks.put((self._scope, manifest_id, number), block, block.nbytes)
        return block

    # --- attributes

    def document(self, node: Node, snapshot: Snapshot | None = None) -> bytes:
        """The whole zarr.json of a node, verbatim; `snapshot` is the one that the node is from."""
        if node.attributes is None:
            return node.document
        from icefloe.objects.attributes import join_document

        ref = node.attributes
        rows = self._caches.attributes.get((self._scope, ref.file))
        if rows is None:
            key = self.format.layout.attributes(ref.file)
            data = self._get(key)
            if snapshot is not None:
                for info in snapshot.attribute_files:
                    if info.id == ref.file:
                        expected = FileSum(info.size_bytes, info.checksum)
                        referrer = Referrer(snapshot.id, node.path)
                        check_file(data, expected, "attribute file", key, referrer)
            rows = self.format.codec.decode_attributes(data, key)
            self._caches.attributes.put((self._scope, ref.file), rows, sum(map(len, rows)))
        if ref.row >= len(rows):
            raise FormatError(
                f"attribute file {ref.file} has {len(rows)} rows; {node.path} wants row {ref.row}",
                self.format.layout.attributes(ref.file),
            )
        return join_document(node.document, rows[ref.row], ref.position)

    def documents_of(self, snapshot: Snapshot) -> Callable[[Node], bytes]:
        """Gives the whole zarr.json of nodes of a snapshot."""
        return partial(self.document, snapshot=snapshot)

    def write_attributes(self, rows: Sequence[bytes]) -> AttributesFileInfo:
        """Write an attribute file; returns it as snapshots list it."""
        attributes_id = AttributesId.random()
        file = self.format.codec.encode_attributes(rows)
        self._put(self.format.layout.attributes(attributes_id), file)
        return AttributesFileInfo(attributes_id, len(file.data), new_checksum(file.data))

    # --- many at once

    def in_parallel(self, work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """Run something for each item, at the same time where there are several."""
        return in_threads(work, items, self._parallel)

    def _get(self, key: str, length: int | None = None, start: int = 0) -> bytes:
        try:
            return self.storage.get(key, start, length)
        except ObjectNotFoundError:
            raise self._missing(key) from None

    def _missing(self, key: str) -> FormatError:
        return FormatError(
            f"{key} is missing from {self.storage.location}, although a snapshot refers to it; "
            "the repository is damaged or was cleaned up while it was open",
            key,
        )

    def _attributes(self, file: EncodedFile) -> dict[str, str] | None:
        return file.attributes if self.storage.capabilities.keeps_attributes else None

    def _put(self, key: str, file: EncodedFile) -> None:
        put = self.storage.put if self._uploads is None else self._uploads.put
        put(key, file.data, self._attributes(file))
        logger.debug("wrote %s: %d bytes", key, len(file.data))
