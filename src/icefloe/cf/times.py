"""Converts numbers with CF units to times and time spans of numpy and cftime, and back.

As in xarray, times are `datetime64[ns]` if that can hold all times of an array, and cftime objects
if it cannot, or if the calendar is not one of the real world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.cf.calendars import DURATION_UNITS
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.cf.calendars import TimeUnits

    Values = npt.NDArray[Any]
    Mask = npt.NDArray[np.bool_] | None

NO_TIME = -(2**63)
"""The integer that numpy and xarray store for a missing time (NaT)."""
_MOST = 2**63 - 1
_RESOLUTIONS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds of the resolutions that pandas supports."""
_UNITS = tuple(reversed(DURATION_UNITS.items()))
"""Units and their nanoseconds, from days down."""


def decode_times(numbers: Values, mask: Mask, units: TimeUnits) -> Values:
    """Decode numbers of units since a reference time; masked ones become missing times."""
    mask = _absent(numbers, mask)
    plain = numbers if mask is None else np.where(mask, numbers.dtype.type(0), numbers)
    moments = _nanoseconds(plain, units) if units.is_real else None
    if moments is None:
        return _cftimes(plain, mask, units)
    if mask is not None:
        moments[mask] = NO_TIME
    return moments.view("M8[ns]")


def _absent(numbers: Values, mask: Mask) -> Mask:
    if numbers.dtype.kind != "f":
        return mask
    none = np.isnan(numbers)
    if mask is not None:
        none |= mask
    return none if none.any() else None


def _nanoseconds(numbers: Values, units: TimeUnits) -> npt.NDArray[np.int64] | None:
    """Return nanoseconds since 1970; None if 64 bits cannot hold all of them."""
    reference = units.reference_nanoseconds
    if numbers.size == 0:
        return np.zeros(numbers.shape, np.int64)
    ends = [numbers.min(), numbers.max()]
    if numbers.dtype.kind == "f" and not np.isfinite(ends).all():
        raise _not_finite(units)
    exact = [int(end) * units.nanoseconds + reference for end in ends]
    if min(exact) <= -_MOST + units.nanoseconds or max(exact) > _MOST - units.nanoseconds:
        return None
    if numbers.dtype.kind != "f":
        return numbers.astype(np.int64) * units.nanoseconds + reference
    if abs(reference) > _MOST:
        # With a reference beyond the range of nanoseconds, count microseconds, as cftime does.
        return units.decode(numbers)[0] * 1000
    spans: npt.NDArray[np.int64] = (numbers.astype(np.float64) * units.nanoseconds).astype(np.int64)
    return spans + reference


def _cftimes(numbers: Values, mask: Mask, units: TimeUnits) -> Values:
    try:
        import cftime
    except ImportError:
        raise InvalidInputError(
            f"times of the calendar {units.calendar}, or far from now, need the package cftime: "
            "install icefloe[xarray]"
        ) from None
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        raise _not_finite(units)
    times = np.empty(numbers.size, dtype=object)
    try:
        times[:] = cftime.num2date(
            numbers.reshape(-1).astype(np.float64),
            units.units,
            units.calendar,
            only_use_cftime_datetimes=True,
        )
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"some times are no times of the calendar {units.calendar}: {error}; read stored "
            "values: decode=false"
        ) from None
    if mask is not None:
        times[mask.reshape(-1)] = None
    return times.reshape(numbers.shape)


def _not_finite(units: TimeUnits) -> InvalidInputError:
    return InvalidInputError(f"expected times in {units.units!r}, found infinite numbers")


# --- time spans


def decode_durations(numbers: Values, mask: Mask, unit: int, dtype: str) -> Values:
    """Decode time spans: numbers of a unit, which is given in nanoseconds.

    The result has the resolution of `dtype`, or a finer one if the spans need it.
    """
    mask = _absent(numbers, mask)
    plain = numbers if mask is None else np.where(mask, numbers.dtype.type(0), numbers)
    fitting = [name for name, length in _RESOLUTIONS.items() if length <= unit]
    resolution = fitting[0]
    if plain.dtype.kind == "f":
        counts = plain.astype(np.float64) * (unit / _RESOLUTIONS[resolution])
        for name in fitting:
            resolution = name
            if name == "ns" or not (counts % 1 > 0).any():
                break
            counts = counts * 1000
        _check_range(counts, 1)
        spans = counts.astype(np.int64)
    else:
        factor = unit // _RESOLUTIONS[resolution]
        _check_range(plain, factor)
        spans = plain.astype(np.int64) * factor
    target = _resolution_of(dtype)
    if _RESOLUTIONS[target] < _RESOLUTIONS[resolution]:
        factor = _RESOLUTIONS[resolution] // _RESOLUTIONS[target]
        _check_range(spans, factor)
        spans, resolution = spans * factor, target
    if mask is not None:
        spans[mask] = NO_TIME
    return spans.view(f"m8[{resolution}]")


def _resolution_of(dtype: str) -> str:
    """Return the resolution of a numpy type, or the nearest one that pandas supports."""
    try:
        unit, _ = np.datetime_data(np.dtype(dtype))
    except TypeError:
        return "ns"
    if unit in _RESOLUTIONS:
        return unit
    return "s" if unit in ("m", "h", "D", "W", "M", "Y") else "ns"


