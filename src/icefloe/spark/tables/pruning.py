"""Which chunks may have a wanted cell, by coordinates, by statistics and by what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.spark.tables import where as conditions
from icefloe.spark.tables.where import Both, Bounds, Compare, Either

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.spark.tables.scanning import Scan
    from icefloe.spark.tables.where import Condition

    Keep = npt.NDArray[np.bool_] | None


def needed_chunks(scan: Scan) -> Keep:
    """For each chunk of the scan's grid whether it is needed; None if all are."""
    keep: Keep = None
    if scan.condition is not None:
        bounds = {dim: _coordinate_bounds(scan, dim) for dim in scan.layout.dims}
        found = conditions.may_match(_plain(scan.condition, scan), bounds)
        keep = np.broadcast_to(np.asarray(found), scan.grid.shape)
    return keep


def _plain(condition: Condition, scan: Scan) -> Condition:
    """The condition with values in the form that bounds have: times as microseconds."""
    match condition:
        case Compare(name, operator, value):
            kind = scan.layout.field(name).type
            literal = conditions.literal_for(kind, name, value)
            if pa.types.is_timestamp(kind):
                literal = literal.cast(pa.int64())
            return Compare(name, operator, literal.as_py())
        case Both(parts):
            return Both(tuple(_plain(part, scan) for part in parts))
        case Either(parts):
            return Either(tuple(_plain(part, scan) for part in parts))
    return condition


def _coordinate_bounds(scan: Scan, dim: str) -> Bounds:
    """Bounds of a coordinate in each run of chunks along its own dimension."""
    axis = scan.layout.dims.index(dim)
    edges = scan.grid.edges[axis]
    column = scan.coordinates[dim]
    shape = [1] * len(scan.layout.dims)
    shape[axis] = len(edges) - 1
    values = _comparable(column)
    if values is None or not len(column):
        unknown = np.zeros(shape, dtype=bool)
        return Bounds(unknown, unknown, unknown, ~unknown, unknown)
    starts = edges[:-1]
    low = np.minimum.reduceat(values, starts).reshape(shape)
    high = np.maximum.reduceat(values, starts).reshape(shape)
    known = np.ones(shape, dtype=bool)
    return Bounds(low, high, known, ~known, ~known)


def _comparable(column: pa.Array) -> npt.NDArray[Any] | None:
    if column.null_count:
        return None
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        return None if np.isnan(values).any() else values
    return values if values.dtype.kind in "iu" else None
