"""CF attributes mean what xarray takes them for, in any combination, types included."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from xarray.backends.zarr import FillValueCoder
from xarray.conventions import decode_cf_variable, encode_cf_variable

from icefloe.cf.calendars import DURATION_UNITS
from icefloe.cf.decoding import coding_of, decoded_attributes
from icefloe.cf.encoding import encode
from icefloe.errors import InvalidInputError
from icefloe.tables.decoding import decoding_of

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]
CALENDARS = [
    *("standard", "gregorian", "proleptic_gregorian", "noleap", "365_day", "360_day"),
    *("julian", "all_leap", "366_day"),
]
UNITS = [
    *("K", "days", "seconds", "nanoseconds", "hours"),
    *("days since 2000-01-01", "hours since 1999-12-31T06:30:00", "seconds since 1970-01-01 00:00"),
    *("minutes since 1850-06-01", "milliseconds since 2000-01-01", "microseconds since 2001-02-03"),
    *("nanoseconds since 2020-01-01", "days since 0850-01-01", "days since 1582-10-20"),
]
SCALES: list[Any] = [0.5, 0.1, 2.0, np.float32(0.5), np.float64(0.25), np.float32(0.1)]


def stored_numbers(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    """Small ones, those at the ends of the type, and NaN."""
    if dtype.kind == "f":
        # xarray does not find 1e20 among rounded values.
        large = [1e20] if dtype.itemsize > 4 else []
        return st.sampled_from([0.0, 1.0, -1.0, 2.5, 127.0, -9.0, 100.25, float("nan"), *large])
    info = np.iinfo(dtype)
    # Beyond 2**53 xarray takes neighbours of a fill value for missing too.
    ends = [info.min, info.max] if dtype.itemsize < 8 else []
    near = [n for n in (0, 1, 2, 5, 100, 127, -1, -2, -9, -128) if info.min <= n <= info.max]
    return st.sampled_from(near + ends)


@st.composite
def variables(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Stored values, and attributes that say what they mean."""
    order = draw(st.sampled_from("<>"))
    dtype = np.dtype(draw(st.sampled_from(INTEGERS + FLOATS))).newbyteorder(order)  # type: ignore[arg-type]
    numbers = stored_numbers(dtype)
    shape = draw(st.sampled_from([(4,), (2, 3), (1,)]))
    size = int(np.prod(shape))
    values = np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype).reshape(shape)
    attributes: dict[str, Any] = {}

    def maybe(name: str, choices: st.SearchStrategy[Any], often: int = 2) -> None:
        if draw(st.integers(0, often)) == 0:
            attributes[name] = draw(choices)

    if dtype.itemsize < 8:
        maybe("_Unsigned", st.sampled_from(["true", "false", "True"]))
    maybe("scale_factor", st.sampled_from(SCALES))
    maybe("add_offset", st.sampled_from([10.0, np.float32(2.0), 100.5]))
    fills = st.one_of(numbers, st.sampled_from([7, -3, 255, 1e20]))
    maybe("_FillValue", numbers.map(lambda fill: dtype.newbyteorder("=").type(fill)), 1)
    maybe("missing_value", st.one_of(fills, st.lists(fills, min_size=1, max_size=3)))
    maybe("units", st.sampled_from(UNITS), 1)
    maybe("calendar", st.sampled_from(CALENDARS))
    maybe("dtype", st.sampled_from(["bool", "timedelta64[ns]", "timedelta64[s]"]), 3)
    if "since" in attributes.get("units", "") and attributes.get("dtype") == "bool":
        del attributes["dtype"]
    maybe("valid_min", st.just(1))
    maybe("valid_range", st.just([0, 5]))
    attributes["long_name"] = "something"
    return values, attributes


@given(variables(), st.booleans())
def test_decoding_is_that_of_xarray(
    drawn: tuple[np.ndarray[Any, Any], dict[str, Any]], times: bool
) -> None:
    values, attributes = drawn
    try:
        expected = by_xarray(values, attributes, times=times)
    except Exception:  # noqa: BLE001 (whatever xarray does not understand)
        with suppress(InvalidInputError):
            decode(values, attributes, times=times)
        return
    if times and differs(values, attributes):
        return
    before = values.copy()
    found = decode(values, attributes, times=times)
    assert found.dtype == expected.dtype
    assert_same(found, expected.values)
    assert decoded_attributes(attributes, times=times) == expected.attrs
    np.testing.assert_array_equal(values, before)
    if not times:
        assert coding_of(values.dtype, attributes).number_type == expected.dtype


def differs(values: Any, attributes: dict[str, Any]) -> bool:
    """Whether xarray has no sign for missing values here, as `icefloe.cf.decoding` says."""
    coding = coding_of(values.dtype, attributes)
    is_number = coding.times is None and coding.duration is None
    if is_number and attributes.get("units") in DURATION_UNITS:
        return coding.is_masked and coding.float_type is None and values.dtype.kind in "iu"
    by_cftime = coding.times is not None and coding.decode(values).dtype.kind == "O"
    numbers = coding.decode_numbers(values)
    return by_cftime and (numbers.dtype.kind == "f") and bool(np.isnan(numbers).any())


