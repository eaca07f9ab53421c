"""What executors do in an ingest: read headers, place references, copy values.

No pyspark here. A broken file is a row of the result, and no failure of the task.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import ChunkGrid, Piece, Region, shape_of, split
from icefloe.ingest.apply import write_references
from icefloe.ingest.header_batches import pack
from icefloe.ingest.headers import decode_values, digest_of, load_region, load_values
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.parsed import ParsedFile
from icefloe.ingest.place import place_references
from icefloe.ingest.plan import VariablePlan
from icefloe.ingest.read import check_unchanged, examine_file, read_file
from icefloe.model.nodes import expect_array
from icefloe.model.record import Record
from icefloe.objects.foreign.source import SourceStatus
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.fill import outputs_of
from icefloe.tables.summarize import Summaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.ingest.driver import FileToRead, PlacedFile
    from icefloe.ingest.place import PlacedChunks
    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.zarr_store.session_port import SessionPort

BLOCK_BYTES = 128 * 1024 * 1024
"""How many bytes of an array a task holds at a time."""
_OPEN_FILES = 8


# --- headers


class HeaderWork(Record, frozen=True, eq=False):
    """What all tasks that read headers share."""

    session: SessionSpec
    options: IngestOptions
    max_parsed_bytes: int = 0
    """How much of a parsed file is returned, so that it is not parsed again."""


def read_headers(files: tuple[FileToRead, ...], work: HeaderWork) -> Iterator[TaskOutput]:
    """Examine files; the results of a task are one pickle."""
    sources = work.session.open().tree.virtual_sources
    results = []
    for url, logged, listed in files:
        result = examine_file(url, logged, listed, sources, work.options)
        if isinstance(result.parsed, ParsedFile):
            result = result._replace(parsed=_packed(result.parsed, work.max_parsed_bytes))
        results.append(result)
    yield _row_of("headers", pack(results))


def read_values(files: tuple[tuple[str, str], ...], work: HeaderWork) -> Iterator[TaskOutput]:
    """All values of some variables, which many files share."""
    sources = work.session.open().tree.virtual_sources
    values = {}
    for url, name in files:
        with doing(source=url):
            parsed = read_file(url, sources, work.options.parse)
            values[url, name] = load_values(parsed.arrays[name], sources)
    yield _row_of("values", pickle.dumps(values))


def read_digests(
    files: tuple[tuple[str, list[str]], ...], work: HeaderWork
) -> Iterator[TaskOutput]:
    """Digests of the values of some variables of files, to compare them with each other."""
    sources = work.session.open().tree.virtual_sources
    digests = {}
    for url, names in files:
        with doing(source=url):
            parsed = read_file(url, sources, work.options.parse)
            for name in names:
                digests[url, name] = digest_of(parsed.arrays[name], sources)
    yield _row_of("digests", pickle.dumps(digests))


def _row_of(name: str, packed: bytes) -> TaskOutput:
    return TaskOutput(name, pa.table({"result": pa.array([packed], pa.binary())}))


def _packed(parsed: ParsedFile, most: int) -> bytes | None:
    """What places the references of a file, pickled; None if that is too much."""
    if sum(each.references.offsets.nbytes for each in parsed.arrays.values()) > most:
        return None
    arrays = {
        name: msgspec.structs.replace(each, values=None, reader=None)
        for name, each in parsed.arrays.items()
    }
    packed = pickle.dumps(msgspec.structs.replace(parsed, arrays=arrays))
    return packed if len(packed) <= most else None


# --- references


class ReferenceWork(Record, frozen=True, eq=False):
    """What all tasks that place references share."""

    session: SessionSpec
    options: IngestOptions
    variables: dict[str, VariablePlan]
    statistics: tuple[str, ...] = ()
    """Arrays of whose chunks statistics are made, for which all values are read."""


def write_file_references(
    files: tuple[PlacedFile, ...], work: ReferenceWork
) -> Iterator[TaskOutput]:
    """Set the references of files at their places."""
    part = work.session.open_part()
    options = work.options
    placed: dict[str, list[PlacedChunks]] = {}
    for file in files:
        with doing(source=file.url):
            if isinstance(file.parsed, bytes):
                parsed: ParsedFile = pickle.loads(file.parsed)
                check_unchanged(file.url, part.tree.virtual_sources.status(file.url), file.status)
            else:
                parsed = read_file(file.url, part.tree.virtual_sources, options.parse)
                check_unchanged(file.url, parsed.status, file.status)
            for name, start in file.starts.items():
                variable = work.variables[name]
                chunks = place_references(parsed, name, variable, start, check=options.check)
                placed.setdefault(name, []).append(chunks)
    write_references(part, options.group, placed)
    summaries = Summaries(part, work.statistics)
    if work.statistics:
        for path, (chunks_of_array, _) in part.tree.written_chunks().items():
            if chunks_of_array is not None:
                summaries.add_chunks(path, chunks_of_array.index.coords())
    yield from outputs_of(part, 0, summaries)


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
    overlaps: bool = False
    """Whether several files have the same elements; of these, the last one is taken."""
    flipped: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """By file, the axes along which its values are reversed."""


class CopyWork(Record, frozen=True, eq=False):
    """What all tasks that copy values share."""

    session: SessionSpec
    base: SessionSpec
    """What the repository had before."""
    options: IngestOptions
    variables: dict[str, CopiedVariable]
    statuses: dict[str, SourceStatus | None]
    statistics: tuple[str, ...] = ()
    """Arrays of whose chunks statistics are made."""


def copy_values(pieces: tuple[Piece, ...], work: CopyWork) -> Iterator[TaskOutput]:
    """Fill chunks with the values of files, and with old ones where no file has any."""
    part = work.session.open_part()
    opened = _OpenFiles(part.tree.virtual_sources, work)
    summaries = Summaries(part, work.statistics)
    read = 0
    for piece in pieces:
        variable = work.variables[piece.array]
        cells = max(1, BLOCK_BYTES // variable.grid.chunk_bytes)
        for box in split(piece.box, cells):
            region = variable.grid.region(box)
            with doing(array=piece.array, region=region):
                values = _values(variable, region, opened, work)
                part.write_region(piece.array, region, values)
                summaries.add(piece.array, region, values)
                read += values.nbytes
    yield from outputs_of(part, read, summaries)


def _values(
    variable: CopiedVariable, region: Region, opened: _OpenFiles, work: CopyWork
) -> npt.NDArray[Any]:
    lower = np.array([part.start for part in region], dtype=np.int64)
    upper = np.array([part.stop for part in region], dtype=np.int64)
    boxes = variable.boxes
    overlaps = ((boxes[..., 0] < upper) & (boxes[..., 1] > lower)).all(axis=1)
    values = np.full(shape_of(region), variable.fill_value, variable.dtype)
    rows = np.flatnonzero(overlaps)
    starts = np.maximum(boxes[rows, :, 0], lower)
    stops = np.minimum(boxes[rows, :, 1], upper)
    # Of files that overlap, the one that is preferred comes last; their sum means nothing then.
    covered = int(np.prod(stops - starts, axis=1).sum()) if len(rows) else 0
    if variable.old_positions is not None and (covered < values.size or variable.overlaps):
        _put_old(values, variable, region, work)
    for row, start, stop in zip(rows.tolist(), starts, stops, strict=True):
        first = boxes[row, :, 0]
        inside = tuple(map(slice, (start - first).tolist(), (stop - first).tolist()))
        target = tuple(map(slice, (start - lower).tolist(), (stop - lower).tolist()))
        url = variable.files[row]
        with doing(source=url):
            axes = variable.flipped.get(url, ())
            sizes = (boxes[row, :, 1] - first).tolist()
            values[target] = np.flip(
                opened.read(url, variable.name, _mirrored(inside, sizes, axes)), axes
            )
    return values


def _mirrored(region: Region, sizes: list[int], axes: tuple[int, ...]) -> Region:
    """The same region counted from the other end of some axes."""
    return tuple(
        slice(size - part.stop, size - part.start) if axis in axes else part
        for axis, (part, size) in enumerate(zip(region, sizes, strict=True))
    )


def _put_old(
    values: npt.NDArray[Any], variable: CopiedVariable, region: Region, work: CopyWork
) -> None:
    """Put what the repository had before at its places."""
    assert variable.old_positions is not None
    session = work.base.open()
    old_shape = _old_shape(session, variable.grid.path)
    sources, targets = [], []
    for part, size, positions in zip(region, old_shape, variable.old_positions, strict=True):
        if positions is None:
            stop = max(part.start, min(part.stop, size))
            sources.append(slice(part.start, stop))
            targets.append(np.arange(stop - part.start))
        else:
            first, last = np.searchsorted(positions, [part.start, part.stop]).tolist()
            sources.append(slice(first, last))
            targets.append(positions[first:last] - part.start)
    if all(len(target) for target in targets):
        values[np.ix_(*targets)] = session.read_region(variable.grid.path, tuple(sources))


def _old_shape(session: SessionPort, path: str) -> tuple[int, ...]:
    return expect_array(session.get_node(path), path).array.shape


class _OpenFiles:
    """The last few files that a task reads from."""

    def __init__(self, sources: VirtualChunkResolver, work: CopyWork) -> None:
        self._sources = sources
        self._work = work
        self._parsed: OrderedDict[str, ParsedFile] = OrderedDict()

    def read(self, url: str, name: str, region: Region) -> npt.NDArray[Any]:
        parsed = self._parsed.get(url)
        if parsed is None:
            parsed = read_file(url, self._sources, self._work.options.parse)
            check_unchanged(url, parsed.status, self._work.statuses[url])
            self._parsed[url] = parsed
            if len(self._parsed) > _OPEN_FILES:
                self._parsed.popitem(last=False)
        array = parsed.arrays[name]
        values = load_region(array, self._sources, region)
        return decode_values(values, array.document) if self._work.options.decode else values
