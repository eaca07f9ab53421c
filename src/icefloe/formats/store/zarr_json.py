"""Zarr documents as the JSON structs of spec 003, and back (R3-59 to R3-79).

The structs cannot say all that a document can. A document that is not rebuilt from its struct byte
for byte travels beside it (H-45); with zarr-python's own documents that is rarely needed.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from struct import calcsize, pack, unpack
from typing import TYPE_CHECKING, Any

from icefloe.formats.nodes import (
    NAMED_FLOATS,
    as_list,
    key_encoding_document,
    key_encoding_name,
    named_if_not_finite,
)
from icefloe.model.bounded_text import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.zarr_document import ArrayMetadata

_INTEGERS = {
    f"{prefix}int{bits}": (
        f"{prefix.upper()}Int{bits}",
        0 if prefix else -(2 ** (bits - 1)),
        2**bits - 1 if prefix else 2 ** (bits - 1) - 1,
    )
    for prefix in ("", "u")
    for bits in (8, 16, 32, 64)
}
_INTEGER_VARIANTS = {variant for variant, _, _ in _INTEGERS.values()}
_FLOATS = {"float16": "Float16", "float32": "Float32", "float64": "Float64"}
_COMPLEX = {"complex64": "Complex64", "complex128": "Complex128"}
_TYPES = {"bool", *_INTEGERS, *_FLOATS, *_COMPLEX}
_FLOAT_CODES = {
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
    "complex64": "<f",
    "complex128": "<d",
}


# --- documents to structs


def array_struct(document: Mapping[str, Any], array: ArrayMetadata) -> dict[str, Any]:
    """The struct ZarrArrayMetadata: the nearest valid one (R3-77)."""
    data_type, fill_value = _typed_fill_value(document)
    chunk_shape = array.chunk_shape or array.shape
    struct: dict[str, Any] = {
        "shape": array.shape,
        "data_type": data_type,
        "fill_value": fill_value,
        "chunk_shape": [max(1, extent) for extent in chunk_shape],
        "chunk_key_encoding": key_encoding_name(document, array),
        "codecs": [_named(codec) for codec in as_list(document.get("codecs"))],
    }
    transformers = document.get("storage_transformers")
    if transformers is not None:
        struct["storage_transformers"] = [_named(item) for item in as_list(transformers)]
    if array.dimension_names is not None:
        struct["dimension_names"] = array.dimension_names
    return struct


def _named(value: Any) -> dict[str, Any]:
    """A codec or transformer, which may be given by its name alone."""
    if not isinstance(value, dict):
        return {"name": str(value)}
    named: dict[str, Any] = {"name": str(value.get("name", ""))}
    configuration = value.get("configuration")
    if isinstance(configuration, dict):
        named["configuration"] = json_safe(configuration)
    return named


def _typed_fill_value(document: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Data type and fill value; a type that the spec does not know is raw bits."""
    data_type, value = document.get("data_type"), document.get("fill_value")
    if data_type == "bool":
        return data_type, {"Bool": value is True}
    if isinstance(data_type, str) and data_type in _INTEGERS:
        variant, low, high = _INTEGERS[data_type]
        is_valid = type(value) is int and low <= value <= high
        return data_type, {variant: value if is_valid else 0}
    if isinstance(data_type, str) and data_type in _FLOATS:
        return data_type, _tagged_floats(_FLOATS[data_type], data_type, [value])
    if isinstance(data_type, str) and data_type in _COMPLEX:
        pair = value if isinstance(value, list) and len(value) == 2 else [0.0, 0.0]
        return data_type, _tagged_floats(_COMPLEX[data_type], data_type, pair)
    return {"rawbits": _bits(data_type)}, {"RawBits": _octets(value)}


def _tagged_floats(variant: str, data_type: str, parts: list[Any]) -> dict[str, Any]:
    """A float or the two parts of a complex number; H-16: as raw bits if JSON has no such number.

    Raw bits are the value's own bytes, little-endian: exact for every NaN.
    """
    if not all(map(_is_finite, parts)):
        return {"RawBits": list(b"".join(_float_bytes(part, data_type) for part in parts))}
    return {variant: parts if data_type in _COMPLEX else parts[0]}


def _is_finite(value: Any) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63  # other JSON readers take no larger ones
    return type(value) is float and math.isfinite(value)


def _float_bytes(value: Any, data_type: str) -> bytes:
    """The bytes of a float in a document; zeros for anything else."""
    code = _FLOAT_CODES[data_type]
    size = calcsize(code)
    if isinstance(value, str) and value not in NAMED_FLOATS:
        is_bits = _is_hex(value) and len(value) == 2 + 2 * size
        return bytes.fromhex(value[2:])[::-1] if is_bits else bytes(size)
    try:
        return pack(code, float(value))
    except (TypeError, ValueError, OverflowError):
        return bytes(size)


def _is_hex(value: str) -> bool:
    return value.startswith("0x") and all(c in "0123456789abcdefABCDEF" for c in value[2:])


def _bits(data_type: Any) -> int:
    if isinstance(data_type, str) and data_type[:1] == "r":
        bits = whole_number(data_type[1:])
        return 0 if bits is None or bits < 0 else bits
    configuration = data_type.get("configuration") if isinstance(data_type, dict) else None
    length = configuration.get("length_bytes") if isinstance(configuration, dict) else None
    return 8 * length if type(length) is int and length >= 0 else 0


