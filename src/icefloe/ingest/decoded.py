"""Copies of packed values that are stored decoded. Times stay numbers, and keep their units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.cf.decoding import Coding, coding_of, decoded_attributes
from icefloe.ingest.parsed import array_document, numpy_type

if TYPE_CHECKING:
    import numpy.typing as npt


def decoded_document(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a variable whose values are stored decoded."""
    attributes = document.get("attributes") or {}
    kept = decoded_attributes(attributes, times=False)
    if kept == attributes:
        return document
    dtype = numpy_type(document)
    coding = coding_of(dtype, attributes)
    decoded = coding.number_type if dtype.kind in "iufc" else dtype
    fresh = array_document(
        shape=document["shape"],
        dtype=decoded,
        chunk_shape=document["chunk_grid"]["configuration"]["chunk_shape"],
        dims=document.get("dimension_names"),
        attributes=kept,
        fill_value=np.nan if decoded.kind == "f" else decoded.type(),
    )
    return {**document, **fresh}


def decode_values(values: npt.NDArray[Any], document: dict[str, Any]) -> npt.NDArray[Any]:
    """Values of a variable as users mean them; missing ones are NaN."""
    coding: Coding = coding_of(values.dtype, document.get("attributes") or {})
    return coding.decode_numbers(values)
