"""Write, audit, publish on real Spark: what is published was validated as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.errors import ConflictError, InvalidInputError, RebaseFailedError, RefNotFoundError
from icefloe.spark import BlockCheck, InRange, publish, read_report
from icefloe.spark.publishing import publication
from tests.builders import new_repository, read_array

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NO_SPARK: Any = None
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


# --- others meanwhile


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks are not what these tests are about, and take seconds on Spark."""
    monkeypatch.setattr(publication, "validate", _validate_by_numpy)


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("name", ["refused", "refused-data"])
def test_a_quarantine_branch_that_is_taken_loses_nothing(
    repo: icefloe.Repository, name: str
) -> None:
    """V2: its name may be one that an earlier failure has, or anybody's."""
    theirs = repo.lookup_branch("main")
    repo.create_branch("refused-data", theirs)
    for value in (98, 99):
        staged = write_cells(repo, "staging", a3=value)
        report = publish(NO_SPARK, repo, RANGE, staging="staging", quarantine=name)
        assert report.quarantine is not None
        assert staged in {info.id for info in repo.ancestry(branch=report.quarantine)}
        assert read_array(repo, branch=report.quarantine)[3] == value
        assert read_report(repo, report.quarantine) == report.validation
        repo.create_branch("staging", repo.lookup_branch("main"))
    assert repo.lookup_branch("refused-data") == theirs
    with pytest.raises(InvalidInputError, match="quarantine"):
        publish(NO_SPARK, repo, RANGE, staging="staging", quarantine="staging")


@pytest.mark.parametrize("value", [5, 99])
def test_commits_to_the_staging_branch_during_validation_stay(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch, value: int
) -> None:
    before, late = repo.lookup_branch("main"), list[str]()

    def validate_slowly(*arguments: Any, **options: Any) -> Any:
        report = _validate_by_numpy(*arguments, **options)
        if not late:
            late.append(write_cells(repo, "staging", a0=2))
        return report

    staged = write_cells(repo, "staging", a1=value)
    monkeypatch.setattr(publication, "validate", validate_slowly)
    report = publish(NO_SPARK, repo, RANGE, staging="staging")
    assert report.validation.snapshot_id == staged
    assert repo.lookup_branch("staging") == late[0]
    assert repo.lookup_branch("main") == (staged if value == 5 else before)


@pytest.mark.usefixtures("by_numpy")
def test_what_is_published_already_is_not_rebased(repo: icefloe.Repository) -> None:
    """V3: a driver died before it deleted the staging branch, and others built on the target."""
    write_cells(repo, "staging", a1=5)
    publish(NO_SPARK, repo, RANGE, staging="staging", delete_staging=False)
    theirs = write_cells(repo, "main", a2=7)
    report = publish(NO_SPARK, repo, RANGE, staging="staging")
    assert (report.published, report.rebased, report.snapshot_id) == (True, False, theirs)
    assert repo.lookup_branch("main") == theirs
    assert repo.list_branches() == {"main"}


@pytest.mark.usefixtures("by_numpy")
def test_a_branch_called_like_a_temporary_one_stays(repo: icefloe.Repository) -> None:
    repo.create_branch("staging-rebase", repo.lookup_branch("main"))
    own = write_cells(repo, "staging-rebase", a0=8)
    write_cells(repo, "staging", a1=5)
    write_cells(repo, "main", a2=7)
    assert publish(NO_SPARK, repo, RANGE, staging="staging").rebased
    assert repo.lookup_branch("staging-rebase") == own


@pytest.mark.usefixtures("by_numpy")
def test_a_commit_to_the_staging_branch_during_a_rebase_is_published_too(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cells(repo, "staging", a1=5)
    write_cells(repo, "main", a2=7)
    merge, late = icefloe.Repository.merge, list[str]()

    def merge_slowly(*arguments: Any, **options: Any) -> str:
        merged = merge(*arguments, **options)
        if not late:
            late.append(write_cells(repo, "staging", b0=2))
        return merged

    monkeypatch.setattr(icefloe.Repository, "merge", merge_slowly)
    report = publish(NO_SPARK, repo, RANGE, staging="staging")
    assert (report.published, report.rebased) == (True, True)
    assert read_array(repo, branch="main").tolist() == [1, 5, 7, 0]
    assert read_array(repo, "b", branch="main").tolist() == [2, 0, 0, 0]
    assert repo.list_branches() == {"main"}


@pytest.mark.usefixtures("by_numpy")
def test_a_quarantine_branch_without_a_report_is_removed_by_the_next_call(
    repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """V3: a driver died between the branch and its report, and then the data were corrected."""
    staged = write_cells(repo, "staging", a3=99)
    _die_before_the_report(repo, monkeypatch)
    abandoned = f"quarantine-staging-{staged[:8]}"
    assert repo.list_branches() == {"main", "staging", abandoned}
    assert read_report(repo, abandoned) is None
    # Branches that are not such ones: of another name, of other data, and with a report.
    others = {f"quarantine-staging-{staged[:7]}", "quarantine-staging-1CECHNKR", "quarantine-mine"}
    for branch in others:
        repo.create_branch(branch, staged)
    write_cells(repo, "staging", a2=99)
    refused = publish(NO_SPARK, repo, RANGE, staging="staging", delete_staging=False)
    assert refused.quarantine is not None
    assert f"the branch {abandoned} was deleted: it has no report" in caplog.text
    write_cells(repo, "staging", a2=5, a3=5)
    assert publish(NO_SPARK, repo, RANGE, staging="staging").published
    assert repo.list_branches() == {"main", refused.quarantine, *others}


def _die_before_the_report(repo: icefloe.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> Any:
        raise Death

    with monkeypatch.context() as context:
        context.setattr(icefloe.Repository, "writable_session", die)
        with pytest.raises(Death):
            publish(NO_SPARK, repo, RANGE, staging="staging")


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

    session = repo.readonly_session(snapshot_id=options["version"])
    passed = bool((zarr.open_array(session.store, path="a", mode="r")[:] <= 9).all())
    result = CheckResult("in_range", "in range", "/a", passed=passed, detail="by numpy")
    return ValidationReport("", options["version"], session.snapshot_id, (result,))
