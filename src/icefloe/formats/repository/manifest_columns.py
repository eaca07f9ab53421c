"""Manifests of spec version 2: an index, then blocks of reference columns that are read alone.

file   = header (27 bytes, compression 0), length of the index (4 bytes, little-endian),
         index, blocks end to end
index  = zstd frame of a MessagePack map (`_Index`)
block  = zstd frame of a MessagePack map (`_Block`)

Every zstd frame carries a checksum. The index gives the length of each block, and together they
fill the file exactly, so a missing or an extra byte is found before a block is read.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.columns import (
    MAX_VALUE,
    pack_integers,
    pack_list,
    pack_strings,
    packed_width,
    unpack_boxes,
    unpack_column,
    unpack_integer,
    unpack_integers,
    unpack_strings,
)
from icefloe.formats.container import (
    COLUMNS_VERSION,
    HEADER_SIZE,
    Compression,
    FileType,
    bad_file,
    compress,
    decode_msgpack,
    decompress,
    encode_msgpack,
    make_header,
    object_attributes,
)
from icefloe.formats.nodes import MAX_RANK
from icefloe.formats.port import DEFAULT_LEVEL, EncodedFile, NeedsMore
from icefloe.model.chunk_refs import (
    ChunkKind,
    ChunkRefs,
    Locations,
    StringColumn,
    gather_bytes,
    used_entries,
)
from icefloe.model.ids import ChunkFileId, NodeId
from icefloe.model.manifest import (
    MAX_BLOCK_ROWS,
    ManifestArrays,
    ManifestBlock,
    ManifestIndex,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


_INDEX_AT = HEADER_SIZE + 4
_MIN_FRAME = 9
"""No zstd frame is shorter, so a file of some size has only so many blocks."""
_NATIVE, _VIRTUAL, _INLINE = map(int, (ChunkKind.NATIVE, ChunkKind.VIRTUAL, ChunkKind.INLINE))
_HEADER = make_header(COLUMNS_VERSION, FileType.MANIFEST, Compression.NONE)
_ATTRIBUTES = object_attributes(COLUMNS_VERSION, FileType.MANIFEST, Compression.NONE)


class _Index(msgspec.Struct, omit_defaults=True):
    """The index of a manifest. Columns are as in `columns`; an absent one is all zeros."""

    nodes: bytes
    """Ids of the arrays, ascending, 8 bytes each."""
    counts: Any
    """References of each array."""
    ranks: Any
    lower: Any = 0
    """Lower corners of the arrays' extents, end to end."""
    shapes: Any = 0
    """Extents along each dimension, end to end."""
    blocks: int = 0
    rows: Any = 0
    """References of each block."""
    sizes: Any = 0
    """Bytes of each block in the file."""
    positions: Any = 0
    """Position of each block's first reference in its array's extents; 0 in a dense array."""


class _Native(msgspec.Struct, omit_defaults=True):
    """References to the repository's own chunk files."""

    ids: bytes
    """The chunk files, 12 bytes each."""
    lengths: Any
    files: Any = 0
    """Number of each reference's file."""
    offsets: Any = None
    gaps: Any = 0
    """In place of offsets: from the end of the reference before, if that is in the same file."""
    checksums: Any = 0


class _Virtual(msgspec.Struct, omit_defaults=True):
    """References to objects outside of the repository."""

    count: int
    """Number of locations."""
    urls: Any
    lengths: Any
    locations: Any = 0
    """Number of each reference's location."""
    offsets: Any = None
    gaps: Any = 0
    etags: Any = None
    modified: Any = 0


class _Inline(msgspec.Struct, omit_defaults=True):
    """Chunks whose bytes are here, contiguous."""

    lengths: Any
    data: bytes


class _Block(msgspec.Struct, omit_defaults=True):
    """Some consecutive references."""

    kinds: Any = 0
    """Kind of each reference; absent if all are of the one kind that is present."""
    positions: Any = None
    """Position of each reference in its array's extents; absent if all arrays are dense."""
    native: _Native | None = None
    virtual: _Virtual | None = None
    inline: _Inline | None = None