def _octets(value: Any) -> list[int]:
    """Bytes are a list of integers here; documents also give them as base 64."""
    if isinstance(value, str):
        try:
            return list(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            return []
    items = as_list(value)
    return items if all(type(item) is int and 0 <= item < 256 for item in items) else []


def json_safe(value: Any) -> Any:
    """A value without what JSON has not: numbers that are not finite become strings."""
    if isinstance(value, dict):
        return {_text(str(name)): json_safe(item) for name, item in value.items()}
    if isinstance(value, list):
        return [json_safe(item) for item in value]
    if isinstance(value, str):
        return _text(value)
    return named_if_not_finite(value)


def _text(value: str) -> str:
    """Halves of surrogate pairs, which Python's JSON lets through, are no Unicode."""
    return value.encode("utf-8", errors="replace").decode("utf-8")


# --- structs to documents


def group_document(attributes: dict[str, Any] | None) -> bytes:
    """The zarr.json of a group, as zarr-python writes it."""
    document: dict[str, Any] = {} if attributes is None else {"attributes": attributes}
    return _dump({**document, "zarr_format": 3, "node_type": "group"})


def array_document(struct: Mapping[str, Any], attributes: dict[str, Any] | None) -> bytes:
    """The zarr.json of an array, as zarr-python writes it.

    Raises TypeError, ValueError or KeyError if the struct is not what it should be.
    """
    document: dict[str, Any] = {
        "shape": [_integral(extent) for extent in struct["shape"]],
        "data_type": _document_type(struct["data_type"]),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [_integral(size) for size in struct["chunk_shape"]]},
        },
        "chunk_key_encoding": key_encoding_document(struct["chunk_key_encoding"]),
        "fill_value": _document_fill_value(struct["data_type"], struct["fill_value"]),
        "codecs": [_document_named(codec) for codec in struct["codecs"]],
    }
    if attributes is not None:
        document["attributes"] = attributes
    if struct.get("dimension_names") is not None:
        document["dimension_names"] = list(struct["dimension_names"])
    document["zarr_format"] = 3
    document["node_type"] = "array"
    if struct.get("storage_transformers") is not None:
        document["storage_transformers"] = list(
            map(_document_named, struct["storage_transformers"])
        )
    return _dump(document)


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode("ascii")


def _integral(value: Any) -> Any:
    """A number as an integer: in JSON Schema 1.0 is one, too."""
    return int(value) if type(value) is float and value.is_integer() else value


def _document_type(data_type: Any) -> str:
    return f"r{_integral(data_type['rawbits'])}" if isinstance(data_type, dict) else str(data_type)


def _document_named(value: Any) -> dict[str, Any]:
    configuration = value.get("configuration")
    named = {"name": value["name"]}
    return named if configuration is None else {**named, "configuration": configuration}


def _document_fill_value(data_type: Any, tagged: Any) -> Any:
    """The value of a variant, which must be that of the data type and in its range (R3-65)."""
    ((variant, value),) = tagged.items()
    if variant == "RawBits" and isinstance(data_type, str) and data_type in _FLOAT_CODES:
        return _float_of_bits(data_type, value)
    if variant in _INTEGER_VARIANTS:
        value = _integral(value)
    expected, is_valid = _expected_variant(data_type, value)
    if variant != expected or not is_valid:
        raise ValueError(f"{tagged} is no fill value of {data_type}")
    return value


def _float_of_bits(data_type: str, octets: Any) -> Any:
    """A float, or the pair of a complex number, as zarr's own documents have it."""
    code = _FLOAT_CODES[data_type]
    size = calcsize(code)
    count = 2 if data_type in _COMPLEX else 1
    data = bytes(octets)
    if len(data) != count * size:
        raise ValueError(f"a fill value of {data_type} has {count * size} bytes: {octets}")
    parts = [_float_text(data[at : at + size], code) for at in range(0, len(data), size)]
    return parts if data_type in _COMPLEX else parts[0]


def _float_text(data: bytes, code: str) -> Any:
    (number,) = unpack(code, data)
    if math.isfinite(number):
        return number
    named = next((name for name in NAMED_FLOATS if pack(code, float(name)) == data), None)
    return f"0x{data[::-1].hex()}" if named is None else named


def _expected_variant(data_type: Any, value: Any) -> tuple[str, bool]:
    if isinstance(data_type, dict):
        octets = isinstance(value, list) and len(_octets(value)) == len(value)
        return "RawBits", octets
    if data_type == "bool":
        return "Bool", type(value) is bool
    if data_type in _INTEGERS:
        variant, low, high = _INTEGERS[data_type]
        return variant, type(value) is int and low <= value <= high
    if data_type in _FLOATS:
        return _FLOATS[data_type], _is_number(value)
    if data_type in _COMPLEX:
        is_pair = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
        return _COMPLEX[data_type], is_pair
    raise ValueError(f"unknown data type {data_type!r}")


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} or (
        isinstance(value, str) and (value in NAMED_FLOATS or _is_hex(value))
    )
