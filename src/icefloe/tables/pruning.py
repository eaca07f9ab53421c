"""Which chunks may have a wanted cell, by coordinates, by statistics and by what changed."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.engine.history.walk import Revision
from icefloe.model.ids import SnapshotId
from icefloe.tables import where as conditions
from icefloe.tables.statistics import decoded_bounds, read_entries
from icefloe.tables.where import Both, Bounds, Compare, Either

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.session import Session
    from icefloe.tables.columns import Variable
    from icefloe.tables.scanning import Scan
    from icefloe.tables.where import Condition

    Keep = npt.NDArray[np.bool_] | None


def needed_chunks(scan: Scan) -> Keep:
    """For each chunk of the scan's grid whether it is needed; None if all are."""
    keep: Keep = None
    if scan.condition is not None:
        bounds = {
            dim: known
            for dim in scan.layout.dims
            if (known := _coordinate_bounds(scan, dim)) is not None
        }
        for name in conditions.columns_of(scan.condition) - set(scan.layout.dims):
            known = _variable_bounds(scan, name) if scan.request.use_statistics else None
            if known is not None:
                bounds[name] = known
        found = conditions.may_match(_plain(scan.condition, scan), bounds)
        keep = np.broadcast_to(np.asarray(found), scan.grid.shape)
    if scan.request.changed_since is not None:
        changed = _changed(scan, scan.request.changed_since)
        keep = changed if keep is None else keep & changed
    return keep


def _plain(condition: Condition, scan: Scan) -> Condition:
    """The condition with values in the form that bounds have: times as microseconds."""
    match condition:
        case Compare(name, operator, value):
            kind = scan.layout.field(name).type
            literal = conditions.literal_for(kind, name, value)
            if pa.types.is_timestamp(kind):
                literal = literal.cast(pa.int64())
            plain = literal.as_py()
            # Bounds are floats, and only such that float64 has exactly.
            return Compare(name, operator, float(plain) if isinstance(plain, Decimal) else plain)
        case Both(parts):
            return Both(tuple(_plain(part, scan) for part in parts))
        case Either(parts):
            return Either(tuple(_plain(part, scan) for part in parts))
    return condition


def _coordinate_bounds(scan: Scan, dim: str) -> Bounds | None:
    """Bounds of a coordinate in each run of chunks along its own dimension; None for texts."""
    axis = scan.layout.dims.index(dim)
    edges = scan.grid.edges[axis]
    column = scan.coordinates[dim]
    shape = [1] * len(scan.layout.dims)
    shape[axis] = len(edges) - 1
    values = _comparable(column)
    if values is None or not len(column):
        return None
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


# --- statistics


def _variable_bounds(scan: Scan, name: str) -> Bounds | None:
    """Bounds of a variable in each chunk, by the statistics that are true of it now."""
    variable = scan.layout.variable(name)
    if variable is None or not variable.decoding.is_monotone:
        return None
    nans_count = not variable.decoding.reading.nan_is_null
    if nans_count and np.dtype(variable.decoding.dtype).kind == "f":
        return None  # NaN is a value then, and larger than all others
    entries = read_entries(scan.session, variable)
    places = _own_chunks(scan, variable)
    if entries is None or places is None:
        return None
    numbers, current = entries
    own = np.ix_(*places)
    low, high, safe = decoded_bounds(numbers[own], variable.decoding)
    current = current[own]
    missing = numbers[own][..., 2]
    only_null = current & np.isnan(numbers[own][..., 0])
    found = Bounds(low, high, current & (safe | only_null), missing > 0, only_null)
    return _spread_bounds(found, scan, variable)


def _own_chunks(scan: Scan, variable: Variable) -> list[npt.NDArray[np.int64]] | None:
    """For each dimension of a variable its chunk for each run of the grid; None if not one."""
    places = []
    for dim, unit in zip(variable.dims, variable.units, strict=True):
        first, last = _run_ends(scan, dim)
        if (first // unit != last // unit).any():
            return None
        places.append(first // unit)
    return places


def _run_ends(scan: Scan, dim: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and last position of each run of the grid along a dimension."""
    axis = scan.layout.dims.index(dim)
    edges = scan.grid.edges[axis]
    numbers = scan.axes[axis].numbers()
    return numbers[edges[:-1]], numbers[edges[1:] - 1]


def _in_table_order(values: npt.NDArray[Any], scan: Scan, variable: Variable) -> npt.NDArray[Any]:
    """Something by chunk of a variable, so that it broadcasts against the grid of the table."""
    order = [variable.dims.index(d) for d in scan.layout.dims if d in variable.dims]
    shape = [
        values.shape[variable.dims.index(d)] if d in variable.dims else 1 for d in scan.layout.dims
    ]
    return values.transpose(order).reshape(shape)


def _spread_bounds(found: Bounds, scan: Scan, variable: Variable) -> Bounds:
    return Bounds(
        *(
            _in_table_order(column, scan, variable)
            for column in (found.low, found.high, found.known, found.some_null, found.only_null)
        )
    )


# --- what changed


def _changed(scan: Scan, since: str) -> npt.NDArray[np.bool_]:
    """Chunks of the grid in which a variable changed after a snapshot.

    Only variables over all dimensions count: whoever appends to a dataset with xarray writes its
    small coordinates anew, and that changes no cell.
    """
    diff = changes_since(scan.session, since)
    every = set(scan.layout.dims)
    keep = np.zeros(scan.grid.shape, dtype=bool)
    for name in scan.needed:
        variable = scan.layout.variable(name)
        index = None if variable is None else diff.get(variable.path)
        if variable is None or index is None or set(variable.dims) != every:
            continue
        grid = [-(-size // unit) for size, unit in zip(variable.shape, variable.units, strict=True)]
        touched = np.zeros(grid, dtype=bool)
        coords = index.coords().astype(np.int64)
        inside = (coords < np.array(grid, dtype=np.int64)).all(axis=1)
        touched[tuple(coords[inside].T)] = True
        for axis, (dim, unit) in enumerate(zip(variable.dims, variable.units, strict=True)):
            first, last = (ends // unit for ends in _run_ends(scan, dim))
            touched = _any_between(touched, axis, first, last)
        keep |= _in_table_order(touched, scan, variable)
    return keep


def _any_between(
    touched: npt.NDArray[np.bool_],
    axis: int,
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Whether anything is set between two places of an axis, for many such pairs."""
    sums = np.cumsum(touched, axis=axis, dtype=np.int64)
    sums = np.concatenate([np.zeros_like(np.take(sums, [0], axis=axis)), sums], axis=axis)
    return np.take(sums, last + 1, axis=axis) > np.take(sums, first, axis=axis)


def changes_since(session: Session, since: str) -> dict[str, ChunkIndex]:
    """The chunks that changed between a snapshot and that of a session, by path of the array."""
    history = session.tree.context.history
    older = history.resolve(Revision(snapshot_id=since))
    newer = SnapshotId.from_text(session.snapshot_id)
    return {} if older == newer else history.diff(older, newer).chunk_indexes()
