"""Publishes a staging branch if it is as expected, and puts it into quarantine if it is not.

Invariants, cited by tests:

V1  The target branch only ever moves to a snapshot that was validated as it is.
V2  If validation fails, the target branch is not touched, and the staged commits stay reachable
    from a quarantine branch, whose last commit has the report.
V3  A driver that dies at any point leaves the staging branch or the quarantine branch: the same
    call continues.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    RebaseFailedError,
    RefNotFoundError,
)
from icefloe.html_tables import Report
from icefloe.model import MAIN, paths
from icefloe.model.ids import SnapshotId
from icefloe.spark.publishing.validating import validate
from icefloe.spark.publishing.validation_report import ValidationReport
from icefloe.tables.job_summary import SUMMARY, JobSummary, joined_summary
from icefloe.tables.schema import attributes_of
from icefloe.tables.table_scan import open_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from icefloe.engine.info import SnapshotInfo
    from icefloe.repository import Repository
    from icefloe.spark.publishing.expectations import Expectation
    from icefloe.spark.publishing.validating import Functions

logger = logging.getLogger(__name__)

REPORT_GROUP = "/.validation"
"""The group of a quarantine branch whose attributes are the report."""
_MAX_TRIES = 10


class PublishReport(Report, frozen=True):
    """The result of publishing a staging branch."""

    target: str
    snapshot_id: str | None
    """The new snapshot of the target branch; None if nothing was published."""
    validation: ValidationReport
    rebased: bool = False
    """Whether the target had commits of its own, so that the staged changes were put on top."""
    quarantine: str | None = None
    """The branch that has what was not published."""

    @property
    def published(self) -> bool:
        """Whether readers of the target branch see the staged data."""
        return self.snapshot_id is not None

    def __str__(self) -> str:
        if self.published:
            how = "rebased and published" if self.rebased else "published"
            return f"{self.target}: {how} as {self.snapshot_id}\n{self.validation}"
        return f"{self.target}: not published, see the branch {self.quarantine}\n{self.validation}"


def publish(
    spark: SparkSession,
    repository: Repository | str,
    expectations: Sequence[Expectation],
    *,
    staging: str,
    target: str = MAIN,
    functions: Functions | None = None,
    rebase: bool = True,
    quarantine: str | None = None,
    message: str | None = None,
    metadata: dict[str, Any] | None = None,
    delete_staging: bool = True,
    task_bytes: int | None = None,
    progress: bool | None = None,
) -> PublishReport:
    """Validate a staging branch; publish it if it passes, or put it into quarantine.

    If all expectations are met, the target branch is moved forward to the staging branch. If the
    target has new commits by then, the staged changes are put on top of them, as one commit, and
    validated again: only the exact snapshot that was validated is published. If an expectation is
    not met, the target is unchanged, and a quarantine branch gets the staged commits and the
    report.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        expectations: What is expected; see `validate`.
        staging: The branch to publish.
        target: The branch that readers use.
        functions: The functions of `BlockCheck`, by name.
        rebase: Whether to put staged changes on top of other commits; if False, raise
            ConflictError.
        quarantine: The name of the quarantine branch; by default composed of the names of the
            staging branch and the snapshot. If a branch of that name has other commits, the id of
            the snapshot is appended.
        message: Message of the commit that a rebase makes.
        metadata: Properties of that commit.
        delete_staging: Whether to delete the staging branch when it is published or in
            quarantine. It stays if somebody has committed to it meanwhile.
        task_bytes: Bytes of array per task.
        progress: Whether to show a progress bar; by default in terminals and notebooks.

    Raises:
        ConflictError: The target has other commits, and `rebase` is False.
        RebaseFailedError: Staged changes conflict with other commits of the target; both branches
            are unchanged.

    >>> import icefloe, zarr
    >>> from icefloe.spark import HasUnits, local_session, publish
    >>> repo = icefloe.Repository.create("published")
    >>> repo.create_branch("staging", repo.lookup_branch("main"))
    >>> with repo.transaction("staging", message="new data") as store:
    ...     _ = zarr.create_array(store, name="t2m", shape=4, chunks=2, dtype="f4")
    >>> report = publish(local_session(), repo, [HasUnits("t2m")], staging="staging")
    >>> report.published, report.validation.failures[0].detail
    (False, "has no attribute 'units'")
    >>> sorted(repo.list_branches()) == sorted(["main", report.quarantine])
    True
    """
    opened = open_repository(repository)
    if quarantine in {staging, target}:
        raise InvalidInputError(
            f"quarantine={quarantine!r} is the staging branch or the target: name another branch"
        )
    _delete_temporary_branches(opened, staging)
    remove_unreported(
        opened, staging, target, f"quarantine-{staging}-", lambda name, tip: name == tip[:8]
    )
    rebased = False
    for _ in range(_MAX_TRIES):
        staged = opened.lookup_branch(staging)
        report = validate(
            spark,
            opened,
            expectations,
            version=staging,
            functions=functions,
            task_bytes=task_bytes,
            progress=progress,
        )
        if not report.passed:
            branch = quarantine or f"quarantine-{staging}-{report.snapshot_id[:8]}"
            branch = put_into_quarantine(opened, staging, report, branch)
            if delete_staging:
                delete_if_at(opened, staging, report.snapshot_id)
            return PublishReport(target, None, report, rebased=rebased, quarantine=branch)
        if report.snapshot_id == staged:
            try:
                snapshot_id = _move(opened, target, staging, staged)
            except ConflictError:
                if not rebase:
                    raise
                with suppress(_BranchesMovedError):
                    _rebase(opened, staging, target, staged, message=message, metadata=metadata)
                    rebased = True
                continue
            logger.info("publish: %s is %s, which was validated", target, snapshot_id)
            if delete_staging:
                delete_if_at(opened, staging, staged)
            return PublishReport(target, snapshot_id, report, rebased=rebased)
    raise ConflictError(
        f"{target!r} or {staging!r} moved {_MAX_TRIES} times while {staging!r} was validated: try "
        "again when there are fewer other commits"
    )


def _move(repository: Repository, target: str, staging: str, validated: str) -> str:
    """Move the target forward to the validated snapshot, and to no other (V1)."""
    tip = repository.lookup_branch(target)
    if validated in {info.id for info in repository.ancestry(snapshot_id=tip)}:
        return tip  # a driver that died has published it, and others have built on it (V3)
    ancestors = (info.id for info in repository.ancestry(snapshot_id=validated))
    if tip not in ancestors:
        raise ConflictError(
            f"cannot fast-forward {target!r} to {staging!r}: it has commits of its own since they "
            "parted; allow a rebase, or merge it into the staging branch",
            validated,
            tip,
        )
    repository.reset_branch(target, validated, from_snapshot_id=tip)
    return validated


def delete_if_at(repository: Repository, branch: str, snapshot_id: str) -> None:
    """Delete a branch, unless somebody has committed to it since it was at a snapshot."""
    try:
        repository.delete_branch(branch, from_snapshot_id=snapshot_id)
    except ConflictError as error:
        logger.warning("%s was not deleted, as it has other commits by now: %s", branch, error)


class _BranchesMovedError(Exception):
    """A rebase is of no use, because the staging branch or its own branch is another by now."""


def _temporary_branch(staging: str, staged: str) -> str:
    """The branch on which a rebase of a snapshot is prepared."""
    return f"{staging}-rebase-{staged}"


def _delete_temporary_branches(repository: Repository, staging: str) -> None:
    """Delete the temporary branches of drivers that died (V3)."""
    prefix = _temporary_branch(staging, "")
    for branch in repository.list_branches():
        if branch.startswith(prefix) and _is_snapshot_id(branch.removeprefix(prefix)):
            with suppress(RefNotFoundError):
                repository.delete_branch(branch)


def _is_snapshot_id(text: str) -> bool:
    try:
        return str(SnapshotId.parse(text)) == text
    except InvalidInputError:
        return False


def _rebase(
    repository: Repository,
    staging: str,
    target: str,
    staged: str,
    *,
    message: str | None,
    metadata: dict[str, Any] | None,
) -> None:
    """Put what the staging branch has on top of the target, as one commit of the staging branch.

    Raises _BranchesMovedError if somebody commits to the staging branch, or publishes it, too.
    """
    temporary, base = _temporary_branch(staging, staged), repository.lookup_branch(target)
    staged_commits = list(_commits_since(repository, staged, base))
    if not staged_commits:
        raise _BranchesMovedError
    try:
        repository.create_branch(temporary, base)
    except AlreadyExistsError:
        raise _BranchesMovedError from None
    try:
        newest = staged_commits[0]
        summary = joined_summary(JobSummary.of(each.metadata) for each in staged_commits[::-1])
        joined = {} if summary is None else {SUMMARY: summary.to_data()}
        rebased = repository.merge(
            staging,
            temporary,
            message=message or newest.message,
            metadata={**newest.metadata, **joined, **(metadata or {})},
        )
        repository.reset_branch(staging, rebased, from_snapshot_id=staged)
    except RebaseFailedError:
        raise
    except ConflictError:
        raise _BranchesMovedError from None
    finally:
        with suppress(RefNotFoundError):
            repository.delete_branch(temporary)
    logger.info("publish: %s was put on top of %s as %s", staging, target, rebased)


def _commits_since(repository: Repository, staged: str, base: str) -> Iterator[SnapshotInfo]:
    """The commits that a staged snapshot has and a snapshot of the target has not, newest first."""
    there = {info.id for info in repository.ancestry(snapshot_id=base)}
    return takewhile(lambda info: info.id not in there, repository.ancestry(snapshot_id=staged))


# --- quarantine


def remove_unreported(
    repository: Repository,
    staging: str,
    target: str,
    prefix: str,
    is_quarantine: Callable[[str, str], bool],
) -> None:
    """Delete the quarantine branches of drivers that died before they stored the report (V3).

    Nothing is lost, because the staging branch still has the commits.

    Args:
        repository: A repository.
        staging: The staging branch.
        target: The branch that the staging branch is published to.
        prefix: How the names of quarantine branches begin.
        is_quarantine: Whether the rest of a name is that of a quarantine branch of a snapshot.
    """
    branches = [each for each in repository.list_branches() if each.startswith(prefix)]
    if not branches:
        return
    base = repository.lookup_branch(target)
    staged = repository.lookup_branch(staging)
    staged_ids = {info.id for info in _commits_since(repository, staged, base)}
    for branch in branches:
        with suppress(RefNotFoundError, ConflictError):
            tip = repository.lookup_branch(branch)
            # The tip of a branch with a report is the commit of the report.
            if tip in staged_ids and is_quarantine(branch.removeprefix(prefix), tip):
                repository.delete_branch(branch, from_snapshot_id=tip)
                logger.warning("publish: the branch %s was deleted: it has no report", branch)


def put_into_quarantine(
    repository: Repository, staging: str, report: ValidationReport, branch: str
) -> str:
    """Make a branch of what was validated, and commit the report there (V2); returns its name.

    A branch that is there already is used if a driver died before it deleted the staging branch;
    otherwise, the id of the snapshot is added to the name.
    """
    snapshot_id = report.snapshot_id
    try:
        repository.create_branch(branch, snapshot_id)
    except AlreadyExistsError:
        ancestors = [info.id for info in repository.ancestry(branch=branch)]
        if snapshot_id in ancestors and read_report(repository, branch) is not None:
            return branch
        if snapshot_id != ancestors[0]:
            if branch.endswith(snapshot_id):
                raise
            return put_into_quarantine(repository, staging, report, f"{branch}-{snapshot_id}")
    session = repository.writable_session(branch)
    document = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"report": report.to_data()},
    }
    root = session.get_node(paths.ROOT)
    if root is None or not root.is_array:
        session.tree.set_document(REPORT_GROUP, json.dumps(document).encode())
    session.commit(
        f"validation of {staging!r} failed: {report.counts}",
        {"icefloe.validation": report.counts},
        allow_empty=True,
    )
    logger.warning("publish: %s failed validation, see the branch %s", staging, branch)
    return branch


def read_report(repository: Repository | str, branch: str) -> ValidationReport | None:
    """The report that a quarantine branch has; None if it has none.

    Raises:
        RefNotFoundError: There is no such branch.
        FormatError: The branch has something else in place of the report.
    """
    session = open_repository(repository).readonly_session(branch)
    if session.get_node(REPORT_GROUP) is None:
        return None
    return ValidationReport.from_data(attributes_of(session, REPORT_GROUP).get("report"))
