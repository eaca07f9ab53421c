"""Maps a selection to the chunks of an array: along each axis, and as slabs of chunks."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.arrays.selection import AxisSelection

    Ints = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Neighbouring chunks of which the same elements are selected, along one axis."""

    low: int
    """First of them, as a row of `Spans`."""
    high: int
    """The row after the last."""
    first: int
    """Which element of each chunk is the first."""
    length: int
    """How many elements of each chunk are selected."""
    target: int
    """Position of the first element of the first chunk in the result."""


class Spans(NamedTuple):
    """The chunks that a selection touches along one axis: a row for each of them."""

    ids: Ints
    """Numbers of the chunks."""
    first: Ints
    """Which element of the chunk is the first."""
    lengths: Ints
    """How many of its elements are selected."""
    target: Ints
    """Position of the first of them in the result."""
    covered: npt.NDArray[np.bool_]
    """Whether all elements of the chunk that the array has are selected."""
    sizes: Ints
    """How many elements the chunk has, also past the end of the array."""
    step: int

    def runs(self, low: int, high: int) -> list[Run]:
        """The rows from `low` to `high` as few runs."""
        if high - low == 1:
            row = low
            return [
                Run(
                    low=row,
                    high=high,
                    first=int(self.first[row]),
                    length=int(self.lengths[row]),
                    target=int(self.target[row]),
                )
            ]
        part = slice(low, high)
        ends = np.flatnonzero(
            (np.diff(self.ids[part]) != 1)
            | (np.diff(self.first[part]) != 0)
            | (np.diff(self.lengths[part]) != 0)
        )
        edges = [low, *(ends + low + 1).tolist(), high]
        return [
            Run(
                low=a,
                high=b,
                first=int(self.first[a]),
                length=int(self.lengths[a]),
                target=int(self.target[a]),
            )
            for a, b in itertools.pairwise(edges)
        ]


def spans_of(axis: AxisSelection, extent: int, edges: int | Ints) -> Spans:
    """The chunks that a selection of at least one element touches.

    Args:
        axis: What is selected.
        extent: Size of the array along the axis.
        edges: Size of all chunks, or where each of them begins and the last one ends.
    """
    start, step, count = axis.start, axis.step, axis.length
    last = start + (count - 1) * step
    if isinstance(edges, int):
        ids = np.arange(start // edges, last // edges + 1, dtype=np.int64)
        begins = ids * edges
        sizes = np.full(len(ids), edges, dtype=np.int64)
    else:
        low, high = np.searchsorted(edges, [start, last], side="right").tolist()
        ids = np.arange(low - 1, high, dtype=np.int64)
        begins = edges[ids]
        sizes = edges[ids + 1] - begins
    ends = begins + sizes
    from_row = np.maximum(-((start - begins) // step), 0)
    to_row = np.minimum(-((start - ends) // step), count)
    counts = to_row - from_row
    first = start + from_row * step - begins
    covered = (first == 0) & (counts == np.minimum(ends, extent) - begins)
    spans = Spans(
        ids=ids,
        first=first,
        lengths=counts,
        target=from_row,
        covered=covered,
        sizes=sizes,
        step=step,
    )
    if step > 1 and not counts.all():
        is_touched = counts > 0
        return Spans(
            ids=ids[is_touched],
            first=first[is_touched],
            lengths=counts[is_touched],
            target=from_row[is_touched],
            covered=covered[is_touched],
            sizes=sizes[is_touched],
            step=step,
        )
    return spans


class Slab(NamedTuple):
    """A box of chunks that are handled together: rows of the spans of each axis."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """Numbers of chunks along each axis."""
        return tuple(h - lo for lo, h in zip(self.lows, self.highs, strict=True))

    @property
    def rows(self) -> tuple[slice, ...]:
        """Which rows of the spans it has, as an index into an array over all of them."""
        return tuple(slice(lo, h) for lo, h in zip(self.lows, self.highs, strict=True))

    def coords(self, spans: Sequence[Spans]) -> Ints:
        """Coordinates of its chunks, (n, rank), in row-major order."""
        grid = self.grid
        coords = np.empty((*grid, len(grid)), dtype=np.int64)
        for axis, (span, low, high) in enumerate(zip(spans, self.lows, self.highs, strict=True)):
            shape = [1] * len(grid)
            shape[axis] = high - low
            coords[..., axis] = span.ids[low:high].reshape(shape)
        return coords.reshape(math.prod(grid), len(grid))

    def tiles(self, spans: Sequence[Spans]) -> Iterator[tuple[Run, ...]]:
        """Its parts in which the same elements of every chunk are selected."""
        parts = (s.runs(a, b) for s, a, b in zip(spans, self.lows, self.highs, strict=True))
        return itertools.product(*parts)

    def covered(self, spans: Sequence[Spans]) -> npt.NDArray[np.bool_]:
        """Which of its chunks are selected as a whole."""
        covered = np.ones(self.grid, dtype=np.bool_)
        for axis, (span, low, high) in enumerate(zip(spans, self.lows, self.highs, strict=True)):
            shape = [1] * len(self.lows)
            shape[axis] = high - low
            covered &= span.covered[low:high].reshape(shape)
        return covered.reshape(-1)


def slabs_of_parts(bounds: Sequence[Sequence[int]], most: int) -> Iterator[Slab]:
    """Cut a box into slabs of a limited number of parts, which are not cut.

    The parts are given by the rows at which they begin along each axis, and the row after the last.
    """
    for slab in _slabs([len(rows) - 1 for rows in bounds], most):
        lows = tuple(rows[low] for rows, low in zip(bounds, slab.lows, strict=True))
        highs = tuple(rows[high] for rows, high in zip(bounds, slab.highs, strict=True))
        yield Slab(lows, highs)


def slabs_of(spans: Sequence[Spans], most_chunks: int) -> Iterator[Slab]:
    """Cut a box of chunks into slabs of a limited number of chunks, in row-major order."""
    return _slabs([len(span.ids) for span in spans], most_chunks)


def _slabs(counts: Sequence[int], most_chunks: int) -> Iterator[Slab]:
    steps = [1] * len(counts)
    room = max(1, most_chunks)
    for axis in range(len(counts) - 1, -1, -1):
        steps[axis] = min(room, counts[axis])
        room //= counts[axis]
        if room <= 1:
            break
    cuts = (
        [(low, min(low + step, count)) for low in range(0, count, step)]
        for count, step in zip(counts, steps, strict=True)
    )
    for slab in itertools.product(*cuts):
        yield Slab(tuple(low for low, _ in slab), tuple(high for _, high in slab))
