"""Encodes Arrow columns as stored values, and chooses how new arrays store a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.cf.calendars import DURATION_UNITS, parse_units
from icefloe.cf.decoding import float_attribute
from icefloe.cf.encoding import encode as cf_encode
from icefloe.cf.encoding import encode_moments
from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.tables.decoding import Decoding, decoding_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

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
    """How a new array stores a column."""

    dtype: Any
    attributes: dict[str, Any]
    fill_value: Any
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None


def new_storage(
    name: str,
    kind: pa.DataType,
    encoding: Mapping[str, Any],
    attributes: Mapping[str, Any],
    *,
    has_gaps: bool,
    sample: pa.Array | None = None,
) -> Stored:
    """Choose how a new array stores a column.

    Args:
        name: The column, for errors.
        kind: Its type.
        encoding: What the user requested: dtype, scale_factor, add_offset, _FillValue, units,
            calendar, chunks, shards.
        attributes: Attributes of the array.
        has_gaps: Whether some cells have no value, so that a fill value is needed.
        sample: Values from which the units of times are chosen.
    """
    unknown = set(encoding) - _ENCODING_KEYS
    if unknown:
        raise InvalidInputError(
            f"encoding of {name!r}: unknown {sorted(unknown)}; known are {sorted(_ENCODING_KEYS)}"
        )
    plain = next((dtype for is_kind, dtype in _NUMPY_TYPES if is_kind(kind)), None)
    if plain is None:
        raise InvalidInputError(f"column {name!r} of {kind} cannot be kept in an array")
    stored_attributes = dict(attributes)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        stored_attributes |= _time_attributes(name, kind, encoding, sample)
    elif pa.types.is_duration(kind):
        stored_attributes |= _span_attributes(name, encoding)
    elif pa.types.is_string(kind) and encoding.get("units") is not None:
        stored_attributes |= _calendar_attributes(name, encoding)
        plain = "<i8"
    dtype = encoding.get("dtype", plain)
    if dtype == "?" and has_gaps:
        dtype, stored_attributes["dtype"] = "<i1", "bool"
    for key in ("scale_factor", "add_offset"):
        if encoding.get(key) is not None:
            stored_attributes[key] = float(encoding[key])
    dtype = np.dtypes.StringDType() if dtype in ("string", str) else np.dtype(dtype)
    missing, fill_value = _fill(name, dtype, encoding, has_gaps=has_gaps)
    if missing is not None:
        # xarray cannot read a _FillValue of texts.
        stored_attributes["missing_value" if dtype.kind in "TO" else "_FillValue"] = missing
    return Stored(
        dtype=dtype,
        attributes=stored_attributes,
        fill_value=fill_value,
        chunks=_ints(encoding, "chunks"),
        shards=_ints(encoding, "shards"),
    )


def _ints(encoding: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    value = encoding.get(key)
    return None if value is None else tuple(int(one) for one in value)


def _time_attributes(
    name: str, kind: pa.DataType, encoding: Mapping[str, Any], sample: pa.Array | None
) -> dict[str, Any]:
    units = encoding.get("units")
    if units is None:
        units = _DAYS if pa.types.is_date(kind) else _MICROSECONDS
        if sample is not None and pa.types.is_timestamp(kind):
            moments = sample.drop_null().cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
            if not (moments.to_numpy(zero_copy_only=False) % 1_000_000).any():
                units = _SECONDS
    calendar = encoding.get("calendar", "proleptic_gregorian")
    parsed = parse_units(units, calendar)
    if parsed is None or not parsed.is_real:
        raise InvalidInputError(
            f"encoding of {name!r}: expected units such as 'hours since 1970-01-01' and a "
            f"standard calendar, found {units!r} and {calendar!r}"
        )
    return {"units": units, "calendar": calendar}


def _calendar_attributes(name: str, encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Of a column of texts that are times of a calendar without timestamps."""
    units, calendar = encoding["units"], encoding.get("calendar")
    parsed = parse_units(units, calendar)
    if parsed is None or parsed.is_real:
        raise InvalidInputError(
            f"encoding of {name!r}: texts are kept as times if a calendar such as 'noleap' and "
            f"units such as 'days since 2000-01-01' are given, found {calendar!r} and {units!r}; "
            "make timestamps of times of the standard calendar"
        )
    return {"units": units, "calendar": calendar}


