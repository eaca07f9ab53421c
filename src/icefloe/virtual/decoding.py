"""Decodes packed values as CF asks for: scale, offset, missing values. Times stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.virtual.parsed import array_document

if TYPE_CHECKING:
    import numpy.typing as npt

_PACKING = frozenset({"scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"})


def decoded_document(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The document of a variable whose values are stored decoded."""
    attributes = document.get("attributes") or {}
    if not _PACKING & set(attributes):
        return document
    dtype = _numpy_type(document)
    sample = decode_values(np.zeros((1,) * len(document["shape"]), dtype), document, name)
    fresh = array_document(
        shape=document["shape"],
        dtype=sample.dtype,
        chunk_shape=document["chunk_grid"]["configuration"]["chunk_shape"],
        dims=document.get("dimension_names"),
        attributes={key: value for key, value in attributes.items() if key not in _PACKING},
        fill_value=np.nan if sample.dtype.kind == "f" else sample.dtype.type(),
    )
    return {**document, **fresh}


def decode_values(
    values: npt.NDArray[Any], document: dict[str, Any], name: str
) -> npt.NDArray[Any]:
    """Values of a variable as users mean them; missing ones are NaN."""
    attributes = dict(document.get("attributes") or {})
    if not _PACKING & set(attributes):
        return values
    import xarray as xr
    from xarray.backends.zarr import FillValueCoder
    from xarray.conventions import decode_cf_variable

    if isinstance(attributes.get("_FillValue"), str) and values.dtype.kind in "fc":
        attributes["_FillValue"] = FillValueCoder.decode(attributes["_FillValue"], values.dtype)
    dims = tuple(f"d{axis}" for axis in range(values.ndim))
    variable = xr.Variable(dims, values, attributes)
    decoded = decode_cf_variable(name, variable, decode_times=False, decode_timedelta=False)
    return np.asarray(decoded.values)


def _numpy_type(document: dict[str, Any]) -> np.dtype[Any]:
    from zarr.core.dtype import get_data_type_from_json

    from icefloe.virtual.quiet import quietly

    with quietly():
        return get_data_type_from_json(document["data_type"], zarr_format=3).to_native_dtype()
