"""Runs pipelines: steps on a staging branch, then validation, publication and maintenance.

Invariants, cited by tests:

P1  A run whose inputs are those of the last one commits nothing.
P2  A driver that dies anywhere leaves the target as it was or published; the next run continues
    with what the staging branch has.
P3  What failed validation is not tried again while definition, inputs and target are the same.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from icefloe.config.containers import VirtualChunkContainer
from icefloe.errors import InvalidInputError, SnapshotNotFoundError
from icefloe.html_tables import Report, readable_size
from icefloe.ingest.log import ingested_files, latest_of
from icefloe.ingest.sources import find_files
from icefloe.model import paths
from icefloe.model.moments import parse_age
from icefloe.model.record import Record
from icefloe.repository import Repository
from icefloe.spark.engine.job import JobOptions, JobReport
from icefloe.spark.jobs.array_changes import EarlierResult
from icefloe.spark.jobs.copy import copy
from icefloe.spark.jobs.copy_updates import update_copied
from icefloe.spark.jobs.groupby import labels_path
from icefloe.spark.jobs.ingest_rounds import staging_branch
from icefloe.spark.jobs.ingesting import ingest
from icefloe.spark.jobs.inputs import find_coordinate
from icefloe.spark.jobs.maintenance import expire_snapshots, remove_orphan_files
from icefloe.spark.jobs.map_blocks import map_blocks
from icefloe.spark.jobs.map_updates import update_mapped
from icefloe.spark.jobs.reduce import reduce
from icefloe.spark.jobs.reduce_updates import update_reduced
from icefloe.spark.publishing.expectations import BlockCheck
from icefloe.spark.publishing.pipeline_file import (
    CopyStep,
    IngestStep,
    LoadedPipeline,
    MapStep,
    ReduceStep,
    inputs_of,
    load_pipeline,
)
from icefloe.spark.publishing.publication import (
    delete_if_at,
    publish,
    read_report,
    remove_unreported,
)
from icefloe.spark.publishing.validation_report import ValidationReport
from icefloe.storage.access.stores import local_filesystem_store
from icefloe.tables.job_summary import SUMMARY, JobSummary, joined_summary

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from icefloe.engine.info import SnapshotInfo
    from icefloe.objects.foreign.source import SourceStatus
    from icefloe.spark.publishing.pipeline_file import AnyStep, Pipeline
    from icefloe.zarr_store.session_port import SessionPort

    Functions = Mapping[str, Callable[..., Any]]
    ComputedStep = CopyStep | MapStep | ReduceStep

logger = logging.getLogger(__name__)

PIPELINE = "icefloe.pipeline"
"""The property of commits with the pipeline that made them, and its inputs."""

_ATTEMPT = re.compile(r"[0-9a-f]{16}")
"""The digest at the end of the name of a quarantine branch."""

_NO_HISTORY = (SnapshotNotFoundError, InvalidInputError)
"""Why two snapshots cannot be compared: one is gone, or they have no ancestor in common."""

Status = Literal["published", "up to date", "failed", "planned"]


class StepReport(Record, frozen=True):
    """What a step did."""

    name: str
    snapshot_id: str | None
    """Its commit on the staging branch; None if there was nothing to do."""
    detail: str = ""


class PipelineReport(Report, frozen=True):
    """The result of a run of a pipeline; `print` it."""

    name: str
    status: Status
    snapshot_id: str | None = None
    """What the target branch points to, if something was published."""
    steps: tuple[StepReport, ...] = ()
    validation: ValidationReport | None = None
    quarantine: str | None = None
    maintenance: dict[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        ending = f" as {self.snapshot_id}" if self.status == "published" else ""
        if self.quarantine is not None:
            ending = f", see the branch {self.quarantine}"
        lines = [f"{self.name}: {self.status}{ending}"]
        lines += [f"  {step.name}: {step.detail}" for step in self.steps]
        lines += [f"  {name}: {detail}" for name, detail in self.maintenance.items()]
        if self.validation is not None:
            lines += [f"  {line}" for line in str(self.validation).splitlines()]
        return "\n".join(lines)

    def to_data(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def run_pipeline(
    spark: SparkSession,
    pipeline: str | os.PathLike[str] | LoadedPipeline,
    *,
    functions: Functions | None = None,
    dry_run: bool = False,
    retry: bool = False,
    progress: bool | None = None,
) -> PipelineReport:
    """Run a pipeline file: ingest or compute on a staging branch, validate, publish, maintain.

    You can run it again at any time: finished work is not repeated. Files are not ingested twice,
    arrays are computed again only if their inputs have changed, and if a driver dies, the next run
    resumes its work. If validation fails, the target branch is unchanged, and a quarantine branch
    has the data and the report; the next run tries again only if the pipeline, its inputs or the
    target have changed.

    Args:
        spark: Any Spark session.
        pipeline: The path of a `pipeline.yaml`, or the result of `load_pipeline`.
        functions: The functions that the pipeline names, of `map_blocks` and `block_check`.
        dry_run: Only report what would be done; nothing is written.
        retry: Whether to retry after a failed validation even if nothing has changed.
        progress: Whether to show progress bars; by default in terminals and notebooks.

    Raises:
        InvalidInputError: The file is not valid, or names a function that is missing from
            `functions`.

    >>> from pathlib import Path
    >>> import xarray
    >>> from icefloe.spark import local_session, run_pipeline
    >>> Path("data").mkdir()
    >>> part = xarray.Dataset({"t": ("time", [10.0, 11.0])}, {"time": [0, 1]})
    >>> _ = part.to_netcdf("data/0.nc", format="NETCDF3_64BIT")
    >>> _ = Path("pipeline.yaml").write_text('''
    ... name: daily
    ... target: {repository: daily, create: true, containers: [data]}
    ... sources: {days: {files: data/*.nc}}
    ... steps: [{do: ingest, source: days, mode: copy}]
    ... expectations: [{expect: in_range, arrays: t, low: -90, high: 60}]
    ... ''')
    >>> run_pipeline(local_session(), "pipeline.yaml").status
    'published'
    >>> run_pipeline(local_session(), "pipeline.yaml").status
    'up to date'
    """
    loaded = pipeline if isinstance(pipeline, LoadedPipeline) else load_pipeline(pipeline)
    started = time.monotonic()
    check_functions(loaded.pipeline, functions or {})
    run = _PipelineRun(spark, loaded, dict(functions or {}), progress=progress)
    report = run.plan() if dry_run else run.run(retry=retry)
    return msgspec.structs.replace(report, seconds=time.monotonic() - started)


def check_functions(pipeline: Pipeline, functions: Functions) -> None:
    """Refuse a pipeline that names a function that nobody gave; raises InvalidInputError."""
    named = {
        f"steps[{number}].function": step.function
        for number, step in enumerate(pipeline.steps)
        if isinstance(step, MapStep)
    } | {
        f"expectations[{number}].function": each.function
        for number, each in enumerate(pipeline.expectations)
        if isinstance(each, BlockCheck)
    }
    for place, function in named.items():
        if function not in functions:
            known = ", ".join(sorted(functions)) or "none"
            raise InvalidInputError(
                f"{place} of the pipeline names the function {function!r}: run it in Python by "
                f"icefloe.spark.run_pipeline(..., functions={{{function!r}: ...}}); there are: "
                f"{known}"
            )


class _PipelineRun:
    """One run of a pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        loaded: LoadedPipeline,
        functions: dict[str, Any],
        *,
        progress: bool | None,
    ) -> None:
        self._spark = spark
        self._loaded = loaded
        self._pipeline: Pipeline = loaded.pipeline
        self._functions = functions
        self._progress = progress
        self._target = self._pipeline.target.branch
        self._staging = f"pipeline-{self._pipeline.name}"
        plain = msgspec.to_builtins([self._pipeline.sources, self._pipeline.steps])
        self._definition = _digest(plain)
        self._sources: dict[tuple[str, str], tuple[Repository, SessionPort]] = {}

    # --- the whole

    def plan(self) -> PipelineReport:
        """What would be done, as far as that is known without doing it."""
        target = self._pipeline.target
        place = self._loaded.path(target.repository)
        if not Repository.exists(place):
            if not target.create:
                self._open()
            steps = [StepReport(step.label, None, "would run") for step in self._pipeline.steps]
            return PipelineReport(self._pipeline.name, "planned", steps=tuple(steps))
        repository = self._open(change=False)
        session = repository.readonly_session(self._target)
        steps = [self._planned(repository, session, step) for step in self._pipeline.steps]
        return PipelineReport(self._pipeline.name, "planned", steps=tuple(steps))

    def _planned(self, repository: Repository, session: SessionPort, step: AnyStep) -> StepReport:
        if isinstance(step, IngestStep):
            files = self._files(session, step)
            known = latest_of(session, paths.canonical(step.group), files)
            new = len(files) - len(known)
            return StepReport(step.label, None, f"{len(files)} files, {new} of them new")
        is_done = self._is_up_to_date(repository, self._target, step)
        return StepReport(step.label, None, "up to date" if is_done else "would run")

    def run(self, *, retry: bool) -> PipelineReport:
        """Run steps, validate, publish and maintain."""
        name = self._pipeline.name
        repository = self._open()
        quarantine = f"quarantine-{name}-{self._attempt(repository)}"
        branches = repository.list_branches()
        if quarantine in branches:
            validation = read_report(repository, quarantine)
            if validation is not None and not retry:  # P3
                return PipelineReport(name, "failed", validation=validation, quarantine=quarantine)
            repository.delete_branch(quarantine)  # without a report: of a driver that died
        if self._staging in branches:
            remove_unreported(
                repository,
                self._staging,
                self._target,
                f"quarantine-{name}-",
                lambda attempt, _: _ATTEMPT.fullmatch(attempt) is not None,
            )
        was_there = self._stage(repository, branches)
        steps = tuple(self._step(repository, step) for step in self._pipeline.steps)
        base = self._base(repository)
        staged = repository.lookup_branch(self._staging)
        if staged == base:  # P1
            # A driver may have died between publishing and maintenance.
            done = self._maintain(repository) if was_there else {}
            delete_if_at(repository, self._staging, staged)
            return PipelineReport(name, "up to date", steps=steps, maintenance=done)
        mark = self._joint_mark(repository)
        self._squash(repository, base, mark)
        outcome = publish(
            self._spark,
            repository,
            self._pipeline.expectations,
            staging=self._staging,
            target=self._target,
            functions=self._functions,
            rebase=self._pipeline.publish.rebase,
            quarantine=quarantine,
            # Of a rebase: steps have not seen what others have committed since then.
            metadata={PIPELINE: {**mark, "since": base}},
            delete_staging=False,
            progress=self._progress,
        )
        self._write_report(outcome.validation)
        maintenance = self._maintain(repository) if outcome.published else {}
        delete_if_at(repository, self._staging, outcome.validation.snapshot_id)
        return PipelineReport(
            name,
            "published" if outcome.published else "failed",
            snapshot_id=outcome.snapshot_id,
            steps=steps,
            validation=outcome.validation,
            quarantine=outcome.quarantine,
            maintenance=maintenance,
        )

    def _write_report(self, report: ValidationReport) -> None:
        if self._pipeline.reports is not None:
            folder = self._loaded.path(self._pipeline.reports)
            report.write(folder, f"{self._pipeline.name}-{report.snapshot_id}")

    # --- the repository

    def _open(self, *, change: bool = True) -> Repository:
        """Open or create the target, with its containers."""
        target = self._pipeline.target
        place = self._loaded.path(target.repository)
        folders = [_folder_url(self._loaded.path(each)) for each in target.containers]
        access: dict[str, Any] = dict.fromkeys([*folders, *target.authorize])
        if not Repository.exists(place):
            if not target.create:
                raise InvalidInputError(
                    f"there is no repository at {place}: create it, or write `create: true` below "
                    "`target`"
                )
            if change:
                Repository.create(place)
        repository = Repository.open(place, authorize_virtual_chunk_access=access or None)
        config = repository.config
        new = [url for url in folders if url not in (config.virtual_chunk_containers or {})]
        for url in new:
            store = local_filesystem_store(url.removeprefix("file://"))
            config.set_virtual_chunk_container(VirtualChunkContainer(url, store))
        if new:
            repository = repository.reopen(config, authorize_virtual_chunk_access=access)
            if change:
                repository.save_config()
        return repository

    def _stage(self, repository: Repository, branches: set[str]) -> bool:
        """Make the staging branch, or continue with it (P2); returns whether it was there."""
        if self._staging in branches:
            if self._is_resumable(repository):
                logger.info("%s: going on with %s", self._pipeline.name, self._staging)
                return True
            repository.delete_branch(self._staging)
        for step in self._pipeline.steps:
            # Rounds of an ingest that nobody continues.
            if isinstance(step, IngestStep):
                rounds = staging_branch(self._staging, paths.canonical(step.group))
                for branch in {rounds, staging_branch(self._staging, step.group)} & branches:
                    repository.delete_branch(branch)
        repository.create_branch(self._staging, repository.lookup_branch(self._target))
        return False

    def _is_resumable(self, repository: Repository) -> bool:
        """Whether the staging branch has nothing that this run would not have put there."""
        for info in self._staged(repository):
            mark = info.metadata.get(PIPELINE)
            if isinstance(mark, dict) and mark.get("definition") != self._definition:
                return False
        staged = repository.readonly_session(self._staging)
        published = repository.readonly_session(self._target)
        taken = set(ingested_files(staged)["url"]) - set(ingested_files(published)["url"])
        if not taken:
            return True
        there: set[str] = set()
        for step in self._pipeline.steps:
            if isinstance(step, IngestStep):
                there |= self._files(staged, step).keys()
        return taken <= there

    def _base(self, repository: Repository) -> str:
        """The newest snapshot that the staging branch and the target share."""
        target = {info.id for info in repository.ancestry(branch=self._target)}
        ancestors = repository.ancestry(branch=self._staging)
        return next(info.id for info in ancestors if info.id in target)

    def _staged(self, repository: Repository) -> Iterator[SnapshotInfo]:
        """Commits of the staging branch that the target does not have, newest first."""
        base = self._base(repository)
        return takewhile(lambda each: each.id != base, repository.ancestry(branch=self._staging))

    def _squash(self, repository: Repository, base: str, mark: dict[str, Any]) -> None:
        """Make the run one commit, with what its commits say of themselves."""
        commits = list(self._staged(repository))
        if not self._pipeline.publish.squash or len(commits) == 1:
            return
        summary = joined_summary(JobSummary.of(each.metadata) for each in commits[::-1])
        metadata: dict[str, Any] = {PIPELINE: mark}
        if summary is not None:
            metadata[SUMMARY] = summary.to_data()
        message = self._pipeline.publish.message or self._pipeline.name
        repository.squash(self._staging, base, message=message, metadata=metadata)

    # --- inputs

    def _files(self, session: SessionPort, step: IngestStep) -> dict[str, SourceStatus | None]:
        source = self._pipeline.sources[step.source]
        names = [source.files] if isinstance(source.files, str) else source.files
        return find_files([self._loaded.path(name) for name in names], session.tree.virtual_sources)

    def _attempt(self, repository: Repository) -> str:
        """A name for all that the outcome of a run depends on."""
        session = repository.readonly_session(self._target)
        inputs: list[Any] = [self._definition, session.snapshot_id]
        inputs.append(msgspec.to_builtins(self._pipeline.expectations))
        resolver = session.tree.virtual_sources
        for step in self._pipeline.steps:
            if isinstance(step, IngestStep):
                for url, listed in self._files(session, step).items():
                    inputs.append([url, msgspec.to_builtins(listed or resolver.status(url))])
            elif isinstance(step, CopyStep):
                inputs.append(self._source(step).snapshot_id)
        return _digest(inputs)

    def _source(self, step: CopyStep) -> SessionPort:
        return self._origin(step)[1]

    def _origin(self, step: CopyStep) -> tuple[Repository, SessionPort]:
        """What a step copies from. A run copies the version that it has found first.

        Otherwise, the mark of a commit could name a newer version than the copy is of.
        """
        key = (step.source, step.version)
        if key not in self._sources:
            repository = Repository.open(self._loaded.path(step.source))
            self._sources[key] = (repository, repository.readonly_session(snapshot_id=step.version))
        return self._sources[key]

    def _is_up_to_date(self, repository: Repository, branch: str, step: AnyStep) -> bool:
        """Whether the result of a step is on a branch, and its inputs are as they were then."""
        last = self._last_result(repository, branch, step)
        if last is None:
            return False
        if isinstance(step, CopyStep):
            return last.inputs == self._source(step).snapshot_id
        now = repository.readonly_session(branch)
        try:
            then = repository.readonly_session(snapshot_id=last.inputs)
            changed = _changed_arrays(repository, last.inputs, now.snapshot_id)
        except _NO_HISTORY:
            return False
        # Then, too: a coordinate or labels that the step read may have been deleted.
        return changed.isdisjoint({*_read_arrays(then, step), *_read_arrays(now, step)})

    def _last_result(
        self, repository: Repository, branch: str, step: AnyStep
    ) -> EarlierResult | None:
        """The newest result of a step; None if there is none, or the step was another one then."""
        for info in repository.ancestry(branch=branch):
            mark = self._mark_of(info)
            entry = mark.get("steps", {}).get(step.label)
            if entry is None:
                continue
            if not isinstance(entry, dict) or entry.get("key") != _digest(
                msgspec.to_builtins(step)
            ):
                return None
            if isinstance(step, CopyStep):
                return EarlierResult(info.id, str(entry.get("source")))
            return EarlierResult(info.id, str(mark.get("since", info.id)))
        return None

    def _mark_of(self, info: SnapshotInfo) -> dict[str, Any]:
        """What a commit says of the steps of this pipeline whose results it has."""
        mark = info.metadata.get(PIPELINE)
        if not isinstance(mark, dict) or mark.get("name") != self._pipeline.name:
            return {}
        return dict(mark) if isinstance(mark.get("steps"), dict) else {}

    def _mark(self, steps: dict[str, Any]) -> dict[str, Any]:
        """The property of a commit that has the results of some steps."""
        return {"name": self._pipeline.name, "definition": self._definition, "steps": steps}

    def _joint_mark(self, repository: Repository) -> dict[str, Any]:
        """The mark of a commit that has all of the staging branch.

        A step is not part of it if a later one has changed its inputs: the next run repeats it.
        """
        return self._mark(
            {
                step.label: self._entry(step)
                for step in self._pipeline.steps
                if not isinstance(step, IngestStep)
                and self._is_up_to_date(repository, self._staging, step)
            }
        )

    def _entry(self, step: AnyStep) -> dict[str, str]:
        """What a commit says of a step whose result it has."""
        entry = {"key": _digest(msgspec.to_builtins(step))}
        if isinstance(step, CopyStep):
            entry["source"] = self._source(step).snapshot_id
        return entry

    # --- steps

    def _step(self, repository: Repository, step: AnyStep) -> StepReport:
        """Run a step on the staging branch, unless its result is there."""
        is_ingest = isinstance(step, IngestStep)  # which finds the new inputs itself
        if not is_ingest and self._is_up_to_date(repository, self._staging, step):
            return StepReport(step.label, None, "up to date")
        steps: dict[str, Any] = {} if is_ingest else {step.label: self._entry(step)}
        common: dict[str, Any] = {
            "branch": self._staging,
            "message": step.label,
            "metadata": {PIPELINE: self._mark(steps)},
            "progress": self._progress,
        }
        if not is_ingest:
            # On top of what another driver does, a result would have other inputs than it says.
            common["rebase"] = False
        match step:
            case IngestStep():
                files = self._pipeline.sources[step.source].files
                names = [files] if isinstance(files, str) else files
                sources = [self._loaded.path(name) for name in names]
                report = ingest(self._spark, repository, sources, **_arguments(step), **common)
                detail = (
                    f"{len(report.new)} new, {len(report.replaced)} replaced, "
                    f"{len(report.unchanged)} unchanged, {len(report.broken)} broken files"
                )
                return StepReport(step.label, report.snapshot_id, detail)
            case CopyStep() | MapStep() | ReduceStep():
                again = self._updated(repository, step, JobOptions(**common))
                if again is not None:
                    detail = f"{again.chunks:,} chunks, where inputs have changed"
                    return StepReport(step.label, again.snapshot_id, detail)
                done = self._computed(repository, step, common)
                return StepReport(step.label, done.snapshot_id, f"{done.chunks:,} chunks")

    def _computed(
        self, repository: Repository, step: ComputedStep, common: dict[str, Any]
    ) -> JobReport:
        """Compute or copy all of a step's result."""
        arguments: dict[str, Any] = {"overwrite": True, **_arguments(step), **common}
        match step:
            case CopyStep():
                return copy(self._spark, repository, self._source(step), **arguments)
            case MapStep():
                function = self._functions[step.function]
                return map_blocks(self._spark, repository, function, **arguments)
            case ReduceStep():
                return reduce(self._spark, repository, **arguments)

    def _updated(
        self, repository: Repository, step: ComputedStep, options: JobOptions
    ) -> JobReport | None:
        """Compute or copy what depends on changed inputs; None if all of it must be."""
        last = self._last_result(repository, self._staging, step)
        if last is None:
            return None
        arguments: dict[str, Any] = {"last": last, "options": options, **_arguments(step)}
        try:
            match step:
                case CopyStep():
                    origin, source = self._origin(step)
                    return update_copied(self._spark, repository, origin, source, **arguments)
                case MapStep():
                    function = self._functions[step.function]
                    return update_mapped(self._spark, repository, function, **arguments)
                case ReduceStep():
                    return update_reduced(self._spark, repository, **arguments)
        except _NO_HISTORY as error:
            logger.info("%s: all of it is computed again: %s", step.label, error)
            return None

    # --- maintenance

    def _maintain(self, repository: Repository) -> dict[str, str]:
        """Do what the pipeline says for afterwards."""
        maintenance = self._pipeline.maintenance
        done: dict[str, str] = {}
        job = f"pipeline {self._pipeline.name}"
        if maintenance.expire_snapshots is not None:
            age = maintenance.expire_snapshots.older_than
            expired = expire_snapshots(
                self._spark,
                repository,
                None if age is None else parse_age(age),
                keep_last=maintenance.expire_snapshots.keep_last,
                job=job,
            )
            done["expire_snapshots"] = f"{expired.count()} snapshots"
        if maintenance.garbage_collect is not None:
            age = maintenance.garbage_collect.older_than
            removed = remove_orphan_files(
                self._spark, repository, parse_age(age), progress=self._progress, job=job
            )
            (row,) = removed.collect()
            size = readable_size(row.bytes_deleted)
            done["garbage_collect"] = f"{size} in {row.chunks_deleted} chunk files and others"
        return done


