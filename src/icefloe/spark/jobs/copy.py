"""Copies arrays into a repository on a cluster: from a repository, a Zarr store or xarray.

Stored values are copied as they are, with their codecs. For an xarray dataset, the driver writes
the metadata and tasks write the values; xarray itself encodes them, so that the result is that of
`to_zarr`.
"""

from __future__ import annotations

import pickle
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr

from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import (
    ChunkGrid,
    Piece,
    Region,
    Target,
    group_tasks,
    resolve_region,
    shape_of,
    shifted,
    split,
    whole,
)
from icefloe.errors import InvalidInputError
from icefloe.model import MAIN, paths
from icefloe.model.record import Record
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.engine.job import Job, JobOptions, JobReport, job_options
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.worker import SessionSpec, unpickled
from icefloe.spark.jobs.fill import BLOCK_BYTES, Filling, fill, outputs_of
from icefloe.spark.jobs.inputs import RepositoryArray, ZarrArray, decoded_coordinate
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.statistics import wanted_arrays
from icefloe.tables.summarize import Summaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    import xarray as xr
    from pyspark.sql import SparkSession

    from icefloe.spark.engine.job import JobKeywords
    from icefloe.spark.engine.tasks import TaskOutput
    from icefloe.tables.zarr_arrays import NewArray


