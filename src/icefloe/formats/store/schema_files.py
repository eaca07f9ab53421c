"""The JSON schemas of spec 003, verbatim."""

from __future__ import annotations

from importlib import resources
from typing import Any, Literal

import msgspec


def seed_schema(name: Literal["ref", "snapshot", "manifest"]) -> dict[str, Any]:
    """A schema of the spec, verbatim."""
    folder = resources.files("icefloe.formats.store") / "schemas"
    text = (folder / f"{name}.schema.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])
