"""Ingests many files of other formats into one group, on a cluster: by reference or as copies.

The steps are those of `icefloe.ingest.driver`; here is what only a cluster needs. Tasks read the
headers of files, which the driver plans from, then they place references or copy values.
References of small files come along with the headers, so that these are parsed once. The driver
sees documents, coordinates and columns of references.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError, RebaseFailedError
from icefloe.ingest.driver import BrokenFile, ingest_files, remarks
from icefloe.ingest.options import IngestOptions
from icefloe.ingest.plan import Difference, array_path, report
from icefloe.ingest.sources import find_files
from icefloe.model.record import Record
from icefloe.spark.engine.job import (
    LINK_ABOVE_CHUNKS,
    Job,
    JobOptions,
    JobPlan,
    JobReport,
)
from icefloe.spark.engine.runner import parallelism, run_tasks
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs import ingest_tasks
from icefloe.spark.jobs.ingest_copies import copy_files
from icefloe.spark.jobs.ingest_tasks import HeaderWork, ReferenceWork
from icefloe.tables.statistics import wanted_arrays
from icefloe.tables.table_scan import open_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.ingest.driver import FileSurvey, IngestOutcome, PlacedFile
    from icefloe.ingest.expand_dims import FileCoordinate
    from icefloe.ingest.headers import FileHeader, VariableHeader
    from icefloe.ingest.log import IngestedFile
    from icefloe.ingest.parsers.detection import FileFormat
    from icefloe.ingest.plan import IngestPlan, VariablePlan
    from icefloe.ingest.read import HeaderResult
    from icefloe.repository import Repository
    from icefloe.session import Session

logger = logging.getLogger(__name__)

_SHOWN_FILES = 10
_MAX_PARSED_BYTES = 64 * 1024 * 1024
"""What the driver holds of all parsed files, between reading headers and placing references."""
_MAX_RUNS = 10
"""How often an ingest is planned again because of other commits."""
_FILES_PER_TASK = 64
_TASKS_PER_SLOT = 3


class IngestReport(Record, frozen=True, eq=False):
    """What became of the files."""

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
    check: str = "auto",
    decode: bool = False,
    chunks: Mapping[str, int] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    on_broken: Literal["fail", "skip", "quarantine"] = "fail",
    again: bool = False,
    statistics: bool | Sequence[str] = False,
    **options: Any,
) -> IngestReport:
    """Bring files into one group, by reference or as copies, and commit once.

    Files are put together by their coordinates. Running it again takes only files that are new or
    have changed; where a file lies, it replaces what was there. What was ingested is recorded in
    the repository, see `icefloe.virtual.ingested_files`.

    Args:
        spark: Any Spark session.
        repository: A repository whose virtual chunk containers have the files, authorised.
        sources: Paths, URLs, globs, folders or prefixes (with a slash at their end), a list of
            such, or a DataFrame with a column `path`.
        mode: `virtual`: references only. `copy`: values are copied.
        group: Where to put the arrays.
        concat_dims: Dimensions to put files together along; found out if not given.
        file_coordinates: For a dimension that files do not have, such as an ensemble member, how
            their URLs tell where they lie along it.
        loadable_variables: Variables that the driver stores, besides coordinates.
        drop_variables: Variables to leave out.
        rename: Other names for variables and dimensions.
        file_format: Format of the files; found out if not given.
        file_group: Which group of the files to read.
        parser: A parser of VirtualiZarr to use instead of ours. What it says is believed: our
            checks of HDF5 (links to other files, skipped filters, sparse datasets) are not made.
        compat: Whether variables without any of these dimensions must be the same in all files
            (`equals`), or those of the first file are taken (`override`).
        check: How readers of references notice that a file has changed, as for `reference_files`.
        decode: For copies: store values decoded (scale, offset, missing values) instead of as
            they are packed in the files.
        chunks: For copies: length of chunks by dimension; -1 is all of it.
        encoding: For copies, by variable: `chunks`, `shards`, `compressors`, `filters`,
            `serializer` as for `zarr.create_array`.
        on_broken: What to do with a file that cannot be read: `fail`; `skip` it, to try again
            next time; `quarantine` it: record it, and leave it alone until it changes.
        again: Whether to take files that have not changed, too.
        statistics: Whether to keep smallest, largest and missing values of the chunks of the files
            that are taken, for conditions of later reads; True, or names of variables. Copies are
            looked at as they are written. In `virtual` mode all values of the files are read for
            it, which otherwise are not.
        options: What all jobs can be told; see `JobOptions`.
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
        check=check,
        decode=decode,
        chunks=chunks,
        encoding=encoding,
        on_broken=on_broken,
        again=again,
        statistics=statistics,
    )
    return _ingest(
        spark, open_repository(repository), sources, ingest_options, JobOptions(**options)
    )