def decode(values: Any, attributes: dict[str, Any], *, times: bool = True) -> Any:
    coding = coding_of(values.dtype, attributes)
    return coding.decode(values) if times else coding.decode_numbers(values)


def by_xarray(values: Any, attributes: dict[str, Any], *, times: bool = True) -> xr.Variable:
    dims = [f"d{axis}" for axis in range(values.ndim)]
    # In native byte order: xarray turns the bytes of fill values around beside `_Unsigned`.
    native = values.astype(values.dtype.newbyteorder("="))
    variable = xr.Variable(dims, native, dict(attributes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = (
            {} if times else {"decode_times": False, "decode_timedelta": False}
        )
        return decode_cf_variable("v", variable, **options).load()


def assert_same(found: Any, expected: Any) -> None:
    if found.dtype.kind == "O":
        assert found.tolist() == expected.tolist()
    else:
        np.testing.assert_array_equal(found, expected)


@given(variables())
def test_encoding_is_that_of_xarray(
    drawn: tuple[np.ndarray[Any, Any], dict[str, Any]],
) -> None:
    values, attributes = drawn
    try:
        decoded = by_xarray(values, attributes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = encode_cf_variable(decoded, name="v")
        is_kept = again.dtype == values.dtype.newbyteorder("=")
        is_kept &= np.array_equal(again.values, values, equal_nan=values.dtype.kind == "f")
    except Exception:  # noqa: BLE001 (whatever xarray does not understand)
        return
    if not is_kept or decoded.dtype.kind in "Ob" or differs(values, attributes):
        return
    stored = encode("v", decoded.values, None, coding_of(values.dtype, attributes))
    assert stored.dtype == values.dtype
    np.testing.assert_array_equal(stored, values)


@given(variables())
def test_attributes_as_zarr_holds_them_mean_the_same(
    drawn: tuple[np.ndarray[Any, Any], dict[str, Any]],
) -> None:
    values, attributes = drawn
    held = {name: getattr(value, "item", lambda v=value: v)() for name, value in attributes.items()}
    plain = dict(held)
    if "_FillValue" in held:
        held["_FillValue"] = FillValueCoder.encode(held["_FillValue"], values.dtype)
        plain["_FillValue"] = FillValueCoder.decode(held["_FillValue"], values.dtype)
    try:
        expected = by_xarray(values, plain)
    except Exception:  # noqa: BLE001 (whatever xarray does not understand)
        return
    if differs(values, held):
        return
    found = decode(values, held)
    assert found.dtype == expected.dtype
    assert_same(found, expected.values)


@given(variables())
def test_columns_of_tables_have_the_same_values(
    drawn: tuple[np.ndarray[Any, Any], dict[str, Any]],
) -> None:
    values, attributes = drawn
    try:
        expected = by_xarray(values, attributes)
    except Exception:  # noqa: BLE001 (whatever xarray does not understand)
        return
    decoding = decoding_of(values.dtype, attributes)
    try:
        column = decoding.column(values)
    except InvalidInputError:
        # Times that 64 bits do not hold; cftime has them, or something in their place.
        assert expected.dtype.kind == "O"
        return
    assert column.type == decoding.arrow_type
    if differs(values, attributes) or expected.dtype.kind in "Ob":
        return
    flat = expected.values.reshape(-1)
    if expected.dtype.kind in "mM":
        # Microseconds, the nearest ones; xarray cuts nanoseconds off.
        unit = f"{expected.dtype.kind}8[us]"
        found = column.to_numpy(zero_copy_only=False).astype(unit)
        np.testing.assert_array_equal(np.isnat(found), np.isnat(flat))
        there = ~np.isnat(flat)
        apart = (found[there] - flat[there].astype(unit)).astype("i8")
        assert (np.abs(apart) <= 1).all()
        return
    if expected.dtype == np.float64 and decoding.float_type is not None:
        assert column.type == pa.float64()
    found = np.array([np.nan if one is None else float(one) for one in column.to_pylist()])
    np.testing.assert_array_equal(found, flat.astype("f8"))


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(10**320, 10**330),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(
            ["true", "bool", "timedelta64[x]", "days since 2000-14-01", "utf-8", "a\0"]
        ),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=3,
)
NAMES = ["_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "units"]


@given(
    st.sampled_from([*INTEGERS, *FLOATS, "c16", "S2", "U2", "?", "M8[s]"]),
    st.dictionaries(st.sampled_from([*NAMES, "calendar", "dtype", "_Encoding"]), JSON),
    st.booleans(),
)
def test_attributes_that_make_no_sense_are_left_or_refused(
    dtype: str, attributes: dict[str, Any], times: bool
) -> None:
    values = np.zeros(2, dtype)
    with suppress(InvalidInputError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert decode(values, attributes, times=times).shape == (2,)
    decoded_attributes(attributes, times=times)
