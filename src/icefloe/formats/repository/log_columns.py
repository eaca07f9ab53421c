"""Transaction logs and attribute files of spec version 2."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.formats.columns import (
    pack_integers,
    pack_list,
    unpack_boxes,
    unpack_column,
    unpack_integers,
)
from icefloe.formats.container import bad_file, decode_msgpack, encode_msgpack
from icefloe.formats.nodes import MAX_RANK
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from icefloe.formats.columns import Column


class _Log(msgspec.Struct, omit_defaults=True):
    """The map. Node ids are 8 bytes each, end to end, ascending; columns are as in `columns`."""

    new_groups: bytes = b""
    new_arrays: bytes = b""
    deleted_groups: bytes = b""
    deleted_arrays: bytes = b""
    updated_groups: bytes = b""
    updated_arrays: bytes = b""
    chunk_nodes: bytes = b""
    """Arrays with updated chunks; the next columns have a row for each."""
    chunk_counts: Any = 0
    chunk_ranks: Any = 0
    chunk_lower: Any = 0
    """Lower corners of the boxes around the chunks, end to end."""
    chunk_shapes: Any = 0
    chunk_positions: Any = 0
    """Positions of the chunks in their boxes, for all arrays that do not fill theirs."""
    moves: list[tuple[bytes, str, str]] = []
    """Node, old path and new path, in the order of the moves."""
    repaired_for: bytes = b""
    """The snapshot for which the log was written again."""


_log_decoder = msgspec.msgpack.Decoder(_Log)
_attributes_decoder = msgspec.msgpack.Decoder(list[bytes])


def encode_attributes(rows: Sequence[bytes]) -> bytes:
    """Body of an attribute file: JSON, verbatim."""
    return encode_msgpack(list(rows))


def decode_attributes(body: bytes, key: str) -> list[bytes]:
    """Read the body of an attribute file."""
    return decode_msgpack(_attributes_decoder, body, key)


def encode_transaction_log(log: TransactionLog) -> bytes:
    """Body of a transaction log."""
    packed = _Log(
        new_groups=_pack_ids(log.new_groups),
        new_arrays=_pack_ids(log.new_arrays),
        deleted_groups=_pack_ids(log.deleted_groups),
        deleted_arrays=_pack_ids(log.deleted_arrays),
        updated_groups=_pack_ids(log.updated_groups),
        updated_arrays=_pack_ids(log.updated_arrays),
        moves=[(bytes(move.node_id), move.source, move.target) for move in log.moves],
        repaired_for=bytes(log.repaired_for or b""),
    )
    if log.updated_chunks:
        _pack_chunks(packed, log.updated_chunks)
    return encode_msgpack(packed)


def _pack_ids(ids: Iterable[NodeId]) -> bytes:
    return b"".join(sorted(ids))


def _pack_chunks(packed: _Log, updated: dict[NodeId, ChunkIndex]) -> None:
    nodes = sorted(updated)
    indexes = [updated[node] for node in nodes]
    packed.chunk_nodes = b"".join(nodes)
    packed.chunk_counts = pack_list([len(index) for index in indexes])
    packed.chunk_ranks = pack_list([index.rank for index in indexes])
    packed.chunk_lower = pack_list([low for index in indexes for low in index.box.lower])
    packed.chunk_shapes = pack_list([extent for index in indexes for extent in index.box.shape])
    sparse = [index.linear for index in indexes if index.linear is not None]
    if sparse:
        packed.chunk_positions = pack_integers(np.concatenate(sparse))


def decode_transaction_log(body: bytes, key: str) -> TransactionLog:
    """Read the body of a transaction log."""
    packed = decode_msgpack(_log_decoder, body, key)
    return TransactionLog(
        new_groups=_unpack_ids(packed.new_groups, key),
        new_arrays=_unpack_ids(packed.new_arrays, key),
        deleted_groups=_unpack_ids(packed.deleted_groups, key),
        deleted_arrays=_unpack_ids(packed.deleted_arrays, key),
        updated_groups=_unpack_ids(packed.updated_groups, key),
        updated_arrays=_unpack_ids(packed.updated_arrays, key),
        updated_chunks=_unpack_chunks(packed, key) if packed.chunk_nodes else {},
        moves=tuple(
            Move(_node_id(node, key), source, target) for node, source, target in packed.moves
        ),
        repaired_for=_snapshot_id(packed.repaired_for, key) if packed.repaired_for else None,
    )


def _snapshot_id(data: bytes, key: str) -> SnapshotId:
    if len(data) != SnapshotId.SIZE:
        raise bad_file(key, f"a snapshot id has {SnapshotId.SIZE} bytes, found {len(data)}")
    return SnapshotId(data)


def _node_id(data: bytes, key: str) -> NodeId:
    if len(data) != NodeId.SIZE:
        raise bad_file(key, f"a node id has {NodeId.SIZE} bytes, found {len(data)}")
    return NodeId(data)


def _split_ids(data: bytes, key: str) -> list[NodeId]:
    size = NodeId.SIZE
    if len(data) % size:
        raise bad_file(key, f"{len(data)} bytes cannot be a column of node ids")
    return [NodeId(data[at : at + size]) for at in range(0, len(data), size)]


def _unpack_ids(data: bytes, key: str) -> frozenset[NodeId]:
    return frozenset(_split_ids(data, key)) if data else frozenset()


def _unpack_chunks(packed: _Log, key: str) -> dict[NodeId, ChunkIndex]:
    nodes = _split_ids(packed.chunk_nodes, key)
    ranks = unpack_column(packed.chunk_ranks, len(nodes), key, limit=MAX_RANK)
    lower, shapes = unpack_boxes(packed.chunk_lower, packed.chunk_shapes, ranks, key)
    counts = list(map(int, unpack_column(packed.chunk_counts, len(nodes), key)))
    boxes = _boxes(lower, shapes, ranks)
    if not all(counts):
        raise bad_file(key, "an array is listed that has no updated chunks")
    sparse = sum(count for count, box in zip(counts, boxes, strict=True) if count != box.size)
    positions: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
    if sparse:
        positions = unpack_integers(packed.chunk_positions, sparse, key)
    updated: dict[NodeId, ChunkIndex] = {}
    start = 0
    for node, box, count in zip(nodes, boxes, counts, strict=True):
        linear: npt.NDArray[np.uint64] | None = None
        if count != box.size:
            linear = positions[start : start + count]
            start += count
            if int(linear[-1]) >= box.size or not (linear[1:] > linear[:-1]).all():
                raise bad_file(key, "the positions of updated chunks do not ascend in their box")
        updated[node] = ChunkIndex(box, linear)
    if len(updated) != len(nodes):
        raise bad_file(key, "an array is listed twice")
    return updated


def _boxes(lower: Column, shapes: Column, ranks: Column) -> list[Box]:
    boxes = []
    end = 0
    for rank in ranks:
        start, end = end, end + int(rank)
        low = tuple(map(int, lower[start:end]))
        boxes.append(Box(low, tuple(map(operator.add, low, map(int, shapes[start:end])))))
    return boxes
