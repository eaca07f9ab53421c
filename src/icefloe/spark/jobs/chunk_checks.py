"""Chunks of a verification on executors: read and compared there, each byte once.

The driver checks references, snapshots and manifests as `upkeep/verification.py` does anywhere.
References of chunks are sent to the task that has the chunk file: it asks for the size of the file,
and reads what has a checksum. So the same problems are found as by `LocalChunkChecks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.engine.retention.id_sets import as_ids, id_bytes, id_column
from icefloe.engine.retention.marking import Marks
from icefloe.engine.retention.stored_objects import StoredObjects
from icefloe.errors import ObjectNotFoundError
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId
from icefloe.model.manifest import ArrayChunks
from icefloe.spark.engine.runner import collect_frame, parallelism, rows_of_groups, rows_of_items
from icefloe.spark.engine.worker import unpickled_context
from icefloe.upkeep.checks import ArrayOfSnapshot, ChunkChecker
from icefloe.upkeep.findings import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.engine.retention.marking import MemoryLimits
    from icefloe.model.ids import ManifestId, NodeId
    from icefloe.spark.jobs.orphan_files import SparkFileLister, SparkFiles
    from icefloe.upkeep.checks import CheckedPart

_REFERENCES = (
    "part bigint, file binary, start bigint, length bigint, checksum bigint, coords array<bigint>"
)
_PROBLEMS = "part bigint, problem binary, bytes_read bigint"
_PARTS_AT_ONCE = 200
_REFERENCES_PER_PART = 200_000
_REFERENCES_PER_BUCKET = 50_000
_ROWS_AT_ONCE = 65_536


class SparkChunkChecks:
    """Remembers what to check, and checks it at the end in one job."""

    def __init__(self, lister: SparkFileLister, *, deep: bool) -> None:
        """List chunk files on executors."""
        self.files: SparkFiles = lister.list_files()
        self.bytes_read = 0
        self._lister = lister
        self._deep = deep
        self._places: list[ArrayOfSnapshot] = []
        self._groups: list[list[_Part]] = []
        self._held = 0
        self._references = 0

    def check(self, part: CheckedPart, chunks: ArrayChunks) -> tuple[Problem, ...]:
        """Leave it for later."""
        number = len(self._places)
        self._places.append(part.place)
        count = len(chunks)
        full = self._held + count > _REFERENCES_PER_PART
        if not self._groups or full or len(self._groups[-1]) == _PARTS_AT_ONCE:
            self._groups.append([])
            self._held = 0
        self._groups[-1].append(
            _Part(number=number, manifest_id=part.manifest_id, node_id=part.node_id, rank=part.rank)
        )
        self._held += count
        self._references += count
        return ()

    def finish(self) -> list[Problem]:
        """Check all that was left, on executors; problems are in the order of the parts."""
        from pyspark.sql import functions as f

        if not self._groups:
            return []
        lister = self._lister
        shared = _Checking(lister.pickled, lister.limits, self._deep)
        rows = rows_of_items(lister.spark, _references, self._groups, shared, _REFERENCES)
        least = 4 * parallelism(lister.spark)
        buckets = max(least, self._references // _REFERENCES_PER_BUCKET)
        bucket = f.pmod(f.xxhash64("file"), f.lit(buckets))
        checked = rows_of_groups(rows, bucket, _check_files, shared, _PROBLEMS)
        table = collect_frame(
            lister.spark,
            checked,
            label=f"{lister.label}: read chunks",
            steps=len(self._groups),
            progress_bar=lister.progress,
        )
        numbered: list[tuple[int, Problem]] = []
        for row in table.to_pylist():
            self.bytes_read += row["bytes_read"]
            if row["problem"]:
                problem = msgspec.msgpack.decode(row["problem"], type=Problem)
                place = self._places[row["part"]]
                where = {"path": place.path, "snapshot_id": place.snapshot_id}
                numbered.append((row["part"], msgspec.structs.replace(problem, **where)))
        numbered.sort(key=lambda each: (each[0], each[1].kind, each[1].key))
        return [problem for _, problem in numbered]


# --- on executors


class _Part(NamedTuple):
    number: int
    manifest_id: ManifestId
    node_id: NodeId
    rank: int


class _Checking(NamedTuple):
    context: bytes
    limits: MemoryLimits
    deep: bool


def _references(parts: list[_Part], shared: _Checking) -> Iterator[pa.RecordBatch]:
    """The references to chunk files in some manifests, with the number of their part."""
    files = Marks(unpickled_context(shared.context), shared.limits, verify=True).files
    for part in parts:
        table = files.manifest(part.manifest_id, 0).array(part.node_id, part.rank)
        if table is None:
            continue
        native = np.flatnonzero(table.refs.kinds == ChunkKind.NATIVE)
        for start in range(0, len(native), _ROWS_AT_ONCE):
            yield _reference_rows(part.number, table, native[start : start + _ROWS_AT_ONCE])


def _reference_rows(number: int, table: ArrayChunks, rows: npt.NDArray[np.intp]) -> pa.RecordBatch:
    refs, coords = table.refs, table.index.coords()[rows].astype(np.int64)
    ends = np.arange(len(rows) + 1, dtype=np.int32) * coords.shape[1]
    names = pa.array(as_ids(refs.files).tolist(), type=pa.binary())
    return pa.record_batch(
        {
            "part": pa.array(np.full(len(rows), number, dtype=np.int64)),
            "file": names.take(pa.array(refs.sources[rows])),
            "start": pa.array(refs.offsets[rows].astype(np.int64)),
            "length": pa.array(refs.lengths[rows].astype(np.int64)),
            "checksum": pa.array(refs.checksums[rows].astype(np.int64)),
            "coords": pa.ListArray.from_arrays(ends, coords.ravel()),
        }
    )


def _check_files(table: pa.Table, shared: _Checking) -> Iterator[pa.RecordBatch]:
    """Problems with the chunk files of one bucket, which no other task has."""
    context: Context = unpickled_context(shared.context)
    checker = ChunkChecker(context, _sizes(context, table), deep=shared.deep)
    numbers = table.column("part").to_numpy()
    rows: list[tuple[int, bytes, int]] = []
    nowhere = ArrayOfSnapshot("", "")  # the driver knows the place
    for number in np.unique(numbers).tolist():
        chunks = _chunks_of(table.filter(pa.array(numbers == number)))
        encode = msgspec.msgpack.encode
        rows += [(number, encode(each), 0) for each in checker.check(chunks, nowhere)]
    rows.append((-1, b"", checker.bytes_read))
    columns = [list(column) for column in zip(*rows, strict=True)]
    yield pa.record_batch(columns, names=["part", "problem", "bytes_read"])


def _sizes(context: Context, table: pa.Table) -> StoredObjects:
    """The chunk files that exist, with their sizes."""
    ids = [ChunkFileId(id_bytes(value)) for value in table.column("file").unique().to_pylist()]
    sizes = context.files.in_parallel(lambda each: _size(context, each), ids)
    present = [(each, size) for each, size in zip(ids, sizes, strict=True) if size is not None]
    column = id_column([each for each, _ in present])
    counts = np.array([size for _, size in present], dtype=np.int64)
    return StoredObjects(column, counts, np.zeros(len(present)))


def _size(context: Context, file_id: ChunkFileId) -> int | None:
    try:
        return context.storage.head(context.format.layout.chunk_file(file_id)).size
    except ObjectNotFoundError:
        return None


def _chunks_of(table: pa.Table) -> ArrayChunks:
    """References as `_reference_rows` took them apart."""
    table = table.combine_chunks()
    files = table.column("file").combine_chunks().dictionary_encode()
    names = [ChunkFileId(id_bytes(value)) for value in files.dictionary.to_pylist()]
    count = table.num_rows

    def numbers(name: str) -> npt.NDArray[np.int64]:
        column: npt.NDArray[np.int64] = table.column(name).to_numpy()
        return column

    flat = table.column("coords").combine_chunks().flatten().to_numpy()
    refs = ChunkRefs(
        kinds=np.full(count, ChunkKind.NATIVE, dtype=np.uint8),
        sources=files.indices.to_numpy().astype(np.uint32),
        offsets=numbers("start").astype(np.uint64),
        lengths=numbers("length").astype(np.uint64),
        checksums=numbers("checksum").astype(np.uint32),
        files=ChunkRefs.file_column(names),
        locations=Locations.none(),
        inline=b"",
    )
    return ArrayChunks.from_columns(flat.reshape(count, len(flat) // count), refs)
