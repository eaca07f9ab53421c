"""Locations of virtual chunks that are compressed one by one with a dictionary (version 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.formats.icechunk.tables import check_utf8
from icefloe.model.chunk_refs import StringColumn

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.formats.icechunk.tables import Slices

MAX_LOCATION_BYTES = 1024
"""No compressed location is longer; official readers stop there as well."""
_MAX_FRAME_BYTES = 2048
"""So that a frame that lies about its content cannot grow much before it is found out."""
_MAX_DICTIONARY_BYTES = 16 * 1024 * 1024
_MAGIC = 0xFD2FB528
_MIN_FRAME = 6


def decompress_locations(frames: Slices, dictionary: bytes) -> StringColumn:
    """The strings of many small zstd frames; all of them run through one decompressor."""
    import zstandard

    body = frames.body
    lengths = frames.lengths
    if int(lengths.min()) < _MIN_FRAME or int(lengths.max()) > _MAX_FRAME_BYTES:
        raise body.bad("a compressed location is no zstd frame, or too long for one")
    if len(dictionary) > _MAX_DICTIONARY_BYTES:
        raise body.bad(f"the dictionary of locations has {len(dictionary)} bytes")
    sizes = _content_sizes(frames)
    joined, _ = frames.joined()
    try:
        known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        decompressor = zstandard.ZstdDecompressor(
            dict_data=known, max_window_size=2**17
        ).decompressobj(read_across_frames=True)
        data = decompressor.decompress(joined)
    except zstandard.ZstdError as error:
        raise body.bad(f"a compressed location is damaged: {error}") from None
    ends = np.cumsum(sizes)
    if len(data) != int(ends[-1]):
        raise body.bad("compressed locations are not as long as they say")
    column = StringColumn(data, ends.astype(np.uint64))
    check_utf8(column, body)
    return column


def _content_sizes(frames: Slices) -> npt.NDArray[np.int64]:
    """How many bytes each frame says that it holds, from the headers of all at once."""
    body = frames.body
    if (body.gather(frames.starts, "<u4") != _MAGIC).any():
        raise body.bad("a compressed location is no zstd frame")
    descriptors = body.gather(frames.starts + 4, "u1").astype(np.int64)
    is_single = (descriptors >> 5 & 1).astype(np.bool_)
    id_bytes = np.array([0, 1, 2, 4], dtype=np.int64)[descriptors & 3]
    flags = descriptors >> 6
    places = frames.starts + 5 + ~is_single + id_bytes
    sizes = np.full(len(frames), -1, dtype=np.int64)
    for flag, dtype, base in ((0, "u1", 0), (1, "<u2", 256), (2, "<u4", 0), (3, "<u8", 0)):
        rows = np.flatnonzero((flags == flag) & (is_single | (flag > 0)))
        values = body.gather(places[rows], dtype)
        if len(values) and int(values.max()) > MAX_LOCATION_BYTES:
            raise body.bad(f"a location has {int(values.max())} bytes")
        sizes[rows] = values.astype(np.int64) + base
    if int(sizes.min()) < 0 or int(sizes.max()) > MAX_LOCATION_BYTES:
        raise body.bad("a compressed location does not say how long it is, or is too long")
    return sizes
