"""Zarr documents as the structs of spec 001, and back.

The structs cannot say all that a document can. Writing, they are the nearest valid ones, and the
document itself travels beside them; reading old files, the document is rebuilt from them.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.formats.nodes import (
    NAMED_FLOATS,
    as_list,
    key_encoding_document,
    key_encoding_name,
    named_if_not_finite,
)

if TYPE_CHECKING:
    from icefloe.model.zarr_document import ArrayMetadata

_FLOAT_WIDTHS = {"float16": 16, "float32": 32, "float64": 64, "complex64": 32, "complex128": 64}
_VARIANTS = {
    "bool": "Bool",
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    "complex64": "Complex64",
    "complex128": "Complex128",
    "string": "String",
    "bytes": "Bytes",
}
_NEAREST_TYPES = {
    "numpy.datetime64": "int64",
    "numpy.timedelta64": "int64",
    "fixed_length_utf32": "string",
}
"""Data types that spec 001 does not know, and what is nearest; `bytes` for all others."""

# --- documents to structs


def array_struct(document: dict[str, Any], array: ArrayMetadata) -> list[Any]:
    """The eight fields of ZarrArrayMetadata (R2-27)."""
    data_type = array.data_type
    if data_type not in _VARIANTS:
        data_type = _NEAREST_TYPES.get(data_type, "bytes")
    chunk_shape = array.chunk_shape
    if chunk_shape is None:
        chunk_shape = tuple(max(1, extent) for extent in array.shape)
    transformers = document.get("storage_transformers")
    return [
        array.shape,
        data_type,
        chunk_shape,
        key_encoding_name(document, array),
        {_VARIANTS[data_type]: _fill_value(document.get("fill_value"), data_type)},
        [_named(codec) for codec in as_list(document.get("codecs"))],
        None if transformers is None else [_named(item) for item in as_list(transformers)],
        array.dimension_names,
    ]


def _named(value: Any) -> list[Any]:
    """A codec or transformer, which may be given by its name alone, as [name, configuration]."""
    if isinstance(value, dict):
        configuration = value.get("configuration")
        return [
            str(value.get("name", "")),
            storable(configuration) if isinstance(configuration, dict) else None,
        ]
    return [str(value), None]


def _fill_value(value: Any, data_type: str) -> Any:
    if data_type == "bool":
        return bool(value)
    if data_type == "string":
        return value if isinstance(value, str) else ""
    if data_type == "bytes":
        return _octets(value)
    width = _FLOAT_WIDTHS.get(data_type)
    if width is None:
        return _integer(value, data_type)
    if data_type.startswith("complex"):
        pair = value if isinstance(value, list) and len(value) == 2 else [value, 0.0]
        return [_float(part, width) for part in pair]
    return _float(value, width)


def _integer(value: Any, data_type: str) -> int:
    bits = int(data_type.lstrip("uint"))
    low, high = (
        (0, 2**bits - 1) if data_type[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return min(max(value, low), high) if type(value) is int else 0


def _octets(value: Any) -> list[int]:
    """Bytes are a list of integers here; documents also give them as base 64."""
    if isinstance(value, str):
        try:
            return list(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            return []
    return [item for item in as_list(value) if type(item) is int and 0 <= item < 256]


def _float(value: Any, width: int) -> msgspec.Raw | float:
    """A float of the struct: 8 bytes for the wide types, 4 bytes for all others."""
    number = _parse_float(value, width)
    if width == 64:
        return number
    try:
        packed = struct.pack(">f", number)
    except OverflowError:
        packed = struct.pack(">f", math.copysign(math.inf, number))
    return msgspec.Raw(b"\xca" + packed)


def _parse_float(value: Any, width: int) -> float:
    if type(value) in {int, float}:
        return float(value)
    if isinstance(value, str):
        named = NAMED_FLOATS.get(value)
        if named is not None:
            return named
        if value.startswith("0x"):
            try:
                octets = bytes.fromhex(value[2:])
                return float(struct.unpack({16: ">e", 32: ">f", 64: ">d"}[width], octets)[0])
            except (ValueError, struct.error):
                return math.nan
    return 0.0


def storable(value: Any) -> Any:
    """A JSON value as MessagePack can hold it: integers beyond 64 bits become floats."""
    if isinstance(value, dict):
        return {name: storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [storable(item) for item in value]
    if type(value) is int and not -(2**63) <= value < 2**64:
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)
    return value


# --- structs to documents


def rebuild_group(attributes: bytes | None) -> tuple[bytes, int]:
    """The zarr.json of a group, and where its attributes are."""
    return _rebuild("group", attributes, {})


def rebuild_array(fields: Any, attributes: bytes | None) -> tuple[bytes, int]:
    """The zarr.json of an array from its eight fields, and where its attributes are.

    Raises TypeError, ValueError, KeyError or IndexError if the fields are not what they should be.
    """
    shape, data_type, chunk_shape, encoding, fill_value, codecs, transformers, names = fields
    rest: dict[str, Any] = {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": key_encoding_document(encoding),
        "fill_value": _document_fill_value(fill_value),
        "codecs": [_document_named(codec) for codec in codecs],
    }
    if transformers is not None:
        rest["storage_transformers"] = [_document_named(item) for item in transformers]
    rest["dimension_names"] = names
    return _rebuild("array", attributes, rest)


def _rebuild(node_type: str, attributes: bytes | None, rest: dict[str, Any]) -> tuple[bytes, int]:
    """Write the members in the order of the time; attributes only if there are any."""
    head = b'{"zarr_format":3,"node_type":"%b"' % node_type.encode("ascii")
    if attributes is not None:
        head += b',"attributes":'
    tail = msgspec.json.encode(rest)[1:]
    if rest:
        tail = b"," + tail
    return head + (attributes or b"") + tail, len(head)


def _document_named(pair: Any) -> dict[str, Any]:
    name, configuration = pair
    return (
        {"name": name} if configuration is None else {"name": name, "configuration": configuration}
    )


def _document_fill_value(tagged: Any) -> Any:
    ((_, value),) = tagged.items()
    if isinstance(value, list):
        return [named_if_not_finite(item) for item in value]
    return named_if_not_finite(value)
