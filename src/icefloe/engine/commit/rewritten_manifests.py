"""Writes all manifests of a snapshot again, packed and split as the present configuration says.

Memory is bounded. Arrays that are split are read one old manifest at a time, and a new one is
written as soon as it is complete; only what waits for more is held. Other arrays are read when the
manifest that they go into is written.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.changes.linked import corners
from icefloe.engine.tree.chunk_batches import ArrayReader
from icefloe.formats.port import other_numbers
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.model.nodes import ManifestRef, NodeTable
from icefloe.objects.snapshot_chunks import SnapshotChunks
from icefloe.packing.manifest_plan import Item, plan_manifests
from icefloe.packing.splits import split_of, split_of_planned
from icefloe.progress import track

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.config.settings import Settings
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles
    from icefloe.packing.splits import Split
    from icefloe.packing.tiles import Tiling

_PIECES_AT_ONCE = 4


def rewrite_manifests(files: MetadataFiles, base: Snapshot, settings: Settings) -> Snapshot:
    """Write the references of a snapshot to new manifests.

    Returns the same snapshot as if it had always had those; nothing of it is written but the
    manifests.
    """
    return _Rewriter(files, base, settings).rewrite()


class _Rewriter:
    def __init__(self, files: MetadataFiles, base: Snapshot, settings: Settings) -> None:
        self._files = files
        self._base = base
        self._settings = settings
        self._numbers = other_numbers(base)
        self._chunks = SnapshotChunks(files, base)
        self._infos: list[ManifestFileInfo] = []
        self._refs: dict[NodeId, list[ManifestRef]] = {}

    def rewrite(self) -> Snapshot:
        arrays = [node for node in self._base.nodes if node.is_array and node.manifests]
        whole: list[ArrayNode] = []
        for node in track(arrays, "arrays", len(arrays)):
            split = split_of(node, self._settings, self._count(node))
            if split is None:
                whole.append(node)
            else:
                self._write_split(node, split)
        self._write_whole(whole)
        moved = {node.path: self._moved(node) for node in arrays}
        nodes = [moved.get(node.path, node) for node in self._base.nodes]
        return msgspec.structs.replace(
            self._base, nodes=NodeTable.of(nodes), manifests=tuple(self._infos)
        )

    def _moved(self, node: ArrayNode) -> ArrayNode:
        """The node with its new manifests, in the order of the grid."""
        refs = sorted(self._refs.get(node.id, ()), key=lambda ref: ref.extents.lower)
        return node.evolve(manifests=tuple(refs))

    # --- arrays that are packed as a whole

    def _write_whole(self, nodes: Sequence[ArrayNode]) -> None:
        plan = plan_manifests(
            [Item.of(node, node, self._count(node)) for node in nodes],
            (),
            self._settings.chunk_manifests,
            lambda _: (),
        )
        jobs = []
        for planned in plan.manifests:
            members = [item.content for item in planned.items]
            split = split_of_planned(planned, members[0], self._settings.chunk_manifests)
            if split is None:
                jobs.append((planned.set_name, members))
            else:
                self._write_split(members[0], split)
        written = self._files.in_parallel(lambda job: self._write_packed(*job), jobs)
        for info, refs in written:
            if info is not None:
                self._record(info, refs)

    def _count(self, node: ArrayNode) -> int:
        return ArrayReader(self._base, self._chunks, node, None).count()

    def _write_packed(
        self, set_name: str, nodes: Sequence[ArrayNode]
    ) -> tuple[ManifestFileInfo | None, list[tuple[NodeId, ArrayChunks]]]:
        """Read the references of some arrays and write them as one manifest."""
        parts = [
            (node.id, table) for node in nodes if (table := self._chunks.table(node)) is not None
        ]
        # An old writer may have left arrays whose references are all gone.
        if not parts:
            return None, parts
        return self._files.write_manifest(parts, set_name, self._numbers), parts

    # --- arrays that are split

    def _write_split(self, node: ArrayNode, split: Split) -> None:
        pieces = self._pieces(node, split.tiling)
        while some := list(islice(pieces, _PIECES_AT_ONCE)):
            infos = self._files.in_parallel(
                lambda piece: self._files.write_manifest(
                    [(node.id, piece)], split.set_name, self._numbers
                ),
                some,
            )
            for info, piece in zip(infos, some, strict=True):
                self._record(info, [(node.id, piece)])

    def _pieces(self, node: ArrayNode, tiling: Tiling) -> Iterator[ArrayChunks]:
        """New pieces of an array, each when no old manifest that is left can have more of it."""
        of_refs = self._parts(node, tiling)
        last = {part: at for at, parts in enumerate(of_refs) for part in parts.tolist()}
        pending: dict[int, list[ArrayChunks]] = {}
        for at, (ref, parts) in enumerate(zip(node.manifests, of_refs, strict=True)):
            old = self._chunks.merged(node, [ref])
            if old is None:
                continue
            numbers = parts[np.append(True, np.diff(parts) != 0)].tolist()
            for part, piece in zip(numbers, tiling.cut(old, parts), strict=True):
                pending.setdefault(part, []).append(piece)
                if last[part] == at:
                    yield ArrayChunks.merge(pending.pop(part))

    def _parts(self, node: ArrayNode, tiling: Tiling) -> list[npt.NDArray[np.int64]]:
        """The new parts of the tiles that each old manifest has references in."""
        tiles, counts = [], []
        for ref in node.manifests:
            lower, upper = corners([ref.extents])
            start = tiling.tiles_of(lower)
            if (start == tiling.tiles_of(upper - 1)).all():
                tiles.append(start)
                counts.append(np.array([ref.num_refs]))
                continue
            old = self._chunks.merged(node, [ref])
            found = (start[:0], np.empty(0, np.int64)) if old is None else tiling.counted(old.index)
            tiles.append(found[0])
            counts.append(found[1])
        numbers = tiling.parts_of(np.concatenate(tiles), np.concatenate(counts))
        return np.split(numbers, np.cumsum(list(map(len, tiles)))[:-1])

    def _record(self, info: ManifestFileInfo, parts: Sequence[tuple[NodeId, ArrayChunks]]) -> None:
        self._infos.append(info)
        for node_id, chunks in parts:
            ref = ManifestRef(info.id, chunks.index.box, len(chunks))
            self._refs.setdefault(node_id, []).append(ref)
