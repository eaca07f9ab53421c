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
        """A box around all that the tile has or touches; what it replaced lies within."""
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