def _read_arrays(session: SessionPort, step: AnyStep) -> Iterator[str]:
    """The arrays that a step computes from, and their coordinates."""
    for name in inputs_of(step):
        path = paths.canonical(name)
        yield path
        if isinstance(step, ReduceStep) and step.by is not None:
            yield labels_path(session, path, step.by)
        node = session.get_node(path)
        dims = node.array.dimension_names if node is not None and node.is_array else None
        for dim in dims or ():
            coordinate = None if dim is None else find_coordinate(session, path, dim)
            if coordinate is not None:
                yield paths.canonical(coordinate.path)


def _changed_arrays(repository: Repository, before: str, after: str) -> set[str]:
    """The arrays that differ between two snapshots in anything but where their chunks are."""
    diff = repository.diff(from_snapshot_id=before, to_snapshot_id=after)
    moved = {path for move in diff.moved_nodes for path in move}
    created = diff.new_arrays | diff.deleted_arrays
    return created | diff.updated_arrays | moved | diff.chunk_indexes().keys()


_NO_ARGUMENTS = {"name", "source", "function", "function_version", "version"}


def _arguments(step: AnyStep) -> dict[str, Any]:
    """The fields of a step that are arguments of its job."""
    fields = msgspec.structs.asdict(step)
    return {name: value for name, value in fields.items() if name not in _NO_ARGUMENTS}


def _digest(value: Any) -> str:
    packed = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(packed, digest_size=8).hexdigest()


def _folder_url(place: str) -> str:
    return place if "://" in place else f"file://{place.rstrip('/')}/"
