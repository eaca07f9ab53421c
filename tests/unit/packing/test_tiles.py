import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.chunk_index import Box
from icefloe.model.chunk_refs import InlineRef
from icefloe.model.manifest import ArrayChunks
from icefloe.packing.tiles import Tiling


@given(
    st.lists(st.integers(1, 2_000_000), min_size=1, max_size=4).map(tuple),
    st.integers(1, 70_000),
)
def test_default_tiles_are_bounded(grid: tuple[int, ...], limit: int) -> None:
    tiling = Tiling.for_array(grid, [None] * len(grid), limit)
    volume = 1
    for size, extent in zip(tiling.shape, grid, strict=True):
        volume *= extent if size is None else size
    assert volume <= limit


def test_small_grids_are_not_cut_and_tiles_do_not_shift_as_time_grows() -> None:
    assert Tiling.for_array((10, 10), [None, None]).is_whole
    first = Tiling.for_array((100_000, 4, 8), [None] * 3)
    later = Tiling.for_array((900_000, 4, 8), [None] * 3)
    assert first.shape == later.shape == (1024, None, None)


def test_configured_cuts_win() -> None:
    assert Tiling.for_array((10_000_000,), [7]).shape == (7,)
    assert Tiling.for_array(None, [None]).is_whole


@given(
    st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1),
    st.tuples(st.one_of(st.none(), st.integers(1, 4)), st.one_of(st.none(), st.integers(1, 4))),
)
def test_cutting_loses_nothing_and_tiles_are_disjoint(
    coords: set[tuple[int, ...]], shape: tuple[int | None, ...]
) -> None:
    tiling = Tiling(shape)
    chunks = ArrayChunks.of(list(coords), [InlineRef(repr(c).encode()) for c in coords], 2)
    parts = tiling.cut(chunks)
    seen: dict[tuple[int, ...], bytes] = {}
    tiles = set()
    for part in parts:
        mine = {tuple(t) for t in tiling.tiles_of(part.index.coords()).tolist()}
        assert len(mine) == 1
        assert not mine & tiles
        tiles |= mine
        for c, ref in zip(part.index.tuples(), part.refs.tolist(), strict=True):
            assert isinstance(ref, InlineRef)
            seen[c] = ref.data
    assert seen == {c: repr(c).encode() for c in coords}


@given(st.data())
def test_touches_agrees_with_enumeration(data: st.DataObject) -> None:
    size = st.one_of(st.none(), st.integers(1, 3))
    tiling = Tiling((data.draw(size), data.draw(size)))
    low = data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))
    high = tuple(v + data.draw(st.integers(1, 4)) for v in low)
    probe = np.array([data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))])
    tiles = tiling.tiles_of(probe)
    inside = np.array([(i, j) for i in range(low[0], high[0]) for j in range(low[1], high[1])])
    expected = any((t == tiles[0]).all() for t in tiling.tiles_of(inside))
    assert tiling.touches(Box(low, high), tiles) == expected
