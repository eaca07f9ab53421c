"""Headers: what must be known of a file, or of a group of the repository, to plan an ingest.

A header is small and can be pickled: executors of a cluster read headers, and one process plans.
"""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from icefloe.cf.decoding import coding_of, decoded_attributes
from icefloe.engine.port import parsed_document
from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import (
    ParsedArray,
    ParsedFile,
    array_document,
    chunk_shape_of,
    dimension_names,
    named_by_others,
    numpy_type,
)
from icefloe.ingest.plan import EXISTING, array_path
from icefloe.ingest.quiet import quietly
from icefloe.model.chunk_refs import ChunkKind, VirtualRef
from icefloe.model.record import Record
from icefloe.objects.foreign.source import SourceStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.zarr_store.session_port import SessionPort

MAX_AUTOMATIC_BYTES = 1024 * 1024
"""Coordinates up to this size are loaded without being asked for."""
MAX_LOADED_BYTES = 8 * 1024 * 1024
"""Stored variables of the repository up to this size are read before a plan needs them."""
_PARALLEL_READS = 8


class VariableHeader(Record, frozen=True, eq=False, gc=False):
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
    digest: bytes | None = None
    """Of all values that are not loaded, where they had to be compared with those of others."""

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
        return chunk_shape_of(self.document)

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


class FileHeader(Record, frozen=True, eq=False, gc=False):
    """What planning needs of a file: documents and coordinates, no data.

    `read_header` returns it; it is small and can be pickled.
    """

    url: str
    format: str
    status: SourceStatus | None
    attributes: dict[str, Any]
    variables: dict[str, VariableHeader]

    @property
    def kind(self) -> tuple[int, ...]:
        """Equal for headers whose variables share their documents, while these exist."""
        return tuple([id(variable.document) for variable in self.variables.values()])

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each dimension."""
        return {
            dim: size
            for variable in self.variables.values()
            for dim, size in zip(variable.dims, variable.shape, strict=True)
        }

    @property
    def auxiliary_names(self) -> set[str]:
        """Variables that are coordinates, bounds and the like of others."""
        documents = [variable.document for variable in self.variables.values()]
        return named_by_others(documents, self.attributes)

    def reversed(self, dims: Collection[str]) -> FileHeader:
        """The header of the file with some dimensions in reverse."""
        variables = {}
        for name, variable in self.variables.items():
            axes = tuple(axis for axis, dim in enumerate(variable.dims) if dim in dims)
            if axes and variable.values is not None:
                values = np.flip(variable.values, axes)
                variable = msgspec.structs.replace(variable, values=values)  # noqa: PLW2901
            variables[name] = variable
        return msgspec.structs.replace(self, variables=variables)

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
    """The header of a parsed file; coordinates and requested variables are loaded.

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
            document=array.document,
            chunk_count=len(array.references) + len(array.inline),
            byte_count=int(array.references.lengths.sum()) + sum(map(len, array.inline.values())),
            values=load_values(array, sources) if name in chosen else array.values,
            time_attributes=times.get(name, {}),
        )
        for name, array in parsed.arrays.items()
    }
    return FileHeader(
        url=parsed.url,
        format=parsed.format,
        status=parsed.status,
        attributes=parsed.attributes,
        variables=variables,
    )


