"""Chunks as numpy arrays: the chunks of a batch decoded into one array, and encoded out of it."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.batch_codecs import decode_all, encode_all
from icefloe.errors import FormatError, IcefloeError
from icefloe.model.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from icefloe.arrays.layout import ArrayLayout
    from icefloe.arrays.zarr_codecs import ZarrCodecs
    from icefloe.engine.port import Buffers, ChunkStore
    from icefloe.model.segments import FoundChunks

    Coords = npt.NDArray[np.int64]
    Chunks = npt.NDArray[Any]

_THREADS_PAY_BYTES = 1 << 20
"""Below this number of bytes, starting threads takes longer than the work."""


class ChunkArrays:
    """Reads and writes whole chunks of one array.

    Chunks are the rows of an array (n, …), each in the order in which it is stored.
    """

    _what = "chunk"

    def __init__(
        self, tree: ChunkStore, path: str, layout: ArrayLayout, *, write_empty_chunks: bool = False
    ) -> None:
        """Take an array of a tree."""
        self._tree = tree
        self._path = path
        self._layout = layout
        self._write_empty = write_empty_chunks
        self._encoding: AbstractContextManager[object] = nullcontext()

    @cached_property
    def _zarr(self) -> ZarrCodecs:
        from icefloe.arrays.zarr_codecs import ZarrCodecs

        return ZarrCodecs(self._layout, write_empty_chunks=self._write_empty)

    # --- reading

    def load(
        self, coords: Coords, shape: tuple[int, ...], threads: int
    ) -> tuple[Chunks | None, npt.NDArray[np.bool_]]:
        """Read chunks of one shape; missing ones have the fill value.

        Returns the chunks, None if all are missing, and which of them there are. The chunks may
        be a view that cannot be written to.
        """
        chunks: Chunks | None = None
        present = np.zeros(len(coords), dtype=np.bool_)
        for found in self.find(coords):
            decoded = self._decode(found, coords, shape, threads)
            rows = found.rows
            if len(rows) == len(coords) and (len(rows) == 1 or (np.diff(rows) == 1).all()):
                return decoded, ~present
            if chunks is None:
                chunks = self.empty(len(coords), shape)
            chunks[rows] = decoded
            present[rows] = True
        if chunks is not None and not present.all():
            chunks[~present] = self._layout.fill_value
        return chunks, present

    def find(self, coords: Coords, buffers: Buffers | None = None) -> Iterator[FoundChunks]:
        """Read the encoded bytes of chunks, in any order; see `ChunkSource.read_chunks`."""
        return self._tree.read_chunks(self._path, coords, buffers)

    def load_one(self, coords: tuple[int, ...], shape: tuple[int, ...]) -> Chunks | None:
        """Read one chunk, with the axes of the array; the quick way for a single one."""
        data = self._tree.get_chunk(self._path, coords)
        return None if data is None else self.decode_one(data, coords, shape)

    def decode_one(self, data: bytes | memoryview, coords: Any, shape: tuple[int, ...]) -> Chunks:
        """Decode one chunk, with the axes of the array."""
        layout = self._layout
        if layout.is_batched and not layout.steps and len(data) == layout.chunk_bytes:
            plain = np.frombuffer(data, layout.stored_dtype).reshape(layout.stored_shape)
            return plain.transpose(layout.inverse_order) if layout.is_transposed else plain
        length = np.array([len(data)], dtype=np.int64)
        segments = Segments(data, np.zeros(1, dtype=np.int64), length)
        place = np.array([coords], dtype=np.int64)
        chunk: Chunks = self._decode_segments(segments, place, shape, 1)[0, ...]
        return chunk.transpose(layout.inverse_order)

    def empty(self, count: int, shape: tuple[int, ...]) -> Chunks:
        """An uninitialised array for a number of chunks."""
        layout = self._layout
        if layout.is_batched:
            return np.empty((count, *layout.stored_shape), dtype=layout.stored_dtype)
        return np.empty((count, *shape), dtype=layout.dtype)

    def _decode(
        self, found: FoundChunks, coords: Coords, shape: tuple[int, ...], threads: int
    ) -> Chunks:
        return self._decode_segments(found.segments, coords[found.rows], shape, threads)

    def _decode_segments(
        self, segments: Segments, coords: Coords, shape: tuple[int, ...], threads: int
    ) -> Chunks:
        layout = self._layout
        if layout.is_batched:
            pays = len(segments) * layout.chunk_bytes >= _THREADS_PAY_BYTES
            try:
                plain = decode_all(
                    layout.steps, segments, layout.chunk_bytes, threads if pays else 1
                )
                return _rows(plain, layout.chunk_bytes, layout.stored_dtype, layout.stored_shape)
            except Exception:  # noqa: BLE001
                # A chunk is damaged, or only Zarr's codec can decode it.
                return self._decode_singly(segments, coords, shape)
        try:
            pieces = [segments.piece(row) for row in range(len(segments))]
            return self._stack(self._zarr.decode(pieces, shape), shape)
        except Exception:  # noqa: BLE001
            return self._decode_singly(segments, coords, shape)

    def _decode_singly(self, segments: Segments, coords: Coords, shape: tuple[int, ...]) -> Chunks:
        """Decode chunks one by one, so that an error can name the chunk."""
        chunks = self.empty(len(segments), shape)
        for row in range(len(segments)):
            try:
                stacked = self._stack(self._zarr.decode([segments.piece(row)], shape), shape)
                chunks[row] = stacked[0, ...].transpose(self._layout.order)
            except IcefloeError:
                raise
            except Exception as error:
                place = coords[row].tolist()
                raise FormatError(
                    f"{self._what} {place} of {self._path} cannot be decoded: {error}", self._path
                ) from error
        return chunks

    def _stack(self, arrays: Sequence[Chunks | None], shape: tuple[int, ...]) -> Chunks:
        """Decoded chunks with the axes of the array, as rows."""
        stacked = np.empty((len(arrays), *shape), dtype=self._layout.dtype)
        for row, array in enumerate(arrays):
            stacked[row] = self._layout.fill_value if array is None else array
        return stacked

    # --- writing

    def store(self, coords: Coords, chunks: Chunks, threads: int) -> None:
        """Write chunks; those with nothing but the fill value are deleted, unless kept."""
        if not self._write_empty:
            empty = self._empty_rows(chunks)
            if empty.any():
                self._delete(coords[empty])
                coords, chunks = coords[~empty], chunks[~empty]
        if not len(coords):
            return
        encoded = None
        if self._layout.is_batched:
            with self._encoding:
                encoded = self._encode_batch(chunks, threads)
        if encoded is not None:
            self._tree.write_chunks(self._path, coords, encoded)
            return
        self._write_pieces(coords, self._zarr.encode(self._logical(chunks)))

    def limit_encoding(self, slabs: int) -> None:
        """Encode so many slabs at a time, however many threads call `store`."""
        self._encoding = threading.BoundedSemaphore(slabs)

    def _logical(self, chunks: Chunks) -> list[Chunks]:
        """Each chunk with the axes of the array; one without axes is an array all the same."""
        inverse = self._layout.inverse_order
        return [chunks[row, ...].transpose(inverse) for row in range(len(chunks))]

    def _encode_batch(self, chunks: Chunks, threads: int) -> Segments | None:
        size = self._layout.chunk_bytes
        data = np.ascontiguousarray(chunks).reshape(-1).view(np.uint8).data
        offsets = np.arange(len(chunks), dtype=np.int64) * size
        lengths = np.full(len(chunks), size, dtype=np.int64)
        pays = len(data) >= _THREADS_PAY_BYTES
        segments = Segments(data, offsets, lengths)
        return encode_all(self._layout.steps, segments, threads if pays else 1)

    def _write_pieces(self, coords: Coords, pieces: Sequence[bytes | None]) -> None:
        is_written = np.array([piece is not None for piece in pieces], dtype=np.bool_)
        self._delete(coords[~is_written])
        segments = Segments.of([piece for piece in pieces if piece is not None])
        if len(segments):
            self._tree.write_chunks(self._path, coords[is_written], segments)

    def _delete(self, coords: Coords) -> None:
        self._tree.delete_chunks(self._path, coords)

    def _empty_rows(self, chunks: Chunks) -> npt.NDArray[np.bool_]:
        """Which chunks have nothing but the fill value, by Zarr's idea of equal."""
        if not self._layout.is_batched:
            found = [self._zarr.is_empty(chunk) for chunk in self._logical(chunks)]
            return np.array(found, dtype=np.bool_)
        rows = chunks.reshape(len(chunks), -1)
        same = _same_as(self._layout.fill_value, chunks.dtype)
        empty: npt.NDArray[np.bool_] = same(rows[:, 0])
        # Nearly always, a look at the first element of each chunk is enough.
        candidates = np.flatnonzero(empty)
        for start in range(0, len(candidates), 1024):
            some = candidates[start : start + 1024]
            empty[some] = same(rows[some]).all(axis=1)
        return empty


