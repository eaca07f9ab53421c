"""The examples in the docstrings of `icefloe.spark` run, and give what they say."""

from __future__ import annotations

import doctest
from typing import TYPE_CHECKING, Any

import pytest

import icefloe.progress
import icefloe.spark

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NAMES = (
    "JobOptions",
    "JobReport",
    "NewArray",
    "copy",
    "ingest",
    "local_session",
    "map_blocks",
    "rechunk",
    "reduce",
    "write",
)


def run(thing: Any, name: Any) -> None:
    parser = doctest.DocTestParser()
    scope = {name: thing, "JobPlan": icefloe.spark.JobPlan}
    scope["start_progress"] = icefloe.progress.start_progress
    test = parser.get_doctest(thing.__doc__, scope, name, None, None)
    assert test.examples, f"{name} has no example"
    said: list[Any] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_the_names_that_users_call(
    spark: SparkSession, name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark is not None  # examples take the session that runs
    monkeypatch.chdir(tmp_path)
    run(getattr(icefloe.spark, name), name)


def test_the_example_of_progress() -> None:
    run(icefloe.progress.Progress, "Progress")
