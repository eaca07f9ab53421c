"""Plans for rechunking: within memory, covering everything, not reading much more than needed."""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import InvalidInputError
from icefloe.spark.jobs.rechunk import (
    MAX_AMPLIFICATION,
    REGION_SHARE,
    axis_amplification,
    clipped,
    plan_rechunk,
)
from icefloe.tables.zarr_arrays import create, like, resolve_chunks
from tests.builders import new_repository


@st.composite
def problems(draw: Any) -> Any:
    rank = draw(st.integers(1, 4))
    shape = draw(st.tuples(*[st.integers(1, 300)] * rank))
    chunks = st.tuples(*[st.integers(1, 100)] * rank)
    source, target = draw(chunks), draw(chunks)
    least = max(prod(clipped(source, shape)), prod(clipped(target, shape)))
    memory = least * REGION_SHARE * 4 * draw(st.integers(1, 50))
    return shape, source, target, memory


@given(problems())
def test_regions_fit_and_are_whole_target_chunks(problem: Any) -> None:
    shape, source, target, memory = problem
    plan = plan_rechunk(shape, source, target, item_bytes=4, memory_bytes=memory)
    assert plan.region_bytes * REGION_SHARE <= memory
    for stage in plan.stages:
        assert prod(stage.region_shape) * 4 <= plan.region_bytes
        for size, chunk, extent in zip(stage.region_shape, stage.target_chunks, shape, strict=True):
            assert size % chunk == 0 or size == extent
    assert plan.stages[0].source_chunks == clipped(source, shape)
    assert plan.stages[-1].target_chunks == clipped(target, shape)
    if len(plan.stages) == 2:
        assert plan.stages[0].target_chunks == plan.stages[1].source_chunks


def test_maps_to_time_series_take_one_pass_where_memory_allows() -> None:
    plan = plan_rechunk(
        (256, 512, 512), (4, 512, 512), (256, 64, 64), item_bytes=4, memory_bytes=512 * 2**20
    )
    assert len(plan.stages) == 1
    assert plan.stages[0].amplification <= 2


def test_a_hopeless_direct_copy_takes_two_passes() -> None:
    shape, memory = (10_000, 1000, 1000), 64 * 2**20
    plan = plan_rechunk(shape, (1, 1000, 1000), (10_000, 10, 10), item_bytes=4, memory_bytes=memory)
    assert len(plan.stages) == 2
    assert sum(stage.amplification for stage in plan.stages) <= 2 * MAX_AMPLIFICATION


def test_equal_chunks_are_read_once() -> None:
    plan = plan_rechunk((100, 100), (10, 10), (10, 10), item_bytes=8, memory_bytes=10_000)
    assert plan.stages[0].amplification == 1


def test_a_chunk_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="one new chunk has 80000 bytes"):
        plan_rechunk((100, 100), (10, 10), (100, 100), item_bytes=8, memory_bytes=100_000)


@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 50))
def test_reading_less_than_everything_is_impossible(extent: int, source: int, size: int) -> None:
    assert axis_amplification(extent, min(source, extent), min(size, extent)) >= 1


def test_chunks_as_users_give_them() -> None:
    dims = ("time", "y", "x")
    assert resolve_chunks({"time": -1}, (9, 8, 7), (1, 4, 4), dims) == (9, 4, 4)
    assert resolve_chunks((100, 2, 3), (9, 8, 7), (1, 4, 4), dims) == (9, 2, 3)
    assert resolve_chunks(5, (9, 8, 4), (1, 4, 4), dims) == (5, 5, 4)
    for wrong in ({"z": 1}, (1, 2), (0, 1, 1), "no"):
        with pytest.raises(InvalidInputError):
            resolve_chunks(wrong, (9, 8, 7), (1, 4, 4), dims)


def test_chunks_of_texts_are_chosen_by_what_they_take_in_memory() -> None:
    session = new_repository().writable_session("main")
    labels = zarr.create_array(session.store, name="labels", shape=(3,), chunks=(1,), dtype=str)
    labels[:] = ["land", "sea", "ice"]
    copy = msgspec.structs.replace(like(labels, (3,), (1,), None), chunks=None)
    create(session, "/copy", copy)
    assert zarr.open_array(session.store, path="copy").chunks == (3,)
