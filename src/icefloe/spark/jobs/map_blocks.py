"""Computes arrays from other arrays, block by block, on a cluster."""

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
from icefloe.spark.engine.job import Job, JobOptions, JobReport, job_options
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.fill import BLOCK_BYTES, Filling, fill
from icefloe.spark.jobs.inputs import (
    InputArray,
    copy_coordinates,
    decoded_coordinate,
    find_coordinate,
)
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.zarr_arrays import NewArray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    import numpy.typing as npt
    import xarray as xr
    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.engine.job import JobKeywords
    from icefloe.zarr_store.session_port import SessionPort

BOUNDARIES = ("none", "nearest", "reflect", "periodic")
BlockType = Literal["numpy", "xarray"]


@with_keywords_of(JobOptions)
def map_blocks(
    spark: SparkSession,
    repository: Repository | str,
    function: Callable[..., Any],
    inputs: str | Sequence[str],
    output: str,
    *,
    blocks: BlockType = "numpy",
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
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> JobReport:
    """Compute an array from others, block by block, on the cluster, in one commit.

    The function gets one block of each input and returns the block of the result. Inputs are
    aligned by the names of their dimensions; where an input lacks a dimension, or has one element
    along it, its block has length 1 there, so that numpy broadcasts it.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        function: `function(block, block, …)`; must be deterministic, as tasks may be repeated.
        inputs: Paths of the input arrays.
        output: Path of the result.
        blocks: `numpy` passes arrays of stored values; `xarray` passes DataArrays with
            coordinates, decoded by CF attributes.
        dims: Dimensions of the result; those of the inputs by default.
        dtype: Data type of the result; found by computing the first block by default.
        chunks: Chunks of the result, in order or by dimension; those of the first input by
            default.
        shards: Shards of the result.
        fill_value: Fill value of the result.
        attributes: Attributes of the result; those of the first input by default.
        overlap: How many elements of its neighbours a block includes, by dimension: a number, or
            (before, after). They are trimmed from the result if it still has them.
        boundary: Values beyond the ends of arrays: `none` (blocks are smaller there), `nearest`,
            `reflect`, `periodic`, or a number.
        append_dim: Append the result to an existing array along this dimension.
        region: Write the result into this part of an existing array, by dimension.
        source: A read-only session that has the inputs; the branch itself by default.
        overwrite: Whether an existing array is replaced, and coordinates beside it that are not
            those of the inputs.
        block_bytes: The size of the blocks of the result that are computed at a time.
        statistics: Whether to store the minimum, maximum and number of missing values of each
            written chunk, which conditions (`where`) of later reads use.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Returns:
        The report of the job, with its commit.

    >>> import icefloe
    >>> import numpy as np
    >>> from icefloe.spark import NewArray, local_session, map_blocks, write
    >>> spark = local_session()
    >>> repo = icefloe.Repository.create("kelvin")
    >>> new = NewArray(shape=(4,), dtype="f8", chunks=(2,), dims=("x",))
    >>> _ = write(spark, repo, {"t": lambda region: np.r_[region[0]]}, create={"t": new})
    >>> report = map_blocks(spark, repo, lambda t: t + 273.15, "t", "kelvin")
    >>> repo.readonly_session("main").read_region("kelvin")
    array([273.15, 274.15, 275.15, 276.15])
    """
    job = Job(spark, repository, "map_blocks", job_options(options, keywords))
    base = job.input_session(source)
    calculation = block_function(
        base,
        function,
        inputs,
        dims=dims,
        overlap=overlap,
        boundary=boundary,
        blocks=blocks,
    )
    if append_dim is None and region is None:
        new = result_array(
            base,
            calculation,
            dtype=dtype,
            chunks=chunks,
            shards=shards,
            fill_value=fill_value,
            attributes=attributes,
        )
        path = arrays.create(job.session, output, new, overwrite=overwrite)
        copy_coordinates(
            base, job.session, calculation.inputs, calculation.dims, path, replace=overwrite
        )
    else:
        path = paths.canonical(output)
    filled = _filled_region(job, path, calculation, append_dim, region)
    offset = tuple(part.start for part in filled)
    targets = [Target(job.grid(path), filled)]
    summarized = job.with_statistics(statistics, targets)
    result = arrays.open_array(job.session, path)
    placed = PlacedFunction(calculation, offset, coding_of(result.dtype, dict(result.attrs)))
    return fill(job, targets, Filling({path: placed}, block_bytes, statistics=summarized))


def block_function(
    base: Session,
    function: Callable[..., Any],
    inputs: Sequence[str] | str,
    *,
    dims: Sequence[str] | None,
    overlap: Mapping[str, int | tuple[int, int]] | None,
    boundary: str | float,
    blocks: BlockType,
) -> BlockFunction:
    """Check what a user wants to be computed, and describe it as a function of the region."""
    if boundary not in BOUNDARIES and isinstance(boundary, str):
        raise InvalidInputError(f"a boundary is a number or one of {BOUNDARIES}: {boundary!r}")
    spec = SessionSpec.of(base)
    names = [inputs] if isinstance(inputs, str) else inputs
    input_arrays = [InputArray.of(base, name, spec) for name in names]
    ordered = tuple(dims) if dims is not None else joint_dims(input_arrays)
    return BlockFunction(
        function=function,
        inputs=input_arrays,
        dims=ordered,
        shape=joint_shape(input_arrays, ordered),
        sides=overlaps(overlap, ordered),
        boundary=boundary,
        blocks=blocks,
        coordinates=_coordinates(base, input_arrays, ordered) if blocks == "xarray" else {},
    )


class PlacedFunction(Record, frozen=True, eq=False):
    """A function of regions of the result, as one of regions of the array that it is part of."""

    function: BlockFunction
    offset: tuple[int, ...]
    coding: Coding
    """How the array stores times; other values are stored as the function returns them."""

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """Compute a region of the array."""
        pairs = zip(region, self.offset, strict=True)
        values = self.function(tuple(slice(p.start - by, p.stop - by) for p, by in pairs))
        if values.dtype.kind not in "mM":
            return values
        return encode("the result", values, None, self.coding)


class BlockFunction(Record, frozen=True, eq=False):
    """A user's function of blocks, as a function of the region."""

    function: Any
    inputs: list[InputArray]
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    sides: dict[str, Overlap]
    boundary: str | float
    blocks: str
    coordinates: dict[str, Any]

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """Compute a region of the result."""
        values = np.asarray(self.raw(region))
        return trimmed(values, region, self.shape, self.dims, self.sides, self.boundary)

    def raw(self, region: Region) -> Any:
        """Return what the user's function returns for a region."""
        blocks = [
            read_aligned(each, self.dims, region, self.sides, self.boundary) for each in self.inputs
        ]
        if self.blocks == "numpy":
            return self.function(*blocks)
        labelled = [
            self._labelled(each, values, region)
            for each, values in zip(self.inputs, blocks, strict=True)
        ]
        result = self.function(*labelled)
        if hasattr(result, "transpose") and hasattr(result, "dims"):
            lost = [name for name in self.dims if name not in result.dims]
            result = result.expand_dims(lost).transpose(*self.dims)
        return result

    def _labelled(self, each: InputArray, values: npt.NDArray[Any], region: Region) -> xr.DataArray:
        import xarray as xr

        own = [name for name in self.dims if name in each.dims]
        stored = values[tuple(slice(None) if name in each.dims else 0 for name in self.dims)]
        decoded = each.coding.decode(stored)
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
    session: SessionPort, inputs: Sequence[InputArray], dims: Sequence[str]
) -> dict[str, Any]:
    coordinates = {}
    for name in dims:
        for each in inputs:
            if name in each.dims and name not in coordinates:
                array = find_coordinate(session, each.path, name)
                if array is not None:
                    coordinates[name] = decoded_coordinate(array, name)
    return coordinates


