"""From columns to stored values: the inverse of decoding, and how new arrays are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.spark.tables.calendars import parse_units, unit_nanoseconds
from icefloe.spark.tables.decoding import Decoding, decoding_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icefloe.spark.tables.calendars import TimeUnits

    Values = npt.NDArray[Any]

_NUMPY_TYPES: list[tuple[Any, str]] = [
    (pa.types.is_boolean, "?"),
    (pa.types.is_int8, "<i1"),
    (pa.types.is_int16, "<i2"),
    (pa.types.is_int32, "<i4"),
    (pa.types.is_int64, "<i8"),
    (pa.types.is_float32, "<f4"),
    (pa.types.is_float64, "<f8"),
    (pa.types.is_decimal, "<f8"),
    (pa.types.is_string, "string"),
    (pa.types.is_date32, "<i4"),
    (pa.types.is_timestamp, "<i8"),
    (pa.types.is_duration, "<i8"),
]
_ENCODING_KEYS = {
    *("dtype", "scale_factor", "add_offset", "_FillValue", "units", "calendar"),
    *("chunks", "shards"),
}
_MICROSECONDS = "microseconds since 1970-01-01"
_SECONDS = "seconds since 1970-01-01"
_DAYS = "days since 1970-01-01"


class Stored(Record, frozen=True, eq=False):
    """How a new array keeps a column."""

    dtype: Any
    attributes: dict[str, Any]
    fill_value: Any
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None


def new_storage(
    name: str,
    kind: pa.DataType,
    given: Mapping[str, Any],
    attributes: Mapping[str, Any],
    *,
    has_gaps: bool,
    sample: pa.Array | None = None,
) -> Stored:
    """How to keep a column in a new array.

    Args:
        name: The column, for errors.
        kind: Its type.
        given: What the user asked for: dtype, scale_factor, add_offset, _FillValue, units,
            calendar, chunks, shards.
        attributes: Attributes of the array.
        has_gaps: Whether some cells get no value, so that something must stand for that.
        sample: Values by which the units of times are chosen.
    """
    unknown = set(given) - _ENCODING_KEYS
    if unknown:
        raise InvalidInputError(
            f"encoding of {name!r}: unknown {sorted(unknown)}; known are {sorted(_ENCODING_KEYS)}"
        )
    plain = next((dtype for is_kind, dtype in _NUMPY_TYPES if is_kind(kind)), None)
    if plain is None:
        raise InvalidInputError(f"column {name!r} of {kind} cannot be kept in an array")
    found = dict(attributes)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        found |= _time_attributes(name, kind, given, sample)
    elif pa.types.is_duration(kind):
        found |= _span_attributes(name, given)
    elif pa.types.is_string(kind) and given.get("units") is not None:
        found |= _calendar_attributes(name, given)
        plain = "<i8"
    dtype = given.get("dtype", plain)
    if dtype == "?" and has_gaps:
        dtype, found["dtype"] = "<i1", "bool"
    for key in ("scale_factor", "add_offset"):
        if given.get(key) is not None:
            found[key] = float(given[key])
    dtype = np.dtypes.StringDType() if dtype in ("string", str) else np.dtype(dtype)
    missing, fill_value = _fill(name, dtype, given, has_gaps=has_gaps)
    if missing is not None:
        # xarray cannot read a _FillValue of texts.
        found["missing_value" if dtype.kind in "TO" else "_FillValue"] = missing
    return Stored(dtype, found, fill_value, _ints(given, "chunks"), _ints(given, "shards"))


def _ints(given: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    value = given.get(key)
    return None if value is None else tuple(int(one) for one in value)


def _time_attributes(
    name: str, kind: pa.DataType, given: Mapping[str, Any], sample: pa.Array | None
) -> dict[str, Any]:
    units = given.get("units")
    if units is None:
        units = _DAYS if pa.types.is_date(kind) else _MICROSECONDS
        if sample is not None and pa.types.is_timestamp(kind):
            moments = sample.drop_null().cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
            if not (moments.to_numpy(zero_copy_only=False) % 1_000_000).any():
                units = _SECONDS
    calendar = given.get("calendar", "proleptic_gregorian")
    parsed = parse_units(units, calendar)
    if parsed is None or not parsed.is_real:
        raise InvalidInputError(
            f"encoding of {name!r}: expected units such as 'hours since 1970-01-01' and a "
            f"standard calendar, found {units!r} and {calendar!r}"
        )
    return {"units": units, "calendar": calendar}


def _calendar_attributes(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of a column of texts that are times of a calendar without timestamps."""
    units, calendar = given["units"], given.get("calendar")
    parsed = parse_units(units, calendar)
    if parsed is None or parsed.is_real:
        raise InvalidInputError(
            f"encoding of {name!r}: texts are kept as times if a calendar such as 'noleap' and "
            f"units such as 'days since 2000-01-01' are given, found {calendar!r} and {units!r}; "
            "make timestamps of times of the standard calendar"
        )
    return {"units": units, "calendar": calendar}


