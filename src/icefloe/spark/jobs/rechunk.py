"""Rechunks arrays on a cluster within a memory budget per task, in one commit.

`plan_rechunk` and what follows it is pure: it chooses the regions that tasks copy.
"""

from __future__ import annotations

from itertools import product
from math import ceil, lcm, prod
from typing import TYPE_CHECKING, Any

from icefloe.arrays.grid import ChunkGrid, Piece, Region, Target, blocks, whole
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.job import Job, JobOptions, JobReport, grid_of, job_options
from icefloe.spark.engine.runner import parallelism
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.fill import Filling, run_filling
from icefloe.spark.jobs.inputs import InputArray, RepositoryArray, copy_coordinates
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    import zarr
    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.spark.engine.job import JobKeywords
    from icefloe.tables.statistics import StatisticsChoice
    from icefloe.tables.zarr_arrays import NewArray

MEMORY_BYTES = 512 * 1024 * 1024
"""Default memory of a task."""
STEP_SHARE = 8
"""Part of the memory for chunks that are decoded or encoded at a time."""
_WHOLE_PIECE = 2**62
MAX_AMPLIFICATION = 8.0
"""Above this many bytes read per byte of the array, an intermediate copy is considered."""
REGION_SHARE = 3
"""Part of the memory for one region: chunks being decoded and encoded need as much again."""
_SPARE_AMPLIFICATION = 4.0
_MAX_SIZES = 12
_MAX_CHOICES = 20_000


@with_keywords_of(JobOptions)
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
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> JobReport:
    """Change the chunks or shards of arrays, in one commit; values, attributes and codecs stay.

    The array with the old chunks stays in the history. Tasks copy directly from the old chunks to
    the new ones; if that would read each old chunk more than about 8 times, they use an
    intermediate copy, which is garbage afterwards.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        array_paths: Path of an array, or of several.
        chunks: New chunks: sizes in order, or by dimension; -1 means the complete dimension.
        shards: New shards, in the same form: chunks that are written as one object. None: no
            sharding.
        memory_bytes: Memory of a task for arrays. It is not exceeded; the job raises an error if
            one chunk needs more.
        to: The path of the result: one path, or a mapping for several arrays. By default arrays
            are replaced.
        statistics: Whether to store the minimum, maximum and number of missing values of each new
            chunk, which conditions (`where`) of later reads use: True, or paths of results.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Returns:
        The report of the job, with its commit.

    Raises:
        InvalidInputError: One chunk does not fit into the memory.

    >>> import icefloe
    >>> from icefloe.spark import NewArray, local_session, rechunk, write
    >>> spark = local_session()
    >>> repo = icefloe.Repository.create("rechunked")
    >>> new = NewArray(shape=(4, 6), dtype="f4", chunks=(1, 6), dims=("time", "x"))
    >>> _ = write(spark, repo, {"t": lambda region: 1.0}, create={"t": new})
    >>> report = rechunk(spark, repo, "t", {"time": -1, "x": 2})
    >>> report.chunks
    3
    """
    names = [array_paths] if isinstance(array_paths, str) else list(array_paths)
    job = Job(spark, repository, "rechunk", job_options(options, keywords))
    base = job.base()
    spec = SessionSpec.of(base)
    todo = []
    for name in names:
        source = paths.canonical(name)
        target = _target_path(source, to, len(names))
        old = arrays.open_array(base, source)
        new = _rechunked(old, chunks, shards)
        created = arrays.create(job.session, target, new, overwrite=target == source)
        if target != source:
            old_array = InputArray.of(base, source, spec)
            copy_coordinates(base, job.session, [old_array], old_array.dims, created)
        grid = job.grid(created)
        stored = grid_of(base, source)
        plan = plan_rechunk(
            grid.shape,
            stored.chunk_shape,
            grid.chunk_shape,
            item_bytes=grid.item_bytes,
            memory_bytes=memory_bytes,
            slots=2 * parallelism(spark),
        )
        reader = RepositoryArray(spec, source, steps=stored, step_bytes=_step(memory_bytes))
        todo.append(_Rechunking(grid, plan, reader))
    return _run(job, todo, memory_bytes, statistics)


