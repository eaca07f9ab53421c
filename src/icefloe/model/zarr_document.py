"""The parts of a `zarr.json` that the engine needs; the document itself stays verbatim."""

from __future__ import annotations

import json
from typing import Any, Literal, cast

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record


class ArrayMetadata(Record, frozen=True):
    """The parts of an array's document that matter to storage."""

    shape: tuple[int, ...]
    grid_shape: tuple[int, ...] | None
    """Number of chunks along each dimension; None for a kind of grid that we do not know."""
    chunk_shape: tuple[int, ...] | None
    """Shape of a chunk (of a shard, with the sharding codec); None if chunks differ in shape."""
    dimension_names: tuple[str | None, ...] | None
    data_type: str
    key_encoding: Literal["default", "v2"]
    key_separator: Literal["/", "."]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def num_chunks(self) -> int | None:
        """Number of chunks that the grid has, initialised or not (H-39)."""
        if self.grid_shape is None:
            return None
        count = 1
        for extent in self.grid_shape:
            count *= extent
        return count


class _Document(msgspec.Struct):
    node_type: str
    zarr_format: Any = None
    attributes: dict[str, Any] | None = None
    shape: Any = None
    data_type: Any = None
    chunk_grid: Any = None
    chunk_key_encoding: Any = None
    fill_value: Any = msgspec.UNSET
    codecs: Any = None
    dimension_names: Any = None


class _Outline(msgspec.Struct):
    """A document whose parts are only cut out, not parsed: enough to see that it is like others."""

    node_type: msgspec.Raw = msgspec.Raw()
    attributes: dict[str, Any] | None = None
    shape: msgspec.Raw = msgspec.Raw()
    data_type: msgspec.Raw = msgspec.Raw()
    chunk_grid: msgspec.Raw = msgspec.Raw()
    chunk_key_encoding: msgspec.Raw = msgspec.Raw()
    fill_value: msgspec.Raw = msgspec.Raw()
    codecs: msgspec.Raw = msgspec.Raw()
    dimension_names: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Document)
_outline_decoder = msgspec.json.Decoder(_Outline)

_MAX_KNOWN = 1024
_MAX_KNOWN_BYTES = 4096
# What the parts of documents mean that were parsed before. A repository may have thousands of
# arrays, and most of them differ in their attributes alone.
_known: dict[tuple[bytes, ...], ArrayMetadata | None] = {}
_UNKNOWN: Any = object()


def parse_document(document: bytes, path: str = "") -> ArrayMetadata | None:
    """Derive an array's metadata; None for a group.

    Raises InvalidInputError ("bad metadata") unless it is a Zarr v3 group or array document.
    """
    try:
        outline = _outline_decoder.decode(document)
    except (ValueError, RecursionError):
        return _parse(document, path)
    parts = (
        bytes(outline.node_type),
        bytes(outline.shape),
        bytes(outline.data_type),
        bytes(outline.chunk_grid),
        bytes(outline.chunk_key_encoding),
        bytes(outline.fill_value),
        bytes(outline.codecs),
        bytes(outline.dimension_names),
    )
    metadata = _known.get(parts, _UNKNOWN)
    if metadata is _UNKNOWN:
        metadata = _parse(document, path)
        if sum(map(len, parts)) <= _MAX_KNOWN_BYTES:
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[parts] = metadata
    return cast("ArrayMetadata | None", metadata)


def _parse(document: bytes, path: str) -> ArrayMetadata | None:
    try:
        parsed = _decode(document)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not a valid zarr.json: {error}") from None
    if parsed.node_type == "group":
        return None
    if parsed.node_type != "array":
        raise _bad(path, f"node_type is 'array' or 'group', found {parsed.node_type!r}")
    shape = _integers(parsed.shape, "shape", path)
    for field in ("data_type", "chunk_grid", "chunk_key_encoding", "codecs"):
        if getattr(parsed, field) is None:
            raise _bad(path, f"an array document needs {field!r}")
    if parsed.fill_value is msgspec.UNSET:
        raise _bad(path, "an array document needs 'fill_value'")
    grid_shape, chunk_shape = _grid(parsed.chunk_grid, shape, path)
    encoding, separator = _key_encoding(parsed.chunk_key_encoding, path)
    return ArrayMetadata(
        shape=shape,
        grid_shape=grid_shape,
        chunk_shape=chunk_shape,
        dimension_names=_dimension_names(parsed.dimension_names, len(shape), path),
        data_type=_name(parsed.data_type),
        key_encoding=encoding,
        key_separator=separator,
    )


