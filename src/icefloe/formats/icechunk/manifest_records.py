"""Writing manifests: references as records of fixed size, in blocks that look alike.

Each block has its own copies of the vtables in front and of the strings that it uses behind, so
that the offsets in it are those of every other block: zstd then finds a period instead of numbers
that never repeat, which takes a third of the space and half of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.icechunk.builder import OFFSET, Builder, vtable_of
from icefloe.formats.icechunk.tables import copy_slices, distinct, run_starts, scatter
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs
from icefloe.model.ids import ChunkFileId

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.formats.icechunk.tables import Positions
    from icefloe.model.chunk_refs import StringColumn
    from icefloe.model.ids import ManifestId
    from icefloe.model.manifest import ManifestArrays, ManifestBlock, ManifestIndex

_BLOCK = 64
"""Records of a block."""
_NATIVE, _VIRTUAL, _INLINE = map(int, (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE))
MAX_COORDINATE = 2**32 - 1
_MAX_SECONDS = 2**32 - 1


def encode_manifest(
    manifest_id: ManifestId,
    index: ManifestIndex,
    blocks: Sequence[ManifestBlock],
    spec_version: int,
) -> bytes:
    """Body of a manifest file of at least one reference."""
    if len(blocks) == 0:
        raise InvalidInputError("a manifest has at least one reference; leave out empty ones")
    refs = ChunkRefs.concat([block.refs for block in blocks])
    arrays = index.arrays
    builder = Builder()
    fields: dict[int, str] = {0: "V12", 1: OFFSET}
    if spec_version > 1:
        # Not compressed: without it, readers expect a dictionary.
        fields[3] = "u1"
    root = builder.tables(1, fields)
    root.put(0, manifest_id)
    listed = builder.offsets([len(arrays)])
    root.point(1, listed.vectors)
    tables = builder.tables(len(arrays), {0: "V8", 1: OFFSET})
    listed.point(tables.positions)
    tables.put(0, np.frombuffer(arrays.node_ids, dtype="V8"))
    vectors = builder.offsets(arrays.counts)
    tables.point(1, vectors.vectors)
    ranks = np.repeat(arrays.ranks, arrays.counts)
    coords = _coordinates(arrays, blocks)
    targets = np.zeros(len(refs), dtype=np.int64)
    for rows, rank, kind in _groups(ranks, refs.kinds):
        writer = _WRITERS[kind]
        targets[rows] = writer(builder, refs.take(rows), coords[rows, :rank])
    vectors.point(targets)
    return builder.finish(root.start)


def _groups(
    ranks: npt.NDArray[np.int64], kinds: npt.NDArray[np.uint8]
) -> list[tuple[Any, int, int]]:
    """Rows of equal rank and kind: they have records of one layout."""
    low, high = int(kinds.min()), int(kinds.max())
    if low < _NATIVE or high > _INLINE:
        raise InvalidInputError("a manifest holds native, virtual and inline references only")
    if low == high and (ranks == ranks[0]).all():
        return [(slice(None), int(ranks[0]), low)]
    signatures = ranks * 4 + kinds
    return [
        (np.flatnonzero(signatures == each), each // 4, each % 4)
        for each in distinct(signatures).tolist()
    ]


def _coordinates(arrays: ManifestArrays, blocks: Sequence[ManifestBlock]) -> npt.NDArray[np.uint32]:
    """Coordinates of all rows (n, highest rank)."""
    if arrays.all_dense:
        positions = None
    else:
        positions = np.concatenate(
            [
                np.zeros(len(block.refs), dtype=np.uint64)
                if block.positions is None
                else block.positions
                for block in blocks
            ]
        )
    coords = np.zeros((int(arrays.rows[-1]), int(arrays.ranks.max())), dtype=np.uint32)
    for array in arrays.values():
        rows = slice(array.row, array.row + array.count)
        box = array.extents
        if box.rank and max(box.upper) - 1 > MAX_COORDINATE:
            raise InvalidInputError(
                f"a chunk has the coordinate {max(box.upper) - 1}, but this format has only "
                f"coordinates up to {MAX_COORDINATE}; use larger chunks"
            )
        if array.is_dense:
            linear = np.arange(array.count, dtype=np.uint64)
        else:
            assert positions is not None
            linear = positions[rows]
        coords[rows, : box.rank] = box.delinearize(linear)
    return coords


# --- records


def _native(builder: Builder, refs: ChunkRefs, coords: npt.NDArray[np.uint32]) -> Positions:
    if refs.files.shape[1] != ChunkFileId.SIZE:
        raise InvalidInputError(
            f"ids of chunk files have {ChunkFileId.SIZE} bytes in this format, found ids of "
            f"{refs.files.shape[1]} bytes, as other generations have them"
        )
    _check_lengths(refs)
    dtype = _record([(0, OFFSET), (2, "<u8"), (3, "<u8"), (4, "V12")], coords.shape[1])
    records = _filled(dtype, coords)
    records["s2"] = refs.offsets
    records["s3"] = refs.lengths
    ids = np.ascontiguousarray(refs.files).view("V12").ravel()
    records["s4"] = ids if _is_range(refs.sources, len(ids)) else ids[refs.sources]
    return _write(builder, records)


def _is_range(sources: npt.NDArray[np.uint32], count: int) -> bool:
    return len(sources) == count and bool((sources == np.arange(count, dtype=np.uint32)).all())


def _virtual(builder: Builder, refs: ChunkRefs, coords: npt.NDArray[np.uint32]) -> Positions:
    _check_lengths(refs)
    modified = refs.locations.modified
    if len(modified) and not 0 <= int(modified.min()) <= int(modified.max()) <= _MAX_SECONDS:
        raise InvalidInputError(
            "this format has times of the last change from 1970 to 2106, found "
            f"{int(modified.min())} to {int(modified.max())} seconds since 1970"
        )
    dtype = _record(
        [(0, OFFSET), (2, "<u8"), (3, "<u8"), (5, OFFSET), (6, OFFSET), (7, "<u4")],
        coords.shape[1],
    )
    records = _filled(dtype, coords)
    records["s2"] = refs.offsets
    records["s3"] = refs.lengths
    records["s7"] = modified[refs.sources]
    return _write(builder, records, _Strings(refs))


def _inline(builder: Builder, refs: ChunkRefs, coords: npt.NDArray[np.uint32]) -> Positions:
    # Without bytes, too: official 1.x writes them, and commits carry them on.
    dtype = _record([(0, OFFSET), (1, OFFSET)], coords.shape[1])
    return _write(builder, _filled(dtype, coords), _InlineBytes(refs))


_WRITERS = {_NATIVE: _native, _VIRTUAL: _virtual, _INLINE: _inline}


def _check_lengths(refs: ChunkRefs) -> None:
    if not refs.lengths.all():
        raise InvalidInputError(
            "a chunk has no bytes, which this format cannot hold: delete the chunk instead"
        )


def _record(fields: list[tuple[int, str]], rank: int) -> np.dtype[Any]:
    """A table with the vector of its coordinates behind it; the fields are aligned as they come."""
    names, places = ["soffset"], [0]
    formats: list[np.dtype[Any]] = [np.dtype("<i4")]
    end = 4
    for slot, kind in fields:
        names.append(f"s{slot}")
        formats.append(np.dtype(kind))
        places.append(end)
        end += formats[-1].itemsize
    names += ["count", "index"]
    # Not as text, which numpy has Python parse: in Python 3.11 that fails in several threads.
    formats += [np.dtype("<u4"), np.dtype(("<u4", (rank,)))]
    places += [end, end + 4]
    size = end + 4 + 4 * rank
    return np.dtype(
        {"names": names, "formats": formats, "offsets": places, "itemsize": size + -size % 8}
    )


def _filled(dtype: np.dtype[Any], coords: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """Records with their coordinates."""
    assert dtype.fields is not None
    records = np.zeros(len(coords), dtype=dtype)
    records["count"] = coords.shape[1]
    records["index"] = coords
    records["s0"] = dtype.fields["count"][1] - dtype.fields["s0"][1]
    return records


class _Behind:
    """The entries that some records of blocks point to."""

    blocks: Positions
    """The block of each entry, ascending."""
    sizes: Positions
    """Bytes of each entry."""
    absent: npt.NDArray[np.bool_] | None = None
    """Records that lack the slot `optional`."""
    optional: int = 0

    def write(
        self,
        out: npt.NDArray[np.uint8],
        entries: Positions,
        records: npt.NDArray[Any],
        places: Positions,
    ) -> None:
        """Write the entries at their places, and the offsets of the records that lead to them."""
        raise NotImplementedError


class _Strings(_Behind):
    """Locations and etags: each block has those that it uses, once."""

    optional = 6

    def __init__(self, refs: ChunkRefs) -> None:
        sources = refs.sources.astype(np.int64)
        urls, etags = refs.locations.urls, refs.locations.etags
        span = len(urls)
        keys = np.arange(len(sources), dtype=np.int64) // _BLOCK * span + sources
        first = run_starts(keys)
        used, numbers = np.unique(keys[first], return_inverse=True)
        self._numbers = np.repeat(numbers, np.diff(np.append(first, len(keys))))
        self.blocks = used // span
        entries = used % span
        self._urls = urls, urls.starts().astype(np.int64)[entries], _lengths(urls)[entries]
        self._etags = etags, etags.starts().astype(np.int64)[entries], _lengths(etags)[entries]
        self._url_sizes = _counted_size(self._urls[2])
        has_etag = self._etags[2] > 0
        self.sizes = self._url_sizes + np.where(has_etag, _counted_size(self._etags[2]), 0)
        self.absent = ~has_etag[self._numbers]

    def write(
        self,
        out: npt.NDArray[np.uint8],
        entries: Positions,
        records: npt.NDArray[Any],
        places: Positions,
    ) -> None:
        """Write each location, and its etag behind it."""
        _write_counted(out, entries, *self._urls)
        behind = entries + self._url_sizes
        with_etag = np.flatnonzero(self._etags[2])
        column, starts, lengths = self._etags
        _write_counted(out, behind[with_etag], column, starts[with_etag], lengths[with_etag])
        _point(records, 5, places, entries[self._numbers])
        assert self.absent is not None
        _point(records, 6, places, np.where(self.absent, places, behind[self._numbers]))


class _InlineBytes(_Behind):
    """The bytes of inline chunks."""

    def __init__(self, refs: ChunkRefs) -> None:
        self._refs = refs
        self.blocks = np.arange(len(refs), dtype=np.int64) // _BLOCK
        self.sizes = _counted_size(refs.lengths.astype(np.int64))

    def write(
        self,
        out: npt.NDArray[np.uint8],
        entries: Positions,
        records: npt.NDArray[Any],
        places: Positions,
    ) -> None:
        """Write the bytes of each chunk."""
        refs = self._refs
        lengths = refs.lengths.astype(np.int64)
        out.view("<u4")[entries // 4] = lengths
        source = np.frombuffer(refs.inline, dtype=np.uint8)
        copy_slices(out, entries + 4, source, refs.offsets.astype(np.int64), lengths)
        _point(records, 1, places, entries)


def _lengths(column: StringColumn) -> Positions:
    return column.ends.astype(np.int64) - column.starts().astype(np.int64)


def _counted_size(lengths: Positions) -> Positions:
    """Bytes that a string takes: a count, at least one zero behind it, filled up to 4 bytes."""
    return (lengths + 8) // 4 * 4


def _write_counted(
    out: npt.NDArray[np.uint8],
    places: Positions,
    column: StringColumn,
    starts: Positions,
    lengths: Positions,
) -> None:
    out.view("<u4")[places // 4] = lengths
    copy_slices(out, places + 4, np.frombuffer(column.data, dtype=np.uint8), starts, lengths)


def _point(records: npt.NDArray[Any], slot: int, places: Positions, targets: Positions) -> None:
    assert records.dtype.fields is not None
    records[f"s{slot}"] = targets - (places + records.dtype.fields[f"s{slot}"][1])


def _write(builder: Builder, records: npt.NDArray[Any], behind: _Behind | None = None) -> Positions:
    """Add records to a body in blocks; returns where the table of each is."""
    count, stride = len(records), records.dtype.itemsize
    blocks = -(-count // _BLOCK)
    head, vtable_size = _vtables(records.dtype, behind)
    rows = np.full(blocks, _BLOCK, dtype=np.int64)
    rows[-1] = count - _BLOCK * (blocks - 1)
    used = np.zeros(blocks, dtype=np.int64)
    if behind is not None:
        np.add.at(used, behind.blocks, behind.sizes)
    sizes = len(head) + stride * rows + used
    sizes += -sizes % 8
    starts = np.cumsum(sizes) - sizes
    places = np.repeat(starts + len(head), rows)
    places += stride * (np.arange(count, dtype=np.int64) % _BLOCK)
    records["soffset"] = places - np.repeat(starts, rows)
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    if behind is not None:
        ends = np.cumsum(behind.sizes) - behind.sizes
        before = np.cumsum(used) - used
        tails = starts + len(head) + stride * rows
        behind.write(out, (tails - before)[behind.blocks] + ends, records, places)
        if behind.absent is not None:
            records["soffset"][behind.absent] -= vtable_size
    scatter(out, starts, np.tile(head, blocks), len(head))
    scatter(out, places, records.view(np.uint8), stride)
    return builder.append(out, align=8) + places


def _vtables(dtype: np.dtype[Any], behind: _Behind | None) -> tuple[npt.NDArray[np.uint8], int]:
    """What each block begins with: the vtables of its records."""
    assert dtype.fields is not None
    table = np.dtype(
        {
            "names": [name for name in dtype.fields if name not in {"count", "index"}],
            "formats": [f[0] for n, f in dtype.fields.items() if n not in {"count", "index"}],
            "offsets": [f[1] for n, f in dtype.fields.items() if n not in {"count", "index"}],
            "itemsize": dtype.fields["count"][1],
        }
    )
    head = vtable = vtable_of(table)
    if behind is not None and behind.absent is not None and behind.absent.any():
        head += vtable_of(table, {behind.optional})
    return np.frombuffer(head + bytes(-len(head) % 8), dtype=np.uint8), len(vtable)
