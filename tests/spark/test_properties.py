"""Jobs over random shapes and chunks equal numpy's answer; so do two jobs on one branch."""

from __future__ import annotations

import tempfile
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.spark import NewArray, map_blocks, rechunk, reduce, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

# Each example is a handful of Spark jobs.
FEW = settings(
    max_examples=max(2, settings.default.max_examples // 16),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def problems(draw: Any) -> Any:
    rank = draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(1, 9)] * rank))
    chunks = [draw(st.tuples(*[st.integers(1, extent) for extent in shape])) for _ in range(2)]
    vanishing = draw(st.integers(0, rank - 1))
    return shape, *chunks, vanishing, draw(st.integers(1, 400))


def filled_with(shape: tuple[int, ...]) -> Callable[..., Any]:
    strides = np.cumprod((1, *shape[::-1]))[:-1][::-1]

    def values(region: Any) -> Any:
        grids = np.ogrid[region]
        return sum(grid * stride for grid, stride in zip(grids, strides, strict=True)) + 0.0

    return values


@FEW
@given(problems())
def test_any_job_equals_numpy(spark: SparkSession, problem: Any) -> None:
    shape, chunks, others, axis, task_bytes = problem
    dims = tuple(f"d{number}" for number in range(len(shape)))
    given = {"task_bytes": task_bytes}
    with tempfile.TemporaryDirectory() as folder:
        repo = icefloe.Repository.create(icefloe.local_filesystem_storage(folder))
        new = NewArray(shape, "f8", chunks, dims=dims, fill_value=-1.0)
        write(spark, repo, {"a": filled_with(shape)}, create={"a": new}, **given)
        map_blocks(spark, repo, lambda a: a * 2, "a", "b", chunks=others, **given)
        reduce(spark, repo, "b", "sum", "c", dims=dims[axis], **given)
        rechunk(spark, repo, "a", others, **given)
        session = repo.readonly_session("main")
        expected = np.arange(np.prod(shape), dtype=float).reshape(shape)
        np.testing.assert_array_equal(session.read_region("/a"), expected)
        np.testing.assert_array_equal(session.read_region("/b"), expected * 2)
        np.testing.assert_array_equal(session.read_region("/c"), expected.sum(axis) * 2)
        assert len(list(repo.ancestry(branch="main"))) == 5


@pytest.mark.parametrize("shared_array", [True, False])
def test_two_jobs_on_one_branch_both_land(
    spark: SparkSession, tmp_path: Path, shared_array: bool
) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    new = NewArray((8, 4), "i4", (2, 4))
    write(spark, repo, {"a": lambda _: 0, "b": lambda _: 0}, create={"a": new, "b": new})
    errors = []

    def job(path: Any, rows: Any, value: Any) -> None:
        try:
            write(spark, repo, {path: lambda _: value}, region=(rows,), task_bytes=1)
        except Exception as error:  # noqa: BLE001 (raised in the test)
            errors.append(error)

    second = ("a", slice(4, 8), 2) if shared_array else ("b", slice(0, 4), 2)
    threads = [threading.Thread(target=job, args=each) for each in (("a", slice(0, 4), 1), second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    session = repo.readonly_session("main")
    assert (session.read_region("/a")[:4] == 1).all()
    assert (session.read_region(f"/{second[0]}")[second[1]] == 2).all()
    assert len(list(repo.ancestry(branch="main"))) == 4
