"""New arrays from existing ones, block by block, on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from icefloe.arrays.grid import Region, Target, num_elements, shape_of, whole
from icefloe.cf.decoding import Coding, coding_of, decoded_attributes
from icefloe.cf.encoding import encode
from icefloe.cf.times import whole_units
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.job import Job, JobOptions, JobReport
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.coordinates import coordinate, copy_coordinates, decoded_coordinate
from icefloe.spark.jobs.filling import BLOCK_BYTES, Filling, fill
from icefloe.spark.jobs.inputs import (
    BOUNDARIES,
    InputArray,
    Overlap,
    joint_dims,
    joint_shape,
    overlaps,
    read_aligned,
    trimmed,
)
from icefloe.spark.jobs.rechunk_plan import resolve_chunks
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.zarr_arrays import NewArray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import xarray as xr
    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.session import Session

Blocks = Literal["numpy", "xarray"]


def map_blocks(
    spark: SparkSession,
    repository: Repository | str,
    function: Callable[..., Any],
    inputs: str | Sequence[str],
    output: str,
    *,
    blocks: Blocks = "numpy",
    dims: Sequence[str] | None = None,
    dtype: Any = None,
    chunks: Any = None,
    shards: tuple[int, ...] | None = None,
    fill_value: Any = None,
    attributes: Mapping[str, Any] | None = None,
    overlap: Mapping[str, int | tuple[int, int]] | None = None,
    boundary: str | float = "none",
    append_dim: str | None = None,
    region: Mapping[str, slice] | None = None,
    source: Session | None = None,
    overwrite: bool = False,
    block_bytes: int = BLOCK_BYTES,
    statistics: bool | Sequence[str] = False,
    **options: Any,
) -> JobReport:
    """Compute an array from others, block by block, on the cluster, and commit once.

    The function gets one block of each input and returns the block of the result. Inputs are
    aligned by the names of their dimensions; where an input lacks one, or has one element along
    it, its block has length 1 there, so that numpy spreads it.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        function: `function(block, block, …)`; must be deterministic, as tasks may be repeated.
        inputs: Paths of the input arrays.
        output: Path of the result.
        blocks: `numpy` gives arrays of stored values; `xarray` gives DataArrays, decoded as CF
            attributes say, with their coordinates.
        dims: Dimensions of the result; those of the inputs if not given.
        dtype: Of the result; found by computing the first block if not given.
        chunks: Of the result, in order or by dimension; those of the first input if not given.
        shards: Shards of the result.
        fill_value: Of the result.
        attributes: Of the result; those of the first input if not given.
        overlap: How many elements of neighbouring blocks a block has too, by dimension: a
            number, or (before, after). The result is trimmed if it still has them.
        boundary: What is beyond the ends of arrays: `none` (blocks are smaller there),
            `nearest`, `reflect`, `periodic`, or a value.
        append_dim: Append the result to an existing array along this dimension.
        region: Instead: where in an existing array the result goes, by dimension.
        source: A read-only session that has the inputs; the branch itself if not given.
        overwrite: Whether an existing array is replaced.
        block_bytes: How many bytes of the result are computed at a time.
        statistics: Whether to keep smallest, largest and missing values of the chunks that are
            written, for conditions of later reads.
        options: What all jobs can be told; see `JobOptions`.
    """
    job = Job(spark, repository, "map_blocks", JobOptions(**options))
    base = source or job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
    spec = SessionSpec.of(base)
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    given = [InputArray.of(base, name, spec) for name in names]
    if boundary not in BOUNDARIES and isinstance(boundary, str):
        raise InvalidInputError(f"a boundary is a number or one of {BOUNDARIES}: {boundary!r}")
    ordered = tuple(dims) if dims is not None else joint_dims(given)
    shape = joint_shape(given, ordered)
    calculation = BlockFunction(
        function,
        given,
        ordered,
        shape,
        overlaps(overlap, ordered),
        boundary,
        blocks,
        _coordinates(base, given, ordered) if blocks == "xarray" else {},
    )
    if append_dim is None and region is None:
        new = _new_array(base, calculation, dtype, chunks, shards, fill_value, attributes)
        path = arrays.create(job.session, output, new, overwrite=overwrite)
        copy_coordinates(base, job.session, given, ordered, path)
    else:
        path = paths.canonical(output)
    filled = _place(job, path, calculation, append_dim, region)
    offset = tuple(part.start for part in filled)
    targets = [Target(job.grid(path), filled)]
    wanted = job.with_statistics(statistics, targets)
    made = arrays.open_array(job.session, path)
    placed = Shifted(calculation, offset, coding_of(made.dtype, dict(made.attrs)))
    work = Filling({path: placed}, block_bytes, statistics=wanted)
    return fill(job, targets, work)


class Shifted(Record, frozen=True, eq=False):
    """A function of regions of the result, asked for regions of the array that it goes into."""

    function: BlockFunction
    offset: tuple[int, ...]
    coding: Coding
    """How the array stores times; other values are stored as the function returns them."""

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """The values of a region of the array."""
        pairs = zip(region, self.offset, strict=True)
        values = self.function(tuple(slice(p.start - by, p.stop - by) for p, by in pairs))
        if values.dtype.kind not in "mM":
            return values
        return encode("the result", values, None, self.coding)


class BlockFunction(Record, frozen=True, eq=False):
    """A user's function of blocks as a function of the region."""

    function: Any
    inputs: list[InputArray]
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    sides: dict[str, Overlap]
    boundary: str | float
    blocks: str
    coordinates: dict[str, Any]

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """The result in a region."""
        values = np.asarray(self.raw(region))
        return trimmed(values, region, self.shape, self.dims, self.sides, self.boundary)

    def raw(self, region: Region) -> Any:
        """What the function returns for a region."""
        found = [
            read_aligned(each, self.dims, region, self.sides, self.boundary) for each in self.inputs
        ]
        if self.blocks == "numpy":
            return self.function(*found)
        labelled = [
            self._labelled(each, values, region)
            for each, values in zip(self.inputs, found, strict=True)
        ]
        result = self.function(*labelled)
        if hasattr(result, "transpose") and hasattr(result, "dims"):
            lost = [name for name in self.dims if name not in result.dims]
            result = result.expand_dims(lost).transpose(*self.dims)
        return result

    def _labelled(self, each: InputArray, values: npt.NDArray[Any], region: Region) -> xr.DataArray:
        import xarray as xr

        own = [name for name in self.dims if name in each.dims]
        kept = values[tuple(slice(None) if name in each.dims else 0 for name in self.dims)]
        decoded = each.coding.decode(kept)
        coords = {}
        for name, extent in zip(own, decoded.shape, strict=True):
            whole_axis = self.coordinates.get(name)
            axis = self.dims.index(name)
            if whole_axis is None or each.shape[each.dims.index(name)] == 1 != self.shape[axis]:
                continue
            labels = self._labels(whole_axis, name, region[axis], self.shape[axis])
            if len(labels) == extent:
                coords[name] = labels
        attributes = decoded_attributes(each.attributes, times=True)
        return xr.DataArray(decoded, coords, own, name=each.name, attrs=attributes)

    def _labels(self, whole_axis: Any, name: str, part: slice, extent: int) -> Any:
        side = self.sides.get(name, Overlap(0, 0))
        places = np.arange(part.start - side.before, part.stop + side.after)
        if self.boundary == "none":
            places = places[(places >= 0) & (places < extent)]
        elif self.boundary == "periodic":
            places %= extent
        else:
            places = places.clip(0, extent - 1)
        return whole_axis.isel({name: places})


