"""Bytes of many chunks as pieces of few buffers, with no object per chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


_ALL = slice(None)


class Segments(NamedTuple):
    """Pieces of one buffer: piece `i` is `data[offsets[i] : offsets[i] + lengths[i]]`."""

    data: bytes | bytearray | memoryview
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, pieces: Sequence[bytes | bytearray | memoryview]) -> Segments:
        """Join pieces end to end; their bytes are copied once."""
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        ends = np.cumsum(lengths)
        return cls(b"".join(pieces), ends - lengths, lengths)

    def __len__(self) -> int:
        return len(self.offsets)

    def piece(self, row: int) -> memoryview:
        """The bytes of one piece, not copied."""
        start = int(self.offsets[row])
        return memoryview(self.data)[start : start + int(self.lengths[row])]

    def take(self, rows: npt.NDArray[np.integer | np.bool_]) -> Segments:
        """Chosen pieces of the same buffer."""
        return Segments(self.data, self.offsets[rows], self.lengths[rows])

    def joined(self, rows: npt.NDArray[np.integer] | slice = _ALL) -> bytes | memoryview:
        """Chosen pieces end to end, copied unless they are so already."""
        offsets, lengths = self.offsets[rows], self.lengths[rows]
        if len(offsets) == 0:
            return b""
        ends = offsets + lengths
        view = memoryview(self.data)
        start, length = int(offsets[0]), int(lengths[0])
        if (offsets[1:] == ends[:-1]).all():
            return view[start : int(ends[-1])]
        if length and (lengths == length).all() and ((offsets - start) % length == 0).all():
            # All pieces have places in a table with rows of that length.
            first = start % length
            count = (len(view) - first) // length
            table = np.frombuffer(view, dtype=np.uint8, count=count * length, offset=first)
            return table.reshape(count, length)[(offsets - first) // length].data.cast("B")
        return b"".join(map(view.__getitem__, map(slice, offsets.tolist(), ends.tolist())))


class FoundChunks(NamedTuple):
    """Some of the chunks that were asked for: which ones, and their bytes."""

    rows: npt.NDArray[np.int64]
    """Positions among the chunks that were asked for, one per segment."""
    segments: Segments
