"""CRC-32C of chunks: one at a time, and of many pieces of a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from icefloe.formats import file_sums

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from icefloe.storage.port import BytesLike


IS_QUICK = file_sums.IS_QUICK
"""Whether checksums of chunks are written."""


def checksum(data: BytesLike) -> int:
    """CRC-32C of some bytes."""
    value: int = google_crc32c.value(data if type(data) is bytes else bytes(data))
    return value


def checksums(
    data: BytesLike, offsets: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> npt.NDArray[np.uint32]:
    """CRC-32C of many pieces of a buffer."""
    pieces = _pieces(data, offsets, lengths)
    return np.fromiter(map(google_crc32c.value, pieces), dtype=np.uint32, count=len(offsets))


def _pieces(
    data: BytesLike, offsets: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> Iterable[Any]:
    """The pieces as something that the checksum function takes: it refuses a memoryview."""
    if len(offsets) == 0:
        return ()
    octets = np.frombuffer(data, dtype=np.uint8)
    start, length = int(offsets[0]), int(lengths[0])
    if length and (lengths == length).all() and (np.diff(offsets) == length).all():
        rows = octets[start : start + length * len(offsets)].reshape(-1, length)
        rows.flags.writeable = False
        return rows
    # Slices of bytes, even though they are copies: cheaper to make than any view.
    source = data if isinstance(data, bytes) else octets.tobytes()
    return map(source.__getitem__, map(slice, offsets.tolist(), (offsets + lengths).tolist()))


def new_checksum(data: BytesLike) -> int:
    """The checksum to record for a chunk that is being written: 0 means none."""
    if not IS_QUICK:
        return 0
    if isinstance(data, bytes):
        return checksum(data)
    return int(checksums(data, np.array([0]), np.array([len(data)]))[0])


def new_checksums(
    data: BytesLike, offsets: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]
) -> npt.NDArray[np.uint32]:
    """The checksums to record for chunks that are being written: 0 means none."""
    if not IS_QUICK:
        return np.zeros(len(offsets), dtype=np.uint32)
    return checksums(data, offsets, lengths)
