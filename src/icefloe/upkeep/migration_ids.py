"""Which ids the things of a repository get in a copy of another generation.

Nearly all keep theirs. Nodes get numbers where the target numbers them, and ids of 16 bytes, which
other implementations gave, become ids of 12: the same ones each time.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

from icefloe.formats.port import NodeNumbering, numbered_id
from icefloe.model.chunk_refs import ChunkRefs
from icefloe.model.ids import ChunkFileId, Identifier, NodeId
from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Iterable

_Id = TypeVar("_Id", bound=Identifier)


def narrow(identifier: _Id) -> _Id:
    """An id of 12 bytes, for one that another implementation gave of 16 (spec 003)."""
    if len(identifier) == identifier.SIZE:
        return identifier
    digest = hashlib.blake2b(identifier, digest_size=identifier.SIZE).digest()
    return type(identifier)(digest)


class NewIds:
    """The ids of nodes and chunk files in the target of a migration."""

    def __init__(self, numbering: NodeNumbering | None) -> None:
        """Take how the target numbers its nodes, if it does."""
        self._numbering = numbering
        self._nodes: dict[NodeId, NodeId] = {}
        self._originals: dict[ChunkFileId, ChunkFileId] = {}

    @property
    def num_nodes(self) -> int:
        """How many nodes have a number."""
        return len(self._nodes)

    def node(self, node_id: NodeId) -> NodeId:
        """The id of a node; numbers are given in the order in which nodes are asked for."""
        if self._numbering is None:
            return node_id
        found = self._nodes.get(node_id)
        if found is None:
            number = len(self._nodes)
            if self._numbering is NodeNumbering.SEQUENTIAL:
                found = numbered_id(number, hashlib.blake2b(node_id, digest_size=4).digest())
            else:
                found = NodeId(number.to_bytes(NodeId.SIZE, "big"))
            self._nodes[node_id] = found
        return found

    def log(self, log: TransactionLog) -> TransactionLog:
        """A transaction log with the new ids of its nodes."""
        return TransactionLog(
            self._set(log.new_groups),
            self._set(log.new_arrays),
            self._set(log.deleted_groups),
            self._set(log.deleted_arrays),
            self._set(log.updated_groups),
            self._set(log.updated_arrays),
            {self.node(node_id): index for node_id, index in log.updated_chunks.items()},
            tuple(Move(self.node(move.node_id), move.source, move.target) for move in log.moves),
        )

    def _set(self, nodes: Iterable[NodeId]) -> frozenset[NodeId]:
        # Sorted: some may be met here first, and a migration that is started again must agree.
        return frozenset(map(self.node, sorted(nodes)))

    def chunk_files(self, refs: ChunkRefs) -> ChunkRefs:
        """References with the new ids of their chunk files."""
        if refs.files.shape[1] == ChunkFileId.SIZE:
            return refs
        originals = [ChunkFileId(row.tobytes()) for row in refs.files]
        narrowed = [narrow(each) for each in originals]
        self._originals.update(zip(narrowed, originals, strict=True))
        return ChunkRefs(
            refs.kinds,
            refs.sources,
            refs.offsets,
            refs.lengths,
            refs.checksums,
            ChunkRefs.file_column(narrowed),
            refs.locations,
            refs.inline,
        )

    def original(self, file_id: ChunkFileId) -> ChunkFileId:
        """The id that a chunk file has in the source."""
        return self._originals.get(file_id, file_id)
