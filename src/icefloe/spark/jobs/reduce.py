"""Reduces arrays on a cluster, over dimensions or within groups, in one commit.

Small results: tasks return partial states (see `aggregation`), and the driver merges them. Large
results: each task computes and writes a part of the result.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import (
    ChunkGrid,
    Region,
    Target,
    blocks,
    num_elements,
    shape_of,
    whole,
)
from icefloe.cf.decoding import decoded_attributes
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.chunk_index import Box
from icefloe.model.record import Record
from icefloe.spark.engine.job import Job, JobOptions, JobReport, grid_of, job_options
from icefloe.spark.engine.runner import parallelism
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.spark.jobs.aggregation import (
    SKETCH_POINTS,
    Aggregation,
    State,
    finish,
    merge,
    partial,
)
from icefloe.spark.jobs.fill import BLOCK_BYTES, Filling, fill
from icefloe.spark.jobs.groupby import Groups, codes_of_block, find_groups
from icefloe.spark.jobs.inputs import InputArray, copy_coordinates
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.zarr_arrays import NewArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.engine.job import JobKeywords

MAX_DRIVER_BYTES = 128 * 1024 * 1024
"""Limit of the partial states that tasks send to the driver; tasks write larger results."""
_STATE_BYTES = {"mean": 16, "sum": 16, "std": 24, "var": 24, "count": 8}


@with_keywords_of(JobOptions)
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
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> JobReport:
    """Reduce an array over dimensions, or within groups along them, in one commit.

    Values are decoded by CF attributes, and missing values are treated as in xarray.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        array: Path of the array.
        how: sum, mean, min, max, count, std, var, first, last or quantile.
        output: Path of the result.
        dims: Dimensions to reduce; all by default, or those of the groups.
        by: Groups: `time.month` (or year, season, day, hour, …), the path of an array of labels,
            a DataArray, or a tuple (dimensions, values). The result has a dimension of that name.
        skipna: Whether missing values are skipped; by default for floats.
        q: One quantile or several, between 0 and 1. Exact up to 200 values per cell; beyond that
            a sketch, whose ranks are off by about 1 %.
        ddof: Delta degrees of freedom, for std and var.
        keep_attrs: Whether the result has the attributes of the array.
        chunks: Chunks of the result, in order or by dimension.
        source: A read-only session that has the array; the branch itself by default.
        overwrite: Whether an existing array is replaced, and coordinates beside it that are not
            those of the array.
        block_bytes: The size of the blocks of the array that a task holds at a time.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Returns:
        The report of the job, with its commit.

    >>> import icefloe
    >>> import numpy as np
    >>> from icefloe.spark import NewArray, local_session, reduce, write
    >>> spark = local_session()
    >>> repo = icefloe.Repository.create("means")
    >>> new = NewArray(shape=(6, 2), dtype="f8", chunks=(3, 2), dims=("time", "x"))
    >>> _ = write(spark, repo, {"t": lambda r: np.c_[r[0]] * [1, 10]}, create={"t": new})
    >>> report = reduce(spark, repo, "t", "mean", "t_mean", dims="time")
    >>> repo.readonly_session("main").read_region("t_mean")
    array([ 2.5, 25. ])
    """
    aggregation = aggregation_of(how, skipna=skipna, q=q, ddof=ddof)
    job = Job(spark, repository, "reduce", job_options(options, keywords))
    base = job.input_session(source)
    reduction = reduction_of(
        base,
        array,
        aggregation,
        dims=dims,
        by=by,
        several_quantiles=q is not None and np.ndim(q) == 1,
        block_bytes=block_bytes,
    )
    new = result_array(reduction, chunks, keep_attrs=keep_attrs)
    path = arrays.create(job.session, output, new, overwrite=overwrite)
    copy_coordinates(base, job.session, [reduction.array], reduction.kept, path, replace=overwrite)
    group = paths.parent(path) or paths.ROOT
    fresh = {
        name: values
        for name, values in reduction.labels.items()
        if job.session.get_node(paths.canonical(f"{group}/{name}")) is None or overwrite
    }
    arrays.write_coordinates(job.session, group, fresh, overwrite=overwrite)
    return run_reduction(job, reduction, path, [whole(reduction.shape)])


def aggregation_of(
    how: str, *, skipna: bool | None, q: float | Sequence[float] | None, ddof: int
) -> Aggregation:
    """Check how values are aggregated."""
    quantiles = () if q is None else (float(q),) if np.ndim(q) == 0 else tuple(map(float, q))  # type: ignore[arg-type]
    aggregation = Aggregation(how=how, skipna=skipna, quantiles=quantiles, ddof=ddof)
    aggregation.check()
    return aggregation


def reduction_of(
    base: Session,
    array: str,
    aggregation: Aggregation,
    *,
    dims: str | Sequence[str] | None,
    by: Any,
    several_quantiles: bool,
    block_bytes: int,
) -> Reduction:
    """Describe a reduction of an array of a session."""
    input_array = InputArray.of(base, array)
    groups = None if by is None else find_groups(by, input_array, base)
    return Reduction(
        array=input_array,
        grid=grid_of(base, array),
        aggregation=aggregation,
        reduced=_reduced_dims(input_array, dims, groups),
        groups=groups,
        several_quantiles=several_quantiles,
        dtype=input_array.coding.number_type.str,
        block_bytes=block_bytes,
    )


def _reduced_dims(
    array: InputArray, dims: str | Sequence[str] | None, groups: Groups | None
) -> tuple[str, ...]:
    if dims is None:
        reduced = set(array.dims) if groups is None else set(groups.dims)
    else:
        reduced = {dims} if isinstance(dims, str) else set(dims)
        if groups is not None:
            reduced |= set(groups.dims)
    unknown = reduced - set(array.dims)
    if unknown:
        raise InvalidInputError(f"{array.path} has the dimensions {array.dims}, not {unknown}")
    return tuple(name for name in array.dims if name in reduced)


class Reduction(Record, frozen=True, eq=False):
    """A reduction of an array, as a function of regions of the result."""

    array: InputArray
    grid: ChunkGrid
    aggregation: Aggregation
    reduced: tuple[str, ...]
    groups: Groups | None
    several_quantiles: bool
    dtype: str
    block_bytes: int

    @property
    def kept(self) -> tuple[str, ...]:
        """Dimensions that are not reduced."""
        return tuple(name for name in self.array.dims if name not in self.reduced)

    @property
    def num_groups(self) -> int:
        """The number of groups; 1 without groups."""
        return 1 if self.groups is None else self.groups.count

    @property
    def lead(self) -> tuple[str, ...]:
        """New dimensions of the result, in front of the kept ones."""
        names = ("quantile",) if self.several_quantiles else ()
        return names if self.groups is None else (*names, self.groups.name)

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of the result; groups replace their first dimension, as in xarray."""
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
        sizes["quantile"] = len(self.aggregation.quantiles)
        if self.groups is not None:
            sizes[self.groups.name] = self.groups.count
        return tuple(sizes[name] for name in self.dims)

    def state_bytes(self, cells: int) -> int:
        """Estimate the size of the state of a number of kept cells."""
        if self.aggregation.how == "quantile":
            each = 16 * min(SKETCH_POINTS, max(1, prod(self._reduced_shape())))
        else:
            each = _STATE_BYTES.get(self.aggregation.how, 16)
        return cells * self.num_groups * each

    def kept_cells(self, within: Region) -> int:
        """The number of cells of a region along the kept dimensions."""
        return _product(shape_of(within), [name in self.kept for name in self.array.dims])

    def _reduced_shape(self) -> tuple[int, ...]:
        sizes = dict(zip(self.array.dims, self.array.shape, strict=True))
        return tuple(sizes[name] for name in self.reduced)

    def state_of(self, box: Box, within: Region) -> State | None:
        """Compute the state of a box of chunks, as far as it is within a region.

        Few chunks are in memory at a time: kept dimensions are cut into steps first, and then the
        reduced ones.
        """
        chunks = max(1, self.block_bytes // self.grid.chunk_bytes)
        is_reduced = [name in self.reduced for name in self.array.dims]
        steps = _steps(box.shape, [not each for each in is_reduced], chunks)
        left = max(1, chunks // max(1, _product(steps, [not each for each in is_reduced])))
        inner = _steps(box.shape, is_reduced, left)
        pieces = []
        for block in blocks(box, steps):
            state: State | None = None
            for part in blocks(block, inner):
                region = self.grid.region(part, within)
                if 0 not in shape_of(region):
                    fresh = self._block_state(region)
                    state = fresh if state is None else merge(self.aggregation, state, fresh)
            if state is not None:
                pieces.append(
                    (self._kept_part(self.grid.region(block, within), box, within), state)
                )
        return _assembled(pieces) if pieces else None

    def _block_state(self, region: Region) -> State:
        named = dict(zip(self.array.dims, region, strict=True))
        axes = [self.array.dims.index(name) for name in self.reduced]
        with doing(array=self.array.path, region=region):
            values = self.array.coding.decode_numbers(self.array.read(region))
            codes = None
            if self.groups is not None:
                codes = codes_of_block(self.groups, self.reduced, named)
            state = partial(self.aggregation, values, axes, codes, self.num_groups)
        return self._ordered(state, named)

    def _kept_part(self, region: Region, box: Box, within: Region) -> Region:
        """Return where a region is along the kept dimensions of a box of chunks."""
        start = self.grid.region(box, within)
        return tuple(
            slice(part.start - origin.start, part.stop - origin.start)
            for part, origin, name in zip(region, start, self.array.dims, strict=True)
            if name in self.kept
        )

    def _ordered(self, state: State, region: dict[str, slice]) -> State:
        """For `first` and `last`: turn places within the block into places in the array.

        A place numbers the reduced elements in row-major order; `last` has it negated, so that
        the smallest wins in both (see `aggregation.merge`).
        """
        if "place" not in state:
            return state
        sizes = [region[name].stop - region[name].start for name in self.reduced]
        starts = [region[name].start for name in self.reduced]
        place = state["place"]
        nowhere = place == np.iinfo(np.int64).max
        local = np.unravel_index(np.where(nowhere, 0, np.abs(place)), sizes or (1,))
        shifted = [here + start for here, start in zip(local, starts, strict=False)]
        whole_place = np.ravel_multi_index(tuple(shifted), self._reduced_shape() or (1,))
        turned = whole_place if self.aggregation.how == "first" else -whole_place
        return {**state, "place": np.where(nowhere, place, turned)}

    def result(self, state: State) -> npt.NDArray[Any]:
        """Turn a state into values, with the dimensions of the result."""
        values = finish(self.aggregation, state, np.dtype(self.dtype))
        if self.aggregation.how == "quantile" and not self.several_quantiles:
            values = values[0]
        # The axes of a finished state: quantiles if there are several, groups, kept dimensions.
        quantiles = ["quantile"] if self.several_quantiles else []
        if self.groups is None:
            values = values.squeeze(len(quantiles))
            axes = [*quantiles, *self.kept]
        else:
            axes = [*quantiles, self.groups.name, *self.kept]
        return values.transpose([axes.index(name) for name in self.dims])

    @property
    def labels(self) -> dict[str, Any]:
        """The coordinates of the new dimensions."""
        labels: dict[str, Any] = {}
        if self.groups is not None:
            labels[self.groups.name] = self.groups.labels
        if self.several_quantiles:
            labels["quantile"] = np.array(self.aggregation.quantiles)
        return labels

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """Compute a region of the result from all elements that it depends on."""
        within = self.inputs_of(region)
        return self.part(region, self.state_of(self.grid.covering(within), within))

    def inputs_of(self, region: Region) -> Region:
        """The elements of the array that a region of the result depends on."""
        parts = dict(zip(self.dims, region, strict=True))
        sizes = dict(zip(self.array.dims, self.array.shape, strict=True))
        needed = {
            name: parts[name] if name in self.kept else slice(0, extent)
            for name, extent in sizes.items()
        }
        if self.groups is not None:
            chosen = parts[self.groups.name]
            codes = self.groups.codes
            members = np.nonzero((codes >= chosen.start) & (codes < chosen.stop))
            for name, places in zip(self.groups.dims, members, strict=True):
                low, high = (places.min(), places.max() + 1) if len(places) else (0, 0)
                needed[name] = slice(int(low), int(high))
        return tuple(needed[name] for name in self.array.dims)

    def part(self, region: Region, state: State | None) -> npt.NDArray[Any]:
        """The values of a region from the state of its inputs; None: there are none."""
        values = self.result(self.nothing(self.inputs_of(region)) if state is None else state)
        lead = set(self.lead)
        chosen = zip(self.dims, region, strict=True)
        return values[tuple(part if name in lead else slice(None) for name, part in chosen)]

    def nothing(self, within: Region) -> State:
        """Return the state of no elements at all."""
        shape = shape_of(within)
        axes = [self.array.dims.index(name) for name in self.reduced]
        codes = None
        if self.groups is not None:
            codes = np.full([shape[axis] for axis in axes], -1, dtype=np.intp)
        return partial(self.aggregation, np.zeros(shape, self.dtype), axes, codes, self.num_groups)


def result_array(reduction: Reduction, chunks: Any, *, keep_attrs: bool) -> NewArray:
    """Describe the result."""
    dtype = reduction.aggregation.result_dtype(np.dtype(reduction.dtype))
    sizes = dict(zip(reduction.array.dims, reduction.grid.chunk_shape, strict=True))
    usual = tuple(
        max(1, min(extent, sizes.get(name, extent)))
        for name, extent in zip(reduction.dims, reduction.shape, strict=True)
    )
    if chunks is not None:
        usual = arrays.resolve_chunks(chunks, reduction.shape, usual, reduction.dims)
    return NewArray(
        shape=reduction.shape,
        dtype=dtype,
        chunks=usual,
        dims=reduction.dims,
        attributes=_attributes(reduction) if keep_attrs else {},
        fill_value=np.nan if dtype.kind == "f" else None,
    )


def _attributes(reduction: Reduction) -> dict[str, Any]:
    """Return the attributes of the result; units stay if it still has times or time spans."""
    coding, how = reduction.array.coding, reduction.aggregation.how
    is_time = how in ("mean", "min", "max", "first", "last", "quantile")
    is_span = coding.duration is not None and how in ("sum", "std")
    return decoded_attributes(reduction.array.attributes, times=not (is_time or is_span))


def _steps(shape: Sequence[int], cut: Sequence[bool], chunks: int) -> list[int]:
    """Return steps of at most `chunks` chunks along the dimensions to cut; others stay whole."""
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
    """Join the states of parts of the kept dimensions."""
    if len(pieces) == 1:
        return pieces[0][1]
    shape = tuple(max(place[axis].stop for place, _ in pieces) for axis in range(len(pieces[0][0])))
    whole_state = {}
    for name, first in pieces[0][1].items():
        lead = first.shape[: first.ndim - len(shape)]
        # Sketches may have different numbers of points; missing points have weight zero.
        lead = tuple(
            max(state[name].shape[axis] for _, state in pieces) for axis in range(len(lead))
        )
        values = np.zeros((*lead, *shape), first.dtype)
        for place, state in pieces:
            own = state[name].shape[: len(lead)]
            values[(*(slice(0, size) for size in own), *place)] = state[name]
        whole_state[name] = values
    return whole_state


class _ReducedPart(Record, frozen=True):
    """What one task reduces for a region of the result."""

    number: int
    """Which of the regions."""
    box: Box
    within: Region


def run_reduction(
    job: Job, reduction: Reduction, path: str, regions: Sequence[Region]
) -> JobReport:
    """Compute regions of the result, each of whole chunks, and commit them."""
    targets = [Target(job.grid(path), region) for region in regions]
    inputs = [reduction.inputs_of(region) for region in regions]
    array_bytes = sum(num_elements(each) for each in inputs) * reduction.grid.item_bytes
    parts = _parts(job, reduction, inputs, array_bytes)
    # Tasks write a large result, each its own part; the driver merges the states of a small one.
    cells = [reduction.kept_cells(each) for each in inputs]
    state_bytes = sum(reduction.state_bytes(cells[part.number]) for part in parts)
    num_chunks = sum(target.box.size for target in targets)
    if state_bytes > MAX_DRIVER_BYTES or num_chunks >= 4 * parallelism(job.spark):
        share = sum(target.num_bytes for target in targets) / max(1, array_bytes)
        each = max(1, int(job.task_bytes(array_bytes) * share))
        return fill(job, targets, Filling({path: reduction}, each), each)
    plan = job.plan(targets, len(parts), [f"reads {array_bytes:,} bytes before compression"])
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    results = job.run_tasks(_reduce_part, parts, reduction, job.label)
    job.count(results)
    states: dict[int, State] = {}
    for task, _, table in results.outputs():
        number, fresh = parts[task].number, _from_table(table)
        known = states.get(number)
        states[number] = fresh if known is None else merge(reduction.aggregation, known, fresh)
    for number, region in enumerate(regions):
        job.session.write_region(path, region, reduction.part(region, states.get(number)))
    return job.commit(plan)


def _parts(
    job: Job, reduction: Reduction, inputs: Sequence[Region], array_bytes: int
) -> list[_ReducedPart]:
    """Cut what regions of the result depend on along the reduced dimensions."""
    grid = reduction.grid
    is_reduced = [name in reduction.reduced for name in reduction.array.dims]
    chunks = max(1, job.task_bytes(array_bytes) // grid.chunk_bytes)
    parts = []
    for number, within in enumerate(inputs):
        if num_elements(within) == 0:
            continue
        box = grid.covering(within)
        kept = _product(box.shape, [not each for each in is_reduced])
        steps = _steps(box.shape, is_reduced, max(1, chunks // max(1, kept)))
        parts += [_ReducedPart(number, each, within) for each in blocks(box, steps)]
    return parts


def _reduce_part(part: _ReducedPart, reduction: Reduction) -> Iterator[TaskOutput]:
    state = reduction.state_of(part.box, part.within)
    if state is not None:
        yield TaskOutput(
            name=reduction.array.path,
            table=_to_table(state),
            chunks=part.box.size,
            bytes_read=reduction.grid.box_bytes(part.box, part.within),
        )


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
