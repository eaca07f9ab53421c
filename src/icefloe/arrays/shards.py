"""Reads the chunks inside of shards, found by the shards' indexes, without the rest.

A shard is one chunk of the array for the repository, wherever its bytes are. What Zarr calls the
inner chunks has a grid of its own, over which boxes are read as over any other.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c
import numpy as np

from icefloe.arrays.chunk_arrays import ChunkArrays
from icefloe.arrays.spans import Slab, slabs_of_parts
from icefloe.errors import FormatError
from icefloe.model.byte_range import ByteRange
from icefloe.model.chunk_refs import ChunkKind
from icefloe.model.located import Located
from icefloe.model.segments import FoundChunks, Segments
from icefloe.objects.chunks import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.arrays.layout import ArrayLayout
    from icefloe.arrays.spans import Spans
    from icefloe.engine.port import Buffers, ChunkStore

    Coords = npt.NDArray[np.int64]
    Index = npt.NDArray[np.uint64]

_MISSING = 2**64 - 1
_ENTRY_BYTES = 16
_CRC_BYTES = 4
_OUTSIDE = "its index refers to bytes that it does not have"


class ShardLayout(NamedTuple):
    """How the shards of an array are laid out."""

    inner: ArrayLayout
    """How the chunks inside of shards are, as if they were the chunks of the array."""
    per_shard: tuple[int, ...]
    """Number of chunks in a shard, along each axis."""
    at_start: bool
    """Whether the index comes before the chunks."""
    index_dtype: np.dtype[Any]
    has_crc: bool
    """Whether the index ends in its own checksum."""

    @property
    def chunks(self) -> int:
        """Number of chunks in a shard."""
        return math.prod(self.per_shard)

    @property
    def index_bytes(self) -> int:
        """Length of the index."""
        return self.chunks * _ENTRY_BYTES + (_CRC_BYTES if self.has_crc else 0)

    def index_start(self, length: int) -> int:
        """Where the index begins in a shard of some number of bytes."""
        return 0 if self.at_start else length - self.index_bytes

    def parse_index(self, data: memoryview) -> Index:
        """Offset and length of each chunk of a shard, (n, 2); raises ValueError."""
        if len(data) != self.index_bytes:
            raise ValueError(f"the index of a shard has {self.index_bytes} bytes, not {len(data)}")
        if self.has_crc:
            stored = bytes(data[-_CRC_BYTES:])
            data = data[:-_CRC_BYTES]
            computed = google_crc32c.value(bytes(data)).to_bytes(_CRC_BYTES, "little")
            if stored != computed:
                raise ValueError(
                    f"the checksum of the index is {stored.hex()}, not {computed.hex()}"
                )
        return np.frombuffer(data, self.index_dtype).reshape(-1, 2)

    def slabs(self, spans: Sequence[Spans], slab_bytes: int) -> list[Slab]:
        """Cut a box of chunks where shards begin, so that each shard is looked at once."""
        cuts = [
            np.flatnonzero(np.diff(span.ids // count)) + 1
            for span, count in zip(spans, self.per_shard, strict=True)
        ]
        bounds = [[0, *cut.tolist(), len(span.ids)] for span, cut in zip(spans, cuts, strict=True)]
        most = slab_bytes // (self.inner.chunk_bytes * self.chunks)
        return list(slabs_of_parts(bounds, most))


def shard_layout(layout: ArrayLayout) -> ShardLayout | None:
    """The layout of an array's shards; None without shards, or with what Zarr has to decode."""
    from zarr.codecs import ShardingCodec

    if (
        not layout.is_regular
        or len(layout.codecs) != 1
        or type(layout.codecs[0]) is not ShardingCodec
    ):
        return None
    codec: Any = layout.codecs[0]
    index = _index_form(codec.index_codecs)
    inner = _inner_layout(layout, codec)
    if index is None or inner is None or not inner.is_batched:
        return None
    pairs = zip(layout.chunk_shape, inner.chunk_shape, strict=True)
    return ShardLayout(
        inner,
        tuple(size // part for size, part in pairs),
        _text(codec.index_location) == "start",
        *index,
    )


def _index_form(codecs: Sequence[Any]) -> tuple[np.dtype[Any], bool] | None:
    """Data type of an index and whether it has a checksum; None for other ways to encode it."""
    from zarr.codecs import BytesCodec, Crc32cCodec

    kinds = [type(codec) for codec in codecs]
    if kinds not in ([BytesCodec], [BytesCodec, Crc32cCodec]):
        return None
    return np.dtype(">u8" if _text(codecs[0].endian) == "big" else "<u8"), len(kinds) == 2


def _text(setting: Any) -> str:
    """A setting of a codec, which in older versions of zarr is a member of an enumeration."""
    return str(getattr(setting, "value", setting))


def _inner_layout(layout: ArrayLayout, codec: Any) -> ArrayLayout | None:
    document = layout.metadata.to_dict()
    document["chunk_grid"] = {
        "name": "regular",
        "configuration": {"chunk_shape": list(codec.chunk_shape)},
    }
    document["codecs"] = [each.to_dict() for each in codec.codecs]
    try:
        with warnings.catch_warnings():
            # Zarr warned about the data type when the array was opened.
            warnings.simplefilter("ignore")
            return type(layout)(type(layout.metadata).from_dict(document))
    except Exception:  # noqa: BLE001
        # What Zarr cannot make sense of so, it decodes as a whole, or has the error for it.
        return None


class _ShardRequest(NamedTuple):
    """Chunks that are wanted, and the shards that they are in."""

    shards: Coords
    """Coordinates of the shards, (m, rank)."""
    shard_of: npt.NDArray[np.intp]
    """Which of the shards each wanted chunk is in."""
    position: npt.NDArray[np.intp]
    """Which chunk of its shard each wanted chunk is."""


class ShardedChunks(ChunkArrays):
    """Reads chunks inside of shards; they are written by whole shards, elsewhere."""

    _what = "inner chunk"

    def __init__(self, tree: ChunkStore, path: str, shards: ShardLayout) -> None:
        """Take an array of a tree."""
        super().__init__(tree, path, shards.inner)
        self._shards = shards
        self.present: set[tuple[int, ...]] = set()
        """Coordinates of the shards that were found."""

    def find(self, coords: Coords, buffers: Buffers | None = None) -> Iterator[FoundChunks]:
        """The bytes of chunks as they come; of each shard all that are wanted are given at once."""
        request = self._sort(coords)
        located = self._tree.locate_chunks(self._path, request.shards)
        lengths = np.full(len(request.shards), -1, dtype=np.int64)
        whole = np.zeros(len(request.shards), dtype=np.bool_)
        enough = 2 * np.bincount(request.shard_of, minlength=len(whole)) >= self._shards.chunks
        for group in located:
            lengths[group.rows] = group.refs.lengths.astype(np.int64)
            held = group.refs.kinds == ChunkKind.INLINE
            whole[group.rows] = held | enough[group.rows]
        self.present.update(map(tuple, request.shards[lengths >= 0].tolist()))
        whole |= (lengths <= self._near_bytes()) | self._tree.verify_chunks
        yield from self._in_whole_shards(request, _only(located, whole))
        yield from self._in_parts(request, _only(located, ~whole), lengths, buffers)

    def load_one(self, coords: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        """Read one chunk, with the axes of the array; the quick way for a single one."""
        shards, tree, path = self._shards, self._tree, self._path
        pairs = list(zip(coords, shards.per_shard, strict=True))
        shard = tuple(place // count for place, count in pairs)
        # Located once: another thread may write the shard meanwhile.
        ref = tree.locate(path, shard)
        if ref is None:
            return None
        self.present.add(shard)
        length = size_of(ref)
        whole = length <= self._near_bytes() or tree.verify_chunks
        held = tree.read_ref(path, shard, ref) if whole else None

        def piece(start: int, length: int) -> memoryview:
            if held is not None:
                return memoryview(held)[start : start + length]
            part = ByteRange(start, length)
            return memoryview(tree.read_ref(path, shard, ref, part))

        start = shards.index_start(length)
        if start < 0 or length < shards.index_bytes:
            raise self._damaged(shard, f"its {length} bytes are fewer than those of an index")
        index = piece(start, shards.index_bytes)
        position = 0
        for place, count in pairs:
            position = position * count + place % count
        first, size = self._entry(index, position, shard, length)
        if size is None:
            return None
        return self.decode_one(piece(first, size), coords, shape)

    def _entry(
        self, index: memoryview, position: int, shard: tuple[int, ...], length: int
    ) -> tuple[int, int | None]:
        """Where a chunk of a shard begins and how long it is; None if the shard lacks it."""
        try:
            first, size = self._shards.parse_index(index)[position].tolist()
        except ValueError as error:
            raise self._damaged(shard, str(error)) from None
        if first == size == _MISSING:
            return 0, None
        if first + size > length:
            raise self._damaged(shard, _OUTSIDE)
        return first, size

    def _sort(self, coords: Coords) -> _ShardRequest:
        per_shard = np.array(self._shards.per_shard, dtype=np.int64)
        shards = coords // per_shard
        if not coords.shape[1]:
            none = np.zeros(len(coords), dtype=np.intp)
            return _ShardRequest(shards[:1], none, none)
        inside = tuple((coords - shards * per_shard).T)
        position = np.ravel_multi_index(inside, self._shards.per_shard)
        lowest = shards.min(axis=0)
        extents = (shards.max(axis=0) - lowest + 1).tolist()
        numbers = np.ravel_multi_index(tuple((shards - lowest).T), extents)
        distinct, shard_of = np.unique(numbers, return_inverse=True)
        found = np.stack(np.unravel_index(distinct, extents), axis=1) + lowest
        return _ShardRequest(found.astype(np.int64), shard_of, position)

    def _read(
        self, places: Coords, located: Sequence[Located], buffers: Buffers | None = None
    ) -> Iterator[FoundChunks]:
        """The bytes that references name; `places` are the shards that their rows are about."""
        return self._tree.read_located(self._path, places, located, buffers)

    def _near_bytes(self) -> int:
        """Number of bytes up to which a whole shard is read as fast as its index."""
        return self._tree.gap_bytes

    # --- shards that are read as a whole

    def _in_whole_shards(
        self, request: _ShardRequest, located: Sequence[Located]
    ) -> Iterator[FoundChunks]:
        for found in self._read(request.shards, located):
            shards, (data, starts, sizes) = found.rows, found.segments
            indexes = self._parse(request, found.rows, sizes, self._pieces(found.segments))
            rows, entries = self._entries(request, shards, indexes)
            begin = np.zeros(len(request.shards), dtype=np.int64)
            begin[shards] = starts
            offsets = begin[request.shard_of[rows]] + entries[:, 0]
            if len(rows):
                yield FoundChunks(rows, Segments(data, offsets, entries[:, 1]))

    def _pieces(self, shards: Segments) -> Iterator[memoryview]:
        """The bytes of the indexes of whole shards."""
        for row in range(len(shards)):
            shard = shards.piece(row)
            start = max(0, self._shards.index_start(len(shard)))
            yield shard[start : start + self._shards.index_bytes]

    # --- shards of which parts are read

    def _in_parts(
        self,
        request: _ShardRequest,
        located: Sequence[Located],
        lengths: npt.NDArray[np.int64],
        buffers: Buffers | None,
    ) -> Iterator[FoundChunks]:
        if not located:
            return
        index_refs = self._index_refs(request, located)
        chunks: list[Located] = []
        for found in self._read(request.shards, index_refs):
            pieces = map(found.segments.piece, range(len(found.rows)))
            indexes = self._parse(request, found.rows, lengths[found.rows], pieces)
            rows, entries = self._entries(request, found.rows, indexes)
            chunks += _inside(located, request.shard_of[rows], rows, entries)
        places = request.shards[request.shard_of]
        yield from self._read(places, chunks, buffers)

    def _index_refs(self, request: _ShardRequest, located: Sequence[Located]) -> list[Located]:
        """References of the indexes of shards."""
        size = self._shards.index_bytes
        index_refs = []
        for group in located:
            lengths = group.refs.lengths.astype(np.int64)
            short = np.flatnonzero(lengths < size)
            if len(short):
                at = int(short[0])
                what = f"it has {lengths[at]} bytes, and its index alone has {size}"
                raise self._damaged(request.shards[group.rows[at]], what)
            starts = np.zeros_like(lengths) if self._shards.at_start else lengths - size
            rows = np.arange(len(lengths))
            sizes = np.full(len(lengths), size, dtype=np.int64)
            index_refs.append(Located(group.rows, group.refs.parts(rows, starts, sizes)))
        return index_refs

    # --- indexes

    def _parse(
        self,
        request: _ShardRequest,
        shards: npt.NDArray[np.integer],
        sizes: npt.NDArray[np.int64],
        pieces: Iterator[memoryview],
    ) -> Index:
        """The indexes of some shards, (m, n, 2), in which nothing is outside of its shard."""
        indexes = np.empty((len(shards), self._shards.chunks, 2), dtype=np.uint64)
        for number, piece in enumerate(pieces):
            try:
                indexes[number] = self._shards.parse_index(piece)
            except ValueError as error:
                raise self._damaged(request.shards[shards[number]], str(error)) from None
        limits = sizes.astype(np.uint64)[:, None]
        starts, lengths = indexes[..., 0], indexes[..., 1]
        there = (starts != _MISSING) | (lengths != _MISSING)
        inside = (starts <= limits) & (lengths <= limits - np.minimum(starts, limits))
        wrong = np.flatnonzero((there & ~inside).any(axis=1))
        if len(wrong):
            raise self._damaged(request.shards[shards[wrong[0]]], _OUTSIDE)
        return indexes

    def _entries(
        self,
        request: _ShardRequest,
        shards: npt.NDArray[np.integer],
        indexes: Index,
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Which wanted chunks some shards have, and offset and length of each in its shard."""
        number = np.full(len(request.shards), -1, dtype=np.intp)
        number[shards] = np.arange(len(shards))
        rows = np.flatnonzero(number[request.shard_of] >= 0)
        entries = indexes[number[request.shard_of[rows]], request.position[rows]]
        kept = (entries[:, 0] != _MISSING) | (entries[:, 1] != _MISSING)
        return rows[kept], entries[kept].astype(np.int64)

    def _damaged(self, place: npt.NDArray[np.integer] | tuple[int, ...], what: str) -> FormatError:
        shown = [int(each) for each in place]
        return FormatError(f"chunk {shown} of {self._path} cannot be decoded: {what}", self._path)


def _only(located: Sequence[Located], chosen: npt.NDArray[np.bool_]) -> list[Located]:
    """The references of some of the wanted shards."""
    selected = []
    for group in located:
        rows = np.flatnonzero(chosen[group.rows])
        if len(rows) == len(group.rows):
            selected.append(group)
        elif len(rows):
            selected.append(Located(group.rows[rows], group.refs.take(rows)))
    return selected


def _inside(
    located: Sequence[Located],
    shard_of: npt.NDArray[np.intp],
    rows: npt.NDArray[np.intp],
    entries: npt.NDArray[np.int64],
) -> Iterator[Located]:
    """References of chunks inside of shards, of those and where in them the chunks are."""
    for group in located:
        order = np.argsort(group.rows)
        at = np.searchsorted(group.rows, shard_of, sorter=order)
        at = order[np.minimum(at, len(order) - 1)]
        mine = np.flatnonzero(group.rows[at] == shard_of)
        if len(mine):
            refs = group.refs.parts(at[mine], entries[mine, 0], entries[mine, 1])
            yield Located(rows[mine], refs)
