"""Pictures of arrays of any size: samples of a plane, within a budget of bytes.

A picture has few pixels, so few cells are needed; but a chunk is read as a whole. If the chunks of
a plane are more than the budget allows, some of them represent their neighbours.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import isqrt, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.arrays.transfer import read_region
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.engine.port import ChunkStore
    from icefloe.model.nodes import ArrayNode

    Values = npt.NDArray[Any]
    Indexes = npt.NDArray[np.int64]

MAX_PIXELS = 256
"""Along each side of a picture."""
MAX_BYTES = 64 * 1024 * 1024
"""Of decoded chunks, for one picture."""
MAX_CHUNKS = 256
_READS_AT_A_TIME = 8


class Plane(NamedTuple):
    """Two axes of an array as rows and columns, at one index of each other axis."""

    rows: int | None
    """None for an array of one dimension, which is one row."""
    columns: int
    at: tuple[int, ...]
    """An index for each axis; those of rows and columns do not matter."""


class Sample(NamedTuple):
    """Cells of a plane, in the order of the pixels."""

    values: Values
    rows: Indexes
    """Index along the axis of rows for each row of pixels."""
    columns: Indexes
    is_complete: bool
    """Whether every chunk of the plane was read; otherwise some represent their neighbours."""
    chunks_read: int


class AxisSample(NamedTuple):
    """Which indexes of an axis are looked at."""

    indexes: Indexes
    chunks: Indexes
    """The chunks that they are in, each once."""
    is_complete: bool


def sample_axis(extent: int, chunk: int, pixels: int, max_chunks: int) -> AxisSample:
    """Choose an index for each pixel, in no more chunks than allowed.

    >>> sample_axis(1000, 10, 4, 2).indexes.tolist()
    [125, 125, 875, 875]
    """
    count = min(extent, pixels)
    indexes = ((np.arange(count) + 0.5) * extent / count).astype(np.int64)
    places = indexes // chunk
    chunks = np.unique(places)
    if len(chunks) <= max_chunks:
        return AxisSample(indexes, chunks, is_complete=len(chunks) == -(-extent // chunk))
    chosen = chunks[np.linspace(0, len(chunks) - 1, max_chunks).astype(np.int64)]
    nearest = chosen[np.abs(places[:, None] - chosen[None, :]).argmin(axis=1)]
    indexes = np.minimum(nearest * chunk + indexes % chunk, extent - 1)
    return AxisSample(indexes, np.unique(nearest), is_complete=False)


def check_plane(node: ArrayNode, plane: Plane) -> None:
    """Raise InvalidInputError unless the plane is one of the array."""
    shape = node.array.shape
    axes = {plane.columns} if plane.rows is None else {plane.rows, plane.columns}
    if len(axes) != min(2, len(shape)) or not axes <= set(range(len(shape))):
        raise InvalidInputError(f"{node.path} has {len(shape)} axes: choose two different ones")
    if len(plane.at) != len(shape):
        raise InvalidInputError(f"{node.path} has {len(shape)} axes, found {len(plane.at)} indexes")
    for axis, (index, extent) in enumerate(zip(plane.at, shape, strict=True)):
        if axis not in axes and not 0 <= index < extent:
            raise InvalidInputError(f"axis {axis} of {node.path} has 0 to {extent - 1}: {index}")


def sample_plane(
    tree: ChunkStore, node: ArrayNode, plane: Plane, itemsize: int, max_bytes: int = MAX_BYTES
) -> Sample:
    """Read a sample of a plane; raises InvalidInputError if one chunk is above the budget."""
    check_plane(node, plane)
    shape = node.array.shape
    if 0 in shape:
        raise InvalidInputError(f"{node.path} is empty: its shape is {list(shape)}")
    chunk = node.array.chunk_shape or tuple(min(extent, 64) for extent in shape)
    chunk_bytes = prod(chunk) * itemsize
    if chunk_bytes > max_bytes:
        raise InvalidInputError(
            f"one chunk of {node.path} has {chunk_bytes:,} bytes, and a preview reads at most "
            f"{max_bytes:,}"
        )
    allowed = max(1, min(MAX_CHUNKS, max_bytes // chunk_bytes))
    rows, columns = _sample_axes(shape, chunk, plane, allowed)
    values = _read(tree, node, plane, (rows, columns), chunk)
    return Sample(
        values=values,
        rows=rows.indexes,
        columns=columns.indexes,
        is_complete=rows.is_complete and columns.is_complete,
        chunks_read=len(rows.chunks) * len(columns.chunks),
    )


def _sample_axes(
    shape: Sequence[int], chunk: Sequence[int], plane: Plane, allowed: int
) -> tuple[AxisSample, AxisSample]:
    """Divide the allowed chunks among the two axes, by how many each of them has."""
    down = plane.columns
    if plane.rows is None:
        one = AxisSample(np.zeros(1, np.int64), np.zeros(1, np.int64), is_complete=True)
        return one, sample_axis(shape[down], chunk[down], 4 * MAX_PIXELS, allowed)
    extents = [(shape[axis], chunk[axis]) for axis in (plane.rows, plane.columns)]
    counts = [min(MAX_PIXELS, -(-extent // size)) for extent, size in extents]
    limits = list(counts)
    if prod(counts) > allowed:
        side = isqrt(allowed)
        smaller = 0 if counts[0] <= counts[1] else 1
        limits[smaller] = min(counts[smaller], side)
        limits[1 - smaller] = max(1, allowed // limits[smaller])
    rows, columns = (
        sample_axis(extent, size, MAX_PIXELS, max(1, limit))
        for (extent, size), limit in zip(extents, limits, strict=True)
    )
    return rows, columns


def _read(
    tree: ChunkStore,
    node: ArrayNode,
    plane: Plane,
    axes: tuple[AxisSample, AxisSample],
    chunk: Sequence[int],
) -> Values:
    """Read the chosen chunks, several at a time, and pick the cells out of them."""
    shape = node.array.shape

    def read_box(row: int, column: int) -> Values:
        selection: list[int | slice] = list(plane.at)
        for axis, place in ((plane.rows, row), (plane.columns, column)):
            if axis is not None:
                start = place * chunk[axis]
                selection[axis] = slice(start, min(start + chunk[axis], shape[axis]))
        box = read_region(tree, node.path, tuple(selection))
        if plane.rows is None:
            return box[None, :]
        return box if plane.rows < plane.columns else box.T

    places = [(row, column) for row in axes[0].chunks for column in axes[1].chunks]
    sizes = (1 if plane.rows is None else chunk[plane.rows], chunk[plane.columns])
    picture: Values | None = None
    with ThreadPoolExecutor(_READS_AT_A_TIME) as threads:
        boxes = threads.map(lambda place: read_box(int(place[0]), int(place[1])), places)
        for (row, column), box in zip(places, boxes, strict=True):
            if picture is None:
                size = (len(axes[0].indexes), len(axes[1].indexes))
                picture = np.empty(size, dtype=box.dtype)
            pixels = [
                np.flatnonzero(axis.indexes // size == place)
                for axis, size, place in zip(axes, sizes, (row, column), strict=True)
            ]
            cells = [
                axis.indexes[chosen] - place * size
                for axis, chosen, size, place in zip(
                    axes, pixels, sizes, (row, column), strict=True
                )
            ]
            picture[np.ix_(*pixels)] = box[np.ix_(*cells)]
    assert picture is not None
    return picture
