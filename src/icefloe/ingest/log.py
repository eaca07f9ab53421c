"""The log of ingested files: which files a group was made from, when, and their etags.

It is an array of the repository, in the group `.ingested` below the group that it is about, with a
JSON object for each row; so it is part of every snapshot, and of branches and tags. Rows are only
appended. The last row of a file has its current state.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from icefloe.errors import FormatError
from icefloe.ingest.plan import array_path
from icefloe.ingest.quiet import quietly
from icefloe.model.record import Record
from icefloe.objects.foreign.source import SourceStatus, same_etag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.session import Session

FOLDER = ".ingested"
_NAME = "files"
_ROWS_PER_CHUNK = 1024


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
    error: str = ""
    """Why a quarantined file cannot be read."""

    def is_as(self, status: SourceStatus | None) -> bool:
        """Whether the file has not changed since."""
        if status is None:
            return False
        if self.etag and status.etag:
            return same_etag(self.etag, status.etag)
        return (self.size, self.last_modified) == (status.size, status.last_modified)


def read_ingested(session: Session, group: str) -> list[IngestedFile]:
    """All entries about a group, oldest first."""
    path = _path(group)
    if session.get_node(path) is None:
        return []
    import zarr

    with quietly():
        array = zarr.open_array(session.store, path=path.lstrip("/"), mode="r")
        rows = np.asarray(array[...]).tolist()
    try:
        decoder = msgspec.json.Decoder(IngestedFile)
        return [decoder.decode(row) for row in rows]
    except msgspec.DecodeError as error:
        raise FormatError(f"the table of ingested files at {path} has a bad row: {error}") from None


def latest(rows: Sequence[IngestedFile]) -> dict[str, IngestedFile]:
    """The current entry of each file, by URL."""
    return {row.url: row for row in rows}


def record_ingested(session: Session, group: str, rows: Sequence[IngestedFile]) -> None:
    """Append entries about a group."""
    if not rows:
        return
    import zarr

    path = _path(group)
    folder = array_path(group, FOLDER)
    if session.get_node(folder) is None:
        document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        session.tree.set_document(folder, json.dumps(document).encode())
    if session.get_node(path) is None:
        session.tree.set_document(path, json.dumps(_document()).encode())
    texts = np.array([msgspec.json.encode(row).decode() for row in rows], np.dtypes.StringDType())
    with quietly():
        array = zarr.open_array(session.store, path=path.lstrip("/"), mode="r+")
        before = array.shape[0]
        array.resize((before + len(rows),))
        array[before:] = texts


def ingested_files(session: Session) -> dict[str, list[Any]]:
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


def _path(group: str) -> str:
    return f"{array_path(group, FOLDER)}/{_NAME}"


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
