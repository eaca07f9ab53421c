"""Drives an ingest: read headers, plan, place and write, in one pass over the files.

Where the work runs is up to a runner: threads of this process (`local.py`), or tasks of a Spark
cluster (`icefloe.spark.jobs.ingesting`). Headers come first, because all files together decide
where each of them goes; nothing is written if they do not fit together.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from icefloe.errors import BrokenFilesError
from icefloe.ingest.apply import (
    check_not_referenced,
    clear_references,
    clear_region,
    write_documents,
    write_values,
)
from icefloe.ingest.headers import FileHeader, existing_header, with_values
from icefloe.ingest.log import IngestedFile, latest_of, read_ingested, record_ingested
from icefloe.ingest.parsed import ParsedFile
from icefloe.ingest.plan import Difference, IngestPlan, OrderedPlace, array_path
from icefloe.ingest.planner import plan_files
from icefloe.ingest.read import HeaderResult
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.ingest.options import IngestOptions
    from icefloe.objects.foreign.source import SourceStatus
    from icefloe.zarr_store.session_port import SessionPort

_SHOWN_FILES = 10


class BrokenFile(Record, frozen=True):
    """A file that could not be read, and why."""

    url: str
    reason: str
    action: str
    """`skipped` or `quarantined`."""


class FileSurvey(Record, frozen=True, eq=False):
    """What reading the headers of all files gave."""

    logged: dict[str, IngestedFile]
    """Files of earlier ingests into the group, by URL."""
    headers: list[FileHeader] = []  # noqa: RUF012 (msgspec copies it)
    """Of the files to ingest, by URL."""
    unchanged: list[str] = []  # noqa: RUF012
    broken: list[BrokenFile] = []  # noqa: RUF012
    quarantined: list[IngestedFile] = []  # noqa: RUF012
    """Entries for the log about broken files."""
    parsed: dict[str, ParsedFile | bytes] = {}  # noqa: RUF012
    """Files that need not be parsed again to place their references."""

    @property
    def statuses(self) -> dict[str, SourceStatus | None]:
        """Size, etag and age of the files to ingest when their headers were read."""
        return {header.url: header.status for header in self.headers}


class PlacedFile(NamedTuple):
    """A file, and where each of its virtual variables starts in the planned arrays."""

    url: str
    status: SourceStatus | None
    """Its status when its header was read; it must not have changed since."""
    starts: dict[str, tuple[int, ...]]
    parsed: ParsedFile | bytes | None = None


class FileToRead(NamedTuple):
    """A file whose header is needed."""

    url: str
    logged: IngestedFile | None
    """Its entry in the log, if it has one that shows whether it has changed."""
    listed: SourceStatus | None
    """Its entry in a listing."""


class Runner(Protocol):
    """Runs the steps of an ingest that read or write the data of files."""

    @property
    def session(self) -> SessionPort:
        """The writable session that everything is written to."""

    def read_headers(self, files: Sequence[FileToRead]) -> Iterable[HeaderResult]:
        """Read the header of each file."""

    def read_digests(self, names: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], bytes]:
        """Digests of the values of variables, given with the files that have them, by both."""

    def accept(self, plan: IngestPlan, survey: FileSurvey) -> bool:
        """Whether to carry the plan out; a dry run ends here."""

    def write_references(
        self, plan: IngestPlan, files: Sequence[PlacedFile], *, is_edited: bool
    ) -> None:
        """Write the references of files; `is_edited` if existing ones were moved or deleted."""

    def copy_values(self, plan: IngestPlan, survey: FileSurvey) -> None:
        """Copy the values of files."""

    def commit(self) -> None:
        """Commit what was written, if that is asked for."""


class IngestOutcome(Record, frozen=True, eq=False):
    """What became of the files of one pass."""

    survey: FileSurvey
    plan: IngestPlan | None = None
    """None if there was nothing to do."""
    stored_bytes: int = 0
    """Bytes of coordinates and small variables that were stored."""


def ingest_files(
    runner: Runner, files: Mapping[str, SourceStatus | None], options: IngestOptions
) -> IngestOutcome:
    """Read the headers of files, plan how they go together, write, and commit.

    Files are passed with their entries in a listing; those that are as the log has them are not
    asked again.

    Raises:
        BrokenFilesError: Files cannot be read, and the policy is to fail.
        InconsistentFilesError: The files do not fit together; nothing was written.
    """
    session = runner.session
    survey = _read_headers(runner, files, options)
    if not survey.headers and not survey.quarantined:
        return IngestOutcome(survey)
    plan = _plan(runner, survey, options)
    plan.check()
    if not options.keeps_log:
        check_not_referenced(session, options.group, plan)
    if not runner.accept(plan, survey):
        return IngestOutcome(survey, plan)
    stored_bytes = _write(runner, plan, survey, options) if survey.headers else 0
    if options.keeps_log:
        entries = (ingested_file(header, plan, options) for header in survey.headers)
        record_ingested(session, options.group, chain(entries, survey.quarantined))
    runner.commit()
    return IngestOutcome(survey, plan, stored_bytes)


def _plan(runner: Runner, survey: FileSurvey, options: IngestOptions) -> IngestPlan:
    existing = existing_header(runner.session, options.group)
    placed = {url: entry.ordered for url, entry in survey.logged.items() if entry.ordered}

    def plan(headers: Sequence[FileHeader], existing: FileHeader | None) -> IngestPlan:
        return plan_files(
            headers,
            concat_dims=options.parse.all_concat_dims,
            existing=existing,
            compare_values=options.compat == "equals",
            policies=options.policies,
            placed=placed,
        )

    drafted = plan(survey.headers, existing)
    if existing is not None and drafted.unread and not drafted.errors:
        existing = with_values(existing, runner.session, options.group, drafted.unread)
        drafted = plan(survey.headers, existing)
    if not drafted.uncompared or drafted.errors:
        return drafted
    digests = runner.read_digests(drafted.uncompared)
    return plan([_with_digests(header, digests) for header in survey.headers], existing)


def _with_digests(header: FileHeader, digests: Mapping[tuple[str, str], bytes]) -> FileHeader:
    compared = {
        name: msgspec.structs.replace(variable, digest=digests[header.url, name])
        for name, variable in header.variables.items()
        if (header.url, name) in digests
    }
    if not compared:
        return header
    return msgspec.structs.replace(header, variables={**header.variables, **compared})


def _read_headers(
    runner: Runner, files: Mapping[str, SourceStatus | None], options: IngestOptions
) -> FileSurvey:
    survey = FileSurvey(_logged(runner.session, files, options))
    to_read = []
    for url, listed in files.items():
        logged = _comparable(survey.logged.get(url), options)
        if logged is not None and logged.is_as(listed):
            _add(HeaderResult(url, "unchanged", listed, error=logged.error), survey, options)
        else:
            to_read.append(FileToRead(url, logged, listed))
    for result in runner.read_headers(to_read) if to_read else ():
        _add(result, survey, options)
    survey.broken.sort(key=lambda each: each.url)
    if options.on_broken == "fail" and survey.broken:
        raise _broken_files(survey.broken)
    return survey


def _logged(
    session: SessionPort, files: Mapping[str, Any], options: IngestOptions
) -> dict[str, IngestedFile]:
    """What the log has of the files; of all files, if new ones go behind them in order."""
    if not options.keeps_log:
        return {}
    if options.policies.file_order:
        return {entry.url: entry for entry in read_ingested(session, options.group)}
    return latest_of(session, options.group, files.keys())


def _comparable(logged: IngestedFile | None, options: IngestOptions) -> IngestedFile | None:
    """The entry that shows whether a file must be ingested again, if any does."""
    if logged is None or options.again or logged.mode != options.mode:
        return None
    return logged


def _add(result: HeaderResult, survey: FileSurvey, options: IngestOptions) -> None:
    logged = survey.logged.get(result.url)
    if result.header is not None:
        survey.headers.append(result.header)
        if result.parsed is not None:
            survey.parsed[result.url] = result.parsed
    elif result.state == "unchanged" and logged is not None and logged.state == "ingested":
        survey.unchanged.append(result.url)
    elif result.state == "unchanged":
        survey.broken.append(BrokenFile(result.url, result.error, "quarantined"))
    else:
        quarantines = options.on_broken == "quarantine"
        action = "quarantined" if quarantines else "skipped"
        survey.broken.append(BrokenFile(result.url, result.error, action))
        if quarantines:
            entry = _log_entry(result.url, "quarantined", result.status, options)
            survey.quarantined.append(msgspec.structs.replace(entry, error=result.error))


def _broken_files(broken: Sequence[BrokenFile]) -> BrokenFilesError:
    shown = "\n".join(f"  {each.url}: {each.reason}" for each in broken[:_SHOWN_FILES])
    more = len(broken) - _SHOWN_FILES
    shown += f"\n  and {more} more" if more > 0 else ""
    return BrokenFilesError(
        f"{len(broken)} files cannot be read, and nothing was committed:\n{shown}\n"
        "Say on_broken='skip' or 'quarantine' to go on without them",
        list(broken),
    )


def _write(runner: Runner, plan: IngestPlan, survey: FileSurvey, options: IngestOptions) -> int:
    """Write documents, small values and the data of files; returns the bytes of small values."""
    session, group = runner.session, options.group
    write_documents(session, group, plan)
    stored_bytes = write_values(session, group, plan)
    if options.mode == "copy":
        runner.copy_values(plan, survey)
    else:
        is_edited = _clear_replaced(session, group, plan, survey)
        runner.write_references(plan, _placed_files(plan, survey), is_edited=is_edited)
    return stored_bytes


def _clear_replaced(session: SessionPort, group: str, plan: IngestPlan, survey: FileSurvey) -> bool:
    """Delete the references that files replace; returns whether any was deleted or has moved."""
    changed = {header.url for header in survey.headers if header.url in survey.logged}
    edited = 0
    for name, variable in plan.variables.items():
        if not variable.is_virtual or not variable.exists:
            continue
        path = array_path(group, name)
        edited += len(variable.moved)
        if changed:
            edited += clear_references(session, path, changed)
        for url in variable.files:
            box = plan.replaced_box(variable, url)
            if box is not None:
                edited += clear_region(session, path, *box)
    return edited > 0


def _placed_files(plan: IngestPlan, survey: FileSurvey) -> list[PlacedFile]:
    starts: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, variable in plan.variables.items():
        if variable.is_virtual:
            for url in variable.files:
                starts.setdefault(url, {})[name] = plan.start(url, variable.dims)
    statuses = survey.statuses
    return [
        PlacedFile(url=url, status=statuses[url], starts=places, parsed=survey.parsed.get(url))
        for url, places in starts.items()
    ]


# --- the log, and what reports say


def ingested_file(header: FileHeader, plan: IngestPlan, options: IngestOptions) -> IngestedFile:
    """The entry of a file for the log."""
    region, ordered = {}, {}
    for dim, axis in plan.axes.items():
        place = axis.places.get(header.url)
        if place is not None and axis.keys is not None:
            ordered[dim] = OrderedPlace(*place, axis.keys[header.url])
        elif place is not None:
            region[dim] = (str(axis.values[place[0]]), str(axis.values[place[1] - 1]))
    entry = _log_entry(header.url, "ingested", header.status, options)
    names = tuple(sorted(header.variables))
    return msgspec.structs.replace(
        entry, format=header.format, variables=names, region=region, ordered=ordered
    )


def _log_entry(
    url: str,
    state: Literal["ingested", "quarantined"],
    status: SourceStatus | None,
    options: IngestOptions,
) -> IngestedFile:
    return IngestedFile(
        url=url,
        format="",
        mode=options.mode,
        state=state,
        ingested_at=datetime.now(UTC).isoformat(timespec="seconds"),
        size=None if status is None else status.size,
        etag=None if status is None else status.etag,
        last_modified=None if status is None else status.last_modified,
    )


def remarks(outcome: IngestOutcome, options: IngestOptions) -> list[Difference]:
    """What users should know about the files, and need not do anything about."""
    survey, plan = outcome.survey, outcome.plan
    if plan is None:
        return []
    differences = [each for each in plan.differences if not each.is_error]
    moved = []
    for header in survey.headers:
        logged = survey.logged.get(header.url)
        region = ingested_file(header, plan, options).region
        if logged is not None and logged.region and logged.region != region:
            moved.append((f"was {logged.region}, is {region}", (header.url,)))
    if moved:
        what = "files that were ingested before lie elsewhere now"
        hint = (
            "what they were taken for before has missing values now"
            if options.mode == "virtual"
            else "what was copied from them before is still there"
        )
        differences.append(Difference("", what, tuple(moved), is_error=False, hint=hint))
    return differences
