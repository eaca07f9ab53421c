"""What executors do when files are ingested: read headers, place references, copy values.

No pyspark here. One broken file is a row of the result and no failure of the task.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import ChunkGrid, Piece, Region, shape_of, split
from icefloe.errors import StorageError, VirtualChunkError
from icefloe.ingest.apply import write_references
from icefloe.ingest.decoded import decode_values, decoded_document
from icefloe.ingest.headers import FileHeader, header_of, load_region
from icefloe.ingest.place import place_references
from icefloe.ingest.plan import VariablePlan
from icefloe.ingest.referencing import ParseOptions, read_file
from icefloe.model.nodes import expect_array
from icefloe.model.record import Record
from icefloe.objects.foreign.source import SourceStatus
from icefloe.spark.engine.tasks import Output
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.filling import outputs_of
from icefloe.tables.summarize import Summaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.ingest.ingested import IngestedFile
    from icefloe.ingest.parsed import ParsedFile
    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.session import Session

BLOCK_BYTES = 128 * 1024 * 1024
"""How many bytes of an array a task holds at a time."""
_OPEN_FILES = 8

OK, SAME, BROKEN = "ok", "same", "broken"


# --- headers


class HeaderWork(Record, frozen=True, eq=False):
    """What all tasks that read headers share."""

    session: SessionSpec
    options: ParseOptions
    decode: bool
    kept_bytes: int = 0
    """How many bytes of references of a file are returned, so that it is not parsed again."""


def read_headers(
    files: tuple[tuple[str, IngestedFile | None], ...], shared: HeaderWork
) -> Iterator[Output]:
    """Read the headers of files; of one that is as it was when it was ingested, only that."""
    sources = shared.session.open().tree.virtual_sources
    rows = [_header_row(url, known, sources, shared) for url, known in files]
    columns = zip(*rows, strict=True)
    names = ("url", "state", "header", "error", "status", "parsed")
    arrays = [pa.array(list(column)) for column in columns]
    yield Output("headers", pa.table(dict(zip(names, arrays, strict=True))))


def _header_row(
    url: str, known: IngestedFile | None, sources: VirtualChunkResolver, shared: HeaderWork
) -> tuple[str, str, bytes, str, bytes, bytes]:
    status: SourceStatus | None = None
    try:
        status = sources.status(url)
        if known is not None and known.is_as(status):
            return url, SAME, b"", known.error, _packed(status), b""
        parsed = read_file(url, sources, shared.options)
        header = _header(parsed, sources, shared)
        # Of other files, such as Zarr stores, only parsing tells whether they have changed.
        is_one_object = status == header.status
        status = header.status
        if known is not None and known.is_as(status):
            return url, SAME, b"", known.error, _packed(status), b""
        kept = _references_of(parsed, shared.kept_bytes if is_one_object else 0)
    except (StorageError, MemoryError):
        raise  # Spark tries again
    except Exception as error:  # noqa: BLE001 (whatever a file is like, it is no reason to stop)
        return url, BROKEN, b"", f"{type(error).__name__}: {error}", _packed(status), b""
    return url, OK, pickle.dumps(header), "", _packed(status), kept


def _references_of(parsed: ParsedFile, most: int) -> bytes:
    """What places the references of a file; nothing if it has too many of them."""
    if sum(each.references.offsets.nbytes for each in parsed.arrays.values()) > most:
        return b""
    arrays = {
        name: msgspec.structs.replace(each, values=None, reader=None)
        for name, each in parsed.arrays.items()
    }
    kept = pickle.dumps(msgspec.structs.replace(parsed, arrays=arrays))
    return kept if len(kept) <= most else b""


def _packed(status: SourceStatus | None) -> bytes:
    return msgspec.json.encode(status)


def unpacked_status(data: bytes) -> SourceStatus | None:
    """The status in a row of headers."""
    return msgspec.json.decode(data, type=SourceStatus | None)


def _header(parsed: ParsedFile, sources: VirtualChunkResolver, shared: HeaderWork) -> FileHeader:
    header = header_of(parsed, sources, shared.options.loadable_variables)
    if not shared.decode:
        return header
    variables = {
        name: each
        if each.values is not None
        else msgspec.structs.replace(each, document=decoded_document(each.document))
        for name, each in header.variables.items()
    }
    return msgspec.structs.replace(header, variables=variables)


# --- references


class ReferenceWork(Record, frozen=True, eq=False):
    """What all tasks that place references share."""

    session: SessionSpec
    options: ParseOptions
    group: str
    variables: dict[str, VariablePlan]
    check: str
    statistics: tuple[str, ...] = ()
    """Arrays of whose chunks statistics are made, for which all values are read."""


class PlacedFile(NamedTuple):
    """A file, what it was like when it was planned, and where its variables begin."""

    url: str
    status: SourceStatus | None
    starts: dict[str, tuple[int, ...]]
    parsed: bytes = b""
    """What it was parsed to when its header was read, if that is small."""


def write_file_references(files: tuple[PlacedFile, ...], shared: ReferenceWork) -> Iterator[Output]:
    """Set the references of files at their places."""
    part = shared.session.open_part()
    found: dict[str, list[Any]] = {}
    for url, status, starts, kept in files:
        with doing(source=url):
            if kept:
                parsed = pickle.loads(kept)
                _check_unchanged(url, part.tree.virtual_sources.status(url), status)
            else:
                parsed = read_file(url, part.tree.virtual_sources, shared.options)
                _check_unchanged(url, parsed.status, status)
            for name, start in starts.items():
                variable = shared.variables[name]
                refs = place_references(parsed, name, variable, start, check=shared.check)
                found.setdefault(name, []).append(refs)
    write_references(part, shared.group, found)
    summaries = Summaries(part, shared.statistics)
    if shared.statistics:
        for path, (chunks, _) in part.tree.written_chunks().items():
            if chunks is not None:
                summaries.add_chunks(path, chunks.index.coords())
    yield from outputs_of(part, 0, summaries)


def _check_unchanged(url: str, now: SourceStatus | None, status: SourceStatus | None) -> None:
    if now != status:
        raise VirtualChunkError(
            f"{url} changed while it was ingested: it was {status}, and is {now} now; ingest it "
            "again when it is complete"
        )


# --- copies


class CopiedVariable(Record, frozen=True, eq=False):
    """Where the values of a variable come from."""

    name: str
    grid: ChunkGrid
    files: tuple[str, ...]
    boxes: npt.NDArray[np.int64]
    """For each file and dimension, first element and the one after the last (n, rank, 2)."""
    fill_value: Any
    dtype: np.dtype[Any]
    old_positions: tuple[npt.NDArray[np.int64] | None, ...] | None = None
    """By dimension, where old elements are now; None where all stay. Without, there are none."""


class CopyWork(Record, frozen=True, eq=False):
    """What all tasks that copy values share."""

    session: SessionSpec
    base: SessionSpec
    """What the repository had before."""
    options: ParseOptions
    decode: bool
    variables: dict[str, CopiedVariable]
    statuses: dict[str, SourceStatus | None]
    statistics: tuple[str, ...] = ()
    """Arrays of whose chunks statistics are made."""


def copy_values(pieces: tuple[Piece, ...], shared: CopyWork) -> Iterator[Output]:
    """Fill chunks with the values of files, and with old ones where no file has any."""
    part = shared.session.open_part()
    opened = _OpenFiles(part.tree.virtual_sources, shared)
    summaries = Summaries(part, shared.statistics)
    read = 0
    for piece in pieces:
        variable = shared.variables[piece.array]
        cells = max(1, BLOCK_BYTES // variable.grid.chunk_bytes)
        for box in split(piece.box, cells):
            region = variable.grid.region(box)
            with doing(array=piece.array, region=region):
                values = _values(variable, region, opened, shared)
                part.write_region(piece.array, region, values)
                summaries.add(piece.array, region, values)
                read += values.nbytes
    yield from outputs_of(part, read, summaries)


def _values(
    variable: CopiedVariable, region: Region, opened: _OpenFiles, shared: CopyWork
) -> npt.NDArray[Any]:
    lower = np.array([part.start for part in region], dtype=np.int64)
    upper = np.array([part.stop for part in region], dtype=np.int64)
    boxes = variable.boxes
    overlaps = ((boxes[..., 0] < upper) & (boxes[..., 1] > lower)).all(axis=1)
    values = np.full(shape_of(region), variable.fill_value, variable.dtype)
    rows = np.flatnonzero(overlaps)
    starts = np.maximum(boxes[rows, :, 0], lower)
    stops = np.minimum(boxes[rows, :, 1], upper)
    covered = int(np.prod(stops - starts, axis=1).sum()) if len(rows) else 0
    if variable.old_positions is not None and covered < values.size:
        _put_old(values, variable, region, shared)
    for row, start, stop in zip(rows.tolist(), starts, stops, strict=True):
        first = boxes[row, :, 0]
        inside = tuple(map(slice, (start - first).tolist(), (stop - first).tolist()))
        target = tuple(map(slice, (start - lower).tolist(), (stop - lower).tolist()))
        url = variable.files[row]
        with doing(source=url):
            values[target] = opened.read(url, variable.name, inside)
    return values


def _put_old(
    values: npt.NDArray[Any], variable: CopiedVariable, region: Region, shared: CopyWork
) -> None:
    """Put what the repository had before at its places."""
    assert variable.old_positions is not None
    session = shared.base.open()
    old_shape = _old_shape(session, variable.grid.path)
    wanted, targets = [], []
    for part, size, positions in zip(region, old_shape, variable.old_positions, strict=True):
        if positions is None:
            stop = max(part.start, min(part.stop, size))
            wanted.append(slice(part.start, stop))
            targets.append(np.arange(stop - part.start))
        else:
            first, last = np.searchsorted(positions, [part.start, part.stop]).tolist()
            wanted.append(slice(first, last))
            targets.append(positions[first:last] - part.start)
    if all(len(target) for target in targets):
        values[np.ix_(*targets)] = session.read_region(variable.grid.path, tuple(wanted))


def _old_shape(session: Session, path: str) -> tuple[int, ...]:
    return expect_array(session.get_node(path), path).array.shape


class _OpenFiles:
    """The last few files that a task reads from."""

    def __init__(self, sources: VirtualChunkResolver, shared: CopyWork) -> None:
        self._sources = sources
        self._shared = shared
        self._parsed: OrderedDict[str, ParsedFile] = OrderedDict()

    def read(self, url: str, name: str, region: Region) -> npt.NDArray[Any]:
        parsed = self._parsed.get(url)
        if parsed is None:
            parsed = read_file(url, self._sources, self._shared.options)
            _check_unchanged(url, parsed.status, self._shared.statuses[url])
            self._parsed[url] = parsed
            if len(self._parsed) > _OPEN_FILES:
                self._parsed.popitem(last=False)
        array = parsed.arrays[name]
        values = load_region(array, self._sources, region)
        return decode_values(values, array.document) if self._shared.decode else values
