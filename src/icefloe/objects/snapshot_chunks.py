"""The chunk references of one snapshot: found in whichever manifests the arrays point to."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import IcefloeError
from icefloe.model.chunk_index import is_inside
from icefloe.model.located import Located
from icefloe.model.manifest import ArrayChunks
from icefloe.objects.expected import Referrer
from icefloe.objects.metadata import WHOLE_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.linked import LinkedTile
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.chunk_refs import ChunkRef
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.manifest import Manifest, ManifestFileInfo
    from icefloe.model.nodes import ArrayNode, ManifestRef
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles


_MOST_AHEAD = 32
"""Manifests that are read before somebody asks for them, at most."""
_MOST_BYTES_AHEAD = 4 * 1024 * 1024
_AT_ONCE = 64
_BYTES_AT_ONCE = 16 * 1024 * 1024


class SnapshotChunks:
    """Looks up chunk references of a snapshot's arrays.

    On a storage far away, who needs manifests of two arrays probably needs those of others: if a
    snapshot has few small ones, all of them are then read at the same time.
    """

    def __init__(self, files: MetadataFiles, snapshot: Snapshot) -> None:
        """Take the snapshot and where its manifests are."""
        self._files = files
        self._first_path: str | None = None
        """The array whose manifests were read first."""
        self._may_read_ahead = not files.storage.capabilities.reads_are_immediate
        self._extents: dict[NodeId, tuple[object, npt.NDArray[np.uint64]]] = {}
        self._snapshot_id = snapshot.id
        self._nodes = snapshot.nodes
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
        if self._may_read_ahead and path and not self._files.has_manifest(manifest_id):
            self._read_ahead(path)
        referrer = Referrer(self._snapshot_id, path)
        return self._files.manifest(manifest_id, info.size_bytes, info.checksum, referrer)

    def _read_ahead(self, path: str) -> None:
        """Read all manifests when those of a second array are needed, if they are few and small."""
        if self._first_path is None:
            self._first_path = path
        if self._first_path == path:
            return
        self._may_read_ahead = False
        infos = self._infos.values()
        if len(infos) <= _MOST_AHEAD and sum(i.size_bytes for i in infos) <= _MOST_BYTES_AHEAD:
            self._fetch(infos)

    def fetched(self, nodes: Iterable[ArrayNode]) -> Iterator[ArrayNode]:
        """The same arrays, while manifests of the next ones are read at the same time.

        For who needs all references of many arrays. Only small manifests are, and of a storage far
        away.
        """
        if self._files.storage.capabilities.reads_are_immediate:
            yield from nodes
            return
        window: list[ArrayNode] = []
        infos: dict[ManifestId, ManifestFileInfo] = {}
        held = 0
        for node in nodes:
            used = (self._infos.get(ref.manifest_id) for ref in node.manifests)
            new = [info for info in used if info is not None and info.id not in infos]
            size = sum(info.size_bytes for info in new if info.size_bytes <= WHOLE_FILE_BYTES)
            if window and (len(infos) + len(new) > _AT_ONCE or held + size > _BYTES_AT_ONCE):
                self._fetch(infos.values())
                yield from window
                window, infos, held = [], {}, 0
            window.append(node)
            infos.update((info.id, info) for info in new)
            held += size
        self._fetch(infos.values())
        yield from window

    def fetch_edited(self, changes: ChangeSet) -> None:
        """Read the manifests of arrays that changes edit, up to some, at the same time.

        Of an array that is split into many, only some would be needed.
        """
        if self._files.storage.capabilities.reads_are_immediate:
            return
        nodes = (self._nodes.array_by_id(node_id) for node_id in changes.chunks)
        whole = (node for node in nodes if node is not None and len(node.manifests) == 1)
        used = dict.fromkeys(node.manifests[0].manifest_id for node in islice(whole, _AT_ONCE))
        self._fetch(self._infos[each] for each in used if each in self._infos)

    def _fetch(self, infos: Iterable[ManifestFileInfo]) -> None:
        """Read small manifests at the same time; who needs one learns what is wrong with it."""

        def fetch(info: ManifestFileInfo) -> None:
            with contextlib.suppress(IcefloeError):
                referrer = Referrer(self._snapshot_id)
                self._files.manifest(info.id, info.size_bytes, info.checksum, referrer)

        small = [
            info
            for info in infos
            if info.size_bytes <= WHOLE_FILE_BYTES and not self._files.has_manifest(info.id)
        ]
        self._files.in_parallel(fetch, small)


def linked_chunks(files: MetadataFiles, node: ArrayNode, tile: LinkedTile) -> ArrayChunks:
    """The references in the manifest of a linked tile."""
    manifest = files.manifest(tile.info.id, tile.info.size_bytes, tile.info.checksum)
    chunks = manifest.array(node.id, node.array.rank)
    assert chunks is not None, "a tile that is linked has references"
    return chunks