def _span_attributes(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    units = given.get("units", "microseconds")
    if unit_nanoseconds(str(units)) is None:
        raise InvalidInputError(
            f"encoding of {name!r}: units of time spans are such as 'hours', found {units!r}"
        )
    return {"units": units, "dtype": "timedelta64[us]"}


def _fill(
    name: str, dtype: np.dtype[Any], given: Mapping[str, Any], *, has_gaps: bool
) -> tuple[Any, Any]:
    """The attribute `_FillValue`, if any, and the fill value of the array."""
    asked = given.get("_FillValue")
    match dtype.kind:
        case "f":
            value = float("nan") if asked is None else float(asked)
            return _float_attribute(value), value
        case "i" | "u":
            if asked is None and not has_gaps:
                return None, 0
            info = np.iinfo(dtype)
            default = info.min if dtype.kind == "i" else info.max
            value = int(default if asked is None else asked)
            if not info.min <= value <= info.max:
                raise InvalidInputError(f"_FillValue {value} of {name!r} is no {dtype}")
            return value, value
        case "T" | "O":
            return ("" if has_gaps else None) if asked is None else str(asked), asked or ""
    return None, False


def _float_attribute(value: float) -> str:
    """A fill value of floats as xarray keeps it in JSON."""
    import base64
    import struct

    return base64.standard_b64encode(struct.pack("<d", value)).decode()


def stored_decoding(stored: Stored) -> Decoding:
    """What values mean that are kept in a new array."""
    return decoding_of(np.dtype(stored.dtype), stored.attributes)


def fill_of(decoding: Decoding) -> Any:
    """The stored value that stands for nothing; None if there is none."""
    if decoding.missing:
        return decoding.missing[0]
    if decoding.dtype == "string":
        return None
    kind = np.dtype(decoding.dtype).kind
    if kind == "f":
        return float("nan")
    return np.datetime64("NaT") if kind == "M" else None


def encode(name: str, column: pa.Array, decoding: Decoding) -> Values:
    """Stored values of a column; raises InvalidInputError for values that do not fit."""
    nulls = column.null_count
    fill = fill_of(decoding)
    if nulls and fill is None:
        raise InvalidInputError(
            f"column {name!r} has {nulls} nulls, but the array has no _FillValue that could stand "
            "for them; replace them, or create the array with one"
        )
    mask = None if not nulls else column.is_null().to_numpy(zero_copy_only=False)
    values = _plain_values(name, column, decoding)
    if fill is not None and values.dtype.kind in "iu":
        taken = values == fill if mask is None else (values == fill) & ~mask
        if taken.any():
            raise InvalidInputError(
                f"column {name!r} has {int(taken.sum())} values that are stored as {fill}, which "
                "stands for missing in the array; choose another _FillValue"
            )
    if mask is not None:
        values[mask] = fill
    return values


def _plain_values(name: str, column: pa.Array, decoding: Decoding) -> Values:
    wanted = decoding.dtype
    if wanted == "string":
        texts = column.cast(pa.string()).fill_null("").to_numpy(zero_copy_only=False)
        found: Values = texts.astype(np.dtypes.StringDType())
        return found
    dtype = np.dtype(decoding.unsigned or wanted)
    if decoding.times is not None or dtype.kind == "M":
        return _times(name, column, decoding, dtype)
    if decoding.duration is not None and pa.types.is_duration(column.type):
        return _spans(name, column, decoding.duration, dtype)
    if pa.types.is_struct(column.type):
        parts = [pc.struct_field(column, at).fill_null(0).to_numpy() for at in (0, 1)]
        joined: Values = (parts[0] + 1j * parts[1]).astype(dtype)
        return joined
    if pa.types.is_boolean(column.type):
        flags: Values = column.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        return flags.astype(wanted)
    if pa.types.is_decimal(column.type) and dtype.kind in "iu":
        column = column.cast(pa.decimal128(38, 0)).cast(
            pa.uint64() if dtype.kind == "u" else "int64"
        )
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        column = _cast(name, column, pa.float64())
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    if decoding.float_type is not None:
        numbers = (numbers.astype(np.float64) - (decoding.offset or 0)) / (decoding.scale or 1)
    return _fit(name, numbers, dtype, rounded=decoding.float_type is not None).view(wanted)


def _spans(name: str, column: pa.Array, unit: int, dtype: np.dtype[Any]) -> Values:
    spans = column.cast(pa.duration("us")).cast(pa.int64()).fill_null(0)
    numbers: Values = spans.to_numpy(zero_copy_only=False)
    if dtype.kind == "f":
        return (numbers * (1000 / unit)).astype(dtype)
    whole, rest = np.divmod(numbers * 1000, unit)
    if rest.any():
        raise InvalidInputError(
            f"column {name!r} has {int((rest != 0).sum())} time spans that are no whole number of "
            "the units of the stored array; create it with finer units"
        )
    return _fit(name, whole, dtype, rounded=False)


def _times(name: str, column: pa.Array, decoding: Decoding, dtype: np.dtype[Any]) -> Values:
    if (
        decoding.times is not None
        and not decoding.times.is_real
        and pa.types.is_string(column.type)
    ):
        return _calendar_times(name, column, decoding.times, dtype)
    kind = pa.timestamp("us", getattr(column.type, "tz", None))
    moments = _cast(name, column, kind).cast(pa.int64()).fill_null(0)
    numbers: Values = moments.to_numpy(zero_copy_only=False)
    if decoding.times is None:
        return numbers.view("M8[us]").astype(dtype)
    if not decoding.times.is_real:
        raise InvalidInputError(
            f"{name!r} has times of the calendar {decoding.times.calendar}, which rows of "
            "timestamps cannot have"
        )
    if dtype.kind == "f":
        return ((numbers - decoding.times.reference) / decoding.times.microseconds).astype(dtype)
    if column.null_count:
        numbers = np.where(
            column.is_null().to_numpy(zero_copy_only=False), decoding.times.reference, numbers
        )
    return _fit(name, decoding.times.encode(numbers), dtype, rounded=False)


def _calendar_times(name: str, column: pa.Array, times: TimeUnits, dtype: np.dtype[Any]) -> Values:
    """Texts of times of a calendar that timestamps cannot hold."""
    moments = np.full(len(column), times.reference, dtype=np.int64)
    given = column.is_valid().to_numpy(zero_copy_only=False)
    moments[given] = times.parse(column.drop_null().to_pylist())
    if dtype.kind == "f":
        return ((moments - times.reference) / times.microseconds).astype(dtype)
    return _fit(name, times.encode(moments), dtype, rounded=False)


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"column {name!r} is of {column.type}, but the array keeps {kind}: {error}"
        ) from None


def _fit(name: str, numbers: Values, dtype: np.dtype[Any], *, rounded: bool) -> Values:
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
