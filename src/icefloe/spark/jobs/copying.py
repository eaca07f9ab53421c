"""Copies arrays into a repository on a cluster: from a repository, a Zarr store or xarray."""

from __future__ import annotations

import pickle
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr

from icefloe.arrays.grid import (
    Region,
    Target,
    resolve_region,
    shape_of,
    whole,
)
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.repository import Repository
from icefloe.session import Session
from icefloe.spark.engine.job import Job, JobOptions, JobReport
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.coordinates import decoded_coordinate
from icefloe.spark.jobs.filling import BLOCK_BYTES, Filling, fill
from icefloe.spark.jobs.rechunk_plan import resolve_chunks
from icefloe.spark.jobs.sources import RepositoryArray, ZarrArray
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession


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
    **options: Any,
) -> JobReport:
    """Copy a group of arrays, or a part of it, into a repository; one commit.

    Values and attributes are copied as they are stored, with their codecs; of an xarray dataset,
    as xarray would write it.

    Args:
        spark: Any Spark session.
        repository: The repository, or its URL, that gets the arrays.
        source: A read-only session or a repository (the tip of its main branch), a Zarr group or
            store or its URL, or an xarray Dataset. Executors must reach it too.
        group: The group that gets the arrays.
        variables: Which arrays; all of the source's group by default.
        isel: Which part, as slices of positions by dimension.
        sel: Which part, as slices of coordinate values by dimension.
        chunks: Other chunks, by dimension.
        append_dim: Append to existing arrays along this dimension. Arrays without it stay as
            they are.
        region: Instead: where in existing arrays the copy goes, by dimension.
        overwrite: Whether existing arrays are replaced.
        statistics: Whether to keep smallest, largest and missing values of the chunks that are
            written, for conditions of later reads; True, or names of arrays.
        options: What all jobs can be told; see `JobOptions`.
    """
    if region is not None and append_dim is not None:
        raise InvalidInputError("give a region or append_dim, not both")
    job = Job(spark, repository, "copy", JobOptions(**options))
    names = [variables] if isinstance(variables, str) else variables
    if type(source).__module__.startswith("xarray."):
        from icefloe.spark.jobs.copying_xarray import copy_dataset

        _check_names(names, map(str, source.variables))
        _check_selection(isel, sel, set(map(str, source.dims)))
        part = source if names is None else source[list(names)]
        part = part.isel(isel or {}).sel(sel or {})
        return copy_dataset(
            job,
            part,
            paths.canonical(group),
            chunks,
            append_dim,
            region,
            overwrite=overwrite,
            statistics=statistics,
        )
    opened = _Source.of(source)
    _check_names(names, opened.names)
    chosen_names = opened.names if names is None else names
    there = {dim for name in chosen_names for dim in arrays.dims_of(opened.array(name)) if dim}
    _check_selection(isel, sel, there)
    chosen = _chosen(opened, isel, sel)
    into = _Into(paths.canonical(group), dict(chunks or {}), append_dim, region, overwrite)
    if append_dim is None and region is None:
        arrays.describe_group(job.session, into.group, dict(opened.group.attrs))
    targets = []
    functions: dict[str, Callable[[Region], Any]] = {}
    for name in chosen_names:
        array = opened.array(name)
        part = resolve_region(_of_dims(chosen, array), array.shape, arrays.dims_of(array))
        target = into.prepare(job, name, array, part)
        if target is not None:
            placed = zip(part, target.region, strict=True)
            offset = tuple(there.start - here.start for there, here in placed)
            targets.append(target)
            functions[target.grid.path] = opened.reader(name, offset)
    wanted = job.with_statistics(statistics, targets, into.group)
    return fill(job, targets, Filling(functions, BLOCK_BYTES, statistics=wanted))


def _check_names(wanted: Sequence[str] | None, names: Iterable[str]) -> None:
    """Refuse variables that are not there; a path goes below the group, and is looked up later."""
    there = sorted(names)
    missing = [name for name in wanted or () if name not in there and "/" not in name]
    if missing:
        raise InvalidInputError(
            f"the source has no variable {', '.join(map(repr, missing))}; it has {', '.join(there)}"
        )


