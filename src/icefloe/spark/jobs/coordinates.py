"""Coordinates of results: copied from the inputs, so that xarray users find what they expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.cf.decoding import coding_of, decoded_attributes
from icefloe.model import paths
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import xarray as xr
    import zarr

    from icefloe.session import Session
    from icefloe.spark.jobs.inputs import InputArray


def coordinate(session: Session, near: str, dimension: str) -> zarr.Array[Any] | None:
    """The coordinate of a dimension, from the group of an array or from one above it."""
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
    source: Session, target: Session, inputs: Sequence[InputArray], dims: Iterable[str], path: str
) -> None:
    """Put the coordinates of some dimensions next to a new array, unless it has them in reach."""
    for dimension in dims:
        place = f"{(paths.parent(path) or '').rstrip('/')}/{dimension}"
        if place == path or target.get_node(place) is not None:
            continue
        found = None
        for each in inputs:
            if dimension in each.dims:
                found = found or coordinate(source, each.path, dimension)
        if found is not None:
            new = arrays.like(found, found.shape, found.shape or (1,), None)
            created = arrays.create(target, place, new)
            target.write_region(created, ..., found[...])


def decoded_coordinate(array: zarr.Array[Any], dimension: str) -> xr.DataArray:
    """A coordinate as xarray shows it: times as times."""
    import xarray as xr

    attributes = dict(array.attrs)
    values = coding_of(array.dtype, attributes).decode(np.asarray(array[...]))
    kept = decoded_attributes(attributes, times=True)
    return xr.Dataset(coords={dimension: (dimension, values, kept)})[dimension]
