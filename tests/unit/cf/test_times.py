"""Times in numbers of units: as xarray writes and reads them."""

from __future__ import annotations

import warnings
from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from xarray.conventions import encode_cf_variable

from icefloe.cf.calendars import parse_units
from icefloe.cf.decoding import coding_of
from icefloe.cf.times import encode_new, in_units

STEPS = [1, 1000, 10**6, 10**9, 60 * 10**9, 3600 * 10**9, 86400 * 10**9]


@given(
    st.sampled_from(["M8", "m8"]),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from(STEPS),
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=4),
    st.integers(-(10**17), 10**17),
)
def test_new_times_are_written_as_xarray_writes_them(
    kind: str, resolution: str, step: int, counts: list[int], start: int
) -> None:
    nanoseconds = np.array(counts) * step + (start if kind == "M8" else 0)
    values = nanoseconds.astype(f"{kind}[ns]").astype(f"{kind}[{resolution}]")
    stored, attributes = encode_new(values)
    expected = by_xarray(values)
    assert attributes == expected.attrs
    assert stored.dtype == expected.dtype
    np.testing.assert_array_equal(stored, expected.values)
    again = coding_of(stored.dtype, attributes).decode(stored)
    np.testing.assert_array_equal(again, values)


def by_xarray(values: Any) -> xr.Variable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return encode_cf_variable(xr.Variable(("x",), values), name="x")


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_new_times_of_other_calendars(calendar: str) -> None:
    numbers = [0, 6, 12, 48]
    values = cftime.num2date(numbers, "hours since 0850-02-28", calendar)
    stored, attributes = encode_new(np.asarray(values))
    expected = by_xarray(values)
    assert attributes == expected.attrs
    np.testing.assert_array_equal(stored, expected.values)


def test_times_that_are_none() -> None:
    values = np.array(["2000-01-01", "NaT", "2000-01-03"], "M8[ns]")
    stored, attributes = encode_new(values)
    np.testing.assert_array_equal(coding_of(stored.dtype, attributes).decode(stored), values)
    spans = np.array([1, "NaT"], "m8[s]")
    stored, attributes = encode_new(spans)
    np.testing.assert_array_equal(coding_of(stored.dtype, attributes).decode(stored), spans)


def test_units_are_changed_exactly_where_numbers_are_whole() -> None:
    hours, days = parse_units("hours since 2000-01-02"), parse_units("days since 2000-01-01")
    assert hours is not None
    assert days is not None
    assert in_units(np.array([0, 24]), hours, days).tolist() == [1, 2]
    assert in_units(np.array([12]), hours, days).tolist() == [1.5]
    assert in_units(np.array([1.5]), days, hours).tolist() == [12.0]
    far = parse_units("nanoseconds since 2000-01-01")
    assert far is not None
    assert in_units(np.array([2**60 + 1]), far, far).tolist() == [2**60 + 1]
    # More nanoseconds than 64 bits hold.
    assert in_units(np.array([10**6]), days, far).tolist() == [86400e9 * 10**6]
