"""Transaction logs of several commits as one. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.ids import NodeId


def combine(logs: Sequence[TransactionLog]) -> TransactionLog:
    """The log of consecutive commits, oldest first, as if they were one.

    As in the official package, a node that was created and deleted in between vanishes; chunks
    that were set and deleted again stay, also those of an array that was deleted later.
    """
    if len(logs) == 1:
        return logs[0]
    new_groups: set[NodeId] = set()
    new_arrays: set[NodeId] = set()
    deleted_groups: set[NodeId] = set()
    deleted_arrays: set[NodeId] = set()
    updated_groups: set[NodeId] = set()
    updated_arrays: set[NodeId] = set()
    chunks: dict[NodeId, ChunkIndex] = {}
    moves: list[Move] = []
    for log in logs:
        new_groups |= log.new_groups
        new_arrays |= log.new_arrays
        deleted_groups |= log.deleted_groups
        deleted_arrays |= log.deleted_arrays
        updated_groups |= log.updated_groups
        updated_arrays |= log.updated_arrays
        moves.extend(log.moves)
        for node_id, index in log.updated_chunks.items():
            mine = chunks.get(node_id)
            chunks[node_id] = index if mine is None else mine.union(index)
    passing = (new_groups & deleted_groups) | (new_arrays & deleted_arrays)
    gone = passing | deleted_groups | deleted_arrays
    return TransactionLog(
        new_groups=frozenset(new_groups - passing),
        new_arrays=frozenset(new_arrays - passing),
        deleted_groups=frozenset(deleted_groups - passing),
        deleted_arrays=frozenset(deleted_arrays - passing),
        updated_groups=frozenset(updated_groups - gone),
        updated_arrays=frozenset(updated_arrays - gone),
        updated_chunks={i: index for i, index in chunks.items() if i not in passing},
        moves=tuple(move for move in moves if move.node_id not in gone),
    )
