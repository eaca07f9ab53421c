"""Headers of files: what must be known of each to see how all of them go together.

A header is small and can be pickled: executors of a cluster read headers, and one process plans.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.ingest.parsed import ParsedArray, ParsedFile, dimension_names
from icefloe.ingest.quiet import quietly
from icefloe.model.chunk_refs import VirtualRef
from icefloe.model.record import Record
from icefloe.objects.foreign.source import SourceStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icefloe.objects.foreign import VirtualChunkResolver

MAX_AUTOMATIC_BYTES = 1024 * 1024
"""Coordinates up to this size are loaded without being asked for."""
_PARALLEL_READS = 8
_NAMING_ATTRIBUTES = ("coordinates", "bounds", "climatology", "grid_mapping", "formula_terms")


class VariableHeader(Record, frozen=True, eq=False):
    """One variable of a file."""

    document: dict[str, Any]
    """Its zarr.json, as Python values."""
    chunk_count: int
    """How many of its chunks exist in the file."""
    byte_count: int
    """Bytes of these chunks."""
    values: npt.NDArray[Any] | None = None
    """All values, not decoded, if the variable is to be stored in the repository itself."""
    time_attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    """Units and calendar of times; bounds have those of their coordinate."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return dimension_names(self.document)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
        return tuple(self.document["shape"])

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Number of elements of a chunk."""
        return tuple(self.document["chunk_grid"]["configuration"]["chunk_shape"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Its attributes."""
        found: dict[str, Any] = self.document.get("attributes") or {}
        return found

    @property
    def is_divisible(self) -> bool:
        """Whether its chunks can be cut along the first dimension at any element.

        So it is if their bytes are the elements, in order, and nothing else.
        """
        return (
            bool(self.shape)
            and [codec["name"] for codec in self.document["codecs"]] == ["bytes"]
            and all(c >= s for c, s in zip(self.chunk_shape[1:], self.shape[1:], strict=True))
        )


class FileHeader(Record, frozen=True, eq=False):
    """What is known of a file before it is placed among others."""

    url: str
    format: str
    status: SourceStatus | None
    attributes: dict[str, Any]
    variables: dict[str, VariableHeader]

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each dimension."""
        return {
            dim: size
            for variable in self.variables.values()
            for dim, size in zip(variable.dims, variable.shape, strict=True)
        }

    def coordinate(self, dim: str) -> npt.NDArray[Any] | None:
        """The values along a dimension, if the file has them."""
        variable = self.variables.get(dim)
        if variable is None or variable.dims != (dim,):
            return None
        return variable.values


def header_of(
    parsed: ParsedFile,
    sources: VirtualChunkResolver,
    loadable_variables: Iterable[str] | None = None,
) -> FileHeader:
    """The header of a parsed file; coordinates and what is asked for are loaded.

    Args:
        parsed: What a parser found.
        sources: Where values are read from.
        loadable_variables: Names or patterns of variables to store in the repository itself
            instead of by reference, besides the coordinates of dimensions. By default, scalars
            and small variables that others name as their coordinates, bounds or grid mapping.
    """
    chosen = _loaded_names(parsed, loadable_variables)
    times = time_attributes({name: array.document for name, array in parsed.arrays.items()})
    variables = {
        name: VariableHeader(
            array.document,
            len(array.references) + len(array.inline),
            int(array.references.lengths.sum()) + sum(map(len, array.inline.values())),
            load_values(array, sources) if name in chosen else array.values,
            times.get(name, {}),
        )
        for name, array in parsed.arrays.items()
    }
    return FileHeader(parsed.url, parsed.format, parsed.status, parsed.attributes, variables)


def time_attributes(documents: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Units and calendar of each variable whose values are times."""
    found: dict[str, dict[str, Any]] = {}
    for name, document in documents.items():
        attributes = document.get("attributes") or {}
        if " since " in str(attributes.get("units", "")):
            found[name] = attributes
            for bounds in (attributes.get("bounds"), attributes.get("climatology")):
                if bounds in documents:
                    found.setdefault(bounds, attributes)
    return found


def _loaded_names(parsed: ParsedFile, wanted: Iterable[str] | None) -> set[str]:
    chosen = {name for name, array in parsed.arrays.items() if array.dims == (name,)}
    if wanted is not None:
        patterns = list(wanted)
        return chosen | {
            name
            for name in parsed.arrays
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }
    for name in named_by_others(parsed) & parsed.arrays.keys():
        if _bytes_of(parsed.arrays[name]) <= MAX_AUTOMATIC_BYTES:
            chosen.add(name)
    return chosen | {name for name, array in parsed.arrays.items() if not array.shape}


