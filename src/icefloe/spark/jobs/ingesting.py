"""Ingests many files of other formats into one group, on a cluster: by reference or as copies.

The steps are those of `icefloe.ingest.driver`; here is what only a cluster needs. Tasks read the
headers of files, which the driver plans from, then they place references or copy values.
References of small files come along with the headers, so that these are parsed once. The driver
sees documents, coordinates and columns of references.
"""

from __future__ import annotations

import logging
import pickle
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.html_tables import Report
from icefloe.ingest.driver import BrokenFile, ingest_files, remarks
from icefloe.ingest.header_batches import HeaderCollector
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.plan import Difference, array_path, report
from icefloe.ingest.sources import find_files
from icefloe.spark.engine.job import (
    LINK_ABOVE_CHUNKS,
    Job,
    JobOptions,
    JobPlan,
    JobReport,
    job_options,
)
from icefloe.spark.engine.runner import parallelism
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs import ingest_tasks
from icefloe.spark.jobs.ingest_copies import copy_files
from icefloe.spark.jobs.ingest_rounds import run_in_rounds
from icefloe.spark.jobs.ingest_tasks import HeaderWork, ReferenceWork
from icefloe.tables.statistics import wanted_arrays
from icefloe.tables.table_scan import open_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Unpack

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from icefloe.ingest.driver import FileSurvey, FileToRead, IngestOutcome, PlacedFile
    from icefloe.ingest.file_rules import FileCoordinate, FileOrder
    from icefloe.ingest.headers import VariableHeader
    from icefloe.ingest.parsers.detection import FileFormat
    from icefloe.ingest.plan import IngestPlan, VariablePlan
    from icefloe.ingest.policies import DuplicatePolicy, FlippedPolicy
    from icefloe.ingest.read import HeaderResult
    from icefloe.objects.foreign.source import SourceStatus
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.engine.job import JobKeywords
    from icefloe.spark.engine.tasks import Work

logger = logging.getLogger(__name__)

_SHOWN_FILES = 10
_MAX_PARSED_BYTES = 64 * 1024 * 1024
"""What the driver holds of all parsed files, between reading headers and placing references."""
_MAX_RUNS = 10
"""How often an ingest is planned again because of other commits."""
_FILES_PER_TASK = 64
_FIRST_WAVE = 1024
"""How many headers are read before it is known how large they are."""
_WAVE_BYTES = 64 * 1024 * 1024
"""What the tasks of a wave may return together: Spark refuses too much, and the driver holds it."""
_TASKS_PER_SLOT = 3


class IngestReport(Report, frozen=True, eq=False):
    """The result of an ingest."""

    mode: str
    new: tuple[str, ...]
    """Files that were ingested for the first time."""
    replaced: tuple[str, ...]
    """Files that had changed since they were ingested."""
    unchanged: tuple[str, ...]
    broken: tuple[BrokenFile, ...]
    variables: tuple[str, ...]
    """Variables that are referenced or copied."""
    stored_variables: tuple[str, ...]
    """Coordinates and other small variables."""
    remarks: tuple[Difference, ...]
    """What was not the same in all files and did not matter."""
    job: JobReport
    seconds: float

    @property
    def snapshot_id(self) -> str | None:
        """The commit; None if nothing changed."""
        return self.job.snapshot_id

    def __str__(self) -> str:
        counts = (
            f"{self.mode}: {len(self.new)} new, {len(self.replaced)} replaced, "
            f"{len(self.unchanged)} unchanged, {len(self.broken)} broken files"
        )
        what = (
            f"  {self.job.chunks:,} chunks of {', '.join(self.variables) or 'nothing'}; stored: "
            f"{', '.join(self.stored_variables) or 'nothing'}"
        )
        lines = [counts, what]
        lines += [
            f"  {each.action} {each.url}: {each.reason}" for each in self.broken[:_SHOWN_FILES]
        ]
        if len(self.broken) > _SHOWN_FILES:
            lines.append(f"  and {len(self.broken) - _SHOWN_FILES} more broken files")
        if self.remarks:
            lines.append(report(self.remarks))
        done = self.snapshot_id
        lines.append(f"  {f'committed as {done}' if done else 'nothing was committed'}")
        return "\n".join(lines)


