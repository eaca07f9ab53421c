"""Manifests that others wrote for a session, which a commit links without reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.chunk_index import Box, ChunkIndex, box_around
from icefloe.model.ids import ManifestId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class LinkedTile(Record, frozen=True, eq=False):
    """All references of an array in one of its tiles, in a manifest that is written already."""

    info: ManifestFileInfo
    extents: Box
    """Bounding box of the references."""
    touched: ChunkIndex
    """The chunks that differ from the base; a box, where all of one were written."""
    replaced: tuple[ManifestId, ...] = ()
    """Manifests of the base that had the references of the tile."""

    @property
    def reach(self) -> Box:
        """A box around all chunks that the tile has, touches or replaced."""
        return box_around(self.extents, self.touched.box)


def touched_in(tiles: Sequence[LinkedTile]) -> ChunkIndex | None:
    """All chunks that some tiles of one array touch, without listing them if they fill a box."""
    indexes = [tile.touched for tile in tiles if len(tile.touched)]
    if len(indexes) <= 1:
        return indexes[0] if indexes else None
    lower = tuple(map(min, *(index.box.lower for index in indexes)))
    upper = tuple(map(max, *(index.box.upper for index in indexes)))
    box = Box(lower, upper)
    # Tiles do not overlap, so that as many chunks as the box has are all of them.
    if sum(map(len, indexes)) == box.size:
        return ChunkIndex(box, None)
    linear = np.concatenate([box.linearize(index.coords()) for index in indexes])
    return ChunkIndex.from_sorted(box, np.sort(linear))


def any_overlap(boxes: Sequence[Box]) -> bool:
    """Whether two of the boxes overlap."""
    lower, upper = corners(boxes)
    # Along the dimension with the most distinct positions, each box is near few others.
    axis = max(range(lower.shape[1]), key=lambda at: len(np.unique(lower[:, at])), default=None)
    if axis is None:
        return len(boxes) > 1
    order = np.argsort(lower[:, axis], kind="stable")
    lower, upper = lower[order], upper[order]
    ends = np.searchsorted(lower[:, axis], upper[:, axis])
    for row in np.flatnonzero(ends > np.arange(1, len(boxes) + 1)).tolist():
        near = slice(row + 1, ends[row])
        if ((lower[near] < upper[row]) & (upper[near] > lower[row])).all(axis=1).any():
            return True
    return False


def meeting(
    ones: Sequence[Box], others: Sequence[Box]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which boxes intersect one of the other side, on both sides."""
    if len(ones) > len(others):
        return meeting(others, ones)[::-1]
    hit_ones, hit_others = (np.zeros(len(boxes), dtype=np.bool_) for boxes in (ones, others))
    if not ones:
        return hit_ones, hit_others
    lower, upper = corners(others)
    for row, box in enumerate(ones):
        hits = ((lower < box.upper) & (upper > box.lower)).all(axis=1)
        hit_ones[row] = hits.any()
        hit_others |= hits
    return hit_ones, hit_others


def corners(boxes: Sequence[Box]) -> npt.NDArray[np.int64]:
    """Lower and upper corners of boxes: shape (2, n, rank)."""
    return np.array([[b.lower for b in boxes], [b.upper for b in boxes]], dtype=np.int64)
