"""Rechunks arrays on a cluster within a memory budget per task, in one transaction."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from icefloe.arrays.grid import ChunkGrid, Piece, Region, Target, blocks, whole
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.job import Job, JobOptions, JobReport, grid_of
from icefloe.spark.engine.runner import parallelism
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.coordinates import copy_coordinates
from icefloe.spark.jobs.filling import Filling, run_filling
from icefloe.spark.jobs.inputs import InputArray
from icefloe.spark.jobs.rechunk_plan import RechunkPlan, Stage, plan_rechunk, resolve_chunks
from icefloe.spark.jobs.sources import RepositoryArray
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import zarr
    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.tables.statistics import Wanted
    from icefloe.tables.zarr_arrays import NewArray

logger = logging.getLogger(__name__)

MEMORY_BYTES = 512 * 1024 * 1024
STEP_SHARE = 8
"""Part of the memory for chunks that are decoded or encoded at a time."""
_ALL_AT_ONCE = 2**62


class _Rechunking(Record, frozen=True):
    """One array and its plan."""

    path: str
    grid: ChunkGrid
    plan: RechunkPlan
    source: RepositoryArray


def rechunk(
    spark: SparkSession,
    repository: Repository | str,
    array_paths: str | Sequence[str],
    chunks: Any,
    *,
    shards: Any = None,
    memory_bytes: int = MEMORY_BYTES,
    to: Mapping[str, str] | str | None = None,
    statistics: bool | Sequence[str] = False,
    **options: Any,
) -> JobReport:
    """Give arrays other chunks or shards; values, attributes and codecs stay. One commit.

    The array with the old chunks stays in the history. Copying goes directly from the old chunks
    to the new ones; where each old chunk would be read more than about 8 times, it goes through
    an intermediate copy that is garbage afterwards.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        array_paths: One array or several.
        chunks: New chunks: sizes in order, or by dimension; -1 is the whole dimension.
        shards: New shards, in the same way: chunks that are written as one object. None: none.
        memory_bytes: What a task may use for arrays; kept, or refused if one chunk is too large.
        to: Another path for the result: for one array its path, for several a mapping. By default
            the array is replaced.
        statistics: Whether to keep smallest, largest and missing values of the new chunks, for
            conditions of later reads; True, or paths of results.
        options: What all jobs can be told; see `JobOptions`.
    """
    names = [array_paths] if isinstance(array_paths, str) else list(array_paths)
    job = Job(spark, repository, "rechunk", JobOptions(**options))
    base = job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
    spec = SessionSpec.of(base)
    todo = []
    for name in names:
        source = paths.canonical(name)
        target = _target_path(source, to, len(names))
        old = arrays.open_array(base, source)
        new = _rechunked(old, chunks, shards)
        created = arrays.create(job.session, target, new, overwrite=target == source)
        if target != source:
            given = InputArray.of(base, source, spec)
            copy_coordinates(base, job.session, [given], given.dims, created)
        grid = job.grid(created)
        stored = grid_of(base, source)
        plan = plan_rechunk(
            grid.shape,
            stored.chunk_shape,
            grid.chunk_shape,
            grid.item_bytes,
            memory_bytes,
            2 * parallelism(spark),
        )
        reader = RepositoryArray(spec, source, steps=stored, step_bytes=_step(memory_bytes))
        todo.append(_Rechunking(created, grid, plan, reader))
    return _run(job, todo, memory_bytes, statistics)


def _step(memory_bytes: int) -> int:
    """How many bytes of chunks are decoded or encoded at a time, next to a region."""
    return max(1, memory_bytes // STEP_SHARE)


def _target_path(source: str, to: Mapping[str, str] | str | None, count: int) -> str:
    if to is None:
        return source
    if isinstance(to, str):
        if count > 1:
            raise InvalidInputError("several arrays need a mapping of their new paths")
        return paths.canonical(to)
    given = {paths.canonical(old): new for old, new in to.items()}
    return paths.canonical(given.get(source, source))


def _rechunked(array: zarr.Array[Any], chunks: Any, shards: Any) -> NewArray:
    dims = arrays.dims_of(array)
    new_chunks = resolve_chunks(chunks, array.shape, array.chunks, dims)
    new_shards = None
    if shards is not None:
        new_shards = resolve_chunks(shards, array.shape, array.shards or array.chunks, dims)
        # A shard is made of whole chunks, also where the array ends before it does.
        new_shards = tuple(
            -(-shard // chunk) * chunk for shard, chunk in zip(new_shards, new_chunks, strict=True)
        )
    return arrays.like(array, array.shape, new_chunks, new_shards)


def _run(job: Job, todo: Sequence[_Rechunking], memory_bytes: int, statistics: Wanted) -> JobReport:
    targets = [Target(item.grid, whole(item.grid.shape)) for item in todo]
    wanted = job.with_statistics(statistics, targets)
    tasks = {item.path: _tasks(job, item.grid, item.plan.stages[-1]) for item in todo}
    notes = [f"{item.path}: {_told(item.plan)}" for item in todo]
    plan = job.plan(targets, sum(map(len, tasks.values())), notes, wanted)
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    final: list[tuple[Piece, ...]] = []
    functions: dict[str, Callable[[Region], Any]] = {}
    for item in todo:
        two_stages = len(item.plan.stages) > 1
        functions[item.path] = (
            _intermediate_copy(job, item, memory_bytes) if two_stages else item.source
        )
        final += tasks[item.path]
    filling = Filling(functions, _ALL_AT_ONCE, _step(memory_bytes), wanted)
    run_filling(job, targets, filling, final)
    return job.commit(plan)


def _told(plan: RechunkPlan) -> str:
    reads = " then ".join(f"{stage.amplification:.1f}" for stage in plan.stages)
    passes = "one pass" if len(plan.stages) == 1 else "two passes"
    return f"{passes}, each byte read {reads} times, regions of {plan.region_bytes:,} bytes"


def _tasks(job: Job, grid: ChunkGrid, stage: Stage) -> list[tuple[Piece, ...]]:
    """One piece for each region; small ones share a task."""
    steps = tuple(
        max(1, -(-size // chunk))
        for size, chunk in zip(stage.region_shape, grid.chunk_shape, strict=True)
    )
    wanted = job.task_bytes(Target(grid, whole(grid.shape)).num_bytes)
    tasks: list[tuple[Piece, ...]] = []
    waiting: list[Piece] = []
    size = 0
    for box in blocks(grid.box, steps):
        waiting.append(Piece(grid.path, box))
        size += grid.box_bytes(box)
        if size >= wanted:
            tasks.append(tuple(waiting))
            waiting, size = [], 0
    if waiting:
        tasks.append(tuple(waiting))
    return tasks


def _intermediate_copy(job: Job, item: _Rechunking, memory_bytes: int) -> RepositoryArray:
    """Copy the array to chunks that suit both sides, in a snapshot that no branch shows."""
    stage = item.plan.stages[0]
    scratch = Job(job.spark, job.repository, f"{job.label}: first pass", job.options)
    made = arrays.like(
        arrays.open_array(job.session, item.path), item.grid.shape, stage.target_chunks, None
    )
    path = arrays.create(scratch.session, item.path, made, overwrite=True)
    grid = scratch.grid(path)
    target = Target(grid, whole(grid.shape))
    tasks = _tasks(scratch, grid, stage)
    filling = Filling({path: item.source}, _ALL_AT_ONCE, _step(memory_bytes))
    run_filling(scratch, [target], filling, tasks)
    snapshot_id = scratch.session.flush(f"{job.label}: intermediate copy of {item.path}")
    shown = job.repository.readonly_session(snapshot_id=snapshot_id)
    return RepositoryArray(SessionSpec.of(shown), path, steps=grid, step_bytes=_step(memory_bytes))
