"""Cuts the references of a huge array into tiles, each of which goes into one manifest."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

MAX_TILE_REFS = 32_768
"""Default size of a tile: a commit that changes one chunk rewrites at most so many references."""


class Tiling:
    """A regular partition of an array's chunk grid; without cuts, one tile is the whole grid."""

    __slots__ = ("is_whole", "shape")

    def __init__(self, shape: tuple[int | None, ...]) -> None:
        """Take how many chunks a tile spans along each dimension; None is all of them."""
        self.shape = shape
        self.is_whole = all(size is None for size in shape)
        """Whether nothing is cut."""

    @classmethod
    def for_array(
        cls,
        grid_shape: tuple[int, ...] | None,
        sizes: Sequence[int | None],
        max_refs: int | None = None,
    ) -> Tiling:
        """The configured cuts or, where none are configured, tiles of at most `max_refs` chunks.

        Not given, `max_refs` is MAX_TILE_REFS.
        Trailing dimensions stay whole as long as they fit, so that appending along the first
        dimension touches the last tile only, and tiles do not shift as the array grows.
        """
        if grid_shape is None or len(sizes) != sizes.count(None):
            return cls(tuple(sizes))
        max_refs = MAX_TILE_REFS if max_refs is None else max_refs
        if prod(grid_shape) <= max_refs:
            return _whole(len(grid_shape))
        shape: list[int | None] = [1] * len(grid_shape)
        inner = 1
        for axis in range(len(grid_shape) - 1, -1, -1):
            extent = max(1, grid_shape[axis])
            if inner * extent <= max_refs and axis > 0:
                shape[axis] = None
                inner *= extent
            else:
                shape[axis] = max(1, max_refs // inner)
                break
        return cls(tuple(shape))

    def tiles_of(self, coords: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Which tile each coordinate (n, rank) is in, as tile coordinates (n, rank)."""
        tiles = np.zeros(coords.shape, dtype=np.int64)
        for axis, size in enumerate(self.shape):
            if size is not None:
                tiles[:, axis] = coords[:, axis].astype(np.int64) // size
        return tiles

    def distinct(self, coords: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The tiles (n, rank) that some coordinates are in, each once."""
        tiles = self.tiles_of(coords)
        numbers = _numbered(tiles)
        order = np.argsort(numbers, kind="stable")
        # Not np.unique by rows, whose first call imports a good part of numpy.
        is_first = np.append(True, np.diff(numbers[order]) != 0)
        found: npt.NDArray[np.int64] = tiles[order[is_first]]
        return found

    def touched(
        self,
        lower: npt.NDArray[np.int64],
        upper: npt.NDArray[np.int64],
        tiles: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Which of some boxes, given by their corners (n, rank), reach into any of some tiles."""
        low, high = self.tiles_of(lower), self.tiles_of(upper - 1)
        hit = np.zeros(len(low), dtype=np.bool_)
        if len(tiles) < len(low):
            for tile in tiles:
                hit |= ((low <= tile) & (high >= tile)).all(axis=1)
        else:
            for row, (first, last) in enumerate(zip(low, high, strict=True)):
                hit[row] = ((first <= tiles) & (last >= tiles)).all(axis=1).any()
        return hit

    def cut(self, chunks: ArrayChunks) -> list[ArrayChunks]:
        """The references of each tile that has any, in order of the tiles."""
        if self.is_whole or len(chunks) == 0:
            return [chunks] if len(chunks) else []
        if chunks.index.is_dense and all(size is None for size in self.shape[1:]):
            return self._cut_dense(chunks)
        coords = chunks.index.coords()
        which = _numbered(self.tiles_of(coords))
        order = np.argsort(which, kind="stable")
        bounds = np.flatnonzero(np.diff(which[order])) + 1
        # Within a tile the rows keep their order, which is row-major.
        return [
            ArrayChunks.from_sorted(coords[rows], chunks.refs.take(rows))
            for rows in np.split(order, bounds)
        ]

    def _cut_dense(self, chunks: ArrayChunks) -> list[ArrayChunks]:
        """Cuts along the first dimension only: rows of a tile follow each other, all present."""
        box = chunks.index.box
        size = self.shape[0]
        assert size is not None
        rows_per_step = box.size // (box.upper[0] - box.lower[0])
        pieces = []
        start = box.lower[0]
        while start < box.upper[0]:
            stop = min(box.upper[0], (start // size + 1) * size)
            piece = Box((start, *box.lower[1:]), (stop, *box.upper[1:]))
            first = (start - box.lower[0]) * rows_per_step
            refs = chunks.refs.slice(first, first + piece.size)
            pieces.append(ArrayChunks(ChunkIndex(piece, None), refs))
            start = stop
        return pieces


@cache
def _whole(rank: int) -> Tiling:
    """One tile; there is one of it per rank, for a commit may ask for thousands."""
    return Tiling((None,) * rank)


def _numbered(tiles: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """One number per tile, in row-major order of the tiles (n, rank)."""
    low = tiles.min(axis=0)
    extent = tiles.max(axis=0) - low + 1
    if float(np.prod(extent.astype(np.float64))) >= 2.0**62:
        _, which = np.unique(tiles, axis=0, return_inverse=True)
        return which.ravel().astype(np.int64)
    numbers = np.zeros(len(tiles), dtype=np.int64)
    for axis in range(tiles.shape[1]):
        numbers = numbers * extent[axis] + (tiles[:, axis] - low[axis])
    return numbers