def _ingest(
    spark: SparkSession,
    repository: Repository,
    sources: Any,
    options: IngestOptions,
    job_options: JobOptions,
) -> IngestReport:
    """Ingest, and plan again if another ingest into the group was first: axes have changed then.

    Files that the other one ingested are unchanged by then.
    """
    urls: list[str] | None = None
    for attempt in range(_MAX_RUNS):
        job = Job(spark, repository, "ingest", job_options)
        if urls is None:
            urls = find_files(sources, job.session.tree.virtual_sources)
            if not urls:
                raise InvalidInputError(f"no files were found for {sources!r}")
        runner = _SparkRunner(job, options)
        try:
            outcome = ingest_files(runner, urls, options)
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
        self._planned = JobPlan("ingest", (), 0, 0, 0, 0)
        self._report: JobReport | None = None

    @property
    def session(self) -> Session:
        return self._job.session

    def read_headers(
        self, files: Sequence[tuple[str, IngestedFile | None]]
    ) -> Iterable[HeaderResult]:
        job, options = self._job, self._options
        base = job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
        each = _MAX_PARSED_BYTES // max(1, len(files)) if options.mode == "virtual" else 0
        tasks = run_tasks(
            job.spark,
            ingest_tasks.read_headers,
            self._batches(files),
            shared=HeaderWork(SessionSpec.of(base), options, each),
            label="ingest: headers",
            progress_bar=job.options.progress,
        )
        share = _Sharing()
        results = [
            result if result.header is None else result._replace(header=share(result.header))
            for _, _, table in tasks.outputs()
            for result in ingest_tasks.results_in(table)
        ]
        return sorted(results, key=lambda result: result.url)

    def accept(self, plan: IngestPlan, survey: FileSurvey) -> bool:
        self._planned = self._describe(plan, survey)
        self._report = self._job.is_settled(self._planned)
        return self._report is None

    def write_references(
        self, plan: IngestPlan, files: Sequence[PlacedFile], *, is_edited: bool
    ) -> None:
        virtual = {name: each for name, each in plan.variables.items() if each.is_virtual}
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
        asked, group = self._options.statistics, self._options.group
        stored = [array_path(group, name) for name, regions in plan.values.items() if regions]
        written = dict.fromkeys([*by_tasks, *stored])
        if not isinstance(asked, bool):
            asked = tuple(name for name in asked if array_path(group, name) in written)
        chosen = wanted_arrays(self.session, asked, written, group)
        self._job.statistics.add_written([path for path in chosen if path not in by_tasks])
        return tuple(path for path in chosen if path in by_tasks)


class _Sharing:
    """Keeps one copy of what many headers share: documents, and coordinates such as latitudes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def __call__(self, header: FileHeader) -> FileHeader:
        variables = {
            name: msgspec.structs.replace(
                each,
                document=self._shared(each.document),
                values=None if each.values is None else self._shared(each.values),
            )
            for name, each in header.variables.items()
        }
        attributes = self._shared(header.attributes)
        return msgspec.structs.replace(header, variables=variables, attributes=attributes)

    def _shared(self, value: Any) -> Any:
        return self._known.setdefault(hashlib.sha256(pickle.dumps(value)).digest(), value)


def _is_from_tasks(variable: VariablePlan) -> bool:
    """Whether tasks read its data from files."""
    return variable.is_virtual or variable.is_copied


def _values_bytes(variable: VariableHeader) -> int:
    return variable.byte_count or int(np.prod(variable.shape, dtype=np.int64))
