"""Selects positions along dimensions, by coordinate values (`sel`) or by number (`isel`)."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import shortened
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]

_SHOWN = 5
_PARTIAL = re.compile(r"\d{4}(-\d{2}){0,2}([T ]\d{2}(:\d{2}){0,2}(\.\d{1,6})?)?Z?", re.ASCII)
_TEXT_CALENDAR = re.compile(r"-?\d{4}(-\d{2})?(-\d{2})?([T ].*)?")


class Between(Record, frozen=True):
    """All coordinate values from one to another, both included; None is open."""

    start: Any = None
    stop: Any = None


class Nearest(Record, frozen=True):
    """The coordinate value that is nearest to a number or time."""

    value: Any


def selection_of(selection: Any) -> Any:
    """A selection as users write it: a value, a list, a slice, or a dictionary of an option."""
    if isinstance(selection, slice):
        if selection.step not in (None, 1):
            raise InvalidInputError(
                f"a slice of coordinate values has no step, found {selection!r}"
            )
        return Between(selection.start, selection.stop)
    if isinstance(selection, dict):
        if set(selection) == {"nearest"}:
            return Nearest(selection["nearest"])
        unknown = set(selection) - {"start", "stop"}
        if unknown or not selection:
            raise InvalidInputError(
                "a selection is a value, a list of values, {'start': …, 'stop': …} or "
                f"{{'nearest': …}}; found {selection!r}"
            )
        return Between(selection.get("start"), selection.get("stop"))
    if isinstance(selection, tuple | set | range) or hasattr(selection, "tolist"):
        return list(selection) if not hasattr(selection, "tolist") else _listed(selection)
    return selection


def _listed(array: Any) -> Any:
    # numpy turns nanoseconds into plain integers: keep times as they are.
    if getattr(array, "dtype", None) is not None and array.dtype.kind == "M":
        return list(np.atleast_1d(array)) if array.ndim else array
    return array.tolist()


def select_values(dim: str, coordinate: pa.Array, choice: Any) -> Indices:
    """The positions of selected coordinate values, ascending."""
    choice = selection_of(choice)
    if isinstance(choice, Between):
        return np.flatnonzero(_between(dim, coordinate, choice))
    if isinstance(choice, Nearest):
        return _nearest(dim, coordinate, choice.value)
    if isinstance(choice, list):
        if not choice:
            return np.zeros(0, dtype=np.int64)
        found = [select_values(dim, coordinate, one) for one in choice]
        return np.unique(np.concatenate(found))
    found_one = np.flatnonzero(_equal(dim, coordinate, choice))
    if not len(found_one):
        some = ", ".join(map(str, coordinate[:_SHOWN].to_pylist()))
        raise InvalidInputError(
            f"dimension {dim!r} has no value {choice!r}; it has {len(coordinate)} values: {some}"
            f"{', …' if len(coordinate) > _SHOWN else ''}. Use a slice, or {{'nearest': …}}"
        )
    return found_one


def select_positions(dim: str, size: int, choice: Any) -> Indices:
    """The positions that an `isel` selects, ascending."""
    if isinstance(choice, dict):
        unknown = set(choice) - {"start", "stop", "step"}
        if unknown:
            raise InvalidInputError(f"isel of {dim!r}: unknown {sorted(unknown)} in {choice!r}")
        choice = slice(choice.get("start"), choice.get("stop"), choice.get("step"))
    try:
        if isinstance(choice, slice):
            return np.sort(np.arange(size, dtype=np.int64)[choice])
        positions = np.atleast_1d(np.asarray(choice))
    except (TypeError, ValueError, OverflowError):
        raise _no_positions(dim, choice) from None
    if positions.dtype.kind == "b" and positions.shape == (size,):
        positions = np.flatnonzero(positions)
    if positions.dtype.kind not in "iu" and positions.size:
        raise _no_positions(dim, choice)
    positions = positions.astype(np.int64)
    wrong = positions[(positions < -size) | (positions >= size)]
    if len(wrong):
        raise InvalidInputError(
            f"isel of {dim!r}: position {wrong[0]} is outside of a dimension of {size}"
        )
    return np.unique(np.where(positions < 0, positions + size, positions))


def _no_positions(dim: str, choice: Any) -> InvalidInputError:
    return InvalidInputError(
        f"isel of {dim!r} is a number, a list of numbers or a slice of numbers, found "
        f"{shortened(repr(choice))}"
    )


def _between(dim: str, coordinate: pa.Array, choice: Between) -> npt.NDArray[np.bool_]:
    low = None if choice.start is None else _period(dim, coordinate, choice.start)
    high = None if choice.stop is None else _period(dim, coordinate, choice.stop)
    if low is not None and high is not None and _is_above(dim, coordinate, low[0], high[1]):
        # For descending coordinates, users give the larger bound first.
        low, high = high, low
    mask = np.ones(len(coordinate), dtype=bool)
    if low is not None:
        mask &= _true(pc.greater_equal(coordinate, _scalar(dim, low[0], coordinate.type)))
    if high is not None:
        mask &= _true(pc.less_equal(coordinate, _scalar(dim, high[1], coordinate.type)))
    return mask


def _is_above(dim: str, coordinate: pa.Array, one: Any, other: Any) -> bool:
    try:
        return bool(one > other)
    except (TypeError, ValueError):
        raise _incomparable(dim, coordinate.type, (one, other)) from None


def _equal(dim: str, coordinate: pa.Array, value: Any) -> npt.NDArray[np.bool_]:
    first, last = _period(dim, coordinate, value)
    if first == last:
        return _true(pc.equal(coordinate, _scalar(dim, first, coordinate.type)))
    low = pc.greater_equal(coordinate, _scalar(dim, first, coordinate.type))
    return _true(low) & _true(pc.less_equal(coordinate, _scalar(dim, last, coordinate.type)))


def _nearest(dim: str, coordinate: pa.Array, value: Any) -> Indices:
    if not len(coordinate):
        raise InvalidInputError(f"dimension {dim!r} is empty: nothing is near {value!r}")
    if pa.types.is_timestamp(coordinate.type):
        target = _scalar(dim, _period(dim, coordinate, value)[0], coordinate.type)
        numbers = coordinate.cast(pa.int64()).to_numpy(zero_copy_only=False)
        goal = target.cast(pa.int64()).as_py()
    else:
        numbers = coordinate.to_numpy(zero_copy_only=False)
        is_exact = isinstance(value, int) and -(2**63) <= value < 2**63
        goal = value if is_exact else _scalar(dim, value, pa.float64()).as_py()
    if numbers.dtype.kind not in "iuf":
        raise InvalidInputError(f"dimension {dim!r} has no numbers or times: nothing is near")
    if goal is None or np.isnan(numbers.astype(np.float64) - goal).all():
        raise InvalidInputError(f"dimension {dim!r}: nothing is near {value!r}")
    return np.array([int(np.nanargmin(np.abs(numbers - goal)))], dtype=np.int64)


def _true(mask: Any) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return found


def _period(dim: str, coordinate: pa.Array, value: Any) -> tuple[Any, Any]:
    """The first and last value of a period such as `2020-02`; other values are points."""
    if pa.types.is_timestamp(coordinate.type):
        return time_period(dim, value)
    if pa.types.is_string(coordinate.type) and hasattr(value, "isoformat"):
        value = value.isoformat()
    if (
        pa.types.is_string(coordinate.type)
        and isinstance(value, str)
        and _TEXT_CALENDAR.fullmatch(value)
        and len(coordinate)
        and _TEXT_CALENDAR.fullmatch(coordinate[0].as_py() or "")
    ):
        # Texts of times of other calendars sort as times do.
        return value.replace(" ", "T"), value.replace(" ", "T") + "\x7f"
    return value, value


def time_period(dim: str, value: Any) -> tuple[np.datetime64, np.datetime64]:
    """First and last microsecond of a time or a date, in UTC."""
    if isinstance(value, str):
        text = value.strip()
        if not _PARTIAL.fullmatch(text):
            value = _iso(dim, text)
        else:
            try:
                start = np.datetime64(text.removesuffix("Z").replace(" ", "T"))
            except ValueError:
                raise _no_time(dim, text) from None
            unit: Any = np.datetime_data(start.dtype)[0]  # of numpy's names of units
            end = start + np.timedelta64(1, unit)
            return start.astype("M8[us]"), end.astype("M8[us]") - np.timedelta64(1, "us")
    if isinstance(value, datetime):
        moment = np.datetime64(_naive(dim, value), "us")
        return moment, moment
    if isinstance(value, date):
        return time_period(dim, value.isoformat())
    if hasattr(value, "isoformat"):  # a date of cftime
        value = np.datetime64(value.isoformat(), "us")
    if isinstance(value, np.datetime64):
        moment = value.astype("M8[us]")
        return moment, moment
    raise _no_time(dim, value)


def _iso(dim: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise _no_time(dim, text) from None


def _naive(dim: str, moment: datetime) -> datetime:
    """A time in UTC without a zone, for numpy."""
    try:
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        raise _no_time(dim, moment) from None


def _no_time(dim: str, value: object) -> InvalidInputError:
    return InvalidInputError(
        f"dimension {dim!r} has times: give a datetime or ISO 8601 text, such as 2020-01-31 or "
        f"2020-01-31T12:00, found {shortened(repr(value))}"
    )


def _scalar(dim: str, value: Any, arrow_type: pa.DataType) -> pa.Scalar:
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    try:
        if isinstance(value, np.datetime64):
            return pa.scalar(value.astype("M8[us]").astype(np.int64), pa.int64()).cast(arrow_type)
        if pa.types.is_floating(arrow_type) and isinstance(value, int | float):
            # As xarray does: 0.1 means the value that a coordinate of float32 has for it.
            return pa.scalar(float(value), pa.float64()).cast(arrow_type, safe=False)
        if pa.types.is_integer(arrow_type) and isinstance(value, float):
            return pa.scalar(value, pa.float64())
        return pa.scalar(value, arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _incomparable(dim, arrow_type, value) from None


def _incomparable(dim: str, wanted: pa.DataType, value: object) -> InvalidInputError:
    return InvalidInputError(
        f"dimension {dim!r} has values of {wanted}, which cannot be compared with "
        f"{shortened(repr(value))}"
    )


class DimSelection(Record, frozen=True, eq=False):
    """The selected positions along one dimension, ascending."""

    dim: str
    size: int
    indices: Any
    """Positions, or None for all."""

    def __len__(self) -> int:
        return self.size if self.indices is None else len(self.indices)

    def at(self, start: int, stop: int) -> slice | Indices:
        """Positions in the array of a run of selected ones, as a slice if they are consecutive."""
        if self.indices is None:
            return slice(start, stop)
        part: Indices = self.indices[start:stop]
        if len(part) and part[-1] - part[0] == len(part) - 1:
            return slice(int(part[0]), int(part[-1]) + 1)
        return part

    def numbers(self) -> Indices:
        """All selected positions."""
        return np.arange(self.size, dtype=np.int64) if self.indices is None else self.indices

    def narrowed(self, positions: Indices) -> DimSelection:
        """The selected positions that are also among others."""
        mine = positions if self.indices is None else np.intersect1d(self.indices, positions)
        return DimSelection(self.dim, self.size, None if len(mine) == self.size else mine)


def select_axes(
    dims: tuple[str, ...],
    shape: tuple[int, ...],
    coordinates: Mapping[str, pa.Array],
    sel: Mapping[str, Any],
    isel: Mapping[str, Any],
) -> tuple[DimSelection, ...]:
    """The positions that `sel` and `isel` select along all dimensions."""
    for name, selection in (("sel", sel), ("isel", isel)):
        unknown = set(selection) - set(dims)
        if unknown:
            raise InvalidInputError(
                f"{name} names {sorted(unknown)}, but the dimensions of the table are {dims}"
            )
    both = set(sel) & set(isel)
    if both:
        raise InvalidInputError(f"{sorted(both)} is in sel and in isel; choose one of them")
    axes = []
    for dim, size in zip(dims, shape, strict=True):
        axis = DimSelection(dim, size, None)
        if dim in sel:
            axis = axis.narrowed(select_values(dim, coordinates[dim], sel[dim]))
        if dim in isel:
            axis = axis.narrowed(select_positions(dim, size, isel[dim]))
        axes.append(axis)
    return tuple(axes)
