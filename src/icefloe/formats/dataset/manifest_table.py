"""Chunk manifests as Parquet tables for any engine (R0-52 to R0-63).

Rows are sorted by array and `coord`; row groups are the blocks that a lookup reads, with
statistics of both columns. Our notes in the footer say where each array and row group is, so that
the footer and one row group are enough to find a chunk.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file, decode_msgpack
from icefloe.formats.dataset import coordinates
from icefloe.formats.dataset.arrow_schemas import manifest_schema
from icefloe.formats.dataset.file_names import decode_ids, encode_ids
from icefloe.formats.dataset.parquet_files import (
    ParquetWriter,
    footer_length,
    read_footer,
    read_row_group,
    read_table,
)
from icefloe.formats.nodes import MAX_RANK
from icefloe.formats.port import NeedsMore, numbered_id, prefix_number
from icefloe.model.chunk_index import MAX_BOX_POSITIONS
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations, StringColumn
from icefloe.model.ids import NodeId
from icefloe.model.manifest import (
    ArrayChunks,
    ManifestArrays,
    ManifestBlock,
    ManifestIndex,
    lay_out,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

_VIRTUAL_MARK = "://"
"""H-04: a chunk file with this in its name is a URL, any other is a name in the folder `c`."""
_DAMAGE = (
    *(ValueError, TypeError, IndexError, KeyError, OverflowError),
    *(pa.ArrowException, InvalidInputError),
)
"""What reading the columns of a damaged file may raise."""


class _Notes(msgspec.Struct, omit_defaults=True):
    """What the footer says besides the schema; columns are little-endian bytes."""

    nodes: bytes
    """Ids of the arrays, 8 bytes each, ascending."""
    ranks: bytes
    counts: bytes
    lower: bytes
    shapes: bytes
    rows: bytes
    """First row of each row group, and the number of rows."""
    positions: bytes
    """Position of the first row of each row group in the box of its array."""
    spans: bytes
    """Start and length in bytes of each row group."""
    crcs: bytes
    checksums: bytes = b""
    """CRC-32C of each chunk, where there are any."""
    sources: list[tuple[str, str | None, int | None]] = []
    """Etag or time of virtual sources that have one."""
    versions: bytes = b""
    """Number of each row's entry in `sources`, counted from 1; 0 for none."""


class ParquetIndex(ManifestIndex, frozen=True, eq=False):
    """The index of a manifest in Parquet, with what reading a row group needs."""

    footer: Any = None
    size: int = 0
    crcs: tuple[int, ...] = ()
    checksums: Any = None
    versions: Any = None
    sources: tuple[tuple[str, str | None, int | None], ...] = ()


_decoder = msgspec.msgpack.Decoder(_Notes)


# --- writing


def encode_manifest(
    index: ManifestIndex,
    blocks: Sequence[ManifestBlock],
    level: int,
    others: Mapping[NodeId, int] = MappingProxyType({}),
) -> bytes:
    """The bytes of a manifest of at least one reference; see `other_numbers` for `others`."""
    if not blocks:
        raise InvalidInputError("a manifest has at least one reference; leave out empty ones")
    longest = max(int(block.refs.lengths.max()) for block in blocks)
    bits = 32 if longest < 2**32 else 64
    schema = manifest_schema(bits)
    numbers = {each: others.get(each, prefix_number(each)) for each in index.arrays}
    # Arrays are in the order of their ids, which is that of their numbers except for merged ones.
    is_sorted = all(one < other for one, other in pairwise(numbers.values()))
    writer = ParquetWriter(schema, level, is_wide=bits != 32, sorted_by=2 if is_sorted else 0)
    for number, block in enumerate(blocks):
        writer.write(_table(index, number, block, schema, numbers))
    notes = _make_notes(index, blocks, writer.spans)
    notes.crcs = _u4(writer.crcs)
    return writer.close(notes)


