"""Transaction logs of both versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.icechunk.builder import OFFSET, Builder
from icefloe.formats.icechunk.manifest_records import MAX_COORDINATE
from icefloe.formats.icechunk.tables import Body, distinct
from icefloe.formats.nodes import MAX_RANK
from icefloe.model.chunk_index import ChunkIndex, bounding_box
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.paths import child_prefix
from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from icefloe.formats.icechunk.builder import TableRecords
    from icefloe.formats.icechunk.tables import Tables
    from icefloe.model.nodes import NodeTable
    from icefloe.model.snapshot import Snapshot

_GROUP, _ARRAY = 0, 1
"""Kinds of moved nodes: other numbers than snapshots have."""


# --- decoding


def decode_transaction_log(data: bytes, key: str) -> TransactionLog:
    """Read the body of a transaction log."""
    body = Body(data, key)
    root = body.root()
    root.ids(0, SnapshotId.SIZE, "the id")
    return TransactionLog(
        new_groups=_ids(root, 1),
        new_arrays=_ids(root, 2),
        deleted_groups=_ids(root, 3),
        deleted_arrays=_ids(root, 4),
        updated_arrays=_ids(root, 5),
        updated_groups=_ids(root, 6),
        updated_chunks=_decode_chunks(root, body),
        moves=_decode_moves(root),
    )


def _ids(root: Tables, slot: int) -> frozenset[NodeId]:
    vector = root.vectors(slot, NodeId.SIZE, "a list of nodes")
    return frozenset(_split(vector.values(f"V{NodeId.SIZE}").tobytes()))


def _split(data: bytes) -> Iterator[NodeId]:
    size = NodeId.SIZE
    return (NodeId(data[at : at + size]) for at in range(0, len(data), size))


def _decode_chunks(root: Tables, body: Body) -> dict[NodeId, ChunkIndex]:
    arrays = root.vectors(7, 4, "the list of updated chunks").tables()
    ids = list(_split(arrays.ids(0, NodeId.SIZE, "the id of an array").tobytes()))
    vectors = arrays.vectors(1, 4, "the updated chunks of an array")
    coords = vectors.tables().vectors(0, 4, "the coordinates of a chunk")
    updated: dict[NodeId, ChunkIndex] = {}
    stop = 0
    for node_id, count in zip(ids, vectors.counts.tolist(), strict=True):
        start, stop = stop, stop + count
        if count == 0:
            continue
        ranks = coords.counts[start:stop]
        rank = int(ranks[0])
        if rank > MAX_RANK or (ranks != rank).any():
            raise body.bad("updated chunks of one array have different numbers of coordinates")
        rows = body.gather_rows(coords.starts[start:stop], 4 * rank)
        updated[node_id] = _index(rows.view("<u4").reshape(count, rank), body)
    if len(updated) != len(vectors.counts.nonzero()[0]):
        raise body.bad("an array is listed twice")
    return updated


def _index(coords: npt.NDArray[np.uint32], body: Body) -> ChunkIndex:
    """Coordinates in any order: official 1.x lists those of split manifests one after the other."""
    try:
        box = bounding_box(coords)
    except InvalidInputError as error:
        raise body.bad(str(error)) from None
    linear = box.linearize(coords)
    is_sorted = bool((linear[1:] > linear[:-1]).all())
    return ChunkIndex.from_sorted(box, linear if is_sorted else distinct(linear))


def _decode_moves(root: Tables) -> tuple[Move, ...]:
    tables = root.vectors(8, 4).tables()
    sources = tables.slices(0, "the old path of a moved node").texts()
    targets = tables.slices(1, "the new path of a moved node").texts()
    ids = _split(tables.ids(2, NodeId.SIZE, "the id of a moved node").tobytes())
    return _collapsed(map(Move, ids, sources, targets))


def _collapsed(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Moves without those of nodes that only went along with a group."""
    moved: dict[str, str] = {}
    moves_of_their_own = []
    for move in sorted(moves, key=lambda move: move.target.split("/")):
        group = _moved_group(move.target, moved)
        if group is None or moved[group] + move.target[len(group) :] != move.source:
            moves_of_their_own.append(move)
        moved[move.target] = move.source
    return tuple(moves_of_their_own)


