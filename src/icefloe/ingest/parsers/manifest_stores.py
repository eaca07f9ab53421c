"""Converts the manifest stores of VirtualiZarr's parsers, whose manifests are columns already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.ingest.parsed import ParsedArray, plain_document
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    from virtualizarr.manifests import ManifestArray, ManifestStore


def arrays_of(manifest_store: ManifestStore) -> tuple[dict[str, ParsedArray], dict[str, Any]]:
    """The arrays of the store's root group, and the group's attributes."""
    group = manifest_store._group  # noqa: SLF001 (there is no public way to it)
    arrays = {name: array_of(array) for name, array in group.arrays.items()}
    return arrays, dict(group.metadata.attributes)


def array_of(array: ManifestArray) -> ParsedArray:
    """One array."""
    document = plain_document(array.metadata)
    manifest = array.manifest
    paths = manifest._paths  # noqa: SLF001 (its columns, which have no public name)
    present = paths != ""
    rank = len(document["shape"])
    if not paths.size or not present.any():
        return ParsedArray(document, VirtualColumns.none(rank))
    coords = np.argwhere(present).astype(np.int64).reshape(int(present.sum()), rank)
    urls, codes = _distinct(paths[present])
    references = VirtualColumns(
        positions=coords,
        locations=urls,
        codes=codes,
        offsets=manifest._offsets[present],  # noqa: SLF001
        lengths=manifest._lengths[present],  # noqa: SLF001
    )
    return ParsedArray(document, references)


def _distinct(paths: Any) -> tuple[list[str], Any]:
    """The distinct strings of a column, and the index of each row's string."""
    if (paths == paths[0]).all():  # nearly always: the file itself
        return [str(paths[0])], np.zeros(len(paths), dtype=np.int64)
    urls, codes = np.unique(paths, return_inverse=True)
    return [str(url) for url in urls], codes.astype(np.int64)