def result_array(
    base: SessionPort,
    calculation: BlockFunction,
    *,
    dtype: Any,
    chunks: Any,
    shards: tuple[int, ...] | None,
    fill_value: Any,
    attributes: Mapping[str, Any] | None,
) -> NewArray:
    """Describe the result; compute the first block to find out what the caller left open."""
    sizes = _default_chunks(base, calculation)
    if chunks is not None:
        sizes = arrays.resolve_chunks(chunks, calculation.shape, sizes, calculation.dims)
    is_labelled = calculation.blocks == "xarray"
    new_attributes: dict[str, Any] | None = None if attributes is None else dict(attributes)
    if dtype is None and num_elements(whole(calculation.shape)):
        pairs = zip(sizes, calculation.shape, strict=True)
        result = calculation.raw(tuple(slice(0, min(size, extent)) for size, extent in pairs))
        dtype = np.asarray(result).dtype
        if dtype.kind == "O":
            raise InvalidInputError(
                f"the function returned {type(result).__name__} for the first block, of no type "
                "that an array can have; return an array of numbers, or say which dtype it is"
            )
        if new_attributes is None and is_labelled:
            new_attributes = dict(getattr(result, "attrs", {})) or None
    if new_attributes is None:
        new_attributes = dict(calculation.inputs[0].attributes)
        if is_labelled:
            new_attributes = decoded_attributes(new_attributes, times=True)
    dtype = np.dtype("f8" if dtype is None else dtype)
    if dtype.kind in "mM":
        new_attributes |= whole_units(dtype)
        dtype = np.dtype(np.int64)
    if fill_value is None and dtype.kind == "f":
        fill_value = np.nan
    return NewArray(
        shape=calculation.shape,
        dtype=dtype,
        chunks=sizes,
        shards=shards,
        dims=calculation.dims,
        attributes=new_attributes,
        fill_value=fill_value,
    )


