"""Parses selections of arrays: a start, a step and a count along each axis."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import described


class AxisSelection(NamedTuple):
    """The elements that are selected along one dimension of an array."""

    start: int
    step: int
    """Always positive; see `flipped`."""
    length: int
    flipped: bool = False
    """Whether the caller counts them from the last to the first."""
    dropped: bool = False
    """Whether an integer selected this axis, so that the result does not have it."""


class BoxSelection(NamedTuple):
    """A box of elements of an array, perhaps with gaps of one size along each axis."""

    axes: tuple[AxisSelection, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(axis.length for axis in self.axes if not axis.dropped)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for axis in self.axes:
            size *= axis.length
        return size

    def on_all_axes(self, values: Any) -> Any:
        """A view of the result that has all axes of the array, in their order."""
        if any(axis.dropped for axis in self.axes):
            values = values[tuple(None if a.dropped else slice(None) for a in self.axes)]
        if any(axis.flipped for axis in self.axes):
            back = slice(None, None, -1)
            values = values[tuple(back if a.flipped else slice(None) for a in self.axes)]
        return values


def parse_selection(selection: Any, shape: tuple[int, ...], path: str) -> BoxSelection:
    """Parse integers, slices and an ellipsis, as numpy does.

    Raises InvalidInputError for anything else, and for what is outside of the array.
    """
    items = selection if isinstance(selection, tuple) else (selection,)
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise InvalidInputError(f"a selection of {path} has one ellipsis at most: {selection!r}")
    if len(items) - ellipses > len(shape):
        raise InvalidInputError(
            f"too many indices: {path} has {len(shape)} dimensions, the selection "
            f"{len(items) - ellipses}"
        )
    missing = (slice(None),) * (len(shape) - len(items) + ellipses)
    place = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    whole = items[:place] + missing + items[place + 1 :]
    axes = (
        _axis(item, size, number, path)
        for number, (item, size) in enumerate(zip(whole, shape, strict=True))
    )
    return BoxSelection(tuple(axes))


def _axis(item: Any, size: int, number: int, path: str) -> AxisSelection:
    if isinstance(item, slice):
        try:
            start, stop, step = item.indices(size)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"bad slice {item!r} of axis {number} of {path}: {error}"
            ) from None
        count = len(range(start, stop, step))
        if step > 0 or count == 0:
            return AxisSelection(start, abs(step), count)
        return AxisSelection(start + (count - 1) * step, -step, count, flipped=True)
    try:
        # A mask of one element would else pass for 0 or 1.
        index = None if isinstance(item, bool) else operator.index(item)
    except TypeError:
        index = None
    if index is None:
        raise InvalidInputError(
            f"a region is selected with integers, slices and an ellipsis; axis {number} of {path} "
            f"got {described(item)}. Values come after the region; use the array of Zarr for lists "
            "and masks"
        )
    if not -size <= index < size:
        raise InvalidInputError(
            f"index {index} is outside of axis {number} of {path}, which has {size} elements"
        )
    return AxisSelection(index % size, 1, 1, dropped=True)
