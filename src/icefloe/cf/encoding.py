"""Encodes values by CF attributes, the inverse of decoding, without silent loss.

Where xarray would wrap a number that the stored type cannot hold, truncate a time between two
units, or store a value that means missing, this raises InvalidInputError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.cf.calendars import TimeUnits
    from icefloe.cf.decoding import Coding

    Values = npt.NDArray[Any]
    Mask = npt.NDArray[np.bool_] | None


_HALF = 2**62


def fill_of(coding: Coding) -> Any:
    """Return the stored value for missing ones; None if the array has none."""
    if coding.missing:
        return coding.missing[0]
    if coding.dtype == "string":
        return None
    kind = np.dtype(coding.dtype).kind
    if kind in "fc":
        return float("nan")
    return np.datetime64("NaT") if kind == "M" else None


def encode(name: str, values: Values, mask: Mask, coding: Coding) -> Values:
    """Encode values for an array.

    Args:
        name: Name of the variable, for errors.
        values: Numbers, booleans, text, `datetime64` or `timedelta64`.
        mask: Where values are missing, besides NaN and NaT.
        coding: How the array stores values.

    Raises:
        InvalidInputError: The array cannot store some of the values.
    """
    mask = _absent(values, mask)
    fill = fill_of(coding)
    if mask is not None and fill is None:
        raise InvalidInputError(
            f"column {name!r} has {int(mask.sum())} nulls, but the array has no _FillValue that "
            "could represent them; replace them, or create the array with one"
        )
    if mask is not None:
        values = _without(values, mask, coding)
    stored = _stored(name, values, mask, coding)
    if fill is not None and stored.dtype.kind in "iu":
        taken = stored == fill if mask is None else (stored == fill) & ~mask
        if taken.any():
            raise InvalidInputError(
                f"column {name!r} has {int(taken.sum())} values that are stored as {fill}, which "
                "means missing in the array; choose another _FillValue"
            )
    if mask is not None:
        stored[mask] = fill
    return stored


def _absent(values: Values, mask: Mask) -> Mask:
    none = mask
    if values.dtype.kind in "fc":
        none = np.isnan(values)
    elif values.dtype.kind in "mM":
        none = np.isnat(values)
    if none is not None and mask is not None:
        none = none | mask
    return none if none is not None and none.any() else None


def _without(values: Values, mask: npt.NDArray[np.bool_], coding: Coding) -> Values:
    """Replace missing values by some that can be encoded."""
    nothing: Any = "" if values.dtype.kind in "OTU" else np.zeros((), values.dtype)
    if values.dtype.kind == "M" and coding.times is not None:
        nothing = np.datetime64(coding.times.reference, "us").astype(values.dtype)
    return np.where(mask, nothing, values)


def _stored(name: str, values: Values, mask: Mask, coding: Coding) -> Values:
    if coding.dtype == "string":
        texts: Values = values.astype(np.dtypes.StringDType())
        return texts
    dtype, kind = coding.viewed_dtype, values.dtype.kind
    if kind == "M":
        numbers = _numbers_of_times(name, values, coding)
    elif kind == "m" and coding.duration is not None:
        numbers = _numbers_of_spans(name, values, coding.duration, coding)
    elif kind == "b" or dtype.kind in "SUmM" or kind in "c":
        return values.astype(coding.dtype)
    else:
        numbers = values
    return _packed(name, numbers, mask, coding)


def _packed(name: str, numbers: Values, mask: Mask, coding: Coding) -> Values:
    """Undo offset and scale, and convert to the stored type; masked numbers do not matter."""
    if coding.float_type is not None:
        numbers = (numbers.astype(np.float64) - (coding.offset or 0)) / (coding.scale or 1)
    is_scaled = coding.float_type is not None
    if mask is not None:
        numbers = np.where(mask, numbers.dtype.type(0), numbers)
    return _fitting(name, numbers, coding.viewed_dtype, rounded=is_scaled).view(coding.dtype)


def encode_moments(
    name: str, moments: npt.NDArray[np.int64], mask: Mask, times: TimeUnits, coding: Coding
) -> Values:
    """Encode times of any calendar, given in microseconds since its day 0 (see `TimeUnits`)."""
    fill = fill_of(coding)
    if mask is not None and mask.any():
        if fill is None:
            return encode(name, np.zeros(len(moments)), mask, coding)  # raises
        moments = np.where(mask, times.reference, moments)
    stored = _packed(name, _units(times, moments, coding), mask, coding)
    if mask is not None and mask.any():
        stored[mask] = fill
    return stored


def _numbers_of_times(name: str, values: Values, coding: Coding) -> Values:
    if coding.times is None:
        stored: Values = values.astype(coding.dtype)
        return stored
    if not coding.times.is_real:
        raise InvalidInputError(
            f"{name!r} has times of the calendar {coding.times.calendar}, which rows of "
            "timestamps cannot have"
        )
    reference = coding.times.reference_nanoseconds
    if np.datetime_data(values.dtype)[0] == "ns" and abs(reference) < _HALF:
        spans = values.astype(np.int64) - reference
        return _whole(name, "times", spans, coding.times.nanoseconds, coding)
    return _units(coding.times, values.astype("M8[us]").astype(np.int64), coding)


def _units(times: TimeUnits, moments: npt.NDArray[np.int64], coding: Coding) -> Values:
    if coding.viewed_dtype.kind == "f" or coding.float_type is not None:
        return (moments - times.reference) / (times.nanoseconds / 1000)
    return times.encode(moments)


def _numbers_of_spans(name: str, values: Values, unit: int, coding: Coding) -> Values:
    if np.datetime_data(values.dtype)[0] == "ns" or unit % 1000:
        return _whole(name, "time spans", values.astype("m8[ns]").astype(np.int64), unit, coding)
    numbers = values.astype("m8[us]").astype(np.int64)
    return _whole(name, "time spans", numbers, unit // 1000, coding)


def _whole(name: str, what: str, spans: npt.NDArray[np.int64], unit: int, coding: Coding) -> Values:
    """Convert spans to units; raise InvalidInputError if integers are stored and do not fit."""
    if coding.viewed_dtype.kind == "f" or coding.float_type is not None:
        return spans / unit
    whole, rest = np.divmod(spans, unit)
    if rest.any():
        raise InvalidInputError(
            f"column {name!r} has {int((rest != 0).sum())} {what} that are no whole number of "
            "the units of the stored array; create it with finer units"
        )
    return whole


def _fitting(name: str, numbers: Values, dtype: np.dtype[Any], *, rounded: bool) -> Values:
    if dtype.kind not in "iu":
        return numbers.astype(dtype)
    if numbers.dtype.kind == "f":
        whole = np.rint(numbers)
        if not rounded and (whole != numbers).any():
            raise InvalidInputError(
                f"column {name!r} has {int((whole != numbers).sum())} values that are no whole "
                f"numbers, but the array keeps {dtype}"
            )
        numbers = whole
    info = np.iinfo(dtype)
    if numbers.size and (numbers.min() < info.min or numbers.max() > info.max):
        raise InvalidInputError(
            f"column {name!r} has values from {numbers.min()} to {numbers.max()}, which do not "
            f"fit into {dtype} of the array"
        )
    return numbers.astype(dtype)