def _moved_group(path: str, moved: dict[str, str]) -> str | None:
    """The nearest group above a path that moved."""
    while "/" in path[1:]:
        path = path.rpartition("/")[0]
        if path in moved:
            return path
    return None


# --- encoding


def encode_transaction_log(log: TransactionLog, snapshot: Snapshot, version: int) -> bytes:
    """Body of the transaction log of a snapshot."""
    if version == 1 and log.moves:
        raise InvalidInputError(
            "version 1 of the icechunk format cannot record that nodes moved; upgrade the "
            "repository to version 2, or copy the nodes and delete the old ones"
        )
    builder = Builder()
    fields: dict[int, str] = {0: "V12", **dict.fromkeys(range(1, 8), OFFSET)}
    if version > 1:
        fields[8] = OFFSET
    root = builder.tables(1, fields)
    root.put(0, snapshot.id)
    columns = (
        log.new_groups,
        log.new_arrays,
        log.deleted_groups,
        log.deleted_arrays,
        log.updated_arrays,
        log.updated_groups,
    )
    for slot, ids in enumerate(columns, 1):
        items = np.frombuffer(b"".join(sorted(ids)), dtype="V8")
        root.point(slot, builder.vectors([len(items)], items))
    _encode_chunks(builder, root, log.updated_chunks)
    if version > 1:
        _encode_moves(builder, root, log.moves, snapshot.nodes)
    return builder.finish(root.start)


def _encode_chunks(builder: Builder, root: TableRecords, updated: dict[NodeId, ChunkIndex]) -> None:
    nodes = sorted(updated)
    vector = builder.offsets([len(nodes)])
    root.point(7, vector.vectors)
    arrays = builder.tables(len(nodes), {0: "V8", 1: OFFSET})
    vector.point(arrays.positions)
    arrays.put(0, np.frombuffer(b"".join(nodes), dtype="V8"))
    indexes = [updated[node] for node in nodes]
    counts = np.array([len(index) for index in indexes], dtype=np.int64)
    vectors = builder.offsets(counts)
    arrays.point(1, vectors.vectors)
    chunks = builder.tables(int(counts.sum()), {0: OFFSET})
    vectors.point(chunks.positions)
    stop = 0
    for index in indexes:
        start, stop = stop, stop + len(index)
        coords = index.coords()
        if coords.size and int(coords.max()) > MAX_COORDINATE:
            raise InvalidInputError(
                f"a chunk has the coordinate {int(coords.max())}, but this format has only "
                f"coordinates up to {MAX_COORDINATE}; use larger chunks"
            )
        items = coords.astype("<u4").ravel()
        ranks = np.full(len(index), index.rank, dtype=np.int64)
        chunks.point(0, builder.vectors(ranks, items), slice(start, stop))


def _encode_moves(
    builder: Builder, root: TableRecords, moves: tuple[Move, ...], nodes: NodeTable
) -> None:
    expanded = _expanded(moves, nodes)
    vector = builder.offsets([len(expanded)])
    root.point(8, vector.vectors)
    tables = builder.tables(len(expanded), {0: OFFSET, 1: OFFSET, 2: "V8", 3: "u1"})
    vector.point(tables.positions)
    tables.point(0, builder.texts([move.source for move, _ in expanded]))
    tables.point(1, builder.texts([move.target for move, _ in expanded]))
    tables.put(2, np.frombuffer(b"".join([move.node_id for move, _ in expanded]), dtype="V8"))
    tables.put(3, [_ARRAY if is_array else _GROUP for _, is_array in expanded])


def _expanded(moves: tuple[Move, ...], nodes: NodeTable) -> list[tuple[Move, bool]]:
    """The moves with one for each node that went along with a group, and which are of arrays.

    Nodes below that were created again where the group is now did not move.
    """
    by_node: dict[NodeId, tuple[Move, bool]] = {}
    # Groups before what is in them: the move of a node by itself says where it came from.
    for move in sorted(moves, key=lambda move: move.target.split("/")):
        node = nodes.by_id(move.node_id)
        if node is None:
            continue
        by_node[node.id] = move, node.is_array
        prefix = child_prefix(move.target)
        for below in nodes.below(move.target):
            source = child_prefix(move.source) + below.path[len(prefix) :]
            by_node[below.id] = Move(below.id, source, below.path), below.is_array
    return sorted(by_node.values(), key=lambda entry: entry[0].target.split("/"))
