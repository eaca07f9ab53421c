"""Pieces of a buffer are joined in any order, and copied only if they must."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.segments import Segments


@given(st.data())
def test_chosen_pieces_are_joined_in_their_order(data: st.DataObject) -> None:
    buffer = data.draw(st.binary(min_size=1, max_size=80))
    if data.draw(st.booleans()):
        length = data.draw(st.integers(0, min(10, len(buffer))))
        lengths = [length] * data.draw(st.integers(0, 8))
    else:
        lengths = data.draw(st.lists(st.integers(0, len(buffer)), max_size=8))
    step = data.draw(st.sampled_from([1, max(lengths, default=1) or 1]))
    offsets = [
        data.draw(st.integers(0, (len(buffer) - length) // step)) * step for length in lengths
    ]
    segments = Segments(
        bytearray(buffer), np.array(offsets, dtype=np.int64), np.array(lengths, dtype=np.int64)
    )
    expected = b"".join(buffer[o : o + n] for o, n in zip(offsets, lengths, strict=True))
    assert bytes(segments.joined()) == expected
    order = np.array(data.draw(st.permutations(range(len(lengths)))), dtype=np.intp)
    pieces = [bytes(segments.piece(row)) for row in order.tolist()]
    assert bytes(segments.joined(order)) == b"".join(pieces)
    assert [bytes(segments.take(order).piece(row)) for row in range(len(order))] == pieces


def test_neighbours_are_not_copied() -> None:
    segments = Segments.of([b"one", b"two", b"three"])
    joined = segments.joined(np.array([1, 2]))
    assert isinstance(joined, memoryview)
    assert joined.obj is segments.data
