"""What a job says of itself when it is printed."""

from __future__ import annotations

from icefloe.spark.engine.job import JobPlan, JobReport

PLAN = JobPlan("reduce", ("/a",), tasks=2, chunks=3, num_bytes=100, manifests=1)


def test_a_job_says_what_its_tasks_moved() -> None:
    wrote = JobReport(PLAN, "X", chunks=3, bytes_read=9, bytes_written=5000)
    only_read = JobReport(PLAN, "X", chunks=3, bytes_read=5000)
    assert str(wrote).startswith("reduce: 3 chunks, 4.9 KiB written in")
    assert str(only_read).startswith("reduce: 3 chunks, 4.9 KiB read in")


def test_a_job_without_a_commit_says_so() -> None:
    assert str(JobReport(PLAN)).endswith("nothing was committed")
    assert str(JobReport(PLAN, "X", repeated=True)) == "reduce: done before, in X"
