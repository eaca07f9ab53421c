"""Fill values as bytes: one element in little-endian order, or JSON for other types (H-08)."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

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
_JSON = b"json:"
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(data_type: Any, value: Any) -> bytes | None:
    """The bytes of a fill value; None for null."""
    if value is None:
        return None
    pattern = _FORMATS.get(data_type) if isinstance(data_type, str) else None
    if pattern is not None:
        try:
            octets = _pack(pattern, value)
        except (struct.error, ValueError, OverflowError, TypeError):
            octets = None
        # Only what comes back as it was: 1e40 as a float32 does not, nor does a bit pattern of NaN.
        if octets is not None and _same(decode(data_type, octets), value):
            return octets
    return _JSON + json.dumps(value, separators=(",", ":")).encode("ascii")


def decode(data_type: Any, octets: bytes | None) -> Any:
    """The fill value as a document has it; raises ValueError for bytes that are none."""
    if octets is None:
        return None
    if octets.startswith(_JSON):
        return json.loads(octets[len(_JSON) :])
    pattern = _FORMATS.get(data_type) if isinstance(data_type, str) else None
    if pattern is None or struct.calcsize(pattern) != len(octets):
        raise ValueError(f"{len(octets)} bytes are no fill value of {data_type}")
    values = [_plain(value) for value in struct.unpack(pattern, octets)]
    return values if len(values) == 2 else values[0]


def _pack(pattern: str, value: Any) -> bytes:
    parts = value if isinstance(value, list) else [value]
    return struct.pack(pattern, *(_number(part) for part in parts))


def _number(value: Any) -> Any:
    return _NAMED[value] if isinstance(value, str) and value in _NAMED else value


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _same(found: Any, wanted: Any) -> bool:
    return bool(found == wanted) and json.dumps(found) == json.dumps(wanted)