def _decode(document: bytes) -> _Document:
    try:
        return _decoder.decode(document)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Zarr writes attributes as Python does, whose JSON also has NaN, Infinity and halves of
        # surrogate pairs. Such datasets exist, and Zarr reads them.
        return msgspec.convert(json.loads(document.decode("utf-8")), _Document)


def _bad(path: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"bad metadata for {path or 'a node'}: {reason}")


def _name(value: Any) -> str:
    """Name of an extension point, given as a string or as an object with a name."""
    if isinstance(value, dict):
        return str(value.get("name", ""))
    return str(value)


def _integers(value: Any, what: str, path: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(v) is int and v >= 0 for v in value):
        raise _bad(path, f"{what} is a list of integers ≥ 0, found {value!r}")
    return tuple(value)


def _dimension_names(value: Any, rank: int, path: str) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != rank:
        raise _bad(path, f"dimension_names has {rank} entries, found {value!r}")
    return tuple(None if v is None else str(v) for v in value)


def _grid(
    grid: Any, shape: tuple[int, ...], path: str
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Number of chunks per dimension, and the chunk shape where all chunks share one."""
    name = _name(grid)
    configuration = grid.get("configuration") or {} if isinstance(grid, dict) else {}
    if name == "regular":
        chunks = _integers(configuration.get("chunk_shape"), "chunk_shape", path)
        if len(chunks) != len(shape):
            raise _bad(path, f"chunk_shape has {len(shape)} entries, found {chunks}")
        pairs = zip(chunks, shape, strict=True)
        return tuple(_regular_count(size, extent, path) for size, extent in pairs), chunks
    if name == "rectilinear" and configuration.get("kind", "inline") == "inline":
        edges = configuration.get("chunk_shapes")
        if not isinstance(edges, list) or len(edges) != len(shape):
            raise _bad(path, f"chunk_shapes has {len(shape)} entries, found {edges!r}")
        dimensions = zip(edges, shape, strict=True)
        return tuple(_rectilinear_count(edge, extent, path) for edge, extent in dimensions), None
    return None, None


def _regular_count(size: int, extent: int, path: str) -> int:
    """Number of chunks along a dimension; Zarr 3.1 gives an empty dimension chunks of size 0."""
    if size == 0 and extent > 0:
        raise _bad(path, f"a dimension of size {extent} cannot have chunks of size 0")
    return -(-extent // size) if size else 0


def _rectilinear_count(edges: Any, extent: int, path: str) -> int:
    """Number of chunks along a dimension: of one size, or of given sizes or `[size, count]`.

    Sizes may reach past the end of the dimension, as they do after it was made smaller.
    """
    if type(edges) is int and edges > 0:
        return -(-extent // edges)
    if not isinstance(edges, list):
        raise _bad(path, f"chunk_shapes has sizes or lists of sizes, found {edges!r}")
    count = covered = 0
    for item in edges:
        size, repeated = item if isinstance(item, list) and len(item) == 2 else (item, 1)
        if type(size) is not int or type(repeated) is not int or size < 1 or repeated < 1:
            raise _bad(path, f"an edge is a positive size or [size, count], found {item!r}")
        needed = min(repeated, -(-max(0, extent - covered) // size))
        count += needed
        covered += needed * size
    if covered < extent:
        raise _bad(path, f"chunks of {covered} elements do not cover a dimension of {extent}")
    return count


def _key_encoding(value: Any, path: str) -> tuple[Literal["default", "v2"], Literal["/", "."]]:
    name = _name(value)
    configuration = value.get("configuration") or {} if isinstance(value, dict) else {}
    if name not in {"default", "v2"}:
        raise _bad(path, f"chunk_key_encoding is 'default' or 'v2', found {name!r}")
    separator = configuration.get("separator", "/" if name == "default" else ".")
    if separator not in {"/", "."}:
        raise _bad(path, f"a chunk key separator is '/' or '.', found {separator!r}")
    return ("default" if name == "default" else "v2"), ("/" if separator == "/" else ".")