def named_by_others(parsed: ParsedFile) -> set[str]:
    """Variables that are not data: others say that they are their coordinates or bounds."""
    words: set[str] = set()
    for array in parsed.arrays.values():
        attributes = array.document.get("attributes") or {}
        for attribute in _NAMING_ATTRIBUTES:
            if isinstance(attributes.get(attribute), str):
                words.update(attributes[attribute].replace(":", " ").split())
    if isinstance(parsed.attributes.get("coordinates"), str):
        words.update(parsed.attributes["coordinates"].split())
    return words


def _bytes_of(array: ParsedArray) -> int:
    stored = int(array.references.lengths.sum())
    return max(stored, prod(array.shape))


def load_values(array: ParsedArray, sources: VirtualChunkResolver) -> npt.NDArray[Any]:
    """All values of an array, not decoded: as they are in the file."""
    return load_region(array, sources, tuple(slice(0, size) for size in array.shape))


def load_region(
    array: ParsedArray, sources: VirtualChunkResolver, region: tuple[slice, ...]
) -> npt.NDArray[Any]:
    """The values of a region of an array, not decoded."""
    whole: tuple[Any, ...] = (*region, ...)  # the ellipsis keeps an array without axes an array
    if array.values is not None:
        return np.asarray(array.values[whole])
    if array.reader is not None:
        return array.reader(region)
    plain = _plain_values(array, sources)
    if plain is not None:
        return np.asarray(plain[whole])
    import zarr
    from zarr.core.buffer import cpu
    from zarr.storage import MemoryStore

    document = {**array.document, "chunk_key_encoding": _KEYS}
    held: dict[str, Any] = {"zarr.json": cpu.Buffer.from_bytes(json.dumps(document).encode())}
    for place, data in {**_fetched(array, sources, region), **array.inline}.items():
        held["/".join(("c", *map(str, place)))] = cpu.Buffer.from_bytes(data)
    with quietly():
        opened = zarr.open_array(MemoryStore(held), mode="r", zarr_format=3)
        return np.asarray(opened[region])


def _plain_values(array: ParsedArray, sources: VirtualChunkResolver) -> npt.NDArray[Any] | None:
    """The values of an array whose only chunk is its elements; None for any other."""
    kind, codecs, refs = array.document["data_type"], array.document["codecs"], array.references
    if [codec["name"] for codec in codecs] != ["bytes"] or not isinstance(kind, str):
        return None
    is_whole = all(c >= s for c, s in zip(array.chunk_shape, array.shape, strict=True))
    if not is_whole or len(refs) != 1 or array.inline or not _NUMBER.fullmatch(kind):
        return None
    order = (codecs[0].get("configuration") or {}).get("endian", "little")
    dtype = np.dtype(kind).newbyteorder(">" if order == "big" else "<")
    ref = VirtualRef(refs.locations[0], int(refs.offsets[0]), int(refs.lengths[0]))
    if ref.length != prod(array.chunk_shape) * dtype.itemsize:
        return None
    values = np.frombuffer(sources.read(ref, 0, ref.length), dtype).reshape(array.chunk_shape)
    inside = tuple(map(slice, array.shape))
    return values[inside].astype(dtype.newbyteorder("="))


_NUMBER = re.compile(r"u?int(?:8|16|32|64)|float(?:32|64)")
_KEYS = {"name": "default", "configuration": {"separator": "/"}}


def _fetched(
    array: ParsedArray, sources: VirtualChunkResolver, region: tuple[slice, ...]
) -> dict[tuple[int, ...], bytes]:
    """The bytes of the chunks that a region touches."""
    refs = array.references
    rows = np.arange(len(refs))
    if region:
        chunk = np.array(array.chunk_shape)
        lower = np.array([part.start for part in region]) // chunk
        upper = -(-np.array([part.stop for part in region]) // chunk)
        rows = np.flatnonzero(((refs.coords >= lower) & (refs.coords < upper)).all(axis=1))
    wanted = [
        VirtualRef(refs.locations[code], offset, length)
        for code, offset, length in zip(
            refs.codes[rows].tolist(),
            refs.offsets[rows].tolist(),
            refs.lengths[rows].tolist(),
            strict=True,
        )
    ]

    def read(ref: VirtualRef) -> bytes:
        return sources.read(ref, 0, ref.length)

    if len(wanted) <= 1:
        found = list(map(read, wanted))
    else:
        with ThreadPoolExecutor(min(_PARALLEL_READS, len(wanted))) as threads:
            found = list(threads.map(read, wanted))
    return dict(zip(map(tuple, refs.coords[rows].tolist()), found, strict=True))
