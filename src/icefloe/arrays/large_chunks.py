"""Large chunks: each is decoded to where it belongs, with no array in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numcodecs.zstd
import numpy as np
import zstandard

from icefloe.arrays.batch_codecs import ZstdBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.arrays.chunk_arrays import ChunkArrays
    from icefloe.arrays.layout import ArrayLayout
    from icefloe.arrays.spans import Slab, Spans

    Values = npt.NDArray[Any]

LARGE_BYTES = 32 << 10
"""From this number of decoded bytes on, decoding a chunk outweighs Python's work for it."""
LARGE_PLAIN_BYTES = 1 << 20
"""The same for chunks that are only copied. Smaller ones are rows of one array, in packs."""


def is_for_large_chunks(layout: ArrayLayout) -> bool:
    """Whether an array's chunks are large, and of a kind that can be decoded in place."""
    if not layout.is_batched:
        return False
    if not layout.steps:
        return is_plain_and_large(layout)
    is_zstd = len(layout.steps) == 1 and isinstance(layout.steps[0], ZstdBatch)
    return is_zstd and layout.chunk_bytes >= LARGE_BYTES


def is_plain_and_large(layout: ArrayLayout) -> bool:
    """Whether an array's chunks are large, and the values themselves."""
    return layout.is_batched and not layout.steps and layout.chunk_bytes >= LARGE_PLAIN_BYTES


class LargeChunks:
    """Reads large chunks of an array into one that the caller gives."""

    def __init__(
        self, chunks: ChunkArrays, layout: ArrayLayout, spans: Sequence[Spans], target: Values
    ) -> None:
        """Take the chunks, which elements of them are wanted, and where these go."""
        self._chunks = chunks
        self._layout = layout
        self._spans = spans
        self._target = target
        self._may_decode_there = not layout.is_transposed and target.dtype == layout.stored_dtype

    def read(self, slab: Slab) -> npt.NDArray[np.bool_]:
        """Read the chunks of a slab; returns which of them exist."""
        coords = slab.coords(self._spans)
        present = np.zeros(len(coords), dtype=np.bool_)
        buffers = None if self._layout.steps else self._buffers(slab, len(coords))
        for found in self._chunks.find(coords, buffers):
            present[found.rows] = True
            for number, row in enumerate(found.rows.tolist()):
                if buffers is None or found.segments.data is not buffers[row]:
                    self._place(slab, row, found.segments.piece(number), coords)
        for row in np.flatnonzero(~present).tolist():
            _, there = self._selections(slab, row)
            self._target[there] = self._layout.fill_value
        return present

    def _buffers(self, slab: Slab, count: int) -> list[memoryview | None] | None:
        """Where the bytes of plain chunks go: those that are all selected and contiguous there."""
        if not self._may_decode_there:
            return None
        parts = [self._target[self._selections(slab, row)[1]] for row in range(count)]
        return [
            part.reshape(-1).view(np.uint8).data if self._is_a_chunk(part) else None
            for part in parts
        ]

    def _is_a_chunk(self, part: Values) -> bool:
        return part.shape == self._layout.chunk_shape and part.flags.c_contiguous

    def _selections(self, slab: Slab, row: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Which elements of a chunk are wanted, and where they go."""
        inner: list[Any] = []
        there: list[Any] = []
        places = np.unravel_index(row, slab.grid)
        for span, low, place in zip(self._spans, slab.lows, places, strict=True):
            at = low + int(place)
            first, length, target = int(span.first[at]), int(span.lengths[at]), int(span.target[at])
            inner.append(slice(first, first + (length - 1) * span.step + 1, span.step))
            there.append(slice(target, target + length))
        # The ellipsis keeps an array without axes an array.
        return (*inner, ...), (*there, ...)

    def _place(self, slab: Slab, row: int, piece: memoryview, coords: npt.NDArray[Any]) -> None:
        inner, there = self._selections(slab, row)
        part = self._target[there]
        if self._decodes_there(piece, part):
            return
        chunk = self._chunks.decode_one(piece, coords[row], self._layout.chunk_shape)
        part[...] = chunk[inner]

    def _decodes_there(self, piece: memoryview, part: Values) -> bool:
        """Decompress a chunk right into the result, if it is all selected and contiguous there."""
        layout = self._layout
        if not layout.steps or not self._may_decode_there or not self._is_a_chunk(part):
            return False
        try:
            if zstandard.frame_content_size(piece) != layout.chunk_bytes:
                return False
            numcodecs.zstd.decompress(piece, part)
        except Exception:  # noqa: BLE001
            # Decoded in the other way, it gets the error that it should.
            return False
        return True
