from __future__ import annotations

import math
from itertools import combinations, pairwise, product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.model.chunk_refs import InlineRef
from icefloe.model.manifest import ArrayChunks
from icefloe.packing.tiles import Tiling

if TYPE_CHECKING:
    from collections.abc import Iterable

Coords = tuple[int, ...]


def table(places: Iterable[Coords]) -> ArrayChunks:
    coords = list(places)
    rank = len(coords[0])
    return ArrayChunks.of(coords, [InlineRef(repr(c).encode()) for c in coords], rank)


def contents(chunks: ArrayChunks) -> dict[Coords, bytes]:
    refs = chunks.refs.tolist()
    return {
        c: ref.data
        for c, ref in zip(chunks.index.tuples(), refs, strict=True)
        if isinstance(ref, InlineRef)
    }


@given(
    st.lists(st.integers(1, 2_000_000), min_size=1, max_size=4).map(tuple),
    st.integers(1, 70_000),
)
def test_tiles_have_no_more_chunks_than_a_part_may_have(grid: Coords, limit: int) -> None:
    tiling = Tiling.for_grid(grid, limit)
    sides = [e if size is None else size for size, e in zip(tiling.shape, grid, strict=True)]
    assert prod(sides) <= limit


def test_tiles_do_not_shift_as_time_grows() -> None:
    first = Tiling.for_grid((100_000, 4, 8), 32_768)
    later = Tiling.for_grid((900_000, 4, 8), 32_768)
    assert first.shape == later.shape == (1024, None, None)


grids = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@st.composite
def sparse_chunks(draw: st.DrawFn) -> tuple[Coords, set[Coords]]:
    grid = draw(grids)
    places = list(product(*map(range, grid)))
    if draw(st.booleans()):
        return grid, set(places)
    return grid, draw(st.sets(st.sampled_from(places), min_size=1))


@st.composite
def tilings(draw: st.DrawFn, grid: Coords) -> Tiling:
    limit = draw(st.integers(1, 30))
    if draw(st.booleans()):
        return Tiling.for_grid(grid, limit)
    sizes = [draw(st.one_of(st.none(), st.integers(1, 4))) for _ in grid]
    return Tiling(tuple(sizes), draw(st.sampled_from([0, limit])))


@given(st.data())
def test_cutting_loses_nothing_and_parts_keep_out_of_each_others_way(data: st.DataObject) -> None:
    grid, coords = data.draw(sparse_chunks())
    tiling = data.draw(tilings(grid))
    pieces = tiling.cut(table(coords))
    found: dict[Coords, bytes] = {}
    for piece in pieces:
        found |= contents(piece)
        order = piece.index.tuples()
        assert order == sorted(order)
    assert found == {c: repr(c).encode() for c in coords}
    assert sum(map(len, pieces)) == len(coords)
    for one, other in combinations(pieces, 2):
        assert not one.index.box.intersects(other.index.box)
    tiles = [set(map(tuple, tiling.tiles_of(p.index.coords()).tolist())) for p in pieces]
    assert all(len(p) <= tiling.max_refs or len(t) == 1 for p, t in zip(pieces, tiles, strict=True))
    assert all(not one & other for one, other in combinations(tiles, 2))
    if not tiling.max_refs:
        assert len(pieces) == len(set.union(*tiles))
    assert len(pieces) <= most_parts(tiling, grid, len(coords))