def _span_attributes(name: str, encoding: Mapping[str, Any]) -> dict[str, Any]:
    units = encoding.get("units", "microseconds")
    if units not in DURATION_UNITS:
        raise InvalidInputError(
            f"encoding of {name!r}: units of time spans are one of {', '.join(DURATION_UNITS)}; "
            f"found {units!r}"
        )
    return {"units": units, "dtype": "timedelta64[us]"}


def _fill(
    name: str, dtype: np.dtype[Any], encoding: Mapping[str, Any], *, has_gaps: bool
) -> tuple[Any, Any]:
    """The attribute `_FillValue`, if any, and the fill value of the array."""
    fill = encoding.get("_FillValue")
    match dtype.kind:
        case "f":
            # As the array holds it: xarray finds no other value in it.
            value = float(dtype.type(np.nan if fill is None else fill))
            return float_attribute(value), value
        case "i" | "u":
            if fill is None and not has_gaps:
                return None, 0
            info = np.iinfo(dtype)
            default = info.min if dtype.kind == "i" else info.max
            value = int(default if fill is None else fill)
            if not info.min <= value <= info.max:
                raise InvalidInputError(f"_FillValue {value} of {name!r} is no {dtype}")
            return value, value
        case "T" | "O":
            return ("" if has_gaps else None) if fill is None else str(fill), fill or ""
    return None, False


def stored_decoding(stored: Stored) -> Decoding:
    """The decoding of the values of a new array."""
    return decoding_of(np.dtype(stored.dtype), stored.attributes)


def encode(name: str, column: pa.Array, decoding: Decoding) -> Values:
    """Stored values of a column; raises InvalidInputError for values that do not fit."""
    mask = None if not column.null_count else column.is_null().to_numpy(zero_copy_only=False)
    times = decoding.times
    if times is not None and not times.is_real and pa.types.is_string(column.type):
        moments = np.full(len(column), times.reference, dtype=np.int64)
        there = slice(None) if mask is None else ~mask
        moments[there] = times.parse(column.drop_null().to_pylist())
        return encode_moments(name, moments, mask, times, decoding)
    return cf_encode(name, _decoded_values(name, column, decoding), mask, decoding)


def _decoded_values(name: str, column: pa.Array, decoding: Decoding) -> Values:
    """The values of a column in numpy, with something in place of nulls."""
    kind = column.type
    if decoding.dtype == "string":
        texts: Values = column.cast(pa.string()).fill_null("").to_numpy(zero_copy_only=False)
        return texts
    dtype = decoding.viewed_dtype
    if decoding.times is not None or dtype.kind == "M":
        moments = _cast(name, column, pa.timestamp("us", getattr(kind, "tz", None)))
        return _int64(moments).view("M8[us]")
    if decoding.duration is not None and pa.types.is_duration(kind):
        return _int64(column.cast(pa.duration("us"))).view("m8[us]")
    if pa.types.is_struct(kind):
        parts = [pc.struct_field(column, at).fill_null(0).to_numpy() for at in (0, 1)]
        joined: Values = (parts[0] + 1j * parts[1]).astype(dtype)
        return joined
    if pa.types.is_boolean(kind):
        flags: Values = column.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
        return flags
    if pa.types.is_decimal(kind) and dtype.kind in "iu":
        column = column.cast(pa.decimal128(38, 0)).cast(
            pa.uint64() if dtype.kind == "u" else "int64"
        )
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        column = _cast(name, column, pa.float64())
    numbers: Values = column.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _int64(column: pa.Array) -> Values:
    numbers: Values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"column {name!r} is of {column.type}, but the array keeps {kind}: {error}"
        ) from None
