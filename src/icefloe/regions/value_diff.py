"""Compares the values of arrays in two versions, looking only at chunks that were written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.model.array_choice import chosen_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.model.array_choice import ArrayChoice
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.zarr_document import ArrayMetadata
    from icefloe.versioning.info import Diff
    from icefloe.versioning.session import Session


class ArrayDifference(msgspec.Struct, frozen=True):
    """How the values of one array differ between two versions."""

    path: str
    shape_before: tuple[int, ...]
    shape_after: tuple[int, ...]
    compared_chunks: int
    """Chunks that were written in between; the others cannot differ."""
    changed_cells: int
    """Cells, of those that both versions have, whose values differ. NaN equals NaN."""
    largest_difference: float | None
    """The largest absolute difference of numbers; None if nothing differs or it is no number."""
    where: tuple[int, ...] | None
    """The first cell with the largest difference, or the first that differs."""


class ValueDiff(list[ArrayDifference]):
    """The differences of all arrays that were written, by path."""

    def __repr__(self) -> str:
        if not self:
            return "no array was written"
        lines = []
        for each in self:
            line = f"{each.path}: {each.changed_cells} cells changed"
            if each.largest_difference is not None:
                line += f", by up to {each.largest_difference:g} at {list(each.where or ())}"
            if each.shape_before != each.shape_after:
                line += f", shape {each.shape_before} -> {each.shape_after}"
            lines.append(line)
        return "\n".join(lines)


def compare_values(
    before: Session, after: Session, diff: Diff, arrays: ArrayChoice = None
) -> ValueDiff:
    """Compare the arrays that two versions have in common, chunk by written chunk."""
    wanted = None if arrays is None else chosen_arrays(arrays, after.array_paths())
    moved = {new: old for old, new in diff.moved_nodes}
    found = ValueDiff()
    indexes = diff.chunk_indexes()
    for path in sorted({*indexes, *diff.updated_arrays}):
        old_path = moved.get(path, path)
        old, new = before.get_node(old_path), after.get_node(path)
        if (
            old is None
            or new is None
            or old.id != new.id
            or (wanted is not None and path not in wanted)
        ):
            continue
        assert old.array is not None
        assert new.array is not None
        index = indexes.get(path)
        if index is None and old.array.data_type == new.array.data_type:
            continue  # the metadata alone changed
        tally = _Tally()
        for box in _boxes(index, old.array, new.array):
            tally.add(
                box,
                before.read_region(old_path, box),
                after.read_region(path, box),
            )
        found.append(
            ArrayDifference(
                path=path,
                shape_before=old.array.shape,
                shape_after=new.array.shape,
                compared_chunks=0 if index is None else len(index),
                changed_cells=tally.changed,
                largest_difference=tally.largest,
                where=tally.where,
            )
        )
    return found


def _boxes(
    index: ChunkIndex | None, old: ArrayMetadata, new: ArrayMetadata
) -> Iterator[tuple[slice, ...]]:
    """The cells of written chunks that both versions have."""
    common = tuple(map(min, old.shape, new.shape))
    chunk = new.chunk_shape
    if index is None or chunk is None or old.chunk_shape != chunk:
        # Other chunks than before: nothing tells which cells are the same.
        yield tuple(slice(0, length) for length in common)
        return
    coords = index.coords().astype(np.int64)
    starts = coords * np.array(chunk, dtype=np.int64)
    stops = np.minimum(starts + np.array(chunk, dtype=np.int64), np.array(common, dtype=np.int64))
    inside = (starts < stops).all(axis=1)
    for low, high in zip(starts[inside].tolist(), stops[inside].tolist(), strict=True):
        yield tuple(map(slice, low, high))


class _Tally:
    """Counts cells that differ, and remembers the worst."""

    def __init__(self) -> None:
        self.changed = 0
        self.largest: float | None = None
        self.where: tuple[int, ...] | None = None

    def add(self, box: tuple[slice, ...], old: npt.NDArray[Any], new: npt.NDArray[Any]) -> None:
        differs = np.asarray(old != new)
        if old.dtype.kind in "fcmM" and new.dtype.kind in "fcmM":
            differs &= ~(np.isnan(old) & np.isnan(new))
        count = int(np.count_nonzero(differs))
        if count == 0:
            return
        self.changed += count
        place = np.unravel_index(int(np.argmax(differs)), differs.shape)
        worst = None
        if old.dtype.kind in "iufcb" and new.dtype.kind in "iufcb":
            kind = np.complex128 if "c" in (old.dtype.kind, new.dtype.kind) else np.float64
            distance = np.abs(new.astype(kind) - old.astype(kind))
            distance[~differs] = -1
            # From or to a missing value there is no distance, but it differs.
            distance[np.isnan(distance)] = -1
            at = int(np.argmax(distance))
            if distance.flat[at] >= 0:
                worst = float(distance.flat[at])
                place = np.unravel_index(at, distance.shape)
        if self.where is None or (worst is not None and worst > (self.largest or -1.0)):
            self.where = tuple(
                int(axis.start + step) for axis, step in zip(box, place, strict=True)
            )
            self.largest = worst if worst is not None else self.largest
