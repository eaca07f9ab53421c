"""Divides the selected cells of a table into blocks of whole chunks, and blocks into tasks."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.tables.indexing import DimSelection
    from icefloe.tables.schema import TableSchema

    Starts = npt.NDArray[np.int64]
    Boxes = npt.NDArray[np.int64]
    """Blocks (n, dimensions, 2): where each begins and ends, in selected positions."""

MAX_TASK_BYTES = 64 * 1024 * 1024
_MIN_TASK_BYTES = 2 * 1024 * 1024
_WANTED_TASKS = 16


class SelectedChunks(Record, frozen=True, eq=False):
    """The chunks of the selected positions, dimension by dimension."""

    edges: tuple[Any, ...]
    """For each dimension the first selected position of each run in one chunk, and the end."""
    numbers: tuple[Any, ...]
    """For each dimension the number of the chunk of each run."""
    chunk_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of runs along each dimension."""
        return tuple(len(numbers) for numbers in self.numbers)


def chunk_shape_of(table: TableSchema, columns: Sequence[str]) -> tuple[int, ...]:
    """The chunks that tasks keep whole: those of the largest array that has all dimensions."""
    chosen = set(columns)
    full = [
        v
        for v in table.values
        if v.name in chosen and len(v.dims) == len(table.dims) and set(v.dims) == set(table.dims)
    ]
    if not full:
        return tuple(max(1, size) for size in table.shape)
    largest = max(full, key=lambda v: prod(v.chunks) * v.itemsize)
    lengths = dict(zip(largest.dims, largest.chunks, strict=True))
    return tuple(lengths[dim] for dim in table.dims)


