"""Chunks of an array that are no box, or of which no box is wanted: each is placed on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.arrays.chunk_arrays import ChunkArrays
from icefloe.arrays.threads import allowed_threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.arrays.layout import ArrayLayout
    from icefloe.engine.port import ChunkStore

    Values = npt.NDArray[Any]

_GROUP_BYTES = 32 << 20
"""Decoded bytes that are in memory at a time."""


class Parts(NamedTuple):
    """For each of some chunks: which elements of it go where."""

    coords: npt.NDArray[np.int64]
    """Coordinates of the chunks, (n, rank), none twice."""
    in_chunk: Sequence[Any]
    """Which elements of each chunk, as an index of numpy."""
    in_values: Sequence[Any]
    """Where they are in the values, as a numpy index."""
    whole: npt.NDArray[np.bool_]
    """Whether all elements of a chunk that the array has are written."""
    drop_axes: tuple[int, ...]
    """Axes of one element that chunks have and values do not."""


class ScatteredChunks:
    """Reads and writes parts of chunks of an array with a regular grid."""

    def __init__(
        self, tree: ChunkStore, path: str, layout: ArrayLayout, *, write_empty_chunks: bool = False
    ) -> None:
        """Take an array of a tree."""
        self._layout = layout
        self._chunks = ChunkArrays(tree, path, layout, write_empty_chunks=write_empty_chunks)
        self._threads = allowed_threads(tree)

    def read(self, parts: Parts, target: Values) -> npt.NDArray[np.bool_]:
        """Read parts of chunks into an array; returns which of the chunks exist."""
        present = np.zeros(len(parts.coords), dtype=np.bool_)
        for rows in self._groups(parts):
            stored, present[rows] = self._chunks.load(
                parts.coords[rows], self._layout.chunk_shape, self._threads
            )
            chunks = None if stored is None else self._layout.logical(stored, (len(stored),))
            for number, row in enumerate(range(rows.start, rows.stop)):
                if chunks is None:
                    target[parts.in_values[row]] = self._layout.fill_value
                    continue
                part = chunks[number, ...][parts.in_chunk[row]]
                if parts.drop_axes:
                    part = part.squeeze(axis=parts.drop_axes)
                target[parts.in_values[row]] = part
        return present

    def write(self, parts: Parts, values: Values) -> None:
        """Write parts of chunks out of an array; what is not written stays as it is."""
        shape = self._layout.chunk_shape
        for rows in self._groups(parts):
            coords = parts.coords[rows]
            stored = self._chunks.empty(len(coords), shape)
            stored[...] = self._layout.fill_value
            partial = ~parts.whole[rows]
            if partial.any():
                before, _ = self._chunks.load(coords[partial], shape, self._threads)
                if before is not None:
                    stored[partial] = before
            chunks = self._layout.logical(stored, (len(stored),))
            for number, row in enumerate(range(rows.start, rows.stop)):
                chunks[number, ...][parts.in_chunk[row]] = self._part(parts, row, values)
            self._chunks.store(coords, stored, self._threads)

    def _part(self, parts: Parts, row: int, values: Values) -> Values:
        """The values for one chunk, with its axes."""
        if values.shape == ():
            return values
        part: Values = values[parts.in_values[row]]
        if not parts.drop_axes:
            return part
        rank = len(self._layout.shape)
        return part[tuple(None if a in parts.drop_axes else slice(None) for a in range(rank))]

    def _groups(self, parts: Parts) -> Iterator[slice]:
        step = max(1, _GROUP_BYTES // self._layout.chunk_bytes)
        count = len(parts.coords)
        return (slice(start, min(start + step, count)) for start in range(0, count, step))
