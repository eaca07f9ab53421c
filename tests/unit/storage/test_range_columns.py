"""Ranges in columns are coalesced like ranges one by one: nothing is lost, limits hold."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.storage.ranges import SpanColumns, coalesce_columns

RANGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 500), st.integers(1, 60)), min_size=1, max_size=40
)


def spans_of(ranges: list[tuple[int, int, int]], gap: int, max_bytes: int) -> SpanColumns:
    objects, starts, lengths = np.array(ranges, dtype=np.int64).T
    return coalesce_columns(objects, starts, lengths, gap=gap, max_bytes=max_bytes)


@given(RANGES, st.integers(0, 100), st.integers(1, 300))
def test_every_range_is_in_one_span_of_its_object(
    ranges: list[tuple[int, int, int]], gap: int, max_bytes: int
) -> None:
    spans = spans_of(ranges, gap, max_bytes)
    seen = []
    for at in range(len(spans)):
        assert spans.bounds[at + 1] > spans.bounds[at], "no span is empty"
        for member in range(spans.bounds[at], spans.bounds[at + 1]):
            which = int(spans.order[member])
            seen.append(which)
            number, start, length = ranges[which]
            assert number == spans.objects[at]
            assert spans.starts[at] + spans.within[member] == start
            assert spans.within[member] + length <= spans.lengths[at]
    assert sorted(seen) == list(range(len(ranges)))
    longest = max(length for _, _, length in ranges)
    assert (spans.lengths <= max_bytes + longest).all()


def test_neighbours_are_fetched_together_up_to_the_gap() -> None:
    ranges = [(0, 0, 10), (0, 10, 10), (0, 25, 10), (0, 41, 10), (1, 51, 10)]
    spans = spans_of(ranges, gap=5, max_bytes=1000)
    assert spans.starts.tolist() == [0, 41, 51]
    assert spans.lengths.tolist() == [35, 10, 10]
    assert spans.objects.tolist() == [0, 0, 1]


def test_a_span_ends_where_it_is_large_enough_and_a_range_is_never_cut() -> None:
    ranges = [(0, 10 * n, 10) for n in range(10)]
    assert spans_of(ranges, gap=0, max_bytes=30).lengths.tolist() == [30, 30, 30, 10]
    assert spans_of([(0, 0, 500)], gap=0, max_bytes=30).lengths.tolist() == [500]


def test_ranges_in_disorder_are_ordered_by_object_and_start() -> None:
    spans = spans_of([(1, 0, 5), (0, 5, 5), (0, 0, 5)], gap=0, max_bytes=100)
    assert spans.order.tolist() == [2, 1, 0]
    assert spans.lengths.tolist() == [10, 5]
