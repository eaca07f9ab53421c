"""Compares the values of arrays in two versions, looking only at chunks that can differ."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.arrays.cell_differences import Tally, incomparable
from icefloe.arrays.transfer import read_region
from icefloe.changes.documents import differing_keys
from icefloe.model.array_choice import chosen_arrays
from icefloe.model.chunk_index import bounding_box
from icefloe.progress import track

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.arrays.cell_differences import Difference
    from icefloe.engine.info import Diff
    from icefloe.engine.port import Tree
    from icefloe.model.array_choice import ArrayChoice
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.zarr_document import ArrayMetadata

    Box = tuple[slice, ...]

_BLOCK_CELLS = 1 << 22
"""How many cells are compared at a time if the two arrays have different chunks."""
_KEYS_OF_MEANING = {"data_type", "codecs", "fill_value", "chunk_grid"}
"""The keys of an array's metadata that decide which values its chunks have."""


class ArrayDifference(msgspec.Struct, frozen=True):
    """How the values of one array differ between two versions."""

    path: str
    shape_before: tuple[int, ...]
    shape_after: tuple[int, ...]
    compared_chunks: int
    """Chunks that were written in between; the others cannot differ. Of an array that was created
    again or whose metadata gives its chunks another meaning, all chunks that either version has."""
    changed_cells: int
    """Cells, of those that both versions have, whose values differ. NaN equals NaN."""
    largest_difference: Any
    """The largest absolute difference: an integer of integers, a `numpy.timedelta64` of times, a
    float of other numbers; None if nothing differs or it is no number."""
    where: tuple[int, ...] | None
    """The first cell with the largest difference, or the first that differs."""
    not_comparable: str | None = None
    """Why no cells were compared: the versions have other dimensions, or values of other kinds."""


class ValueDiff(list[ArrayDifference]):
    """The differences of all arrays that were written, by path."""

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from icefloe.html_tables import html_table

        rows = [(each.path, _line(each).removeprefix(f"{each.path}: ")) for each in self]
        return html_table("Values that differ", rows or [("no array was written", "")])

    def __repr__(self) -> str:
        if not self:
            return "no array was written"
        return "\n".join(map(_line, self))


def _line(each: ArrayDifference) -> str:
    if each.not_comparable is not None:
        return f"{each.path}: cannot be compared: {each.not_comparable}"
    line = f"{each.path}: {each.changed_cells} cells changed"
    if each.largest_difference is not None:
        line += f", by up to {_shown(each.largest_difference)} at {list(each.where or ())}"
    if each.shape_before != each.shape_after:
        line += f", shape {each.shape_before} -> {each.shape_after}"
    return line


def _shown(difference: Difference) -> str:
    return f"{difference:g}" if isinstance(difference, float) else str(difference)


def compare_values(before: Tree, after: Tree, diff: Diff, arrays: ArrayChoice = None) -> ValueDiff:
    """Compare the arrays that two versions have in common, chunk by chunk that may differ."""
    chosen = None if arrays is None else set(chosen_arrays(arrays, after.array_paths()))
    differences = ValueDiff()
    written_arrays = sorted({*diff.chunk_indexes(), *diff.updated_arrays, *diff.new_arrays})
    for path in track(written_arrays, "arrays", len(written_arrays)):
        if chosen is not None and path not in chosen:
            continue
        new = after.get_node(path)
        old = None if new is None else diff.earlier(new)
        if old is None or new is None or not (old.is_array and new.is_array):
            continue
        pair = _Pair(before, after, old, new)
        if not means_the_same(old, new):
            differences.append(pair.compare_all())
        elif (written := diff.written_chunks(new)) is not None:
            differences.append(pair.compare(written))
    return differences


def means_the_same(old: ArrayNode, new: ArrayNode) -> bool:
    """Whether chunks that were not written in between two versions have the values they had."""
    if old.id != new.id:
        return False
    return not differing_keys(old.outline, new.outline) & _KEYS_OF_MEANING


