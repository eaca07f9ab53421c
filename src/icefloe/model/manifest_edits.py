"""A manifest with other references for a few of its arrays, made without touching the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_refs import ChunkRefs
from icefloe.model.manifest import ManifestArrays, arrange

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks, Manifest, ManifestBlock, ManifestIndex


def with_arrays(
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
