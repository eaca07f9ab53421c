"""Cutting and grouping boxes of chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.arrays.grid import ChunkGrid, Target, group_tasks, resolve_region, split, tiles, whole
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_index import Box


@st.composite
def grids(draw: Any) -> Any:
    rank = draw(st.integers(0, 3))
    shape = draw(st.tuples(*[st.integers(0, 30)] * rank))
    chunks = draw(st.tuples(*[st.integers(1, 9)] * rank))
    tile = draw(st.tuples(*[st.one_of(st.none(), st.integers(1, 4))] * rank))
    return ChunkGrid("/a", shape, chunks, 4, tile)


@st.composite
def targets(draw: Any) -> Any:
    grid = draw(grids())
    region = []
    for extent in grid.shape:
        start = draw(st.integers(0, extent))
        region.append(slice(start, draw(st.integers(start, extent))))
    return Target(grid, tuple(region))


@given(targets(), st.integers(1, 3000))
def test_tasks_cover_each_element_once(target: Any, task_bytes: int) -> None:
    counted = np.zeros(target.grid.shape, dtype=int)
    tasks = group_tasks([target], task_bytes)
    for task in tasks:
        for piece in task:
            counted[target.grid.region(piece.box, target.region)] += 1
    expected = np.zeros_like(counted)
    expected[target.region] = 1
    assert np.array_equal(counted, expected)
    chunks = [
        place
        for task in tasks
        for piece in task
        for place in np.ndindex(*piece.box.shape)
        for place in [tuple(np.add(piece.box.lower, place).tolist())]
    ]
    assert len(chunks) == len(set(chunks))


@given(targets(), st.integers(1, 3000))
def test_tasks_are_of_the_asked_size(target: Any, task_bytes: int) -> None:
    for task in group_tasks([target], task_bytes):
        size = sum(target.grid.box_bytes(piece.box, target.region) for piece in task)
        assert size <= task_bytes or sum(piece.box.size for piece in task) == 1


@given(grids())
def test_no_piece_crosses_a_manifest(grid: Any) -> None:
    for tile in tiles(grid.box, grid.tile_shape):
        for low, high, size in zip(tile.lower, tile.upper, grid.tile_shape, strict=True):
            assert size is None or low // size == (high - 1) // size


def test_trailing_dimensions_stay_whole() -> None:
    found = list(split(Box((0, 0), (4, 3)), 7))
    assert found == [Box((0, 0), (2, 3)), Box((2, 0), (4, 3))]


def test_regions_as_users_give_them() -> None:
    dims = ("y", "x")
    assert resolve_region(None, (5, 6), dims) == whole((5, 6))
    assert resolve_region({"x": slice(-2, None)}, (5, 6), dims) == (slice(0, 5), slice(4, 6))
    assert resolve_region((slice(1, 2),), (5, 6), dims) == (slice(1, 2), slice(0, 6))
    assert resolve_region((-1, 2), (5, 6), dims) == (slice(4, 5), slice(2, 3))
    for wrong in ({"z": slice(1)}, (slice(0, 9),), (slice(0, 4, 2),), (1, 2, 3)):
        with pytest.raises(InvalidInputError):
            resolve_region(wrong, (5, 6), dims)
