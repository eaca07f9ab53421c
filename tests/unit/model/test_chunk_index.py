import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import Box, ChunkIndex

ranks = st.integers(0, 4)


@st.composite
def coordinate_sets(draw: st.DrawFn, rank: int | None = None) -> set[tuple[int, ...]]:
    rank = draw(ranks) if rank is None else rank
    scale = draw(st.sampled_from([3, 1000, 2**31]))
    one = st.tuples(*[st.integers(0, scale) for _ in range(rank)])
    side = st.integers(0, 3)
    small = st.tuples(*[side for _ in range(rank)])
    if (scale + 1) ** rank > 2**63:
        one = small
    return draw(st.sets(st.one_of(one, small), min_size=1, max_size=30))


@given(coordinate_sets())
def test_an_index_holds_exactly_its_coordinates(coords: set[tuple[int, ...]]) -> None:
    rank = len(next(iter(coords)))
    index = ChunkIndex.from_tuples(list(coords), rank)
    assert index.tuples() == sorted(coords)
    assert len(index) == len(coords)
    assert index.is_dense == (len(coords) == index.box.size)
    for row, c in enumerate(sorted(coords)):
        assert index.find(c) == row
    table = np.array(sorted(coords), dtype=np.uint64).reshape(len(coords), rank)
    assert index.find_many(table).tolist() == list(range(len(coords)))


@given(st.data())
def test_set_operations_agree_with_sets(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    a, b = data.draw(coordinate_sets(rank)), data.draw(coordinate_sets(rank))
    left, right = ChunkIndex.from_tuples(list(a), rank), ChunkIndex.from_tuples(list(b), rank)
    assert [tuple(c) for c in left.intersection(right).tolist()] == sorted(a & b)
    assert left.union(right).tuples() == sorted(a | b)
    probe = np.array(sorted(b), dtype=np.uint64).reshape(len(b), rank)
    assert [bool(r >= 0) for r in left.find_many(probe)] == [c in a for c in sorted(b)]


def test_from_coords_returns_the_sorting_order() -> None:
    index, order = ChunkIndex.from_coords(np.array([[1, 2], [0, 5], [3, 3]]))
    assert order.tolist() == [1, 0, 2]
    assert index.box == Box((0, 2), (4, 6))


def test_a_box_beyond_64_bits_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"2\*\*63"):
        ChunkIndex.from_tuples([(0, 0), (2**40, 2**40)], 2)


def test_scalar_arrays_have_one_chunk() -> None:
    index = ChunkIndex.from_tuples([()], 0)
    assert index.is_dense
    assert index.find(()) == 0
    assert index.tuples() == [()]
