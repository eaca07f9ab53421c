"""Checks chunks that are read or written against the grid of their array."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import bounding_box, is_inside
from icefloe.model.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.model.chunk_index import Box
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode


def within_grid(
    node: ArrayNode, coords: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp] | None]:
    """Coordinates (n, rank) in the chunk grid, and which ones they are; None if they are all."""
    if coords.ndim != 2 or coords.shape[1] != node.array.rank:
        raise InvalidInputError(
            f"chunks of {node.path} have coordinates of the shape (n, {node.array.rank}), "
            f"found {coords.shape}"
        )
    largest = np.iinfo(np.int64).max
    grid = node.array.grid_shape or (largest,) * node.array.rank
    inside = is_inside(coords, (0,) * node.array.rank, grid)
    if inside.all():
        return coords.astype(np.uint64), None
    rows = np.flatnonzero(inside)
    return coords[rows].astype(np.uint64), rows


def has_box(node: ArrayNode, box: Box) -> bool:
    """Whether all positions of a box are within the grid; true for a grid of an unknown kind."""
    grid = node.array.grid_shape
    return grid is None or all(map(operator.le, box.upper, grid))


def visible(node: ArrayNode, chunks: ArrayChunks | None) -> ArrayChunks | None:
    """The references that readers see: those within the grid; None if there are none.

    Others are left when the array became smaller, until the next commit drops them.
    """
    if chunks is None or has_box(node, chunks.index.box):
        return chunks
    coords, rows = within_grid(node, chunks.index.coords())
    assert rows is not None, "the box is around the chunks"
    return type(chunks).from_sorted(coords, chunks.refs.take(rows)) if len(rows) else None


def check_all_in_grid(node: ArrayNode, coords: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Coordinates (n, rank) of chunks that may be written."""
    inside, rows = within_grid(node, coords)
    if rows is not None:
        outside = np.setdiff1d(np.arange(len(coords)), rows)
        raise InvalidInputError(
            f"invalid chunk index: {coords[outside[0]].tolist()} in {node.path}, whose chunk grid "
            f"is {list(node.array.grid_shape or ())}"
        )
    return inside


def _in_octets(segments: Segments) -> Segments:
    """Segments whose buffer counts bytes, even if it was passed as numbers of another size."""
    if isinstance(segments.data, bytes | bytearray):
        return segments
    try:
        octets = memoryview(segments.data).cast("B")
    except TypeError as error:
        raise InvalidInputError(f"the buffer of segments must be contiguous: {error}") from None
    return Segments(octets, segments.offsets, segments.lengths)


def checked_segments(
    node: ArrayNode, coords: npt.NDArray[np.integer], segments: Segments
) -> tuple[npt.NDArray[np.uint64], Segments]:
    """Chunks that may be written, in row-major order."""
    places = check_all_in_grid(node, coords)
    if len(places) != len(segments):
        raise InvalidInputError(
            f"expected a segment for each of {len(places)} chunks of {node.path}, found "
            f"{len(segments)}"
        )
    if len(places) == 0:
        return places, segments
    segments = _in_octets(segments)
    size = len(segments.data)
    lowest = min(int(segments.offsets.min()), int(segments.lengths.min()))
    if lowest < 0 or int((segments.offsets + segments.lengths).max()) > size:
        raise InvalidInputError(f"segments of chunks of {node.path} lie outside of their buffer")
    linear = bounding_box(places).linearize(places)
    if not (linear[1:] > linear[:-1]).all():
        order = np.argsort(linear, kind="stable")
        places, segments, linear = places[order], segments.take(order), linear[order]
        twice = np.flatnonzero(linear[1:] == linear[:-1])
        if len(twice):
            raise InvalidInputError(
                f"chunk {places[twice[0]].tolist()} of {node.path} is given twice"
            )
    return places, segments


def no_bytes(path: str, coords: Sequence[int]) -> InvalidInputError:
    """The error about a chunk without bytes, in a format that cannot have it."""
    return InvalidInputError(
        f"chunk {list(coords)} of {path} has no bytes, which the official format cannot store: "
        "delete the chunk instead, so that it is read as the fill value, or use another generation"
    )


def check_box(node: ArrayNode, box: Box) -> None:
    """Raise InvalidInputError if a box of chunks is not all within the grid."""
    if not in_grid(node, tuple(upper - 1 for upper in box.upper)):
        raise InvalidInputError(
            f"invalid chunk index: chunks {box.lower} to {box.upper} of {node.path} lie outside "
            f"of its grid {node.array.grid_shape}"
        )


def in_grid(node: ArrayNode, coords: tuple[int, ...]) -> bool:
    """Whether a chunk is within the grid."""
    grid = node.array.grid_shape
    if grid is None:
        return len(coords) == node.array.rank
    if len(coords) != len(grid):
        return False
    return all(map(operator.lt, coords, grid)) and min(coords, default=0) >= 0