def select_chunks(axes: Sequence[DimSelection], chunk_shape: Sequence[int]) -> SelectedChunks:
    """The chunks of the selected positions."""
    edges, chunks = [], []
    for axis, length in zip(axes, chunk_shape, strict=True):
        if axis.indices is None:
            numbers = np.arange(-(-axis.size // length), dtype=np.int64)
            starts = np.minimum(np.append(numbers, len(numbers)) * length, axis.size)
        else:
            of_each = axis.indices // length
            first = np.flatnonzero(np.diff(of_each, prepend=-1))
            numbers, starts = of_each[first], np.append(first, len(of_each))
        edges.append(starts.astype(np.int64))
        chunks.append(numbers)
    return SelectedChunks(tuple(edges), tuple(chunks), tuple(chunk_shape))


def divide(
    chunks: SelectedChunks,
    cell_bytes: int,
    *,
    keep: npt.NDArray[np.bool_] | None = None,
    task_bytes: int | None = None,
) -> list[Boxes]:
    """Blocks for each task, in row-major order.

    Args:
        chunks: The chunks of the selected cells.
        cell_bytes: Bytes of one cell.
        keep: Which of them are needed; all by default.
        task_bytes: About how many bytes a task reads; a chunk is never divided.
    """
    if any(not extent for extent in chunks.shape):
        return []
    lengths = [np.diff(edge) for edge in chunks.edges]
    total = prod(int(edge[-1]) for edge in chunks.edges) * cell_bytes
    if keep is not None:
        total = int(total * (keep.mean() if keep.size else 0))
    wanted = task_bytes or min(MAX_TASK_BYTES, max(_MIN_TASK_BYTES, total // _WANTED_TASKS))
    tile = _tile_shape(lengths, max(1, wanted // cell_bytes))
    return list(_packed(_tiles(chunks, tile, keep), wanted // cell_bytes))


def _tile_shape(lengths: Sequence[Starts], cells: int) -> list[int]:
    """How many chunks a tile has along each dimension: last dimensions are filled first."""
    shape = [1] * len(lengths)
    longest = [int(part.max()) for part in lengths]
    used = prod(longest)
    for axis in range(len(lengths) - 1, -1, -1):
        count = len(lengths[axis])
        room = max(1, cells // max(1, used))
        shape[axis] = min(count, room)
        if shape[axis] < count:
            break
        used = used // longest[axis] * int(lengths[axis].sum())
    return shape


def _tiles(
    chunks: SelectedChunks, tile: Sequence[int], keep: npt.NDArray[np.bool_] | None
) -> Iterator[Boxes]:
    steps = [range(0, extent, size) for extent, size in zip(chunks.shape, tile, strict=True)]
    for corner in product(*steps):
        ends = [
            min(at + size, extent)
            for at, size, extent in zip(corner, tile, chunks.shape, strict=True)
        ]
        if keep is None:
            whole = True
        else:
            part = keep[tuple(map(slice, corner, ends))]
            if not part.any():
                continue
            whole = bool(part.all())
        if whole:
            yield _boxes(chunks, np.array([corner]), np.array([ends]))
        else:
            low = np.argwhere(part) + np.array(corner)
            yield _boxes(chunks, *_runs(low))


def _runs(cells: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Neighbours along the last dimension joined; cells are in row-major order."""
    if len(cells) == 0 or cells.shape[1] == 0:
        return cells, cells + 1
    step = np.diff(cells, axis=0)
    follows = (step[:, :-1] == 0).all(axis=1) & (step[:, -1] == 1)
    first = np.flatnonzero(np.concatenate([[True], ~follows]))
    last = np.append(first[1:], len(cells)) - 1
    return cells[first], cells[last] + 1


def _boxes(
    chunks: SelectedChunks, low: npt.NDArray[np.int64], high: npt.NDArray[np.int64]
) -> Boxes:
    boxes = np.empty((len(low), len(chunks.edges), 2), dtype=np.int64)
    for axis, edge in enumerate(chunks.edges):
        boxes[:, axis, 0] = edge[low[:, axis]]
        boxes[:, axis, 1] = edge[high[:, axis]]
    return boxes


def _packed(tiles: Iterator[Boxes], cells: int) -> Iterator[Boxes]:
    """Joins tiles of which few chunks are needed into one task."""
    waiting: list[Boxes] = []
    waiting_cells = 0
    for boxes in tiles:
        size = count_cells(boxes)
        if waiting and waiting_cells + size > cells:
            yield np.concatenate(waiting)
            waiting, waiting_cells = [], 0
        waiting.append(boxes)
        waiting_cells += size
    if waiting:
        yield np.concatenate(waiting)


def count_cells(boxes: Boxes) -> int:
    """Number of cells of blocks."""
    return int((boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1).sum())


def count_chunks(chunks: SelectedChunks, boxes: Boxes) -> int:
    """Number of chunks of blocks."""
    counts = np.ones(len(boxes), dtype=np.int64)
    for axis, edge in enumerate(chunks.edges):
        first, last = (np.searchsorted(edge, boxes[:, axis, end]) for end in (0, 1))
        counts *= last - first
    return int(counts.sum())


def chunk_boxes(
    chunks: SelectedChunks, box: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """The parts of a block that are in one chunk each."""
    cuts = []
    for axis, edge in enumerate(chunks.edges):
        first = int(np.searchsorted(edge, box[axis, 0]))
        last = int(np.searchsorted(edge, box[axis, 1]))
        cuts.append(range(first, last))
    for place in product(*cuts):
        yield np.array(
            [(chunks.edges[a][i], chunks.edges[a][i + 1]) for a, i in enumerate(place)],
            dtype=np.int64,
        ).reshape(len(chunks.edges), 2)


def sub_boxes(shape: Sequence[int], cells: int) -> Iterator[tuple[slice, ...]]:
    """A block cut into parts of at most some cells, in row-major order."""
    pieces = [1] * len(shape)
    room = max(1, cells)
    for axis in range(len(shape) - 1, -1, -1):
        pieces[axis] = max(1, min(shape[axis], room))
        room //= max(1, pieces[axis])
    steps = [range(0, extent, size) for extent, size in zip(shape, pieces, strict=True)]
    for corner in product(*steps):
        yield tuple(
            slice(at, min(at + size, extent))
            for at, size, extent in zip(corner, pieces, shape, strict=True)
        )