def _check_range(numbers: Values, factor: int) -> None:
    if numbers.size:
        ends = [numbers.min(), numbers.max()]
        is_finite = bool(np.isfinite(ends).all())
        if not is_finite or max(abs(int(end)) for end in ends) * factor > _MOST:
            raise InvalidInputError(
                f"time spans from {ends[0]} to {ends[1]} units are more than 64 bits hold; read "
                "stored values: decode=false"
            )


# --- other units, and those of new arrays


def in_units(numbers: Values, own: TimeUnits, target: TimeUnits) -> Values:
    """Convert times to other units of the same calendar; integers where that is exact."""
    apart = own.reference_nanoseconds - target.reference_nanoseconds
    if numbers.dtype.kind in "iu" and numbers.size:
        ends = [int(end) * own.nanoseconds + apart for end in (numbers.min(), numbers.max())]
        most = max(abs(int(numbers.min())), abs(int(numbers.max()))) * own.nanoseconds
        if max(most, abs(apart), *map(abs, ends)) <= _MOST:
            spans = numbers.astype(np.int64) * own.nanoseconds + apart
            whole, rest = np.divmod(spans, target.nanoseconds)
            return whole if not rest.any() else spans / target.nanoseconds
    factor = own.nanoseconds / target.nanoseconds
    return numbers.astype(np.float64) * factor + apart / target.nanoseconds


def encode_new(values: Values) -> tuple[Values, dict[str, Any]]:
    """Encode times or time spans for a new array, as xarray does; return numbers and attributes.

    The units are the longest ones in which all numbers are integers.

    >>> numbers, attributes = encode_new(np.array(["2024-01-01", "2024-01-03"], "M8[ns]"))
    >>> numbers.tolist(), attributes["units"]
    ([0, 2], 'days since 2024-01-01 00:00:00')
    """
    if values.dtype.kind == "m":
        return _new_durations(values)
    if values.dtype.kind == "M":
        return _new_times(values)
    return _new_cftimes(values)


def whole_units(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return units in which 64-bit integers hold all times or time spans of a numpy type."""
    resolution = np.datetime_data(dtype)[0]
    length = _RESOLUTIONS.get(resolution, _RESOLUTIONS["s"])
    unit = next(name for name, each in _UNITS if each == length)
    if dtype.kind == "m":
        return {"units": unit, "dtype": f"timedelta64[{resolution}]"}
    return {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian"}


def _new_durations(values: Values) -> tuple[Values, dict[str, Any]]:
    spans = values.astype("m8[ns]").astype(np.int64)
    none = np.isnat(values)
    unit, length = _dividing(spans[~none])
    resolution, _ = np.datetime_data(values.dtype)
    stored = np.where(none, NO_TIME, spans // length)
    return stored, {"dtype": f"timedelta64[{resolution}]", "units": unit}


def _new_times(values: Values) -> tuple[Values, dict[str, Any]]:
    resolution = np.datetime_data(values.dtype)[0]
    resolution = resolution if resolution in _RESOLUTIONS else "s"
    moments = values.astype(f"M8[{resolution}]")
    none = np.isnat(moments)
    there = moments[~none].reshape(-1)
    first = there[0] if len(there) else np.zeros((), moments.dtype)[()]
    unit, length = _dividing(np.diff(there).astype("m8[ns]").astype(np.int64))
    spans = (moments - first).astype("m8[ns]").astype(np.int64)
    stored = np.where(none, NO_TIME, spans // length)
    units = f"{unit} since {_text(first)}"
    return stored, {"units": units, "calendar": "proleptic_gregorian"}


def _text(moment: Any) -> str:
    """Write a time as pandas does: with 0, 6 or 9 digits of a second, as it needs."""
    for resolution in _RESOLUTIONS:
        if moment.astype(f"M8[{resolution}]") == moment:
            digits = "us" if resolution == "ms" else resolution
            return str(moment.astype(f"M8[{digits}]")).replace("T", " ")
    return str(moment).replace("T", " ")


def _dividing(spans: npt.NDArray[np.int64]) -> tuple[str, int]:
    """Return the longest unit in which all time spans are integers, and its nanoseconds."""
    return next(each for each in _UNITS if not (spans % each[1]).any())


def _new_cftimes(values: Values) -> tuple[Values, dict[str, Any]]:
    import cftime

    times = values.reshape(-1).tolist()
    first = times[0]
    apart = [(one - other) for one, other in zip(times[1:], times, strict=False)]
    spans = np.array(apart, dtype="m8[us]").astype("m8[ns]").astype(np.int64)
    unit, _ = _dividing(spans)
    reference = (
        f"{first.year:04d}-{first.month:02d}-{first.day:02d} {first.hour:02d}:{first.minute:02d}:"
        f"{first.second:02d}.{first.microsecond:06d}"
    )
    units = f"{unit} since {reference}"
    numbers = np.asarray(cftime.date2num(times, units, first.calendar))
    whole = numbers.astype(np.int64)
    stored = whole if np.array_equal(whole, numbers) else numbers
    return stored.reshape(values.shape), {"units": units, "calendar": first.calendar}
