"""What is told about a task that failed, and whether it is tried again."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.arrays.error_context import doing
from icefloe.errors import (
    InvalidInputError,
    NodeNotFoundError,
    StorageError,
    StoragePermissionError,
    TaskFailedError,
)
from icefloe.spark.engine import failures
from icefloe.spark.engine.failures import (
    RetryableTaskError,
    describe,
    from_text,
    is_permanent,
)
from icefloe.spark.engine.tasks import SCHEMA, TaskOutput, run_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def caught(action: Callable[..., Any]) -> Any:
    with pytest.raises(Exception) as found:  # noqa: PT011
        action()
    return found.value


def test_the_inner_name_counts() -> None:
    def act() -> None:
        with doing(array="/outer", source="a.nc"), doing(array="/inner", region=(slice(0, 2),)):
            raise ValueError("broken")

    failure = describe(3, caught(act))
    assert str(failure) == ("task 3 (array /inner, region [0:2], source a.nc): ValueError: broken")
    assert "raise ValueError" in failure.trace


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (ValueError("x"), True),
        (InvalidInputError("x"), True),
        (NodeNotFoundError("x"), True),
        (StoragePermissionError("x"), True),
        (StorageError("x"), False),
        (OSError("x"), False),
        (TimeoutError("x"), False),
        (RuntimeError("x"), False),
    ],
)
def test_only_errors_that_may_pass_are_tried_again(error: Any, permanent: bool) -> None:
    assert is_permanent(error) is permanent


def test_a_failure_is_found_in_the_text_of_an_exception() -> None:
    failure = describe(1, OSError('a "quoted" line\nand another'))
    text = f"Job aborted: Traceback…\n{RetryableTaskError(failure)}\n at java.lang.Thread"
    assert from_text(text) == failure
    assert from_text("something else") is None
    lost = failures.lost("job", RuntimeError(text))
    assert isinstance(lost, TaskFailedError)
    assert lost.failures == [failure]
    assert "nothing was committed" in str(failures.lost("job", RuntimeError("no executors")))


def test_many_failures_are_told_in_short() -> None:
    many = [describe(number, ValueError("x")) for number in range(30)]
    error = failures.failed("job", many, 40)
    assert "30 of 40" in str(error)
    assert "and 20 more" in str(error)
    assert len(pickle.loads(pickle.dumps(error)).failures) == 30


def work(item: Any, shared: Any) -> Iterator[Any]:
    if item == "bad":
        raise ValueError("bad item")
    if item == "flaky":
        raise ConnectionError("flaky")
    yield TaskOutput(f"{item}{shared}", chunks=1)


def rows_of(items: list[str], **given: Any) -> list[Any]:
    pickled = [(number, pickle.dumps(item)) for number, item in enumerate(items)]
    batches = run_items(pickled, pickle.dumps(work), pickle.dumps("!"), **given)
    rows = []
    for batch in batches:
        assert batch.schema == SCHEMA
        rows += batch.to_pylist()
    return rows


def test_rows_of_good_and_bad_items() -> None:
    rows = rows_of(["a", "bad", "flaky", "b"], may_retry=False)
    assert [(row["task"], row["name"], bool(row["error"])) for row in rows] == [
        (0, "a!", False),
        (1, "", True),
        (2, "", True),
        (3, "b!", False),
    ]


def test_what_may_pass_is_raised_while_spark_tries_again() -> None:
    assert len(rows_of(["bad"], may_retry=True)) == 1
    with pytest.raises(RetryableTaskError, match="flaky"):
        rows_of(["flaky"], may_retry=True)
