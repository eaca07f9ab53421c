"""Where the meaning of CF attributes is ours: what xarray has no answer to, or another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from xarray.backends.zarr import FillValueCoder

from icefloe.cf.decoding import coding_of, decoded_attributes
from icefloe.cf.encoding import encode
from icefloe.errors import InvalidInputError


def decode(values: Any, **attributes: Any) -> Any:
    return coding_of(values.dtype, attributes).decode(values)


def test_signs_are_turned_before_all_else() -> None:
    values = np.array([-1, -2, 1, 2], "i1")
    found = decode(values, _Unsigned="true")
    assert found.dtype == np.uint8
    assert found.tolist() == [255, 254, 1, 2]
    found = decode(values, _Unsigned="true", _FillValue=-2, scale_factor=0.5)
    np.testing.assert_array_equal(found, [127.5, np.nan, 0.5, 1.0])
    # Of 64 bits, where xarray loses the sign of times.
    assert decode(np.array([-1]), _Unsigned="true").tolist() == [2**64 - 1]


def test_fill_values_of_the_other_sign_are_understood() -> None:
    found = decode(np.array([-1, 5], "i1"), _Unsigned="true", _FillValue=255)
    np.testing.assert_array_equal(found, [np.nan, 5])
    found = decode(np.array([255, 5], "u1"), _Unsigned="false", _FillValue=-1)
    np.testing.assert_array_equal(found, [np.nan, 5])


def test_large_integers_are_compared_exactly() -> None:
    found = decode(np.array([2**62, 2**62 + 1]), _FillValue=2**62)
    np.testing.assert_array_equal(found, [np.nan, float(2**62)])


def test_fill_values_that_no_element_can_have_mask_nothing() -> None:
    found = decode(np.array([0, 1], "i2"), missing_value=0.5)
    assert found.dtype == np.float32
    assert found.tolist() == [0, 1]
    assert decode(np.array([np.inf], "f4"), _FillValue=1e300).tolist() == [np.inf]


def test_fill_values_are_rounded_as_the_values_were() -> None:
    # As a double, which is what JSON has; xarray finds no such value among float32.
    assert np.isnan(decode(np.array([1e20], "f4"), missing_value=1e20)).all()
    held = FillValueCoder.encode(np.float32(1e20), np.dtype("f4"))  # type: ignore[arg-type]
    assert np.isnan(decode(np.array([1e20], "f4"), _FillValue=held)).all()


@pytest.mark.parametrize("scale", [[0.5], "0.5", np.array([0.5])])
def test_lists_of_one_number_and_numbers_in_text_are_numbers(scale: Any) -> None:
    found = decode(np.array([1, 2], "i2"), scale_factor=scale)
    assert found.dtype == np.float64
    assert found.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("scale", ["much", [1.0, 2.0], True, {}])
def test_other_scales_are_refused(scale: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a number as attribute 'scale_factor'"):
        coding_of(np.dtype("i2"), {"scale_factor": scale})


def test_whole_scale_factors_beside_fill_values_give_floats() -> None:
    found = decode(np.array([1, 2], "i2"), scale_factor=3, _FillValue=2)
    np.testing.assert_array_equal(found, [3.0, np.nan])
    found = decode(np.array([1, 2], "i2"), scale_factor=3)
    assert found.dtype == np.int64
    assert found.tolist() == [3, 6]


@pytest.mark.parametrize(
    "units",
    ["fortnights since 2000-01-01", "days since 2000-14-01", "days since 2001-02-29", "days since"],
)
@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day", "unheard-of"])
def test_units_that_make_no_sense_leave_numbers(units: str, calendar: str) -> None:
    if (units, calendar) == ("days since 2001-02-29", "360_day"):
        return  # where February has 30 days
    attributes = {"units": units, "calendar": calendar}
    assert decode(np.array([1, 2]), **attributes).tolist() == [1, 2]
    assert decoded_attributes(attributes, times=True) == attributes


def test_missing_times_of_cftime_are_none() -> None:
    found = decode(np.array([1.0, np.nan]), units="days since 2000-01-01", calendar="noleap")
    assert found[0].isoformat() == "2000-01-02T00:00:00"
    assert found[1] is None
    with pytest.raises(InvalidInputError, match="infinite"):
        decode(np.array([1.0, np.inf]), units="days since 2000-01-01", calendar="noleap")
    with pytest.raises(InvalidInputError, match="infinite"):
        decode(np.array([1.0, np.inf]), units="days since 2000-01-01")


def test_numbers_of_hours_are_masked_by_nan() -> None:
    found = decode(np.array([1, 2], "i4"), units="hours", _FillValue=2)
    np.testing.assert_array_equal(found, [1.0, np.nan])


def test_text_and_what_is_missing_of_it() -> None:
    found = decode(np.array(["a", "", "b"], np.dtypes.StringDType()), missing_value="")
    assert found.dtype == object
    assert found[0] == "a"
    assert np.isnan(found[1])
    found = decode(np.array(["é".encode(), b""]), _Encoding="utf-8")
    assert found.tolist() == ["é", ""]
    with pytest.raises(InvalidInputError, match="expected text in ascii"):
        decode(np.array(["é".encode()]), _Encoding="ascii")
    with pytest.raises(InvalidInputError, match="text encoding"):
        coding_of(np.dtype("S3"), {"_Encoding": "none"})
    assert decode(np.array([b"ab"])).tolist() == [b"ab"]


def test_booleans_are_not_masked() -> None:
    assert decode(np.array([True, False]), _FillValue=False).tolist() == [True, False]
    assert decode(np.array([1, 0], "i1"), dtype="bool").tolist() == [True, False]


def test_characters_are_joined_by_xarray_only() -> None:
    values = np.array([[b"a", b"b"]])
    variable = xr.Variable(("x", "n"), values)
    assert decode(values).shape == (1, 2)
    assert xr.conventions.decode_cf_variable("v", variable).shape == (1,)


def test_missing_values_fit_whatever_the_offset() -> None:
    coding = coding_of(np.dtype("u1"), {"add_offset": 10.0, "_FillValue": 255})
    stored = encode("v", np.array([12.0, np.nan]), None, coding)
    assert stored.tolist() == [2, 255]
    with pytest.raises(InvalidInputError, match="means missing"):
        encode("v", np.array([265.0]), None, coding)
    with pytest.raises(InvalidInputError, match="do not fit"):
        encode("v", np.array([5.0]), None, coding)
