"""Ingests in rounds on a branch of their own, so that a dead driver loses one round at most.

Every round is an ingest like any other, committed to a staging branch: what it wrote is reachable,
and no garbage collection takes it. The same call later finds the branch, where the files of earlier
rounds are unchanged, and continues. At the end the rounds become one commit on the target branch.
"""

from __future__ import annotations

import hashlib
import logging
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from icefloe.errors import ConflictError, InvalidInputError
from icefloe.tables.job_summary import SUMMARY, JobSummary, joined_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icefloe.repository import Repository
    from icefloe.spark.engine.job import JobOptions

logger = logging.getLogger(__name__)

_PREFIX = "ingest-"
Result = TypeVar("Result")


def staging_branch(branch: str, group: str) -> str:
    """The branch that rounds of an ingest into a group are committed to."""
    key = f"{branch}\n{group}".encode()
    return _PREFIX + hashlib.blake2b(key, digest_size=8).hexdigest()


def run_in_rounds(
    repository: Repository,
    files: Mapping[str, Any],
    files_per_round: int,
    options: JobOptions,
    group: str,
    ingest_round: Callable[[dict[str, Any], JobOptions], Result],
) -> tuple[list[Result], str | None]:
    """Run rounds of some files each; returns their results, and the commit of all of them.

    Args:
        repository: The repository.
        files: All files, in order.
        files_per_round: How many of them each round takes.
        options: Of the whole ingest; rounds are committed to a staging branch instead.
        group: The group that is ingested into.
        ingest_round: Ingests some files with some options, and commits.
    """
    if options.transaction is not None:
        raise InvalidInputError(
            "checkpoint_files and txn_app_id do not go together: an ingest in rounds is repeated "
            "by its files, which are not taken twice"
        )
    staging = staging_branch(options.branch, group)
    base = _start(repository, options.branch, staging)
    remaining = iter(files.items())
    results: list[Result] = []
    while batch := dict(islice(remaining, files_per_round)):
        message = f"{options.message or 'ingest'} (round {len(results) + 1})"
        results.append(ingest_round(batch, options.merged(branch=staging, message=message)))
    return results, _publish(repository, options, staging, base)


def _start(repository: Repository, branch: str, staging: str) -> str:
    """Make the staging branch, or find it; returns the snapshot that rounds are based on."""
    if staging not in repository.list_branches():
        tip = repository.lookup_branch(branch)
        repository.create_branch(staging, tip)
        return tip
    known = {snapshot.id for snapshot in repository.ancestry(branch=branch)}
    base = next(each.id for each in repository.ancestry(branch=staging) if each.id in known)
    logger.info("ingest: going on with %s, which is based on %s", staging, base)
    return base


def _publish(repository: Repository, options: JobOptions, staging: str, base: str) -> str | None:
    """Make the rounds one commit of the target branch, and delete the staging branch."""
    if repository.lookup_branch(staging) == base:
        repository.delete_branch(staging, from_snapshot_id=base)
        return None
    message = options.message or "ingest"
    rounds = takewhile(lambda each: each.id != base, repository.ancestry(branch=staging))
    summary = joined_summary([JobSummary.of(each.metadata) for each in rounds][::-1])
    metadata = {} if summary is None else {SUMMARY: summary.to_data()}
    metadata |= options.metadata or {}
    commit = squashed = repository.squash(staging, base, message=message, metadata=metadata)
    try:
        repository.publish(staging, options.branch)
    except ConflictError:
        if not options.rebase:
            raise
        commit = repository.merge(staging, options.branch, message=message, metadata=metadata)
    repository.delete_branch(staging, from_snapshot_id=squashed)
    return commit
