"""Parses Zarr stores, versions 2 and 3: one listing gives all chunks, their sizes and etags.

VirtualiZarr's parser is not used because it keeps no etags and supports one chunk key encoding.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import (
    ParsedArray,
    ParsedFile,
    plain_document,
    with_missing_value,
)
from icefloe.ingest.parsers.zarr2 import is_text, text_document, without_filters_of_bytes
from icefloe.ingest.quiet import quietly
from icefloe.model.bounded_text import json_value
from icefloe.model.virtual_columns import VirtualColumns
from icefloe.objects.foreign.source import SourceStatus

if TYPE_CHECKING:
    from icefloe.ingest.authorized import AuthorizedStore
    from icefloe.objects.foreign.source import ListedSource

_DIMENSIONS = "_ARRAY_DIMENSIONS"
_METADATA = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}


def parse_zarr(url: str, store: AuthorizedStore, group: str | None = None) -> ParsedFile:
    """Read the metadata of a group of a store and list its chunks."""
    base = url.rstrip("/") + (f"/{group.strip('/')}" if group and group.strip("/") else "")
    below = _listed(base, store)
    own = below.get("", {})
    if "zarr.json" in own:
        root = _json(own["zarr.json"], store)
        attributes, version = root.get("attributes") or {}, 3
    elif ".zgroup" in own:
        attributes, version = _json(own[".zattrs"], store) if ".zattrs" in own else {}, 2
    else:
        raise InvalidInputError(f"{base} has no Zarr group: neither zarr.json nor .zgroup")
    document_name = "zarr.json" if version == 3 else ".zarray"
    arrays = {}
    for name, objects in below.items():
        if name and document_name in objects:
            array = _array(objects, version, store)
            if array is not None:
                arrays[name] = array
    return ParsedFile(
        url=url, format="zarr", status=_status(below), arrays=arrays, attributes=attributes
    )


def _status(below: dict[str, dict[str, ListedSource]]) -> SourceStatus:
    """A combined status of all objects of a store, which changes if one of them does."""
    objects = [listed for each in below.values() for listed in each.values()]
    said = sorted(f"{each.location} {each.status.etag} {each.status.size}" for each in objects)
    return SourceStatus(
        sum(each.status.size or 0 for each in objects),
        hashlib.sha256("\n".join(said).encode()).hexdigest(),
        max((each.status.last_modified or 0 for each in objects), default=None),
    )


def _listed(base: str, store: AuthorizedStore) -> dict[str, dict[str, ListedSource]]:
    """All objects of a group by child node, and then by the rest of their key."""
    depth = len(store.sources.absolute(f"{base}/x")[:-1])
    children: dict[str, dict[str, ListedSource]] = {}
    for listed in store.sources.list(base):
        name, slash, rest = str(listed.location)[depth:].partition("/")
        if slash:
            children.setdefault(name, {})[rest] = listed
        else:
            children.setdefault("", {})[name] = listed
    return children


def _json(listed: ListedSource, store: AuthorizedStore) -> dict[str, Any]:
    try:
        document = json_value(store.read(str(listed.location)))
    except ValueError as error:
        raise InvalidInputError(f"{listed.location} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInputError(f"{listed.location} is no JSON object")
    return document


def _array(
    objects: dict[str, ListedSource], version: int, store: AuthorizedStore
) -> ParsedArray | None:
    """An array; None if this is a group."""
    if version == 3:
        document = _json(objects["zarr.json"], store)
        if document.get("node_type") != "array":
            return None
        encoding = document["chunk_key_encoding"]
        configuration = encoding.get("configuration") or {}
        is_default = encoding["name"] == "default"
        separator = configuration.get("separator", "/" if is_default else ".")
        prefix = f"c{separator}" if is_default else ""
        scalar = "c" if is_default else "0"
        if document["chunk_grid"]["name"] != "regular":
            raise InvalidInputError(
                f"{objects['zarr.json'].location}: only regular chunk grids can be referenced"
            )
        document = {**document, "chunk_key_encoding": _OUR_KEYS}
        document.pop("storage_transformers", None)
    else:
        zarray = _json(objects[".zarray"], store)
        attributes = _json(objects[".zattrs"], store) if ".zattrs" in objects else {}
        document = _as_version_3(zarray, attributes)
        separator, prefix, scalar = zarray.get("dimension_separator") or ".", "", "0"
    rank = len(document["shape"])
    chunks = {
        key.removeprefix(prefix): listed
        for key, listed in objects.items()
        if key not in _METADATA and (key.startswith(prefix) or (not rank and key == scalar))
    }
    return ParsedArray(document, _references(chunks, rank, separator))


_OUR_KEYS = {"name": "default", "configuration": {"separator": "/"}}


def _as_version_3(zarray: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    from virtualizarr.parsers.zarr import metadata_as_v3
    from zarr.core.metadata import ArrayV2Metadata

    if is_text(zarray):
        others = {name: each for name, each in attributes.items() if name != _DIMENSIONS}
        document = text_document(zarray, attributes.get(_DIMENSIONS), others)
        return {**document, "chunk_key_encoding": _OUR_KEYS}
    zarray, codecs = without_filters_of_bytes(zarray)
    if isinstance(zarray.get("dtype"), str):
        dtype = np.dtype(zarray["dtype"])
        attributes = with_missing_value(attributes, zarray.get("fill_value"), dtype)
    with quietly():
        metadata = ArrayV2Metadata.from_dict({**zarray, "attributes": attributes})
        document = plain_document(metadata_as_v3(metadata))
    document["codecs"] = [*document["codecs"], *codecs]
    return {**document, "chunk_key_encoding": _OUR_KEYS}


def _references(chunks: dict[str, ListedSource], rank: int, separator: str) -> VirtualColumns:
    if not chunks:
        return VirtualColumns.none(rank)
    listed = list(chunks.values())
    if rank:
        numbers = np.array(separator.join(chunks).split(separator), dtype=np.int64)
        coords = numbers.reshape(-1, rank)
    else:
        coords = np.empty((len(chunks), 0), dtype=np.int64)
    return VirtualColumns(
        positions=coords,
        locations=[str(each.location) for each in listed],
        codes=np.arange(len(listed)),
        offsets=np.zeros(len(listed), dtype=np.uint64),
        lengths=np.array([each.status.size or 0 for each in listed], dtype=np.uint64),
        etags=[each.status.etag for each in listed],
        modified=np.array([each.status.last_modified or 0 for each in listed], dtype=np.int64),
    )
