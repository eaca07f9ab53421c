"""Decodes stored values to Arrow columns, by the rules of `icefloe.cf`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.cf.decoding import Coding, coding_of, decode_texts
from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from icefloe.cf.calendars import TimeUnits

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


class Reading(Record, frozen=True):
    """How to decode values."""

    decode: bool = True
    """Whether to apply CF attributes."""
    nan_is_null: bool = True
    zoned_times: bool = False
    """Whether times are Spark's `timestamp` (UTC) instead of `timestamp_ntz`."""


AS_CF = Reading()
"""The default: CF attributes apply, and NaN is null."""


class Decoding(Coding, frozen=True):
    """How the stored values of an array become an Arrow column.

    It differs from xarray where Arrow has better types: integers with missing values stay integers
    with nulls; times are rounded to microseconds; times of calendars that timestamps do not have
    are ISO text.
    """

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
        return self._plain_type(self.viewed_dtype)

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
        """Whether decoding keeps, or reverses, the order of values."""
        plain = self.dtype != "string" and np.dtype(self.dtype).kind in "biufM"
        # Whole numbers times whole numbers may wrap, and -1 is as true as 1.
        plain = plain and not self.is_bool and np.dtype(self.float_type or "f8").kind == "f"
        return plain and self.duration is None and self.arrow_type != pa.string()

    def column(self, values: Values) -> pa.Array:
        """The column of stored values, in row-major order."""
        flat = np.ascontiguousarray(values).reshape(-1)
        mask = self.null_mask(flat)
        flat = self.scaled(self.viewed(flat))
        if self.times is not None:
            return self._decode_times(flat, mask, self.times)
        if self.duration is not None:
            return self._decode_spans(flat, mask, self.duration)
        return self._column(flat, mask)

    def null_mask(self, flat: Values) -> Mask:
        """Where stored values become nulls; None if nowhere."""
        if self.dtype != "string" and flat.dtype.kind == "M":
            return np.isnat(flat)
        mask = self.missing_mask(flat)
        if self.reading.nan_is_null and flat.dtype.kind == "f":
            nans = np.isnan(flat)
            mask = nans if mask is None else mask | nans
        return mask if mask is not None and mask.any() else None

    def _decode_times(self, flat: Values, mask: Mask, times: TimeUnits) -> pa.Array:
        if mask is not None:
            flat = np.where(mask, flat.dtype.type(0), flat)
        moments, none = times.decode(flat)
        if none is not None:
            mask = none if mask is None else mask | none
        if not times.is_real:
            return pa.array(times.texts(moments), pa.string(), mask=mask)
        return pa.array(moments.view("M8[us]"), pa.timestamp("us"), mask=mask).cast(self._timestamp)

    def _decode_spans(self, flat: Values, mask: Mask, unit: int) -> pa.Array:
        if mask is not None:
            flat = np.where(mask, flat.dtype.type(0), flat)
        furthest = max(abs(float(flat.min())), abs(float(flat.max()))) if flat.size else 0.0
        if not furthest * max(1, unit / 1000) < 9.2e18:
            raise InvalidInputError(
                f"time spans of up to {furthest} units are beyond what an interval of microseconds "
                "holds; read the variable undecoded with option decode=false"
            )
        if flat.dtype.kind == "f":
            spans = np.rint(flat * (unit / 1000)).astype(np.int64)
        elif unit % 1000:
            spans = flat.astype(np.int64) * unit // 1000
        else:
            spans = flat.astype(np.int64) * (unit // 1000)
        return pa.array(spans.view("m8[us]"), mask=mask)

    def _column(self, flat: Values, mask: Mask) -> pa.Array:
        arrow_type = self.arrow_type
        if self.dtype == "string" or flat.dtype.kind in "OTU":
            return _texts(flat, mask)
        match flat.dtype.kind:
            case "S":
                return _bytes(flat, mask, self.text_encoding)
            case "c":
                parts = [
                    pa.array(np.ascontiguousarray(part), arrow_type.field(0).type)
                    for part in (flat.real, flat.imag)
                ]
                none = None if mask is None else pa.array(mask)
                return pa.StructArray.from_arrays(parts, fields=list(arrow_type), mask=none)
            case "M" | "m":
                unit = flat.astype(f"{flat.dtype.kind}8[us]")
                return pa.array(unit, mask=mask).cast(arrow_type)
        if self.is_bool:
            flat = flat.astype(np.bool_)
        if flat.dtype.byteorder == ">":
            flat = flat.astype(flat.dtype.newbyteorder("="))
        column = pa.array(flat, mask=mask)
        return column if column.type == arrow_type else column.cast(arrow_type)


def _texts(flat: Values, mask: Mask) -> pa.Array:
    texts = flat.astype(object)
    return pa.array(texts, pa.string(), mask=mask, from_pandas=True)


def _bytes(flat: Values, mask: Mask, encoding: str | None) -> pa.Array:
    if encoding is None:
        return pa.array(flat.astype(object), pa.binary(), mask=mask)
    return pa.array(decode_texts(flat, encoding), pa.string(), mask=mask)


def decoding_of(
    dtype: np.dtype[Any], attributes: Mapping[str, Any], reading: Reading = AS_CF
) -> Decoding:
    """The decoding of an array, by its type and attributes."""
    coding = coding_of(dtype, attributes if reading.decode else {})
    return Decoding(**msgspec.structs.asdict(coding), reading=reading)
