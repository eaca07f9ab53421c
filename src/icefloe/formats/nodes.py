"""Nodes, paths and zarr.json documents, which all generations read and check alike."""

from __future__ import annotations

import json
import math
import operator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file
from icefloe.model.nodes import make_stored_node
from icefloe.model.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import AttributesRef, ManifestRef, Node
    from icefloe.model.zarr_document import ArrayMetadata

MAX_HISTORY = 16
"""Ancestors that a snapshot remembers; older ones are found through them (H-15)."""
MAX_RANK = 64
"""Dimensions that an array may have."""
MAX_CHECKSUM = 2**32 - 1

_decoder = msgspec.json.Decoder(dict[str, Any])


_DOTS = (b"/./", b"/../", b"/.\0", b"/..\0")
_SLASH, _DOT, _END = b"/.\0"


def check_paths(paths: list[str], key: str) -> None:
    """Raise FormatError unless paths ascend, to be searched, and are canonical (R2-35)."""
    if not all(map(operator.lt, paths, paths[1:])):
        raise bad_file(key, "the paths of the nodes are not in order")
    below_root = paths[1:] if paths[:1] == [ROOT] else paths
    if below_root and not _are_canonical(below_root):
        raise bad_file(key, "a node has a path that is not canonical")


def _are_canonical(paths: list[str]) -> bool:
    """Whether all are canonical paths of nodes below the root, seen in the bytes of all of them."""
    joined = ("\0" + "\0".join(paths) + "\0").encode("utf-8", "surrogatepass")
    octets = np.frombuffer(joined, dtype=np.uint8)
    is_end, is_slash = octets == _END, octets == _SLASH
    after_slash = octets[1:][is_slash[:-1]]
    return (
        np.count_nonzero(is_end) == len(paths) + 1
        and np.count_nonzero(is_end[:-1] & is_slash[1:]) == len(paths)
        and not ((after_slash == _SLASH) | (after_slash == _END)).any()
        and not ((after_slash == _DOT).any() and any(part in joined for part in _DOTS))
    )


def load_node(
    node_id: NodeId,
    path: str,
    document: bytes,
    manifests: tuple[ManifestRef, ...],
    attributes: AttributesRef | None,
    *,
    key: str,
) -> Node:
    """Make a node of a snapshot; raises FormatError if its parts make none."""
    try:
        return make_stored_node(node_id, path, document, manifests, attributes)
    except InvalidInputError as error:
        raise bad_file(key, str(error)) from None


def parse_document(document: bytes) -> dict[str, Any]:
    """A document that was found valid before, even if only Python accepts it as JSON."""
    try:
        return _decoder.decode(document)
    except msgspec.DecodeError:
        parsed: dict[str, Any] = json.loads(document)
        return parsed


NAMED_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How documents spell the numbers that JSON does not have."""


def named_if_not_finite(value: Any) -> Any:
    """The name of a number that JSON does not have; anything else as it is."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def as_list(value: Any) -> list[Any]:
    """A member that should be a list; anything else is none at all."""
    return value if isinstance(value, list) else []


def key_encoding_name(document: Mapping[str, Any], array: ArrayMetadata) -> str:
    """H-17: `Default` is the default encoding without a separator."""
    value = document.get("chunk_key_encoding")
    configuration = value.get("configuration") if isinstance(value, dict) else None
    if array.key_encoding == "default" and not configuration:
        return "Default"
    return "Slash" if array.key_separator == "/" else "Dot"


def key_encoding_document(name: str) -> dict[str, Any]:
    """The member that such a name means; raises KeyError for other names."""
    if name == "Default":
        return {"name": "default"}
    separator = {"Slash": "/", "Dot": "."}[name]
    return {"name": "default", "configuration": {"separator": separator}}
