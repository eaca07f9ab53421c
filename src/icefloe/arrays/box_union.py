"""Unites boxes of chunks that overlap into few boxes that do not. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.model.chunk_index import Box

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_POSITIONS = 1 << 24
"""Positions of a grid that are marked one by one; more are united to the box around them all."""
MAX_BOXES = 100_000
"""Boxes that are worth while, instead of the box around them all."""


def union_of_boxes(
    lower: npt.NDArray[np.integer[Any]], upper: npt.NDArray[np.integer[Any]]
) -> list[Box]:
    """Disjoint boxes that cover what n boxes (n, rank) cover, in row-major order.

    They cover exactly that, or all of the box around them if that would be too many boxes.

    >>> union_of_boxes(np.array([[0, 0], [0, 1]]), np.array([[2, 2], [2, 3]]))
    [Box(lower=(0, 0), upper=(2, 3))]
    """
    filled = (lower < upper).all(axis=1)
    lower, upper = lower[filled].astype(np.int64), upper[filled].astype(np.int64)
    if not len(lower):
        return []
    around = Box(tuple(lower.min(axis=0).tolist()), tuple(upper.max(axis=0).tolist()))
    if len(lower) == 1 or around.rank == 0 or around.size > MAX_POSITIONS:
        return [around]
    marked = _marked(lower - around.lower, upper - around.lower, around.shape)
    found = _merged(np.argwhere(marked) + np.array(around.lower))
    return found if len(found) <= MAX_BOXES else [around]


def _marked(
    lower: npt.NDArray[np.int64], upper: npt.NDArray[np.int64], shape: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    """Which positions of a grid are in some box: sums of signed corners, whatever their number."""
    rank = len(shape)
    counts = np.zeros([extent + 1 for extent in shape], dtype=np.int32)
    for corner in range(1 << rank):
        ends = [bool(corner >> axis & 1) for axis in range(rank)]
        places = tuple((upper if end else lower)[:, axis] for axis, end in enumerate(ends))
        np.add.at(counts, places, -1 if sum(ends) % 2 else 1)
    for axis in range(rank):
        counts = np.cumsum(counts, axis=axis, dtype=np.int32)
    marked: npt.NDArray[np.bool_] = counts[tuple(slice(0, extent) for extent in shape)] > 0
    return marked


def _merged(coords: npt.NDArray[np.int64]) -> list[Box]:
    """Positions as boxes: neighbours along the last axis are joined first, then along others."""
    lower, upper = coords, coords + 1
    rank = coords.shape[1]
    for axis in range(rank - 1, -1, -1):
        others = [each for each in range(rank) if each != axis]
        rest = np.concatenate([lower[:, others], upper[:, others]], axis=1)
        order = np.lexsort([lower[:, axis], *rest.T])
        lower, upper, rest = lower[order], upper[order], rest[order]
        starts = np.ones(len(lower), dtype=np.bool_)
        starts[1:] = (rest[1:] != rest[:-1]).any(axis=1) | (lower[1:, axis] != upper[:-1, axis])
        first = np.flatnonzero(starts)
        last = np.append(first[1:], len(lower)) - 1
        lower, ends = lower[first], upper[last, axis]
        upper = upper[first]
        upper[:, axis] = ends
    order = np.lexsort(lower.T[::-1])
    pairs = zip(lower[order].tolist(), upper[order].tolist(), strict=True)
    return [Box(tuple(low), tuple(high)) for low, high in pairs]
