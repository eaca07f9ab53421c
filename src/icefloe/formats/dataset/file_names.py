"""Names of chunk files as Arrow strings and ids, and back: whole columns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.formats.dataset.layout import file_of, id_of_file
from icefloe.model.id_columns import decode_column, encode_column, text_length
from icefloe.model.ids import NAME_MARK, ChunkFileId

if TYPE_CHECKING:
    import numpy.typing as npt

_SIZE = ChunkFileId.SIZE
_LENGTH = text_length(_SIZE)
_WIDE_LENGTH = text_length(ChunkFileId.WIDE_SIZE)
_MARK = np.frombuffer(NAME_MARK, dtype=np.uint8)
_PLAIN_NAME = r"^[ -.0-~]{1,200}$"
"""Names of which it is clear at once that they are good, but for those with dots alone."""


def encode_ids(ids: npt.NDArray[np.uint8]) -> pa.Array:
    """The names of files by their ids (n, bytes)."""
    own = ~ids[:, _SIZE:].any(axis=1)
    if own.all():
        return _encode_own(ids[:, :_SIZE])
    is_name = np.zeros(len(ids), dtype=np.bool_)
    if ids.shape[1] > len(_MARK):
        is_name = (ids[:, : len(_MARK)] == _MARK).all(axis=1)
    others = np.flatnonzero(~own & ~is_name)
    texts = [file_of(ChunkFileId(ids[row].tobytes())) for row in others.tolist()]
    parts = [
        _encode_own(ids[own, :_SIZE]),
        _encode_names(ids[is_name, len(_MARK) :]),
        pa.array(texts, type=pa.string()),
    ]
    order = np.concatenate([np.flatnonzero(own), np.flatnonzero(is_name), others])
    return pa.concat_arrays(parts).take(pa.array(np.argsort(order)))


def _encode_own(ids: npt.NDArray[np.uint8]) -> pa.Array:
    """Base 32, as `str` of each would be."""
    return _strings(encode_column(ids), np.full(len(ids), _LENGTH))


def _encode_names(names: npt.NDArray[np.uint8]) -> pa.Array:
    """Names that zeros follow, of which they have none."""
    return _strings(names[names != 0], np.count_nonzero(names, axis=1))


def _strings(data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.integer]) -> pa.Array:
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def decode_ids(names: pa.Array) -> npt.NDArray[np.uint8]:
    """Ids (n, bytes) of file names; raises InvalidInputError for any other name."""
    _, offsets, data = names.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[names.offset : names.offset + len(names) + 1]
    octets = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
    lengths = np.diff(bounds)
    own = np.flatnonzero(lengths == _LENGTH)
    ids, is_id = decode_column(octets[bounds[own][:, None] + np.arange(_LENGTH)], _SIZE)
    if is_id.all() and len(own) == len(names):
        return ids
    is_plain = pc.match_substring_regex(names, _PLAIN_NAME).to_numpy(zero_copy_only=False)
    is_plain &= (lengths > 2) & (lengths != _LENGTH) & (lengths != _WIDE_LENGTH)
    rest = ~is_plain
    rest[own[is_id]] = False
    odd = {
        row: id_of_file(ChunkFileId, names[row].as_py()) for row in np.flatnonzero(rest).tolist()
    }
    longest = int(lengths[is_plain].max(initial=0))
    width = max([_SIZE, len(_MARK) + longest if longest else 0, *map(len, odd.values())])
    table = np.zeros((len(names), width), dtype=np.uint8)
    table[own[is_id], :_SIZE] = ids[is_id]
    table[is_plain, : len(_MARK)] = _MARK if longest else 0
    places = np.arange(longest)
    inside = places < lengths[is_plain][:, None]
    rows = np.flatnonzero(is_plain)[np.nonzero(inside)[0]]
    columns = np.nonzero(inside)[1]
    table[rows, len(_MARK) + columns] = octets[bounds[rows] + columns]
    for row, identifier in odd.items():
        table[row, : len(identifier)] = np.frombuffer(identifier, dtype=np.uint8)
    return table
