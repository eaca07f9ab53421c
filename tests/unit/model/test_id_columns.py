"""Columns of ids are encoded and decoded as each id alone is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.id_columns import decode_column, encode_column, text_length
from icefloe.model.ids import ChunkFileId, Identifier, decode_base32, encode_base32

SIZES = (5, 8, Identifier.SIZE, Identifier.WIDE_SIZE)
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def texts_of(letters: np.ndarray) -> list[str]:
    return [row.tobytes().decode() for row in letters]


@given(st.sampled_from(SIZES).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n))))
def test_a_column_is_encoded_like_its_ids_and_decoded_again(ids: list[bytes]) -> None:
    size = len(ids[0]) if ids else 12
    column = np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, size)
    letters = encode_column(column)
    assert texts_of(letters) == [encode_base32(each) for each in ids]
    decoded, is_text = decode_column(letters, size)
    assert is_text.all()
    assert np.array_equal(decoded, column)


@given(st.sampled_from(SIZES), st.data())
def test_only_the_written_form_counts(size: int, data: st.DataObject) -> None:
    letters = st.text(f"{ALPHABET}abcILOilou-\0", min_size=text_length(size))
    texts = [text[: text_length(size)] for text in data.draw(st.lists(letters, min_size=1))]
    column = np.frombuffer("".join(texts).encode(), dtype=np.uint8).reshape(len(texts), -1)
    decoded, is_text = decode_column(column, size)
    for text, row, accepted in zip(texts, decoded, is_text.tolist(), strict=True):
        try:
            alone = decode_base32(text, size)
        except ValueError:
            assert not accepted
        else:
            assert accepted == (encode_base32(alone) == text)
            assert not accepted or row.tobytes() == alone


def test_texts_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="ids of 12 bytes have 20 letters, found 21"):
        decode_column(np.zeros((1, 21), dtype=np.uint8), ChunkFileId.SIZE)
