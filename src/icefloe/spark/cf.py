"""Values as users mean them: missing ones as NaN, packed ones unpacked; as CF attributes say."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_MISSING = ("_FillValue", "missing_value")
_PACKING = ("scale_factor", "add_offset")
ENCODING = (*_MISSING, *_PACKING, "_Unsigned", "dtype")
"""Attributes that are about how values are stored, and mean nothing for decoded ones."""


def decoded(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Mask missing values by NaN and undo packing, as xarray does it."""
    missing = [attributes[name] for name in _MISSING if name in attributes]
    packed = any(name in attributes for name in _PACKING)
    if not (missing or packed) or values.dtype.kind not in "iuf":
        return values
    result = values.astype(decoded_dtype(values.dtype, attributes), copy=True)
    if packed:
        result *= attributes.get("scale_factor", 1)
        result += attributes.get("add_offset", 0)
    for given in missing:
        for value in np.atleast_1d(_number(given, values.dtype)):
            if value == value:  # noqa: PLR0124 (NaN is NaN already)
                result[values == value] = np.nan
    return result


def decoded_dtype(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """The data type of decoded values."""
    concerned = any(name in attributes for name in (*_MISSING, *_PACKING))
    if not concerned or dtype.kind not in "iuf":
        return dtype
    if dtype.kind == "f":
        return dtype
    small = dtype.itemsize <= 2 and "add_offset" not in attributes
    return np.dtype("f4") if small else np.dtype("f8")


def _number(given: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A fill value as attributes have it: xarray writes those of floats as base 64 of a double."""
    if isinstance(given, str) and dtype.kind == "f":
        try:
            return np.frombuffer(base64.b64decode(given, validate=True), "<f8")[:1]
        except ValueError:
            return np.asarray(float(given))
    return np.asarray(given)


def without_encoding(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that decoded values keep."""
    return {name: value for name, value in attributes.items() if name not in ENCODING}
