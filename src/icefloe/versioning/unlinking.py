"""Takes linked tiles apart where a branch has moved below them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.manifest import ArrayChunks
from icefloe.versioning.manifest_writer import linked_chunks

if TYPE_CHECKING:
    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.linked import LinkedTile
    from icefloe.files.metadata import MetadataFiles
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot


def unlink(
    files: MetadataFiles, ours: ChangeSet, base: Snapshot, head: Snapshot, *, all_tiles: bool
) -> None:
    """Turn linked tiles into edits where the head has other references in them than the base.

    A solver that may decide chunk by chunk needs all of them as edits: `all_tiles`.
    """
    for node_id, tiles in list(ours.linked.items()):
        before, after = base.nodes.by_id(node_id), head.nodes.by_id(node_id)
        node = ours.by_id(node_id)
        assert node is not None
        kept = []
        for tile in tiles:
            if not all_tiles and _same_within(tile.reach, before, after):
                kept.append(tile)
                continue
            edits = _as_edits(files, node, tile)
            if node_id in ours.chunks:
                edits.absorb(ours.chunks[node_id])
            ours.chunks[node_id] = edits
        if kept:
            ours.linked[node_id] = kept
        else:
            del ours.linked[node_id]


def _as_edits(files: MetadataFiles, node: Node, tile: LinkedTile) -> ChunkEdits:
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


def _same_within(box: Box, before: Node | None, after: Node | None) -> bool:
    """Whether an array has the same manifests in a box of chunks as before."""
    found = [
        {ref.manifest_id for ref in node.manifests if ref.extents.intersects(box)}
        for node in (before, after)
        if node is not None
    ]
    return not found or (all(each == found[0] for each in found) and len(found) == 2)
