"""Gives the chunks of an array other coordinates: shifted, reindexed, or by any other rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import ChunkIndex, is_inside
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.model.nodes import ArrayNode

    Coords = npt.NDArray[np.int64]
    Places = Callable[[Coords], Coords]


def shifted_by(chunk_offset: Sequence[int], path: str) -> Places:
    """Places that are a number of chunks away along each dimension."""
    offset = np.array(list(chunk_offset), dtype=np.int64)

    def places(coords: Coords) -> Coords:
        if coords.shape[1] != len(offset):
            raise InvalidInputError(
                f"{path} has {coords.shape[1]} dimensions; found {len(offset)} offsets"
            )
        moved: Coords = coords + offset
        return moved

    return places


def reindexed_by(forward: Callable[[tuple[int, ...]], Sequence[int] | None]) -> Places:
    """The places that a function gives, chunk by chunk; None drops a chunk."""

    def places(coords: Coords) -> Coords:
        outside = [-1] * coords.shape[1]
        targets = [forward(tuple(row)) for row in coords.tolist()]
        rows = [outside if target is None else list(target) for target in targets]
        return np.array(rows, dtype=np.int64).reshape(coords.shape)

    return places


def rearrange(changes: ChangeSet, node: ArrayNode, table: ArrayChunks, places: Places) -> None:
    """Move the chunks of an array, given as a table, to other places; drop those outside."""
    old = table.index.coords().astype(np.int64)
    # Chunks that no reader sees must not come into view.
    seen = np.arange(len(old))
    if node.array.grid_shape is not None:
        seen = np.flatnonzero(is_inside(old, (0,) * node.array.rank, node.array.grid_shape))
    coords = np.full_like(old, -1)
    coords[seen] = places(old[seen])
    inside = (coords >= 0).all(axis=1)
    if node.array.grid_shape is not None:
        inside &= (coords < np.array(node.array.grid_shape, dtype=np.int64)).all(axis=1)
    rows = np.flatnonzero(inside)
    if len(np.unique(coords[rows], axis=0)) != len(rows):
        raise InvalidInputError(f"two chunks of {node.path} would get the same index")
    moves = (coords != old).any(axis=1) | ~inside
    if not moves.any():
        return
    edits = changes.edits(node)
    if node.manifests:
        # Chunks that stay are not touched: only manifests with chunks that move are rewritten.
        edits.delete_many(ChunkIndex.from_coords(old[moves])[0])
        rows = np.flatnonzero(inside & moves)
    else:
        edits.clear()
    if len(rows):
        edits.set_many(ArrayChunks.from_columns(coords[rows], table.refs.take(rows)))