def time_attributes(documents: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Units and calendar of each variable whose values are times."""
    times: dict[str, dict[str, Any]] = {}
    for name, document in documents.items():
        attributes = document.get("attributes") or {}
        if " since " in str(attributes.get("units", "")):
            times[name] = attributes
            for bounds in (attributes.get("bounds"), attributes.get("climatology")):
                if bounds in documents:
                    times.setdefault(bounds, attributes)
    return times


def _loaded_names(parsed: ParsedFile, wanted: Iterable[str] | None) -> set[str]:
    chosen = {name for name, array in parsed.arrays.items() if array.dims == (name,)}
    if wanted is not None:
        patterns = list(wanted)
        return chosen | {
            name
            for name in parsed.arrays
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }
    for name in parsed.auxiliary_names & parsed.arrays.keys():
        if _bytes_of(parsed.arrays[name]) <= MAX_AUTOMATIC_BYTES:
            chosen.add(name)
    return chosen | {name for name, array in parsed.arrays.items() if not array.shape}


def _bytes_of(array: ParsedArray) -> int:
    stored = int(array.references.lengths.sum())
    return max(stored, prod(array.shape))


def load_values(array: ParsedArray, sources: VirtualChunkResolver) -> npt.NDArray[Any]:
    """All values of an array, not decoded: as they are in the file."""
    return load_region(array, sources, tuple(slice(0, size) for size in array.shape))


def digest_of(array: ParsedArray, sources: VirtualChunkResolver) -> bytes:
    """A digest of all values of an array, equal for equal values."""
    return digest_of_values(load_values(array, sources))


def digest_of_values(values: npt.NDArray[Any]) -> bytes:
    """A digest of values, their type and shape."""
    data = repr(values.tolist()).encode() if values.dtype.kind in "TO" else values.tobytes()
    return hashlib.sha256(f"{values.dtype} {values.shape} ".encode() + data).digest()


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
    selected = [
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

    if len(selected) <= 1:
        found = list(map(read, selected))
    else:
        with ThreadPoolExecutor(min(_PARALLEL_READS, len(selected))) as threads:
            found = list(threads.map(read, selected))
    return dict(zip(map(tuple, refs.coords[rows].tolist()), found, strict=True))


# --- a group of the repository


def existing_header(session: SessionPort, group: str) -> FileHeader | None:
    """The header of a group of the repository; None if it does not exist or has no arrays."""
    node = session.get_node(group)
    if node is None:
        return None
    if node.is_array:
        raise InvalidInputError(f"{group} is an array; expected a group, or nothing")
    documents = _documents(session, group)
    if not documents:
        return None
    times = time_attributes(documents)
    variables = {
        name: VariableHeader(
            document=document,
            chunk_count=session.chunk_count(array_path(group, name)),
            byte_count=0,
            values=_stored_values(session, group, name, document),
            time_attributes=times.get(name, {}),
        )
        for name, document in documents.items()
    }
    attributes = parsed_document(session.tree, group).get("attributes") or {}
    return FileHeader(
        url=EXISTING, format="icefloe", status=None, attributes=attributes, variables=variables
    )


def _documents(session: SessionPort, group: str) -> dict[str, dict[str, Any]]:
    documents = {}
    for path in session.tree.node_paths(group):
        name = path[len(group.rstrip("/")) + 1 :]
        node = session.get_node(path)
        if node is not None and node.is_array and "/" not in name:
            documents[name] = parsed_document(session.tree, path)
    return documents


def _stored_values(
    session: SessionPort, group: str, name: str, document: dict[str, Any]
) -> npt.NDArray[Any] | None:
    """Values of coordinates, and of small variables that the repository itself stores."""
    path = array_path(group, name)
    shape = document["shape"]
    is_coordinate = list(document.get("dimension_names") or []) == [name]
    if not is_coordinate and prod(shape) * 8 > MAX_LOADED_BYTES:
        return None
    if not is_coordinate and session.chunk_count(path, ChunkKind.VIRTUAL):
        return None
    return _array_values(session, path)


def _array_values(session: SessionPort, path: str) -> npt.NDArray[Any]:
    import zarr

    with quietly():
        array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
        return np.asarray(array[...])


def with_values(
    header: FileHeader, session: SessionPort, group: str, names: Iterable[str]
) -> FileHeader:
    """The header of a group of the repository with the values of more variables."""
    read = {
        name: msgspec.structs.replace(
            header.variables[name], values=_array_values(session, array_path(group, name))
        )
        for name in names
    }
    return msgspec.structs.replace(header, variables={**header.variables, **read})


# --- copies of packed values that are stored decoded; times stay numbers, with their units


def decoded_header(header: FileHeader) -> FileHeader:
    """The header of a file whose copied values are stored decoded."""
    variables = {
        name: each
        if each.values is not None
        else msgspec.structs.replace(each, document=_decoded_document(each.document))
        for name, each in header.variables.items()
    }
    return msgspec.structs.replace(header, variables=variables)


def _decoded_document(document: dict[str, Any]) -> dict[str, Any]:
    attributes = document.get("attributes") or {}
    remaining = decoded_attributes(attributes, times=False)
    if remaining == attributes:
        return document
    dtype = numpy_type(document)
    coding = coding_of(dtype, attributes)
    decoded = coding.number_type if dtype.kind in "iufc" else dtype
    return retyped_document({**document, "attributes": remaining}, decoded)


def retyped_document(document: dict[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """The document of an array whose values are stored as another type."""
    fresh = array_document(
        shape=document["shape"],
        dtype=dtype,
        chunk_shape=chunk_shape_of(document),
        dims=document.get("dimension_names"),
        attributes=document.get("attributes") or {},
        fill_value=np.nan if dtype.kind == "f" else dtype.type(),
    )
    return {**document, **fresh}


def decode_values(values: npt.NDArray[Any], document: dict[str, Any]) -> npt.NDArray[Any]:
    """Values of a variable as users mean them; missing ones are NaN."""
    coding = coding_of(values.dtype, document.get("attributes") or {})
    return coding.decode_numbers(values)
