"""Transaction logs of several commits as one. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import NodeId


def combine(logs: Sequence[TransactionLog]) -> TransactionLog:
    """The log of consecutive commits, oldest first, as if they were one.

    As in the official package, a node that was created and deleted in between vanishes; chunks
    that were set and deleted again stay, also those of an array that was deleted later. A node that
    was deleted and brought back counts as updated, but see `brings_back`.
    """
    if len(logs) == 1:
        return logs[0]
    groups, arrays = _Fates(), _Fates()
    chunks: dict[NodeId, ChunkIndex] = {}
    moves: list[Move] = []
    for log in logs:
        groups.follow(log.new_groups, log.deleted_groups, log.updated_groups)
        arrays.follow(log.new_arrays, log.deleted_arrays, log.updated_arrays)
        moves.extend(log.moves)
        for node_id, index in log.updated_chunks.items():
            mine = chunks.get(node_id)
            chunks[node_id] = index if mine is None else mine.union(index)
    passing = groups.passing | arrays.passing
    gone = passing | groups.deleted | arrays.deleted
    return TransactionLog(
        new_groups=frozenset(groups.new),
        new_arrays=frozenset(arrays.new),
        deleted_groups=frozenset(groups.deleted),
        deleted_arrays=frozenset(arrays.deleted),
        updated_groups=frozenset(groups.updated - gone),
        updated_arrays=frozenset(arrays.updated - gone),
        updated_chunks={i: index for i, index in chunks.items() if i not in passing},
        moves=tuple(move for move in moves if move.node_id not in gone),
    )


def brings_back(logs: Sequence[TransactionLog]) -> bool:
    """Whether a node was deleted and created again, as a revert does.

    Then logs do not tell all: chunks that the node had before and does not have now are in none.
    """
    deleted: set[NodeId] = set()
    for log in logs:
        if not deleted.isdisjoint(log.new_groups | log.new_arrays):
            return True
        deleted |= log.deleted_groups | log.deleted_arrays
    return False


class _Fates:
    """What became of the nodes of one kind from the first commit to the last."""

    def __init__(self) -> None:
        self.new: set[NodeId] = set()
        self.deleted: set[NodeId] = set()
        self.updated: set[NodeId] = set()
        self.passing: set[NodeId] = set()
        """Created and deleted in between."""

    def follow(
        self, new: AbstractSet[NodeId], deleted: AbstractSet[NodeId], updated: AbstractSet[NodeId]
    ) -> None:
        """Go on with the next commit."""
        back = self.deleted & new
        self.deleted -= back
        self.passing -= new
        self.new |= new - back
        self.updated |= updated | back
        self.passing |= self.new & deleted
        self.deleted |= deleted - self.new
        self.new -= deleted
