"""Decoding as xarray does it."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from icefloe.spark import cf


@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("i2", {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}),
        ("i2", {"scale_factor": 0.5}),
        ("i4", {"missing_value": 3}),
        ("u1", {"_FillValue": 255}),
        ("f4", {"_FillValue": 3.0}),
        ("f8", {}),
        ("i4", {"units": "K"}),
    ],
)
def test_values_are_decoded(dtype, attributes):
    values = np.array([[0, 3], [7, 255 if dtype == "u1" else -1]]).astype(dtype)
    variable = xr.Variable(("y", "x"), values, attributes)
    expected = xr.conventions.decode_cf_variable("v", variable)
    found = cf.decoded(values, attributes)
    np.testing.assert_allclose(found, expected.values)
    assert cf.decoded_dtype(values.dtype, attributes) == found.dtype
    assert cf.without_encoding({**attributes, "title": 1}).keys() <= {"title", "units"}


def test_fill_values_of_floats_as_xarray_stores_them():
    from xarray.backends.zarr import FillValueCoder

    stored = FillValueCoder.encode(-9.0, np.dtype("f4"))
    found = cf.decoded(np.array([1, -9], "f4"), {"_FillValue": stored})
    np.testing.assert_array_equal(found, [1, np.nan])
