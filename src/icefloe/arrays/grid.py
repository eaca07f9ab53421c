"""Regions of arrays and boxes of their chunk grids: cut, cover and group them. No I/O here."""

from __future__ import annotations

from itertools import product
from math import ceil, prod
from typing import TYPE_CHECKING, TypeAlias

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import Box
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Region: TypeAlias = tuple[slice, ...]
"""One slice with start and stop, and without step, for each dimension."""


class ChunkGrid(Record, frozen=True):
    """The chunk grid of an array."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    """The smallest unit that is written: a chunk, or a shard."""
    item_bytes: int
    tile_shape: tuple[int | None, ...]
    """How many chunks a manifest spans along each dimension; None is all of them."""

    @property
    def box(self) -> Box:
        """All chunks."""
        return self.covering(whole(self.shape))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a full chunk in memory."""
        return prod(self.chunk_shape) * self.item_bytes

    def covering(self, region: Region) -> Box:
        """The chunks that a region touches."""
        sizes = self.chunk_shape
        return Box(
            tuple(part.start // size for part, size in zip(region, sizes, strict=True)),
            tuple(
                max(part.start // size, ceil(part.stop / size))
                for part, size in zip(region, sizes, strict=True)
            ),
        )

    def region(self, box: Box, within: Region | None = None) -> Region:
        """The elements of a box of chunks that are inside of the array, and of a region."""
        limits = whole(self.shape) if within is None else within
        return tuple(
            slice(max(low * size, limit.start), min(high * size, limit.stop))
            for low, high, size, limit in zip(
                box.lower, box.upper, self.chunk_shape, limits, strict=True
            )
        )

    def box_bytes(self, box: Box, within: Region | None = None) -> int:
        """Bytes in memory of a box of chunks."""
        return num_elements(self.region(box, within)) * self.item_bytes


def whole(shape: Sequence[int]) -> Region:
    """The region of all elements."""
    return tuple(slice(0, extent) for extent in shape)


def shape_of(region: Region) -> tuple[int, ...]:
    """The number of elements of a region along each dimension."""
    return tuple(part.stop - part.start for part in region)


def num_elements(region: Region) -> int:
    """The number of elements of a region."""
    return prod(max(0, extent) for extent in shape_of(region))


def shifted(region: Region, by: Sequence[int]) -> Region:
    """A region, moved."""
    return tuple(
        slice(part.start + step, part.stop + step) for part, step in zip(region, by, strict=True)
    )


def resolve_region(region: object, shape: Sequence[int], dims: Sequence[str | None]) -> Region:
    """A region from slices in order, or by the name of a dimension; None is the whole array.

    Raises InvalidInputError if it is not a region of the array.
    """
    if region is None:
        return whole(shape)
    if isinstance(region, dict):
        unknown = [name for name in region if name not in dims]
        if unknown:
            raise InvalidInputError(f"no dimension is called {unknown[0]!r}; found {list(dims)}")
        parts = tuple(region.get(name, slice(None)) for name in dims)
    else:
        parts = tuple(region) if isinstance(region, tuple | list) else (region,)
    if len(parts) > len(shape):
        raise InvalidInputError(f"a region of {len(shape)} dimensions, found {len(parts)} slices")
    parts += (slice(None),) * (len(shape) - len(parts))
    return tuple(_resolved(part, extent) for part, extent in zip(parts, shape, strict=True))


def _resolved(part: object, extent: int) -> slice:
    if isinstance(part, int):
        part = slice(part, part + 1) if part != -1 else slice(-1, None)
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise InvalidInputError(f"a region is made of slices without a step, found {part!r}")
    for bound in (part.start, part.stop):
        if bound is not None and not -extent <= bound <= extent:
            raise InvalidInputError(f"{part} lies outside of a dimension of {extent}")
    start, stop, _ = part.indices(extent)
    return slice(start, max(start, stop))


# --- cutting


def tiles(box: Box, tile_shape: Sequence[int | None]) -> Iterator[Box]:
    """Cut a box of chunks at the boundaries of manifests."""
    cuts = []
    for low, high, size in zip(box.lower, box.upper, tile_shape, strict=True):
        if size is None:
            cuts.append([(low, high)] if high > low else [])
            continue
        starts = range(low // size * size, high, size)
        cuts.append([(max(low, start), min(high, start + size)) for start in starts])
    for parts in product(*cuts):
        yield Box(tuple(low for low, _ in parts), tuple(high for _, high in parts))


def split(box: Box, max_cells: int) -> Iterator[Box]:
    """Cut a box into boxes of at most `max_cells` chunks (at least one), in row-major order.

    Trailing dimensions stay whole as long as they fit.
    """
    yield from blocks(box, _fitting(box.shape, max(1, max_cells)))


def _fitting(shape: Sequence[int], max_cells: int) -> tuple[int, ...]:
    steps = [1] * len(shape)
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        steps[axis] = max(1, min(shape[axis], max_cells // inner))
        inner *= steps[axis]
        if steps[axis] < shape[axis]:
            break
    return tuple(steps)


def blocks(box: Box, steps: Sequence[int]) -> Iterator[Box]:
    """Cut a box into blocks of a shape, in row-major order; the last ones may be smaller."""
    ranges = [
        range(low, high, max(1, step))
        for low, high, step in zip(box.lower, box.upper, steps, strict=True)
    ]
    for lower in product(*ranges):
        upper = tuple(
            min(low + step, high) for low, step, high in zip(lower, steps, box.upper, strict=True)
        )
        yield Box(lower, upper)


# --- grouping


class Piece(Record, frozen=True):
    """Chunks of one array that one task writes."""

    array: str
    box: Box


class Target(Record, frozen=True):
    """A part of an array that a job fills."""

    grid: ChunkGrid
    region: Region

    @property
    def box(self) -> Box:
        """The chunks that it touches."""
        return self.grid.covering(self.region)

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        return num_elements(self.region) * self.grid.item_bytes

    @property
    def num_tiles(self) -> int:
        """How many manifests it touches."""
        return sum(1 for _ in tiles(self.box, self.grid.tile_shape))


def group_tasks(targets: Sequence[Target], task_bytes: int) -> list[tuple[Piece, ...]]:
    """Divide targets into tasks of about `task_bytes`; no two tasks write to the same chunk.

    A task that fills less than a manifest writes to that one only; small pieces share a task.
    """
    tasks: list[tuple[Piece, ...]] = []
    waiting: list[Piece] = []
    waiting_bytes = 0
    for target in targets:
        grid = target.grid
        if num_elements(target.region) == 0:
            continue
        cells = max(1, task_bytes // max(1, grid.chunk_bytes))
        for tile in tiles(target.box, grid.tile_shape):
            for box in split(tile, cells):
                size = grid.box_bytes(box, target.region)
                if waiting and waiting_bytes + size > task_bytes:
                    tasks.append(tuple(waiting))
                    waiting, waiting_bytes = [], 0
                waiting.append(Piece(grid.path, box))
                waiting_bytes += size
    if waiting:
        tasks.append(tuple(waiting))
    return tasks


SMALLEST_TASK_BYTES = 8 * 1024 * 1024
LARGEST_TASK_BYTES = 512 * 1024 * 1024
_TASKS_PER_SLOT = 3


def suitable_task_bytes(total_bytes: int, slots: int) -> int:
    """Bytes per task that keep all slots busy to the end, without many small tasks."""
    fair = total_bytes // (_TASKS_PER_SLOT * max(1, slots))
    return max(SMALLEST_TASK_BYTES, min(LARGEST_TASK_BYTES, fair))
