"""Transaction logs: what one commit changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sized


class Move(Record, frozen=True):
    """A node that got another path."""

    node_id: NodeId
    source: str
    target: str


class TransactionLog(Record, frozen=True):
    """The changes of one commit, by node id (H-32).

    A node that was created and deleted by the same commit is nowhere. Creating a node does not
    count as updating it. Chunks that were set, replaced or deleted are all in `updated_chunks`.
    """

    new_groups: frozenset[NodeId] = frozenset()
    new_arrays: frozenset[NodeId] = frozenset()
    deleted_groups: frozenset[NodeId] = frozenset()
    deleted_arrays: frozenset[NodeId] = frozenset()
    updated_groups: frozenset[NodeId] = frozenset()
    updated_arrays: frozenset[NodeId] = frozenset()
    updated_chunks: dict[NodeId, ChunkIndex] = msgspec.field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    """Net effect of the commit; the move of a group includes all nodes below it."""
    repaired_for: SnapshotId | None = None
    """The snapshot for which this was written a second time, so that its file has another checksum
    than the snapshot remembers; None for logs that were written with their snapshots."""

    @property
    def num_changes(self) -> int:
        """How many nodes and chunks it names; 1 at least."""
        named: tuple[Sized, ...] = (
            self.new_groups,
            self.new_arrays,
            self.deleted_groups,
            self.deleted_arrays,
            self.updated_groups,
            self.updated_arrays,
            self.moves,
            *self.updated_chunks.values(),
        )
        return max(1, sum(map(len, named)))