_index_decoder = msgspec.msgpack.Decoder(_Index)
_block_decoder = msgspec.msgpack.Decoder(_Block)

# --- encoding


def encode_manifest(
    index: ManifestIndex, blocks: Sequence[ManifestBlock], level: int = DEFAULT_LEVEL
) -> EncodedFile:
    """Bytes of a manifest file of at least one reference, compressed at a level of zstd."""
    if len(blocks) == 0:
        raise InvalidInputError("a manifest has at least one reference; leave out empty ones")
    frames = [compress(encode_msgpack(_pack_block(block)), level) for block in blocks]
    arrays = index.arrays
    packed = _Index(
        nodes=arrays.node_ids,
        counts=pack_integers(arrays.counts),
        ranks=pack_integers(arrays.ranks),
        lower=pack_integers(arrays.lower),
        shapes=pack_integers(arrays.shapes),
        blocks=len(blocks),
        rows=pack_integers(index.block_rows[1:] - index.block_rows[:-1]),
        sizes=pack_list([len(frame) for frame in frames]),
        positions=pack_integers(index.block_positions),
    )
    body = compress(encode_msgpack(packed), level)
    data = b"".join((_HEADER, len(body).to_bytes(4, "little"), body, *frames))
    return EncodedFile(data, _ATTRIBUTES)


def _pack_block(block: ManifestBlock) -> _Block:
    refs = block.refs
    packed = _Block()
    if block.positions is not None:
        packed.positions = pack_integers(block.positions)
    kinds = refs.kinds
    low = high = int(kinds[0])
    if len(kinds) > 1:
        low, high = int(kinds.min()), int(kinds.max())
    if low < _NATIVE or high > _INLINE:
        raise InvalidInputError("a manifest holds native, virtual and inline references only")
    if low == high:
        groups = {low: refs}
    else:
        packed.kinds = pack_integers(kinds)
        groups = {
            kind: refs.take(rows)
            for kind in range(low, high + 1)
            if len(rows := np.flatnonzero(kinds == kind))
        }
    if _NATIVE in groups:
        packed.native = _pack_native(groups[_NATIVE])
    if _VIRTUAL in groups:
        packed.virtual = _pack_virtual(groups[_VIRTUAL])
    if _INLINE in groups:
        packed.inline = _pack_inline(groups[_INLINE])
    return packed


def _pack_native(refs: ChunkRefs) -> _Native:
    used, numbers = used_entries(refs.sources)
    files = refs.files[used]
    if len(files) * _FEW <= len(refs):
        first, where = _distinct([row.tobytes() for row in files])
        if len(first) < len(files):
            files, numbers = files[first], where[numbers]
    offsets, gaps = _pack_offsets(refs, numbers)
    return _Native(
        ids=files.tobytes(),
        lengths=pack_integers(refs.lengths),
        files=pack_integers(numbers),
        offsets=offsets,
        gaps=gaps,
        checksums=pack_integers(refs.checksums) if refs.checksums.any() else 0,
    )


def _pack_virtual(refs: ChunkRefs) -> _Virtual:
    used, numbers = used_entries(refs.sources)
    locations = refs.locations.choose(used)
    if len(locations) * _FEW <= len(refs):
        columns = (locations.urls.pieces(), locations.etags.pieces(), locations.modified.tolist())
        first, where = _distinct(list(zip(*columns, strict=True)))
        if len(first) < len(locations):
            locations, numbers = locations.take(first), where[numbers]
    offsets, gaps = _pack_offsets(refs, numbers)
    modified = locations.modified
    return _Virtual(
        count=len(locations),
        urls=pack_strings(locations.urls),
        lengths=pack_integers(refs.lengths),
        locations=pack_integers(numbers),
        offsets=offsets,
        gaps=gaps,
        etags=pack_strings(locations.etags) if locations.etags.data else None,
        modified=pack_integers(modified) if modified.any() else 0,
    )


