from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icefloe.storage.ranges import Span, coalesce, divide, pick

RANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 100)), max_size=20)


@given(ranges=RANGES, gap=st.integers(0, 50), limit=st.none() | st.integers(1, 300))
def test_every_range_is_found_in_its_span(ranges: Any, gap: int, limit: Any) -> None:
    data = bytes(number % 251 for number in range(500))
    spans = coalesce(ranges, gap=gap, max_bytes=limit)
    found: dict[Any, Any] = {}
    for span in spans:
        found.update(pick(data[span.start : span.start + span.length], span, ranges))
    assert [found[index] for index in range(len(ranges))] == [
        data[start : start + length] for start, length in ranges
    ]
    if limit is not None:
        assert all(span.length <= max(limit, *(n for _, n in ranges)) for span in spans)


def test_neighbours_are_fetched_together() -> None:
    assert coalesce([(100, 10), (0, 10), (15, 5)], gap=5) == [
        Span(0, 20, [1, 2]),
        Span(100, 10, [0]),
    ]
    assert coalesce([(0, 10), (10, 10)], gap=0, max_bytes=15) == [
        Span(0, 10, [0]),
        Span(10, 10, [1]),
    ]
    assert coalesce([]) == []


@given(start=st.integers(0, 100), length=st.integers(1, 1000), size=st.integers(1, 100))
def test_parts_make_the_whole(start: int, length: int, size: int) -> None:
    parts = divide(start, length, size)
    position = start
    for first, count in parts:
        assert first == position
        assert 0 < count < 2 * size
        position += count
    assert position == start + length
