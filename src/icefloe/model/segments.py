"""Bytes of many chunks as pieces of few buffers, with no object per chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


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


class FoundChunks(NamedTuple):
    """Some of the chunks that were asked for: which ones, and their bytes."""

    rows: npt.NDArray[np.int64]
    """Positions among the chunks that were asked for, one per segment."""
    segments: Segments