def _pack_inline(refs: ChunkRefs) -> _Inline:
    starts, ends = refs.offsets, refs.offsets + refs.lengths
    if len(refs) == 1:
        data = refs.inline[int(starts[0]) : int(ends[0])]
    else:
        data, _ = gather_bytes(refs.inline, starts, ends)
    return _Inline(pack_integers(refs.lengths), data)


_FEW = 8
"""Dictionaries this many times smaller than their rows are worth a search for duplicates."""


def _distinct(entries: list[Any]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Rows of the distinct entries, and the number of each entry among them."""
    seen: dict[Any, int] = {}
    where = np.array([seen.setdefault(entry, len(seen)) for entry in entries], dtype=np.int64)
    first = np.zeros(len(seen), dtype=np.intp)
    first[where[::-1]] = np.arange(len(entries) - 1, -1, -1)
    return first, where


def _pack_offsets(refs: ChunkRefs, numbers: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """Offsets, or the gaps between neighbours in the same source, whichever is narrower."""
    offsets = refs.offsets
    if len(offsets) == 1:
        return None, int(offsets[0])
    expected = np.zeros_like(offsets)
    np.add(offsets[:-1], refs.lengths[:-1], out=expected[1:])
    expected[1:][numbers[1:] != numbers[:-1]] = 0
    gaps = (offsets - expected).view(np.int64)
    packed_gaps = pack_integers(gaps)
    gap_width = packed_width(packed_gaps, len(offsets))
    if gap_width == 0:
        return None, packed_gaps
    packed_offsets = pack_integers(offsets)
    width = packed_width(packed_offsets, len(offsets))
    # At the same width, mostly equal gaps compress better than ever-growing offsets.
    steady = int(np.count_nonzero(gaps[1:] == gaps[:-1])) * 2 > len(gaps)
    if gap_width < width or (gap_width == width and steady):
        return None, packed_gaps
    return packed_offsets, 0


# --- decoding


def decode_manifest_index(prefix: bytes, size: int, key: str) -> ManifestIndex | NeedsMore:
    """Read the index from the first bytes of a file, whose header has been read already."""
    if len(prefix) < _INDEX_AT:
        if size < _INDEX_AT:
            raise bad_file(key, f"truncated: {size} bytes hold no index")
        return NeedsMore(_INDEX_AT)
    end = _INDEX_AT + int.from_bytes(prefix[HEADER_SIZE:_INDEX_AT], "little")
    if end > size:
        raise bad_file(key, f"the index would end at byte {end}, but the file has {size}")
    if len(prefix) < end:
        return NeedsMore(end)
    packed = decode_msgpack(_index_decoder, decompress(prefix[_INDEX_AT:end], key), key)
    arrays = _unpack_arrays(packed, key)
    blocks = unpack_integer(packed.blocks, key, limit=(size - end) // _MIN_FRAME)
    rows = _unpack_list(packed.rows, blocks, key, MAX_BLOCK_ROWS)
    if not rows or min(rows) == 0 or sum(rows) != int(arrays.rows[-1]):
        raise bad_file(key, "the references of the blocks and of the arrays are not as many")
    sizes = _unpack_list(packed.sizes, blocks, key, size)
    starts = list(accumulate(sizes, initial=end))
    if starts[-1] != size:
        raise bad_file(
            key,
            f"the blocks should end with the file at byte {size}, but end at {starts[-1]}; "
            "the file is cut off or has bytes to spare",
        )
    return ManifestIndex(
        arrays=arrays,
        block_rows=np.array(list(accumulate(rows, initial=0)), dtype=np.int64),
        block_positions=unpack_integers(packed.positions, blocks, key),
        block_spans=np.array(list(zip(starts, sizes, strict=False)), dtype=np.int64),
    )


def _unpack_list(packed: Any, count: int, key: str, limit: int) -> list[int]:
    values = unpack_column(packed, count, key, limit=limit)
    return values if isinstance(values, list) else values.tolist()


def _unpack_arrays(packed: _Index, key: str) -> ManifestArrays:
    count, rest = divmod(len(packed.nodes), NodeId.SIZE)
    if rest:
        raise bad_file(key, f"{len(packed.nodes)} bytes cannot be a column of node ids")
    ranks = unpack_column(packed.ranks, count, key, limit=MAX_RANK)
    counts = unpack_column(packed.counts, count, key, limit=MAX_VALUE // max(count, 1))
    lower, shapes = unpack_boxes(packed.lower, packed.shapes, ranks, key)
    arrays = ManifestArrays(
        node_ids=packed.nodes, ranks=ranks, counts=counts, lower=lower, shapes=shapes
    )
    column = arrays.counts.view(np.uint64)
    if not column.all() or (column > arrays.sizes).any():
        raise bad_file(key, "an array has no references, or more than its extents have positions")
    if not arrays.is_ascending:
        raise bad_file(key, "the arrays are not in order of their ids")
    return arrays


def decode_block(index: ManifestIndex, number: int, data: bytes, key: str) -> ManifestBlock:
    """Read one block from the bytes that the index's span names."""
    if len(data) != int(index.block_spans[number, 1]):
        raise bad_file(key, f"block {number} has {len(data)} bytes; the index says otherwise")
    packed = decode_msgpack(_block_decoder, decompress(data, key), key)
    count = int(index.block_rows[number + 1] - index.block_rows[number])
    positions = None
    if packed.positions is not None:
        positions = unpack_integers(packed.positions, count, key)
    check_positions(index, number, positions, key)
    return ManifestBlock(positions, _unpack_refs(packed, count, key))


def check_positions(
    index: ManifestIndex, number: int, positions: npt.NDArray[np.uint64] | None, key: str
) -> None:
    """Positions of sparse arrays ascend, also from block to block, and are inside the extents."""
    arrays = index.arrays
    if arrays.all_dense:
        return
    start, stop = index.block_rows[number : number + 2].tolist()
    first = int(arrays.rows.searchsorted(start, side="right")) - 1
    last = int(arrays.rows.searchsorted(stop, side="left"))
    bounds = np.clip(arrays.rows[first : last + 1], start, stop) - start
    sizes = arrays.sizes[first:last]
    sparse = arrays.counts[first:last].view(np.uint64) != sizes
    if not sparse.any():
        return
    if positions is None:
        raise bad_file(key, f"block {number} has no positions for its sparse arrays")
    lengths = np.diff(bounds)
    checked = np.repeat(sparse, lengths)
    inside = positions < np.repeat(sizes, lengths)
    ascending = np.ones(len(positions), dtype=bool)
    ascending[1:] = positions[1:] > positions[:-1]
    ascending[bounds[:-1]] = True
    right = bool((inside & ascending)[checked].all())
    if sparse[0]:
        right = right and positions[0] == index.block_positions[number]
    if sparse[-1] and int(arrays.rows[last]) > stop:
        right = right and bool(positions[-1] < index.block_positions[number + 1])
    if not right:
        raise bad_file(key, f"the positions in block {number} do not ascend within their extents")


def _unpack_refs(packed: _Block, count: int, key: str) -> ChunkRefs:
    present = [
        (kind, group)
        for kind, group in (
            (_NATIVE, packed.native),
            (_VIRTUAL, packed.virtual),
            (_INLINE, packed.inline),
        )
        if group is not None
    ]
    if len(present) == 1:
        kind, group = present[0]
        return _unpack_group(kind, group, count, key)
    kinds = unpack_integers(packed.kinds, count, key, limit=_INLINE).astype(np.uint8)
    rows = {kind: np.flatnonzero(kinds == kind) for kind, _ in present}
    if sum(map(len, rows.values())) != count or not all(map(len, rows.values())):
        raise bad_file(key, "the kinds of references are not those that the block holds")
    parts = [_unpack_group(kind, group, len(rows[kind]), key) for kind, group in present]
    order = np.empty(count, dtype=np.intp)
    order[np.concatenate(list(rows.values()))] = np.arange(count)
    return ChunkRefs.concat(parts).take(order)


def _unpack_group(kind: int, group: Any, count: int, key: str) -> ChunkRefs:
    lengths = unpack_integers(group.lengths, count, key)
    checksums = np.zeros(count, dtype=np.uint32)
    sources = np.zeros(count, dtype=np.uint32)
    files, locations, inline = _NO_FILES, _NO_LOCATIONS, b""
    if kind == _INLINE:
        inline = group.data
        ends = np.cumsum(lengths)
        if int(lengths.max()) > len(inline) or int(ends[-1]) != len(inline):
            raise bad_file(key, f"{len(inline)} inline bytes are not what their lengths say")
        offsets = ends - lengths
    else:
        if kind == _NATIVE:
            files = _unpack_files(group, key)
            sources = _unpack_sources(group.files, count, len(files), key)
            if group.checksums != 0:
                packed = unpack_integers(group.checksums, count, key, limit=2**32 - 1)
                checksums = packed.astype(np.uint32)
        else:
            locations = _unpack_locations(group, key)
            sources = _unpack_sources(group.locations, count, len(locations), key)
        offsets = _unpack_offsets(group, sources, lengths, key)
        if (offsets > MAX_VALUE - lengths).any():
            raise bad_file(key, "a reference reaches beyond byte 2**63")
    kinds = np.empty(count, dtype=np.uint8)
    kinds.fill(kind)
    return ChunkRefs(
        kinds=kinds,
        sources=sources,
        offsets=offsets,
        lengths=lengths,
        checksums=checksums,
        files=files,
        locations=locations,
        inline=inline,
    )


_NO_FILES = np.empty((0, ChunkFileId.SIZE), dtype=np.uint8)
_NO_LOCATIONS = Locations.none()


def _unpack_files(group: _Native, key: str) -> npt.NDArray[np.uint8]:
    if len(group.ids) % ChunkFileId.SIZE:
        raise bad_file(key, f"{len(group.ids)} bytes cannot be a column of chunk file ids")
    return np.frombuffer(group.ids, dtype=np.uint8).reshape(-1, ChunkFileId.SIZE)


def _unpack_locations(group: _Virtual, key: str) -> Locations:
    count = unpack_integer(group.count, key, limit=MAX_BLOCK_ROWS)
    urls = unpack_strings(group.urls, count, key)
    if group.etags is None:
        etags = StringColumn(b"", np.zeros(count, dtype=np.uint64))
    else:
        etags = unpack_strings(group.etags, count, key)
    return Locations(urls, etags, unpack_integers(group.modified, count, key).astype(np.int64))


def _unpack_sources(packed: Any, count: int, entries: int, key: str) -> npt.NDArray[np.uint32]:
    if entries == 0:
        raise bad_file(key, "references name sources, but there are none")
    return unpack_integers(packed, count, key, limit=entries - 1).astype(np.uint32)


def _unpack_offsets(
    group: _Native | _Virtual,
    sources: npt.NDArray[np.uint32],
    lengths: npt.NDArray[np.uint64],
    key: str,
) -> npt.NDArray[np.uint64]:
    count = len(lengths)
    if group.offsets is not None:
        return unpack_integers(group.offsets, count, key)
    gaps = unpack_integers(group.gaps, count, key, limit=None)
    if count == 1:
        return gaps
    # A running sum that starts again with each run of references to one source.
    moved = np.empty(count, dtype=bool)
    moved[0] = True
    np.not_equal(sources[1:], sources[:-1], out=moved[1:])
    starts = np.flatnonzero(moved)
    steps = gaps.copy()
    steps[1:] += lengths[:-1]
    steps[starts[1:]] = gaps[starts[1:]]
    sums = np.cumsum(steps, dtype=np.uint64)
    if len(starts) > 1:
        before = sums[starts] - steps[starts]
        sums -= np.repeat(before, np.diff(np.append(starts, count)))
    return sums