def _same_as(fill_value: Any, dtype: np.dtype[Any]) -> Any:
    """A function that finds the elements that are the fill value.

    As for Zarr, zeros of different sign differ, and "not a number" is always the same.
    """
    fill = np.asarray(fill_value, dtype=dtype)
    if dtype.kind == "f" and fill == 0:
        bits = np.dtype(f"u{dtype.itemsize}")
        return lambda rows: np.ascontiguousarray(rows).view(bits) == fill.view(bits)
    if dtype.kind in "fcmM" and fill != fill:  # noqa: PLR0124
        return np.isnat if dtype.kind in "mM" else np.isnan
    return lambda rows: rows == fill


def _rows(segments: Segments, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Chunks:
    """Decoded bytes of chunks as rows of an array; not copied if they are contiguous."""
    offsets, count = segments.offsets, len(segments)
    if (segments.lengths != size).any():
        raise ValueError(f"a chunk has {size} bytes when it is decoded, found other numbers")
    if count == 1 or (np.diff(offsets) == size).all():
        first = int(offsets[0])
        elements = size // dtype.itemsize * count
        return np.frombuffer(segments.data, dtype, elements, first).reshape((count, *shape))
    data = np.frombuffer(segments.data, np.uint8)
    pieces = np.lib.stride_tricks.sliding_window_view(data, size)[offsets]
    return pieces.view(dtype).reshape((count, *shape))
