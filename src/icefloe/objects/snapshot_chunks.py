"""The chunk references of one snapshot: found in whichever manifests the arrays point to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index import is_inside
from icefloe.model.located import Located
from icefloe.model.manifest import ArrayChunks
from icefloe.objects.expected import Referrer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.changes.linked import LinkedTile
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.chunk_refs import ChunkRef
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.manifest import Manifest
    from icefloe.model.nodes import ArrayNode, ManifestRef
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles


class SnapshotChunks:
    """Looks up chunk references of a snapshot's arrays."""

    def __init__(self, files: MetadataFiles, snapshot: Snapshot) -> None:
        """Take the snapshot and where its manifests are."""
        self._files = files
        self._extents: dict[NodeId, tuple[object, npt.NDArray[np.uint64]]] = {}
        self._snapshot_id = snapshot.id
        self._infos = {info.id: info for info in snapshot.manifests}

    def find(self, node: ArrayNode, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of one chunk; opens only manifests whose extents have it (R4-08)."""
        for ref in node.manifests:
            if ref.extents.contains(coords):
                found = self.manifest(ref.manifest_id, node.path).find(node.id, coords)
                if found is not None:
                    return found
        return None

    def find_many(self, node: ArrayNode, coords: npt.NDArray[np.uint64]) -> list[Located]:
        """The references of many chunks (n, rank); opens only manifests whose extents have some."""
        lower, upper = self._extents_of(node)
        hit = ((lower < coords.max(axis=0) + 1) & (upper > coords.min(axis=0))).all(axis=1)
        refs = [node.manifests[at] for at in np.flatnonzero(hit).tolist()]
        manifests = self._files.in_parallel(
            lambda ref: self.manifest(ref.manifest_id, node.path), refs
        )
        located: list[Located] = []
        is_left = np.ones(len(coords), dtype=np.bool_)
        for ref, manifest in zip(refs, manifests, strict=True):
            inside = is_inside(coords, ref.extents.lower, ref.extents.upper)
            rows = np.flatnonzero(inside & is_left)
            if len(rows) == 0:
                continue
            for part in manifest.find_many(node.id, coords[rows], self._files.in_parallel):
                located.append(Located(rows[part.rows], part.refs))
                is_left[located[-1].rows] = False
        return located

    def _extents_of(self, node: ArrayNode) -> npt.NDArray[np.uint64]:
        """Lower and upper corners of the extents of an array's manifests: shape (2, n, rank)."""
        known = self._extents.get(node.id)
        if known is None or known[0] is not node.manifests:
            boxes = [ref.extents for ref in node.manifests]
            corners = np.array(
                [[box.lower for box in boxes], [box.upper for box in boxes]], dtype=np.uint64
            )
            self._extents[node.id] = known = (node.manifests, corners)
        return known[1]

    def is_at_hand(self, node: ArrayNode, coords: tuple[int, ...]) -> bool:
        """Whether `find` needs to read nothing."""
        return all(
            self._files.is_at_hand(ref.manifest_id, node.id, coords)
            for ref in node.manifests
            if ref.extents.contains(coords)
        )

    def table(self, node: ArrayNode) -> ArrayChunks | None:
        """All references of an array, as columns; None if it has none."""
        return self.merged(node, node.manifests)

    def some(self, node: ArrayNode, index: ChunkIndex) -> ArrayChunks | None:
        """The references of some chunks of an array; None if it has none of them."""
        near = [ref for ref in node.manifests if ref.extents.intersects(index.box)]
        table = self.merged(node, near)
        if table is None:
            return None
        coords = table.index.coords()
        rows = np.flatnonzero(index.find_many(coords) >= 0)
        return ArrayChunks.from_sorted(coords[rows], table.refs.take(rows)) if len(rows) else None

    def merged(self, node: ArrayNode, refs: Sequence[ManifestRef]) -> ArrayChunks | None:
        """The references that an array has in some of its manifests; None if there are none."""
        if not refs:
            return None
        rank = node.array.rank
        parts = self._files.in_parallel(
            lambda ref: self.manifest(ref.manifest_id, node.path).array(node.id, rank), refs
        )
        present = [part for part in parts if part is not None and len(part)]
        return ArrayChunks.merge(present) if present else None

    def manifest(self, manifest_id: ManifestId, path: str = "") -> Manifest:
        """A manifest that the snapshot lists; `path` is the array that it is opened for."""
        info = self._infos.get(manifest_id)
        if info is None:
            return self._files.manifest(manifest_id, 0)
        referrer = Referrer(self._snapshot_id, path)
        return self._files.manifest(manifest_id, info.size_bytes, info.checksum, referrer)


def linked_chunks(files: MetadataFiles, node: ArrayNode, tile: LinkedTile) -> ArrayChunks:
    """The references in the manifest of a linked tile."""
    manifest = files.manifest(tile.info.id, tile.info.size_bytes, tile.info.checksum)
    chunks = manifest.array(node.id, node.array.rank)
    assert chunks is not None, "a tile that is linked has references"
    return chunks
