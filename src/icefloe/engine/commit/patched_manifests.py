"""Replaces one manifest of many small arrays by another of the same arrays.

A manifest that many arrays share is written again if one of them changes. Packing all of them again
would mostly find that nothing moves; here that is found out by columns, and if it is so, nothing is
packed (R4-58..70 give the same result).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_refs import ChunkRefs
from icefloe.model.manifest import ManifestArrays, arrange
from icefloe.model.zarr_document import parse_document
from icefloe.packing.manifest_plan import Item, apply_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.config.manifest_sets import ManifestSet
    from icefloe.config.settings import Settings
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.model.manifest import (
        ArrayChunks,
        Manifest,
        ManifestBlock,
        ManifestFileInfo,
        ManifestIndex,
    )
    from icefloe.model.node_columns import NodeColumns
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.metadata import MetadataFiles
    from icefloe.objects.snapshot_chunks import SnapshotChunks


class InPlaceWriter:
    """Writes a manifest of the same arrays as one of the base, if packing would do the same."""

    def __init__(
        self,
        files: MetadataFiles,
        base: Snapshot,
        chunks: SnapshotChunks,
        changes: ChangeSet,
        settings: Settings,
    ) -> None:
        """Take what a commit starts from."""
        self._files = files
        self._base = base
        self._chunks = chunks
        self._changes = changes
        self._settings = settings

    def write(
        self, old: ManifestId, edited: Mapping[NodeId, ArrayChunks]
    ) -> ManifestFileInfo | None:
        """Write the manifest with other references for some arrays.

        None, and nothing written, if packing might put anything elsewhere. Each of the arrays must
        have all its references in the manifest, before and after.
        """
        target = self._set_of(old)
        if target is None or not self._files.writes_columns:
            return None
        columns = self._base.nodes.columns()
        rows = columns.refs.users_of(old)
        if not columns.refs.all_alone(rows):
            return None
        manifest = self._chunks.manifest(old)
        ids = sorted(columns.ids[row * 8 : row * 8 + 8] for row in rows)
        if b"".join(ids) != manifest.index.arrays.node_ids:
            return None
        try:
            stays = self._stays(target, columns, rows, edited)
        except InvalidInputError:
            return None
        if not stays:
            return None
        return self._files.write_arranged(*_with_arrays(manifest, edited), target.name)

    def _set_of(self, manifest_id: ManifestId) -> ManifestSet | None:
        """The manifest set of a manifest, unless the set or the commit is a special case."""
        if self._changes.deleted or self._changes.places or self._settings.splitting.split_sizes:
            return None
        name = next((i.set_name for i in self._base.manifests if i.id == manifest_id), "")
        found = next((s for s in self._settings.chunk_manifests.sets if s.name == name), None)
        if found is None or found.cardinality is None:
            return found
        present = sum(info.set_name == name for info in self._base.manifests)
        return found if present <= found.cardinality else None

    def _stays(
        self,
        target: ManifestSet,
        columns: NodeColumns,
        rows: list[int],
        edited: Mapping[NodeId, ArrayChunks],
    ) -> bool:
        """Whether all arrays belong into the set, whole, and fit into one manifest of it."""
        config = self._settings.chunk_manifests
        by_path = any(rule.path not in {None, ".*"} for rule in config.rules)
        judged: dict[tuple[str, int, int], str] = {}
        grids: dict[bytes, int | None] = {}
        total = 0
        counts = columns.refs.counts_of(rows)
        for row, base_count in zip(rows, counts, strict=True):
            node_id = columns.ids[row * 8 : row * 8 + 8]
            chunks = edited.get(node_id)  # type: ignore[call-overload]
            count = base_count if chunks is None else len(chunks)
            path = columns.paths[row]
            grid = self._grid(columns, row, grids)
            size = count if grid is None else max(grid, count)
            if target.splits(count):
                return False
            key = (path if by_path or "\n" in path else "", size, count)
            name = judged.get(key)
            if name is None:
                item = Item(
                    content=None,
                    node_id=columns.id_at(row),
                    path=path,
                    metadata_chunks=size,
                    initialized_chunks=count,
                )
                name = judged[key] = apply_rules(item, config)
            if name != target.name:
                return False
            total += size
        if target.arrays_per_manifest is not None:
            return len(rows) <= target.arrays_per_manifest
        return target.max_manifest_size is None or total <= target.max_manifest_size

    def _grid(self, columns: NodeColumns, row: int, known: dict[bytes, int | None]) -> int | None:
        """Number of chunks of an array's grid; None if its kind of grid is not known."""
        node_id = columns.id_at(row)
        if row in columns.attributes or node_id in self._changes.documents:
            node = self._changes.array_by_id(node_id)
            return None if node is None else node.array.num_chunks
        document = columns.document_at(row)
        if document not in known:
            array = parse_document(document, columns.paths[row])
            known[document] = None if array is None else array.num_chunks
        return known[document]


def _with_arrays(
    manifest: Manifest, edited: Mapping[NodeId, ArrayChunks]
) -> tuple[ManifestIndex, list[ManifestBlock]]:
    """The layout of a manifest in which some arrays, all of which it has, are replaced."""
    old = manifest.index.arrays
    positions, refs = manifest.columns()
    pieces: list[ChunkRefs] = []
    places: list[npt.NDArray[np.uint64]] = []
    ranks, counts = old.ranks.tolist(), old.counts.tolist()
    corners = np.append(0, np.cumsum(old.ranks)).tolist()
    lower, shapes = old.lower.tolist(), old.shapes.tolist()
    is_sparse = positions is not None
    done = 0
    for number, node_id in sorted((_number(old, node_id), node_id) for node_id in edited):
        chunks = edited[node_id]
        start, stop = old.rows[number : number + 2].tolist()
        pieces += [refs.slice(done, start), chunks.refs]
        places.append(_positions(positions, done, start))
        places.append(
            np.zeros(len(chunks), dtype=np.uint64)
            if chunks.index.linear is None
            else chunks.index.linear
        )
        is_sparse = is_sparse or chunks.index.linear is not None
        counts[number] = len(chunks)
        box = chunks.index.box
        lower[corners[number] : corners[number + 1]] = box.lower
        shapes[corners[number] : corners[number + 1]] = box.shape
        done = stop
    pieces.append(refs.slice(done, len(refs)))
    places.append(_positions(positions, done, len(refs)))
    arrays = ManifestArrays(old.node_ids, ranks, counts, lower, shapes)
    return arrange(
        arrays,
        ChunkRefs.concat([piece for piece in pieces if len(piece)]),
        np.concatenate(places) if is_sparse and not arrays.all_dense else None,
    )


def _number(arrays: ManifestArrays, node_id: NodeId) -> int:
    """Which of the arrays of a manifest has an id."""
    return int(np.searchsorted(arrays.numbers, np.uint64(int.from_bytes(node_id, "big"))))


def _positions(
    positions: npt.NDArray[np.uint64] | None, start: int, stop: int
) -> npt.NDArray[np.uint64]:
    if positions is None:
        return np.zeros(stop - start, dtype=np.uint64)
    return positions[start:stop]
