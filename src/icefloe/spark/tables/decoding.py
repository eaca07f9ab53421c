"""From stored values to columns: what CF attributes mean, and which Arrow type holds the result."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.spark.tables.calendars import TimeUnits, parse_units, unit_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Values = npt.NDArray[Any]
    Mask = npt.NDArray[np.bool_] | None

_PLAIN_TYPES: dict[str, pa.DataType] = {
    "b1": pa.bool_(),
    "i1": pa.int8(),
    "i2": pa.int16(),
    "i4": pa.int32(),
    "i8": pa.int64(),
    # Spark has no unsigned numbers: the next wider type holds them all.
    "u1": pa.int16(),
    "u2": pa.int32(),
    "u4": pa.int64(),
    "u8": pa.decimal128(20, 0),
    "f2": pa.float32(),
    "f4": pa.float32(),
    "f8": pa.float64(),
}
_FLOAT_BYTES = 8
_NO_TIME = -(2**63)
"""What numpy keeps for a time span that is none."""


class Reading(Record, frozen=True):
    """How a reader wants values."""

    decode: bool = True
    """Whether CF attributes are obeyed."""
    nan_is_null: bool = True
    zoned_times: bool = False
    """Whether times are Spark's `timestamp` (UTC) instead of `timestamp_ntz`."""


AS_CF = Reading()
"""As CF says, which is what most readers want."""


