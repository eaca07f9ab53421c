"""Checks the order, the steps and the duplicates of whole coordinates, on executors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    import numpy.typing as npt

    Values = npt.NDArray[Any]
    Mask = npt.NDArray[np.bool_]

_STEP = re.compile(r"\s*(\d*)\s*(Y|M|W|D|h|m|s|ms|us|ns)\s*")
_CALENDAR_UNITS = "YM"


class MonotonicCheck(Record, frozen=True):
    """Values that do not continue in the right direction."""

    direction: str
    strict: bool

    def __call__(self, values: Values) -> Mask:
        """Which values are on the wrong side of the one before."""
        before, after = values[:-1], values[1:]
        rises = after > before if self.strict else after >= before
        falls = after < before if self.strict else after <= before
        if self.direction == "either":
            right = rises if np.count_nonzero(rises) >= np.count_nonzero(falls) else falls
        else:
            right = rises if self.direction == "increasing" else falls
        return np.concatenate([np.zeros(min(1, len(values)), np.bool_), ~right])


class GapCheck(Record, frozen=True):
    """Values that are not one step behind the one before."""

    step: float | str | None
    tolerance: float

    def __call__(self, values: Values) -> Mask:
        """Which values are too far from the one before, or too near."""
        if values.dtype.kind not in "iufM":
            raise InvalidInputError(f"gap_free is for numbers and times, found {values.dtype}")
        if len(values) < 2:
            return np.zeros(values.shape, np.bool_)
        steps, expected = self._steps(values)
        sizes = np.abs(steps.astype(np.float64))
        wrong = ~(np.abs(sizes - expected) <= self.tolerance * expected)
        return np.concatenate([[False], wrong])

    def _steps(self, values: Values) -> tuple[Values, float]:
        """The distances of neighbours, and the right one, in the same unit."""
        if isinstance(self.step, str):
            if values.dtype.kind != "M":
                raise InvalidInputError(
                    f"a step such as {self.step!r} is for times, and this coordinate has numbers; "
                    "give a number"
                )
            count, unit = parse_step(self.step)
            if unit in _CALENDAR_UNITS:
                return np.diff(values.astype(f"M8[{unit}]")).astype(np.int64), float(count)
            span = np.timedelta64(count, unit)
            apart = np.diff(values)
            return apart.astype(np.int64), float(span / np.ones(1, apart.dtype)[0])
        numbers = values.view(np.int64) if values.dtype.kind == "M" else values
        steps = np.diff(numbers)
        if self.step is None:
            return steps, float(np.median(np.abs(steps.astype(np.float64))))
        if values.dtype.kind == "M":
            raise InvalidInputError(
                f"steps of times are text such as '6h' or '1M', found {self.step!r}"
            )
        return steps, abs(float(self.step))


def parse_step(text: str) -> tuple[int, Any]:
    """A step of times: how many of which unit.

    >>> parse_step("6h"), parse_step("M")
    ((6, 'h'), (1, 'M'))
    """
    match = _STEP.fullmatch(text)
    if match is None or match[1] == "0":
        raise InvalidInputError(
            f"a step is a number and one of Y, M, W, D, h, m, s, ms, us, ns, as in '6h'; "
            f"found {text!r}"
        )
    return int(match[1] or 1), match[2]


def duplicated(*columns: Values) -> Mask:
    """Which rows of columns occurred before.

    >>> duplicated(np.array([1, 2, 1, 1])).tolist()
    [False, False, True, True]
    """
    codes = [np.unique(column, return_inverse=True)[1] for column in columns]
    order = np.lexsort(codes[::-1])
    same = np.ones(max(0, len(order) - 1), np.bool_)
    for code in codes:
        same &= code[order][1:] == code[order][:-1]
    again = np.zeros(len(order), np.bool_)
    again[order[1:]] = same
    return again