def most_parts(tiling: Tiling, grid: Coords, count: int) -> int:
    """The bound that the module promises: full parts, for each halving of the tiles of the grid."""
    sides = [1 if s is None else math.ceil(e / s) for s, e in zip(tiling.shape, grid, strict=True)]
    if not tiling.max_refs:
        return prod(sides)
    halvings = sum((side - 1).bit_length() for side in sides)
    return 1 + (count // (tiling.max_refs + 1)) * halvings


@given(st.data())
def test_what_is_cut_knows_of_the_rest(data: st.DataObject) -> None:
    """Some references of an array, cut with the numbers of all, are pieces of the same parts."""
    grid, coords = data.draw(sparse_chunks())
    tiling = data.draw(tilings(grid))
    mine = {c for c in coords if data.draw(st.booleans())}
    if not mine or mine == coords:
        return
    tables = [tiling.counted(table(each).index) for each in (mine, coords - mine)]
    numbers = tiling.parts_of(
        np.concatenate([tiles for tiles, _ in tables]),
        np.concatenate([counts for _, counts in tables]),
    )
    pieces = tiling.cut(table(mine), numbers[: len(tables[0][0])])
    whole = [set(p.index.tuples()) for p in tiling.cut(table(coords))]
    expected = [part & mine for part in whole if part & mine]
    assert [set(p.index.tuples()) for p in pieces] == expected
    index = table(mine).index
    assert [i.tuples() for i in tiling.cut_index(index)] == [
        piece.index.tuples() for piece in tiling.cut(table(mine))
    ]


@given(st.data())
def test_parts_follow_from_the_references_alone(data: st.DataObject) -> None:
    """Tiles without references, and larger grids, change nothing."""
    grid, coords = data.draw(sparse_chunks())
    tiling = data.draw(tilings(grid))
    tiles, counts = tiling.counted(table(coords).index)
    numbers = tiling.parts_of(tiles, counts)
    far = data.draw(st.lists(st.tuples(*[st.integers(0, 2**20) for _ in grid]), max_size=5))
    more = np.concatenate([tiles, np.array(far, dtype=np.int64).reshape(-1, len(grid))])
    again = tiling.parts_of(more, np.append(counts, np.zeros(len(far), np.int64)))[: len(tiles)]
    assert (np.diff(numbers) != 0).tolist() == (np.diff(again) != 0).tolist()


@pytest.mark.parametrize("dense", [True, False])
def test_a_full_array_has_one_part_per_tile(dense: bool) -> None:
    rows = 200_000
    index = np.arange(rows) if dense else np.delete(np.arange(rows), 77)
    tiling = Tiling.for_grid((rows,), 32_768)
    tiles, counts = tiling.counted(ArrayChunks.of([(0,)], [InlineRef(b"x")], 1).index)
    assert (tiles.tolist(), counts.tolist()) == ([[0]], [1])
    tiles = tiling.tiles_of(index[:, None])
    numbers = tiling.parts_of(tiles, np.ones(len(tiles), dtype=np.int64))
    starts = index[np.append(True, np.diff(numbers) != 0)]
    assert starts.tolist() == list(range(0, rows, 32_768))


@pytest.mark.parametrize(("count", "parts"), [(3, 1), (2_000, 1), (100_000, 4)])
def test_few_references_in_a_huge_grid_are_few_parts(count: int, parts: int) -> None:  # R4-14
    rng = np.random.default_rng(count)
    places = np.unique(rng.integers(0, 10_000, (count, 2)), axis=0)
    tiling = Tiling.for_grid((10_000, 10_000), 32_768)
    numbers = tiling.parts_of(tiling.tiles_of(places), np.ones(len(places), dtype=np.int64))
    assert len(np.unique(numbers)) == parts


def test_the_worst_case_stays_within_the_bound() -> None:
    """One full tile, and a single reference in the other half of each box around it."""
    limit, size = 8, 2**20
    tiling = Tiling.for_grid((size,), limit)
    coords = {(c,) for c in range(limit)} | {(limit << digit,) for digit in range(17)}
    pieces = tiling.cut(table(coords))
    assert len(pieces) == 18
    assert len(pieces) <= 1 + len(coords) // limit * 17


def test_chunks_at_astronomic_coordinates() -> None:
    far = 2**61
    coords = {(far, far, far), (far + 1, far, far), (far, far, far + 5)}
    pieces = Tiling((1, 1, 2)).cut(table(coords))
    assert [piece.index.tuples() for piece in pieces] == [[c] for c in sorted(coords)]
    assert len(Tiling((1, 1, 2), 2).cut(table(coords))) == 2


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
    tiles, counts = tiling.counted(table(set(probes)).index)
    reached = {tuple(t) for t in tiling.tiles_of(np.array(probes)).tolist()}
    assert sorted(map(tuple, tiles.tolist())) == sorted(reached)
    assert counts.sum() == len(set(probes))
    assert all(one < other for one, other in pairwise(map(tuple, tiles.tolist())))
    lower = np.array([low for low, _ in boxes])
    upper = lower + np.array([span for _, span in boxes])
    expected = []
    for (i, j), (height, width) in boxes:
        inside = [(i + a, j + b) for a in range(height) for b in range(width)]
        mine = {tuple(t) for t in tiling.tiles_of(np.array(inside)).tolist()}
        expected.append(bool(mine & reached))
    assert tiling.touched(lower, upper, tiles).tolist() == expected