def _coordinates(
    session: Session, inputs: Sequence[InputArray], dims: Sequence[str]
) -> dict[str, Any]:
    found = {}
    for name in dims:
        for each in inputs:
            if name in each.dims and name not in found:
                array = coordinate(session, each.path, name)
                if array is not None:
                    found[name] = decoded_coordinate(array, name)
    return found


def _new_array(
    base: Session,
    calculation: BlockFunction,
    dtype: Any,
    chunks: Any,
    shards: tuple[int, ...] | None,
    fill_value: Any,
    attributes: Mapping[str, Any] | None,
) -> NewArray:
    """How the result is made; what was not given is learnt from the first block."""
    first = calculation.inputs[0]
    sizes = _default_chunks(base, calculation)
    if chunks is not None:
        sizes = resolve_chunks(chunks, calculation.shape, sizes, calculation.dims)
    found: dict[str, Any] | None = None if attributes is None else dict(attributes)
    if dtype is None and num_elements(whole(calculation.shape)):
        region = tuple(
            slice(0, min(size, extent))
            for size, extent in zip(sizes, calculation.shape, strict=True)
        )
        result = calculation.raw(region)
        dtype = np.asarray(result).dtype
        if dtype.kind == "O":
            raise InvalidInputError(
                f"the function returned {type(result).__name__} for the first block, of no type "
                "that an array can have; return an array of numbers, or say which dtype it is"
            )
        if found is None and calculation.blocks == "xarray":
            found = dict(getattr(result, "attrs", {})) or None
    if found is None:
        decode = calculation.blocks == "xarray"
        found = dict(first.attributes)
        if decode:
            found = decoded_attributes(first.attributes, times=True)
    dtype = np.dtype("f8" if dtype is None else dtype)
    if dtype.kind in "mM":
        found = {**found, **whole_units(dtype)}
        dtype = np.dtype(np.int64)
    if fill_value is None and dtype.kind == "f":
        fill_value = np.nan
    return NewArray(calculation.shape, dtype, sizes, shards, calculation.dims, found, fill_value)


def _default_chunks(base: Session, calculation: BlockFunction) -> tuple[int, ...]:
    """For each dimension the chunks of the first input that has it."""
    sizes: dict[str, int] = {}
    for each in calculation.inputs:
        array = arrays.open_array(base, each.path)
        stored = array.shards or array.chunks
        for name, extent, size in zip(each.dims, each.shape, stored, strict=True):
            if extent > 1:
                sizes.setdefault(name, size)
    pairs = zip(calculation.dims, calculation.shape, strict=True)
    return tuple(max(1, min(extent, sizes.get(name, extent))) for name, extent in pairs)


def _place(
    job: Job,
    path: str,
    calculation: BlockFunction,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
) -> Region:
    if append_dim is not None and region is not None:
        raise InvalidInputError("give a region or append_dim, not both")
    if append_dim is not None:
        if append_dim not in calculation.dims:
            raise InvalidInputError(f"the result has no dimension {append_dim!r}")
        by = calculation.shape[calculation.dims.index(append_dim)]
        filled = arrays.grow(job.session, path, append_dim, by)
    else:
        filled = arrays.region_in(job.session, path, region)
    if shape_of(filled) != calculation.shape:
        raise InvalidInputError(
            f"the result has the shape {calculation.shape}; {path} takes {shape_of(filled)} there"
        )
    return filled
