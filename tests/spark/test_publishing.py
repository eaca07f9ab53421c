"""Write, audit, publish on real Spark: what is published was validated as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ConflictError, RebaseFailedError, RefNotFoundError
from icefloe.spark import BlockCheck, InRange, publish, read_report
from icefloe.spark.publishing import publication
from tests.builders import new_repository, read_array

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

RANGE = [InRange("a", low=0, high=9)]

pytestmark = pytest.mark.usefixtures("each_generation")


def write_cells(repo: icefloe.Repository, branch: str, **cells: float) -> str:
    """Set cells of arrays, by names such as a0; arrays are created with zeros."""
    session = repo.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    for name, value in cells.items():
        if name[0] not in root:
            root.create_array(name[0], shape=(4,), chunks=(2,), dtype="f4", dimension_names=["x"])
        root[name[0]][int(name[1])] = value
    return session.commit(f"set {', '.join(cells)}")


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = new_repository(tmp_path / "repo")
    write_cells(repo, "main", a0=1)
    repo.create_branch("staging", repo.lookup_branch("main"))
    return repo


def test_publishing_moves_the_target_to_what_was_validated(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    staged = write_cells(repo, "staging", a1=5)
    report = publish(spark, repo, RANGE, staging="staging")
    assert (report.published, report.snapshot_id, report.rebased) == (True, staged, False)
    assert repo.lookup_branch("main") == staged == report.validation.snapshot_id
    assert repo.list_branches() == {"main"}
    assert str(report).startswith(f"main: published as {staged}\n")


def test_what_fails_is_in_quarantine_with_its_report(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    before = repo.lookup_branch("main")
    staged = write_cells(repo, "staging", a3=99)
    report = publish(spark, repo, RANGE, staging="staging")
    assert not report.published
    assert repo.lookup_branch("main") == before
    assert report.quarantine == f"quarantine-staging-{staged[:8]}"
    assert repo.list_branches() == {"main", report.quarantine}
    assert read_report(repo, report.quarantine) == report.validation
    assert read_report(repo, "main") is None
    newest, second, *_ = repo.ancestry(branch=report.quarantine)
    assert newest.message == "validation of 'staging' failed: 1 failed"
    assert second.id == staged
    assert read_array(repo, branch=report.quarantine)[3] == 99
    with pytest.raises(RefNotFoundError):
        publish(spark, repo, RANGE, staging="staging")


def test_other_commits_are_rebased_upon_and_validated_again(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    """V1: what both make together is validated before it is published."""
    write_cells(repo, "staging", a1=5)
    theirs = write_cells(repo, "main", a2=7, b0=1)
    with pytest.raises(ConflictError, match="allow a rebase"):
        publish(spark, repo, RANGE, staging="staging", rebase=False)
    report = publish(spark, repo, RANGE, staging="staging", metadata={"run": 7})
    assert report.published
    assert report.rebased
    assert read_array(repo, branch="main").tolist() == [1, 5, 7, 0]
    newest, second, *_ = repo.ancestry(branch="main")
    assert newest.id == report.validation.snapshot_id
    assert second.id == theirs
    assert (newest.message, newest.metadata["run"]) == ("set a1", 7)
    assert repo.list_branches() == {"main"}


def test_what_fails_only_together_is_not_published(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    """V1: each of two changes is right, and both together are not."""
    together = [BlockCheck("a", function="sum_below_10")]
    functions = {"sum_below_10": lambda block: bool(np.nansum(block) < 10)}
    write_cells(repo, "staging", a1=6)
    theirs = write_cells(repo, "main", a2=6)
    report = publish(
        spark, repo, together, staging="staging", functions=functions, task_bytes=1 << 20
    )
    assert not report.published
    assert repo.lookup_branch("main") == theirs
    assert read_array(repo, branch=report.quarantine).tolist() == [1, 6, 6, 0]


def test_contradictions_leave_both_branches_as_they_were(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    staged = write_cells(repo, "staging", a1=5)
    theirs = write_cells(repo, "main", a1=7)
    with pytest.raises(RebaseFailedError):
        publish(spark, repo, RANGE, staging="staging")
    assert repo.lookup_branch("staging") == staged
    assert repo.lookup_branch("main") == theirs
    assert repo.list_branches() == {"main", "staging"}


def test_a_driver_that_died_anywhere_goes_on(
    spark: SparkSession, repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V3: after each step that moves a branch, the same call goes on."""
    first = repo.lookup_branch("main")
    for cells, is_right in (({"a1": 5}, True), ({"a3": 99}, False)):
        for dies_at in range(5):
            repo.reset_branch("main", first)
            for branch in repo.list_branches() - {"main"}:
                repo.delete_branch(branch)
            repo.create_branch("staging", first)
            write_cells(repo, "staging", **cells)
            theirs = write_cells(repo, "main", b0=1)
            died = _publish_with_death(spark, repo, dies_at, monkeypatch)
            if died and "staging" in repo.list_branches():
                _publish_with_death(spark, repo, None, monkeypatch)
            values = read_array(repo, branch="main").tolist()
            assert values == ([1, 5, 0, 0] if is_right else [1, 0, 0, 0])
            quarantined = {name for name in repo.list_branches() if name.startswith("quarantine")}
            assert bool(quarantined) is not is_right
            for branch in quarantined:
                assert read_report(repo, branch) is not None
                assert read_array(repo, branch=branch)[3] == 99
            assert repo.list_branches() == {"main", *quarantined}
            if not is_right:
                assert repo.lookup_branch("main") == theirs


class Death(BaseException):
    """A driver that dies: nothing catches it."""


def _publish_with_death(
    spark: SparkSession, repo: icefloe.Repository, at: int | None, patch: pytest.MonkeyPatch
) -> bool:
    """Publish with a driver that dies instead of its n-th change of a branch."""
    left = [at]

    def dying(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] is not None:
                if left[0] == 0:
                    left[0] = -1
                    raise Death
                if left[0] < 0:
                    raise Death  # nor does it clean up
                left[0] -= 1
            return function(*arguments, **options)

        return call

    names = ("create_branch", "reset_branch", "delete_branch", "merge", "writable_session")
    with patch.context() as context:
        # The checks themselves are the same each time, and take seconds on Spark.
        context.setattr(publication, "validate", _validate_by_numpy)
        for name in names:
            context.setattr(icefloe.Repository, name, dying(getattr(icefloe.Repository, name)))
        try:
            publish(spark, repo, RANGE, staging="staging")
        except Death:
            return True
    return False


def _validate_by_numpy(_spark: Any, repo: Any, _expectations: Any, **options: Any) -> Any:
    from icefloe.spark import CheckResult, ValidationReport

    passed = bool((read_array(repo, branch=options["version"]) <= 9).all())
    result = CheckResult("in_range", "in range", "/a", passed=passed, detail="by numpy")
    snapshot_id = repo.lookup_branch(options["version"])
    return ValidationReport("", options["version"], snapshot_id, (result,))
