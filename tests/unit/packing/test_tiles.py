import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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


corners = st.tuples(st.integers(0, 6), st.integers(0, 6))
spans = st.tuples(st.integers(1, 4), st.integers(1, 4))
sizes = st.one_of(st.none(), st.integers(1, 3))


@given(
    st.tuples(sizes, sizes),
    st.lists(st.tuples(corners, spans), min_size=1, max_size=5),
    st.lists(corners, min_size=1, max_size=5),
)
def test_touched_boxes_agree_with_enumeration(
    shape: tuple[int | None, ...],
    boxes: list[tuple[tuple[int, int], tuple[int, int]]],
    probes: list[tuple[int, int]],
) -> None:
    tiling = Tiling(shape)
    tiles = tiling.distinct(np.array(probes))
    reached = {tuple(t) for t in tiling.tiles_of(np.array(probes)).tolist()}
    assert sorted(map(tuple, tiles.tolist())) == sorted(reached)
    lower = np.array([low for low, _ in boxes])
    upper = lower + np.array([span for _, span in boxes])
    expected = []
    for (i, j), (height, width) in boxes:
        inside = [(i + a, j + b) for a in range(height) for b in range(width)]
        mine = {tuple(t) for t in tiling.tiles_of(np.array(inside)).tolist()}
        expected.append(bool(mine & reached))
    assert tiling.touched(lower, upper, tiles).tolist() == expected
