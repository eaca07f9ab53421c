"""Derives a transaction log from two states, for layouts that have no log files. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model import paths
from icefloe.model.chunk_index import ChunkIndex, bounding_box
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import Node

    ChunkLoader = Callable[[Node], ArrayChunks | None]


def compare_nodes(
    before: Sequence[Node],
    after: Sequence[Node],
    chunks_before: ChunkLoader,
    chunks_after: ChunkLoader,
) -> TransactionLog:
    """What changed from one state to another."""
    old = {node.id: node for node in before}
    new = {node.id: node for node in after}
    created = [node for node in after if node.id not in old]
    deleted = [node for node in before if node.id not in new]
    updated = [n for n in after if n.id in old and _document_differs(old[n.id], n)]
    moves = list(_net_moves(old, {node.path: node for node in before}, after))
    chunks: dict[NodeId, ChunkIndex] = {}
    for node in after:
        if not node.is_array:
            continue
        twin = old.get(node.id)
        if twin is not None and twin.manifests == node.manifests:
            continue
        table = None if twin is None else chunks_before(twin)
        index = compare_chunks(table, chunks_after(node))
        if index is not None:
            chunks[node.id] = index
    return TransactionLog(
        new_groups=frozenset(n.id for n in created if not n.is_array),
        new_arrays=frozenset(n.id for n in created if n.is_array),
        deleted_groups=frozenset(n.id for n in deleted if not n.is_array),
        deleted_arrays=frozenset(n.id for n in deleted if n.is_array),
        updated_groups=frozenset(n.id for n in updated if not n.is_array),
        updated_arrays=frozenset(n.id for n in updated if n.is_array),
        updated_chunks=chunks,
        moves=tuple(moves),
    )


def _net_moves(
    old: Mapping[NodeId, Node], old_by_path: Mapping[str, Node], after: Sequence[Node]
) -> Iterator[Move]:
    """Nodes with another path, without those that only moved along with their parent."""
    new_paths = {node.id: node.path for node in after}
    for node in after:
        twin = old.get(node.id)
        if twin is None or twin.path == node.path:
            continue
        parent = old_by_path.get(paths.parent(twin.path) or paths.ROOT)
        carried = None if parent is None else new_paths.get(parent.id)
        if (
            parent is None
            or carried in {None, parent.path}
            or f"{carried}/{paths.name(twin.path)}" != node.path
        ):
            yield Move(node.id, twin.path, node.path)


def _document_differs(old: Node, new: Node) -> bool:
    return old.document != new.document or old.attributes != new.attributes


def compare_chunks(before: ArrayChunks | None, after: ArrayChunks | None) -> ChunkIndex | None:
    """Coordinates whose reference differs; None if there are none."""
    if before is None or after is None:
        only = before if after is None else after
        return None if only is None else only.index
    coords = np.concatenate([before.index.coords(), after.index.coords()])
    rows_before = before.index.find_many(coords)
    rows_after = after.index.find_many(coords)
    differs = (rows_before < 0) | (rows_after < 0)
    both = np.flatnonzero(~differs)
    differs[both] = _refs_differ(
        before.refs.take(rows_before[both]), after.refs.take(rows_after[both])
    )
    changed = coords[differs]
    if len(changed) == 0:
        return None
    box = bounding_box(changed)
    return ChunkIndex.from_sorted(box, np.unique(box.linearize(changed)))


def _refs_differ(before: ChunkRefs, after: ChunkRefs) -> npt.NDArray[np.bool_]:
    """Whether references of two tables, row by row, say different things."""
    differs: npt.NDArray[np.bool_] = (before.kinds != after.kinds) | (
        before.lengths != after.lengths
    )
    outside = before.kinds != ChunkKind.INLINE
    differs |= outside & ((before.offsets != after.offsets) | (before.checksums != after.checksums))
    for row in np.flatnonzero(~differs & ~outside).tolist():
        differs[row] = before.get(row) != after.get(row)
    rest = np.flatnonzero(~differs & outside)
    # Rows of one pair of dictionary entries agree or differ together.
    pairs = np.stack([before.kinds[rest], before.sources[rest], after.sources[rest]], axis=1)
    distinct, first, where = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    del distinct
    verdicts = [before.get(row) != after.get(row) for row in rest[first].tolist()]
    differs[rest] = np.array(verdicts, dtype=bool)[where.reshape(-1)] if len(rest) else False
    return differs
