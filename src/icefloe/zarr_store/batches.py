"""Turns a batch of Zarr's chunk requests back into a box of an array, or into scattered chunks."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.arrays.spans import Spans, spans_of
from icefloe.model.paths import ROOT
from icefloe.zarr_store.keys import resolve
from icefloe.zarr_store.tree_store import TreeStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.arrays.layout import ArrayLayout
    from icefloe.model.zarr_document import ArrayMetadata

    Ints = npt.NDArray[np.int64]
    Request = tuple[Any, Any, Any, Any, bool]


class Batch(NamedTuple):
    """Chunk requests on one array of one of our stores."""

    store: TreeStore
    path: str
    coords: Ints
    """Coordinates of the chunks, (n, rank)."""
    requests: Sequence[Request]

    @property
    def spec(self) -> Any:
        """What Zarr says of the chunks."""
        return self.requests[0][1]

    def whole(self) -> npt.NDArray[np.bool_]:
        """Which chunks are selected as a whole."""
        return np.array([request[4] for request in self.requests], dtype=np.bool_)


class BoxOfChunks(NamedTuple):
    """A batch that is a box of neighbouring chunks, in row-major order."""

    spans: tuple[Spans, ...]
    shape: tuple[int, ...]
    """Shape of the values, without the axes that integers selected."""
    axes: tuple[Any, ...]
    """An index that gives the values all axes of the array."""


def batch_of(requests: Sequence[Request], layout: ArrayLayout) -> Batch | None:
    """The chunks of a batch; None if they are not all of one array of one of our stores."""
    first = requests[0][0]
    store = getattr(first, "store", None)
    if not isinstance(store, TreeStore) or requests[0][1].shape != layout.chunk_shape:
        return None
    target = resolve(first.path, store.tree)
    path, place = target or ("", None)
    if place is None or len(place) != len(layout.shape):
        return None
    if len(requests) == 1:
        return Batch(
            store=store, path=path, coords=np.array([place], dtype=np.int64), requests=requests
        )
    node = store.tree.get_node(path)
    if node is None or not node.is_array or any(r[0].store is not store for r in requests):
        return None
    keys = [request[0].path for request in requests]
    coords = _coords(keys, path, node.array)
    return (
        None if coords is None else Batch(store=store, path=path, coords=coords, requests=requests)
    )


def _coords(keys: Sequence[str], path: str, array: ArrayMetadata) -> Ints | None:
    """Coordinates in the keys of many chunks of an array, parsed all at once.

    Zarr has made these keys of coordinates, one string for each chunk. To parse them one by
    one would take longer than to read the chunks of a small array, so all keys become one text
    without prefixes and separators (`a/c/0/1`, `a/c/0/2` becomes `0 1 0 2`), which numpy parses
    in one call.
    """
    start = "" if path == ROOT else path[1:] + "/"
    if array.key_encoding == "default":
        start += "c" + array.key_separator
    text = "\n".join(keys)
    if not text.startswith(start):
        return None
    numbers = text[len(start) :].replace("\n" + start, " ").replace(array.key_separator, " ")
    if not numbers.isascii() or not numbers.replace(" ", "").isdecimal():
        return None
    coords = np.fromstring(numbers, dtype=np.int64, sep=" ")
    if coords.size != len(keys) * array.rank:
        return None
    return coords.reshape(len(keys), array.rank)


def box_of(batch: Batch, layout: ArrayLayout) -> BoxOfChunks | None:
    """The batch as a box; None if its chunks or the elements of them are no box."""
    grid = _grid(batch.coords)
    if grid is None:
        return None
    in_chunk = _along_axes([request[2] for request in batch.requests], grid)
    if in_chunk is None:
        return None
    dropped = [isinstance(items[0], int) for items in in_chunk]
    kept = tuple(size for size, drop in zip(grid, dropped, strict=True) if not drop)
    in_values = _along_axes([request[3] for request in batch.requests], kept)
    if in_values is None or any(g != 1 for g, d in zip(grid, dropped, strict=True) if d):
        return None
    targets = iter(in_values)
    spans: list[Spans] = []
    for axis, (items, drop) in enumerate(zip(in_chunk, dropped, strict=True)):
        ids = np.arange(grid[axis], dtype=np.int64) + batch.coords[0, axis]
        there = (slice(0, 1),) if drop else next(targets)
        span = _spans(ids, items, there, layout.chunk_shape[axis])
        if span is None:
            return None
        spans.append(span)
    shape = tuple(
        int(span.target[-1] + span.lengths[-1])
        for span, drop in zip(spans, dropped, strict=True)
        if not drop
    )
    axes = (*(None if drop else slice(None) for drop in dropped), ...)
    return BoxOfChunks(tuple(spans), shape, axes)


def _grid(coords: Ints) -> tuple[int, ...] | None:
    """Numbers of chunks along each axis of a box in row-major order; None if it is none."""
    if len(coords) == 1:
        return (1,) * int(coords.shape[1])
    extents: list[int] = (coords[-1] - coords[0] + 1).tolist()
    if min(extents) < 1 or math.prod(extents) != len(coords):
        return None
    expected = np.indices(extents).reshape(len(extents), -1).T + coords[0]
    return tuple(extents) if np.array_equal(coords, expected) else None


def _along_axes(selections: Sequence[Any], grid: tuple[int, ...]) -> list[Sequence[Any]] | None:
    """The selections of chunks along each axis; None if they differ within a row of chunks."""
    first = selections[0]
    if not isinstance(first, tuple) or len(first) != len(grid):
        return None
    if not all(type(item) in {slice, int} for item in first):
        return None
    axes: list[Sequence[Any]] = []
    stride = len(selections)
    for axis, count in enumerate(grid):
        stride //= count
        axes.append([selections[row * stride][axis] for row in range(count)])
    # Zarr combines the selections of the axes; they are the same objects all over the batch.
    if len(selections) > 1 and list(itertools.product(*axes)) != selections:
        return None
    return axes


def _spans(ids: Ints, items: Sequence[Any], there: Sequence[Any], size: int) -> Spans | None:
    """Positions of elements in chunks and values along one axis; None if they have gaps."""
    if isinstance(items[0], int):
        first, lengths, steps = [int(items[0])], [1], {1}
    else:
        ranges = [range(*item.indices(size)) for item in items]
        first = [part.start for part in ranges]
        lengths = [len(part) for part in ranges]
        steps = {part.step for part in ranges}
    targets = [item.start or 0 for item in there]
    ends = [start + length for start, length in zip(targets, lengths, strict=True)]
    if len(steps) != 1 or min(steps) < 1 or min(lengths) < 1 or targets[1:] != ends[:-1]:
        return None
    if any(item.stop != end or item.step not in {None, 1} for item, end in zip(there, ends)):  # noqa: B905
        return None
    counts = np.array(lengths, dtype=np.int64)
    begin = np.array(first, dtype=np.int64)
    # Only the requests know what is covered: the array may have been resized since it was opened.
    covered = np.zeros(len(ids), dtype=np.bool_)
    sizes = np.full(len(ids), size, dtype=np.int64)
    return Spans(ids, begin, counts, np.array(targets, dtype=np.int64), covered, sizes, *steps)


def finer_spans(
    spans: Sequence[Spans], layout: ArrayLayout, finer: ArrayLayout
) -> tuple[Spans, ...] | None:
    """The same elements in the chunks of a finer grid; None if they are not evenly apart."""
    from icefloe.arrays.selection import AxisSelection

    result: list[Spans] = []
    axes = zip(spans, layout.chunk_shape, finer.chunk_shape, strict=True)
    for span, size, edge in axes:
        begin = span.ids * size + span.first
        if (begin != begin[0] + span.target * span.step).any():
            return None
        count = int(span.lengths.sum())
        extent = int(span.ids[-1] + 1) * size
        result.append(spans_of(AxisSelection(int(begin[0]), span.step, count), extent, edge))
    return tuple(result)
