"""Parses kerchunk references (JSON or Parquet) into columns.

VirtualiZarr's parser is not used because it refuses inline chunks.
"""

from __future__ import annotations

import base64
import re
from math import prod
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import (
    ParsedArray,
    ParsedFile,
    array_document,
    chunk_shape_of,
    with_missing_value,
)
from icefloe.ingest.parsers.zarr2 import is_text, text_document
from icefloe.model.bounded_text import json_value
from icefloe.model.virtual_columns import VirtualColumns

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.ingest.authorized import AuthorizedStore

_TEMPLATE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_METADATA = (".zarray", ".zattrs", ".zgroup", ".zmetadata")


def parse_kerchunk_json(url: str, store: AuthorizedStore, group: str | None = None) -> ParsedFile:
    """Read a JSON file of references."""
    try:
        document = json_value(store.read(url), max_nesting=None)
    except ValueError as error:
        raise _damaged(url, f"it is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise _damaged(url, "it is no JSON object")
    if document.get("gen"):
        raise _damaged(url, "references made by rules (`gen`) are not supported; write them out")
    refs = document.get("refs", document)
    templates = document.get("templates") or {}
    tree = _Tree(refs, group, url)
    arrays = {name: _from_json(tree, name, templates, url) for name in tree.array_names()}
    status = store.status(url)
    return ParsedFile(
        url=url,
        format="kerchunk",
        status=status,
        arrays=_sized(arrays, store),
        attributes=tree.attributes(),
    )


def parse_kerchunk_parquet(
    url: str, store: AuthorizedStore, group: str | None = None
) -> ParsedFile:
    """Read a folder of Parquet files of references."""
    base = url.rstrip("/")
    metadata_url = f"{base}/.zmetadata"
    try:
        document = json_value(store.read(metadata_url), max_nesting=None)
        rows_per_file = int(document["record_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(url, f"its .zmetadata cannot be read: {error!r}") from None
    if rows_per_file < 1:
        raise _damaged(url, f"its record_size is {rows_per_file}")
    tree = _Tree(document["metadata"], group, url)
    arrays = {
        name: _from_parquet(tree, name, base, rows_per_file, store) for name in tree.array_names()
    }
    status = store.status(metadata_url)
    return ParsedFile(
        url=url,
        format="kerchunk",
        status=status,
        arrays=_sized(arrays, store),
        attributes=tree.attributes(),
    )


class _Tree:
    """The keys of a group of a Zarr 2 hierarchy."""

    def __init__(self, refs: Any, group: str | None, url: str) -> None:
        if not isinstance(refs, dict):
            raise _damaged(url, "it has no object of references")
        self.prefix = f"{group.strip('/')}/" if group and group.strip("/") else ""
        self.refs: dict[str, Any] = refs
        self._url = url
        if self.prefix and f"{self.prefix}.zgroup" not in refs:
            raise InvalidInputError(f"{url} has no group {group!r}")
        self._keys: dict[str, list[str]] = {}
        for key in refs:
            if key.startswith(self.prefix):
                name, _, rest = key[len(self.prefix) :].partition("/")
                if rest:
                    self._keys.setdefault(name, []).append(rest)

    def array_names(self) -> list[str]:
        """Names of the arrays of the group itself."""
        return [name for name, keys in self._keys.items() if ".zarray" in keys]

    def chunk_keys(self, name: str) -> list[str]:
        """Keys of the chunks of an array."""
        return [key for key in self._keys[name] if key not in _METADATA]

    def get(self, name: str, key: str) -> Any:
        """The entry at a key of an array."""
        return self.refs[f"{self.prefix}{name}/{key}"]

    def json(self, key: str) -> dict[str, Any]:
        """A metadata document; empty if there is none."""
        value = self.refs.get(f"{self.prefix}{key}", "{}")
        try:
            value = json_value(value) if isinstance(value, str) else value
        except ValueError as error:
            raise _damaged(self._url, f"{key} is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise _damaged(self._url, f"{key} is no JSON object")
        return value

    def attributes(self) -> dict[str, Any]:
        """Attributes of the group."""
        return self.json(".zattrs")

    def document(self, name: str) -> dict[str, Any]:
        """The Zarr 3 document of a Zarr 2 array."""
        zarray, attributes = self.json(f"{name}/.zarray"), self.json(f"{name}/.zattrs")
        dims = attributes.pop("_ARRAY_DIMENSIONS", None)
        if is_text(zarray):
            return text_document(zarray, dims, attributes)
        dtype = np.dtype(zarray["dtype"])
        codecs = list(zarray.get("filters") or [])
        compressor = zarray.get("compressor")
        if compressor:
            codecs += compressor if isinstance(compressor, list) else [compressor]
        if zarray.get("order") == "F":
            order = list(range(len(zarray["shape"])))[::-1]
            codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
        return array_document(
            shape=zarray["shape"],
            dtype=dtype,
            chunk_shape=zarray["chunks"],
            dims=dims,
            attributes=with_missing_value(attributes, zarray.get("fill_value"), dtype),
            fill_value=_fill_value(zarray.get("fill_value"), dtype),
            codecs=codecs,
        )


def _fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.nan if value is None or value in ("NaN", "nan") else float(value)
    if value is None:
        return dtype.type() if dtype.kind != "S" else b""
    return base64.b64decode(value) if dtype.kind == "S" and isinstance(value, str) else value


def _from_json(tree: _Tree, name: str, templates: dict[str, str], url: str) -> ParsedArray:
    document = tree.document(name)
    rank = len(document["shape"])
    keys = tree.chunk_keys(name)
    entries = [tree.get(name, key) for key in keys]
    coords = _coords(keys, rank, name, url)
    inline = {
        tuple(place): _inline_bytes(entry)
        for place, entry in zip(coords.tolist(), entries, strict=True)
        if isinstance(entry, str)
    }
    rows = [row for row, entry in enumerate(entries) if isinstance(entry, list)]
    if len(rows) + len(inline) != len(entries):
        raise _damaged(url, f"a chunk of {name} is neither text nor a list")
    chosen = [entries[row] for row in rows]
    distinct: dict[str, int] = {}
    codes = [distinct.setdefault(entry[0], len(distinct)) for entry in chosen]
    urls = [_absolute(_filled(path, templates), url) for path in distinct]
    offsets = [entry[1] if len(entry) == 3 else 0 for entry in chosen]
    lengths = [entry[2] if len(entry) == 3 else 0 for entry in chosen]
    references = VirtualColumns(
        positions=coords[rows],
        locations=urls,
        codes=np.array(codes, dtype=np.int64),
        offsets=np.array(offsets, dtype=np.uint64),
        lengths=np.array(lengths, dtype=np.uint64),
    )
    return ParsedArray(document, references, inline)


def _from_parquet(
    tree: _Tree, name: str, base: str, rows_per_file: int, store: AuthorizedStore
) -> ParsedArray:
    import pyarrow as pa
    import pyarrow.parquet as pq

    document = tree.document(name)
    chunk_shape = chunk_shape_of(document)
    grid = [-(-size // chunk) for size, chunk in zip(document["shape"], chunk_shape, strict=True)]
    count = prod(grid)
    if count == 0:
        return ParsedArray(document, VirtualColumns.none(len(grid)))
    # One by one: the number of files follows from the document, which may be wrong.
    files = (
        f"{base}/{tree.prefix}{name}/refs.{number}.parq"
        for number in range(-(-count // rows_per_file))
    )
    table = pa.concat_tables(
        [pq.read_table(pa.BufferReader(store.read(file))) for file in files],
        promote_options="permissive",
    ).slice(0, count)
    if table.num_rows != count:
        raise _damaged(base, f"{name} has {count} chunks, found {table.num_rows} references")
    raw = table.column("raw").to_pylist() if "raw" in table.column_names else []
    coords = np.stack(np.unravel_index(np.arange(count), grid or (1,)), axis=1)[:, : len(grid)]
    held = {row: data for row, data in enumerate(raw) if data is not None}
    inline = {tuple(coords[row].tolist()): data for row, data in held.items()}
    paths = table.column("path").cast(pa.string()).combine_chunks().dictionary_encode()
    codes = paths.indices.to_numpy(zero_copy_only=False)
    present = ~paths.is_null().to_numpy(zero_copy_only=False)
    present[list(held)] = False
    references = VirtualColumns(
        positions=coords[present].astype(np.int64),
        locations=[_absolute(path, base) for path in paths.dictionary.to_pylist()],
        codes=codes[present].astype(np.int64),
        offsets=table.column("offset").to_numpy()[present].astype(np.uint64),
        lengths=table.column("size").to_numpy()[present].astype(np.uint64),
    )
    return ParsedArray(document, references, inline)


def _sized(arrays: dict[str, ParsedArray], store: AuthorizedStore) -> dict[str, ParsedArray]:
    """Fill in the lengths of references to whole files."""
    sized = {}
    for name, each in arrays.items():
        refs = each.references
        whole = np.flatnonzero(refs.lengths == 0)
        if len(whole):
            lengths = refs.lengths.copy()
            codes = refs.codes[whole].tolist()
            sizes = {code: store.status(refs.locations[code]).size for code in set(codes)}
            lengths[whole] = [sizes[code] or 0 for code in codes]
            refs = msgspec.structs.replace(refs, lengths=lengths)
        sized[name] = msgspec.structs.replace(each, references=refs)
    return sized


def _coords(keys: list[str], rank: int, name: str, url: str) -> npt.NDArray[np.int64]:
    if rank == 0:
        return np.empty((len(keys), 0), dtype=np.int64)
    try:
        numbers = np.array(".".join(keys).replace("/", ".").split("."), dtype=np.int64)
        return numbers.reshape(len(keys), rank)
    except ValueError:
        if not keys:
            return np.empty((0, rank), dtype=np.int64)
        raise _damaged(url, f"the keys of chunks of {name} have not {rank} numbers") from None


def _inline_bytes(text: str) -> bytes:
    if text.startswith("base64:"):
        return base64.b64decode(text.removeprefix("base64:"))
    return text.encode("latin-1") if text.isascii() else text.encode("utf-8")


def _filled(path: Any, templates: dict[str, str]) -> str:
    if not isinstance(path, str):
        raise InvalidInputError(f"the file of a chunk is text, found {path!r}")
    return _TEMPLATE.sub(lambda match: templates.get(match[1], match[0]), path)


def _absolute(path: str, references_url: str) -> str:
    """The absolute URL of a referenced file; relative URLs start at the reference file."""
    try:
        scheme = urlsplit(path).scheme
    except ValueError as error:
        raise _damaged(references_url, f"{path!r} is no URL: {error}") from None
    if scheme:
        return path
    if path.startswith("/"):
        return f"file://{quote(path)}"
    return f"{references_url.rpartition('/')[0]}/{quote(path)}"


def _damaged(url: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{url} cannot be read as kerchunk references: {reason}")
