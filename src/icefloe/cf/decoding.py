"""Decodes stored values by CF attributes: missing values, packing, signs, times.

Results and their data types are those of xarray, with these deliberate differences:

- Integers are compared with fill values exactly. xarray compares them as floats, and masks all
  values that round to the fill value.
- A fill value with more digits than the stored floats have (1e20 of float32) is rounded as the
  values were when they were written. xarray does not match it, and shows 1e20.
- Fill values of the other sign with `_Unsigned`, attributes that are lists of one number or
  numbers as text, and integer scale factors with fill values are accepted; xarray raises, or makes
  arrays of objects.
- Units of time that cannot be parsed leave numbers as they are; xarray raises.
- Missing times among cftime objects are None; xarray raises, or shows the reference time.
- Numbers with units such as `hours` that are not marked as time spans are masked by NaN; xarray
  shows the smallest integer.
- Byte order makes no difference; with `_Unsigned`, xarray swaps the bytes of fill values.
- Times never become booleans, whatever other attributes say.
- Arrays of booleans are not masked; xarray makes arrays of objects.
- Characters are not joined to strings, which would need the whole array.
"""

from __future__ import annotations

import base64
import binascii
import struct
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.cf.calendars import DURATION_UNITS, TimeUnits, parse_units
from icefloe.cf.times import NO_TIME, decode_durations, decode_times
from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    Values = npt.NDArray[Any]
    Mask = npt.NDArray[np.bool_] | None

_MISSING = ("_FillValue", "missing_value")
_PACKING = ("scale_factor", "add_offset")
STORAGE_ATTRIBUTES = frozenset({*_MISSING, *_PACKING, "_Unsigned"})
"""Attributes about how numbers are stored, which decoded values do not have."""
_FLOAT_BYTES = 8


class Coding(Record, frozen=True):
    """How the values of one array are stored, by its data type and CF attributes."""

    dtype: str
    """The stored data type in numpy's notation; `string` for text of variable length."""
    missing: tuple[Any, ...] = ()
    """Stored values that mean missing."""
    unsigned: str | None = None
    """The data type of the same size with the other sign that `_Unsigned` asks for."""
    scale: Any = None
    offset: Any = None
    float_type: str | None = None
    """The data type of scaled values: a float, or an integer where xarray has one."""
    is_masked: bool = False
    """Whether attributes define missing values, even if the stored type cannot hold them."""
    times: TimeUnits | None = None
    duration: int | None = None
    """Nanoseconds of a unit, for time spans."""
    duration_type: str | None = None
    """The data type that xarray decodes time spans to."""
    is_bool: bool = False
    text_encoding: str | None = None

    @property
    def viewed_dtype(self) -> np.dtype[Any]:
        """The stored data type, with the sign that `_Unsigned` asks for."""
        return np.dtype(self.unsigned or self.dtype)

    def missing_mask(self, stored: Values) -> Mask:
        """Return where stored values are missing; None if nowhere."""
        mask: Mask = None
        for value in self.missing:
            same = np.isnan(stored) if value != value else stored == value  # noqa: PLR0124 (NaN)
            mask = same if mask is None else mask | same
        return mask if mask is not None and np.any(mask) else None

    def viewed(self, stored: Values) -> Values:
        """Reinterpret stored numbers with the sign that `_Unsigned` asks for."""
        return stored if self.unsigned is None else stored.view(self.unsigned)

    def scaled(self, viewed: Values) -> Values:
        """Multiply by the scale factor and add the offset."""
        if self.float_type is None:
            return viewed
        numbers = viewed.astype(self.float_type)
        if self.scale is not None:
            numbers *= self.scale
        if self.offset is not None:
            numbers += self.offset
        return numbers

    # --- as xarray has them

    @property
    def number_type(self) -> np.dtype[Any]:
        """The data type of decoded numbers that are not times."""
        if self.is_bool:
            return np.dtype(np.bool_)
        if self.float_type is not None:
            return np.dtype(self.float_type).newbyteorder("=")
        plain = self.viewed_dtype.newbyteorder("=")
        return _with_nan(plain) if self.is_masked else plain

    def decode_numbers(self, stored: Values) -> Values:
        """Decode stored numbers, with NaN for missing ones; times stay numbers."""
        if self.dtype == "string" or np.dtype(self.dtype).kind not in "iufc":
            return stored
        stored = stored.astype(self.dtype, copy=False)
        mask = self.missing_mask(stored)
        numbers = self.scaled(self.viewed(stored))
        if self.is_bool:
            # Missing values are True, as in xarray: booleans have no NaN.
            return numbers.astype(np.bool_) if mask is None else numbers.astype(np.bool_) | mask
        numbers = numbers.astype(self.number_type, copy=mask is not None and numbers is stored)
        if mask is not None and numbers.dtype.kind in "fc":
            numbers[mask] = np.nan
        return numbers

    def decode(self, stored: Values) -> Values:
        """Decode stored values, with times as `datetime64`, `timedelta64` or cftime objects."""
        if self.dtype == "string" or np.dtype(self.dtype).kind in "SU":
            return _texts(stored, self)
        if self.times is None and self.duration is None:
            return self.decode_numbers(stored)
        stored = stored.astype(self.dtype, copy=False)
        mask = self.missing_mask(stored)
        plain = self.scaled(self.viewed(stored))
        if self.times is not None:
            return decode_times(plain, mask, self.times)
        assert self.duration is not None
        return decode_durations(plain, mask, self.duration, str(self.duration_type))


