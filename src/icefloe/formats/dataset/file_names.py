"""Names of chunk files as Arrow strings and ids, and back: whole columns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from icefloe.formats.dataset.file_ids import id_of_file
from icefloe.model.chunk_refs import ChunkRefs
from icefloe.model.ids import ChunkFileId, encode_base32

if TYPE_CHECKING:
    import numpy.typing as npt

_LETTERS = np.array([ord(encode_base32(bytes([value << 3]))[0]) for value in range(32)], np.uint8)
_NONE = 255
_VALUES = np.full(256, _NONE, dtype=np.uint8)
_VALUES[_LETTERS] = np.arange(32, dtype=np.uint8)
_WEIGHTS = np.array([16, 8, 4, 2, 1], dtype=np.uint8)


def encode_ids(ids: npt.NDArray[np.uint8]) -> pa.Array:
    """Ids (n, bytes) in base 32, as `str` of each would be."""
    count, width = ids.shape
    if width != ChunkFileId.SIZE:
        return pa.array([str(ChunkFileId(row.tobytes())) for row in ids], type=pa.string())
    length = (8 * width + 4) // 5
    bits = np.unpackbits(ids, axis=1)
    padded = np.pad(bits, ((0, 0), (0, 5 * length - bits.shape[1])))
    letters = _LETTERS[padded.reshape(count, length, 5) @ _WEIGHTS]
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(length)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def decode_ids(names: pa.Array) -> npt.NDArray[np.uint8]:
    """Ids (n, bytes) of names; raises InvalidInputError for what is no name of a file."""
    length = (8 * ChunkFileId.SIZE + 4) // 5
    _, offsets, data = names.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[names.offset : names.offset + len(names) + 1]
    if len(names) and (np.diff(bounds) == length).all():
        octets = np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]
        values = _VALUES[octets.reshape(len(names), length)]
        if (values != _NONE).all():
            bits = np.unpackbits(values, axis=1).reshape(len(names), length, 8)[:, :, 3:]
            packed = np.packbits(bits.reshape(len(names), -1), axis=1)
            if not packed[:, ChunkFileId.SIZE :].any():
                return np.ascontiguousarray(packed[:, : ChunkFileId.SIZE])
    return ChunkRefs.file_column([id_of_file(ChunkFileId, each) for each in names.to_pylist()])
