"""Brings many files of other formats into one group, on a cluster: by reference or as copies.

Tasks read the headers of files first, which one process plans from, then they place references or
copy values. References of small files come along with the headers, so that these are parsed once.
The driver sees documents, coordinates and columns of references.
"""

from __future__ import annotations

import logging
import pickle
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from icefloe.errors import BrokenFilesError, InvalidInputError, RebaseFailedError
from icefloe.ingest.apply import (
    child,
)
from icefloe.ingest.differences import Difference
from icefloe.ingest.existing import existing_header
from icefloe.ingest.headers import FileHeader
from icefloe.ingest.ingested import IngestedFile, latest, read_ingested, record_ingested
from icefloe.ingest.planning import plan_files
from icefloe.ingest.referencing import ParseOptions
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.job import Job, JobOptions, JobPlan, JobReport, opened
from icefloe.spark.engine.runner import parallelism, run_tasks
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs import ingest_tasks
from icefloe.spark.jobs.ingest_interning import Interner
from icefloe.spark.jobs.ingest_report import BrokenFile, IngestReport
from icefloe.spark.jobs.ingest_settings import IngestSettings
from icefloe.spark.jobs.ingest_sources import find_files
from icefloe.spark.jobs.ingest_tasks import (
    HeaderWork,
)
from icefloe.spark.jobs.ingest_writing import IngestWriter, batches, is_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.ingest.headers import VariableHeader
    from icefloe.ingest.new_dimensions import FileCoordinate
    from icefloe.ingest.parsers.detection import FileFormat
    from icefloe.ingest.plan import IngestPlan
    from icefloe.objects.foreign.source import SourceStatus
    from icefloe.repository import Repository

logger = logging.getLogger(__name__)

_SHOWN = 10
_KEPT_BYTES = 64 * 1024 * 1024
"""What the driver holds of the references of all files, between reading and placing them."""
_MAX_RUNS = 10
"""How often an ingest is planned anew because of others."""


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
    dims = (concat_dims,) if isinstance(concat_dims, str) else concat_dims
    parse = ParseOptions(
        file_format,
        file_group,
        parser,
        None if loadable_variables is None else tuple(loadable_variables),
        tuple(drop_variables),
        dict(rename or {}),
        None if dims is None else tuple(dims),
        dict(file_coordinates or {}),
        mode == "copy",
    )
    settings = IngestSettings(
        mode,
        paths.canonical(group),
        parse,
        compat,
        check,
        decode and mode == "copy",
        dict(chunks or {}),
        {name: dict(each) for name, each in (encoding or {}).items()},
        on_broken,
        again,
        statistics if isinstance(statistics, bool) else tuple(statistics),
    )
    settings.validate()
    return _until_it_lands(spark, opened(repository), sources, settings, JobOptions(**options))


def _until_it_lands(
    spark: SparkSession,
    repository: Repository,
    sources: Any,
    settings: IngestSettings,
    options: JobOptions,
) -> IngestReport:
    """Ingest, and plan anew if another ingest into the group came first: axes have changed then.

    Files that the other one took are unchanged by then.
    """
    urls: list[str] | None = None
    for attempt in range(_MAX_RUNS):
        job = Job(spark, repository, "ingest", options)
        if urls is None:
            urls = find_files(sources, job.session.tree.virtual_sources)
            if not urls:
                raise InvalidInputError(f"no files were found for {sources!r}")
        try:
            return _Ingest(job, settings).run(urls)
        except RebaseFailedError as error:
            if attempt + 1 == _MAX_RUNS:
                raise
            logger.info("ingest: another commit came first, planning anew: %s", error)
    raise AssertionError("the last run raises")


class _Found(Record, frozen=True, eq=False):
    """What was found about all files."""

    headers: list[FileHeader]
    unchanged: list[str]
    broken: list[BrokenFile]
    quarantined: list[IngestedFile]
    """Rows to record about broken files."""
    parsed: dict[str, bytes]
    """Of small files what places their references, by URL."""


