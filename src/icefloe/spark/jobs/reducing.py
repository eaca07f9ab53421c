"""Reductions of arrays on a cluster: over dimensions and by groups, in one commit.

Cells stay in numpy: tasks return partial states, or write the result where it is large.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import ChunkGrid, Region, Target, blocks, shape_of, whole
from icefloe.cf.decoding import decoded_attributes
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.job import Job, JobOptions, JobReport, grid_of
from icefloe.spark.engine.runner import parallelism, run_tasks
from icefloe.spark.engine.tasks import Output
from icefloe.spark.jobs import reductions
from icefloe.spark.jobs.coordinates import copy_coordinates
from icefloe.spark.jobs.filling import BLOCK_BYTES, Filling, fill
from icefloe.spark.jobs.grouping import Groups, codes_of_block, find_groups
from icefloe.spark.jobs.inputs import InputArray
from icefloe.spark.jobs.rechunk_plan import resolve_chunks
from icefloe.spark.jobs.reductions import Reduction, State, finish, merge, partial
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.zarr_arrays import NewArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from icefloe.model.chunk_index import Box
    from icefloe.repository import Repository
    from icefloe.session import Session

MAX_DRIVER_BYTES = 128 * 1024 * 1024
"""Partial states that tasks may send to the driver; larger results are written by tasks."""
_STATE_BYTES = {"mean": 16, "sum": 16, "std": 24, "var": 24, "count": 8}


def reduce(
    spark: SparkSession,
    repository: Repository | str,
    array: str,
    how: str,
    output: str,
    *,
    dims: str | Sequence[str] | None = None,
    by: Any = None,
    skipna: bool | None = None,
    q: float | Sequence[float] | None = None,
    ddof: int = 0,
    keep_attrs: bool = True,
    chunks: Any = None,
    source: Session | None = None,
    overwrite: bool = False,
    block_bytes: int = BLOCK_BYTES,
    **options: Any,
) -> JobReport:
    """Reduce an array over dimensions, or within groups along them, and commit the result once.

    Values are decoded as CF attributes say, and missing ones treated as xarray does.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        array: Path of the array.
        how: sum, mean, min, max, count, std, var, first, last or quantile.
        output: Path of the result.
        dims: Dimensions that vanish; all if not given, or those that the groups have.
        by: Groups: `time.month` (or year, season, day, hour, …), the path of an array of labels,
            a DataArray, or a tuple (dimensions, values). The result has a dimension of that name.
        skipna: Whether missing values are left out; by default for floats.
        q: For quantile: one or several. Exact up to 200 values for a cell; beyond that a sketch,
            whose ranks are off by about 1 %.
        ddof: For std and var.
        keep_attrs: Whether the result has the attributes of the array.
        chunks: Of the result, in order or by dimension.
        source: A read-only session that has the array; the branch itself if not given.
        overwrite: Whether an existing array is replaced.
        block_bytes: How many bytes of the array a task holds at a time.
        options: What all jobs can be told; see `JobOptions`.
    """
    quantiles = () if q is None else (float(q),) if np.ndim(q) == 0 else tuple(map(float, q))  # type: ignore[arg-type]
    reduction = Reduction(how, skipna, quantiles, ddof)
    reduction.check()
    job = Job(spark, repository, "reduce", JobOptions(**options))
    base = source or job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
    given = InputArray.of(base, array)
    groups = None if by is None else find_groups(by, given, base)
    reduced = _reduced_dims(given, dims, groups)
    dtype = given.coding.number_type
    several = q is not None and np.ndim(q) == 1
    grid = grid_of(base, array)
    task = Calculation(given, grid, reduction, reduced, groups, several, dtype.str, block_bytes)
    path = _create(job, base, task, output, chunks, keep_attrs=keep_attrs, overwrite=overwrite)
    return _run(job, task, path)


def _reduced_dims(
    array: InputArray, dims: str | Sequence[str] | None, groups: Groups | None
) -> tuple[str, ...]:
    if dims is None:
        wanted = set(array.dims) if groups is None else set(groups.dims)
    else:
        wanted = {dims} if isinstance(dims, str) else set(dims)
        if groups is not None:
            wanted |= set(groups.dims)
    unknown = wanted - set(array.dims)
    if unknown:
        raise InvalidInputError(f"{array.path} has the dimensions {array.dims}, not {unknown}")
    return tuple(name for name in array.dims if name in wanted)


class Calculation(Record, frozen=True, eq=False):
    """A reduction of an array; a function of regions of the result."""

    array: InputArray
    grid: ChunkGrid
    reduction: Reduction
    reduced: tuple[str, ...]
    groups: Groups | None
    several_quantiles: bool
    dtype: str
    block_bytes: int

    @property
    def kept(self) -> tuple[str, ...]:
        """Dimensions that stay."""
        return tuple(name for name in self.array.dims if name not in self.reduced)

    @property
    def num_groups(self) -> int:
        """How many groups there are; one if there are none."""
        return 1 if self.groups is None else self.groups.count

    @property
    def lead(self) -> tuple[str, ...]:
        """New dimensions, in front of those that stay."""
        names = ("quantile",) if self.several_quantiles else ()
        return names if self.groups is None else (*names, self.groups.name)

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of the result; groups stand where their first dimension was, as in xarray."""
        if self.groups is None:
            return (*self.lead, *self.kept)
        order = [
            self.groups.name if name == self.groups.dims[0] else name
            for name in self.array.dims
            if name in self.kept or name == self.groups.dims[0]
        ]
        return (*self.lead[:-1], *order)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        sizes = dict(zip(self.array.dims, self.array.shape, strict=True))
        sizes["quantile"] = len(self.reduction.quantiles)
        if self.groups is not None:
            sizes[self.groups.name] = self.groups.count
        return tuple(sizes[name] for name in self.dims)

    def state_bytes(self, cells: int) -> int:
        """About how many bytes the state of so many kept cells has."""
        if self.reduction.how == "quantile":
            each = 16 * min(reductions.SKETCH_POINTS, max(1, prod(self._reduced_shape())))
        else:
            each = _STATE_BYTES.get(self.reduction.how, 16)
        return cells * self.num_groups * each

    def _reduced_shape(self) -> tuple[int, ...]:
        sizes = dict(zip(self.array.dims, self.array.shape, strict=True))
        return tuple(sizes[name] for name in self.reduced)

    def state_of(self, box: Box, within: Region) -> State | None:
        """The state of the part of the array that a box of chunks has of a region.

        Few chunks are in memory at a time: the dimensions that stay are cut first, and then the
        reduced ones.
        """
        chunks = max(1, self.block_bytes // self.grid.chunk_bytes)
        is_reduced = [name in self.reduced for name in self.array.dims]
        steps = _steps(box.shape, [not each for each in is_reduced], chunks)
        left = max(1, chunks // max(1, _product(steps, [not each for each in is_reduced])))
        inner = _steps(box.shape, is_reduced, left)
        pieces = []
        for kept in blocks(box, steps):
            state: State | None = None
            for part in blocks(kept, inner):
                region = self.grid.region(part, within)
                if 0 not in shape_of(region):
                    fresh = self._block_state(region)
                    state = fresh if state is None else merge(self.reduction, state, fresh)
            if state is not None:
                pieces.append((self._kept_part(self.grid.region(kept, within), box, within), state))
        return _assembled(pieces) if pieces else None

    def _block_state(self, region: Region) -> State:
        named = dict(zip(self.array.dims, region, strict=True))
        axes = [self.array.dims.index(name) for name in self.reduced]
        with doing(array=self.array.path, region=region):
            values = self.array.coding.decode_numbers(self.array.read(region))
            codes = None
            if self.groups is not None:
                codes = codes_of_block(self.groups, self.reduced, named)
            state = partial(self.reduction, values, axes, codes, self.num_groups)
        return self._ordered(state, named)

    def _kept_part(self, region: Region, box: Box, within: Region) -> Region:
        """Where a region lies among the kept dimensions of a box of chunks."""
        start = self.grid.region(box, within)
        return tuple(
            slice(part.start - origin.start, part.stop - origin.start)
            for part, origin, name in zip(region, start, self.array.dims, strict=True)
            if name in self.kept
        )

    def _ordered(self, state: State, region: dict[str, slice]) -> State:
        """For `first` and `last`: places in the whole array instead of in the block."""
        if "place" not in state:
            return state
        sizes = [region[name].stop - region[name].start for name in self.reduced]
        starts = [region[name].start for name in self.reduced]
        place = state["place"]
        nowhere = place == np.iinfo(np.int64).max
        local = np.unravel_index(np.where(nowhere, 0, np.abs(place)), sizes or (1,))
        shifted = [here + start for here, start in zip(local, starts, strict=False)]
        whole_place = np.ravel_multi_index(tuple(shifted), self._reduced_shape() or (1,))
        turned = whole_place if self.reduction.how == "first" else -whole_place
        return {**state, "place": np.where(nowhere, place, turned)}

    def result(self, state: State) -> npt.NDArray[Any]:
        """The result of a state, with the dimensions of the result."""
        found = finish(self.reduction, state, np.dtype(self.dtype))
        if self.reduction.how == "quantile" and not self.several_quantiles:
            found = found[0]
        has = [*(("quantile",) if self.several_quantiles else ()), "", *self.kept]
        if self.groups is None:
            axis = has.index("")
            found = found.squeeze(axis)
            has.remove("")
        else:
            has[has.index("")] = self.groups.name
        return found.transpose([has.index(name) for name in self.dims])

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """The result in a region, from all elements that it depends on."""
        asked = dict(zip(self.dims, region, strict=True))
        within = tuple(
            asked[name] if name in self.kept else slice(0, extent)
            for name, extent in zip(self.array.dims, self.array.shape, strict=True)
        )
        state = self.state_of(self.grid.covering(within), within)
        if state is None:
            state = self.nothing(within)
        values = self.result(state)
        lead = set(self.lead)
        return values[tuple(asked[name] if name in lead else slice(None) for name in self.dims)]

    def nothing(self, within: Region) -> State:
        """The state of no elements at all."""
        shape = shape_of(within)
        axes = [self.array.dims.index(name) for name in self.reduced]
        codes = None
        if self.groups is not None:
            codes = np.full([shape[axis] for axis in axes], -1, dtype=np.intp)
        return partial(self.reduction, np.zeros(shape, self.dtype), axes, codes, self.num_groups)


def _create(
    job: Job,
    base: Session,
    task: Calculation,
    output: str,
    chunks: Any,
    *,
    keep_attrs: bool,
    overwrite: bool,
) -> str:
    dtype = task.reduction.result_dtype(np.dtype(task.dtype))
    sizes = dict(zip(task.array.dims, task.grid.chunk_shape, strict=True))
    usual = tuple(
        max(1, min(extent, sizes.get(name, extent)))
        for name, extent in zip(task.dims, task.shape, strict=True)
    )
    if chunks is not None:
        usual = resolve_chunks(chunks, task.shape, usual, task.dims)
    attributes = _attributes(task) if keep_attrs else {}
    new = NewArray(
        task.shape,
        dtype,
        usual,
        None,
        task.dims,
        attributes,
        np.nan if dtype.kind == "f" else None,
    )
    path = arrays.create(job.session, output, new, overwrite=overwrite)
    copy_coordinates(base, job.session, [task.array], task.kept, path)
    labels: dict[str, Any] = {}
    if task.groups is not None:
        labels[task.groups.name] = task.groups.labels
    if task.several_quantiles:
        labels["quantile"] = np.array(task.reduction.quantiles)
    group = paths.parent(path) or paths.ROOT
    fresh = {
        name: values
        for name, values in labels.items()
        if job.session.get_node(paths.canonical(f"{group}/{name}")) is None or overwrite
    }
    arrays.write_coordinates(job.session, group, fresh, overwrite=overwrite)
    return path


def _attributes(task: Calculation) -> dict[str, Any]:
    """The attributes of the result: its units too, where it is times or time spans still."""
    coding, how = task.array.coding, task.reduction.how
    is_time = how in ("mean", "min", "max", "first", "last", "quantile")
    is_span = coding.duration is not None and how in ("sum", "std")
    return decoded_attributes(task.array.attributes, times=not (is_time or is_span))


def _steps(shape: Sequence[int], cut: Sequence[bool], chunks: int) -> list[int]:
    """Steps of at most so many chunks along the dimensions that are cut; all of the others."""
    steps = [max(1, extent) for extent in shape]
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        if cut[axis]:
            steps[axis] = max(1, min(steps[axis], chunks // inner))
            inner *= steps[axis]
    return steps


def _product(sizes: Sequence[int], counted: Sequence[bool]) -> int:
    return prod(size for size, counts in zip(sizes, counted, strict=True) if counts)


def _assembled(pieces: Sequence[tuple[Region, State]]) -> State:
    """One state of states of parts of the kept dimensions."""
    if len(pieces) == 1:
        return pieces[0][1]
    kept = tuple(max(place[axis].stop for place, _ in pieces) for axis in range(len(pieces[0][0])))
    found = {}
    for name, first in pieces[0][1].items():
        lead = first.shape[: first.ndim - len(kept)]
        # Sketches of parts may have different numbers of points; what is missing has no weight.
        lead = tuple(
            max(state[name].shape[axis] for _, state in pieces) for axis in range(len(lead))
        )
        values = np.zeros((*lead, *kept), first.dtype)
        for place, state in pieces:
            own = state[name].shape[: len(lead)]
            values[(*(slice(0, size) for size in own), *place)] = state[name]
        found[name] = values
    return found


def _run(job: Job, task: Calculation, path: str) -> JobReport:
    target = Target(job.grid(path), whole(task.shape))
    array_bytes = prod(task.array.shape) * task.grid.item_bytes
    parts = _parts(job, task, array_bytes)
    cells = prod(
        extent
        for name, extent in zip(task.array.dims, task.array.shape, strict=True)
        if name in task.kept
    )
    # Tasks write a large result, each its own part of it; states of a small one are merged here.
    is_large = task.state_bytes(cells) * len(parts) > MAX_DRIVER_BYTES
    if is_large or target.box.size >= 4 * parallelism(job.spark):
        share = target.num_bytes / max(1, array_bytes)
        each = max(1, int(job.task_bytes(array_bytes) * share))
        return fill(job, [target], Filling({path: task}, each), each)
    plan = job.plan([target], len(parts), [f"reads {array_bytes:,} bytes before compression"])
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    results = run_tasks(
        job.spark,
        _reduce_part,
        parts,
        shared=task,
        label=job.label,
        progress_bar=job.options.progress,
    )
    job.count(results)
    state: State | None = None
    for _, _, table in results.outputs():
        fresh = _from_table(table)
        state = fresh if state is None else merge(task.reduction, state, fresh)
    if state is None:
        state = task.nothing(whole(task.array.shape))
    job.session.write_region(path, ..., task.result(state))
    return job.commit(plan)


def _parts(job: Job, task: Calculation, array_bytes: int) -> list[Box]:
    """Boxes of chunks of the array, cut along the reduced dimensions, one for each task."""
    grid = task.grid
    if 0 in grid.shape:
        return []
    is_reduced = [name in task.reduced for name in task.array.dims]
    chunks = max(1, job.task_bytes(array_bytes) // grid.chunk_bytes)
    kept = _product(grid.box.shape, [not each for each in is_reduced])
    return list(
        blocks(grid.box, _steps(grid.box.shape, is_reduced, max(1, chunks // max(1, kept))))
    )


def _reduce_part(box: Box, task: Calculation) -> Iterator[Output]:
    state = task.state_of(box, whole(task.array.shape))
    if state is not None:
        yield Output(task.array.path, _to_table(state), box.size, task.grid.box_bytes(box), 0)


def _to_table(state: State) -> pa.Table:
    shapes = [list(values.shape) for values in state.values()]
    return pa.table(
        {
            "name": list(state),
            "dtype": [values.dtype.str for values in state.values()],
            "shape": pa.array(shapes, pa.list_(pa.int64())),
            "data": [np.ascontiguousarray(values).tobytes() for values in state.values()],
        }
    )


def _from_table(table: pa.Table) -> State:
    return {
        row["name"]: np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
        for row in table.to_pylist()
    }
