"""Puts planned files into the session of an ingest: their references, or copies of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icefloe.arrays.grid import group_tasks
from icefloe.errors import InvalidInputError
from icefloe.ingest.apply import (
    child,
    clear_references,
    clear_region,
    replaced_box,
    write_documents,
    write_values,
)
from icefloe.ingest.quiet import quietly
from icefloe.model import paths
from icefloe.spark.engine.job import LINK_ABOVE_CHUNKS
from icefloe.spark.engine.runner import parallelism
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs import ingest_tasks
from icefloe.spark.jobs.ingest_targets import copied_variable, targets_of
from icefloe.spark.jobs.ingest_tasks import BLOCK_BYTES, CopyWork, PlacedFile, ReferenceWork
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.statistics import wanted_arrays

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from icefloe.arrays.grid import Target
    from icefloe.ingest.plan import IngestPlan, VariablePlan
    from icefloe.objects.foreign.source import SourceStatus
    from icefloe.spark.engine.job import Job
    from icefloe.spark.jobs.ingest_settings import IngestSettings
    from icefloe.spark.jobs.ingest_tasks import CopiedVariable

    Statuses = Mapping[str, SourceStatus | None]

_FILES_PER_TASK = 64
_TASKS_PER_SLOT = 3


class IngestWriter:
    """Writes what a plan says into the session of a job."""

    def __init__(
        self, job: Job, settings: IngestSettings, plan: IngestPlan, parsed: Mapping[str, bytes]
    ) -> None:
        """Take the job, what it was told, what follows from the headers, and parsed files."""
        self._job = job
        self._settings = settings
        self._plan = plan
        self._parsed = parsed

    def write(self, statuses: Statuses, before: Collection[str], chunks: int) -> None:
        """Write documents and small values, then let tasks do the rest.

        Args:
            statuses: What the files were like when their headers were read, by URL.
            before: Files that were ingested before.
            chunks: About how many chunks there will be.
        """
        session, group = self._job.session, self._settings.group
        write_documents(session, group, self._plan)
        write_values(session, group, self._plan)
        if self._settings.mode == "virtual":
            self._write_references(statuses, before, chunks)
        else:
            self._copy(statuses)

    def _with_statistics(self, by_tasks: Sequence[str]) -> tuple[str, ...]:
        """Arrays of which tasks are to make statistics; those of the others are made here."""
        given, group = self._settings.statistics, self._settings.group
        stored = [child(group, name) for name, regions in self._plan.values.items() if regions]
        written = dict.fromkeys([*by_tasks, *stored])
        if not isinstance(given, bool):
            given = tuple(name for name in given if child(group, name) in written)
        wanted = wanted_arrays(self._job.session, given, written, group)
        self._job.statistics.add_written([path for path in wanted if path not in by_tasks])
        return tuple(path for path in wanted if path in by_tasks)

    def _write_references(self, statuses: Statuses, before: Collection[str], chunks: int) -> None:
        job, settings, plan = self._job, self._settings, self._plan
        virtual = {name: each for name, each in plan.variables.items() if each.is_virtual}
        starts: dict[str, dict[str, tuple[int, ...]]] = {}
        changed = {url for url in statuses if url in before}
        edited = 0
        for name, variable in virtual.items():
            path = child(settings.group, name)
            edited += len(variable.moved)
            if variable.exists and changed:
                edited += clear_references(job.session, path, changed)
            for url in variable.files:
                starts.setdefault(url, {})[name] = plan.start(url, variable.dims)
                box = replaced_box(plan, variable, url) if variable.exists else None
                if box is not None:
                    edited += clear_region(job.session, path, *box)
        files = [
            PlacedFile(url, statuses[url], places, self._parsed.get(url, b""))
            for url, places in starts.items()
        ]
        shared = ReferenceWork(
            SessionSpec.of(job.session),
            settings.parse,
            settings.group,
            virtual,
            settings.check,
            self._with_statistics([child(settings.group, name) for name in virtual]),
        )
        # Tasks that write manifests do not see what was moved or removed here.
        linked = not edited and chunks > LINK_ABOVE_CHUNKS
        items = batches(files, parallelism(job.spark))
        job.run(ingest_tasks.write_file_references, items, shared, linked=linked)

    def _copy(self, statuses: Statuses) -> None:
        job, settings, plan = self._job, self._settings, self._plan
        variables: dict[str, CopiedVariable] = {}
        targets: list[Target] = []
        for name, variable in plan.variables.items():
            if not variable.is_copied:
                continue
            path = child(settings.group, name)
            if not variable.exists:
                self._create(path, variable)
            grid = job.grid(path)
            copied = copied_variable(job, plan, variable, grid)
            variables[path] = copied
            targets += targets_of(grid, copied, plan, variable)
        tasks = group_tasks(targets, self._task_bytes(targets))
        base = job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
        shared = CopyWork(
            SessionSpec.of(job.session),
            SessionSpec.of(base),
            settings.parse,
            settings.decode,
            variables,
            dict(statuses),
            self._with_statistics(list(variables)),
        )
        job.run(ingest_tasks.copy_values, tasks, shared, tasks)

    def _task_bytes(self, targets: Sequence[Target]) -> int:
        """Bytes for each task: at least all chunks beside each other that need the same files.

        Otherwise several tasks would read and decode each file for a part of it.
        """
        plan = self._plan
        given = self._job.task_bytes(sum(target.num_bytes for target in targets))
        if self._job.options.task_bytes is not None:
            return given
        slabs = [given]
        for target in targets:
            grid = target.grid
            dims = plan.variables[paths.name(grid.path)].dims
            slab = grid.item_bytes
            for dim, size, chunk in zip(dims, grid.shape, grid.chunk_shape, strict=True):
                slab *= chunk if dim in plan.axes else size
            slabs.append(min(slab, BLOCK_BYTES))
        return max(slabs)

    def _create(self, path: str, variable: VariablePlan) -> None:
        from zarr.core.dtype import get_data_type_from_json

        settings = self._settings
        document = variable.document
        given = settings.encoding.get(variable.name, {})
        unknown = set(given) - {"chunks", "shards", "compressors", "filters", "serializer"}
        if unknown:
            raise InvalidInputError(
                f"the encoding of {variable.name} has unknown {sorted(unknown)}"
            )
        with quietly():
            data_type: Any = get_data_type_from_json(document["data_type"], zarr_format=3)
            fill_value = data_type.from_json_scalar(document["fill_value"], zarr_format=3)
            new = arrays.NewArray(
                tuple(document["shape"]),
                data_type,
                self._chunks(variable, given, data_type.to_native_dtype().itemsize),
                given.get("shards"),
                variable.dims,
                document.get("attributes") or {},
                fill_value,
                given.get("compressors", "auto"),
                given.get("filters", "auto"),
                given.get("serializer", "auto"),
            )
            arrays.create(self._job.session, path, new)

    def _chunks(
        self, variable: VariablePlan, given: Mapping[str, Any], item_bytes: int
    ) -> tuple[int, ...]:
        shape = variable.document["shape"]
        if "chunks" in given:
            asked = given["chunks"]
            sizes = (
                [asked.get(dim, -1) for dim in variable.dims]
                if isinstance(asked, Mapping)
                else asked
            )
            pairs = zip(sizes, shape, strict=True)
            return tuple(max(1, size) if chunk == -1 else chunk for chunk, size in pairs)
        suitable = arrays.suitable_chunks(shape, max(1, item_bytes))
        wanted = [self._settings.chunks.get(dim) for dim in variable.dims]
        return tuple(
            chosen if asked is None else (max(1, size) if asked == -1 else asked)
            for asked, chosen, size in zip(wanted, suitable, shape, strict=True)
        )


def is_taken(variable: VariablePlan) -> bool:
    """Whether tasks take it from files."""
    return variable.is_virtual or variable.is_copied


def batches(files: Sequence[Any], slots: int) -> list[tuple[Any, ...]]:
    """Files for each task: enough tasks for all slots, and not too many files in one."""
    size = max(1, min(_FILES_PER_TASK, -(-len(files) // (_TASKS_PER_SLOT * slots))))
    return [tuple(files[start : start + size]) for start in range(0, len(files), size)]
