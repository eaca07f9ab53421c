"""Converts Zarr 2 metadata that zarr cannot convert: strings, and filters of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.ingest.parsed import array_document

_TEXT = "vlen-utf8"
_OF_BYTES = frozenset(
    {
        *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "shuffle"),
        *("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"),
    }
)
"""Codecs from bytes to bytes: as filters they belong behind the one that makes bytes."""


def is_text(zarray: dict[str, Any]) -> bool:
    """Whether an array has variable-length strings."""
    filters = zarray.get("filters") or []
    return bool(zarray.get("dtype") == "|O" and filters and filters[0].get("id") == _TEXT)


def text_document(
    zarray: dict[str, Any], dims: list[str] | None, attributes: dict[str, Any]
) -> dict[str, Any]:
    """The zarr.json of an array of strings; its chunks are the same in both versions."""
    fill = zarray.get("fill_value")
    codecs: list[dict[str, Any]] = [{"name": _TEXT}, *zarray["filters"][1:]]
    if zarray.get("compressor"):
        codecs.append(zarray["compressor"])
    if zarray.get("order") == "F":
        order = list(range(len(zarray["shape"])))[::-1]
        codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    return array_document(
        shape=zarray["shape"],
        dtype=np.dtypes.StringDType(),
        chunk_shape=zarray["chunks"],
        dims=dims,
        attributes=attributes,
        fill_value=fill if isinstance(fill, str) else "",
        codecs=codecs,
    )


def without_filters_of_bytes(
    zarray: dict[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document of an array without filters of bytes, and these as codecs of Zarr 3.

    The compressor is applied after the filters, so it is removed along with them.
    """
    from virtualizarr.codecs import zarr_codec_config_to_v3

    filters = list(zarray.get("filters") or [])
    start = next((i for i, each in enumerate(filters) if each.get("id") in _OF_BYTES), None)
    if start is None:
        return zarray, []
    taken = filters[start:] + ([zarray["compressor"]] if zarray.get("compressor") else [])
    rest = {**zarray, "filters": filters[:start] or None, "compressor": None}
    return rest, [dict(zarr_codec_config_to_v3(each)) for each in taken]