def _table(
    index: ManifestIndex,
    number: int,
    block: ManifestBlock,
    schema: pa.Schema,
    numbers: Mapping[NodeId, int],
) -> pa.Table:
    start, stop = index.block_rows[number : number + 2].tolist()
    ids, coords = _identities(index, start, stop, block, numbers)
    # The blocks of a manifest share dictionaries of all of its files.
    refs = block.refs.compact()
    native = refs.kinds == ChunkKind.NATIVE
    inline = refs.kinds == ChunkKind.INLINE
    if not (native | inline | (refs.kinds == ChunkKind.VIRTUAL)).all():
        raise InvalidInputError("a manifest holds native, virtual and inline references only")
    columns = [
        pa.array(np.arange(start, stop, dtype=np.uint32)),
        pa.array(ids.astype(np.uint32)),
        coords,
        _inline_column(refs, inline),
        _file_column(refs, native, inline),
        pa.array(refs.offsets, mask=inline),
        pa.array(refs.lengths).cast(schema.field("length").type),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _identities(
    index: ManifestIndex,
    start: int,
    stop: int,
    block: ManifestBlock,
    numbers_of: Mapping[NodeId, int],
) -> tuple[npt.NDArray[np.uint64], pa.Array]:
    """Array number and encoded coordinates of each row of a block."""
    arrays = index.arrays
    first = int(np.searchsorted(arrays.rows, start, side="right")) - 1
    last = int(np.searchsorted(arrays.rows, stop - 1, side="right")) - 1
    node_ids = list(arrays)[first : last + 1]
    numbers, pieces, bounds = [], [], [np.zeros(1, dtype=np.int64)]
    end = 0
    for node_id in node_ids:
        array = arrays[node_id]
        low, high = max(array.row, start), min(array.row + array.count, stop)
        if array.is_dense:
            positions = np.arange(low - array.row, high - array.row, dtype=np.uint64)
        else:
            assert block.positions is not None
            positions = block.positions[low - start : high - start]
        data, edges = coordinates.encode(array.extents.delinearize(positions))
        numbers.append(np.full(high - low, numbers_of[node_id], dtype=np.uint64))
        pieces.append(data)
        bounds.append(edges[1:] + end)
        end += len(data)
    return np.concatenate(numbers), _binary(np.concatenate(pieces), np.concatenate(bounds))


def _binary(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64],
    present: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """A binary column of contiguous slices; None where they are not present."""
    count = len(bounds) - 1
    if int(bounds[-1]) >= 2**31:
        raise InvalidInputError("the rows of one row group have at most 2 GiB; use smaller chunks")
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data.tobytes())]
    if present is not None and not present.all():
        buffers[0] = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _inline_column(refs: ChunkRefs, inline: npt.NDArray[np.bool_]) -> pa.Array:
    if not inline.any():
        return pa.nulls(len(refs), pa.binary())
    lengths = np.where(inline, refs.lengths, np.uint64(0)).astype(np.int64)
    bounds = np.zeros(len(refs) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    data = np.empty(int(bounds[-1]), dtype=np.uint8)
    source = np.frombuffer(refs.inline, dtype=np.uint8)
    shifts = np.repeat(refs.offsets.astype(np.int64) - bounds[:-1], lengths)
    data[:] = source[np.arange(len(data), dtype=np.int64) + shifts]
    return _binary(data, bounds, inline)


def _file_column(
    refs: ChunkRefs, native: npt.NDArray[np.bool_], inline: npt.NDArray[np.bool_]
) -> pa.Array:
    """Names of chunk files and URLs: each distinct one is made once."""
    urls = refs.locations.urls.tolist()
    if not all(_VIRTUAL_MARK in url for url in urls):
        raise InvalidInputError("a virtual reference has an absolute URL in a dataset (H-04)")
    numbers = np.where(native, refs.sources, refs.sources + np.uint32(len(refs.files)))
    names = pa.concat_arrays([encode_ids(refs.files), pa.array(urls, type=pa.string())])
    return pa.DictionaryArray.from_arrays(
        pa.array(numbers.astype(np.int32), mask=inline), names
    ).cast(pa.string())


def _u4(values: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    return np.asarray(values, dtype="<u4").tobytes()


def _u8(values: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    return np.asarray(values, dtype="<u8").tobytes()


def _make_notes(
    index: ManifestIndex, blocks: Sequence[ManifestBlock], spans: Sequence[tuple[int, int]]
) -> _Notes:
    arrays = index.arrays
    notes = _Notes(
        nodes=arrays.node_ids,
        ranks=_u4(arrays.ranks),
        counts=_u8(arrays.counts),
        lower=_u8(arrays.lower),
        shapes=_u8(arrays.shapes),
        rows=_u8(index.block_rows),
        positions=_u8(index.block_positions),
        spans=_u8([number for span in spans for number in span]),
        crcs=b"",
    )
    checksums = [block.refs.checksums for block in blocks]
    if any(column.any() for column in checksums):
        notes.checksums = _u4(np.concatenate(checksums))
    _add_versions(notes, [block.refs for block in blocks])
    return notes


def _add_versions(notes: _Notes, tables: Sequence[ChunkRefs]) -> None:
    """Note the etags and times of virtual sources."""
    known: dict[tuple[str, str | None, int | None], int] = {}
    columns = []
    for refs in tables:
        locations = refs.locations
        numbers = np.zeros(len(locations) + 1, dtype=np.uint32)
        for entry in np.flatnonzero(_has_version(locations)).tolist():
            version = (
                locations.urls[entry],
                locations.etags[entry] or None,
                int(locations.modified[entry]) or None,
            )
            numbers[entry] = known.setdefault(version, len(known) + 1)
        virtual = refs.kinds == ChunkKind.VIRTUAL
        columns.append(np.where(virtual, numbers[np.where(virtual, refs.sources, 0)], 0))
    if known:
        notes.sources = list(known)
        notes.versions = _u4(np.concatenate(columns))


def _has_version(locations: Locations) -> npt.NDArray[np.bool_]:
    etags = locations.etags
    has: npt.NDArray[np.bool_] = (etags.ends > etags.starts()) | (locations.modified != 0)
    return has


# --- reading


def decode_index(suffix: bytes, size: int, key: str) -> ManifestIndex | NeedsMore:
    """Read the index from the last bytes of a file."""
    needed = footer_length(suffix, key)
    if needed > len(suffix):
        return NeedsMore(needed)
    footer = read_footer(suffix[-needed:], key)
    if footer.notes is None:
        if len(suffix) < size:
            return NeedsMore(size)
        return _foreign_index(suffix, key)
    notes = decode_msgpack(_decoder, footer.notes, key)
    try:
        return _index(notes, footer.metadata, size)
    except _DAMAGE as error:
        raise bad_file(key, f"the index is damaged: {error}") from None


def _index(notes: _Notes, footer: Any, size: int) -> ParquetIndex:
    def numbers(column: bytes, kind: str = "<u8") -> npt.NDArray[np.int64]:
        return np.frombuffer(column, dtype=kind).astype(np.int64)

    ranks, counts = numbers(notes.ranks, "<u4"), numbers(notes.counts)
    rows, spans = numbers(notes.rows), numbers(notes.spans).reshape(-1, 2)
    lower, shapes = numbers(notes.lower), numbers(notes.shapes)
    groups = len(rows) - 1
    if not (
        len(notes.nodes) == NodeId.SIZE * len(ranks)
        and len(counts) == len(ranks) > 0
        and len(lower) == len(shapes) == ranks.sum()
        and ranks.max() <= MAX_RANK
        and (counts > 0).all()
        and (shapes > 0).all()
        and (lower >= 0).all()
        and len(spans) == len(notes.crcs) // 4 == footer.num_row_groups == groups
        and rows[0] == 0
        and (np.diff(rows) > 0).all()
        and rows[-1] == counts.sum() == footer.num_rows
        and (spans >= 0).all()
        and (spans.sum(axis=1) <= size).all()
    ):
        raise ValueError("its columns do not agree")
    arrays = ManifestArrays(
        node_ids=notes.nodes, ranks=ranks, counts=counts, lower=lower, shapes=shapes
    )
    if not arrays.is_ascending:
        raise ValueError("its arrays are not in order")
    for node_id in arrays:
        array = arrays[node_id]
        if not array.count <= array.extents.size <= MAX_BOX_POSITIONS:
            raise ValueError("an array has more references than places")
    total = int(rows[-1])
    checksums = np.frombuffer(notes.checksums, dtype="<u4").astype(np.uint32)
    versions = np.frombuffer(notes.versions, dtype="<u4").astype(np.uint32)
    if len(checksums) not in {0, total} or len(versions) not in {0, total}:
        raise ValueError("a column has another number of rows")
    if len(versions) and int(versions.max()) > len(notes.sources):
        raise ValueError("a source is not listed")
    return ParquetIndex(
        arrays,
        rows,
        numbers(notes.positions).astype(np.uint64),
        spans,
        footer=footer,
        size=size,
        crcs=tuple(numbers(notes.crcs, "<u4").tolist()),
        checksums=checksums if len(checksums) else None,
        versions=versions if len(versions) else None,
        sources=tuple(notes.sources),
    )


def decode_block(index: ManifestIndex, number: int, data: bytes, key: str) -> ManifestBlock:
    """Read one row group from its bytes."""
    if index.resident is not None:
        return index.resident[number]
    assert isinstance(index, ParquetIndex)
    if zlib.crc32(data) != index.crcs[number]:
        raise bad_file(key, f"the checksum of row group {number} does not match: it is damaged")
    span = (int(index.block_spans[number, 0]), int(index.block_spans[number, 1]))
    table = read_row_group(index.footer, index.size, span, number, data, key)
    start, stop = index.block_rows[number : number + 2].tolist()
    if table.num_rows != stop - start or table.schema.names != manifest_schema().names:
        raise bad_file(key, f"row group {number} has other rows or columns than expected")
    try:
        refs = _refs(table)
        if index.checksums is not None:
            refs.checksums = index.checksums[start:stop]
        if index.versions is not None:
            refs.locations, refs.sources = _with_versions(refs, index, start, stop)
        return ManifestBlock(_positions(index, table, start, stop), refs)
    except _DAMAGE as error:
        raise bad_file(key, str(error)) from None


def _slices(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of a binary column, and the bounds of its rows."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=array.type)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    octets = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return octets, bounds.astype(np.int64)


def _positions(
    index: ManifestIndex, table: pa.Table, start: int, stop: int
) -> npt.NDArray[np.uint64] | None:
    arrays = index.arrays
    if arrays.all_dense:
        return None
    data, bounds = _slices(table.column("coord"))
    positions = np.zeros(stop - start, dtype=np.uint64)
    first = int(np.searchsorted(arrays.rows, start, side="right")) - 1
    last = int(np.searchsorted(arrays.rows, stop - 1, side="right")) - 1
    for node_id in list(arrays)[first : last + 1]:
        array = arrays[node_id]
        if array.is_dense:
            continue
        low, high = max(array.row, start) - start, min(array.row + array.count, stop) - start
        coords = coordinates.decode(data, bounds[low : high + 1], array.extents.rank)
        box = array.extents
        lower = np.array(box.lower, dtype=np.uint64)
        upper = np.array(box.upper, dtype=np.uint64)
        if not ((coords >= lower) & (coords < upper)).all():
            raise ValueError("a chunk lies outside the extents of its array")
        positions[low:high] = box.linearize(coords)
    return positions


def _refs(table: pa.Table) -> ChunkRefs:
    """The payload columns of some rows."""
    names = table.column("chunk_file").combine_chunks().dictionary_encode()
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    distinct = names.dictionary
    codes = names.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    is_inline = table.column("chunk_file").combine_chunks().is_null().to_numpy(zero_copy_only=False)
    marked = pc.match_substring(distinct, _VIRTUAL_MARK)
    is_url = np.append(marked.to_numpy(zero_copy_only=False).astype(bool), False)
    # Files and URLs are numbered apart.
    numbers = np.where(is_url, np.cumsum(is_url) - 1, np.cumsum(~is_url) - 1)
    kinds = np.where(is_url[codes], ChunkKind.VIRTUAL, ChunkKind.NATIVE).astype(np.uint8)
    kinds[is_inline] = ChunkKind.INLINE
    offsets = table.column("offset").fill_null(0).to_numpy().astype(np.uint64)
    lengths = table.column("length").to_numpy().astype(np.uint64)
    inline = b""
    if is_inline.any():
        data, bounds = _slices(table.column("inline_data"))
        inline = data.tobytes()
        offsets[is_inline] = bounds[:-1][is_inline].astype(np.uint64)
        if (np.diff(bounds)[is_inline] != lengths[is_inline].astype(np.int64)).any():
            raise ValueError("an inline chunk has another length than it says")
    count = len(kinds)
    urls: list[str] = distinct.filter(marked).to_pylist()
    return ChunkRefs(
        kinds=kinds,
        sources=np.where(is_inline, 0, numbers[codes]).astype(np.uint32),
        offsets=offsets,
        lengths=lengths,
        checksums=np.zeros(count, dtype=np.uint32),
        files=decode_ids(distinct.filter(pc.invert(marked))),
        locations=Locations(
            StringColumn.of(urls),
            StringColumn.of([""] * len(urls)),
            np.zeros(len(urls), dtype=np.int64),
        ),
        inline=inline,
    )


def _with_versions(
    refs: ChunkRefs, index: ParquetIndex, start: int, stop: int
) -> tuple[Locations, npt.NDArray[np.uint32]]:
    """Locations with their etags and times, and the rows' numbers among them."""
    versions = index.versions[start:stop].astype(np.int64)
    plain = [(url, None, None) for url in refs.locations.urls.tolist()]
    entries: list[tuple[str, str | None, int | None]] = [*plain, *index.sources]
    sources = np.where(versions > 0, versions - 1 + len(plain), refs.sources)
    return Locations.of(entries), sources.astype(np.uint32)


def _foreign_index(data: bytes, key: str) -> ManifestIndex:
    """Read a manifest that another program wrote; its blocks stay in memory."""
    table = read_table(data, key)
    try:
        table = table.select(manifest_schema().names).sort_by("array_id")
        numbers = table.column("array_id").to_numpy()
        refs = _refs(table)
        octets, bounds = _slices(table.column("coord"))
        parts = []
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            edges = bounds[rows[0] : rows[-1] + 2]
            rank = _rank(octets, edges)
            coords = coordinates.decode(octets, edges, rank)
            parts.append(
                (numbered_id(int(number)), ArrayChunks.from_columns(coords, refs.take(rows)))
            )
    except _DAMAGE as error:
        raise bad_file(key, str(error)) from None
    index, blocks = lay_out(parts)
    return msgspec.structs.replace(index, resident=tuple(blocks))


def _rank(octets: npt.NDArray[np.uint8], edges: npt.NDArray[np.int64]) -> int:
    """Number of coordinates of the first row, which all rows of its array have."""
    place, rank = int(edges[0]), 0
    while place < int(edges[1]):
        place += int(coordinates._LENGTHS[octets[place]])  # noqa: SLF001
        rank += 1
    return rank
