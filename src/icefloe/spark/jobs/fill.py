"""Fills arrays with the values of functions, on a cluster, in one commit."""

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
    whole,
)
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.chunk_tables import WrittenChunks, to_table
from icefloe.spark.engine.job import Job, JobOptions, JobReport, job_options
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.statistics_outputs import written_output
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.spark.engine.worker import SessionSpec
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.summarize import Summaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from icefloe.model.chunk_index import Box
    from icefloe.repository import Repository
    from icefloe.spark.engine.job import JobKeywords
    from icefloe.tables.zarr_arrays import NewArray
    from icefloe.zarr_store.session_port import SessionPort

PENDING_BYTES = 32 * 1024 * 1024
"""Small chunks that a session buffers before it writes them together."""
BLOCK_BYTES = 64 * 1024 * 1024
"""Default size of the blocks of an array that a task holds at a time."""


@with_keywords_of(JobOptions)
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
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> JobReport:
    """Fill arrays with the values of functions, on the cluster, in one commit.

    Each function gets a tuple of slices, in elements of the array, and returns the values there.
    Regions consist of whole chunks (or shards), so that no two tasks write the same chunk.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        functions: A function for each array, by path.
        create: How to create those arrays that do not exist.
        coords: Small arrays that the driver writes in the same commit; see the documentation.
        region: The part of existing arrays to fill: slices in order, or by dimension.
        append_dim: The dimension along which to append, instead of a region.
        append_size: The number of elements to append.
        overwrite: Whether arrays of `create` and `coords` may replace existing ones.
        block_bytes: The size of the blocks that functions are called for.
        statistics: Whether to store the minimum, maximum and number of missing values of each
            written chunk, which conditions (`where`) of later reads use: True, or paths of arrays.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Returns:
        The report of the job, with its commit.

    Raises:
        TaskFailedError: A function failed; nothing was committed.

    >>> import icefloe
    >>> import numpy as np
    >>> from icefloe.spark import NewArray, local_session, write
    >>> spark = local_session()
    >>> repo = icefloe.Repository.create("squares")
    >>> new = NewArray(shape=(100,), dtype="i8", chunks=(25,), dims=("x",))
    >>> report = write(
    ...     spark, repo, {"x2": lambda region: np.r_[region[0]] ** 2}, create={"x2": new}
    ... )
    >>> report.chunks
    4
    >>> repo.readonly_session("main").read_region("x2", slice(7, 10))
    array([49, 64, 81])
    """
    job = Job(spark, repository, "write", job_options(options, keywords))
    if region is not None and append_dim is not None:
        raise InvalidInputError("give a region or append_dim, not both")
    if (append_dim is None) != (append_size is None):
        raise InvalidInputError("append_dim and append_size belong together")
    for path, new in (create or {}).items():
        arrays.create(job.session, path, new, overwrite=overwrite)
    if coords:
        arrays.write_coordinates(job.session, "/", coords, overwrite=overwrite)
    work = {paths.canonical(path): function for path, function in functions.items()}
    targets = [
        _target(job, path, region=region, append_dim=append_dim, append_size=append_size)
        for path in work
    ]
    summarized = job.with_statistics(statistics, targets)
    return fill(job, targets, Filling(work, block_bytes, statistics=summarized))


def _target(
    job: Job, path: str, *, region: Any, append_dim: str | int | None, append_size: int | None
) -> Target:
    if append_dim is not None and append_size is not None:
        filled = arrays.grow(job.session, path, append_dim, append_size)
    else:
        filled = arrays.region_in(job.session, path, region)
    return Target(job.grid(path), filled)


class Filling(Record, frozen=True, eq=False):
    """The values that arrays are filled with: a function of the region for each array."""

    functions: dict[str, Callable[[Region], Any]]
    block_bytes: int = BLOCK_BYTES
    step_bytes: int | None = None
    """Bytes of chunks that are encoded at a time; None: a whole block."""
    statistics: tuple[str, ...] = ()
    """Arrays that get chunk statistics."""


class _FillWork(Record, frozen=True, eq=False):
    """What all tasks of a job that fills arrays share."""

    session: SessionSpec
    grids: dict[str, ChunkGrid]
    regions: dict[str, Region]
    filling: Filling


def fill(
    job: Job, targets: list[Target], filling: Filling, task_bytes: int | None = None
) -> JobReport:
    """Plan, run and commit a job that fills parts of arrays that the session already has."""
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
    """Run tasks that fill parts of arrays, and add their references to the session."""
    shared = _FillWork(
        session=SessionSpec.of(job.session),
        grids={target.grid.path: target.grid for target in targets},
        regions=_limits(targets),
        filling=filling,
    )
    job.run(_fill_pieces, tasks, shared, tasks)


def _limits(targets: Sequence[Target]) -> dict[str, Region]:
    """What tasks may fill of each array; several targets of an array consist of whole chunks."""
    limits: dict[str, Region] = {}
    for target in targets:
        path = target.grid.path
        limits[path] = whole(target.grid.shape) if path in limits else target.region
    return limits


# --- on executors


def _fill_pieces(pieces: tuple[Piece, ...], shared: _FillWork) -> Iterator[TaskOutput]:
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
                _put(
                    part,
                    values,
                    grid=grid,
                    box=box,
                    region=region,
                    step_bytes=shared.filling.step_bytes,
                    summaries=summaries,
                )
                filled += values.nbytes
                del values  # two blocks at a time would be twice the memory
    yield from outputs_of(part, filled, summaries)


def _put(
    part: SessionPort,
    values: npt.NDArray[Any],
    *,
    grid: ChunkGrid,
    box: Box,
    region: Region,
    step_bytes: int | None,
    summaries: Summaries,
) -> None:
    """Write a block: at once, or in steps whose encoded chunks do not wait in memory."""
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
    part: SessionPort, bytes_read: int = 0, summaries: Summaries | None = None
) -> Iterator[TaskOutput]:
    """Yield the references and statistics of the chunks that a task wrote."""
    for path, (chunks, deleted) in part.tree.written_chunks().items():
        written = WrittenChunks(chunks, deleted)
        if written.num_chunks:
            yield TaskOutput(
                name=path,
                table=to_table(written),
                chunks=written.num_chunks,
                bytes_read=bytes_read,
                bytes_written=written.nbytes,
            )
            bytes_read = 0
            yield from written_output(summaries, path, chunks)
