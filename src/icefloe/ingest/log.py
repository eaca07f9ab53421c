"""The log of ingested files: which files a group was made from, when, and their etags.

It is an array of the repository, in the group `.ingested` below the group that it is about, with a
JSON object for each row; so it is part of every snapshot, and of branches and tags. Rows are only
appended. The last row of a file has its current state. A second array has a key for each row, so
that the rows of some files are found without reading the others.
"""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from icefloe.errors import FormatError
from icefloe.ingest.plan import OrderedPlace, array_path
from icefloe.ingest.quiet import quietly
from icefloe.model.record import Record
from icefloe.objects.foreign.source import SourceStatus, same_etag

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import numpy.typing as npt

    from icefloe.zarr_store.session_port import SessionPort

FOLDER = ".ingested"
_NAME = "files"
_KEYS = "keys"
_ROWS_PER_CHUNK = 1024
_KEYS_PER_CHUNK = 65536
_ROWS_PER_WRITE = 16 * _ROWS_PER_CHUNK


class IngestedFile(Record, frozen=True):
    """An entry of the log: a file as it was when it was ingested."""

    url: str
    format: str
    mode: Literal["virtual", "copy"]
    state: Literal["ingested", "quarantined"]
    ingested_at: str
    """UTC, in ISO 8601."""
    size: int | None = None
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970."""
    variables: tuple[str, ...] = ()
    region: dict[str, tuple[str, str]] = {}  # noqa: RUF012 (msgspec copies it)
    """First and last coordinate along each dimension that files are concatenated along."""
    ordered: dict[str, OrderedPlace] = {}  # noqa: RUF012
    """Its position along dimensions that files are concatenated along."""
    error: str = ""
    """Why a quarantined file cannot be read."""

    def is_as(self, status: SourceStatus | None) -> bool:
        """Whether the file has not changed since."""
        if status is None:
            return False
        if self.etag and status.etag:
            return same_etag(self.etag, status.etag)
        return (self.size, self.last_modified) == (status.size, status.last_modified)


def read_ingested(session: SessionPort, group: str) -> list[IngestedFile]:
    """All entries about a group, oldest first."""
    array = _open(session, _path(group))
    if array is None:
        return []
    with quietly():
        return _decoded(np.asarray(array[...]), _path(group))


def latest_of(session: SessionPort, group: str, urls: Collection[str]) -> dict[str, IngestedFile]:
    """The current entry of each of some files, by URL.

    Rows are found by their keys, and only chunks that have some of them are read.
    """
    array, keys = _open(session, _path(group)), _open(session, _path(group, _KEYS))
    if array is None or not urls:
        return {}
    with quietly():
        known = np.zeros(0, np.uint64) if keys is None else np.asarray(keys[...])
    is_asked = np.isin(known, np.array([key_of(url) for url in urls], np.uint64))
    # Rows without a key were written by an older version.
    rows = np.flatnonzero(np.append(is_asked, np.ones(array.shape[0] - len(known), bool)))
    current: dict[str, IngestedFile] = {}
    names = set(urls)
    for chunk in np.unique(rows // _ROWS_PER_CHUNK).tolist():
        first = chunk * _ROWS_PER_CHUNK
        with quietly():
            texts = np.asarray(array[first : first + _ROWS_PER_CHUNK])
        inside = rows[(rows >= first) & (rows < first + _ROWS_PER_CHUNK)] - first
        for entry in _decoded(texts[inside], _path(group)):
            if entry.url in names:
                current[entry.url] = entry
    return current


def key_of(url: str) -> int:
    """The key of a file in the log: a digest of its URL that fits into eight bytes."""
    return int.from_bytes(hashlib.blake2b(url.encode(), digest_size=8).digest(), "little")


def _decoded(texts: npt.NDArray[Any], path: str) -> list[IngestedFile]:
    try:
        decoder = msgspec.json.Decoder(IngestedFile)
        return [decoder.decode(text) for text in texts.tolist()]
    except msgspec.DecodeError as error:
        raise FormatError(f"the table of ingested files at {path} has a bad row: {error}") from None


def _open(session: SessionPort, path: str, mode: Literal["r", "r+"] = "r") -> Any:
    """An array of the log; None if there is none."""
    if session.get_node(path) is None:
        return None
    import zarr

    with quietly():
        return zarr.open_array(session.store, path=path.lstrip("/"), mode=mode)


def record_ingested(session: SessionPort, group: str, entries: Iterable[IngestedFile]) -> None:
    """Append entries about a group, some at a time."""
    remaining = iter(entries)
    while batch := list(islice(remaining, _ROWS_PER_WRITE)):
        _append(session, group, batch)


def _append(session: SessionPort, group: str, rows: Sequence[IngestedFile]) -> None:
    folder, path, keys_path = array_path(group, FOLDER), _path(group), _path(group, _KEYS)
    above = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    for node, document in ((folder, above), (path, _document()), (keys_path, _keys_document())):
        if session.get_node(node) is None:
            session.tree.set_document(node, json.dumps(document).encode())
    array, keys = _open(session, path, "r+"), _open(session, keys_path, "r+")
    before, keyed = array.shape[0], keys.shape[0]
    texts = np.array([msgspec.json.encode(row).decode() for row in rows], np.dtypes.StringDType())
    with quietly():
        # Rows that an older version wrote get their keys now.
        older = _decoded(np.asarray(array[keyed:before]), path) if keyed < before else []
        array.resize((before + len(rows),))
        keys.resize((before + len(rows),))
        array[before:] = texts
        keys[keyed:] = np.array([key_of(row.url) for row in [*older, *rows]], np.uint64)


def ingested_files(session: SessionPort) -> dict[str, list[Any]]:
    """The log of all ingested files of a session as columns, one row per file and ingest.

    Returns:
        The columns `group`, those of `IngestedFile` (`url`, `format`, `mode`, `state`,
        `ingested_at`, …), and `is_current`: whether no later row is about the same file of the
        same group. `icefloe.spark.ingest` writes the log.

    Example:
        >>> from icefloe.virtual import ingested_files
        >>> ingested_files(session)["url"]  # nothing was ingested by a cluster yet
        []
    """
    names = ("group", *IngestedFile.__struct_fields__, "is_current")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    suffix = f"/{FOLDER}/{_NAME}"
    for path in session.tree.node_paths("/"):
        if not path.endswith(suffix):
            continue
        group = path.removesuffix(suffix) or "/"
        rows = read_ingested(session, group)
        last = {row.url: number for number, row in enumerate(rows)}
        for number, row in enumerate(rows):
            columns["group"].append(group)
            columns["is_current"].append(last[row.url] == number)
            for name in IngestedFile.__struct_fields__:
                columns[name].append(getattr(row, name))
    return columns


def _path(group: str, name: str = _NAME) -> str:
    return f"{array_path(group, FOLDER)}/{name}"


def _keys_document() -> dict[str, Any]:
    chunks = {"name": "regular", "configuration": {"chunk_shape": [_KEYS_PER_CHUNK]}}
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    ]
    kind = {"data_type": "uint64", "fill_value": 0, "chunk_grid": chunks, "codecs": codecs}
    return {**_document(), **kind}


def _document() -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [0],
        "data_type": "string",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [_ROWS_PER_CHUNK]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "",
        "codecs": [
            {"name": "vlen-utf8"},
            {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
        ],
        "attributes": {},
        "dimension_names": ["row"],
    }