class _Pair:
    """An array as it is in two versions."""

    def __init__(self, before: Tree, after: Tree, old: ArrayNode, new: ArrayNode) -> None:
        self._before, self._after = before, after
        self._old, self._new = old, new
        self._shape_before, self._shape_after = old.array.shape, new.array.shape
        self._common = tuple(map(min, old.array.shape, new.array.shape))
        self._chunk = _chunk_of_both(old.array, new.array)
        unknown = (1,) * len(self._common)
        self._chunks = old.array.chunk_shape or unknown, new.array.chunk_shape or unknown

    def compare(self, written: ChunkIndex) -> ArrayDifference:
        """Look at the chunks that were written."""
        tally = Tally()
        boxes = self._blocks() if self._chunk is None else self._boxes(written.coords())
        for box in boxes:
            self._add(tally, box)
        return self._result(len(written), tally)

    def compare_all(self) -> ArrayDifference:
        """Look at all cells; those that neither version has written are all alike."""
        reason = self._incomparable()
        tally = Tally()
        if reason is not None:
            return self._result(0, tally, reason)
        coords = (
            self._before.chunk_coords(self._old.path),
            self._after.chunk_coords(self._new.path),
        )
        if self._chunk is None:
            for box in self._blocks():
                self._add(tally, box)
            return self._result(sum(map(len, coords)), tally)
        there = _union(*coords)
        left = prod(self._common)
        for box in self._boxes(there):
            self._add(tally, box)
            left -= prod(axis.stop - axis.start for axis in box)
        if left:
            self._add(tally, self._first_cell_without(there), cells_alike=left)
        return self._result(len(there), tally)

    def _incomparable(self) -> str | None:
        if len(self._shape_before) != len(self._shape_after):
            return f"shape {self._shape_before} -> {self._shape_after}"
        no_cells = tuple(slice(0, 0) for _ in self._common)
        old, new = self._values(no_cells)
        return incomparable(old.dtype, new.dtype)

    def _boxes(self, coords: npt.NDArray[np.uint64]) -> Iterator[Box]:
        """The cells of chunks that both versions have."""
        chunk = np.array(self._chunk, dtype=np.int64)
        starts = coords.astype(np.int64) * chunk
        stops = np.minimum(starts + chunk, np.array(self._common, dtype=np.int64))
        inside = (starts < stops).all(axis=1)
        for low, high in zip(starts[inside].tolist(), stops[inside].tolist(), strict=True):
            yield tuple(map(slice, low, high))

    def _blocks(self) -> Iterator[Box]:
        """All cells that both versions have, in blocks that fit into memory."""
        if not all(self._common):
            return
        sizes = [
            min(max(pair), length)
            for *pair, length in zip(*self._chunks, self._common, strict=True)
        ]
        for axis in reversed(range(len(sizes))):
            # Whole chunks, and more of them along the last axes, which are near in storage.
            sizes[axis] = min(self._common[axis], sizes[axis] * max(1, _BLOCK_CELLS // prod(sizes)))
        counts = [-(-length // size) for length, size in zip(self._common, sizes, strict=True)]
        for place in np.ndindex(*counts):
            yield tuple(
                slice(at * size, min((at + 1) * size, length))
                for at, size, length in zip(place, sizes, self._common, strict=True)
            )

    def _first_cell_without(self, coords: npt.NDArray[np.uint64]) -> Box:
        """The first cell of the first chunk, in row-major order, that is not among some."""
        assert self._chunk is not None
        grid = tuple(
            -(-length // size) for length, size in zip(self._common, self._chunk, strict=True)
        )
        inside = coords[(coords < np.array(grid, dtype=np.uint64)).all(axis=1)]
        first = len(inside)
        for place, row in enumerate(inside.tolist()):
            if place != _position(row, grid):
                first = place
                break
        corner = []
        for extent, size in zip(grid[::-1], self._chunk[::-1], strict=True):
            first, at = divmod(first, extent)
            corner.append(slice(at * size, at * size + 1))
        return tuple(corner[::-1])

    def _values(self, box: Box) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return (
            read_region(self._before, self._old.path, box),
            read_region(self._after, self._new.path, box),
        )

    def _add(self, tally: Tally, box: Box, cells_alike: int = 1) -> None:
        tally.add(tuple(axis.start for axis in box), *self._values(box), cells_alike)

    def _result(
        self, chunks: int, tally: Tally, not_comparable: str | None = None
    ) -> ArrayDifference:
        return ArrayDifference(
            path=self._new.path,
            shape_before=self._shape_before,
            shape_after=self._shape_after,
            compared_chunks=chunks,
            changed_cells=tally.changed,
            largest_difference=tally.largest,
            where=tally.where,
            not_comparable=not_comparable,
        )


def _chunk_of_both(old: ArrayMetadata, new: ArrayMetadata) -> tuple[int, ...] | None:
    """The shape of the chunks of both versions; None if it is not one."""
    return new.chunk_shape if old.chunk_shape == new.chunk_shape else None


def _union(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Coordinates that are in one of two tables or in both, in row-major order."""
    both = np.concatenate([one, other])
    if len(both) == 0:
        return both
    box = bounding_box(both)
    return box.delinearize(np.unique(box.linearize(both)))


def _position(place: list[int], grid: tuple[int, ...]) -> int:
    position = 0
    for at, extent in zip(place, grid, strict=True):
        position = position * extent + at
    return position