def coding_of(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> Coding:
    """Find out how the values of an array are stored.

    >>> coding = coding_of(np.dtype("i2"), {"scale_factor": 0.5, "_FillValue": -1})
    >>> coding.decode(np.array([1, -1, 4], "i2"))
    array([0.5, nan, 2. ])
    """
    fills = list(_fills(attributes, dtype))
    if dtype.kind in "OTU":
        texts = tuple(dict.fromkeys(fill for _, fill in fills if isinstance(fill, str)))
        name = dtype.str if dtype.kind == "U" else "string"
        return Coding(name, texts, is_masked=bool(texts))
    if dtype.kind == "S":
        return Coding(dtype.str, text_encoding=_text_encoding(attributes))
    if dtype.kind not in "iufc":
        return Coding(dtype.str)
    unsigned = _other_sign(dtype, attributes)
    viewed = np.dtype(unsigned or dtype)
    # Integers cannot be NaN, and floats that are NaN need no mask.
    numbers = [(name, fill) for name, fill in fills if dtype.kind in "fc" or fill == fill]  # noqa: PLR0124
    is_masked = any(fill == fill for _, fill in numbers)  # noqa: PLR0124
    scale, offset = (_number(attributes, name) for name in _PACKING)
    if dtype.kind == "c":
        scale = offset = None
    is_scaled = scale is not None or offset is not None
    stored = (_stored(fill, name, dtype, viewed) for name, fill in numbers)
    missing = _distinct(fill for fill in stored if fill is not None)
    times, duration = _times(dtype, attributes), _duration(dtype, attributes)
    is_time = times is not None or duration is not None
    if is_time and not is_scaled and dtype.str[1:] == "i8" and unsigned is None:
        missing = _distinct((*missing, NO_TIME))
    return Coding(
        dtype.str,
        missing,
        unsigned=unsigned,
        scale=scale,
        offset=offset,
        float_type=_float_type(viewed, scale, offset, numbers) if is_scaled else None,
        is_masked=is_masked,
        times=times,
        duration=duration,
        duration_type=None if duration is None else str(attributes["dtype"]),
        is_bool=attributes.get("dtype") == "bool",
    )


def decoded_attributes(attributes: Mapping[str, Any], *, times: bool) -> dict[str, Any]:
    """Return the attributes that still apply to decoded values.

    Args:
        attributes: The attributes of the stored array.
        times: Whether times and time spans were decoded too, or are still numbers.
    """
    gone = set(STORAGE_ATTRIBUTES)
    kind = str(attributes.get("dtype", ""))
    if kind == "bool":
        gone.add("dtype")
    if times and parse_units(attributes.get("units"), attributes.get("calendar")) is not None:
        gone |= {"units", "calendar"}
    elif (
        times and kind.startswith("timedelta64") and str(attributes.get("units")) in DURATION_UNITS
    ):
        gone |= {"units", "dtype"}
    return {name: value for name, value in attributes.items() if name not in gone}


# --- attributes


def _fills(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the attributes that define missing values."""
    for name in _MISSING:
        value = attributes.get(name)
        if value is None:
            continue
        several = value if isinstance(value, list) else np.ravel(value).tolist()
        if dtype.kind in "OTSU":
            yield from ((name, one) for one in several)
            continue
        numbers = [number for one in several if (number := _fill_number(one, dtype)) is not None]
        if dtype.kind == "c" and isinstance(value, list) and len(numbers) == 2:
            numbers = [complex(*numbers)]  # as xarray writes them
        yield from ((name, number) for number in numbers)


def _fill_number(value: Any, dtype: np.dtype[Any]) -> Any:
    """Read a fill value as a number; None if it is not one."""
    if isinstance(value, str):
        try:
            value = float_of(value) if dtype.kind in "fc" else int(value)
        except ValueError:
            return None
    return value if isinstance(value, complex) or _is_number(value) else None


def _is_number(value: Any) -> bool:
    """Whether a value is a real number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def float_of(value: Any) -> float:
    """Read a number, a word such as NaN, or the base64 of eight bytes (as xarray writes it)."""
    if isinstance(value, str):
        try:
            raw = base64.b64decode(value, validate=True)
            if len(raw) == _FLOAT_BYTES:
                return float(struct.unpack("<d", raw)[0])
        except (binascii.Error, ValueError):
            pass
    return float(value)


def float_attribute(value: float) -> str:
    """Write a fill value of floats as xarray does in JSON."""
    return base64.standard_b64encode(struct.pack("<d", value)).decode()


def _stored(fill: Any, name: str, dtype: np.dtype[Any], viewed: np.dtype[Any]) -> Any:
    """Return a fill value as the array stores it; None if it cannot."""
    if dtype.kind in "fc":
        with np.errstate(over="ignore"):
            as_stored = dtype.type(fill).item()
        # Rounded as the values themselves were, but not to infinity.
        return as_stored if np.isinf(as_stored) == np.isinf(fill) else None
    if isinstance(fill, complex) or not isfinite(fill) or fill != int(fill):
        return None
    number = int(fill)
    own, other = np.iinfo(dtype), np.iinfo(viewed)
    # By the conventions `_FillValue` has the stored type, and `missing_value` the decoded one.
    if name == "_FillValue" and own.min <= number <= own.max:
        return number
    if not other.min <= number <= other.max:
        return None
    return int(np.array(number, viewed).view(dtype))


def _distinct(values: Any) -> tuple[Any, ...]:
    distinct: list[Any] = []
    for value in values:
        if not any(value == other or (value != value and other != other) for other in distinct):  # noqa: PLR0124
            distinct.append(value)
    return tuple(distinct)


def _number(attributes: Mapping[str, Any], name: str) -> Any:
    """Read a scale factor or offset, with its numpy type if it has one; None if it is not set."""
    value = attributes.get(name)
    if value is None:
        return None
    if isinstance(value, list | np.ndarray) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if not _is_number(value):
        raise InvalidInputError(
            f"expected a number as attribute {name!r}, found {attributes[name]!r}; correct the "
            "attribute, or read stored values: decode=false"
        )
    return value


def _float_type(
    viewed: np.dtype[Any], scale: Any, offset: Any, fills: list[tuple[str, Any]]
) -> str:
    """Return the data type of scaled values, which is that of xarray."""
    if viewed.kind == "f" and fills and all(fill != fill for _, fill in fills):  # noqa: PLR0124
        # NaN masks nothing, but a fill value makes xarray keep the stored type.
        return viewed.newbyteorder("=").str
    types = [np.dtype(type(one)) for one in (scale, offset) if one is not None]
    if len(types) == 2:
        is_plain = types[0] == types[1] and types[0] in (np.float32, np.float64)
        is_wide = viewed.kind in "iu" and viewed.itemsize == 4
        chosen = types[0] if is_plain and not is_wide else np.dtype(np.float64)
    else:
        chosen = types[0] if offset is None else np.dtype(np.float64)
    if chosen.kind != "f" and fills:
        chosen = np.dtype(np.float64)
    return chosen.str


def _with_nan(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a data type that holds the same numbers and NaN, as xarray chooses it."""
    if dtype.kind in "fc":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def _other_sign(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> str | None:
    flag = attributes.get("_Unsigned")
    if flag == "true" and dtype.kind == "i":
        return dtype.str.replace("i", "u")
    if flag == "false" and dtype.kind == "u":
        return dtype.str.replace("u", "i")
    return None


def _times(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> TimeUnits | None:
    if dtype.kind not in "iuf":
        return None
    return parse_units(attributes.get("units"), attributes.get("calendar"))


def _duration(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> int | None:
    """Return the nanoseconds of a unit, if xarray wrote the array from time spans."""
    if dtype.kind not in "iuf" or not str(attributes.get("dtype", "")).startswith("timedelta64"):
        return None
    return DURATION_UNITS.get(str(attributes.get("units", "")))


def _text_encoding(attributes: Mapping[str, Any]) -> str | None:
    """Return the encoding of bytes that are text; raise InvalidInputError if it is unknown."""
    name = attributes.get("_Encoding")
    if name is None:
        return None
    try:
        "".encode(str(name))
    except (LookupError, ValueError):
        raise InvalidInputError(
            f"expected the name of a text encoding as attribute '_Encoding', found {name!r}"
        ) from None
    return str(name)


def _texts(stored: Values, coding: Coding) -> Values:
    """Decode text to objects, as xarray does, with NaN for missing; other bytes stay."""
    if coding.text_encoding is not None:
        return decode_texts(stored, coding.text_encoding)
    if coding.dtype != "string" and not coding.is_masked:
        return stored
    texts = stored.astype(object)
    mask = coding.missing_mask(texts)
    if mask is not None:
        texts[mask] = np.nan
    return texts


def decode_texts(stored: Values, encoding: str) -> Values:
    """Decode bytes to text; raise InvalidInputError for invalid ones."""
    flat = stored.reshape(-1).tolist()
    texts = np.empty(len(flat), dtype=object)
    try:
        texts[:] = [one.decode(encoding) for one in flat]
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"expected text in {encoding}, as attribute '_Encoding' says, found {error.object!r}; "
            "read stored values: decode=false"
        ) from None
    return texts.reshape(stored.shape)
