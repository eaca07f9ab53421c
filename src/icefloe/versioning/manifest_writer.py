"""Writes the manifests of a commit: merges edits into the parts that they touch, packs, links.

Cost follows the change: of a huge array only the tiles with edits are read and written, and only
manifests that share something with them are packed anew (R4-05, R4-09).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.changes.chunk_edits import ChunkEdits, prepare_tables
from icefloe.changes.linked import LinkedTile, touched_in
from icefloe.formats.port import other_numbers
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.model.nodes import ManifestRef, Node
from icefloe.model.record import Record
from icefloe.packing.plan import Item, Standing, closure, plan_manifests
from icefloe.packing.tiles import Tiling
from icefloe.versioning.in_place import InPlaceWriter

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.config.settings import Settings
    from icefloe.files.metadata import MetadataFiles
    from icefloe.files.snapshot_chunks import SnapshotChunks
    from icefloe.model.chunk_index import Box
    from icefloe.model.snapshot import Snapshot


class Part(Record, frozen=True, eq=False):
    """References of one array that go into one manifest."""

    node_id: NodeId
    chunks: ArrayChunks


class WrittenManifests(Record, frozen=True, eq=False):
    """What a commit did to the manifests."""

    infos: list[ManifestFileInfo]
    refs: dict[NodeId, tuple[ManifestRef, ...]]
    """New manifest references of the arrays that have other ones than before."""
    touched: dict[NodeId, ChunkIndex]
    """Chunks that were set or deleted in each array."""
    replaced: dict[ManifestId, ManifestId] = msgspec.field(default_factory=dict)
    """Manifests that took the place of others, also for arrays that are not in `refs`."""


class ManifestWriter:
    """Writes the manifests of one commit."""

    def __init__(
        self,
        files: MetadataFiles,
        base: Snapshot,
        chunks: SnapshotChunks,
        changes: ChangeSet,
        settings: Settings,
        numbers: Mapping[NodeId, int] | None = None,
    ) -> None:
        """Take the base, the changes over it, and how to pack.

        `numbers` are the `other_numbers` of the new snapshot; by default, those of the base.
        """
        self._numbers = other_numbers(base) if numbers is None else numbers
        self._files = files
        self._base = base
        self._chunks = chunks
        self._changes = changes
        self._settings = settings
        self._touched: dict[NodeId, ChunkIndex] = {}
        self._dropped: dict[NodeId, set[ManifestId]] = {}
        self._whole: list[Part] = []
        """New references of arrays that are packed as a whole."""
        self._tiles: list[Part] = []
        """New references of tiles, each of which gets a manifest of its own."""
        self._linked: dict[NodeId, list[LinkedTile]] = {}
        """Tiles whose manifests are written already."""

    def write(self) -> WrittenManifests:
        """Write every manifest that the changes make necessary."""
        self._add_edited()
        in_place = self._write_in_place()
        if in_place is not None:
            return in_place
        seen = self._add_neighbours()
        plan = plan_manifests(
            [self._item(part) for part in self._whole],
            [
                Standing(info.id, info.set_name, info.num_chunk_refs)
                for info in self._base.manifests
                if info.id not in seen and info.set_name
            ],
            self._settings.chunk_manifests,
            lambda manifest_id: [self._item(part) for part in self._taken_in_again(manifest_id)],
        )
        todo = [
            *((m.set_name, [item.content for item in m.items]) for m in plan.manifests),
            *(("", [part]) for part in self._tiles),
        ]
        infos = self._files.in_parallel(lambda job: self._write_one(*job), todo)
        refs = self._new_refs(todo, infos)
        linked = [tile.info for tiles in self._linked.values() for tile in tiles]
        return WrittenManifests([*infos, *linked], refs, self._touched)

    def _write_in_place(self) -> WrittenManifests | None:
        """Write one manifest for another, if that is all that there is to do."""
        dropped = set().union(*self._dropped.values())
        edited = {part.node_id: part.chunks for part in self._whole}
        if self._tiles or self._linked or len(dropped) != 1 or len(edited) != len(self._whole):
            return None
        if any(each != dropped for each in self._dropped.values()) or len(edited) != len(
            self._dropped
        ):
            return None
        (old,) = dropped
        writer = InPlaceWriter(self._files, self._base, self._chunks, self._changes, self._settings)
        info = writer.write(old, edited)
        if info is None:
            return None
        refs = self._new_refs([(info.set_name, self._whole)], [info])
        return WrittenManifests([info], refs, self._touched, {old: info.id})

    # --- what must be written

    def _add_edited(self) -> None:
        """Take the new references of edited arrays."""
        prepare_tables(self._changes.chunks.values())
        for node_id, tiles in self._changes.linked.items():
            node = self._changes.by_id(node_id)
            if node is not None:
                self._link(node, tiles)
        for node_id, own in self._changes.chunks.items():
            node = self._changes.by_id(node_id)
            if node is None or own.is_empty:
                continue
            edits = self._with_tiles_below(node, own)
            replaced = self._dropped.get(node_id, set())
            refs = [ref for ref in self._base_refs(node_id) if ref.manifest_id not in replaced]
            tiling = self._tiling(node)
            affected = _affected(edits, tiling, refs)
            while True:
                old = self._chunks.merged(node, affected)
                new = edits.apply(old)
                pieces = [] if new is None else tiling.cut(new)
                dropped = {ref.manifest_id for ref in affected}
                more = _in_the_way(pieces, [ref for ref in refs if ref.manifest_id not in dropped])
                if not more:
                    break
                affected += more
            # Tiles that were taken apart, too: as they say, with what is gone and no more.
            index = touched_together(own, self._changes.linked.get(node_id, ()), old)
            if index is not None:
                self._touched[node_id] = index
            self._dropped[node_id] = dropped | replaced
            (self._whole if tiling.is_whole else self._tiles).extend(
                Part(node_id, piece) for piece in pieces
            )

    def _link(self, node: Node, tiles: Sequence[LinkedTile]) -> None:
        self._linked[node.id] = list(tiles)
        self._dropped[node.id] = {each for tile in tiles for each in tile.replaced}
        index = touched_in(tiles)
        if index is not None:
            self._touched[node.id] = index

    def _with_tiles_below(self, node: Node, edits: ChunkEdits) -> ChunkEdits:
        """Edits over linked tiles that they reach into: those are taken apart and written anew."""
        tiles = self._linked.get(node.id)
        touched = edits.touched(None)
        if not tiles or touched is None:
            return edits
        tiling = self._tiling(node)
        lower, upper = _corners([tile.extents for tile in tiles])
        hit = tiling.touched(lower, upper, tiling.distinct(touched.coords()))
        if not hit.any():
            return edits
        below = ChunkEdits(edits.rank)
        for row in np.flatnonzero(hit).tolist():
            below.set_many(linked_chunks(self._files, node, tiles[row]))
        self._link(node, [tile for row, tile in enumerate(tiles) if not hit[row]])
        taken = [tiles[row] for row in np.flatnonzero(hit).tolist()]
        # What they replaced is in them, so that it is not read again.
        self._dropped[node.id] |= {each for tile in taken for each in tile.replaced}
        below.absorb(edits)
        return below

    def _add_neighbours(self) -> set[ManifestId]:
        """Take what shares a manifest with edited or deleted arrays; returns those manifests.

        A deleted array's references vanish with the manifest that they were in (H-36).
        """
        start = [*self._dropped, *self._changes.deleted]
        found, seen = closure(start, self._manifests_of, self._members_of)
        if not seen:
            return seen
        for node_id in sorted(found):
            node = self._changes.by_id(node_id)
            if node is not None:
                dropped = self._dropped.get(node_id, set())
                self._whole += self._rewritten(node, seen - dropped)
        return seen

    def _rewritten(self, node: Node, manifests: Container[ManifestId]) -> list[Part]:
        """What an array has in some manifests, to be packed anew; tiles are taken at once."""
        refs = [ref for ref in self._base_refs(node.id) if ref.manifest_id in manifests]
        self._dropped.setdefault(node.id, set()).update(ref.manifest_id for ref in refs)
        chunks = self._chunks.merged(node, refs)
        if chunks is None:
            return []
        tiling = self._tiling(node)
        if tiling.is_whole:
            return [Part(node.id, chunks)]
        self._tiles += [Part(node.id, piece) for piece in tiling.cut(chunks)]
        return []

    def _manifests_of(self, node_id: NodeId) -> Iterable[ManifestId]:
        """Manifests that change if a node does."""
        if node_id in self._dropped:
            return self._dropped[node_id]
        node = self._changes.by_id(node_id)
        if node is not None and not self._tiling(node).is_whole:
            return ()
        return [ref.manifest_id for ref in self._base_refs(node_id)]

    def _members_of(self, manifest_id: ManifestId) -> list[NodeId]:
        """Arrays that still have references in a manifest."""
        return [
            node_id
            for node_id in self._base.nodes.users_of(manifest_id)
            if self._changes.by_id(node_id) is not None
        ]

    def _taken_in_again(self, manifest_id: ManifestId) -> list[Part]:
        """What a standing manifest holds, to be packed anew."""
        parts = []
        for node_id in self._members_of(manifest_id):
            node = self._changes.by_id(node_id)
            assert node is not None
            manifests = {manifest_id}
            if self._tiling(node).is_whole:
                manifests |= self._tiles_of(node_id)
            parts += self._rewritten(node, manifests)
        return parts

    def _tiles_of(self, node_id: NodeId) -> set[ManifestId]:
        """Manifests that hold nothing but a tile of an array, from when it was cut."""
        in_sets = {info.id for info in self._base.manifests if info.set_name}
        manifests = {ref.manifest_id for ref in self._base_refs(node_id)} - in_sets
        return {each for each in manifests if self._members_of(each) == [node_id]}

    def _item(self, part: Part) -> Item[Part]:
        node = self._changes.by_id(part.node_id)
        assert node is not None
        assert node.array is not None
        count = len(part.chunks)
        grid = node.array.num_chunks
        size = count if grid is None else max(grid, count)
        return Item(part, part.node_id, node.path, size, size, count)

    # --- writing

    def _write_one(self, set_name: str, parts: Sequence[Part]) -> ManifestFileInfo:
        return self._files.write_manifest(
            [(p.node_id, p.chunks) for p in parts], set_name, self._numbers
        )

    def _new_refs(
        self, jobs: Sequence[tuple[str, Sequence[Part]]], infos: Sequence[ManifestFileInfo]
    ) -> dict[NodeId, tuple[ManifestRef, ...]]:
        added: dict[NodeId, list[ManifestRef]] = {}
        for (_, parts), info in zip(jobs, infos, strict=True):
            for part in parts:
                ref = ManifestRef(info.id, part.chunks.index.box, len(part.chunks))
                added.setdefault(part.node_id, []).append(ref)
        for node_id, tiles in self._linked.items():
            for tile in tiles:
                ref = ManifestRef(tile.info.id, tile.extents, tile.info.num_chunk_refs)
                added.setdefault(node_id, []).append(ref)
        refs: dict[NodeId, tuple[ManifestRef, ...]] = {}
        for node_id, dropped in self._dropped.items():
            kept = [ref for ref in self._base_refs(node_id) if ref.manifest_id not in dropped]
            new = added.get(node_id, ())
            if len(kept) + len(new) <= 1:
                refs[node_id] = (*kept, *new)
                continue
            # In the order of the grid, so that readers of a region find neighbours together.
            refs[node_id] = tuple(sorted([*kept, *new], key=lambda ref: ref.extents.lower))
        return refs

    # --- the arrays

    def _base_refs(self, node_id: NodeId) -> tuple[ManifestRef, ...]:
        node = self._base.nodes.by_id(node_id)
        return () if node is None else node.manifests

    def _tiling(self, node: Node) -> Tiling:
        return tiling_of(node, self._settings)


def tiling_of(node: Node, settings: Settings) -> Tiling:
    """How an array is cut under a configuration."""
    array = node.array
    assert array is not None
    if not settings.splitting.split_sizes:
        return Tiling.for_array(array.grid_shape, (None,) * array.rank)
    names = array.dimension_names or (None,) * array.rank
    sizes = settings.splitting.sizes_for(node.path, names)
    return Tiling.for_array(array.grid_shape, sizes)


def _affected(edits: ChunkEdits, tiling: Tiling, refs: Sequence[ManifestRef]) -> list[ManifestRef]:
    """The parts of an array that edits reach into."""
    if edits.cleared or tiling.is_whole or not refs:
        return list(refs)
    index = edits.touched(None)
    if index is None:
        return []
    lower, upper = _corners([ref.extents for ref in refs])
    hit = tiling.touched(lower, upper, tiling.distinct(index.coords()))
    return [refs[row] for row in np.flatnonzero(hit).tolist()]


def _in_the_way(pieces: Sequence[ArrayChunks], refs: Sequence[ManifestRef]) -> list[ManifestRef]:
    """Parts whose extents would overlap new ones, as happens where an older cut was another."""
    if not pieces or not refs:
        return []
    lower, upper = _corners([ref.extents for ref in refs])
    hit = np.zeros(len(refs), dtype=np.bool_)
    for piece in pieces:
        low, high = np.array([piece.index.box.lower, piece.index.box.upper], dtype=np.int64)
        hit |= ((lower < high) & (upper > low)).all(axis=1)
    return [refs[row] for row in np.flatnonzero(hit).tolist()]


def _corners(boxes: Sequence[Box]) -> npt.NDArray[np.int64]:
    """Lower and upper corners of boxes: shape (2, n, rank)."""
    return np.array([[b.lower for b in boxes], [b.upper for b in boxes]], dtype=np.int64)


def touched_together(
    edits: ChunkEdits | None, tiles: Sequence[LinkedTile], old: ArrayChunks | None
) -> ChunkIndex | None:
    """The chunks of an array that edits or linked tiles touch."""
    index = None if edits is None else edits.touched(old)
    linked = touched_in(tiles)
    if index is None or linked is None:
        return linked if index is None else index
    return index.union(linked)


def linked_chunks(files: MetadataFiles, node: Node, tile: LinkedTile) -> ArrayChunks:
    """The references in the manifest of a linked tile."""
    assert node.array is not None
    manifest = files.manifest(tile.info.id, tile.info.size_bytes, tile.info.checksum)
    chunks = manifest.array(node.id, node.array.rank)
    assert chunks is not None, "a tile that is linked has references"
    return chunks


def write_tiles(
    files: MetadataFiles,
    base: Snapshot,
    chunks: SnapshotChunks,
    node: Node,
    edits: ChunkEdits,
    settings: Settings,
) -> list[LinkedTile] | None:
    """Write the manifests of the tiles that edits touch; `node` is as in the base, or new.

    None if that cannot be done apart from the rest of the array: it is not cut, was cut in
    another way, or a tile would be left without references.
    """
    tiling = tiling_of(node, settings)
    touched = edits.touched(None)
    if tiling.is_whole or edits.cleared or touched is None:
        return None
    affected = _affected(edits, tiling, node.manifests)
    if affected:
        lower, upper = _corners([ref.extents for ref in affected])
        if (tiling.tiles_of(lower) != tiling.tiles_of(upper - 1)).any():
            return None
    new = edits.apply(chunks.merged(node, affected))
    pieces = [] if new is None else tiling.cut(new)
    places = touched.coords()
    if len(tiling.distinct(places)) != len(pieces):
        return None
    # Without a base and deletions, what is in a tile is what was touched, and mostly a box.
    is_plain = not affected and new is not None and len(new) == len(touched)
    numbers = other_numbers(base)
    found = []
    for piece in pieces:
        tile = tiling.tiles_of(np.array([piece.index.box.lower]))
        index = piece.index
        if not is_plain:
            index = ChunkIndex.from_coords(places[(tiling.tiles_of(places) == tile).all(axis=1)])[0]
        replaced: tuple[ManifestId, ...] = ()
        if affected:
            inside = (tiling.tiles_of(lower) == tile).all(axis=1)
            replaced = tuple(affected[row].manifest_id for row in np.flatnonzero(inside).tolist())
        info = files.write_manifest([(node.id, piece)], "", numbers)
        found.append(LinkedTile(info, piece.index.box, index, replaced))
    return found