class Decoding(Record, frozen=True):
    """What the values of one array mean."""

    dtype: str
    """numpy's name of the type that they are stored in; `string` for variable-length text."""
    missing: tuple[Any, ...] = ()
    """Stored values that stand for nothing."""
    unsigned: str | None = None
    """A type of the same size to look at the bytes as."""
    scale: float | None = None
    offset: float | None = None
    float_type: str | None = None
    """The type of scaled values."""
    times: TimeUnits | None = None
    duration: int | None = None
    """Of time spans, as xarray keeps them: nanoseconds of one unit."""
    is_bool: bool = False
    text_encoding: str | None = None
    reading: Reading = AS_CF

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column."""
        if self.times is not None:
            return self._timestamp if self.times.is_real else pa.string()
        if self.duration is not None:
            return pa.duration("us")
        if self.is_bool:
            return pa.bool_()
        if self.float_type is not None:
            return _PLAIN_TYPES[np.dtype(self.float_type).str[1:]]
        if self.dtype == "string":
            return pa.string()
        return self._plain_type(np.dtype(self.unsigned or self.dtype))

    def _plain_type(self, dtype: np.dtype[Any]) -> pa.DataType:
        if dtype.kind == "c":
            part = pa.float32() if dtype.itemsize <= 8 else pa.float64()
            return pa.struct([("re", part), ("im", part)])
        others = {
            "M": self._timestamp,
            "m": pa.duration("us"),
            "U": pa.string(),
            "S": pa.string() if self.text_encoding else pa.binary(),
        }
        found = others.get(dtype.kind) or _PLAIN_TYPES.get(dtype.str[1:])
        if found is None:
            raise InvalidInputError(f"no column type for arrays of {self.dtype}")
        return found

    @property
    def _timestamp(self) -> pa.DataType:
        return pa.timestamp("us", "UTC") if self.reading.zoned_times else pa.timestamp("us")

    @property
    def is_monotone(self) -> bool:
        """Whether a larger stored value is never a smaller column value, or always the reverse."""
        plain = self.dtype != "string" and np.dtype(self.dtype).kind in "biufM"
        return plain and self.duration is None and self.arrow_type != pa.string()

    def decode(self, values: Values) -> pa.Array:
        """The column of stored values, in row-major order."""
        flat = np.ascontiguousarray(values).reshape(-1)
        mask = self.missing_mask(flat)
        flat = self._viewed(flat)
        if self.times is not None:
            return self._decode_times(flat, mask)
        if self.duration is not None:
            return self._decode_spans(flat, mask)
        if self.float_type is not None:
            flat = self.scaled(flat)
        return self._column(flat, mask)

    def missing_mask(self, flat: Values) -> Mask:
        """Where stored values stand for nothing; None if nowhere."""
        if self.dtype != "string" and flat.dtype.kind == "M":
            return np.isnat(flat)
        mask: Mask = None
        for value in self.missing:
            same = np.isnan(flat) if value != value else flat == value  # noqa: PLR0124 (NaN)
            mask = same if mask is None else mask | same
        if self.reading.nan_is_null and flat.dtype.kind == "f":
            nans = np.isnan(flat)
            mask = nans if mask is None else mask | nans
        return mask if mask is not None and mask.any() else None

    def _viewed(self, flat: Values) -> Values:
        return flat if self.unsigned is None else flat.view(self.unsigned)

    def scaled(self, flat: Values) -> Values:
        """Stored numbers times the scale factor plus the offset, as xarray computes them."""
        numbers = flat.astype(self.float_type)
        if self.scale is not None:
            numbers *= self.scale
        if self.offset is not None:
            numbers += self.offset
        return numbers

    def _decode_times(self, flat: Values, mask: Mask) -> pa.Array:
        assert self.times is not None
        if mask is not None:
            flat = np.where(mask, flat.dtype.type(0), flat)
        moments, none = self.times.decode(flat)
        if none is not None:
            mask = none if mask is None else mask | none
        if not self.times.is_real:
            return pa.array(self.times.texts(moments), pa.string(), mask=mask)
        return pa.array(moments.view("M8[us]"), pa.timestamp("us"), mask=mask).cast(self._timestamp)

    def _decode_spans(self, flat: Values, mask: Mask) -> pa.Array:
        assert self.duration is not None
        if mask is not None:
            flat = np.where(mask, flat.dtype.type(0), flat)
        if flat.dtype.kind == "f":
            spans = np.rint(flat * (self.duration / 1000)).astype(np.int64)
        else:
            spans = flat.astype(np.int64) * self.duration // 1000
        return pa.array(spans.view("m8[us]"), mask=mask)

    def _column(self, flat: Values, mask: Mask) -> pa.Array:
        wanted = self.arrow_type
        if self.dtype == "string" or flat.dtype.kind in "OTU":
            return _texts(flat, mask)
        match flat.dtype.kind:
            case "S":
                return _bytes(flat, mask, self.text_encoding)
            case "c":
                parts = [
                    pa.array(np.ascontiguousarray(part), wanted.field(0).type)
                    for part in (flat.real, flat.imag)
                ]
                none = None if mask is None else pa.array(mask)
                return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=none)
            case "M" | "m":
                unit = flat.astype(f"{flat.dtype.kind}8[us]")
                return pa.array(unit, mask=mask).cast(wanted)
        if self.is_bool:
            flat = flat.astype(np.bool_)
        if flat.dtype.byteorder == ">":
            flat = flat.astype(flat.dtype.newbyteorder("="))
        column = pa.array(flat, mask=mask)
        return column if column.type == wanted else column.cast(wanted)


def _texts(flat: Values, mask: Mask) -> pa.Array:
    texts = flat.astype(object)
    return pa.array(texts, pa.string(), mask=mask, from_pandas=True)


def _bytes(flat: Values, mask: Mask, encoding: str | None) -> pa.Array:
    if encoding is None:
        return pa.array(flat.astype(object), pa.binary(), mask=mask)
    texts = np.array([v.decode(encoding) for v in flat.tolist()], dtype=object)
    return pa.array(texts, pa.string(), mask=mask)


def decoding_of(
    dtype: np.dtype[Any], attributes: Mapping[str, Any], reading: Reading = AS_CF
) -> Decoding:
    """What the attributes of an array say about its values."""
    if dtype.kind in "OT":
        return Decoding("string", _missing(dtype, attributes, reading), reading=reading)
    plain = Decoding(dtype.str, reading=reading)
    if not reading.decode:
        return plain
    missing = _missing(dtype, attributes, reading)
    times = parse_units(attributes.get("units"), attributes.get("calendar"))
    if times is not None and dtype.kind not in "iuf":
        times = None
    scale, offset = _number(attributes, "scale_factor"), _number(attributes, "add_offset")
    is_scaled = (scale is not None or offset is not None) and dtype.kind in "iuf"
    duration = _duration(dtype, attributes)
    if duration is not None and dtype.kind == "i" and dtype.itemsize == 8:
        missing = (*missing, _NO_TIME) if _NO_TIME not in missing else missing
    return Decoding(
        dtype.str,
        missing,
        unsigned=_other_sign(dtype, attributes),
        scale=scale if is_scaled else None,
        offset=offset if is_scaled else None,
        float_type="<f8" if is_scaled else None,
        times=times if not is_scaled else None,
        duration=duration if not is_scaled else None,
        is_bool=attributes.get("dtype") == "bool" and dtype.kind in "iu",
        text_encoding=attributes.get("_Encoding") if dtype.kind == "S" else None,
        reading=reading,
    )


def _duration(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> int | None:
    """Nanoseconds of a unit of an array that xarray made of time spans."""
    if dtype.kind not in "iuf" or not str(attributes.get("dtype", "")).startswith("timedelta64"):
        return None
    return unit_nanoseconds(str(attributes.get("units", "")))


def _number(attributes: Mapping[str, Any], name: str) -> float | None:
    value = attributes.get(name)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _other_sign(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> str | None:
    flag = str(attributes.get("_Unsigned", "")).lower()
    if flag == "true" and dtype.kind == "i":
        return dtype.str.replace("i", "u")
    if flag == "false" and dtype.kind == "u":
        return dtype.str.replace("u", "i")
    return None


def _missing(
    dtype: np.dtype[Any], attributes: Mapping[str, Any], reading: Reading
) -> tuple[Any, ...]:
    if not reading.decode:
        return ()
    found: list[Any] = []
    for name in ("_FillValue", "missing_value"):
        value = attributes.get(name)
        for one in value if isinstance(value, list) else [value]:
            stored = None if one is None else _stored_value(one, dtype)
            if stored is not None and not any(stored == other for other in found):
                found.append(stored)
    return tuple(found)


def _stored_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value of an attribute as the array stores it; None if it never can."""
    if dtype.kind in "OTU":
        return value if isinstance(value, str) else None
    try:
        if dtype.kind == "f":
            return float(dtype.type(_float_of(value)))
        if dtype.kind in "iu":
            number = int(value)
            info = np.iinfo(dtype)
            if not info.min <= number <= info.max:
                # Files give fill values of unsigned data with the other sign.
                number = int(np.array(number).astype(dtype)) if -(2**63) <= number < 2**63 else 0
            return number
    except (TypeError, ValueError, OverflowError):
        return None
    return None


def _float_of(value: Any) -> float:
    """A number as JSON, as a word such as NaN, or as the base64 of eight bytes (xarray)."""
    if isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
            if len(raw) == _FLOAT_BYTES:
                return float(struct.unpack("<d", raw)[0])
        except (binascii.Error, ValueError):
            pass
    return float(value)
