"""Writes the manifests of a commit: merges edits into the parts that they touch, packs, links.

Cost follows the change: of an array that is split only the parts with edits are read and written,
and only manifests that share something with them are packed again (R4-05, R4-09).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.changes.chunk_edits import ChunkEdits, prepare_tables
from icefloe.changes.linked import LinkedTile, corners, touched_in
from icefloe.engine.commit.array_parts import ArrayMerger, in_the_way, reached_by
from icefloe.engine.commit.patched_manifests import InPlaceWriter
from icefloe.engine.tree.grid_checks import has_box, visible
from icefloe.formats.port import other_numbers
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.ids import ManifestId, NodeId
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.model.nodes import ArrayNode, ManifestRef
from icefloe.model.record import Record
from icefloe.objects.snapshot_chunks import linked_chunks
from icefloe.packing.manifest_plan import Item, PlannedManifest, Standing, closure, plan_manifests
from icefloe.packing.splits import Split, split_of, split_of_planned

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from icefloe.changes.change_set import ChangeSet
    from icefloe.config.settings import Settings
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles
    from icefloe.objects.snapshot_chunks import SnapshotChunks
    from icefloe.packing.tiles import Tiling


class Part(Record, frozen=True, eq=False):
    """References of one array that go into one manifest."""

    node_id: NodeId
    chunks: ArrayChunks


class WrittenManifests(Record, frozen=True, eq=False):
    """The manifests of a commit that are new or replaced."""

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
        self._alone: list[tuple[str, Part]] = []
        """New references that get a manifest of their own, with the set that it belongs to."""
        self._splits: dict[NodeId, Split | None] = {}
        """How edited arrays are split."""
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
            self._standing(seen),
            self._settings.chunk_manifests,
            lambda manifest_id: [self._item(part) for part in self._taken_in_again(manifest_id)],
        )
        todo = [job for planned in plan.manifests for job in self._jobs(planned)]
        todo += [(set_name, [part]) for set_name, part in self._alone]
        infos = self._files.in_parallel(lambda job: self._write_one(*job), todo)
        refs = self._new_refs(todo, infos)
        linked = [tile.info for tiles in self._linked.values() for tile in tiles]
        return WrittenManifests([*infos, *linked], refs, self._touched)

    def _standing(self, seen: Container[ManifestId]) -> list[Standing]:
        """Manifests of sets with a limit, as far as the commit has no reason to rewrite them.

        Those of an array that was split under another configuration are left alone.
        """
        limited = {s.name for s in self._settings.chunk_manifests.sets if s.cardinality is not None}
        return [
            Standing(info.id, info.set_name, info.num_chunk_refs)
            for info in self._base.manifests
            if info.set_name in limited and info.id not in seen and not self._is_piece(info.id)
        ]

    def _jobs(self, planned: PlannedManifest[Part]) -> list[tuple[str, list[Part]]]:
        """The content of a planned manifest, or of several if it is an array to be split."""
        parts = [item.content for item in planned.items]
        first = parts[0]
        node = self._node(first.node_id)
        split = split_of_planned(planned, node, self._settings.chunk_manifests)
        if split is None:
            return [(planned.set_name, parts)]
        pieces = split.tiling.cut(first.chunks)
        return [(split.set_name, [Part(node.id, piece)]) for piece in pieces]

    def _write_in_place(self) -> WrittenManifests | None:
        """Write one manifest for another, if that is all that there is to do."""
        dropped = set().union(*self._dropped.values())
        edited = {part.node_id: part.chunks for part in self._whole}
        if self._alone or self._linked or len(dropped) != 1 or len(edited) != len(self._whole):
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
        return WrittenManifests(
            infos=[info], refs=refs, touched=self._touched, replaced={old: info.id}
        )

    # --- what must be written

    def _add_edited(self) -> None:
        """Take the new references of edited arrays."""
        prepare_tables(self._changes.chunks.values())
        merger = ArrayMerger(self._files, self._chunks, self._settings)
        changes = self._changes
        for node_id in {**changes.linked, **changes.chunks, **changes.documents}:
            node = changes.array_by_id(node_id)
            if node is None:
                continue
            linked = changes.linked.get(node_id, ())
            edits = edits_within_grid(self._files, self._chunks, node, changes)
            if not linked and edits.is_empty:
                continue
            merged = merger.merge(node, edits, self._base_refs(node_id), linked)
            index = touched_together(edits, linked, merged.old)
            if index is not None:
                self._touched[node_id] = index
            self._splits[node_id] = merged.split
            self._dropped[node_id] = merged.dropped
            if merged.linked:
                self._linked[node_id] = merged.linked
            self._add(node, merged.pieces)

    def _add(self, node: ArrayNode, pieces: Iterable[ArrayChunks]) -> None:
        """Take new references of an array, one piece for each manifest."""
        split = self._split(node)
        parts = [Part(node.id, piece) for piece in pieces]
        if split is None:
            self._whole += parts
        else:
            self._alone += [(split.set_name, part) for part in parts]

    def _add_neighbours(self) -> set[ManifestId]:
        """Take what shares a manifest with edited or deleted arrays; returns those manifests.

        A deleted array's references vanish with the manifest that they were in (H-36).
        """
        start = [*self._dropped, *self._changes.deleted]
        found, seen = closure(start, self._manifests_of, self._members_of)
        if not seen:
            return seen
        for node_id in sorted(found):
            node = self._changes.array_by_id(node_id)
            if node is not None:
                dropped = self._dropped.get(node_id, set())
                self._rewrite(node, seen - dropped)
        return seen

    def _rewrite(self, node: ArrayNode, manifests: Container[ManifestId]) -> None:
        """Take what an array has in some manifests, to be packed again."""
        dropped = self._dropped.setdefault(node.id, set())
        refs = [
            ref
            for ref in self._base_refs(node.id)
            if ref.manifest_id in manifests and ref.manifest_id not in dropped
        ]
        dropped.update(ref.manifest_id for ref in refs)
        chunks = self._chunks.merged(node, refs)
        if chunks is not None:
            split = self._split(node)
            self._add(node, [chunks] if split is None else split.tiling.cut(chunks))

    def _manifests_of(self, node_id: NodeId) -> Iterable[ManifestId]:
        """Manifests that change if a node does."""
        if node_id in self._dropped:
            return self._dropped[node_id]
        node = self._changes.array_by_id(node_id)
        if node is not None and self._split(node) is not None:
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
        """The content of a standing manifest, to be packed again.

        With it, all that an array has elsewhere which is not split any more.
        """
        start = len(self._whole)
        for node_id in self._members_of(manifest_id):
            node = self._node(node_id)
            manifests = {manifest_id}
            if self._split(node) is None:
                others = {ref.manifest_id for ref in self._base_refs(node_id)}
                manifests |= {each for each in others if self._is_piece(each)}
            self._rewrite(node, manifests)
        taken, self._whole = self._whole[start:], self._whole[:start]
        return taken

    def _is_piece(self, manifest_id: ManifestId) -> bool:
        """Whether a manifest of the base holds nothing but a piece of a split array."""
        members = self._members_of(manifest_id)
        return len(members) == 1 and len(self._base_refs(members[0])) > 1

    def _item(self, part: Part) -> Item[Part]:
        return Item.of(part, self._node(part.node_id), len(part.chunks))

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
            unchanged = [ref for ref in self._base_refs(node_id) if ref.manifest_id not in dropped]
            new = added.get(node_id, ())
            if len(unchanged) + len(new) <= 1:
                refs[node_id] = (*unchanged, *new)
                continue
            # In the order of the grid, so that readers of a region find neighbours together.
            refs[node_id] = tuple(sorted([*unchanged, *new], key=lambda ref: ref.extents.lower))
        return refs

    # --- the arrays

    def _base_refs(self, node_id: NodeId) -> tuple[ManifestRef, ...]:
        node = self._base.nodes.by_id(node_id)
        return () if node is None else node.manifests

    def _node(self, node_id: NodeId) -> ArrayNode:
        node = self._changes.array_by_id(node_id)
        assert node is not None
        return node

    def _split(self, node: ArrayNode) -> Split | None:
        """How an array is split: as its edits need it, or as it is."""
        if node.id not in self._splits:
            self._splits[node.id] = split_of(node, self._settings, node.num_refs)
        return self._splits[node.id]


def edits_within_grid(
    files: MetadataFiles, chunks: SnapshotChunks, node: ArrayNode, changes: ChangeSet
) -> ChunkEdits:
    """The edits of an array, which also delete all of its chunks outside of its grid.

    Some are there if the array became smaller, and nobody deleted them: zarr's resize does, writing
    a document does not, and others may have written them meanwhile. Committed, they would be
    visible again when the array grows, where every reader expects the fill value.
    """
    edits = changes.chunks.get(node.id)
    edits = ChunkEdits(node.array.rank) if edits is None else edits
    tables: list[ArrayChunks | None] = []
    touched = edits.touched(None)
    if touched is not None and not has_box(node, touched.box):
        tables.append(edits.apply(None))
    base = changes.base.array_by_id(node.id)
    refs = () if base is None or edits.cleared else base.manifests
    beyond = [ref for ref in refs if not has_box(node, ref.extents)]
    if beyond:
        tables.append(edits.apply(chunks.merged(node, beyond)))
    tables += [
        edits.apply(linked_chunks(files, node, tile))
        for tile in changes.linked.get(node.id, ())
        if not has_box(node, tile.extents)
    ]
    for table in tables:
        inside = visible(node, table)
        if table is not None and inside is not table:
            edits = edits.copy()
            hidden = table if inside is None else table.without(inside.index)
            if hidden is not None:
                edits.delete_many(hidden.index)
    return edits


def touched_together(
    edits: ChunkEdits | None, tiles: Sequence[LinkedTile], old: ArrayChunks | None
) -> ChunkIndex | None:
    """The chunks of an array that edits or linked tiles touch."""
    index = None if edits is None else edits.touched(old)
    linked = touched_in(tiles)
    if index is None or linked is None:
        return linked if index is None else index
    return index.union(linked)


def write_tiles(
    files: MetadataFiles,
    base: Snapshot,
    chunks: SnapshotChunks,
    node: ArrayNode,
    edits: ChunkEdits,
    split: Split,
) -> list[LinkedTile] | None:
    """Write the manifests of the parts of an array that edits touch.

    `node` is as in the base, or new. None if that cannot be done apart from the rest of the array:
    it was split in another way, or a part would be left without references.
    """
    touched = edits.touched(None)
    if edits.cleared or touched is None:
        return None
    tiling = split.tiling
    replaced = reached_by(tiling, touched, node.manifests)
    new = edits.apply(chunks.merged(node, replaced))
    if new is None:
        return None
    parts = _PartNumbers(tiling, new, touched, replaced)
    pieces = tiling.cut(new)
    others = [ref for ref in node.manifests if ref not in replaced]
    if not parts.are_apart or in_the_way(pieces, others):
        return None
    numbers = other_numbers(base)
    tiles = []
    for number, piece in enumerate(pieces):
        info = files.write_manifest([(node.id, piece)], split.set_name, numbers)
        tiles.append(LinkedTile(info, piece.index.box, *parts.at(number)))
    return tiles


class _PartNumbers:
    """Which chunks of an array were touched in each of its parts, and which manifests had them."""

    def __init__(
        self,
        tiling: Tiling,
        new: ArrayChunks,
        touched: ChunkIndex,
        replaced: Sequence[ManifestRef],
    ) -> None:
        self._replaced = replaced
        self._touched = touched
        self._places = touched.coords()
        tiles, counts = tiling.counted(new.index)
        lower, upper = corners([ref.extents for ref in replaced]).reshape(2, -1, new.index.rank)
        tables = [tiles, *map(tiling.tiles_of, (self._places, lower, upper - 1))]
        sizes = np.cumsum(list(map(len, tables)))
        counts = np.append(counts, np.zeros(sizes[-1] - len(tiles), dtype=np.int64))
        numbers = tiling.parts_of(np.concatenate(tables), counts)
        of_new, self._of_places, self._starts, self._ends = np.split(numbers, sizes[:-1])
        self.are_apart = bool(
            len(np.unique(of_new)) == len(np.unique(numbers)) and (self._starts == self._ends).all()
        )
        """Whether all parts have references, and each old manifest is in one of them."""

    def at(self, number: int) -> tuple[ChunkIndex, tuple[ManifestId, ...]]:
        """What was touched in a part, and which manifests it replaces."""
        places = self._places[self._of_places == number]
        index = self._touched
        if len(places) < len(index):
            index = ChunkIndex.from_coords(places)[0]
        rows = np.flatnonzero(self._starts == number).tolist()
        return index, tuple(self._replaced[row].manifest_id for row in rows)
