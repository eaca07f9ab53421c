"""What jobs read: arrays of repositories and of other Zarr stores, and their coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.arrays.grid import ChunkGrid, Region, shape_of, shifted, split
from icefloe.cf.decoding import Coding, coding_of, decoded_attributes
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.engine.worker import SessionSpec, unpickled
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    import xarray as xr

    from icefloe.session import Session
    from icefloe.zarr_store.session_port import SessionPort


class InputArray(Record, frozen=True):
    """An array of a read-only session, with what its stored values mean."""

    session: SessionSpec
    path: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    attributes: dict[str, Any]
    coding: Coding

    @classmethod
    def of(cls, session: Session, path: str, spec: SessionSpec | None = None) -> InputArray:
        """Look an array up in a read-only session; `spec` describes that session."""
        array = arrays.open_array(session, path)
        attributes = dict(array.attrs)
        return cls(
            session=SessionSpec.of(session) if spec is None else spec,
            path=paths.canonical(path),
            shape=array.shape,
            dims=named_dims(array),
            attributes=attributes,
            coding=coding_of(array.dtype, attributes),
        )

    @property
    def name(self) -> str:
        """The last part of its path."""
        return paths.name(self.path)

    def read(self, region: Region) -> npt.NDArray[Any]:
        """Read the stored values of a region."""
        return self.session.open().read_region(self.path, region)


def named_dims(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Return the dimension names of an array, with `dim_0`, … for those without a name."""
    return tuple(name or f"dim_{axis}" for axis, name in enumerate(arrays.dims_of(array)))


# --- arrays as functions of the region


class RepositoryArray(Record, frozen=True):
    """Stored values of an array of a committed snapshot, as a function of the region.

    Attributes:
        session: The read-only session.
        path: The path of the array.
        offset: What is added to regions to get regions of the array.
        steps: The chunk grid of the array; given with `step_bytes`, few chunks are decoded at a
            time.
        step_bytes: Bytes of chunks that may be decoded at a time.
    """

    session: SessionSpec
    path: str
    offset: tuple[int, ...] = ()
    steps: ChunkGrid | None = None
    step_bytes: int = 0

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """Read the values of a region."""
        session = self.session.open()
        place = _placed(region, self.offset)
        if self.steps is None:
            return session.read_region(self.path, place)
        grid = self.steps
        values = np.empty(shape_of(place), arrays.open_array(session, self.path).dtype)
        origin = [-part.start for part in place]
        for box in split(grid.covering(place), self.step_bytes // grid.chunk_bytes):
            part = grid.region(box, place)
            values[shifted(part, origin)] = session.read_region(self.path, part)
        return values


class ZarrArray(Record, frozen=True):
    """Values of an array of any Zarr store that can be pickled, as a function of the region."""

    store: bytes
    path: str
    offset: tuple[int, ...] = ()

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """Read the values of a region."""
        array = zarr.open_array(unpickled(self.store), path=self.path, mode="r")
        return np.asarray(array[_placed(region, self.offset)])


def _placed(region: Region, offset: tuple[int, ...]) -> Region:
    return shifted(region, offset) if offset else region


# --- coordinates


def find_coordinate(session: SessionPort, near: str, dimension: str) -> zarr.Array[Any] | None:
    """Find the coordinate of a dimension in the group of an array, or in a group above it."""
    group = paths.parent(near)
    while group is not None:
        node = session.get_node(f"{group.rstrip('/')}/{dimension}")
        if node is not None and node.is_array:
            array = arrays.open_array(session, node.path)
            if array.ndim == 1:
                return array
        group = paths.parent(group)
    return None


def copy_coordinates(
    source: SessionPort,
    target: SessionPort,
    inputs: Sequence[InputArray],
    dims: Iterable[str],
    path: str,
    *,
    replace: bool = False,
) -> None:
    """Copy coordinates of the inputs next to a new array, as xarray users expect.

    Coordinates that are there stay, unless they have another length, or other values and
    `replace` is true.
    """
    for dimension in dims:
        place = f"{(paths.parent(path) or '').rstrip('/')}/{dimension}"
        if place == path or _fits(target, place, path, dimension, replace=replace):
            continue
        candidates = (
            find_coordinate(source, each.path, dimension)
            for each in inputs
            if dimension in each.dims
        )
        stored = next((array for array in candidates if array is not None), None)
        if stored is None:
            continue
        is_same = source.snapshot_id == target.snapshot_id and paths.canonical(stored.path) == place
        if is_same or _is_copy(target, place, stored):
            continue
        new = arrays.like(stored, stored.shape, stored.shape or (1,), None)
        created = arrays.create(target, place, new, overwrite=True)
        target.write_region(created, ..., stored[...])


def _fits(target: SessionPort, place: str, path: str, dimension: str, *, replace: bool) -> bool:
    """Whether there is something that is no coordinate, or one that is to stay."""
    node = target.get_node(place)
    if node is None:
        return False
    result = arrays.open_array(target, path)
    if not node.is_array or node.array.rank != 1 or node.array.dimension_names != (dimension,):
        return True
    extent = result.shape[named_dims(result).index(dimension)]
    return bool(node.array.shape[0] == extent) and not replace


def _is_copy(target: SessionPort, place: str, stored: zarr.Array[Any]) -> bool:
    """Whether there is a coordinate that equals another."""
    if target.get_node(place) is None:
        return False
    there = arrays.open_array(target, place)
    return (
        there.shape == stored.shape
        and there.dtype == stored.dtype
        and dict(there.attrs) == dict(stored.attrs)
        and bool(np.asarray(_equal(np.asarray(there[...]), np.asarray(stored[...]))).all())
    )


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> Any:
    """Which values are equal; missing ones are."""
    both_missing = (one != one) & (other != other)  # noqa: PLR0124 (NaN)
    return (one == other) | both_missing


def decoded_coordinate(array: zarr.Array[Any], dimension: str) -> xr.DataArray:
    """Read a coordinate as xarray does: decoded, with times as times."""
    import xarray as xr

    attributes = dict(array.attrs)
    values = coding_of(array.dtype, attributes).decode(np.asarray(array[...]))
    remaining = decoded_attributes(attributes, times=True)
    return xr.Dataset(coords={dimension: (dimension, values, remaining)})[dimension]
