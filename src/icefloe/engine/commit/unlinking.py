"""Takes linked tiles apart where a branch has moved below them, or forks wrote the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.linked import meeting
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.manifest import ArrayChunks
from icefloe.objects.snapshot_chunks import linked_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.linked import LinkedTile
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles


def unlink(
    files: MetadataFiles, ours: ChangeSet, base: Snapshot, head: Snapshot, *, all_tiles: bool
) -> None:
    """Turn linked tiles into edits where the head has other references in them than the base.

    A solver that may decide chunk by chunk needs all of them as edits: `all_tiles`.
    """
    for node_id, tiles in list(ours.linked.items()):
        before, after = base.nodes.array_by_id(node_id), head.nodes.array_by_id(node_id)
        taken = [all_tiles or not _same_within(tile.reach, before, after) for tile in tiles]
        _take_apart(files, ours, node_id, taken)


def unlink_common(files: MetadataFiles, earlier: ChangeSet, later: ChangeSet) -> None:
    """Turn linked tiles into edits where two forks wrote into one tile, or one over the other.

    Then what both wrote is seen, and the later edits win. Tiles of one fork alone stay as they are.
    """
    for node_id in earlier.linked.keys() | later.linked.keys():
        if node_id in earlier.deleted or node_id in later.deleted:
            continue
        forks = (earlier, later)
        tiles = [changes.linked.get(node_id, []) for changes in forks]
        met = meeting(*([tile.reach for tile in each] for each in tiles))
        edits = [changes.chunks.get(node_id) for changes in forks]
        for changes, mine, hit, other in zip(forks, tiles, met, edits[::-1], strict=True):
            taken = [
                bool(is_met) or (other is not None and other.meet(tile.touched))
                for tile, is_met in zip(mine, hit, strict=True)
            ]
            _take_apart(files, changes, node_id, taken)


def _take_apart(
    files: MetadataFiles, changes: ChangeSet, node_id: NodeId, taken: Sequence[bool]
) -> None:
    """Turn some of the linked tiles of an array into edits, below those that there are."""
    if not any(taken):
        return
    node = changes.array_by_id(node_id)
    assert node is not None
    kept = []
    for tile, is_taken in zip(changes.linked.pop(node_id), taken, strict=True):
        if not is_taken:
            kept.append(tile)
            continue
        edits = _as_edits(files, node, tile)
        if node_id in changes.chunks:
            edits.absorb(changes.chunks[node_id])
        changes.chunks[node_id] = edits
    if kept:
        changes.linked[node_id] = kept


def _as_edits(files: MetadataFiles, node: ArrayNode, tile: LinkedTile) -> ChunkEdits:
    """What a tile changed, without what it has of the base."""
    chunks = linked_chunks(files, node, tile)
    coords = chunks.index.coords()
    rows = np.flatnonzero(tile.touched.find_many(coords) >= 0)
    edits = ChunkEdits(chunks.index.rank)
    touched = tile.touched.coords()
    gone = touched[chunks.index.find_many(touched) < 0]
    if len(gone):
        edits.delete_many(ChunkIndex.from_coords(gone)[0])
    if len(rows):
        edits.set_many(ArrayChunks.from_sorted(coords[rows], chunks.refs.take(rows)))
    return edits


def _same_within(box: Box, before: ArrayNode | None, after: ArrayNode | None) -> bool:
    """Whether an array has the same manifests in a box of chunks as before."""
    found = [
        {ref.manifest_id for ref in node.manifests if ref.extents.intersects(box)}
        for node in (before, after)
        if node is not None
    ]
    return not found or (all(each == found[0] for each in found) and len(found) == 2)