def _check_selection(
    isel: Mapping[str, Any] | None, sel: Mapping[str, Any] | None, dims: set[str]
) -> None:
    """Refuse selections that mean nothing here, as they would copy all of it."""
    for kind, given in (("isel", isel or {}), ("sel", sel or {})):
        for dim, part in given.items():
            if dim not in dims:
                raise InvalidInputError(
                    f"{kind} names {dim!r}, but the dimensions are {', '.join(sorted(dims))}"
                )
            if not isinstance(part, slice):
                raise InvalidInputError(
                    f"{kind} of {dim!r} is a slice, as copies keep their dimensions; found {part!r}"
                )


def _of_dims(chosen: Mapping[str, slice], array: zarr.Array[Any]) -> dict[str, slice]:
    dims = arrays.dims_of(array)
    return {name: part for name, part in chosen.items() if name in dims}


class _Source:
    """A group of arrays to read from."""

    def __init__(
        self, group: zarr.Group, reader: Callable[[str, tuple[int, ...]], Callable[[Region], Any]]
    ) -> None:
        self.group = group
        self.reader = reader
        self._arrays = dict(group.arrays())

    @classmethod
    def of(cls, source: Any) -> _Source:
        """Open whatever was given."""
        if isinstance(source, Repository):
            source = source.readonly_session("main")
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
        """One of them."""
        if name not in self._arrays:
            found = self.group.get(name)
            if found is None:
                raise InvalidInputError(
                    f"the source has no array {name!r}; it has {', '.join(sorted(self._arrays))}"
                )
            if not isinstance(found, zarr.Array):
                raise InvalidInputError(f"{name} is a group; expected an array")
            self._arrays[name] = found
        return self._arrays[name]


def _chosen(
    source: _Source, isel: Mapping[str, slice] | None, sel: Mapping[str, slice] | None
) -> dict[str, slice]:
    """The selection as positions."""
    chosen = dict(isel or {})
    for dimension, wanted in (sel or {}).items():
        if dimension in chosen:
            raise InvalidInputError(f"{dimension} is in both isel and sel")
        chosen[dimension] = positions(source.array(dimension), dimension, wanted)
    return chosen


def positions(coordinate: zarr.Array[Any], dimension: str, wanted: slice) -> slice:
    """Where a slice of coordinate values is, as xarray finds it."""
    decoded = decoded_coordinate(coordinate, dimension)
    found = decoded.indexes[dimension].slice_indexer(wanted.start, wanted.stop)
    if not isinstance(found, slice) or found.step not in (None, 1):
        raise InvalidInputError(f"{wanted} selects no consecutive part of {dimension}")
    return found


class _Into(Record, frozen=True, eq=False):
    """Where copies go."""

    group: str
    chunks: dict[str, int]
    append_dim: str | None
    region: Any
    overwrite: bool

    def prepare(self, job: Job, name: str, array: zarr.Array[Any], part: Region) -> Target | None:
        """Make or grow the array; returns what to fill, None if the array is not concerned."""
        path = paths.canonical(f"{self.group.rstrip('/')}/{name}")
        dims = arrays.dims_of(array)
        shape = shape_of(part)
        if self.append_dim is not None:
            if self.append_dim not in dims:
                return None
            filled = arrays.grow(
                job.session, path, self.append_dim, shape[dims.index(self.append_dim)]
            )
        elif self.region is not None:
            named = {dim: s for dim, s in self.region.items() if dim in dims}
            if not named:
                return None
            filled = arrays.region_in(job.session, path, named)
        else:
            new_chunks = array.chunks
            if self.chunks:
                given = {dim: size for dim, size in self.chunks.items() if dim in dims}
                new_chunks = resolve_chunks(given, shape, array.chunks, dims)
            shards = None if self.chunks else array.shards
            new = arrays.like(array, shape, new_chunks, shards)
            arrays.create(job.session, path, new, overwrite=self.overwrite)
            filled = whole(shape)
        if shape_of(filled) != shape:
            raise InvalidInputError(
                f"{name} has {shape} elements to copy, and {path} takes {shape_of(filled)} there"
            )
        return Target(job.grid(path), filled)
