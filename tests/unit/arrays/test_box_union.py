"""Boxes that overlap, as disjoint boxes that cover the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.arrays import box_union
from icefloe.arrays.box_union import union_of_boxes
from icefloe.model.chunk_index import Box

if TYPE_CHECKING:
    import pytest


@st.composite
def many_boxes(draw: Any) -> Any:
    rank = draw(st.integers(0, 3))
    corners = st.tuples(*[st.integers(0, 6)] * rank)
    pairs = draw(st.lists(st.tuples(corners, corners), max_size=8))
    lower = np.array([low for low, _ in pairs], int).reshape(len(pairs), rank)
    upper = np.array([high for _, high in pairs], int).reshape(len(pairs), rank)
    return lower, upper


@given(many_boxes())
def test_disjoint_boxes_cover_the_same(boxes: Any) -> None:
    lower, upper = boxes
    wanted = np.zeros([7] * lower.shape[1], int)
    for low, high in zip(lower.tolist(), upper.tolist(), strict=True):
        wanted[tuple(map(slice, low, high))] = 1
    found = np.zeros_like(wanted)
    for box in union_of_boxes(lower, upper):
        found[tuple(map(slice, box.lower, box.upper))] += 1
    np.testing.assert_array_equal(found, wanted)


def test_too_many_become_the_box_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = np.array([[0, 0], [2, 2], [9, 4]])
    around = [Box((0, 0), (10, 5))]
    assert len(union_of_boxes(lower, lower + 1)) == 3
    for limit in ("MAX_BOXES", "MAX_POSITIONS"):
        with monkeypatch.context() as patch:
            patch.setattr(box_union, limit, 2)
            assert union_of_boxes(lower, lower + 1) == around
