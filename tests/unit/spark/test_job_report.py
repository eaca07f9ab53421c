"""Options of jobs, and what a job says of itself when it is printed."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

import icefloe.spark
from icefloe.errors import InvalidInputError
from icefloe.spark.engine.job import JobKeywords, JobOptions, JobPlan, JobReport, job_options

PLAN = JobPlan("reduce", ("/a",), tasks=2, chunks=3, num_bytes=100, manifests=1)


def test_a_job_says_what_its_tasks_moved() -> None:
    wrote = JobReport(PLAN, "X", chunks=3, bytes_read=9, bytes_written=5000)
    only_read = JobReport(PLAN, "X", chunks=3, bytes_read=5000)
    assert str(wrote).startswith("reduce: 3 chunks, 4.9 KiB written in")
    assert str(only_read).startswith("reduce: 3 chunks, 4.9 KiB read in")


def test_a_job_without_a_commit_says_so() -> None:
    assert str(JobReport(PLAN)).endswith("nothing was committed")
    assert str(JobReport(PLAN, "X", repeated=True)) == "reduce: done before, in X"


def test_keyword_arguments_override_shared_options() -> None:
    shared = JobOptions(branch="staging", task_bytes=10)
    assert job_options(None, {}) == JobOptions()
    assert job_options(shared, {}) == shared
    assert job_options(shared, {"branch": "dev"}) == JobOptions(branch="dev", task_bytes=10)
    assert shared.branch == "staging"


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="brnch"):
        job_options(None, {"brnch": "dev"})  # type: ignore[typeddict-unknown-key]


def test_half_a_transaction_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="both txn_app_id and txn_version"):
        JobOptions(txn_app_id="nightly").check()


def test_the_keywords_are_the_fields_of_the_options() -> None:
    assert get_type_hints(JobKeywords) == get_type_hints(JobOptions)


@pytest.mark.parametrize("name", ["copy", "map_blocks", "rechunk", "reduce", "write"])
def test_jobs_take_options_in_both_forms(name: str) -> None:
    parameters = inspect.signature(getattr(icefloe.spark, name)).parameters
    assert parameters["options"].annotation == "JobOptions | None"
    assert parameters["keywords"].annotation == "Unpack[JobKeywords]"
