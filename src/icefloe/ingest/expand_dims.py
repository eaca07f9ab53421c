"""Gives the arrays of a file a dimension whose coordinate is in its name, or a scalar in it.

Examples are the time of a GeoTIFF and the number of an ensemble member.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ingest.file_rules import coordinate_of
from icefloe.ingest.headers import load_values
from icefloe.ingest.parsed import ParsedArray, ParsedFile, array_of_values, chunk_shape_of
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy.typing as npt

    from icefloe.ingest.file_rules import FileCoordinate
    from icefloe.objects.foreign import VirtualChunkResolver

_TIME_UNITS = "microseconds since 1970-01-01"


def expand_dims(
    parsed: ParsedFile,
    sources: VirtualChunkResolver,
    concat_dims: Iterable[str] = (),
    file_coordinates: Mapping[str, FileCoordinate] | None = None,
) -> ParsedFile:
    """The file with further leading dimensions of length 1, the first one outermost.

    Args:
        parsed: What a parser found.
        sources: Where the values of scalars are read from.
        concat_dims: Dimensions to put files together along. One that the file does not have, but
            has a scalar of its name, becomes a dimension.
        file_coordinates: How to find a coordinate from the URL of a file, by dimension.
    """
    rules = file_coordinates or {}
    coordinates: dict[str, ParsedArray] = {}
    for dim, rule in rules.items():
        value = coordinate_of(parsed.url, parsed.attributes, dim, rule)
        coordinates[dim] = _coordinate(dim, value)
    present = {dim for array in parsed.arrays.values() for dim in array.dims}
    for dim in concat_dims:
        scalar = parsed.arrays.get(dim)
        if dim not in rules and dim not in present and scalar is not None and not scalar.shape:
            coordinates[dim] = _promoted(dim, scalar, sources)
    for dim in reversed(list(coordinates)):
        if dim in present:
            msg = f"{parsed.url} has the dimension {dim!r} already: give no file_coordinates for it"
            raise InvalidInputError(msg)
        parsed = _expanded(parsed, dim, coordinates[dim])
    return parsed


def _coordinate(dim: str, value: Any) -> ParsedArray:
    attributes: dict[str, Any] = {}
    if isinstance(value, str):
        values: npt.NDArray[Any] = np.array([value], dtype=np.dtypes.StringDType())
        return array_of_values(values, [dim], attributes)
    if isinstance(value, datetime | date | np.datetime64):
        if isinstance(value, datetime) and value.tzinfo is not None:
            from datetime import UTC

            value = value.astimezone(UTC).replace(tzinfo=None)
        values = np.array([value], dtype="datetime64[us]").astype(np.int64)
        attributes = {"units": _TIME_UNITS, "calendar": "proleptic_gregorian"}
        return array_of_values(values, [dim], attributes)
    values = np.array([value])
    if values.dtype.kind not in "iufb":
        raise InvalidInputError(
            f"a coordinate is a number, text or a time; found {value!r} along {dim!r}"
        )
    return array_of_values(values, [dim], attributes)


def _promoted(dim: str, scalar: ParsedArray, sources: VirtualChunkResolver) -> ParsedArray:
    values = load_values(scalar, sources).reshape(1)
    document = expanded_document(scalar.document, dim, dim)
    return ParsedArray(document, VirtualColumns.none(1), values=values)


def _expanded(parsed: ParsedFile, dim: str, coordinate: ParsedArray) -> ParsedFile:
    stay = parsed.auxiliary_names | {dim}
    arrays = {}
    for name, array in parsed.arrays.items():
        is_static = name in stay or array.dims == (name,) or _is_grid_mapping(array)
        arrays[name] = array if is_static else _expanded_array(array, dim, name)
    arrays[dim] = coordinate
    return msgspec.structs.replace(parsed, arrays=arrays)


def _is_grid_mapping(array: ParsedArray) -> bool:
    return "grid_mapping_name" in (array.document.get("attributes") or {})


def _expanded_array(array: ParsedArray, dim: str, name: str) -> ParsedArray:
    refs = array.references
    front = np.zeros((len(refs), 1), dtype=np.int64)
    return ParsedArray(
        document=expanded_document(array.document, dim, name),
        references=msgspec.structs.replace(refs, positions=np.hstack([front, refs.coords])),
        inline={(0, *place): data for place, data in array.inline.items()},
        values=None if array.values is None else array.values[np.newaxis],
        reader=None if array.reader is None else _one_longer(array.reader),
    )


def _one_longer(
    read: Callable[[tuple[slice, ...]], npt.NDArray[Any]],
) -> Callable[[tuple[slice, ...]], npt.NDArray[Any]]:
    return lambda region: read(region[1:])[np.newaxis]


def expanded_document(document: dict[str, Any], dim: str, name: str) -> dict[str, Any]:
    """A document with one more dimension, of length 1, in front."""
    chunk_shape = chunk_shape_of(document)
    names = document.get("dimension_names") or [None] * len(document["shape"])
    return {
        **document,
        "shape": [1, *document["shape"]],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, *chunk_shape]}},
        "dimension_names": [dim, *names],
        "codecs": [_expanded_codec(codec, name) for codec in document["codecs"]],
    }


def _expanded_codec(codec: dict[str, Any], name: str) -> dict[str, Any]:
    configuration = codec.get("configuration") or {}
    if codec["name"] == "transpose":
        order = [0, *(axis + 1 for axis in configuration["order"])]
        return {**codec, "configuration": {**configuration, "order": order}}
    if codec["name"] == "sharding_indexed":
        inner = [_expanded_codec(each, name) for each in configuration["codecs"]]
        shape = [1, *configuration["chunk_shape"]]
        return {**codec, "configuration": {**configuration, "chunk_shape": shape, "codecs": inner}}
    if "shape" in configuration or codec["name"] == "virtual_tiff.ChunkyCodec":
        raise InvalidInputError(
            f"{name!r} cannot get a further dimension, because its codec {codec['name']!r} depends "
            "on the shape of chunks; copy it instead"
        )
    return codec
