"""What a parser finds in a file: Zarr documents, chunk references as columns, values."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.model.record import Record
from icefloe.model.virtual_columns import VirtualColumns
from icefloe.objects.foreign.source import SourceStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NAMING_ATTRIBUTES = ("coordinates", "bounds", "climatology", "grid_mapping", "formula_terms")


class ParsedArray(Record, frozen=True, eq=False):
    """One array of a file."""

    document: dict[str, Any]
    """Its zarr.json, attributes included, as Python values."""
    references: VirtualColumns
    inline: dict[tuple[int, ...], bytes] = msgspec.field(default_factory=dict)
    """Chunks whose bytes are in the file of references itself."""
    values: npt.NDArray[Any] | None = None
    """All values, where the parser has them or no reference can describe them."""
    reader: Callable[[tuple[slice, ...]], npt.NDArray[Any]] | None = None
    """Reads a region by the format's own library, where there are no references."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
        return tuple(self.document["shape"])

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions; made up where the file has none."""
        return dimension_names(self.document)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Number of elements of a chunk along each dimension."""
        return chunk_shape_of(self.document)

    @property
    def raw_chunk_bytes(self) -> int | None:
        """Bytes of every chunk, if these are its elements and nothing else; None otherwise.

        A chunk at the edge of the array is as long as any other.
        """
        if [codec["name"] for codec in self.document["codecs"]] != ["bytes"]:
            return None
        return prod(self.chunk_shape) * numpy_type(self.document).itemsize


class ParsedFile(Record, frozen=True, eq=False):
    """What a parser found in one file."""

    url: str
    format: str
    status: SourceStatus | None
    arrays: dict[str, ParsedArray]
    attributes: dict[str, Any]
    """Those of the file's group."""

    @property
    def auxiliary_names(self) -> set[str]:
        """Variables that are coordinates, bounds and the like of others."""
        documents = [array.document for array in self.arrays.values()]
        return named_by_others(documents, self.attributes)


def named_by_others(documents: Iterable[dict[str, Any]], attributes: dict[str, Any]) -> set[str]:
    """Variables that are not data: others say that they are their coordinates or bounds."""
    words: set[str] = set()
    for document in documents:
        own = document.get("attributes") or {}
        for attribute in NAMING_ATTRIBUTES:
            if isinstance(own.get(attribute), str):
                words.update(own[attribute].replace(":", " ").split())
    if isinstance(attributes.get("coordinates"), str):
        words.update(attributes["coordinates"].split())
    return words


def numpy_type(document: dict[str, Any]) -> np.dtype[Any]:
    """The type of the elements of an array, in native byte order."""
    dtype: np.dtype[Any] = zarr_type(document).to_native_dtype()
    return dtype


def fill_value_of(document: dict[str, Any]) -> Any:
    """The fill value of an array, as a scalar of its type."""
    return zarr_type(document).from_json_scalar(document["fill_value"], zarr_format=3)


def zarr_type(document: dict[str, Any]) -> Any:
    """The type of the elements of an array, as zarr describes it."""
    from zarr.core.dtype import get_data_type_from_json

    from icefloe.ingest.quiet import quietly

    with quietly():
        return get_data_type_from_json(document["data_type"], zarr_format=3)


def dimension_names(document: dict[str, Any]) -> tuple[str, ...]:
    """Names of the dimensions of an array; unnamed ones are named by their number."""
    names = document.get("dimension_names") or [None] * len(document["shape"])
    return tuple(f"dim_{number}" if name is None else name for number, name in enumerate(names))


def chunk_shape_of(document: dict[str, Any]) -> tuple[int, ...]:
    """Number of elements of a chunk of an array along each dimension."""
    return tuple(document["chunk_grid"]["configuration"]["chunk_shape"])


def array_document(
    *,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    chunk_shape: Sequence[int],
    dims: Sequence[str] | None,
    attributes: dict[str, Any],
    fill_value: Any,
    codecs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A zarr.json for an array of a numpy type, in whose byte order its chunks are.

    Args:
        shape: Number of elements along each dimension.
        dtype: Type of the elements, with the byte order of the file.
        chunk_shape: Number of elements of a chunk.
        dims: Names of dimensions.
        attributes: Attributes, as JSON has them.
        fill_value: The value of elements that were not written.
        codecs: Configurations of codecs in the style of numcodecs or of Zarr 3.
    """
    from virtualizarr.codecs import zarr_codec_config_to_v3
    from virtualizarr.manifests.utils import create_v3_array_metadata

    from icefloe.ingest.quiet import quietly

    configurations = [
        codec if "name" in codec else zarr_codec_config_to_v3(codec) for codec in codecs or []
    ]
    with quietly():
        metadata = create_v3_array_metadata(
            shape=tuple(shape),
            data_type=dtype,
            chunk_shape=tuple(chunk_shape),
            fill_value=fill_value,
            codecs=configurations,
            attributes=attributes,
            dimension_names=None if dims is None else tuple(dims),
        )
    return plain_document(metadata)


def with_missing_value(
    attributes: dict[str, Any], fill_value: Any, dtype: np.dtype[Any]
) -> dict[str, Any]:
    """Attributes of a Zarr 2 array for Zarr 3.

    In Zarr 2 the fill value also means missing values, and xarray reads it so. In
    Zarr 3 an attribute says that.
    """
    if fill_value is None or dtype.kind not in "iuf" or "_FillValue" in attributes:
        return attributes
    from virtualizarr.parsers.utils import encode_cf_fill_value

    native = dtype.newbyteorder("=")
    encoded = encode_cf_fill_value(native.type(fill_value), native)
    return {**attributes, "_FillValue": encoded}


def array_of_values(
    values: npt.NDArray[Any],
    dims: Sequence[str],
    attributes: dict[str, Any],
    fill_value: Any = None,
) -> ParsedArray:
    """An array whose values the parser has, such as a coordinate: one chunk, no references.

    If no fill value is given, it is the natural one of the type.
    """
    is_text = values.dtype.kind == "T"
    if fill_value is None:
        fill_value = "" if is_text else np.nan if values.dtype.kind == "f" else 0
    document = array_document(
        shape=values.shape,
        dtype=values.dtype,
        chunk_shape=[max(1, size) for size in values.shape],
        dims=dims,
        attributes=attributes,
        fill_value=fill_value,
        codecs=[{"name": "vlen-utf8"}] if is_text else None,
    )
    return ParsedArray(document, VirtualColumns.none(values.ndim), values=values)


def plain_document(metadata: Any) -> dict[str, Any]:
    """A zarr.json as Python values from Zarr's own object."""
    import json

    from zarr.core.buffer import default_buffer_prototype

    from icefloe.ingest.quiet import quietly

    with quietly():
        buffer = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"]
    document: dict[str, Any] = json.loads(buffer.to_bytes())
    document.pop("storage_transformers", None)
    return document
