"""Plans and starts copies of the values of files: which chunks, from where, in which arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.grid import ChunkGrid, Target, group_tasks, whole
from icefloe.errors import InvalidInputError
from icefloe.ingest.parsed import fill_value_of, zarr_type
from icefloe.ingest.plan import array_path
from icefloe.ingest.quiet import quietly
from icefloe.model import paths
from icefloe.model.chunk_index import Box
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs import ingest_tasks
from icefloe.spark.jobs.ingest_tasks import BLOCK_BYTES, CopiedVariable, CopyWork
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icefloe.ingest.driver import FileSurvey
    from icefloe.ingest.options import IngestOptions
    from icefloe.ingest.plan import IngestPlan, VariablePlan
    from icefloe.spark.engine.job import Job


def copy_files(
    job: Job,
    plan: IngestPlan,
    survey: FileSurvey,
    options: IngestOptions,
    statistics: Callable[[Sequence[str]], tuple[str, ...]],
) -> None:
    """Create the arrays of copied variables and let tasks fill them.

    Args:
        job: The job whose session is written to.
        plan: How the files go together.
        survey: Their headers.
        options: Chunks, encoding and the like.
        statistics: Given the arrays that tasks write, those that they make statistics of.
    """
    variables: dict[str, CopiedVariable] = {}
    targets: list[Target] = []
    for name, variable in plan.variables.items():
        if not variable.is_copied:
            continue
        path = array_path(options.group, name)
        if not variable.exists:
            _create(job, path, variable, options)
        grid = job.grid(path)
        copied = _copied_variable(job, plan, variable, grid)
        variables[path] = copied
        targets += _targets(grid, copied, plan, variable)
    tasks = group_tasks(targets, _task_bytes(job, plan, targets))
    base = job.base()
    work = CopyWork(
        session=SessionSpec.of(job.session),
        base=SessionSpec.of(base),
        options=options,
        variables=variables,
        statuses=survey.statuses,
        statistics=statistics(list(variables)),
    )
    job.run(ingest_tasks.copy_values, tasks, work, tasks)


def _task_bytes(job: Job, plan: IngestPlan, targets: Sequence[Target]) -> int:
    """Bytes for each task: at least all neighbouring chunks that need the same files.

    Otherwise several tasks would read and decode each file for a part of it.
    """
    suitable = job.task_bytes(sum(target.num_bytes for target in targets))
    if job.options.task_bytes is not None:
        return suitable
    slabs = [suitable]
    for target in targets:
        grid = target.grid
        dims = plan.variables[paths.name(grid.path)].dims
        slab = grid.item_bytes
        for dim, size, chunk in zip(dims, grid.shape, grid.chunk_shape, strict=True):
            slab *= chunk if dim in plan.axes else size
        slabs.append(min(slab, BLOCK_BYTES))
    return max(slabs)


def _create(job: Job, path: str, variable: VariablePlan, options: IngestOptions) -> None:
    document = variable.document
    encoding = options.encoding.get(variable.name, {})
    unknown = set(encoding) - {"chunks", "shards", "compressors", "filters", "serializer"}
    if unknown:
        raise InvalidInputError(f"the encoding of {variable.name} has unknown {sorted(unknown)}")
    with quietly():
        data_type = zarr_type(document)
        item_bytes = data_type.to_native_dtype().itemsize
        new = arrays.NewArray(
            shape=tuple(document["shape"]),
            dtype=data_type,
            chunks=_chunks(variable, encoding, options.chunks, item_bytes),
            shards=encoding.get("shards"),
            dims=variable.dims,
            attributes=document.get("attributes") or {},
            fill_value=fill_value_of(document),
            compressors=encoding.get("compressors", "auto"),
            filters=encoding.get("filters", "auto"),
            serializer=encoding.get("serializer", "auto"),
        )
        arrays.create(job.session, path, new)


def _chunks(
    variable: VariablePlan,
    encoding: Mapping[str, Any],
    lengths: Mapping[str, int],
    item_bytes: int,
) -> tuple[int, ...]:
    """The chunk shape: of the encoding, else of the lengths by dimension, else a suitable one."""
    shape = variable.document["shape"]
    chosen: Sequence[int | None] = [lengths.get(dim) for dim in variable.dims]
    if "chunks" in encoding:
        chosen = encoding["chunks"]
        if isinstance(chosen, Mapping):
            chosen = [chosen.get(dim, -1) for dim in variable.dims]
    suitable = arrays.suitable_chunks(shape, max(1, item_bytes))
    return tuple(
        default if length is None else (max(1, size) if length == -1 else length)
        for length, default, size in zip(chosen, suitable, shape, strict=True)
    )


def _copied_variable(
    job: Job, plan: IngestPlan, variable: VariablePlan, grid: ChunkGrid
) -> CopiedVariable:
    """Where the values of a variable come from."""
    array = arrays.open_array(job.session, grid.path)
    boxes = np.zeros((len(variable.files), len(grid.shape), 2), dtype=np.int64)
    boxes[..., 1] = grid.shape
    for row, url in enumerate(variable.files):
        for axis, dim in enumerate(variable.dims):
            if dim in plan.axes:
                boxes[row, axis] = plan.axes[dim].places[url]
    old = None
    if variable.exists:
        old = tuple(
            plan.axes[dim].old_positions if dim in plan.axes else None for dim in variable.dims
        )
    flipped = {
        url: tuple(axis for axis, dim in enumerate(variable.dims) if dim in plan.flipped[url])
        for url in variable.files
        if url in plan.flipped
    }
    return CopiedVariable(
        name=variable.name,
        grid=grid,
        files=variable.files,
        boxes=boxes,
        overlaps=bool(variable.hidden),
        flipped=flipped,
        fill_value=array.fill_value,
        dtype=array.dtype,
        old_positions=old,
    )


def _targets(
    grid: ChunkGrid, copied: CopiedVariable, plan: IngestPlan, variable: VariablePlan
) -> list[Target]:
    """Whole chunks that must be written, as disjoint boxes."""
    if variable.is_rewritten:
        return [Target(grid, grid.region(Box(_first_torn(grid, plan, variable), grid.box.upper)))]
    if not len(copied.boxes) or not grid.shape:
        return [Target(grid, ())] if len(copied.boxes) else []
    chunk = np.array(grid.chunk_shape, dtype=np.int64)
    lower = copied.boxes[..., 0] // chunk
    upper = -(-copied.boxes[..., 1] // chunk)
    runs = [_runs(lower[:, axis], upper[:, axis]) for axis in range(len(grid.shape))]
    numbers = np.stack([number for _, number in runs], axis=1)
    targets = []
    for row in np.unique(numbers, axis=0).tolist():
        cells = [runs[axis][0][number] for axis, number in enumerate(row)]
        box = Box(tuple(low for low, _ in cells), tuple(high for _, high in cells))
        targets.append(Target(grid, grid.region(box, whole(grid.shape))))
    return targets


def _first_torn(grid: ChunkGrid, plan: IngestPlan, variable: VariablePlan) -> tuple[int, ...]:
    """The first chunk along the one dimension whose old elements move; else all are written."""
    lower = [0] * len(grid.shape)
    changed = []
    for axis, dim in enumerate(variable.dims):
        positions = plan.axes[dim].old_positions if dim in plan.axes else None
        if positions is not None and not np.array_equal(positions, np.arange(len(positions))):
            first = int(np.argmax(positions != np.arange(len(positions))))
            changed.append((axis, first // grid.chunk_shape[axis]))
    new_before = [
        axis
        for axis, dim in enumerate(variable.dims)
        if dim in plan.axes and axis not in [a for a, _ in changed] and _grows(plan, dim)
    ]
    if len(changed) == 1 and not new_before:
        axis, first = changed[0]
        lower[axis] = first
    return tuple(lower)


def _grows(plan: IngestPlan, dim: str) -> bool:
    positions = plan.axes[dim].old_positions
    return positions is not None and len(positions) < len(plan.axes[dim])


def _runs(
    lower: np.ndarray[Any, np.dtype[np.int64]], upper: np.ndarray[Any, np.dtype[np.int64]]
) -> tuple[list[tuple[int, int]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Intervals joined where they overlap, and for each interval the number of its run."""
    order = np.argsort(lower, kind="stable")
    ends = np.maximum.accumulate(upper[order])
    begins = np.append(True, lower[order][1:] >= ends[:-1])
    number = np.empty(len(lower), dtype=np.int64)
    number[order] = np.cumsum(begins) - 1
    starts = lower[order][begins]
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(lower) - 1)
    return list(zip(starts.tolist(), ends[last].tolist(), strict=True)), number
