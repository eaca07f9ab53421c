"""Splits the references of one array into parts, each of which goes into one manifest.

The chunk grid is cut into regular tiles. In a manifest set that splits arrays, neighbouring tiles
share a part as long as they have few references together: tiles are ordered row by row, an ordered
run of them is halved until each half has at most `max_refs` references, and each run is a part.

Runs are halved where the binary digits of the tiles' coordinates change, so every part is in a
box of the grid that no other part reaches into, and where parts begin and end depends only on the
references that exist. A box with at most `max_refs` references has at most one part. Hence n
references make at most 1 + (n / max_refs) * log2(tiles of the grid) parts, and about 2 n / max_refs
if they are spread evenly.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    import numpy.typing as npt


class Tiling:
    """A regular partition of an array's chunk grid, and how many references tiles may share."""

    __slots__ = ("max_refs", "shape")

    def __init__(self, shape: tuple[int | None, ...], max_refs: int = 0) -> None:
        """Take how many chunks a tile spans along each dimension; None is all of them.

        With `max_refs`, neighbouring tiles are one part as long as they have at most so many
        references together. Without, each tile that has any is a part.
        """
        self.shape = shape
        self.max_refs = max_refs

    @classmethod
    def for_grid(cls, grid_shape: tuple[int, ...], max_refs: int) -> Tiling:
        """Tiles of at most `max_refs` chunks.

        Trailing dimensions stay whole as long as they fit, so that appending along the first
        dimension touches the last tile only, and tiles do not shift as the array grows.
        """
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
        return cls(tuple(shape), max_refs)

    def tiles_of(self, coords: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Which tile each coordinate (n, rank) is in, as tile coordinates (n, rank)."""
        tiles = np.zeros(coords.shape, dtype=np.int64)
        for axis, size in enumerate(self.shape):
            if size is not None:
                tiles[:, axis] = coords[:, axis].astype(np.int64) // size
        return tiles

    def counted(self, index: ChunkIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tiles (n, rank) that some chunks are in, in order, and how many are in each."""
        if self._is_cut_by_rows(index):
            starts, chunks_per_row = self._rows(index.box)
            corners = np.zeros((len(starts), len(self.shape)), dtype=np.int64)
            corners[:, 0] = starts
            return self.tiles_of(corners), np.diff(
                starts, append=index.box.upper[0]
            ) * chunks_per_row
        tiles = self.tiles_of(index.coords())
        order, first = _runs(_numbered(tiles))
        return tiles[order[first]], np.diff(first, append=len(order))

    def _is_cut_by_rows(self, index: ChunkIndex) -> bool:
        """Whether a box is full, and tiles are cut along its first dimension only."""
        return (
            index.is_dense
            and self.shape[:1] not in {(), (None,)}
            and all(size is None for size in self.shape[1:])
        )

    def _rows(self, box: Box) -> tuple[npt.NDArray[np.int64], int]:
        """Where tiles start along the first dimension of a box, and how many chunks a row has."""
        size = self.shape[0]
        assert size is not None
        low, high = box.lower[0], box.upper[0]
        tiles = np.arange(low // size, (high - 1) // size + 1, dtype=np.int64)
        return np.maximum(tiles * size, low), box.size // (high - low)

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

    def parts_of(
        self, tiles: npt.NDArray[np.int64], counts: npt.NDArray[np.integer]
    ) -> npt.NDArray[np.int64]:
        """The number of the part that each of some tiles (n, rank) belongs to.

        `counts` are the references in each; a tile may come more than once, and may have none.
        Parts are numbered in the order of the grid.
        """
        numbers = _numbered(tiles)
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        before = np.append(0, np.cumsum(counts[order]))
        starts = np.zeros(len(order), dtype=np.int64)
        waiting = [(0, len(order))] if len(order) else []
        while waiting:
            first, end = waiting.pop()
            low, high = int(numbers[first]), int(numbers[end - 1])
            if low == high or before[end] - before[first] <= self.max_refs:
                starts[first] = 1
                continue
            # Where the highest binary digit changes in which tiles of the run differ.
            digit = (low ^ high).bit_length() - 1
            middle = first + int(np.searchsorted(numbers[first:end], high >> digit << digit))
            waiting += [(first, middle), (middle, end)]
        parts = np.empty(len(order), dtype=np.int64)
        parts[order] = np.cumsum(starts) - 1
        return parts

    def cut(
        self, chunks: ArrayChunks, parts: npt.NDArray[np.int64] | None = None
    ) -> list[ArrayChunks]:
        """The references of each part, in the order of the grid.

        `parts` are the parts of the tiles, as `counted` lists them: given where the array has
        references besides these.
        """
        if parts is None and len(chunks) <= self.max_refs:
            return [chunks] if len(chunks) else []
        if self._is_cut_by_rows(chunks.index):
            return self._cut_by_rows(chunks, parts)
        coords = chunks.index.coords()
        return [
            ArrayChunks.from_sorted(coords[rows], chunks.refs.take(rows))
            for rows in self._rows_of_parts(coords, parts)
        ]

    def cut_index(self, index: ChunkIndex) -> list[ChunkIndex]:
        """The chunks of each part, if there was a reference for each."""
        coords = index.coords()
        rows_of_parts = self._rows_of_parts(coords, None)
        return [ChunkIndex.from_coords(coords[rows])[0] for rows in rows_of_parts]

    def _rows_of_parts(
        self, coords: npt.NDArray[np.uint64], parts: npt.NDArray[np.int64] | None
    ) -> list[npt.NDArray[np.intp]]:
        """Which rows of coordinates (n, rank) are in each part, in ascending order."""
        tiles = self.tiles_of(coords)
        order, first = _runs(_numbered(tiles))
        if parts is None:
            parts = self.parts_of(tiles[order[first]], np.diff(first, append=len(order)))
        rows_of_parts = np.split(order, first[1:][np.diff(parts) != 0])
        for rows in rows_of_parts:
            rows.sort()  # a part may have several tiles
        return rows_of_parts

    def _cut_by_rows(
        self, chunks: ArrayChunks, parts: npt.NDArray[np.int64] | None
    ) -> list[ArrayChunks]:
        """The references of a part follow each other in a full box that is cut by rows."""
        box = chunks.index.box
        if parts is None:
            parts = self.parts_of(*self.counted(chunks.index))
        starts, chunks_per_row = self._rows(box)
        bounds = [box.lower[0], *starts[1:][np.diff(parts) != 0].tolist(), box.upper[0]]
        pieces = []
        for start, stop in pairwise(bounds):
            piece = Box((start, *box.lower[1:]), (stop, *box.upper[1:]))
            first = (start - box.lower[0]) * chunks_per_row
            refs = chunks.refs.slice(first, first + piece.size)
            pieces.append(ArrayChunks(ChunkIndex(piece, None), refs))
        return pieces


def _runs(
    numbers: npt.NDArray[np.generic],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order that sorts some numbers, and where runs of equal ones start in it."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    # Not np.unique by rows, whose first call imports a good part of numpy.
    return order, np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(order)])


def _numbered(tiles: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    """One number per tile: the binary digits of its coordinates, end to end.

    In this order, tiles (n, rank) are in row-major order.
    """
    digits = [int(high).bit_length() for high in tiles.max(axis=0, initial=0)]
    # Only chunks at astronomic coordinates need the numbers of Python.
    dtype = np.uint64 if sum(digits) <= 64 else object
    numbers = np.zeros(len(tiles), dtype=dtype)
    for axis, width in enumerate(digits):
        column = tiles[:, axis].astype(np.uint64).astype(dtype)
        numbers = (numbers << (np.uint64(width) if dtype is np.uint64 else width)) | column
    return numbers
