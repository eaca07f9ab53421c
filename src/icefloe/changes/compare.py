"""Derives a transaction log from two states, for layouts that have no log files. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.changes.documents import ATTRIBUTES, differing_keys, same_document
from icefloe.model import paths
from icefloe.model.chunk_index import ChunkIndex, bounding_box
from icefloe.model.chunk_refs import ChunkKind, gather_bytes, of_one_width
from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.model.chunk_refs import ChunkRefs, Locations
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode, Node

    ChunkLoader = Callable[[ArrayNode], ArrayChunks | None]
    DocumentLoader = Callable[[Node], bytes]


class ReadableNodes(NamedTuple):
    """Nodes, with how to read what they refer to."""

    nodes: Sequence[Node]
    chunks: ChunkLoader
    """Gives all chunks of an array."""
    document: DocumentLoader
    """Gives the whole document of a node."""


def compare_nodes(before: ReadableNodes, after: ReadableNodes) -> TransactionLog:
    """The changes from one state to another."""
    old = {node.id: node for node in before.nodes}
    new = {node.id: node for node in after.nodes}
    created = [node for node in after.nodes if node.id not in old]
    deleted = [node for node in before.nodes if node.id not in new]
    updated = [
        node
        for node in after.nodes
        if (twin := old.get(node.id)) is not None and _is_updated(before, twin, after, node)
    ]
    chunks: dict[NodeId, ChunkIndex] = {}
    for node in after.nodes:
        if not node.is_array:
            continue
        twin = old.get(node.id)
        if twin is not None and twin.manifests == node.manifests:
            continue
        table = before.chunks(twin) if twin is not None and twin.is_array else None
        index = compare_chunks(table, after.chunks(node))
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
        moves=net_moves(before.nodes, after.nodes),
    )


def net_moves(before: Sequence[Node], after: Sequence[Node]) -> tuple[Move, ...]:
    """Nodes with another path, without those that only moved along with their parent."""
    old, old_by_path = {node.id: node for node in before}, {node.path: node for node in before}
    new_paths = {node.id: node.path for node in after}
    moves = []
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
            moves.append(Move(node.id, twin.path, node.path))
    return tuple(moves)


def _is_updated(before: ReadableNodes, old: Node, after: ReadableNodes, new: Node) -> bool:
    """Whether the metadata of a node means something else now.

    Another writer may keep attributes in a file, or not, without changing anything.
    """
    if old.document == new.document and old.attributes == new.attributes:
        return False
    if differing_keys(old.outline, new.outline) - {ATTRIBUTES}:
        return True  # without reading attribute files
    return not same_document(before.document(old), after.document(new))


def compare_chunks(before: ArrayChunks | None, after: ArrayChunks | None) -> ChunkIndex | None:
    """Coordinates whose reference differs; None if there are none."""
    if before is None or after is None:
        only = before if after is None else after
        return None if only is None else only.index
    coords = np.concatenate([before.index.coords(), after.index.coords()])
    rows_before = before.index.find_many(coords)
    rows_after = after.index.find_many(coords)
    differs = (rows_before < 0) | (rows_after < 0)
    # What both have is in the first part; in the second it would be compared again.
    both = np.flatnonzero(~differs[: len(before)])
    if len(both):
        old, new = before.refs.take(rows_before[both]), after.refs.take(rows_after[both])
        differs[both] = ~same_refs(old, new)
    changed = coords[differs]
    if len(changed) == 0:
        return None
    box = bounding_box(changed)
    return ChunkIndex.from_sorted(box, np.unique(box.linearize(changed)))


def disputed(ours: ChunkEdits, theirs: ChunkEdits) -> npt.NDArray[np.uint64]:
    """Coordinates (n, rank) of chunks that two sides edited, each in its own way."""
    common = ours.touched_by_both(theirs)
    if common is None:
        return np.empty((0, ours.rank), dtype=np.uint64)
    differs = compare_chunks(ours.within(common).apply(None), theirs.within(common).apply(None))
    coords = common.coords()
    return coords[:0] if differs is None else coords[differs.find_many(coords) >= 0]


def same_refs(left: ChunkRefs, right: ChunkRefs) -> npt.NDArray[np.bool_]:
    """For tables of equal length: which rows mean the same bytes."""
    same: npt.NDArray[np.bool_] = (left.kinds == right.kinds) & (left.lengths == right.lengths)
    inline = same & (left.kinds == ChunkKind.INLINE)
    same &= inline | (left.offsets == right.offsets)
    native = np.flatnonzero(same & (left.kinds == ChunkKind.NATIVE))
    if len(native):
        mine, theirs = of_one_width([left.files, right.files])
        files = mine[left.sources[native]] == theirs[right.sources[native]]
        same[native] = files.all(axis=1)
    virtual = np.flatnonzero(same & (left.kinds == ChunkKind.VIRTUAL))
    if len(virtual):
        numbers: dict[tuple[str, str, int], int] = {}
        sources = _numbered(left.locations, left.sources[virtual], numbers)
        same[virtual] = sources == _numbered(right.locations, right.sources[virtual], numbers)
    held = np.flatnonzero(inline)
    if len(held):
        same[held] = _same_inline(left, right, held)
    return same


def _numbered(
    locations: Locations,
    sources: npt.NDArray[np.uint32],
    numbers: dict[tuple[str, str, int], int],
) -> npt.NDArray[np.int64]:
    """Each row's source as a number that is the same for equal sources of several tables."""
    used, inverse = np.unique(sources, return_inverse=True)
    mapped = np.empty(len(used), dtype=np.int64)
    for place, entry in enumerate(used.tolist()):
        source = (locations.urls[entry], locations.etags[entry], int(locations.modified[entry]))
        mapped[place] = numbers.setdefault(source, len(numbers))
    numbered: npt.NDArray[np.int64] = mapped[inverse]
    return numbered


def _same_inline(
    left: ChunkRefs, right: ChunkRefs, rows: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Which inline rows, of equal length on both sides, have equal bytes."""
    lengths = left.lengths[rows]
    mine, ends = gather_bytes(left.inline, left.offsets[rows], left.offsets[rows] + lengths)
    theirs, _ = gather_bytes(right.inline, right.offsets[rows], right.offsets[rows] + lengths)
    unequal = np.frombuffer(mine, dtype=np.uint8) != np.frombuffer(theirs, dtype=np.uint8)
    count = np.concatenate([[0], np.cumsum(unequal, dtype=np.int64)])
    upper = ends.astype(np.int64)
    found: npt.NDArray[np.bool_] = count[upper] == count[upper - lengths.astype(np.int64)]
    return found
