"""Chunk grids as zarr writes them: how many chunks an array has along each dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import InvalidInputError
from icefloe.model.zarr_document import parse_document
from tests.documents import array_document

if TYPE_CHECKING:
    from icefloe.model.zarr_document import ArrayMetadata


def parse(shape: list[Any], name: str, **configuration: Any) -> ArrayMetadata:
    grid = {"name": name, "configuration": configuration}
    return parse_document(array_document(shape, [], chunk_grid=grid))


@pytest.mark.parametrize(
    ("shape", "chunks", "counts"),
    [([], [], ()), ([10, 9], [3, 3], (4, 3)), ([0, 5], [1, 9], (0, 1)), ([0, 5], [0, 5], (0, 1))],
)
def test_regular_grids(shape: list[Any], chunks: list[Any], counts: tuple[Any, ...]) -> None:
    array = parse(shape, "regular", chunk_shape=chunks)
    assert array.grid_shape == counts
    assert array.chunk_shape == tuple(chunks)


@pytest.mark.parametrize(
    ("extent", "edges", "count"),
    [
        (10, [1, 2, 3, 4], 4),
        (10, [5, 5], 2),
        (10, [[5, 2]], 2),
        (11, [[2, 4], 3], 5),
        (10, 4, 3),
        # Made smaller: sizes past the end stay, but no chunk is there.
        (5, [1, 2, 3, 4], 3),
        (3, [1, 2, 3, 4], 2),
        (1, [[5, 1000000000]], 1),
        (0, [1, 2], 0),
        (0, 7, 0),
    ],
)
def test_rectilinear_grids(extent: int, edges: Any, count: int) -> None:
    array = parse([extent, 4], "rectilinear", kind="inline", chunk_shapes=[edges, 4])
    assert array.grid_shape == (count, 1)
    assert array.chunk_shape is None


@pytest.mark.parametrize(
    "edges",
    [
        [[1, 2, 3]],
        [0, 10],
        [-1, 11],
        [1, 2],
        ["10"],
        [[10, 0]],
        [[10, -1]],
        [True],
        [10.0],
        0,
        "10",
        None,
    ],
)
def test_bad_rectilinear_grids(edges: Any) -> None:
    with pytest.raises(InvalidInputError, match="bad metadata"):
        parse([10], "rectilinear", kind="inline", chunk_shapes=[edges])


def test_a_grid_that_is_not_known_has_any_chunk() -> None:
    assert parse([10], "hexagonal", size=3).grid_shape is None
    with pytest.raises(InvalidInputError, match="bad metadata"):
        parse([10], "rectilinear", kind="inline", chunk_shapes=[[10], [10]])
    with pytest.raises(InvalidInputError, match="bad metadata"):
        parse([10], "regular", chunk_shape=[0])
