"""What several generations read out of zarr.json documents, and put back into them, alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.zarr_document import ArrayMetadata

_decoder = msgspec.json.Decoder(dict[str, Any])


def parse_document(document: bytes) -> dict[str, Any]:
    """A document that was found valid before, also if only Python takes it for JSON."""
    try:
        return _decoder.decode(document)
    except msgspec.DecodeError:
        parsed: dict[str, Any] = json.loads(document)
        return parsed


def as_list(value: Any) -> list[Any]:
    """A member that should be a list; anything else is none at all."""
    return value if isinstance(value, list) else []


def key_encoding_name(document: Mapping[str, Any], array: ArrayMetadata) -> str:
    """H-17: `Default` is the default encoding with nothing said of its separator."""
    value = document.get("chunk_key_encoding")
    configuration = value.get("configuration") if isinstance(value, dict) else None
    if array.key_encoding == "default" and not configuration:
        return "Default"
    return "Slash" if array.key_separator == "/" else "Dot"


def key_encoding_document(name: str) -> dict[str, Any]:
    """The member that such a name stands for; raises KeyError for other names."""
    if name == "Default":
        return {"name": "default"}
    separator = {"Slash": "/", "Dot": "."}[name]
    return {"name": "default", "configuration": {"separator": separator}}
