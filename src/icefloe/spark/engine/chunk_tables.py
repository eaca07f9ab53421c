"""Chunk references as Arrow tables, which tasks return to the driver."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from icefloe.errors import FormatError, TaskFailedError
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations, StringColumn
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class WrittenChunks(NamedTuple):
    """Chunks of one array that a task set, and those that it deleted."""

    chunks: ArrayChunks | None
    deleted: ChunkIndex | None

    @property
    def num_chunks(self) -> int:
        """The number of chunks that were set or deleted."""
        return sum(0 if part is None else len(part) for part in self)

    @property
    def nbytes(self) -> int:
        """The size of the chunks that were set."""
        return 0 if self.chunks is None else int(self.chunks.refs.lengths.sum())

    def coords(self, rank: int) -> npt.NDArray[np.int64]:
        """Return the coordinates (n, rank) of all chunks that were set or deleted."""
        indexes = [] if self.chunks is None else [self.chunks.index]
        indexes += [] if self.deleted is None else [self.deleted]
        if not indexes:
            return np.empty((0, rank), dtype=np.int64)
        return np.concatenate([index.coords() for index in indexes]).astype(np.int64)


def to_table(written: WrittenChunks) -> pa.Table:
    """Make a table with one row per chunk; a deleted chunk has kind 0.

    Columns: `coords`, `kind`, `offset`, `length`, `checksum`, `file` (dictionary), `location`,
    `etag` and `modified` (dictionaries that share their indices), `inline`.
    """
    tables = []
    if written.chunks is not None and len(written.chunks):
        tables.append(_chunk_table(written.chunks))
    if written.deleted is not None and len(written.deleted):
        tables.append(_deleted_table(written.deleted))
    if not tables:
        return pa.table({})
    return pa.concat_tables(tables, promote_options="none") if len(tables) > 1 else tables[0]


def _chunk_table(chunks: ArrayChunks) -> pa.Table:
    refs = chunks.refs.compact()
    native = refs.kinds == ChunkKind.NATIVE
    virtual = refs.kinds == ChunkKind.VIRTUAL
    sources = refs.sources.astype(np.int32)
    numbers = pa.array(sources, mask=~virtual)
    locations = refs.locations
    return pa.table(
        {
            "coords": _coords_column(chunks.index.coords()),
            "kind": pa.array(refs.kinds),
            "offset": pa.array(np.where(refs.kinds == ChunkKind.INLINE, 0, refs.offsets)),
            "length": pa.array(refs.lengths),
            "checksum": pa.array(refs.checksums),
            "file": pa.DictionaryArray.from_arrays(
                pa.array(sources, mask=~native), _file_ids(refs.files)
            ),
            "location": pa.DictionaryArray.from_arrays(numbers, _strings(locations.urls)),
            "etag": pa.DictionaryArray.from_arrays(numbers, _strings(locations.etags)),
            "modified": pa.DictionaryArray.from_arrays(numbers, pa.array(locations.modified)),
            "inline": _inline_column(refs),
        }
    )


def _deleted_table(deleted: ChunkIndex) -> pa.Table:
    nothing = ChunkRefs.empty()
    count = len(deleted)
    refs = ChunkRefs(
        kinds=np.zeros(count, dtype=np.uint8),
        sources=np.zeros(count, dtype=np.uint32),
        offsets=np.zeros(count, dtype=np.uint64),
        lengths=np.zeros(count, dtype=np.uint64),
        checksums=np.zeros(count, dtype=np.uint32),
        files=nothing.files,
        locations=nothing.locations,
        inline=b"",
    )
    return _chunk_table(ArrayChunks(deleted, refs))


def _coords_column(coords: npt.NDArray[np.uint64]) -> pa.Array:
    rank = coords.shape[1]
    flat = pa.array(np.ascontiguousarray(coords).ravel())
    if rank == 0:  # Arrow has no lists of length 0
        return pa.nulls(len(coords), pa.list_(pa.uint64(), 1))
    return pa.FixedSizeListArray.from_arrays(flat, rank)


def _file_ids(files: npt.NDArray[np.uint8]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(files).tobytes())
    kind = pa.binary(files.shape[1])
    return pa.Array.from_buffers(kind, len(files), [None, data])


def _strings(column: StringColumn) -> pa.Array:
    ends = np.append(np.uint64(0), column.ends).astype(np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.large_string(), len(column), buffers)


def _inline_column(refs: ChunkRefs) -> pa.Array:
    """Return the bytes of inline chunks; empty for others. `refs` is compact: they are in order."""
    lengths = np.where(refs.kinds == ChunkKind.INLINE, refs.lengths, 0)
    ends = np.append(0, np.cumsum(lengths)).astype(np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(refs.inline)]
    return pa.Array.from_buffers(pa.large_binary(), len(refs), buffers)


def from_table(table: pa.Table, rank: int) -> WrittenChunks:
    """Read a table that `to_table` made; raise FormatError if it is for another rank."""
    if table.num_rows == 0:
        return WrittenChunks(None, None)
    parts = [_from_batch(batch, rank) for batch in table.to_batches() if batch.num_rows]
    chunks = [part.chunks for part in parts if part.chunks is not None]
    deleted = [part.deleted for part in parts if part.deleted is not None]
    gone = reduce(ChunkIndex.union, deleted) if deleted else None
    return WrittenChunks(ArrayChunks.merge(chunks) if len(chunks) > 1 else _only(chunks), gone)


def _only(chunks: list[ArrayChunks]) -> ArrayChunks | None:
    return chunks[0] if chunks else None


def _from_batch(batch: pa.RecordBatch, rank: int) -> WrittenChunks:
    coords = _coords_of(batch.column("coords"), rank)
    kinds = _numbers(batch.column("kind"))
    gone = kinds == ChunkKind.UNINITIALIZED
    deleted = ChunkIndex.from_coords(coords[gone])[0] if gone.any() else None
    rows = np.flatnonzero(~gone)
    if len(rows) == 0:
        return WrittenChunks(None, deleted)
    refs = _refs_of(batch, kinds)
    if len(rows) < len(kinds):
        refs, coords = refs.take(rows), coords[rows]
    return WrittenChunks(ArrayChunks.from_columns(coords, refs), deleted)


def _refs_of(batch: pa.RecordBatch, kinds: npt.NDArray[Any]) -> ChunkRefs:
    files, locations = batch.column("file"), batch.column("location")
    native, virtual = kinds == ChunkKind.NATIVE, kinds == ChunkKind.VIRTUAL
    sources = np.where(native, _codes(files), np.where(virtual, _codes(locations), 0))
    inline = batch.column("inline")
    ends = np.frombuffer(inline.buffers()[1], dtype=np.int64)[
        inline.offset : inline.offset + len(inline) + 1
    ]
    data = b"" if inline.buffers()[2] is None else inline.buffers()[2].to_pybytes()
    offsets = np.where(
        kinds == ChunkKind.INLINE, ends[:-1].astype(np.uint64), _numbers(batch.column("offset"))
    )
    ids = files.dictionary
    raw = b"" if len(ids) == 0 else ids.buffers()[1].to_pybytes()
    width = ids.type.byte_width
    file_ids = np.frombuffer(raw, dtype=np.uint8)[
        ids.offset * width : (ids.offset + len(ids)) * width
    ]
    return ChunkRefs(
        kinds=kinds.astype(np.uint8),
        sources=sources.astype(np.uint32),
        offsets=offsets.astype(np.uint64),
        lengths=_numbers(batch.column("length")).astype(np.uint64),
        checksums=_numbers(batch.column("checksum")).astype(np.uint32),
        files=file_ids.reshape(-1, width),
        locations=Locations(
            _string_column(locations.dictionary),
            _string_column(batch.column("etag").dictionary),
            _numbers(batch.column("modified").dictionary).astype(np.int64),
        ),
        inline=data,
    )


def _coords_of(column: pa.Array, rank: int) -> npt.NDArray[np.int64]:
    if rank == 0:
        return np.empty((len(column), 0), dtype=np.int64)
    if column.type.list_size != rank:
        raise FormatError(
            f"references of an array of {rank} dimensions have {column.type.list_size} coordinates"
        )
    flat = _numbers(column.flatten())
    return flat.astype(np.int64).reshape(-1, rank)


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    return _numbers(column.indices.fill_null(0)).astype(np.int64)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers


def _string_column(column: pa.Array) -> StringColumn:
    if len(column) == 0:
        return StringColumn.of([])
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    first = int(ends[0])
    text = b"" if data is None else data.to_pybytes()[first : int(ends[-1])]
    return StringColumn(text, (ends[1:] - first).astype(np.uint64))


def joined(path: str, parts: Sequence[WrittenChunks]) -> WrittenChunks:
    """Join what several tasks wrote; raise TaskFailedError if two wrote the same chunk."""
    tables = [part.chunks for part in parts if part.chunks is not None]
    chunks = None if not tables else tables[0] if len(tables) == 1 else ArrayChunks.merge(tables)
    gone = [part.deleted for part in parts if part.deleted is not None]
    deleted = None
    for index in gone:
        deleted = index if deleted is None else deleted.union(index)
    together = WrittenChunks(chunks, deleted)
    counted = sum(part.num_chunks for part in parts)
    both = 0
    if chunks is not None and deleted is not None:
        both = int((deleted.find_many(chunks.index.coords()) >= 0).sum())
    if together.num_chunks != counted or both:
        raise TaskFailedError(
            f"two tasks wrote the same chunks of {path} ({counted} references for "
            f"{together.num_chunks - both} chunks); nothing was committed"
        )
    return together
