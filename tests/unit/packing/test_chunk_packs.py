"""Chunks are cut into packs in their order, none larger than it should be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.packing.chunk_packs import cut_packs


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 100))
def test_packs_follow_each_other_and_are_filled_but_not_over(
    lengths: list[int], pack_bytes: int
) -> None:
    packs = cut_packs(np.array(lengths, dtype=np.int64), pack_bytes)
    assert packs[0] == 0
    assert set(np.diff(packs).tolist()) <= {0, 1}
    sizes = np.bincount(packs, weights=lengths)
    counts = np.bincount(packs)
    assert ((sizes <= pack_bytes) | (counts == 1)).all()
    # Two neighbours would not have fitted into one: at most twice as many files as needed.
    assert (sizes[1:] + sizes[:-1] > pack_bytes).all()


def test_equal_chunks_fill_packs_exactly() -> None:
    assert cut_packs(np.full(7, 10), 30).tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_a_chunk_that_would_not_fit_begins_the_next_pack() -> None:
    assert cut_packs(np.array([20, 20, 5, 5, 30]), 30).tolist() == [0, 1, 1, 1, 2]
