"""Linked tiles: manifests of parts of an array that are written before the commit.

Tasks of a job write the manifests of what they wrote, so that the driver's commit only links them.
Tiles are turned back into edits where the branch moved below them or two forks wrote the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.linked import any_overlap, meeting
from icefloe.engine.commit.manifests import write_tiles as write_manifests
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.manifest import ArrayChunks
from icefloe.objects.snapshot_chunks import linked_chunks
from icefloe.packing.splits import possible_split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.linked import LinkedTile
    from icefloe.engine.tree.working_tree import WorkingTree
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles
    from icefloe.packing.splits import Split


def can_link(tree: WorkingTree, path: str) -> bool:
    """Whether manifests of an array can be written before the commit, for `link_tiles`.

    Not those of a new array where only the commit knows the ids of new nodes, as in the
    generations `store` and `dataset`: the manifests would name another node.
    """
    with tree.lock:
        node = tree.get_array(path)
        is_numbered_later = tree.context.format.node_numbering is not None
        return not (is_numbered_later and node.id in tree.changes.new)


def link_tiles(tree: WorkingTree, path: str, tiles: Sequence[LinkedTile]) -> None:
    """Link tiles of an array whose manifests were written from other trees.

    Until the commit, reads do not show them.
    """
    with tree.lock:
        tree.check_writable()
        node = tree.get_array(path)
        if not can_link(tree, path):
            raise InvalidInputError(
                f"manifests were written for {path}, a new array whose id is given by the "
                "commit; give its references to set_chunk_refs, or commit it first"
            )
        known = tree.changes.linked.setdefault(node.id, [])
        together = sorted([*known, *tiles], key=lambda tile: tile.extents.lower)
        if together and any_overlap([tile.reach for tile in together]):
            raise InvalidInputError(f"two manifests were written for one tile of {path}")
        tree.changes.linked[node.id] = together


def write_tiles(
    tree: WorkingTree, path: str, split: Split | None = None
) -> list[LinkedTile] | None:
    """Write the manifests of the edited parts of an array, for `link_tiles` of another tree.

    Args:
        tree: The tree with the edits.
        path: The array.
        split: How it is split into manifests; by default, as if all its chunks existed.

    Returns:
        None if they must be written with the rest of the array, or by the commit (see `can_link`).
    """
    with tree.lock:
        if not can_link(tree, path):
            return None
        node = tree.get_array(path)
        split = split or possible_split(node, tree.settings)
        if split is None:
            return None
        tree.settle_pending()
        edits = tree.changes.edits(node)
        tiles = write_manifests(tree.context.files, tree.snapshot, tree.chunks, node, edits, split)
        tree.context.storage.sync()
        return tiles


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
    remaining = []
    for tile, is_taken in zip(changes.linked.pop(node_id), taken, strict=True):
        if not is_taken:
            remaining.append(tile)
            continue
        edits = _as_edits(files, node, tile)
        if node_id in changes.chunks:
            edits.absorb(changes.chunks[node_id])
        changes.chunks[node_id] = edits
    if remaining:
        changes.linked[node_id] = remaining


def _as_edits(files: MetadataFiles, node: ArrayNode, tile: LinkedTile) -> ChunkEdits:
    """The changes of a tile, without the references that it has from the base."""
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
    refs = [
        {ref.manifest_id for ref in node.manifests if ref.extents.intersects(box)}
        for node in (before, after)
        if node is not None
    ]
    return not refs or (all(each == refs[0] for each in refs) and len(refs) == 2)
