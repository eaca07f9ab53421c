"""Maintenance of repositories as Spark jobs: the functions of the engine, on executors.

Each function has the guarantees and the result of its counterpart on one machine, as a DataFrame.
`CALL icefloe.system.<name>(…)` runs the same functions.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.engine.operation_log import OperationLog
from icefloe.engine.retention.collection import GCSummary, collect_garbage
from icefloe.engine.retention.marking import DEFAULT_LIMITS
from icefloe.model import MAIN
from icefloe.model.array_choice import chosen_arrays
from icefloe.spark.engine.job import Job, JobOptions, JobPlan
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.chunk_checks import SparkChunkChecks
from icefloe.spark.jobs.file_copies import SparkFileCopier, SparkPackWriter, copy_virtual
from icefloe.spark.jobs.orphan_files import SparkFileLister
from icefloe.spark.jobs.result_frames import record_frame
from icefloe.spark.jobs.source_checks import source_rows
from icefloe.storage.access.url import storage_from_url
from icefloe.tables.table_scan import open_repository
from icefloe.upkeep.compaction import CompactionOptions, CompactionSummary, compact_branch
from icefloe.upkeep.findings import Problem
from icefloe.upkeep.materialize import Counts, Materialized, VirtualChunkChoice, virtual_batches
from icefloe.upkeep.migration import MigrationReport, migrate_repository
from icefloe.upkeep.verification import verify_repository

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from icefloe.engine.context import Context
    from icefloe.repository import AnyStorage, Repository

ORPHAN_AGE = timedelta(days=3)


def remove_orphan_files(
    spark: SparkSession,
    repository: Repository | str,
    older_than: datetime | timedelta = ORPHAN_AGE,
    *,
    written_since: datetime | timedelta | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
    job: str | None = None,
) -> DataFrame:
    """Delete objects that nothing refers to: `Repository.garbage_collect` on a cluster.

    Executors list chunk files by ranges of keys, read the manifests of all reachable snapshots,
    compare both, and delete. The driver reads references and snapshots; its memory depends on the
    number of snapshots and manifests, not of chunks. A collection that dies does no harm; the same
    call again finishes its work.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        older_than: Only objects that were written before this time are deleted, by the storage's
            clock; a timedelta means that long before now.
        written_since: Only objects that were written since this time are deleted.
        dry_run: Only report what would be deleted.
        progress: Whether to show progress bars; by default in terminals and notebooks.
        job: Name of the job, for the log of operations.

    Returns:
        One row: the fields of `icefloe.GCSummary`.

    Example:
        >>> from datetime import timedelta
        >>> done = icefloe.spark.remove_orphan_files(spark, repo, timedelta(days=7), dry_run=True)
        >>> done.first().chunks_deleted
        0
    """
    context = open_repository(repository).context
    label = "remove_orphan_files"
    limits = DEFAULT_LIMITS
    with SparkFileLister(spark, context, limits, label=label, progress=progress) as lister:
        summary = collect_garbage(
            context,
            older_than,
            written_since=written_since,
            dry_run=dry_run,
            limits=limits,
            lister=lister,
        )
    if not dry_run:
        _log(context, "garbage_collect", summary, job or label)
    return record_frame(spark, GCSummary, [summary])


def verify(
    spark: SparkSession,
    repository: Repository | str,
    *,
    deep: bool = False,
    progress: bool | None = None,
) -> DataFrame:
    """Check everything that branches and tags reach: `Repository.verify` on a cluster.

    The driver checks references, snapshots and manifests; executors check that chunk files exist
    and are long enough, and with `deep` read every chunk that has a checksum, each once however
    many snapshots share it. Nothing is changed.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        deep: Also read the bytes of all chunks that have a checksum.
        progress: Whether to show progress bars; by default in terminals and notebooks.

    Returns:
        One row for each problem, with the fields of `icefloe.Problem`; none if there are no
        problems.

    Example:
        >>> icefloe.spark.verify(spark, repo, deep=True).count()
        0
    """
    context = open_repository(repository).context
    with SparkFileLister(
        spark, context, DEFAULT_LIMITS, label="verify", progress=progress
    ) as lister:
        report = verify_repository(
            context, deep=deep, start_checks=lambda: SparkChunkChecks(lister, deep=deep)
        )
    return record_frame(spark, Problem, report.problems)


def expire_snapshots(
    spark: SparkSession,
    repository: Repository | str,
    older_than: datetime | timedelta | None = None,
    *,
    keep_last: int | None = None,
    dry_run: bool = False,
    job: str | None = None,
) -> DataFrame:
    """Remove old snapshots from the history: `Repository.expire_snapshots`.

    References and snapshots are few, so the driver reads them; `remove_orphan_files` then deletes
    what only they use.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        older_than: Snapshots that were written before this time expire; a timedelta means that long
            before now, by the storage's clock.
        keep_last: How many of the newest snapshots of each history to retain at any age.
        dry_run: Only report what would expire.
        job: Name of the job, for the log of operations.

    Returns:
        The column `snapshot_id`, a row for each snapshot that expired.

    Example:
        >>> from datetime import timedelta
        >>> icefloe.spark.expire_snapshots(spark, repo, timedelta(days=30), keep_last=5).count()
        0
    """
    expired = open_repository(repository).expire_snapshots(
        older_than, keep_last=keep_last, dry_run=dry_run, job=job or "expire_snapshots"
    )
    rows = [(snapshot_id,) for snapshot_id in sorted(expired)]
    return spark.createDataFrame(rows, "snapshot_id string")


def rewrite_manifests(
    spark: SparkSession,
    repository: Repository | str,
    message: str = "rewrite manifests",
    *,
    branch: str = MAIN,
) -> DataFrame:
    """Pack and split all manifests of a branch again: `Repository.rewrite_manifests`.

    The driver reads and writes them, a few at a time.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        message: Message of the commit.
        branch: The branch to rewrite.

    Returns:
        One row: `snapshot_id` of the commit.

    Example:
        >>> icefloe.spark.rewrite_manifests(spark, repo).columns
        ['snapshot_id']
    """
    done = open_repository(repository).rewrite_manifests(message, branch=branch)
    return spark.createDataFrame([(done,)], "snapshot_id string")


def rewrite_data_files(
    spark: SparkSession,
    repository: Repository | str,
    message: str = "compact chunk files",
    *,
    branch: str = MAIN,
    arrays: str | Iterable[str] | None = None,
    pack_bytes: int | None = None,
    small_file_bytes: int | None = None,
    max_chunk_bytes: int | None = None,
    min_live_share: float = 0.5,
    dry_run: bool = False,
    progress: bool | None = None,
    job: str | None = None,
) -> DataFrame:
    """Move chunks of small and sparsely used files into packs: `Repository.compact` on a cluster.

    The driver decides which chunks go where, and commits once; executors copy, a pack in each task.
    The driver holds the references of the chunks that move, about 100 bytes each.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        message: Message of the commit.
        branch: The branch whose chunk files to compact.
        arrays: Consider only files that these arrays use: paths of arrays or groups, or patterns
            such as `/era5/t*`; all by default.
        pack_bytes: Size of the new chunk files; as configured by default.
        small_file_bytes: Files up to this size are joined; a quarter of a pack by default.
        max_chunk_bytes: Files with larger chunks are never small; by default what is packed when
            it is written, or 1 MiB.
        min_live_share: Files of which the branch uses less than this share are rewritten.
        dry_run: Only report what would be done.
        progress: Whether to show a progress bar; by default in terminals and notebooks.
        job: Name of the job, for the log of operations.

    Returns:
        One row: the fields of `icefloe.CompactionSummary`.

    Example:
        >>> icefloe.spark.rewrite_data_files(spark, repo, dry_run=True).first().snapshot_id is None
        True
    """
    context = open_repository(repository).context
    options = CompactionOptions.of(
        context.settings,
        pack_bytes=pack_bytes,
        small_file_bytes=small_file_bytes,
        max_chunk_bytes=max_chunk_bytes,
        min_live_share=min_live_share,
    )
    summary = compact_branch(
        context,
        branch,
        options,
        message=message,
        arrays=arrays,
        dry_run=dry_run,
        writer=SparkPackWriter(spark, context, progress=progress),
    )
    if not dry_run:
        _log(context, "compact", summary, job or "rewrite_data_files", branch=branch)
    return record_frame(spark, CompactionSummary, [summary])


def materialize(
    spark: SparkSession,
    repository: Repository | str,
    branch: str = MAIN,
    *,
    arrays: str | Iterable[str] | None = None,
    region: Mapping[str, slice] | None = None,
    locations: str | Iterable[str] | None = None,
    message: str | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> DataFrame:
    """Copy chosen virtual chunks into the repository: `Repository.materialize` on a cluster.

    Executors read and write chunks, byte for byte; the driver commits once.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        branch: The branch to change.
        arrays: Paths of arrays or groups, or patterns such as `/era5/t*`; all by default.
        region: The elements to copy, by dimension name; chunks that contain any of them are copied
            completely.
        locations: URL prefixes of folders, or URLs of files; chunks in others stay virtual.
        message: Message of the commit.
        dry_run: Count chunks and bytes, and copy nothing.
        progress: Whether to show a progress bar; by default in terminals and notebooks.

    Returns:
        One row: the fields of `icefloe.Materialized`.

    Example:
        >>> icefloe.spark.materialize(spark, repo, dry_run=True).first().chunks
        0
    """
    choice = VirtualChunkChoice(arrays, region, locations)
    options = JobOptions(branch=branch, progress=progress)
    job = Job(spark, repository, "materialize", options)
    counts = Counts()
    batches = list(counts.counted(virtual_batches(job.session.tree, choice)))
    summary = counts.summary()
    if not dry_run and batches:
        text = message or f"Copy {summary.chunks} virtual chunks into the repository"
        job.options = options.merged(message=text)
        job.run(copy_virtual, batches, SessionSpec.of(job.session))
        plan = JobPlan(
            label=job.label,
            arrays=tuple(summary.arrays),
            tasks=len(batches),
            chunks=summary.chunks,
            num_bytes=summary.bytes,
            manifests=len(summary.arrays),
        )
        commit = job.commit(plan).snapshot_id
        summary = summary if commit is None else summary.committed_as(commit)
    return record_frame(spark, Materialized, [summary])


def check_virtual_sources(
    spark: SparkSession,
    repository: Repository | str,
    branch: str | None = None,
    *,
    tag: str | None = None,
    snapshot_id: str | None = None,
    arrays: str | Iterable[str] | None = None,
) -> DataFrame:
    """Find files of virtual chunks that are missing, changed or too short, on executors.

    `Repository.check_virtual_sources` on a cluster: one request for each file, without reading it.
    The rows stay on the cluster.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        branch: The snapshot to check, by branch; `main` if none is named.
        tag: The same, by tag.
        snapshot_id: The same, by id.
        arrays: Paths of arrays or groups, or patterns such as `/era5/t*`; all by default.

    Returns:
        One row for each file, with the fields of `icefloe.VirtualSourceInfo`; `problem` is null
        if there is none.

    Example:
        >>> sources = icefloe.spark.check_virtual_sources(spark, repo)
        >>> sources.where("problem IS NOT NULL").count()
        0
    """
    if branch is None and tag is None and snapshot_id is None:
        branch = MAIN
    session = open_repository(repository).readonly_session(branch, tag=tag, snapshot_id=snapshot_id)
    paths = chosen_arrays(arrays, session.tree.array_paths())
    return source_rows(spark, SessionSpec.of(session), paths)


def migrate(
    spark: SparkSession,
    repository: Repository | str,
    target: AnyStorage,
    *,
    generation: str,
    spec_version: int | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> DataFrame:
    """Copy a repository to another generation of the format: `Repository.migrate` on a cluster.

    Executors copy chunk files; the driver writes metadata, compares every snapshot with its
    original, and publishes at the end. If the driver dies, the same call resumes.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        target: An empty location: a storage, a URL or a path.
        generation: `repository`, `store`, `dataset` or `icechunk`.
        spec_version: Version of that generation; the newest by default.
        dry_run: Count what would be copied, and copy nothing.
        progress: Whether to show a progress bar; by default in terminals and notebooks.

    Returns:
        One row: the fields of `icefloe.MigrationReport`.

    Example:
        >>> import tempfile
        >>> place = tempfile.mkdtemp()
        >>> done = icefloe.spark.migrate(spark, repo, place, generation="repository")
        >>> done.first().problems
        []
    """
    context = open_repository(repository).context
    place = storage_from_url(target)
    report = migrate_repository(
        context,
        place,
        generation=generation,
        spec_version=spec_version,
        dry_run=dry_run,
        copy_files=SparkFileCopier(spark, context.storage, place, progress=progress),
    )
    return record_frame(spark, MigrationReport, [report])


def _log(context: Context, kind: str, summary: msgspec.Struct, job: str, **details: Any) -> None:
    plain: dict[str, Any] = msgspec.to_builtins(summary)
    OperationLog(context.storage).add(kind, details | plain, job)
