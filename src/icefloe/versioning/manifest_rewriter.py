"""Writes all manifests of a snapshot anew, packed and cut as the present configuration says.

Memory is bounded. Arrays that are cut into tiles are read one old manifest at a time, and a tile is
written as soon as it is complete; only tiles that wait for more are held. Other arrays are read
when the manifest that they go into is written.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from icefloe.files.snapshot_chunks import SnapshotChunks
from icefloe.formats.port import other_numbers
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.model.nodes import ManifestRef, NodeTable
from icefloe.packing.plan import Item, plan_manifests
from icefloe.versioning.chunk_batches import ArrayReader
from icefloe.versioning.manifest_writer import tiling_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.config.settings import Settings
    from icefloe.files.metadata import MetadataFiles
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.packing.tiles import Tiling

_TILES_AT_ONCE = 4


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
        whole: list[Node] = []
        for node in arrays:
            tiling = tiling_of(node, self._settings)
            if tiling.is_whole:
                whole.append(node)
            else:
                self._write_tiles(node, tiling)
        self._write_whole(whole)
        rewritten = {node.id for node in arrays}
        nodes = [self._moved(node) if node.id in rewritten else node for node in self._base.nodes]
        return msgspec.structs.replace(
            self._base, nodes=NodeTable.of(nodes), manifests=tuple(self._infos)
        )

    def _moved(self, node: Node) -> Node:
        """The node with its new manifests, in the order of the grid."""
        refs = sorted(self._refs.get(node.id, ()), key=lambda ref: ref.extents.lower)
        return node.evolve(manifests=tuple(refs))

    # --- arrays that are packed as a whole

    def _write_whole(self, nodes: Sequence[Node]) -> None:
        plan = plan_manifests(
            [self._item(node) for node in nodes],
            (),
            self._settings.chunk_manifests,
            lambda _: (),
        )
        jobs = [(m.set_name, [item.content for item in m.items]) for m in plan.manifests]
        written = self._files.in_parallel(lambda job: self._write_packed(*job), jobs)
        for info, refs in written:
            if info is not None:
                self._record(info, refs)

    def _item(self, node: Node) -> Item[Node]:
        assert node.array is not None
        count = ArrayReader(self._base, self._chunks, node, None).count()
        grid = node.array.num_chunks
        size = count if grid is None else max(grid, count)
        return Item(node, node.id, node.path, size, size, count)

    def _write_packed(
        self, set_name: str, nodes: Sequence[Node]
    ) -> tuple[ManifestFileInfo | None, list[tuple[NodeId, ArrayChunks]]]:
        """Read the references of some arrays and write them as one manifest."""
        parts = [
            (node.id, table) for node in nodes if (table := self._chunks.table(node)) is not None
        ]
        # An old writer may have left arrays whose references are all gone.
        if not parts:
            return None, parts
        return self._files.write_manifest(parts, set_name, self._numbers), parts

    # --- arrays that are cut

    def _write_tiles(self, node: Node, tiling: Tiling) -> None:
        tiles = self._tiles(node, tiling)
        while some := list(islice(tiles, _TILES_AT_ONCE)):
            infos = self._files.in_parallel(
                lambda tile: self._files.write_manifest([(node.id, tile)], "", self._numbers), some
            )
            for info, tile in zip(infos, some, strict=True):
                self._record(info, [(node.id, tile)])

    def _tiles(self, node: Node, tiling: Tiling) -> Iterator[ArrayChunks]:
        """The new tiles of an array, each when no old manifest that is left can have more of it."""
        lower = np.array([ref.extents.lower for ref in node.manifests], dtype=np.int64)
        upper = np.array([ref.extents.upper for ref in node.manifests], dtype=np.int64)
        low, high = tiling.tiles_of(lower), tiling.tiles_of(upper - 1)
        pending: dict[tuple[int, ...], list[ArrayChunks]] = {}
        complete_at: dict[int, list[tuple[int, ...]]] = {}
        for number, ref in enumerate(node.manifests):
            old = self._chunks.merged(node, [ref])
            for piece in [] if old is None else tiling.cut(old):
                corner = np.array([piece.index.box.lower], dtype=np.int64)
                tile = tiling.tiles_of(corner)[0]
                key = tuple(tile.tolist())
                if key not in pending:
                    pending[key] = []
                    reaching = np.flatnonzero(((low <= tile) & (tile <= high)).all(axis=1))
                    last = max(number, *reaching.tolist())
                    complete_at.setdefault(last, []).append(key)
                pending[key].append(piece)
            for key in complete_at.pop(number, ()):
                yield ArrayChunks.merge(pending.pop(key))

    def _record(self, info: ManifestFileInfo, parts: Sequence[tuple[NodeId, ArrayChunks]]) -> None:
        self._infos.append(info)
        for node_id, chunks in parts:
            ref = ManifestRef(info.id, chunks.index.box, len(chunks))
            self._refs.setdefault(node_id, []).append(ref)
