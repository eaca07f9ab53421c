"""Plain functions over work items on a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icefloe.arrays.error_context import doing
from icefloe.errors import TaskFailedError
from icefloe.spark.engine.runner import max_failures, parallelism, run_tasks
from icefloe.spark.engine.tasks import TaskOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def squared(item: Any, shared: Any) -> Iterator[Any]:
    yield TaskOutput(
        "/a", pa.table({"value": [item * item + shared]}), chunks=1, bytes_written=item
    )


def test_each_item_has_its_result(spark: SparkSession) -> None:
    results = run_tasks(spark, squared, [1, 2, 3], shared=10)
    found = {task: table.column("value").to_pylist() for task, _, table in results.outputs()}
    assert found == {0: [11], 1: [14], 2: [19]}
    assert results.totals.chunks == 3
    assert results.totals.bytes_written == 6
    assert results.totals.task_seconds > 0


def test_items_too_large_for_the_closure_travel_as_rows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.spark.engine.runner.MAX_CLOSURE_BYTES", 0)
    results = run_tasks(spark, squared, list(range(7)), shared=0)
    found = {task: table.column("value")[0].as_py() for task, _, table in results.outputs()}
    assert found == {number: number * number for number in range(7)}


def test_a_failure_names_array_region_and_file(spark: SparkSession) -> None:
    def broken(item: Any, shared: Any) -> Iterator[Any]:
        with doing(array="/t2m", region=(slice(0, 4), slice(2, 3)), source="file-7.nc"):
            raise ValueError("the header is damaged")
        yield TaskOutput()

    with pytest.raises(TaskFailedError) as caught:
        run_tasks(spark, broken, [0, 1], label="a job")
    assert len(caught.value.failures) == 2
    assert "array /t2m, region [0:4, 2:3], source file-7.nc" in str(caught.value)
    assert "the header is damaged" in str(caught.value)


def test_failures_can_be_kept(spark: SparkSession) -> None:
    def odd(item: Any, shared: Any) -> Iterator[Any]:
        if item % 2:
            raise KeyError(item)
        yield TaskOutput(str(item))

    results = run_tasks(spark, odd, range(5), raise_failures=False)
    assert sorted(failure.task for failure in results.failures) == [1, 3]


def test_an_error_that_spark_would_try_again_is_told_in_the_end(spark: SparkSession) -> None:
    def flaky(item: Any, shared: Any) -> Iterator[Any]:
        with doing(source="http://far-away"):
            raise ConnectionResetError("peer went away")
        yield TaskOutput()

    with pytest.raises(TaskFailedError, match=r"source http://far-away.*peer went away"):
        run_tasks(spark, flaky, [0])


def test_another_version_on_executors_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.spark.engine.runner.__version__", "0.0.1")
    with pytest.raises(TaskFailedError, match="install the same version"):
        run_tasks(spark, squared, [1], shared=0)


def test_what_is_known_about_the_session(spark: SparkSession) -> None:
    assert max_failures(spark) == 1
    assert parallelism(spark) == 2