class _Ingest:
    """One run."""

    def __init__(self, job: Job, settings: IngestSettings) -> None:
        self._job = job
        self._settings = settings
        self._started = time.monotonic()
        self._known: dict[str, IngestedFile] = {}

    def run(self, urls: list[str]) -> IngestReport:
        """Read, plan, write, commit."""
        job, settings = self._job, self._settings
        self._known = latest(read_ingested(job.session, settings.group))
        found = self._read_headers(urls)
        self._apply_policy(found)
        if not found.headers and not found.quarantined:
            empty = JobPlan("ingest", (), 0, 0, 0, 0)
            return self._report(found, None, JobReport(empty))
        plan = self._plan(found.headers)
        planned = self._described(plan, found)
        settled = job.is_settled(planned)
        if settled is None:
            settled = self._write(plan, planned, found)
        return self._report(found, plan, settled)

    # --- headers

    def _read_headers(self, urls: list[str]) -> _Found:
        settings, job = self._settings, self._job
        items = batches([(url, self._known_of(url)) for url in urls], self._slots())
        base = job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
        kept = _KEPT_BYTES // max(1, len(urls)) if settings.mode == "virtual" else 0
        shared = HeaderWork(SessionSpec.of(base), settings.parse, settings.decode, kept)
        results = run_tasks(
            job.spark,
            ingest_tasks.read_headers,
            items,
            shared=shared,
            label="ingest: headers",
            progress_bar=job.options.progress,
        )
        found = _Found([], [], [], [], {})
        intern = Interner()
        for _, _, table in results.outputs():
            for row in table.to_pylist():
                self._sort_in(row, found, intern)
        found.headers.sort(key=lambda header: header.url)
        return found

    def _known_of(self, url: str) -> IngestedFile | None:
        known = self._known.get(url)
        if known is None or self._settings.again or known.mode != self._settings.mode:
            return None
        return known

    def _sort_in(self, row: dict[str, Any], found: _Found, intern: Interner) -> None:
        url, state = row["url"], row["state"]
        known = self._known.get(url)
        if state == ingest_tasks.OK:
            found.headers.append(intern.header(pickle.loads(row["header"])))
            if row["parsed"]:
                found.parsed[url] = row["parsed"]
        elif state == ingest_tasks.SAME and known is not None and known.state == "ingested":
            found.unchanged.append(url)
        elif state == ingest_tasks.SAME:
            found.broken.append(BrokenFile(url, row["error"], "quarantined"))
        else:
            quarantines = self._settings.on_broken == "quarantine"
            action = "quarantined" if quarantines else "skipped"
            found.broken.append(BrokenFile(url, row["error"], action))
            if quarantines:
                status = ingest_tasks.unpacked_status(row["status"])
                found.quarantined.append(self._row(url, "", "quarantined", status, row["error"]))

    def _apply_policy(self, found: _Found) -> None:
        found.broken.sort(key=lambda each: each.url)
        if self._settings.on_broken == "fail" and found.broken:
            shown = "\n".join(f"  {each.url}: {each.reason}" for each in found.broken[:_SHOWN])
            more = len(found.broken) - _SHOWN
            shown += f"\n  and {more} more" if more > 0 else ""
            raise BrokenFilesError(
                f"{len(found.broken)} files cannot be read, and nothing was committed:\n{shown}\n"
                "Say on_broken='skip' or 'quarantine' to go on without them",
                found.broken,
            )

    # --- planning

    def _plan(self, headers: list[FileHeader]) -> IngestPlan:
        settings = self._settings
        existing = existing_header(self._job.session, settings.group)
        dims = settings.parse.concat_dims
        wanted = (
            None if dims is None else list(dict.fromkeys([*dims, *settings.parse.file_coordinates]))
        )
        plan = plan_files(
            headers,
            concat_dims=wanted,
            existing=existing,
            compare_values=settings.compat == "equals",
            copies=settings.mode == "copy",
        )
        plan.check()
        return plan

    def _described(self, plan: IngestPlan, found: _Found) -> JobPlan:
        """The plan as all jobs describe theirs."""
        taken = [each for each in plan.variables.values() if is_taken(each) and each.files]
        by_url = {header.url: header for header in found.headers}
        parts = [
            by_url[url].variables[variable.name] for variable in taken for url in variable.files
        ]
        counts = (
            f"files      {len(found.headers)} to ingest, {len(found.unchanged)} unchanged, "
            f"{len(found.broken)} broken"
        )
        axes = [f"axis       {dim}: {len(axis)} positions" for dim, axis in plan.axes.items()]
        return JobPlan(
            f"ingest ({self._settings.mode})",
            tuple(child(self._settings.group, variable.name) for variable in taken),
            len(batches(found.headers, self._slots())),
            sum(each.chunk_count for each in parts),
            sum(_values_bytes(each) for each in parts),
            len(taken),
            (counts, *axes, *self._about_statistics(plan)),
        )

    def _about_statistics(self, plan: IngestPlan) -> list[str]:
        """What the plan says of statistics; raises InvalidInputError for names that are none."""
        given = self._settings.statistics
        if not given:
            return []
        named = given if isinstance(given, tuple) else ()
        for name in named:
            if name not in plan.variables:
                raise InvalidInputError(
                    f"no statistics of {name!r}: the files have no such variable, found "
                    f"{', '.join(sorted(plan.variables))}"
                )
        reads = ", for which all values are read" if self._settings.mode == "virtual" else ""
        return [f"statistics {', '.join(named) or 'all arrays of several chunks'}{reads}"]

    def _slots(self) -> int:
        return parallelism(self._job.spark)

    # --- writing

    def _write(self, plan: IngestPlan, planned: JobPlan, found: _Found) -> JobReport:
        job, settings = self._job, self._settings
        if found.headers:
            statuses = {header.url: header.status for header in found.headers}
            writer = IngestWriter(job, settings, plan, found.parsed)
            writer.write(statuses, self._known, planned.chunks)
        rows = [self._ingested(header, plan) for header in found.headers]
        record_ingested(job.session, settings.group, rows + found.quarantined)
        return job.commit(planned)

    # --- recording and reporting

    def _ingested(self, header: FileHeader, plan: IngestPlan) -> IngestedFile:
        region = {}
        for dim, axis in plan.axes.items():
            place = axis.places.get(header.url)
            if place is not None:
                region[dim] = (str(axis.values[place[0]]), str(axis.values[place[1] - 1]))
        row = self._row(header.url, header.format, "ingested", header.status, "")
        names = tuple(sorted(header.variables))
        return msgspec.structs.replace(row, variables=names, region=region)

    def _remarks(self, found: _Found, plan: IngestPlan) -> tuple[Difference, ...]:
        """What users should know, and need not do anything about."""
        remarks = [each for each in plan.differences if not each.is_error]
        moved = []
        for header in found.headers:
            known = self._known.get(header.url)
            new = self._ingested(header, plan).region
            if known is not None and known.region and known.region != new:
                moved.append((f"was {known.region}, is {new}", (header.url,)))
        if moved:
            what = "files that were ingested before lie elsewhere now"
            hint = (
                "what they were taken for before has missing values now"
                if self._settings.mode == "virtual"
                else "what was copied from them before is still there"
            )
            remarks.append(Difference("", what, tuple(moved), is_error=False, hint=hint))
        return tuple(remarks)

    def _row(
        self,
        url: str,
        file_format: str,
        state: Literal["ingested", "quarantined"],
        status: SourceStatus | None,
        error: str,
    ) -> IngestedFile:
        return IngestedFile(
            url,
            file_format,
            self._settings.mode,
            state,
            datetime.now(UTC).isoformat(timespec="seconds"),
            None if status is None else status.size,
            None if status is None else status.etag,
            None if status is None else status.last_modified,
            error=error,
        )

    def _report(self, found: _Found, plan: IngestPlan | None, job: JobReport) -> IngestReport:
        urls = [header.url for header in found.headers]
        before = {url for url, row in self._known.items() if row.state == "ingested"}
        variables = [] if plan is None else [v for v in plan.variables.values() if v.files]
        result = IngestReport(
            self._settings.mode,
            tuple(url for url in urls if url not in before),
            tuple(url for url in urls if url in before),
            tuple(sorted(found.unchanged)),
            tuple(found.broken),
            tuple(sorted(v.name for v in variables if is_taken(v))),
            tuple(sorted(v.name for v in variables if not is_taken(v))),
            () if plan is None else self._remarks(found, plan),
            job,
            time.monotonic() - self._started,
        )
        if self._job.options.dry_run:
            for each in result.broken:
                sys.stdout.write(f"  broken     {each.url}: {each.reason}\n")
        return result


def _values_bytes(variable: VariableHeader) -> int:
    return variable.byte_count or int(np.prod(variable.shape, dtype=np.int64))
