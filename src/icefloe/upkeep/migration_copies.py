"""How a migrated repository corresponds to its original: new ids, and the proof that it is equal.

Nearly all objects keep their ids. Nodes get numbers where the target numbers them, and ids of 16
bytes, which other implementations gave, become ids of 12: the same ones on each run.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

from icefloe.changes.compare import compare_chunks
from icefloe.errors import FormatError
from icefloe.formats.port import NodeNumbering, numbered_id
from icefloe.model.chunk_refs import ChunkRefs
from icefloe.model.ids import ChunkFileId, Identifier, NodeId
from icefloe.model.manifest import ArrayChunks
from icefloe.model.transaction_log import Move, TransactionLog
from icefloe.objects.snapshot_chunks import SnapshotChunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles

_Id = TypeVar("_Id", bound=Identifier)


def narrow(identifier: _Id) -> _Id:
    """An id of 12 bytes for one of 16 that another implementation gave (spec 003)."""
    if len(identifier) == identifier.SIZE:
        return identifier
    digest = hashlib.blake2b(identifier, digest_size=identifier.SIZE).digest()
    return type(identifier)(digest)


class NewIds:
    """The ids of nodes and chunk files in the target of a migration."""

    def __init__(self, numbering: NodeNumbering | None) -> None:
        """Take how the target numbers its nodes; None if it does not."""
        self._numbering = numbering
        self._nodes: dict[NodeId, NodeId] = {}
        self._originals: dict[ChunkFileId, ChunkFileId] = {}

    @property
    def num_nodes(self) -> int:
        """Number of nodes that have a new id."""
        return len(self._nodes)

    def node(self, node_id: NodeId) -> NodeId:
        """The id of a node; numbers are given in the order in which nodes are asked for."""
        if self._numbering is None:
            return node_id
        new_id = self._nodes.get(node_id)
        if new_id is None:
            number = len(self._nodes)
            if self._numbering is NodeNumbering.SEQUENTIAL:
                new_id = numbered_id(number, hashlib.blake2b(node_id, digest_size=4).digest())
            else:
                new_id = NodeId(number.to_bytes(NodeId.SIZE, "big"))
            self._nodes[node_id] = new_id
        return new_id

    def log(self, log: TransactionLog) -> TransactionLog:
        """A transaction log with the new ids of its nodes."""
        return TransactionLog(
            new_groups=self._set(log.new_groups),
            new_arrays=self._set(log.new_arrays),
            deleted_groups=self._set(log.deleted_groups),
            deleted_arrays=self._set(log.deleted_arrays),
            updated_groups=self._set(log.updated_groups),
            updated_arrays=self._set(log.updated_arrays),
            updated_chunks={
                self.node(node_id): index for node_id, index in log.updated_chunks.items()
            },
            moves=tuple(
                Move(self.node(move.node_id), move.source, move.target) for move in log.moves
            ),
        )

    def _set(self, nodes: Iterable[NodeId]) -> frozenset[NodeId]:
        # Sorted, because a node may be met here first, and each run must give the same numbers.
        return frozenset(map(self.node, sorted(nodes)))

    def chunk_files(self, refs: ChunkRefs) -> ChunkRefs:
        """References with the new ids of their chunk files."""
        if refs.files.shape[1] == ChunkFileId.SIZE:
            return refs
        originals = [ChunkFileId(row.tobytes()) for row in refs.files]
        narrowed = [narrow(each) for each in originals]
        self._originals.update(zip(narrowed, originals, strict=True))
        return ChunkRefs(
            kinds=refs.kinds,
            sources=refs.sources,
            offsets=refs.offsets,
            lengths=refs.lengths,
            checksums=refs.checksums,
            files=ChunkRefs.file_column(narrowed),
            locations=refs.locations,
            inline=refs.inline,
        )

    def original(self, file_id: ChunkFileId) -> ChunkFileId:
        """The id that a chunk file has in the source."""
        return self._originals.get(file_id, file_id)


class CopyProof:
    """Compares copied snapshots with their originals; reads no pair of manifests twice."""

    def __init__(
        self,
        source: MetadataFiles,
        target: MetadataFiles,
        as_copied: Callable[[ChunkRefs], ChunkRefs],
    ) -> None:
        """Take both sides, and a function that gives references of the source their new ids."""
        self._source = source
        self._target = target
        self._as_copied = as_copied
        self._equal: set[tuple[object, object]] = set()

    def compare(self, original: Snapshot, copy: Snapshot) -> None:
        """Raise FormatError unless a copy is equal to its original."""
        if list(original.nodes.paths) != list(copy.nodes.paths):
            raise self._unequal(original, "other nodes")
        properties = (original.message, original.written_at, original.public_metadata())
        if properties != (copy.message, copy.written_at, copy.public_metadata()):
            raise self._unequal(original, "another message, time or other properties")
        old_chunks = SnapshotChunks(self._source, original)
        new_chunks = SnapshotChunks(self._target, copy)
        for old, new in zip(original.nodes, copy.nodes, strict=True):
            manifests = (old.manifests, new.manifests)
            if self._source.document(old, original) != self._target.document(new, copy):
                raise self._unequal(original, f"another document of {old.path}")
            if not old.is_array or not new.is_array or manifests in self._equal:
                continue
            table = old_chunks.table(old)
            if table is not None:
                table = ArrayChunks(table.index, self._as_copied(table.refs))
            index = compare_chunks(table, new_chunks.table(new))
            if index is not None:
                raise self._unequal(original, f"{len(index)} other chunks of {old.path}")
            self._equal.add(manifests)

    def _unequal(self, snapshot: Snapshot, what: str) -> FormatError:
        return FormatError(
            f"the copy of snapshot {snapshot.id} in {self._target.storage.location} has {what}; "
            "remove the copy and migrate again"
        )
