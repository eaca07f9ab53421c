"""Which chunks of copies must be written, and where their values come from. Nothing is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.grid import ChunkGrid, Target, whole
from icefloe.model.chunk_index import Box
from icefloe.spark.jobs.ingest_tasks import CopiedVariable
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from icefloe.ingest.plan import IngestPlan, VariablePlan
    from icefloe.spark.engine.job import Job


def copied_variable(
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
    return CopiedVariable(
        variable.name, grid, variable.files, boxes, array.fill_value, array.dtype, old
    )


def targets_of(
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
    found = []
    for row in np.unique(numbers, axis=0).tolist():
        cells = [runs[axis][0][number] for axis, number in enumerate(row)]
        box = Box(tuple(low for low, _ in cells), tuple(high for _, high in cells))
        found.append(Target(grid, grid.region(box, whole(grid.shape))))
    return found


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