def _step(memory_bytes: int) -> int:
    """Bytes of chunks that are decoded or encoded at a time, beside a region in memory."""
    return max(1, memory_bytes // STEP_SHARE)


class _Rechunking(Record, frozen=True):
    """A new array, how to fill it, and from what."""

    grid: ChunkGrid
    plan: RechunkPlan
    source: RepositoryArray


def _target_path(source: str, to: Mapping[str, str] | str | None, count: int) -> str:
    if to is None:
        return source
    if isinstance(to, str):
        if count > 1:
            raise InvalidInputError("several arrays need a mapping of their new paths")
        return paths.canonical(to)
    new_paths = {paths.canonical(old): new for old, new in to.items()}
    return paths.canonical(new_paths.get(source, source))


def _rechunked(array: zarr.Array[Any], chunks: Any, shards: Any) -> NewArray:
    dims = arrays.dims_of(array)
    new_chunks = arrays.resolve_chunks(chunks, array.shape, array.chunks, dims)
    new_shards = None
    if shards is not None:
        new_shards = arrays.resolve_chunks(shards, array.shape, array.shards or array.chunks, dims)
        # A shard is made of whole chunks, also where the array ends before it does.
        new_shards = tuple(
            -(-shard // chunk) * chunk for shard, chunk in zip(new_shards, new_chunks, strict=True)
        )
    return arrays.like(array, array.shape, new_chunks, new_shards)


def _run(
    job: Job, todo: Sequence[_Rechunking], memory_bytes: int, statistics: StatisticsChoice
) -> JobReport:
    targets = [Target(item.grid, whole(item.grid.shape)) for item in todo]
    summarized = job.with_statistics(statistics, targets)
    tasks = {item.grid.path: _tasks(job, item.grid, item.plan.stages[-1]) for item in todo}
    notes = [f"{item.grid.path}: {_description(item.plan)}" for item in todo]
    plan = job.plan(targets, sum(map(len, tasks.values())), notes, summarized)
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    final: list[tuple[Piece, ...]] = []
    functions: dict[str, Callable[[Region], Any]] = {}
    for item in todo:
        two_stages = len(item.plan.stages) > 1
        functions[item.grid.path] = (
            _intermediate_copy(job, item, memory_bytes) if two_stages else item.source
        )
        final += tasks[item.grid.path]
    filling = Filling(
        functions=functions,
        block_bytes=_WHOLE_PIECE,
        step_bytes=_step(memory_bytes),
        statistics=summarized,
    )
    run_filling(job, targets, filling, final)
    return job.commit(plan)


def _description(plan: RechunkPlan) -> str:
    reads = " then ".join(f"{stage.amplification:.1f}" for stage in plan.stages)
    passes = "one pass" if len(plan.stages) == 1 else "two passes"
    return f"{passes}, each byte read {reads} times, regions of {plan.region_bytes:,} bytes"


def _tasks(job: Job, grid: ChunkGrid, stage: Stage) -> list[tuple[Piece, ...]]:
    """Make a piece of each region; small pieces share a task."""
    steps = tuple(
        max(1, -(-size // chunk))
        for size, chunk in zip(stage.region_shape, grid.chunk_shape, strict=True)
    )
    task_bytes = job.task_bytes(Target(grid, whole(grid.shape)).num_bytes)
    tasks: list[tuple[Piece, ...]] = []
    waiting: list[Piece] = []
    size = 0
    for box in blocks(grid.box, steps):
        waiting.append(Piece(grid.path, box))
        size += grid.box_bytes(box)
        if size >= task_bytes:
            tasks.append(tuple(waiting))
            waiting, size = [], 0
    if waiting:
        tasks.append(tuple(waiting))
    return tasks


def _intermediate_copy(job: Job, item: _Rechunking, memory_bytes: int) -> RepositoryArray:
    """Copy the array to chunks that suit both passes, in a snapshot that no branch refers to."""
    stage = item.plan.stages[0]
    scratch = Job(job.spark, job.repository, f"{job.label}: first pass", job.options)
    new = arrays.like(
        arrays.open_array(job.session, item.grid.path), item.grid.shape, stage.target_chunks, None
    )
    path = arrays.create(scratch.session, item.grid.path, new, overwrite=True)
    grid = scratch.grid(path)
    target = Target(grid, whole(grid.shape))
    tasks = _tasks(scratch, grid, stage)
    filling = Filling({path: item.source}, _WHOLE_PIECE, _step(memory_bytes))
    run_filling(scratch, [target], filling, tasks)
    snapshot_id = scratch.session.flush(f"{job.label}: intermediate copy of {item.grid.path}")
    copied = job.repository.readonly_session(snapshot_id=snapshot_id)
    return RepositoryArray(SessionSpec.of(copied), path, steps=grid, step_bytes=_step(memory_bytes))


# --- choosing the regions


class Stage(Record, frozen=True):
    """One pass over the array: regions of one shape are read and written."""

    source_chunks: tuple[int, ...]
    target_chunks: tuple[int, ...]
    region_shape: tuple[int, ...]
    """Shape of the regions, made of whole target chunks."""
    amplification: float
    """Bytes decoded per byte of the array."""


class RechunkPlan(Record, frozen=True):
    """One pass or two; the last one writes the result."""

    stages: tuple[Stage, ...]
    region_bytes: int
    """Size of the largest region that a task holds."""


def plan_rechunk(
    shape: Sequence[int],
    source_chunks: Sequence[int],
    target_chunks: Sequence[int],
    *,
    item_bytes: int,
    memory_bytes: int,
    slots: int = 1,
) -> RechunkPlan:
    """Choose the regions to copy, in one pass or in two, within a memory budget.

    Args:
        shape: Shape of the array.
        source_chunks: What is read as a unit: chunks, or shards.
        target_chunks: What is written as a unit.
        item_bytes: Size of an element.
        memory_bytes: Memory of a task.
        slots: How many tasks run at a time; smaller regions keep all of them busy.

    Raises:
        InvalidInputError: One chunk alone does not fit into the memory.
    """
    shape = tuple(max(1, extent) for extent in shape)
    source = clipped(source_chunks, shape)
    target = clipped(target_chunks, shape)
    budget = memory_bytes // REGION_SHARE // item_bytes
    for name, chunks in (("chunk of the array", source), ("new chunk", target)):
        if prod(chunks) > budget:
            raise InvalidInputError(
                f"one {name} has {prod(chunks) * item_bytes} bytes; a task needs {REGION_SHARE} "
                f"times as much, and has memory_bytes={memory_bytes}"
            )
    direct = _best_stage(shape, source, target, budget, slots)
    stages: tuple[Stage, ...] = (direct,)
    if direct.amplification > MAX_AMPLIFICATION:
        between = _intermediate(shape, source, target, budget)
        two = (
            _best_stage(shape, source, between, budget, slots),
            _best_stage(shape, between, target, budget, slots),
        )
        # The intermediate copy must save more than one pass, which writing it costs.
        if two[0].amplification + two[1].amplification + 1 < direct.amplification:
            stages = two
    largest = max(prod(stage.region_shape) for stage in stages)
    return RechunkPlan(stages, largest * item_bytes)


def clipped(chunks: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Cut chunks to the shape of the array."""
    return tuple(max(1, min(size, extent)) for size, extent in zip(chunks, shape, strict=True))


def _intermediate(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], budget: int
) -> tuple[int, ...]:
    """Choose chunks of the copy: the overlap of what the first pass reads and the second writes."""
    reads = _grown(shape, source, target, budget)
    writes = _grown(shape, target, source, budget)
    return tuple(map(min, reads, writes))


def _grown(
    shape: tuple[int, ...], chunks: tuple[int, ...], other: tuple[int, ...], budget: int
) -> tuple[int, ...]:
    """Grow a region of whole chunks within the budget, along axes with longer chunks in `other`."""
    region = list(chunks)
    order = sorted(range(len(shape)), key=lambda axis: chunks[axis] / other[axis])
    for axis in order:
        others = prod(region) // region[axis]
        most = max(1, budget // others // chunks[axis]) * chunks[axis]
        region[axis] = min(shape[axis], max(region[axis], most))
    return tuple(region)


def _best_stage(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    target: tuple[int, ...],
    budget: int,
    slots: int,
) -> Stage:
    """Choose the regions of whole target chunks that are copied fastest.

    The cost is what is read and written, divided by the number of tasks that work at a time.
    Reading a chunk a few times is fine if it lets more tasks work.
    """
    sizes = [_sizes(*axis) for axis in zip(shape, source, target, strict=True)]
    while prod(map(len, sizes)) > _MAX_CHOICES and max(map(len, sizes)) > 2:
        longest = max(range(len(sizes)), key=lambda axis: len(sizes[axis]))
        tried = sizes[longest]
        sizes[longest] = [*tried[:-1:2], tried[-1]]
    ratios = [
        {size: axis_amplification(shape[axis], source[axis], size) for size in sizes[axis]}
        for axis in range(len(shape))
    ]
    choices = []
    for region in product(*sizes):
        if prod(region) <= budget:
            reads = prod(ratio[size] for ratio, size in zip(ratios, region, strict=True))
            choices.append((round(reads, 9), -prod(region), region))
    least = min(choices)[0]
    allowed = [choice for choice in choices if choice[0] <= max(least, _SPARE_AMPLIFICATION)]

    def cost(choice: tuple[float, int, tuple[int, ...]]) -> tuple[float, float, int]:
        reads, elements, region = choice
        count = prod(-(-extent // size) for extent, size in zip(shape, region, strict=True))
        return (reads + 1) / min(slots, count), reads, elements

    reads, _, region = min(allowed, key=cost)
    return Stage(
        source_chunks=source, target_chunks=target, region_shape=region, amplification=reads
    )


def _sizes(extent: int, source: int, target: int) -> list[int]:
    """Return candidate lengths along one dimension: doublings, whole source chunks, all of it."""
    sizes = {min(extent, target)}
    size = target
    while size < extent:
        size *= 2
        sizes.add(min(extent, size))
    common = lcm(source, target)
    for times in (1, 2, 4):
        sizes.add(min(extent, common * times))
    sizes.add(min(extent, ceil(source / target) * target))
    ordered = sorted(sizes)
    if len(ordered) <= _MAX_SIZES:
        return ordered
    step = len(ordered) / _MAX_SIZES
    return sorted({ordered[int(number * step)] for number in range(_MAX_SIZES)} | {ordered[-1]})


def axis_amplification(extent: int, source: int, size: int) -> float:
    """Return the elements decoded per element along one dimension, read in steps of `size`."""
    steps = ceil(extent / size)
    if steps > 4096:  # the pattern repeats: a few periods have its average
        period = lcm(source, size)
        return _touched(min(extent, period * 4), source, size)
    return _touched(extent, source, size)


def _touched(extent: int, source: int, size: int) -> float:
    total = 0
    for start in range(0, extent, size):
        stop = min(extent, start + size)
        low, high = start // source * source, min(extent, ceil(stop / source) * source)
        total += high - low
    return total / extent
