"""Whole columns of ids to and from Crockford's base 32, without Python code for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icefloe.model.ids import encode_base32

if TYPE_CHECKING:
    import numpy.typing as npt

_LETTERS = np.array([ord(encode_base32(bytes([value << 3]))[0]) for value in range(32)], np.uint8)
_NONE = 255
_VALUES = np.full(256, _NONE, dtype=np.uint8)
_VALUES[_LETTERS] = np.arange(32, dtype=np.uint8)
_WEIGHTS = np.array([16, 8, 4, 2, 1], dtype=np.uint8)


def text_length(size: int) -> int:
    """How many letters an id of some bytes has."""
    return (size * 8 + 4) // 5


def encode_column(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The texts (n, letters) of ids (n, bytes): each as `encode_base32` would give it."""
    length = text_length(ids.shape[1])
    bits = np.unpackbits(np.ascontiguousarray(ids), axis=1)
    padded = np.pad(bits, ((0, 0), (0, 5 * length - bits.shape[1])))
    values = padded.reshape(len(ids), length, 5) @ _WEIGHTS
    return np.ascontiguousarray(_LETTERS[values])


def decode_column(
    texts: npt.NDArray[np.uint8], size: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The ids (n, size) of texts (n, letters), and which of them are the text of an id.

    Only the form that `encode_base32` writes counts, not the other spellings that readers accept.
    """
    length = text_length(size)
    if texts.shape[1] != length:
        raise ValueError(f"ids of {size} bytes have {length} letters, found {texts.shape[1]}")
    values = _VALUES[texts]
    bits = np.unpackbits(values, axis=1).reshape(len(texts), length, 8)[:, :, 3:]
    packed = np.packbits(bits.reshape(len(texts), 5 * length), axis=1)
    is_text = (values != _NONE).all(axis=1) & ~packed[:, size:].any(axis=1)
    beyond = 5 * length - 8 * size
    if beyond:
        # The last letter ends in zero bits; some of them may share a byte with the id's last bits.
        is_text &= (values[:, -1] & ((1 << beyond) - 1)) == 0
    return np.ascontiguousarray(packed[:, :size]), is_text
