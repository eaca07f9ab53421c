"""Chunk coordinates as bytes that sort like the coordinates (spec 000: chunk coord encoding, H-05).

Each coordinate is a number of 1 to 9 bytes, small ones short; those of a chunk follow each other.
For arrays of one rank, comparing the bytes compares the tuples, and all chunks with the same
leading coordinates are one range. Whole columns are encoded and decoded at once.

| number | bytes |
|--|--|
| 0 to 240 | the number |
| to 2,287 | 241 + high byte, low byte, of the number less 240 |
| to 67,823 | 249, then two bytes of the number less 2,288 |
| to 2**24 - 1, 2**32 - 1, … 2**64 - 1 | 250, 251, … 255, then 3, 4, … 8 bytes |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_ONE, _TWO, _THREE = 240, 2287, 67823
_LIMITS = np.array(
    [_ONE, _TWO, _THREE, *(2**bits - 1 for bits in (24, 32, 40, 48, 56))], dtype=np.uint64
)
"""The largest number of each length, but for the longest."""
_LENGTHS = np.array([1] * 241 + [2] * 8 + [3, 4, 5, 6, 7, 8, 9], dtype=np.int64)
"""Number of bytes by the first one."""
MAX_LENGTH = 9


def encode(coords: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Encode coordinates (n, rank): all bytes, and the bounds of each row in them."""
    count, rank = coords.shape
    values = np.ascontiguousarray(coords, dtype=np.uint64).reshape(-1)
    lengths = np.searchsorted(_LIMITS, values).astype(np.int64) + 1
    ends = np.cumsum(lengths)
    starts = ends - lengths
    payloads = values.copy()
    payloads[lengths == 2] -= np.uint64(_ONE)
    payloads[lengths == 3] -= np.uint64(_TWO + 1)
    firsts = values.astype(np.uint8)
    two = lengths == 2
    firsts[two] = (payloads[two] >> np.uint64(8)).astype(np.uint8) + np.uint8(241)
    firsts[lengths > 2] = (lengths[lengths > 2] + 246).astype(np.uint8)
    data = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    data[starts] = firsts
    for place in range(1, MAX_LENGTH):
        rows = np.flatnonzero(lengths > place)
        if not len(rows):
            break
        shifts = (8 * (lengths[rows] - 1 - place)).astype(np.uint64)
        data[starts[rows] + place] = (payloads[rows] >> shifts).astype(np.uint8)
    bounds = np.zeros(count + 1, dtype=np.int64)
    if rank:
        bounds[1:] = ends[rank - 1 :: rank]
    return data, bounds


def decode(
    data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], rank: int
) -> npt.NDArray[np.uint64]:
    """Decode rows of one rank; raises ValueError for bytes that no coordinates have."""
    ends = bounds[1:]
    place = bounds[:-1].copy()
    coords = np.empty((len(ends), rank), dtype=np.uint64)
    for axis in range(rank):
        if (place >= ends).any():
            raise ValueError(f"a chunk has fewer than {rank} coordinates")
        firsts = data[place]
        lengths = _LENGTHS[firsts]
        if (place + lengths > ends).any():
            raise ValueError("a coordinate is cut off")
        coords[:, axis] = _numbers(data, place, firsts, lengths)
        place += lengths
    if (place != ends).any():
        raise ValueError(f"a chunk has more than {rank} coordinates")
    return coords


def _numbers(
    data: npt.NDArray[np.uint8],
    place: npt.NDArray[np.int64],
    firsts: npt.NDArray[np.uint8],
    lengths: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint64]:
    values = np.where(lengths == 1, firsts, np.uint8(0)).astype(np.uint64)
    two = lengths == 2
    values[two] = firsts[two].astype(np.uint64) - np.uint64(241)
    for offset in range(1, MAX_LENGTH):
        rows = np.flatnonzero(lengths > offset)
        if not len(rows):
            break
        values[rows] = (values[rows] << np.uint64(8)) | data[place[rows] + offset].astype(np.uint64)
    values[two] += np.uint64(_ONE)
    values[lengths == 3] += np.uint64(_TWO + 1)
    if (np.searchsorted(_LIMITS, values) + 1 != lengths).any():
        raise ValueError("a coordinate has more bytes than it needs")
    return values
