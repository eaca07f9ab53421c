"""What has changed of arrays since a result was computed from them, as boxes of elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.box_union import union_of_boxes
from icefloe.engine.port import parsed_document
from icefloe.model.nodes import ArrayNode
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from icefloe.arrays.grid import ChunkGrid, Region
    from icefloe.engine.info import Diff
    from icefloe.repository import Repository
    from icefloe.zarr_store.session_port import SessionPort


class EarlierResult(Record, frozen=True):
    """Where the last result of a step is, and the state of its inputs that it was made of."""

    snapshot_id: str
    """The snapshot that has the result."""
    inputs: str
    """A snapshot with the inputs of that time, of this repository or the one that was copied.

    If somebody else changed inputs before the result was rebased, it is older than these changes.
    """


class ArrayChange(Record, frozen=True, eq=False):
    """What has changed of an array: it may have grown, and chunks may have been written."""

    was: tuple[int, ...]
    """Its shape before."""
    lower: Any
    """Lower corners of boxes of elements (n, rank) outside of which nothing has changed."""
    upper: Any
    """Their upper corners."""


class ArrayChanges:
    """What has changed between two snapshots of a repository."""

    def __init__(self, repository: Repository, since: str, after: SessionPort) -> None:
        self.before = repository.readonly_session(snapshot_id=since)
        self.after = after
        self._diff: Diff = repository.diff(from_snapshot_id=since, to_snapshot_id=after.snapshot_id)
        self._written = self._diff.chunk_indexes()

    def touches(self, path: str) -> bool:
        """Whether chunks of an array were written, or it was created, deleted or renamed."""
        moved = {place for move in self._diff.moved_nodes for place in move}
        return path in self._written or path in (
            moved | self._diff.new_arrays | self._diff.deleted_arrays
        )

    def of(self, path: str) -> ArrayChange | None:
        """How an array has changed; None if in another way than by growing and new chunks."""
        was, now = self.before.get_node(path), self.after.get_node(path)
        shape = earlier_shape(self.before, self.after, path)
        if shape is None or not isinstance(was, ArrayNode) or not isinstance(now, ArrayNode):
            return None
        rank, extents = len(shape), np.array(now.array.shape, np.int64).reshape(len(shape))
        grown = [axis for axis in range(rank) if extents[axis] > shape[axis]]
        lower = np.zeros((len(grown), rank), np.int64)
        lower[np.arange(len(grown)), grown] = [shape[axis] for axis in grown]
        upper = np.tile(extents, (len(grown), 1))
        index = self._written.get(path)
        if index is not None and len(index):
            if now.array.chunk_shape is None:
                return None
            sizes = np.array(now.array.chunk_shape, np.int64).reshape(rank)
            chunks = index.coords().astype(np.int64)
            lower = np.concatenate([lower, chunks * sizes])
            upper = np.concatenate([upper, np.minimum((chunks + 1) * sizes, extents)])
        return ArrayChange(shape, lower, upper)


def reshaped_document(before: SessionPort, after: SessionPort, path: str) -> bytes | None:
    """The later zarr.json of an array; None if more than its shape differs from the earlier one."""
    old, new = (parsed_document(session.tree, path) for session in (before, after))
    is_same = old | {"shape": None} == new | {"shape": None}
    return after.tree.document(path) if is_same else None


def earlier_shape(before: SessionPort, after: SessionPort, path: str) -> tuple[int, ...] | None:
    """The shape of an array before; None if it has changed in another way than by growing."""
    was, now = before.get_node(path), after.get_node(path)
    if not isinstance(was, ArrayNode) or not isinstance(now, ArrayNode) or was.id != now.id:
        return None
    if reshaped_document(before, after, path) is None:
        return None
    pairs = zip(was.array.shape, now.array.shape, strict=True)
    return was.array.shape if all(one <= other for one, other in pairs) else None


def changes_since(
    repository: Repository,
    last: EarlierResult,
    base: SessionPort,
    output: str,
    shape: Sequence[int],
) -> tuple[ArrayChanges, tuple[int, ...]] | None:
    """The changes since the inputs of a result, and the shape of the result before.

    Returns None if the result has changed in another way than by growing, or cannot grow to its
    new shape.
    """
    since_result = ArrayChanges(repository, last.snapshot_id, base)
    # An ingest makes all arrays of its group longer that have the dimension, this result too.
    old = earlier_shape(since_result.before, base, output)
    if old is None or since_result.touches(output) or len(old) != len(shape):
        return None
    if any(before > now for before, now in zip(old, shape, strict=True)):
        return None
    if last.inputs == last.snapshot_id:
        return since_result, old
    return ArrayChanges(repository, last.inputs, base), old


class ResultBoxes:
    """Boxes of elements of a result that must be computed again."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = np.array(shape, np.int64).reshape(len(shape))
        self._lower: list[npt.NDArray[np.int64]] = []
        self._upper: list[npt.NDArray[np.int64]] = []

    def add(self, count: int, parts: Mapping[int, tuple[Any, Any]]) -> None:
        """Include n boxes: lower and upper ends by axis, all of the axes without them."""
        lower = np.zeros((count, len(self._shape)), np.int64)
        upper = np.tile(self._shape, (count, 1))
        for axis, (low, high) in parts.items():
            lower[:, axis], upper[:, axis] = low, high
        self._lower.append(lower)
        self._upper.append(upper)

    def add_growth(self, was: Sequence[int]) -> None:
        """Include what a result did not have when it was shorter."""
        for axis, (earlier, now) in enumerate(zip(was, self._shape.tolist(), strict=True)):
            if now > earlier:
                self.add(1, {axis: (earlier, now)})

    def regions(self, grid: ChunkGrid) -> list[Region]:
        """The boxes as disjoint regions of whole chunks of the result."""
        if not self._lower:
            return []
        sizes = np.array(grid.chunk_shape, np.int64).reshape(len(self._shape))
        lower = np.concatenate(self._lower).clip(0)
        upper = np.minimum(np.concatenate(self._upper), self._shape)
        filled = (lower < upper).all(axis=1)
        lower, upper = lower[filled], upper[filled]
        return [grid.region(box) for box in union_of_boxes(lower // sizes, -(-upper // sizes))]
