"""Reading and writing boxes of an array: slabs of chunks on one side, one array on the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.chunk_arrays import ChunkArrays
from icefloe.arrays.large_chunks import LargeChunks, is_for_large_chunks, is_plain_and_large
from icefloe.arrays.layout import layout_of
from icefloe.arrays.spans import slabs_of, spans_of
from icefloe.arrays.threads import allowed_threads, for_each
from icefloe.errors import InvalidInputError
from icefloe.model import paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.arrays.layout import ArrayLayout
    from icefloe.arrays.selection import BoxSelection
    from icefloe.arrays.shards import ShardLayout
    from icefloe.arrays.spans import Run, Slab, Spans
    from icefloe.engine.port import ChunkStore

    Values = npt.NDArray[Any]

_SLAB_BYTES = 8 << 20
"""Decoded bytes that are handled together: they should fit into a processor's cache."""
_WRITTEN_SLAB_BYTES = 32 << 20
"""The same for writing: a full pack, which then need not wait for others."""
_IN_PLACE_SLAB_BYTES = 32 << 20
"""The same for chunks that are read into the result, and pass through no cache."""
_REMOTE_SLAB_BYTES = 64 << 20
"""The same where reads wait for a network, and more of them should wait at a time."""
_SLABS_ON_THEIR_WAY = 2
"""How many slabs wait for a network to take them while others are encoded."""


def read_region(tree: ChunkStore, path: str, selection: Any, out: Values | None = None) -> Values:
    """Read a selection of an array; see `Session.read_region`."""
    from icefloe.arrays.selection import parse_selection

    path = paths.canonical(path)
    layout = layout_of(tree, path)
    region = parse_selection(selection, layout.shape, path)
    if out is None:
        out = np.empty(region.shape, dtype=layout.dtype)
    else:
        _check_out(out, region.shape, layout.dtype, path)
    if not region.size:
        return out
    shards = layout.shards
    layout = layout if shards is None else shards.inner
    place = one_chunk(region, layout)
    if place is None:
        box = BoxTransfer(tree, path, layout, region_spans(region, layout), shards=shards)
        box.read(region.on_all_axes(out))
    else:
        _read_from_one(_chunk_arrays(tree, path, layout, shards), place, region, layout, out)
    return out


def _chunk_arrays(
    tree: ChunkStore, path: str, layout: ArrayLayout, shards: ShardLayout | None, **more: bool
) -> ChunkArrays:
    if shards is None:
        return ChunkArrays(tree, path, layout, **more)
    from icefloe.arrays.shards import ShardedChunks

    return ShardedChunks(tree, path, shards)


def write_region(
    tree: ChunkStore,
    path: str,
    selection: Any,
    values: npt.ArrayLike,
    *,
    write_empty_chunks: bool | None,
) -> None:
    """Write a selection of an array; see `Session.write_region`."""
    from icefloe.arrays.selection import parse_selection

    tree.check_writable()
    path = paths.canonical(path)
    layout = layout_of(tree, path)
    region = parse_selection(selection, layout.shape, path)
    data = as_values(values, layout.dtype)
    try:
        data = np.broadcast_to(data, region.shape)
    except ValueError:
        raise InvalidInputError(
            f"values of shape {data.shape} do not fit the selection of {path}, whose shape is "
            f"{region.shape}"
        ) from None
    if region.size:
        if write_empty_chunks is None:
            from zarr.core.config import config

            write_empty_chunks = bool(config.get("array.write_empty_chunks"))
        spans = region_spans(region, layout)
        box = BoxTransfer(tree, path, layout, spans, write_empty_chunks=write_empty_chunks)
        box.write(region.on_all_axes(data))


def as_values(values: npt.ArrayLike, dtype: np.dtype[Any]) -> Values:
    """Values as an array of a data type, or nearly so: of another byte order."""
    given = np.asanyarray(values) if hasattr(values, "dtype") else np.asarray(values, dtype)
    kind = given.dtype.kind
    if given.dtype == dtype or (kind in "iufcmM" and given.dtype.newbyteorder() == dtype):
        return given
    return given.astype(dtype)


def one_chunk(region: BoxSelection, layout: ArrayLayout) -> tuple[int, ...] | None:
    """The chunk that has all elements of a region, if there is one of a known shape."""
    if not layout.is_regular:
        return None
    place = []
    for axis, size in zip(region.axes, layout.chunk_shape, strict=True):
        number = axis.start // size
        if (axis.start + (axis.length - 1) * axis.step) // size != number:
            return None
        place.append(number)
    return tuple(place)