@with_keywords_of(JobOptions)
def copy(
    spark: SparkSession,
    repository: Repository | str,
    source: Any,
    *,
    group: str = "/",
    variables: Sequence[str] | str | None = None,
    isel: Mapping[str, slice] | None = None,
    sel: Mapping[str, slice] | None = None,
    chunks: Mapping[str, int] | None = None,
    append_dim: str | None = None,
    region: Mapping[str, slice] | None = None,
    overwrite: bool = False,
    statistics: bool | Sequence[str] = False,
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> JobReport:
    """Copy a group of arrays, or a part of it, into a repository, in one commit.

    Values and attributes are copied as they are stored, with their codecs; those of an xarray
    dataset as xarray would write them.

    Args:
        spark: Any Spark session.
        repository: The repository that gets the arrays, or its URL.
        source: A read-only session or a repository (the tip of its main branch), a Zarr group or
            store or its URL, or an xarray Dataset. Executors must reach it too.
        group: The group that gets the arrays.
        variables: The arrays to copy; by default all arrays of the source's group.
        isel: The part to copy, as slices of positions by dimension.
        sel: The part to copy, as slices of coordinate values by dimension.
        chunks: New chunk sizes, by dimension.
        append_dim: Append to existing arrays along this dimension. Arrays without it are not
            changed.
        region: Copy into this part of existing arrays, by dimension.
        overwrite: Whether existing arrays are replaced.
        statistics: Whether to store the minimum, maximum and number of missing values of each
            written chunk, which conditions (`where`) of later reads use: True, or names of arrays.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Returns:
        The report of the job, with its commit.

    >>> import icefloe, zarr
    >>> from icefloe.spark import copy, local_session
    >>> spark = local_session()
    >>> root = zarr.create_group("old.zarr")
    >>> t = root.create_array("t", shape=(6,), chunks=(2,), dtype="i4", dimension_names=("x",))
    >>> t[:] = [1, 2, 3, 4, 5, 6]
    >>> repo = icefloe.Repository.create("copied")
    >>> report = copy(spark, repo, "old.zarr", isel={"x": slice(2, 6)}, chunks={"x": 4})
    >>> report.chunks
    1
    >>> repo.readonly_session("main").read_region("t")
    array([3, 4, 5, 6], dtype=int32)
    """
    if region is not None and append_dim is not None:
        raise InvalidInputError("give a region or append_dim, not both")
    job = Job(spark, repository, "copy", job_options(options, keywords))
    names = [variables] if isinstance(variables, str) else variables
    destination = Destination(
        group=paths.canonical(group),
        chunks=dict(chunks or {}),
        append_dim=append_dim,
        region=None if region is None else dict(region),
        overwrite=overwrite,
    )
    if type(source).__module__.startswith("xarray."):
        check_names(names, map(str, source.variables))
        _check_selection(isel, sel, set(map(str, source.dims)))
        dataset = source if names is None else source[list(names)]
        dataset = dataset.isel(isel or {}).sel(sel or {})
        return _copy_dataset(job, dataset, destination, statistics)
    if isinstance(source, Repository):
        source = source.readonly_session(MAIN)
    if isinstance(source, Session):
        job.add_input(source)
    group_source = GroupSource.of(source)
    check_names(names, group_source.names)
    chosen = group_source.names if names is None else names
    dims = {dim for name in chosen for dim in arrays.dims_of(group_source.array(name)) if dim}
    _check_selection(isel, sel, dims)
    selection = _positions_of(group_source, isel, sel)
    return _copy_group(job, group_source, chosen, selection, destination, statistics)


def check_names(names: Sequence[str] | None, existing: Iterable[str]) -> None:
    """Refuse unknown variables; a path leads below the group, and is looked up later."""
    there = sorted(existing)
    missing = [name for name in names or () if name not in there and "/" not in name]
    if missing:
        raise InvalidInputError(
            f"the source has no variable {', '.join(map(repr, missing))}; it has {', '.join(there)}"
        )


def _check_selection(
    isel: Mapping[str, Any] | None, sel: Mapping[str, Any] | None, dims: set[str]
) -> None:
    """Refuse a selection that would be ignored: everything would be copied."""
    for kind, selection in (("isel", isel or {}), ("sel", sel or {})):
        for dim, part in selection.items():
            if dim not in dims:
                raise InvalidInputError(
                    f"{kind} names {dim!r}, but the dimensions are {', '.join(sorted(dims))}"
                )
            if not isinstance(part, slice):
                raise InvalidInputError(
                    f"{kind} of {dim!r} is a slice, as copies keep their dimensions; found {part!r}"
                )


class Destination(Record, frozen=True, eq=False):
    """Where copies go: new arrays, longer ones, or a region of existing ones."""

    group: str
    chunks: dict[str, int]
    append_dim: str | None
    region: dict[str, slice] | None
    overwrite: bool

    @property
    def is_new(self) -> bool:
        """Whether arrays are created."""
        return self.append_dim is None and self.region is None

    def path(self, name: str) -> str:
        """Return the path of a copied array."""
        return paths.canonical(f"{self.group.rstrip('/')}/{name}")

    def described(self, array: zarr.Array[Any], shape: tuple[int, ...]) -> NewArray:
        """Describe the array that gets the copy of a part of another."""
        dims = arrays.dims_of(array)
        new_chunks = array.chunks
        if self.chunks:
            sizes = {dim: size for dim, size in self.chunks.items() if dim in dims}
            new_chunks = arrays.resolve_chunks(sizes, shape, array.chunks, dims)
        return arrays.like(array, shape, new_chunks, None if self.chunks else array.shards)

    def prepare(self, job: Job, name: str, array: zarr.Array[Any], part: Region) -> Target | None:
        """Create or grow an array; return what to fill, None if nothing is copied into it."""
        path = self.path(name)
        dims = arrays.dims_of(array)
        shape = shape_of(part)
        if self.append_dim is not None:
            if self.append_dim not in dims:
                return None
            size = shape[dims.index(self.append_dim)]
            filled = arrays.grow(job.session, path, self.append_dim, size)
        elif self.region is not None:
            named = {dim: s for dim, s in self.region.items() if dim in dims}
            if not named:
                return None
            filled = arrays.region_in(job.session, path, named)
        else:
            new = self.described(array, shape)
            arrays.create(job.session, path, new, overwrite=self.overwrite)
            filled = whole(shape)
        if shape_of(filled) != shape:
            raise InvalidInputError(
                f"{name} has {shape} elements to copy, and {path} takes {shape_of(filled)} there"
            )
        return Target(job.grid(path), filled)


# --- from a repository or a Zarr store


class GroupSource:
    """A group of arrays to copy from."""

    def __init__(
        self, group: zarr.Group, reader: Callable[[str, tuple[int, ...]], Callable[[Region], Any]]
    ) -> None:
        self.group = group
        self.reader = reader
        self._arrays = dict(group.arrays())

    @classmethod
    def of(cls, source: Any) -> GroupSource:
        """Open a session, or what zarr opens."""
        if isinstance(source, Session):
            if not source.read_only:
                raise InvalidInputError(
                    "a copy is made of a committed version: give a read-only "
                    "session, from repository.readonly_session(...)"
                )
            spec = SessionSpec.of(source)
            return cls(
                zarr.open_group(source.store, mode="r"),
                lambda name, offset: RepositoryArray(spec, paths.canonical(name), offset),
            )
        if isinstance(source, PathLike) or (isinstance(source, str) and "://" not in source):
            source = Path(source).absolute()  # executors may run in another folder
        group = source if isinstance(source, zarr.Group) else zarr.open_group(source, mode="r")
        pickled = pickle.dumps(group.store)
        prefix = group.path
        return cls(
            group,
            lambda name, offset: ZarrArray(pickled, f"{prefix}/{name}".strip("/"), offset),
        )

    @property
    def names(self) -> list[str]:
        """All arrays of the group."""
        return list(self._arrays)

    def array(self, name: str) -> zarr.Array[Any]:
        """Return one of the arrays."""
        if name not in self._arrays:
            node = self.group.get(name)
            if node is None:
                raise InvalidInputError(
                    f"the source has no array {name!r}; it has {', '.join(sorted(self._arrays))}"
                )
            if not isinstance(node, zarr.Array):
                raise InvalidInputError(f"{name} is a group; expected an array")
            self._arrays[name] = node
        return self._arrays[name]


def _positions_of(
    source: GroupSource, isel: Mapping[str, slice] | None, sel: Mapping[str, slice] | None
) -> dict[str, slice]:
    """Return the selection as slices of positions, by dimension."""
    selection = dict(isel or {})
    for dimension, labels in (sel or {}).items():
        if dimension in selection:
            raise InvalidInputError(f"{dimension} is in both isel and sel")
        decoded = decoded_coordinate(source.array(dimension), dimension)
        part = decoded.indexes[dimension].slice_indexer(labels.start, labels.stop)
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InvalidInputError(f"{labels} selects no consecutive part of {dimension}")
        selection[dimension] = part
    return selection


def _copy_group(
    job: Job,
    source: GroupSource,
    names: Sequence[str],
    selection: Mapping[str, slice],
    destination: Destination,
    statistics: bool | Sequence[str],  # noqa: FBT001
) -> JobReport:
    """Copy stored values: each target is filled by a function that reads its source."""
    if destination.is_new:
        arrays.describe_group(job.session, destination.group, dict(source.group.attrs))
    targets = []
    functions: dict[str, Callable[[Region], Any]] = {}
    for name in names:
        array = source.array(name)
        dims = arrays.dims_of(array)
        named = {dim: part for dim, part in selection.items() if dim in dims}
        part = resolve_region(named, array.shape, dims)
        target = destination.prepare(job, name, array, part)
        if target is not None:
            placed = zip(part, target.region, strict=True)
            offset = tuple(there.start - here.start for there, here in placed)
            targets.append(target)
            functions[target.grid.path] = source.reader(name, offset)
    summarized = job.with_statistics(statistics, targets, destination.group)
    return fill(job, targets, Filling(functions, BLOCK_BYTES, statistics=summarized))


# --- from xarray


class _DatasetWork(Record, frozen=True):
    """What all tasks that copy a dataset share."""

    session: SessionSpec
    group: str
    dataset: bytes
    """Pickled without values: tasks read those that they need."""
    grids: dict[str, ChunkGrid]
    regions: dict[str, Region]
    statistics: tuple[str, ...]


def _copy_dataset(
    job: Job,
    dataset: xr.Dataset,
    destination: Destination,
    statistics: bool | Sequence[str],  # noqa: FBT001
) -> JobReport:
    """Write a dataset: variables in memory by the driver, all others by tasks; one commit."""
    lazy = _with_dask(dataset)
    _write_template(job, lazy, destination)
    names = [str(name) for name, variable in lazy.variables.items() if variable.chunks]
    targets = [
        Target(job.grid(path), _filled_region(job, path, lazy[name], destination))
        for name, path in ((name, destination.path(name)) for name in names)
    ]
    tasks = group_tasks(targets, job.task_bytes(sum(target.num_bytes for target in targets)))
    written = [destination.path(str(name)) for name in lazy.variables]
    summarized = wanted_arrays(job.session, statistics, written, destination.group)
    plan = job.plan(targets, len(tasks), statistics=summarized)
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    by_tasks = {target.grid.path for target in targets}
    job.statistics.add_written([path for path in summarized if path not in by_tasks])
    shared = _DatasetWork(
        session=SessionSpec.of(job.session),
        group=destination.group,
        dataset=pickle.dumps(lazy),
        grids={target.grid.path: target.grid for target in targets},
        regions={target.grid.path: target.region for target in targets},
        statistics=tuple(path for path in summarized if path in by_tasks),
    )
    job.run(_copy_pieces, tasks, shared, tasks)
    return job.commit(plan)


def _with_dask(dataset: xr.Dataset) -> xr.Dataset:
    """Make dask arrays of the variables that are not in memory, so that tasks read parts."""
    lazy = {
        name: variable.chunk()
        for name, variable in dataset.variables.items()
        if not variable.chunks and not variable._in_memory and name not in dataset.indexes  # noqa: SLF001
    }
    return dataset.assign(lazy) if lazy else dataset


def _write_template(job: Job, dataset: xr.Dataset, destination: Destination) -> None:
    """Write metadata and the variables that are in memory."""
    arguments: dict[str, Any]
    group = destination.group.strip("/") or None
    if destination.append_dim is not None:
        arguments = {"append_dim": destination.append_dim, "mode": "a"}
    elif destination.region is not None:
        arguments = {"region": destination.region, "mode": "r+"}
    else:
        new_mode = "a" if group is None else "w-"
        arguments = {"mode": "w" if destination.overwrite else new_mode}
        dataset = dataset.assign(
            {
                name: _with_chunks(variable, destination.chunks)
                for name, variable in dataset.variables.items()
            }
        )
    dataset.to_zarr(
        job.session.store,
        group=group,
        compute=False,
        consolidated=False,
        safe_chunks=False,
        zarr_format=3,
        **arguments,
    )


_ENCODINGS_OF_OTHER_FORMATS = {
    "chunks",
    "chunksizes",
    "contiguous",
    "original_shape",
    "preferred_chunks",
}


def _with_chunks(variable: xr.Variable, chunks: Mapping[str, int]) -> xr.Variable:
    """Set the chunks of the new array in the encoding of a variable."""
    preferred = variable.encoding.get("preferred_chunks", {})
    sizes = []
    for dimension, extent in zip(variable.dims, variable.shape, strict=True):
        own = variable.chunksizes[dimension][0] if variable.chunks else extent
        size = chunks.get(str(dimension), preferred.get(dimension, own))
        sizes.append(max(1, extent if size == -1 else min(size, extent)))
    copied = variable.copy(deep=False)
    copied.encoding = {
        key: value
        for key, value in variable.encoding.items()
        if key not in _ENCODINGS_OF_OTHER_FORMATS
    } | {"chunks": tuple(sizes)}
    return copied


def _filled_region(job: Job, path: str, variable: xr.DataArray, destination: Destination) -> Region:
    if destination.region is not None:
        named = {name: part for name, part in destination.region.items() if name in variable.dims}
        return arrays.region_in(job.session, path, named)
    shape = arrays.open_array(job.session, path).shape
    filled = list(whole(shape))
    if destination.append_dim is not None:
        if destination.append_dim not in variable.dims:
            raise InvalidInputError(
                f"{variable.name} has no dimension {destination.append_dim!r} to append along; "
                "drop it"
            )
        axis = variable.dims.index(destination.append_dim)
        filled[axis] = slice(shape[axis] - variable.shape[axis], shape[axis])
    return tuple(filled)


def _copy_pieces(pieces: tuple[Piece, ...], shared: _DatasetWork) -> Iterator[TaskOutput]:
    part = shared.session.open_part()
    summaries = Summaries(part, shared.statistics)
    dataset: xr.Dataset = unpickled(shared.dataset)
    read = 0
    for piece in pieces:
        grid, within = shared.grids[piece.array], shared.regions[piece.array]
        name = paths.name(piece.array)
        variable = dataset[name].reset_coords(drop=True).drop_vars(dataset[name].coords)
        source = str(dataset[name].encoding.get("source") or dataset.encoding.get("source") or "")
        for box in split(piece.box, BLOCK_BYTES // grid.chunk_bytes):
            region = grid.region(box, within)
            here = shifted(region, [-axis.start for axis in within])
            dims = list(map(str, variable.dims))
            with doing(array=piece.array, region=region, source=source):
                block = variable.isel(dict(zip(dims, here, strict=True)))
                block = block.compute(scheduler="synchronous")
                block.to_dataset(name=name).to_zarr(
                    part.store,
                    group=shared.group.strip("/") or None,
                    region=dict(zip(dims, region, strict=True)),
                    consolidated=False,
                )
                read += block.nbytes
                # Without values: statistics are of what xarray stored.
                summaries.add(piece.array, region)
    yield from outputs_of(part, read, summaries)
