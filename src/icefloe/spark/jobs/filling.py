"""Fills arrays by functions of the region, on a cluster, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import (
    ChunkGrid,
    Piece,
    Region,
    Target,
    group_tasks,
    shape_of,
    shifted,
    split,
)
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.chunk_tables import WrittenChunks, to_table
from icefloe.spark.engine.job import Job, JobOptions, JobReport
from icefloe.spark.engine.statistics_outputs import written_output
from icefloe.spark.engine.tasks import Output
from icefloe.spark.engine.worker import SessionSpec
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.summarize import Summaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from icefloe.model.chunk_index import Box
    from icefloe.repository import Repository
    from icefloe.session import ForkSession
    from icefloe.tables.zarr_arrays import NewArray

PENDING_BYTES = 32 * 1024 * 1024
"""What a session keeps of small chunks before it writes them together."""
BLOCK_BYTES = 64 * 1024 * 1024
"""How many bytes of array a task holds at a time, if not told otherwise."""


def write(
    spark: SparkSession,
    repository: Repository | str,
    functions: Mapping[str, Callable[[Region], npt.ArrayLike]],
    *,
    create: Mapping[str, NewArray] | None = None,
    coords: Mapping[str, Any] | None = None,
    region: Any = None,
    append_dim: str | int | None = None,
    append_size: int | None = None,
    overwrite: bool = False,
    block_bytes: int = BLOCK_BYTES,
    statistics: bool | Sequence[str] = False,
    **options: Any,
) -> JobReport:
    """Fill arrays by functions of the region, on the cluster, and commit once.

    Each function gets a tuple of slices, in elements of the array, and returns the values there.
    Regions are made of whole chunks (or shards), so that no two tasks write one chunk.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        functions: A function for each array, by path.
        create: How to make those arrays that do not exist.
        coords: Small arrays that the driver writes in the same commit; see the documentation.
        region: Which part to fill, of existing arrays: slices, or slices by dimension.
        append_dim: Instead: the dimension along which the arrays grow.
        append_size: By how many elements they grow.
        overwrite: Whether arrays of `create` and `coords` may replace existing ones.
        block_bytes: How many bytes of array a function is asked for at a time.
        statistics: Whether to keep smallest, largest and missing values of the chunks that are
            written, for conditions of later reads; True, or paths of arrays.
        options: What all jobs can be told; see `JobOptions`.
    """
    job = Job(spark, repository, "write", JobOptions(**options))
    new = {paths.canonical(path): given for path, given in (create or {}).items()}
    work = {paths.canonical(path): function for path, function in functions.items()}
    if region is not None and append_dim is not None:
        raise InvalidInputError("give a region or append_dim, not both")
    if (append_dim is None) != (append_size is None):
        raise InvalidInputError("append_dim and append_size belong together")
    for path, given in new.items():
        arrays.create(job.session, path, given, overwrite=overwrite)
    if coords:
        arrays.write_coordinates(job.session, "/", coords, overwrite=overwrite)
    targets = [
        _target(job, path, region=region, append_dim=append_dim, append_size=append_size)
        for path in work
    ]
    wanted = job.with_statistics(statistics, targets)
    return fill(job, targets, Filling(work, block_bytes, statistics=wanted))


def _target(
    job: Job, path: str, *, region: Any, append_dim: str | int | None, append_size: int | None
) -> Target:
    if append_dim is not None and append_size is not None:
        filled = arrays.grow(job.session, path, append_dim, append_size)
    else:
        filled = arrays.region_in(job.session, path, region)
    return Target(job.grid(path), filled)


class Filling(Record, frozen=True, eq=False):
    """What to fill arrays with: for each of them a function of the region."""

    functions: dict[str, Callable[[Region], Any]]
    block_bytes: int = BLOCK_BYTES
    step_bytes: int | None = None
    """How many bytes of chunks are encoded at a time and wait to be written; None: as they come."""
    statistics: tuple[str, ...] = ()
    """Arrays of whose chunks statistics are kept."""


class _Shared(Record, frozen=True, eq=False):
    session: SessionSpec
    grids: dict[str, ChunkGrid]
    regions: dict[str, Region]
    filling: Filling


def fill(
    job: Job, targets: list[Target], filling: Filling, task_bytes: int | None = None
) -> JobReport:
    """Plan, run and commit a job that fills parts of arrays which the session has already."""
    total = sum(target.num_bytes for target in targets)
    tasks = group_tasks(targets, job.task_bytes(total) if task_bytes is None else task_bytes)
    plan = job.plan(targets, len(tasks), statistics=filling.statistics)
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    run_filling(job, targets, filling, tasks)
    return job.commit(plan)


def run_filling(
    job: Job, targets: Sequence[Target], filling: Filling, tasks: Sequence[tuple[Piece, ...]]
) -> None:
    """Run tasks that fill parts of arrays, and take over what they wrote."""
    shared = _Shared(
        SessionSpec.of(job.session),
        {target.grid.path: target.grid for target in targets},
        {target.grid.path: target.region for target in targets},
        filling,
    )
    job.run(_fill_pieces, tasks, shared, tasks)


# --- on executors


def _fill_pieces(pieces: tuple[Piece, ...], shared: _Shared) -> Iterator[Output]:
    part = shared.session.open_part()
    summaries = Summaries(part, shared.filling.statistics)
    filled = 0
    for piece in pieces:
        grid, within = shared.grids[piece.array], shared.regions[piece.array]
        function = shared.filling.functions[piece.array]
        dtype = arrays.open_array(part, piece.array).dtype
        cells = max(1, shared.filling.block_bytes // grid.chunk_bytes)
        for box in split(piece.box, cells):
            region = grid.region(box, within)
            with doing(array=piece.array, region=region):
                values = _values(function, region, dtype)
                _put(part, grid, box, region, values, shared.filling.step_bytes, summaries)
                filled += values.nbytes
                del values
    yield from outputs_of(part, filled, summaries)


def _put(
    part: ForkSession,
    grid: ChunkGrid,
    box: Box,
    region: Region,
    values: npt.NDArray[Any],
    step_bytes: int | None,
    summaries: Summaries,
) -> None:
    if step_bytes is None:
        part.write_region(grid.path, region, values)
        summaries.add(grid.path, region, values)
        return
    origin = [-axis.start for axis in region]
    for step in split(box, step_bytes // grid.chunk_bytes):
        place = grid.region(step, region)
        here = values[shifted(place, origin)]
        part.write_region(grid.path, place, here)
        summaries.add(grid.path, place, here)
        if step_bytes < PENDING_BYTES:
            part.tree.settle_pending()


def _values(
    function: Callable[[Region], Any], region: Region, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    values = np.asarray(function(region))
    shape = shape_of(region)
    if values.shape not in (shape, ()):
        raise InvalidInputError(
            f"the function returned values of shape {values.shape}; expected {shape}"
        )
    return np.broadcast_to(values, shape).astype(dtype, copy=False)


def outputs_of(
    part: ForkSession, bytes_read: int = 0, summaries: Summaries | None = None
) -> Iterator[Output]:
    """What a task wrote through its part of the session, and found about it, as outputs."""
    for path, (chunks, deleted) in part.tree.written_chunks().items():
        written = WrittenChunks(chunks, deleted)
        if written.num_chunks:
            yield Output(path, to_table(written), written.num_chunks, bytes_read, written.nbytes)
            bytes_read = 0
            yield from written_output(summaries, path, chunks)
