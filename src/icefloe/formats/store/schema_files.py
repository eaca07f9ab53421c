"""The JSON schemas of spec 003, as they stand there, and the one amendment that they need."""

from __future__ import annotations

import copy
from importlib import resources
from typing import Any, Literal

import msgspec

_TAGGED_FLOATS = ("Float16", "Float32", "Float64")
_TAGGED_PAIRS = ("Complex64", "Complex128")
_NOT_FINITE = {"type": "string", "pattern": "^(NaN|Infinity|-Infinity|0x[0-9a-fA-F]+)$"}


def seed_schema(name: Literal["ref", "snapshot", "manifest"]) -> dict[str, Any]:
    """A schema of the spec, verbatim."""
    folder = resources.files("icefloe.formats.store") / "schemas"
    text = (folder / f"{name}.schema.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])


def amended_snapshot_schema() -> dict[str, Any]:
    """The schema of snapshots with fill values that JSON numbers cannot be (H-16).

    NaN, infinities and bit patterns are strings, as in zarr's own documents. A file without such
    fill values is valid by the schema of the spec itself.
    """
    schema = copy.deepcopy(seed_schema("snapshot"))
    for variant in schema["definitions"]["FillValue"]["oneOf"]:
        ((name, content),) = variant["properties"].items()
        if name in _TAGGED_FLOATS:
            variant["properties"][name] = {"anyOf": [content, _NOT_FINITE]}
        elif name in _TAGGED_PAIRS:
            content["items"] = [{"anyOf": [item, _NOT_FINITE]} for item in content["items"]]
    return schema