def _default_chunks(base: SessionPort, calculation: BlockFunction) -> tuple[int, ...]:
    """Return, for each dimension, the chunk size of the first input that has it."""
    sizes: dict[str, int] = {}
    for each in calculation.inputs:
        array = arrays.open_array(base, each.path)
        stored = array.shards or array.chunks
        for name, extent, size in zip(each.dims, each.shape, stored, strict=True):
            if extent > 1:
                sizes.setdefault(name, size)
    pairs = zip(calculation.dims, calculation.shape, strict=True)
    return tuple(max(1, min(extent, sizes.get(name, extent))) for name, extent in pairs)


def _filled_region(
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


# --- blocks of inputs: aligned, with an overlap


class Overlap(Record, frozen=True):
    """How many elements of its neighbours a block includes along one dimension."""

    before: int
    after: int


def overlaps(by_dim: Mapping[str, Any] | None, dims: Sequence[str]) -> dict[str, Overlap]:
    """Read overlaps as users pass them: a number, or (before, after), by dimension."""
    result = {}
    for name, sides in (by_dim or {}).items():
        if name not in dims:
            raise InvalidInputError(f"no dimension is called {name!r}; found {list(dims)}")
        before, after = (sides, sides) if isinstance(sides, int) else sides
        if before < 0 or after < 0:
            raise InvalidInputError(f"an overlap is 0 or more, found {sides} for {name!r}")
        result[name] = Overlap(int(before), int(after))
    return result


def joint_shape(inputs: Sequence[InputArray], dims: Sequence[str]) -> tuple[int, ...]:
    """Return the shape of the inputs after broadcasting, in the order of `dims`."""
    sizes: dict[str, int] = {}
    for each in inputs:
        for name, extent in zip(each.dims, each.shape, strict=True):
            known = sizes.get(name, 1)
            if known != 1 and extent not in (1, known):
                raise InvalidInputError(
                    f"{each.path} has {extent} elements along {name!r}, others have {known}"
                )
            sizes[name] = max(known, extent)
    missing = [name for name in sizes if name not in dims]
    if missing:
        raise InvalidInputError(
            f"the result has the dimensions {list(dims)}; the inputs also have {missing}"
        )
    return tuple(sizes.get(name, 1) for name in dims)


def joint_dims(inputs: Sequence[InputArray]) -> tuple[str, ...]:
    """Return all dimensions of the inputs, in the order of the input that has most of them."""
    ordered = sorted(inputs, key=lambda each: -len(each.dims))
    return tuple(dict.fromkeys(name for each in ordered for name in each.dims))


def read_aligned(
    each: InputArray,
    dims: Sequence[str],
    region: Region,
    sides: Mapping[str, Overlap],
    boundary: str | float,
) -> npt.NDArray[Any]:
    """Read the part of an input that belongs to a block of the result, with the overlap.

    It has the dimensions of the result, with length 1 where the input lacks them.
    """
    parts = dict(zip(dims, region, strict=True))
    values = _read_with_overlap(
        each, [parts[name] for name in each.dims], [sides.get(n) for n in each.dims], boundary
    )
    order = sorted(range(len(each.dims)), key=lambda axis: dims.index(each.dims[axis]))
    values = values.transpose(order)
    present = set(each.dims)
    return values[tuple(slice(None) if name in present else np.newaxis for name in dims)]


def _read_with_overlap(
    each: InputArray,
    parts: Sequence[slice],
    sides: Sequence[Overlap | None],
    boundary: str | float,
) -> npt.NDArray[Any]:
    wider = [
        slice(0, 1)
        if extent == 1
        else part
        if side is None
        else slice(part.start - side.before, part.stop + side.after)
        for part, extent, side in zip(parts, each.shape, sides, strict=True)
    ]
    inner = tuple(
        slice(max(0, part.start), min(extent, part.stop))
        for part, extent in zip(wider, each.shape, strict=True)
    )
    if boundary == "periodic":
        return _wrapped(each, wider)
    values = each.read(inner)
    if boundary == "none":
        return values
    widths = [
        (have.start - want.start, want.stop - have.stop)
        for have, want in zip(inner, wider, strict=True)
    ]
    if not any(map(any, widths)):
        return values
    if boundary == "nearest":
        return np.pad(values, widths, mode="edge")
    if boundary == "reflect":
        return np.pad(values, widths, mode="reflect")
    return np.pad(values, widths, mode="constant", constant_values=boundary)


def _wrapped(each: InputArray, parts: Sequence[slice]) -> npt.NDArray[Any]:
    """Read a box whose parts beyond one end of the array come from its other end.

    The first axis along which the box leaves the array is cut at multiples of the array's length;
    the pieces, moved into the array, are read in the same way along the other axes.
    """
    for axis, (part, extent) in enumerate(zip(parts, each.shape, strict=True)):
        if part.start >= 0 and part.stop <= extent:
            continue
        pieces = []
        start = part.start
        while start < part.stop:
            stop = min(part.stop, (start // extent + 1) * extent)
            turned = list(parts)
            low = start % extent
            turned[axis] = slice(low, low + stop - start)
            pieces.append(_wrapped(each, turned))
            start = stop
        return np.concatenate(pieces, axis=axis)
    return each.read(tuple(parts))


def trimmed(
    values: npt.NDArray[Any],
    region: Region,
    shape: Sequence[int],
    dims: Sequence[str],
    sides: Mapping[str, Overlap],
    boundary: str | float,
) -> npt.NDArray[Any]:
    """Cut the overlap off a result, where the function left it there."""
    expected = shape_of(region)
    if values.shape == expected or values.ndim != len(expected):
        return values
    cut = []
    for part, extent, name, have, want in zip(
        region, shape, dims, values.shape, expected, strict=True
    ):
        side = sides.get(name)
        before = 0 if side is None else side.before
        if boundary == "none":
            before = min(before, part.start)
        after = 0 if side is None else side.after
        if boundary == "none":
            after = min(after, extent - part.stop)
        cut.append(slice(before, before + want) if have == want + before + after else slice(None))
    return values[tuple(cut)]
