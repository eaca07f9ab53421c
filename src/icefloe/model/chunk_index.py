"""Sets of chunk coordinates as columns: a bounding box and linear positions within it."""

from __future__ import annotations

import operator
from math import prod
from typing import TYPE_CHECKING, Self

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


MAX_BOX_POSITIONS = 2**63 - 1
"""Linear positions are 64-bit; a larger bounding box cannot be addressed."""


class Box(Record, frozen=True, gc=False):
    """A half-open box of chunk coordinates: lower corner inclusive, upper exclusive (H-18)."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.lower)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of positions along each dimension."""
        return tuple(map(operator.sub, self.upper, self.lower))

    @property
    def size(self) -> int:
        """Number of positions."""
        return prod(map(operator.sub, self.upper, self.lower))

    def contains(self, coords: Sequence[int]) -> bool:
        """Whether one position is inside."""
        return (
            len(coords) == len(self.lower)
            and all(map(operator.le, self.lower, coords))
            and all(map(operator.lt, coords, self.upper))
        )

    def encloses(self, other: Box) -> bool:
        """Whether all positions of another box of the same rank are inside."""
        return all(map(operator.le, self.lower, other.lower)) and all(
            map(operator.ge, self.upper, other.upper)
        )

    def intersects(self, other: Box) -> bool:
        """Whether some position is in both."""
        return all(
            max(a, b) < min(c, d)
            for a, b, c, d in zip(self.lower, other.lower, self.upper, other.upper, strict=True)
        )

    def inside(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Which coordinates (n, rank) are inside."""
        return np.flatnonzero(is_inside(coords, self.lower, self.upper))

    def linearize(self, coords: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
        """Row-major positions within the box of coordinates (n, rank) that are all inside."""
        linear = np.zeros(len(coords), dtype=np.uint64)
        for axis, (low, extent) in enumerate(zip(self.lower, self.shape, strict=True)):
            linear *= np.uint64(extent)
            linear += coords[:, axis].astype(np.uint64) - np.uint64(low)
        return linear

    def position(self, coords: Sequence[int]) -> int:
        """Row-major position of one coordinate that is inside."""
        linear = 0
        for c, lo, hi in zip(coords, self.lower, self.upper, strict=True):
            linear = linear * (hi - lo) + (c - lo)
        return linear

    def delinearize(self, linear: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Coordinates (n, rank) of row-major positions."""
        coords = np.empty((len(linear), self.rank), dtype=np.uint64)
        rest = linear
        for axis in range(self.rank - 1, -1, -1):
            rest, inner = np.divmod(rest, np.uint64(self.shape[axis]))
            coords[:, axis] = inner + np.uint64(self.lower[axis])
        return coords


def is_inside(
    coords: npt.NDArray[np.integer], lower: Sequence[int], upper: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Whether coordinates (n, rank) are in a half-open box."""
    inside = np.ones(len(coords), dtype=np.bool_)
    for axis, (low, high) in enumerate(zip(lower, upper, strict=True)):
        # Axis by axis: many times quicker than to reduce along the short one.
        column = coords[:, axis]
        inside &= (column >= low) & (column < high)
    return inside


def bounding_box(coords: npt.NDArray[np.integer]) -> Box:
    """The smallest box around at least one coordinate (n, rank)."""
    # Axis by axis: many times quicker than to reduce along the short one.
    columns = [coords[:, axis] for axis in range(coords.shape[1])]
    lower = tuple(int(column.min()) for column in columns)
    return _box(lower, tuple(int(column.max()) + 1 for column in columns))


def box_around(one: Box, other: Box) -> Box:
    """The smallest box around two of the same rank."""
    if one.encloses(other):
        return one
    return _box(tuple(map(min, one.lower, other.lower)), tuple(map(max, one.upper, other.upper)))


def _box(lower: tuple[int, ...], upper: tuple[int, ...]) -> Box:
    box = Box(lower, upper)
    if box.size > MAX_BOX_POSITIONS:
        raise InvalidInputError(
            f"chunks between {lower} and {upper} span more than 2**63 grid positions; "
            "use larger chunks"
        )
    return box


class ChunkIndex:
    """An immutable set of chunk coordinates, in row-major order.

    A set that fills its bounding box is dense and stores no positions at all.
    """

    __slots__ = ("box", "linear")

    def __init__(self, box: Box, linear: npt.NDArray[np.uint64] | None) -> None:
        """Take a box and strictly ascending positions in it; None if the box is full."""
        self.box = box
        self.linear = linear

    @classmethod
    def from_coords(cls, coords: npt.NDArray[np.integer]) -> tuple[Self, npt.NDArray[np.intp]]:
        """Index unique coordinates (n, rank), n ≥ 1; also returns the order that sorts them."""
        box = bounding_box(coords)
        linear = box.linearize(coords)
        order = np.argsort(linear, kind="stable")
        return cls.from_sorted(box, linear[order]), order

    @classmethod
    def from_sorted(cls, box: Box, linear: npt.NDArray[np.uint64]) -> Self:
        """Index ascending positions of a tight box, dropping the column when it is dense."""
        return cls(box, None if len(linear) == box.size else linear)

    @classmethod
    def of_sorted(cls, coords: Sequence[Sequence[int]], rank: int) -> Self:
        """Index a few unique coordinates, at least one, that are in row-major order already."""
        columns = list(zip(*coords, strict=True)) if rank else []
        box = _box(tuple(map(min, columns)), tuple(max(column) + 1 for column in columns))
        if len(coords) == box.size:
            return cls(box, None)
        return cls(box, np.array([box.position(place) for place in coords], dtype=np.uint64))

    @classmethod
    def from_tuples(cls, coords: Sequence[Sequence[int]], rank: int) -> Self:
        """Index a non-empty list of coordinates, repeated ones once."""
        table = np.array(list(coords), dtype=np.uint64).reshape(len(coords), rank)
        box = bounding_box(table)
        return cls.from_sorted(box, np.unique(box.linearize(table)))

    def __len__(self) -> int:
        return self.box.size if self.linear is None else len(self.linear)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkIndex):
            return NotImplemented
        return self.box == other.box and np.array_equal(self.positions(), other.positions())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ChunkIndex({len(self)} chunks in {self.box.lower}..{self.box.upper})"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.box.rank

    @property
    def is_dense(self) -> bool:
        """Whether every position of the box is in the set."""
        return self.linear is None

    def positions(self) -> npt.NDArray[np.uint64]:
        """Linear positions within the box, ascending."""
        if self.linear is None:
            return np.arange(self.box.size, dtype=np.uint64)
        return self.linear

    def positions_in(self, box: Box) -> npt.NDArray[np.uint64]:
        """Linear positions within a box that encloses this one, ascending."""
        return self.positions() if box == self.box else box.linearize(self.coords())

    def coords(self) -> npt.NDArray[np.uint64]:
        """All coordinates (n, rank), in row-major order."""
        return self.box.delinearize(self.positions())

    def tuples(self) -> list[tuple[int, ...]]:
        """All coordinates as Python tuples; for reports, not for hot paths."""
        return [tuple(row) for row in self.coords().tolist()]

    def find(self, coords: Sequence[int]) -> int:
        """Row of one coordinate, or -1."""
        if not self.box.contains(coords):
            return -1
        position = self.box.position(coords)
        if self.linear is None:
            return position
        row = int(np.searchsorted(self.linear, np.uint64(position)))
        return row if row < len(self.linear) and self.linear[row] == position else -1

    def find_many(self, coords: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
        """Row of each coordinate (n, rank), or -1."""
        rows = np.full(len(coords), -1, dtype=np.intp)
        inside = is_inside(coords, self.box.lower, self.box.upper)
        linear = self.box.linearize(coords[inside])
        if self.linear is None:
            rows[inside] = linear.astype(np.intp)
        else:
            found = np.searchsorted(self.linear, linear)
            found[found == len(self.linear)] = 0
            rows[inside] = np.where(self.linear[found] == linear, found, -1)
        return rows

    def intersection(self, other: ChunkIndex) -> npt.NDArray[np.uint64]:
        """Coordinates (n, rank) that are in both sets, in row-major order."""
        if self.rank != other.rank or not self.box.intersects(other.box):
            return np.empty((0, self.rank), dtype=np.uint64)
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        coords = few.coords()
        common: npt.NDArray[np.uint64] = coords[many.find_many(coords) >= 0]
        return common

    def union(self, *others: ChunkIndex) -> ChunkIndex:
        """Coordinates that are in any of the sets."""
        if not others:
            return self
        coords = np.concatenate([self.coords(), *(other.coords() for other in others)])
        box = bounding_box(coords)
        linear = box.linearize(coords)
        if not (linear[1:] > linear[:-1]).all():
            linear = np.unique(linear)
        return ChunkIndex.from_sorted(box, linear)
