"""Groups of a reduction: by parts of dates (`time.month`), or by labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.cf.decoding import coding_of
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.jobs.inputs import decoded_coordinate, find_coordinate, named_dims
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.spark.jobs.inputs import InputArray
    from icefloe.zarr_store.session_port import SessionPort

CALENDAR = (
    "year",
    "season",
    "month",
    "day",
    "hour",
    "minute",
    "second",
    "dayofyear",
    "dayofweek",
    "quarter",
    "date",
)
"""Parts of dates to group by, as in `time.month`."""


class Groups(Record, frozen=True, eq=False):
    """Groups of the elements along some dimensions."""

    name: str
    """Name of the new dimension."""
    dims: tuple[str, ...]
    """Dimensions of the codes, in the order of the array."""
    codes: Any
    """Number of the group of each element; -1: in no group."""
    labels: Any
    """Labels of the groups, sorted: the coordinate of the new dimension."""

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.labels)


def find_groups(by: Any, array: InputArray, session: SessionPort) -> Groups:
    """Read groups as users pass them: `time.month`, the path of an array of labels, or labels.

    Labels are an array along one or more dimensions of `array`: an xarray DataArray, or a tuple
    (dimensions, values).
    """
    if isinstance(by, str):
        dimension, _, part = by.partition(".")
        if part and dimension in array.dims:
            return _calendar(array, session, dimension, part)
        name, dims, values = _labels_from(by, array, session)
    elif hasattr(by, "dims") and hasattr(by, "values"):
        name, dims, values = by.name or "group", tuple(map(str, by.dims)), np.asarray(by.values)
    elif isinstance(by, tuple):
        dims, values = by
        dims = (dims,) if isinstance(dims, str) else tuple(dims)
        name, values = "group", np.asarray(values)
    else:
        raise InvalidInputError(
            "groups are given as 'time.month', as the path of an array of labels, as a DataArray, "
            f"or as (dimensions, values); found {by!r}"
        )
    return _of_labels(str(name), dims, values, array)


def _calendar(array: InputArray, session: SessionPort, dimension: str, part: str) -> Groups:
    if part not in CALENDAR:
        raise InvalidInputError(f"times are grouped by {', '.join(CALENDAR)}; found {part!r}")
    stored = find_coordinate(session, array.path, dimension)
    if stored is None:
        raise NodeNotFoundError(f"{array.path} has no coordinate {dimension!r} near it", dimension)
    times: Any = decoded_coordinate(stored, dimension)
    if times.dtype.kind not in "MO":
        raise InvalidInputError(f"{dimension!r} has no times: expected CF units, 'days since …'")
    values = np.asarray(getattr(times.dt, part).values)
    return _of_labels(part, (dimension,), values, array)


def labels_path(session: SessionPort, array: str, path: str) -> str:
    """The path of an array of labels: beside the array that is grouped by it, or from the root."""
    near = f"{(paths.parent(array) or '').rstrip('/')}/{path.strip('/')}"
    return near if session.get_node(near) is not None else paths.canonical(path)


def _labels_from(
    path: str, array: InputArray, session: SessionPort
) -> tuple[str, tuple[str, ...], npt.NDArray[Any]]:
    place = labels_path(session, array.path, path)
    stored = arrays.open_array(session, place)
    values = coding_of(stored.dtype, dict(stored.attrs)).decode(np.asarray(stored[...]))
    return paths.name(place), named_dims(stored), values


def _of_labels(
    name: str, dims: Sequence[str], values: npt.NDArray[Any], array: InputArray
) -> Groups:
    unknown = [each for each in dims if each not in array.dims]
    if unknown:
        raise InvalidInputError(f"{array.path} has no dimension {unknown[0]!r} to group by")
    order = sorted(range(len(dims)), key=lambda axis: array.dims.index(dims[axis]))
    values = values.transpose(order)
    ordered = tuple(dims[axis] for axis in order)
    sizes = tuple(array.shape[array.dims.index(each)] for each in ordered)
    if values.shape != sizes:
        raise InvalidInputError(f"labels have the shape {values.shape}; {array.path} has {sizes}")
    missing = _missing(values)
    if values.dtype.kind == "O":
        values = values.astype(str)
    labels, inverse = np.unique(values[~missing], return_inverse=True)
    codes = np.full(values.shape, -1, dtype=np.int64)
    codes[~missing] = inverse
    if len(labels) == 0:
        raise InvalidInputError("no element is in any group")
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all():
        labels = labels.astype("i8")  # integers with missing values among them
    return Groups(name=name, dims=ordered, codes=codes, labels=labels)


def _missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if values.dtype.kind in "fmM":
        return np.asarray(np.isnan(values))
    if values.dtype.kind == "O":
        none = [one is None or one != one for one in values.flat]  # noqa: PLR0124 (NaN)
        return np.array(none, dtype=bool).reshape(values.shape)
    return np.zeros(values.shape, dtype=bool)


def codes_of_block(
    groups: Groups, reduced: Sequence[str], region: dict[str, slice]
) -> npt.NDArray[np.intp]:
    """Return the groups of the elements of a block, broadcast to all reduced dimensions."""
    part = groups.codes[tuple(region[name] for name in groups.dims)]
    sizes = [region[name].stop - region[name].start for name in reduced]
    spread = part[tuple(slice(None) if name in groups.dims else None for name in reduced)]
    return np.broadcast_to(spread, sizes).astype(np.intp)
