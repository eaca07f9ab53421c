"""Pipelines on real Spark: run twice, after a dead driver, after a failed validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark import publish, read_report, run_pipeline
from icefloe.spark.publishing import pipeline_run
from icefloe.tables.job_summary import JobSummary
from tests.builders import read_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from icefloe.spark import PipelineReport

FUNCTIONS: dict[str, Any] = {"to_celsius": lambda kelvin: kelvin - 273.15}
FILE = """
name: weather
target:
  repository: repo
  create: true
  containers: [data]
sources:
  days:
    files: data/*.nc
steps:
  - do: ingest
    source: days
    mode: copy
    statistics: true
  - do: map_blocks
    function: to_celsius
    inputs: t2m
    output: celsius
  - do: reduce
    array: celsius
    how: mean
    dims: time
    output: mean
expectations:
  - {expect: in_range, arrays: t2m, low: 180, high: 330}
  - {expect: gap_free, arrays: time, step: 1D}
maintenance:
  expire_snapshots: {older_than: 1000d}
  garbage_collect: {older_than: 1000d}
reports: reports
"""


MAINTAINED = {
    "expire_snapshots": "0 snapshots",
    "garbage_collect": "0 B in 0 chunk files and others",
}


class Weather:
    """A pipeline in a folder, with a file for each day."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        (folder / "data").mkdir()
        (folder / "pipeline.yaml").write_text(FILE)

    def add_day(self, day: int, value: float) -> None:
        time = [np.datetime64("2024-01-01", "ns") + np.timedelta64(day, "D")]
        part = xr.Dataset(
            {"t2m": (("time", "x"), np.full((1, 3), value, "f4"))}, {"time": time, "x": range(3)}
        )
        part.to_netcdf(self.folder / "data" / f"{day}.nc", format="NETCDF3_64BIT")

    def run(self, **options: Any) -> PipelineReport:
        place = self.folder / "pipeline.yaml"
        return run_pipeline(self.spark, place, functions=FUNCTIONS, **options)

    @property
    def repo(self) -> icefloe.Repository:
        return icefloe.Repository.open(str(self.folder / "repo"))

    def commits(self) -> list[str]:
        return [each.message for each in self.repo.ancestry(branch="main")]


@pytest.fixture
def weather(spark: SparkSession, tmp_path: Path) -> Weather:
    weather = Weather(spark, tmp_path)
    weather.add_day(0, 280.0)
    return weather


def test_a_pipeline_publishes_what_is_new_and_nothing_twice(weather: Weather) -> None:
    """P1."""
    planned = weather.run(dry_run=True)
    assert [each.detail for each in planned.steps] == ["would run"] * 3
    assert not (weather.folder / "repo").exists()
    first = weather.run()
    assert first.status == "published", str(first)
    assert first.maintenance == MAINTAINED
    assert weather.commits() == ["weather", "Repository initialized"]
    summary = JobSummary.of(next(iter(weather.repo.ancestry(branch="main"))).metadata)
    assert (summary.job, summary.files) == ("ingest, map_blocks, reduce", 1)
    tip = weather.repo.lookup_branch("main")
    again = weather.run()
    assert (again.status, again.snapshot_id) == ("up to date", None)
    assert [each.detail for each in again.steps[1:]] == ["up to date"] * 2
    assert weather.repo.lookup_branch("main") == tip
    weather.add_day(1, 290.0)
    planned = weather.run(dry_run=True)
    assert planned.steps[0].detail == "2 files, 1 of them new"
    second = weather.run()
    assert second.status == "published"
    # The result of the first day stays as it is.
    assert second.steps[1].detail == "1 chunks, where inputs have changed"
    assert second.steps[2].detail == "2 chunks, where inputs have changed"
    assert weather.commits()[:2] == ["weather", "weather"]
    logged = [each.kind for each in weather.repo.operations()]
    assert logged.count("garbage_collect") == 2
    np.testing.assert_allclose(read_array(weather.repo, "mean", branch="main"), 285 - 273.15, 1e-5)
    assert weather.repo.list_branches() == {"main"}
    names = {path.suffix for path in (weather.folder / "reports").iterdir()}
    assert names == {".json", ".txt", ".html"}


def test_what_fails_is_not_tried_again_until_something_changes(weather: Weather) -> None:
    """P3."""
    weather.run()
    tip = weather.repo.lookup_branch("main")
    weather.add_day(1, 9999.0)
    failed = weather.run()
    assert failed.status == "failed"
    assert failed.quarantine is not None
    assert failed.validation.failures[0].array == "/t2m"
    assert weather.repo.lookup_branch("main") == tip
    quarantined = weather.repo.lookup_branch(failed.quarantine)
    again = weather.run()
    assert (again.status, again.quarantine, again.steps) == ("failed", failed.quarantine, ())
    assert again.validation == failed.validation == read_report(weather.repo, failed.quarantine)
    assert weather.repo.lookup_branch(failed.quarantine) == quarantined
    assert weather.run(retry=True).status == "failed"
    weather.add_day(1, 290.0)
    assert weather.run().status == "published"
    assert read_array(weather.repo, "t2m", branch="main")[:, 0].tolist() == [280, 290]


def test_a_file_that_was_staged_and_vanished_is_not_published(
    weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    weather.run()
    weather.add_day(1, 999.0)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline_run, "publish", dying(publish, 0))
        with pytest.raises(Death):
            weather.run()
    assert "pipeline-weather" in weather.repo.list_branches()
    (weather.folder / "data" / "1.nc").unlink()
    assert weather.run().status == "up to date"
    assert read_array(weather.repo, "t2m", branch="main").shape == (1, 3)


def test_a_quarantine_branch_without_a_report_is_removed_by_the_next_run(
    weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: a driver died between the branch and its report, and then a file was corrected."""
    weather.run()
    weather.add_day(1, 9999.0)
    with monkeypatch.context() as patch:
        # A report begins with a session on the quarantine branch.
        open_session = icefloe.Repository.writable_session

        def dying_session(repo: icefloe.Repository, branch: str) -> Any:
            return dying(open_session, not branch.startswith("quarantine"))(repo, branch)

        patch.setattr(icefloe.Repository, "writable_session", dying_session)
        with pytest.raises(Death):
            weather.run()
    (abandoned,) = weather.repo.list_branches() - {"main", "pipeline-weather"}
    assert read_report(weather.repo, abandoned) is None
    weather.add_day(1, 290.0)
    assert weather.run().status == "published"
    assert weather.repo.list_branches() == {"main"}
    assert read_array(weather.repo, "t2m", branch="main")[:, 0].tolist() == [280, 290]


class Death(BaseException):
    """A driver that dies: nothing catches it."""


def dying(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """A function that dies instead of its n-th call."""
    left = [calls]

    def call(*arguments: Any, **options: Any) -> Any:
        if left[0] == 0:
            raise Death
        left[0] -= 1
        return function(*arguments, **options)

    return call


def test_a_run_after_a_dead_driver_goes_on(
    weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the driver dies after the ingest, after the first transform, and after publishing."""
    weather.run()
    first = weather.repo.lookup_branch("main")
    weather.add_day(1, 290.0)
    for name in ("update_mapped", "update_reduced"):
        with monkeypatch.context() as patch:
            patch.setattr(pipeline_run, name, dying(getattr(pipeline_run, name), 0))
            with pytest.raises(Death):
                weather.run()
        assert weather.repo.lookup_branch("main") == first
    report = weather.run()
    assert [each.detail for each in report.steps] == [
        "0 new, 0 replaced, 2 unchanged, 0 broken files", "up to date",
        "2 chunks, where inputs have changed",
    ]  # fmt: skip
    assert report.status == "published"
    weather.add_day(2, 291.0)
    with monkeypatch.context() as patch:
        expire = icefloe.Repository.expire_snapshots
        patch.setattr(icefloe.Repository, "expire_snapshots", dying(expire, 0))
        with pytest.raises(Death):
            weather.run()
    finished = weather.run()
    assert (finished.status, finished.maintenance) == (
        "up to date", MAINTAINED,
    )  # fmt: skip
    assert weather.repo.list_branches() == {"main"}
    assert weather.commits() == ["weather"] * 3 + ["Repository initialized"]


def test_a_function_that_nobody_gave_is_refused(weather: Weather) -> None:
    with pytest.raises(
        InvalidInputError, match=r"steps\[1\]\.function.*'to_celsius'.*there are: no"
    ):
        run_pipeline(weather.spark, weather.folder / "pipeline.yaml")
    assert not (weather.folder / "repo").exists()