def _read_from_one(
    chunks: ChunkArrays,
    place: tuple[int, ...],
    region: BoxSelection,
    layout: ArrayLayout,
    out: Values,
) -> None:
    """Read a selection that is inside of one chunk, without the machinery for many."""
    chunk = chunks.load_one(place, layout.chunk_shape)
    if chunk is None:
        out[...] = layout.fill_value
        return
    index: list[Any] = []
    for axis, number, size in zip(region.axes, place, layout.chunk_shape, strict=True):
        first = axis.start - number * size
        if axis.dropped:
            index.append(first)
            continue
        last = first + (axis.length - 1) * axis.step
        below = first - axis.step if first >= axis.step else None
        index.append(
            slice(last, below, -axis.step) if axis.flipped else slice(first, last + 1, axis.step)
        )
    out[...] = chunk[(*index, ...)]


def region_spans(region: BoxSelection, layout: ArrayLayout) -> tuple[Spans, ...]:
    """Which chunks of an array a region of at least one element touches, along each axis."""
    axes = zip(region.axes, layout.shape, layout.edges, strict=True)
    return tuple(spans_of(*given) for given in axes)


class BoxTransfer:
    """Reads or writes a box of elements of an array, perhaps with gaps, chunk by chunk."""

    def __init__(
        self,
        tree: ChunkStore,
        path: str,
        layout: ArrayLayout,
        spans: Sequence[Spans],
        *,
        write_empty_chunks: bool = False,
        covered: npt.NDArray[np.bool_] | None = None,
        shards: ShardLayout | None = None,
    ) -> None:
        """Take the chunks that have the elements; there is at least one element.

        Args:
            tree: Where to read and write.
            path: Canonical path of the array.
            layout: How it is laid out and encoded.
            spans: Which chunks have the elements, along each axis.
            write_empty_chunks: Whether to keep chunks that only have the fill value.
            covered: Which chunks of the box are written as a whole, if the caller knows better
                than the layout how large the array is.
            shards: How the shards are laid out that the chunks are in; then `layout` is about the
                chunks inside of them, which can be read only.
        """
        self._layout = layout
        self._shards = shards
        self._chunks = _chunk_arrays(
            tree, path, layout, shards, write_empty_chunks=write_empty_chunks
        )
        self._threads = allowed_threads(tree)
        self._spans = tuple(spans)
        self._covered = covered
        self._reads_are_immediate = tree.reads_are_immediate
        self._slab_bytes = _SLAB_BYTES if self._reads_are_immediate else _REMOTE_SLAB_BYTES

    @property
    def shards_found(self) -> set[tuple[int, ...]]:
        """Coordinates of the shards that were found when the box was read."""
        if self._shards is None:
            return set()
        from icefloe.arrays.shards import ShardedChunks

        return self._chunks.present if isinstance(self._chunks, ShardedChunks) else set()

    def read_from_one(self, target: Values) -> bool:
        """Read all elements if they are in one chunk; says whether they are."""
        if any(len(span.ids) != 1 for span in self._spans):
            return False
        chunk = self._chunks.load_one(
            tuple(int(span.ids[0]) for span in self._spans), self._layout.chunk_shape
        )
        if chunk is None:
            target[...] = self._layout.fill_value
            return True
        index: list[Any] = []
        for span in self._spans:
            first, count = int(span.first[0]), int(span.lengths[0])
            index.append(slice(first, first + (count - 1) * span.step + 1, span.step))
        target[...] = chunk[(*index, ...)]
        return True

    def read(self, target: Values) -> npt.NDArray[np.bool_]:
        """Read all elements into an array that has all axes; returns which chunks exist."""
        present = np.zeros(tuple(len(span.ids) for span in self._spans), dtype=np.bool_)
        slabs = self._slabs(self._read_slab_bytes(target.nbytes))
        threads = 1 if len(slabs) >= self._threads else self._threads

        large = None
        if is_for_large_chunks(self._layout):
            large = LargeChunks(self._chunks, self._layout, self._spans, target)

        def read(slab: Slab) -> None:
            if large is not None:
                present[slab.rows] = large.read(slab).reshape(slab.grid)
                return
            chunks, found = self._chunks.load(slab.coords(self._spans), self._shape(slab), threads)
            present[slab.rows] = found.reshape(slab.grid)
            self._place(slab, chunks, target)

        for_each(read, slabs, self._threads)
        return present

    def write(self, values: Values) -> None:
        """Set all elements from an array that has all axes."""
        slabs = self._slabs(max(self._slab_bytes, _WRITTEN_SLAB_BYTES))
        threads = 1 if len(slabs) >= self._threads else self._threads
        workers = self._threads
        if not self._reads_are_immediate and len(slabs) > 1:
            self._chunks.limit_encoding(self._threads)
            workers += _SLABS_ON_THEIR_WAY
        for_each(lambda slab: self._write_slab(slab, values, threads), slabs, workers)

    def _read_slab_bytes(self, nbytes: int) -> int:
        """How much of a result of `nbytes` to read together; each thread still has a share."""
        if not is_plain_and_large(self._layout):
            return self._slab_bytes
        share = min(nbytes // self._threads, _IN_PLACE_SLAB_BYTES)
        return max(share, self._slab_bytes)

    def _slabs(self, slab_bytes: int) -> list[Slab]:
        if self._shards is not None:
            return self._shards.slabs(self._spans, slab_bytes)
        if not self._layout.is_regular:
            # Chunks of different shapes do not fit into one array.
            return list(slabs_of(self._spans, 1))
        return list(slabs_of(self._spans, slab_bytes // self._layout.chunk_bytes))

    def _shape(self, slab: Slab) -> tuple[int, ...]:
        """Shape of the chunks of a slab, with the axes of the array."""
        pairs = zip(self._spans, slab.lows, strict=True)
        return tuple(int(span.sizes[low]) for span, low in pairs)

    def _place(self, slab: Slab, chunks: Values | None, target: Values) -> None:
        logical = None if chunks is None else self._layout.logical(chunks, slab.grid)
        for tile in slab.tiles(self._spans):
            there = _in_target(target, tile)
            if logical is None:
                there[...] = self._layout.fill_value
            else:
                there[...] = self._in_chunks(logical, tile, slab)

    def _write_slab(self, slab: Slab, values: Values, threads: int) -> None:
        coords = slab.coords(self._spans)
        shape = self._shape(slab)
        tiles = list(slab.tiles(self._spans))
        given = self._as_they_are(tiles, values, shape)
        if given is not None:
            self._chunks.store(coords, given, threads)
            return
        chunks = self._chunks.empty(len(coords), shape)
        if not all(self._fills_chunks(tile, shape) for tile in tiles):
            chunks[...] = self._layout.fill_value
            partial = ~self._covered_by(slab)
            if partial.any():
                before, _ = self._chunks.load(coords[partial], shape, threads)
                if before is not None:
                    chunks[partial] = before
        logical = self._layout.logical(chunks, slab.grid)
        for tile in tiles:
            self._in_chunks(logical, tile, slab)[...] = _in_target(values, tile)
        self._chunks.store(coords, chunks, threads)

    def _as_they_are(
        self, tiles: Sequence[tuple[Run, ...]], values: Values, shape: tuple[int, ...]
    ) -> Values | None:
        """Values that are chunks already, one after the other: they need not be copied."""
        layout = self._layout
        if len(tiles) != 1 or layout.is_transposed or values.dtype != layout.stored_dtype:
            return None
        if not layout.is_batched or not self._fills_chunks(tiles[0], shape):
            return None
        part = _in_target(values, tiles[0])
        return part.reshape((-1, *shape)) if part.flags.c_contiguous else None

    def _covered_by(self, slab: Slab) -> npt.NDArray[np.bool_]:
        if self._covered is None:
            return slab.covered(self._spans)
        grid = tuple(len(span.ids) for span in self._spans)
        return self._covered.reshape(grid)[slab.rows].reshape(-1)

    def _fills_chunks(self, tile: tuple[Run, ...], shape: tuple[int, ...]) -> bool:
        return all(
            run.first == 0 and run.length == size for run, size in zip(tile, shape, strict=True)
        )

    def _in_chunks(self, logical: Values, tile: tuple[Run, ...], slab: Slab) -> Values:
        """The elements of a tile in the chunks of a slab, with the axes of grid and chunk."""
        grid = [slice(r.low - low, r.high - low) for r, low in zip(tile, slab.lows, strict=True)]
        steps = (span.step for span in self._spans)
        inner = [
            slice(r.first, r.first + (r.length - 1) * step + 1, step)
            for r, step in zip(tile, steps, strict=True)
        ]
        index: tuple[Any, ...] = (*grid, *inner, ...)
        part: Values = logical[index]
        return part


def _in_target(target: Values, tile: tuple[Run, ...]) -> Values:
    """The elements of a tile in an array, as a view with the axes of grid and chunk."""
    grid = tuple(run.high - run.low for run in tile)
    inner = tuple(run.length for run in tile)
    place = tuple(
        slice(run.target, run.target + count * run.length)
        for run, count in zip(tile, grid, strict=True)
    )
    index: tuple[Any, ...] = (*place, ...)
    part = target[index]  # the ellipsis keeps an array without axes an array
    # To split axes never needs a copy, whatever the strides are.
    rank = len(tile)
    split: Values = part.reshape([size for pair in zip(grid, inner, strict=True) for size in pair])
    axes = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    return split.transpose(axes)


def _check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> None:
    if not isinstance(out, np.ndarray) or out.shape != shape or not out.flags.writeable:
        found = getattr(out, "shape", type(out).__name__)
        raise InvalidInputError(
            f"`out` for this selection of {path} is a writable array of shape {shape}, found "
            f"{found}"
        )
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise InvalidInputError(
            f"`out` cannot take values of {path}: they are {dtype}, it is {out.dtype}"
        )
