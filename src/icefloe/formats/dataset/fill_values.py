"""Fill values as bytes: one element in little-endian order, or JSON for other types (H-08)."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

from icefloe.formats.nodes import NAMED_FLOATS, named_if_not_finite

_FORMATS = {
    "bool": "<?",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
    "complex64": "<ff",
    "complex128": "<dd",
}
MARKER = b"json:"
"""What JSON begins with where a column holds something else as a rule."""


def encode(data_type: Any, value: Any) -> bytes | None:
    """The bytes of a fill value; None for null."""
    if value is None:
        return None
    pattern = _pattern(data_type)
    if pattern is not None:
        try:
            octets = _pack(pattern, value)
        except (struct.error, ValueError, OverflowError, TypeError):
            octets = MARKER
        # Only values that are read back unchanged: 1e40 as a float32 is not, nor is a bit pattern
        # of NaN, and bytes that begin like the marker would be read as JSON.
        if not octets.startswith(MARKER) and _same(_unpack(pattern, octets), value):
            return octets
    return MARKER + json.dumps(value, separators=(",", ":")).encode("ascii")


def decode(data_type: Any, octets: bytes | None) -> Any:
    """The fill value as a document has it; raises ValueError for bytes that are none."""
    if octets is None:
        return None
    if octets.startswith(MARKER):
        # Another program may have written an element whose bytes begin so.
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(octets[len(MARKER) :])
    pattern = _pattern(data_type)
    if pattern is None or struct.calcsize(pattern) != len(octets):
        raise ValueError(f"{octets[:40]!r} is no fill value of {data_type}")
    return _unpack(pattern, octets)


def _pattern(data_type: Any) -> str | None:
    return _FORMATS.get(data_type) if isinstance(data_type, str) else None


def _unpack(pattern: str, octets: bytes) -> Any:
    values = [named_if_not_finite(value) for value in struct.unpack(pattern, octets)]
    return values if len(values) == 2 else values[0]


def _pack(pattern: str, value: Any) -> bytes:
    parts = value if isinstance(value, list) else [value]
    return struct.pack(pattern, *(_number(part) for part in parts))


def _number(value: Any) -> Any:
    return NAMED_FLOATS[value] if isinstance(value, str) and value in NAMED_FLOATS else value


def _same(found: Any, wanted: Any) -> bool:
    return bool(found == wanted) and json.dumps(found) == json.dumps(wanted)
