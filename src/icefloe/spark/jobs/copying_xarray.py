"""Copies an xarray dataset on a cluster: metadata from the driver, values from tasks.

xarray itself encodes and writes, so that the result is what `to_zarr` would give.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from icefloe.arrays.error_context import doing
from icefloe.arrays.grid import (
    ChunkGrid,
    Piece,
    Region,
    Target,
    group_tasks,
    shifted,
    split,
    whole,
)
from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.spark.engine.worker import SessionSpec, unpickled
from icefloe.spark.jobs.filling import BLOCK_BYTES, outputs_of
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.statistics import wanted_arrays
from icefloe.tables.summarize import Summaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import xarray as xr

    from icefloe.spark.engine.job import Job, JobReport
    from icefloe.spark.engine.tasks import Output


class _Shared(Record, frozen=True):
    session: SessionSpec
    group: str
    dataset: bytes
    """Pickled; its values are read where they are needed."""
    grids: dict[str, ChunkGrid]
    regions: dict[str, Region]
    statistics: tuple[str, ...]


def copy_dataset(
    job: Job,
    dataset: xr.Dataset,
    group: str,
    chunks: Mapping[str, int] | None,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
    *,
    overwrite: bool,
    statistics: bool | Sequence[str] = False,
) -> JobReport:
    """Write a dataset: what is in memory at once, the rest by tasks; one commit."""
    lazy = _with_tasks(dataset)
    _write_template(job, lazy, group, chunks, append_dim, region, overwrite=overwrite)
    names = [str(name) for name, variable in lazy.variables.items() if variable.chunks]
    targets = {}
    for name in names:
        path = f"{group.rstrip('/')}/{name}"
        grid = job.grid(path)
        targets[name] = Target(grid, _place(job, path, lazy[name], append_dim, region))
    total = sum(target.num_bytes for target in targets.values())
    tasks = group_tasks(list(targets.values()), job.task_bytes(total))
    written = [f"{group.rstrip('/')}/{name}" for name in lazy.variables]
    wanted = wanted_arrays(job.session, statistics, written, group)
    plan = job.plan(list(targets.values()), len(tasks), statistics=wanted)
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    paths = {target.grid.path for target in targets.values()}
    job.statistics.add_written([path for path in wanted if path not in paths])
    shared = _Shared(
        SessionSpec.of(job.session),
        group,
        pickle.dumps(lazy),
        {target.grid.path: target.grid for target in targets.values()},
        {target.grid.path: target.region for target in targets.values()},
        tuple(path for path in wanted if path in paths),
    )
    job.run(_copy_pieces, tasks, shared, tasks)
    return job.commit(plan)


def _with_tasks(dataset: xr.Dataset) -> xr.Dataset:
    """A dataset whose variables that are not in memory are dask arrays, read by parts."""
    lazy = {
        name: variable.chunk()
        for name, variable in dataset.variables.items()
        if not variable.chunks and not variable._in_memory and name not in dataset.indexes  # noqa: SLF001
    }
    return dataset.assign(lazy) if lazy else dataset


def _write_template(
    job: Job,
    dataset: xr.Dataset,
    group: str,
    chunks: Mapping[str, int] | None,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
    *,
    overwrite: bool,
) -> None:
    given: dict[str, Any] = {}
    if append_dim is not None:
        given = {"append_dim": append_dim, "mode": "a"}
    elif region is not None:
        given = {"region": dict(region), "mode": "r+"}
    else:
        given = {"mode": "w" if overwrite else "w-" if group != "/" else "a"}
        dataset = dataset.assign(
            {name: _encoded(variable, chunks or {}) for name, variable in dataset.variables.items()}
        )
    dataset.to_zarr(
        job.session.store,
        group=group.strip("/") or None,
        compute=False,
        consolidated=False,
        safe_chunks=False,
        zarr_format=3,
        **given,
    )


_OF_OTHER_FORMATS = {"chunks", "chunksizes", "contiguous", "original_shape", "preferred_chunks"}


def _encoded(variable: xr.Variable, chunks: Mapping[str, int]) -> xr.Variable:
    """A variable with its own encoding, but for its chunks."""
    stored = variable.encoding.get("preferred_chunks", {})
    sizes = []
    for dimension, extent in zip(variable.dims, variable.shape, strict=True):
        own = variable.chunksizes[dimension][0] if variable.chunks else extent
        size = chunks.get(str(dimension), stored.get(dimension, own))
        sizes.append(max(1, extent if size == -1 else min(size, extent)))
    copied = variable.copy(deep=False)
    kept = {key: v for key, v in variable.encoding.items() if key not in _OF_OTHER_FORMATS}
    copied.encoding = {**kept, "chunks": tuple(sizes)}
    return copied


def _place(
    job: Job,
    path: str,
    variable: xr.DataArray,
    append_dim: str | None,
    region: Mapping[str, slice] | None,
) -> Region:
    array = arrays.open_array(job.session, path)
    if region is not None:
        named = {name: part for name, part in region.items() if name in variable.dims}
        return arrays.region_in(job.session, path, named)
    place = list(whole(array.shape))
    if append_dim is not None:
        if append_dim not in variable.dims:
            raise InvalidInputError(
                f"{variable.name} has no dimension {append_dim!r} to append along; drop it"
            )
        axis = variable.dims.index(append_dim)
        place[axis] = slice(array.shape[axis] - variable.shape[axis], array.shape[axis])
    return tuple(place)


def _copy_pieces(pieces: tuple[Piece, ...], shared: _Shared) -> Iterator[Output]:
    part = shared.session.open_part()
    summaries = Summaries(part, shared.statistics)
    dataset: xr.Dataset = unpickled(shared.dataset)
    read = 0
    for piece in pieces:
        grid, within = shared.grids[piece.array], shared.regions[piece.array]
        name = piece.array.rpartition("/")[2]
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
                summaries.add(piece.array, region)  # what xarray made of the values
    yield from outputs_of(part, read, summaries)