@with_keywords_of(JobOptions)
def ingest(
    spark: SparkSession,
    repository: Repository | str,
    sources: Any,
    *,
    mode: Literal["virtual", "copy"] = "virtual",
    group: str = "/",
    concat_dims: Sequence[str] | str | None = None,
    file_coordinates: Mapping[str, FileCoordinate] | None = None,
    loadable_variables: Iterable[str] | None = None,
    drop_variables: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    file_format: FileFormat | None = None,
    file_group: str | None = None,
    parser: Callable[[str, Any], Any] | None = None,
    compat: Literal["equals", "override"] = "equals",
    file_order: Mapping[str, FileOrder] | None = None,
    duplicates: DuplicatePolicy = "fail",
    tolerance: float = 0.0,
    flipped: FlippedPolicy = "fail",
    check: str = "auto",
    decode: bool = False,
    chunks: Mapping[str, int] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    on_broken: Literal["fail", "skip", "quarantine"] = "fail",
    again: bool = False,
    statistics: bool | Sequence[str] = False,
    checkpoint_files: int | None = None,
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> IngestReport:
    """Bring files into one group, by reference or as copies, and commit once.

    Files are combined by their coordinates. Running it again ingests only files that are new or
    have changed; a file replaces existing data at its coordinates. The repository records what was
    ingested, see `icefloe.virtual.ingested_files`.

    Args:
        spark: Any Spark session.
        repository: A repository whose virtual chunk containers have the files, authorised.
        sources: Paths, URLs, globs, folders or prefixes (with a slash at their end), a list of
            such, or a DataFrame with a column `path`.
        mode: `virtual`: references only. `copy`: values are copied.
        group: The group that gets the arrays.
        concat_dims: Dimensions to concatenate files along; detected by default.
        file_coordinates: For a dimension that files do not have, such as an ensemble member, how to
            find each file's coordinate: a regular expression with a group, a function or a mapping
            of their URLs, or a `FileAttribute`.
        loadable_variables: Variables that the driver stores, besides coordinates.
        drop_variables: Variables to leave out.
        rename: Other names for variables and dimensions.
        file_format: Format of the files; detected by default.
        file_group: Which group of the files to read.
        parser: A VirtualiZarr parser to use instead of icefloe's. Its results are trusted, without
            icefloe's checks of HDF5 (links to other files, skipped filters, sparse datasets).
        compat: Whether variables without any of these dimensions must be equal in all files
            (`equals`), or those of the first file are used (`override`).
        file_order: For a dimension without coordinates, or whose coordinates do not determine the
            order of files, how to sort them: `name`, or a rule as in `file_coordinates`. Files of
            later ingests are appended; a file that has changed keeps its position.
        duplicates: What to do if several files of one ingest contain the same part: `fail`; or use
            the `first` of them by name, or the `newest`.
        tolerance: Coordinates and other stored variables that differ by no more are equal.
        flipped: For copies: what to do with files whose coordinates run in the opposite direction
            of those of the repository, or of the first file: `fail`, or `reverse` them.
        check: How readers of references notice that a file has changed, as for `reference_files`.
        decode: For copies: store decoded values (scale, offset, missing values) instead of the
            packed values of the files.
        chunks: For copies: length of chunks by dimension; -1 means the complete dimension.
        encoding: For copies, by variable: `chunks`, `shards`, `compressors`, `filters`,
            `serializer` as for `zarr.create_array`.
        on_broken: What to do with a file that cannot be read: `fail`; `skip` it and try again next
            time; `quarantine` it: record it, and ignore it until it changes.
        again: Whether to ingest unchanged files again.
        statistics: Whether to store the minimum, maximum and number of missing values of each
            ingested chunk, for conditions of later reads; True, or names of variables. For copies
            they are computed while writing. In `virtual` mode they require reading all values of
            the files, which are otherwise not read.
        checkpoint_files: Ingest this many files at a time, and commit each round to a staging
            branch. If the driver dies, the same call resumes after the last round; at the end there
            is one commit on the target branch. For ingests that take hours.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Examples:
        >>> import os, icefloe, icefloe.spark, xarray
        >>> for day in range(2):
        ...     part = xarray.Dataset({"t": ("time", [10.0 + day])}, {"time": [day]})
        ...     _ = part.to_netcdf(f"day{day}.nc", format="NETCDF3_64BIT")
        >>> folder = f"file://{os.getcwd()}/"
        >>> config = icefloe.RepositoryConfig.default()
        >>> store = icefloe.local_filesystem_store(os.getcwd())
        >>> config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(folder, store))
        >>> repo = icefloe.Repository.create(
        ...     "weather", config, authorize_virtual_chunk_access={folder: None}
        ... )
        >>> report = icefloe.spark.ingest(icefloe.spark.local_session(), repo, "day*.nc")
        >>> repo.readonly_session("main").read_region("t").tolist()
        [10.0, 11.0]
    """
    ingest_options = IngestOptions.of(
        mode=mode,
        group=group,
        concat_dims=concat_dims,
        file_coordinates=file_coordinates,
        loadable_variables=loadable_variables,
        drop_variables=drop_variables,
        rename=rename,
        file_format=file_format,
        file_group=file_group,
        parser=parser,
        compat=compat,
        file_order=file_order,
        duplicates=duplicates,
        tolerance=tolerance,
        flipped=flipped,
        check=check,
        decode=decode,
        chunks=chunks,
        encoding=encoding,
        on_broken=on_broken,
        again=again,
        statistics=statistics,
        checkpoint_files=checkpoint_files,
    )
    return _ingest(
        spark,
        open_repository(repository),
        sources,
        ingest_options,
        job_options(options, keywords),
    )


def _ingest(
    spark: SparkSession,
    repository: Repository,
    sources: Any,
    options: IngestOptions,
    settings: JobOptions,
) -> IngestReport:
    """Find the files and ingest them, in rounds if asked for."""
    reader = repository.readonly_session(settings.branch)
    files = find_files(sources, reader.tree.virtual_sources)
    if not files:
        raise InvalidInputError(f"no files were found for {sources!r}")
    if options.checkpoint_files is None or settings.dry_run:
        return _ingest_files(spark, repository, files, options, settings)

    def ingest_round(some: dict[str, SourceStatus | None], staged: JobOptions) -> IngestReport:
        return _ingest_files(spark, repository, some, options, staged)

    reports, commit = run_in_rounds(
        repository, files, options.checkpoint_files, settings, options.group, ingest_round
    )
    return _joined(reports, commit)


def _joined(reports: Sequence[IngestReport], commit: str | None) -> IngestReport:
    """One report of several rounds."""

    def all_of(name: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(each for report in reports for each in getattr(report, name)))

    jobs = [report.job for report in reports]
    last = jobs[-1]
    plan = msgspec.structs.replace(
        last.plan,
        arrays=tuple(dict.fromkeys(path for job in jobs for path in job.plan.arrays)),
        tasks=sum(job.plan.tasks for job in jobs),
        chunks=sum(job.plan.chunks for job in jobs),
        num_bytes=sum(job.plan.num_bytes for job in jobs),
    )
    job = msgspec.structs.replace(
        last,
        plan=plan,
        snapshot_id=commit,
        chunks=sum(job.chunks for job in jobs),
        bytes_read=sum(job.bytes_read for job in jobs),
        bytes_written=sum(job.bytes_written for job in jobs),
        seconds=sum(job.seconds for job in jobs),
        task_seconds=sum(job.task_seconds for job in jobs),
    )
    names = ("new", "replaced", "unchanged", "broken", "variables", "stored_variables", "remarks")
    return IngestReport(
        mode=reports[0].mode,
        job=job,
        seconds=sum(report.seconds for report in reports),
        **{name: all_of(name) for name in names},
    )


def _ingest_files(
    spark: SparkSession,
    repository: Repository,
    files: dict[str, SourceStatus | None],
    options: IngestOptions,
    settings: JobOptions,
) -> IngestReport:
    """Ingest, and plan again if another ingest into the group was first: axes have changed then.

    Files that the other one ingested are unchanged by then.
    """
    for attempt in range(_MAX_RUNS):
        job = Job(spark, repository, "ingest", settings)
        runner = _SparkRunner(job, options)
        try:
            outcome = ingest_files(runner, files, options)
        except RebaseFailedError as error:
            if attempt + 1 == _MAX_RUNS:
                raise
            logger.info("ingest: another commit was first, planning again: %s", error)
        else:
            return runner.finished(outcome)
    raise AssertionError("the last run raises")


class _SparkRunner:
    """Runs the steps of one ingest as tasks of a Spark job."""

    def __init__(self, job: Job, options: IngestOptions) -> None:
        self._job = job
        self._options = options
        self._started = time.monotonic()
        self._planned = JobPlan(
            label="ingest", arrays=(), tasks=0, chunks=0, num_bytes=0, manifests=0
        )
        self._report: JobReport | None = None

    @property
    def session(self) -> Session:
        return self._job.session

    def read_headers(self, files: Sequence[FileToRead]) -> Iterable[HeaderResult]:
        """Read headers in waves, each of which returns a bounded number of bytes."""
        each = _MAX_PARSED_BYTES // max(1, len(files)) if self._options.mode == "virtual" else 0
        work = HeaderWork(self._base(), self._options, each)
        collector = HeaderCollector(self._options.policies.used_attributes)
        at, size = 0, _FIRST_WAVE
        while at < len(files):
            wave = files[at : at + size]
            received = 0
            for row in self._rows(ingest_tasks.read_headers, wave, work, "ingest: headers"):
                received += len(row)
                collector.add(row)
            at += len(wave)
            size = max(_FIRST_WAVE, int(_WAVE_BYTES / max(1, received / len(wave))))
        values: dict[tuple[str, str], npt.NDArray[Any]] = {}
        for batch in collector.pending(_WAVE_BYTES):
            label = "ingest: coordinates"
            for row in self._rows(ingest_tasks.read_values, batch, work, label):
                values |= pickle.loads(row)
        results = collector.fill(lambda url, name: values[url, name])
        return sorted(results, key=lambda result: result.url)

    def _base(self) -> SessionSpec:
        return SessionSpec.of(self._job.base())

    def _rows(
        self, work: Work, items: Sequence[Any], shared: HeaderWork, label: str
    ) -> Iterable[bytes]:
        """What tasks return for some items: a few bytes for each task."""
        results = self._job.run_tasks(work, self._batches(items), shared, label)
        for _, _, table in results.outputs():
            yield from table.column("result").to_pylist()

    def read_digests(self, names: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], bytes]:
        by_url: dict[str, list[str]] = {}
        for name, urls in names.items():
            for url in urls:
                by_url.setdefault(url, []).append(name)
        digests: dict[tuple[str, str], bytes] = {}
        work = HeaderWork(self._base(), self._options)
        label = "ingest: compare shared variables"
        for row in self._rows(ingest_tasks.read_digests, list(by_url.items()), work, label):
            digests |= pickle.loads(row)
        return digests

    def accept(self, plan: IngestPlan, survey: FileSurvey) -> bool:
        self._planned = self._describe(plan, survey)
        self._job.files = len(survey.headers)
        self._report = self._job.is_settled(self._planned)
        return self._report is None

    def write_references(
        self, plan: IngestPlan, files: Sequence[PlacedFile], *, is_edited: bool
    ) -> None:
        # Tasks get what they need of their own files with these.
        virtual = {
            name: msgspec.structs.replace(each, files=())
            for name, each in plan.variables.items()
            if each.is_virtual
        }
        paths = [array_path(self._options.group, name) for name in virtual]
        work = ReferenceWork(
            session=SessionSpec.of(self.session),
            options=self._options,
            variables=virtual,
            statistics=self._with_statistics(plan, paths),
        )
        # Tasks that write manifests do not see what was moved or removed here.
        linked = not is_edited and self._planned.chunks > LINK_ABOVE_CHUNKS
        batches = self._batches(files)
        self._job.run(ingest_tasks.write_file_references, batches, work, linked=linked)

    def copy_values(self, plan: IngestPlan, survey: FileSurvey) -> None:
        def statistics(paths: Sequence[str]) -> tuple[str, ...]:
            return self._with_statistics(plan, paths)

        copy_files(self._job, plan, survey, self._options, statistics)

    def commit(self) -> None:
        self._report = self._job.commit(self._planned)

    def finished(self, outcome: IngestOutcome) -> IngestReport:
        """The report of the whole ingest."""
        survey, plan = outcome.survey, outcome.plan
        urls = [header.url for header in survey.headers]
        before = {url for url, entry in survey.logged.items() if entry.state == "ingested"}
        variables = [] if plan is None else [v for v in plan.variables.values() if v.files]
        if self._job.options.dry_run:
            for each in survey.broken:
                sys.stdout.write(f"  broken     {each.url}: {each.reason}\n")
        return IngestReport(
            mode=self._options.mode,
            new=tuple(url for url in urls if url not in before),
            replaced=tuple(url for url in urls if url in before),
            unchanged=tuple(sorted(survey.unchanged)),
            broken=tuple(survey.broken),
            variables=tuple(sorted(v.name for v in variables if _is_from_tasks(v))),
            stored_variables=tuple(sorted(v.name for v in variables if not _is_from_tasks(v))),
            remarks=tuple(remarks(outcome, self._options)),
            job=self._report or JobReport(self._planned),
            seconds=time.monotonic() - self._started,
        )

    def _batches(self, files: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Files for each task: enough tasks for all slots, and not too many files in one."""
        tasks = _TASKS_PER_SLOT * parallelism(self._job.spark)
        size = max(1, min(_FILES_PER_TASK, -(-len(files) // tasks)))
        return [tuple(files[start : start + size]) for start in range(0, len(files), size)]

    def _describe(self, plan: IngestPlan, survey: FileSurvey) -> JobPlan:
        """The plan in the form of all jobs."""
        variables = [v for v in plan.variables.values() if _is_from_tasks(v) and v.files]
        by_url = {header.url: header for header in survey.headers}
        parts = [by_url[url].variables[v.name] for v in variables for url in v.files]
        counts = (
            f"files      {len(survey.headers)} to ingest, {len(survey.unchanged)} unchanged, "
            f"{len(survey.broken)} broken"
        )
        axes = [f"axis       {dim}: {len(axis)} positions" for dim, axis in plan.axes.items()]
        return JobPlan(
            label=f"ingest ({self._options.mode})",
            arrays=tuple(array_path(self._options.group, v.name) for v in variables),
            tasks=len(self._batches(survey.headers)),
            chunks=sum(each.chunk_count for each in parts),
            num_bytes=sum(_values_bytes(each) for each in parts),
            manifests=len(variables),
            notes=(counts, *axes, *self._about_statistics(plan)),
        )

    def _about_statistics(self, plan: IngestPlan) -> list[str]:
        """What the plan says of statistics; raises InvalidInputError for unknown variables."""
        asked = self._options.statistics
        if not asked:
            return []
        names = asked if isinstance(asked, tuple) else ()
        for name in names:
            if name not in plan.variables:
                raise InvalidInputError(
                    f"no statistics of {name!r}: the files have no such variable, found "
                    f"{', '.join(sorted(plan.variables))}"
                )
        reads = ", for which all values are read" if self._options.mode == "virtual" else ""
        return [f"statistics {', '.join(names) or 'all arrays of several chunks'}{reads}"]

    def _with_statistics(self, plan: IngestPlan, by_tasks: Sequence[str]) -> tuple[str, ...]:
        """Arrays that tasks make statistics of; those of stored variables are made here."""
        names, group = self._options.statistics, self._options.group
        stored = [array_path(group, name) for name, regions in plan.values.items() if regions]
        written = dict.fromkeys([*by_tasks, *stored])
        if not isinstance(names, bool):
            names = tuple(name for name in names if array_path(group, name) in written)
        chosen = wanted_arrays(self.session, names, written, group)
        self._job.statistics.add_written([path for path in chosen if path not in by_tasks])
        return tuple(path for path in chosen if path in by_tasks)


def _is_from_tasks(variable: VariablePlan) -> bool:
    """Whether tasks read its data from files."""
    return variable.is_virtual or variable.is_copied


def _values_bytes(variable: VariableHeader) -> int:
    return variable.byte_count or int(np.prod(variable.shape, dtype=np.int64))
