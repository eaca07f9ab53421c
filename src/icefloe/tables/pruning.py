"""Leaves out chunks that cannot have a matching cell: by coordinates, statistics or changes."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.engine.history.walk import Revision
from icefloe.model.ids import SnapshotId
from icefloe.tables import where as conditions
from icefloe.tables.splits import divide
from icefloe.tables.statistics import decoded_bounds, read_entries
from icefloe.tables.where import Both, Bounds, Compare, Either

if TYPE_CHECKING:
    import numpy.typing as npt

    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.tables.schema import Variable
    from icefloe.tables.splits import Boxes
    from icefloe.tables.table_plan import TablePlan
    from icefloe.tables.where import Condition
    from icefloe.zarr_store.session_port import SessionPort

    Keep = npt.NDArray[np.bool_] | None


def plan_splits(session: SessionPort, plan: TablePlan) -> list[Boxes]:
    """The blocks of each task, without chunks that cannot have a matching cell."""
    return divide(
        plan.chunks,
        plan.table.cell_bytes(plan.needed),
        keep=_needed_chunks(session, plan),
        task_bytes=plan.request.task_bytes,
    )


def _needed_chunks(session: SessionPort, plan: TablePlan) -> Keep:
    """For each selected chunk whether it is needed; None if all are."""
    keep: Keep = None
    if plan.condition is not None:
        bounds = {
            dim: known
            for dim in plan.table.dims
            if (known := _coordinate_bounds(plan, dim)) is not None
        }
        for one in conditions.comparisons_of_parts(plan.condition):
            known = (
                _coordinate_bounds(plan, one.column, one.part)
                if one.column in plan.table.dims
                else None
            )
            if known is not None:
                bounds[conditions.bounds_key(one.column, one.part)] = known
        for name in conditions.columns_of(plan.condition) - set(plan.table.dims):
            known = _variable_bounds(session, plan, name) if plan.request.use_statistics else None
            if known is not None:
                bounds[name] = known
        found = conditions.may_match(_plain(plan.condition, plan), bounds)
        keep = np.broadcast_to(np.asarray(found), plan.chunks.shape)
    if plan.request.changed_since is not None:
        changed = changed_chunks(session, plan, plan.request.changed_since)
        keep = changed if keep is None else keep & changed
    return keep


def _plain(condition: Condition, plan: TablePlan) -> Condition:
    """The condition with values in the form that bounds have: times as microseconds."""
    match condition:
        case Compare(name, operator, value, None):
            kind = plan.table.field(name).type
            literal = conditions.literal_for(kind, name, value)
            if pa.types.is_timestamp(kind):
                literal = literal.cast(pa.int64())
            plain = literal.as_py()
            # Bounds are floats, and only such that float64 has exactly.
            return Compare(name, operator, float(plain) if isinstance(plain, Decimal) else plain)
        case Both(parts):
            return Both(tuple(_plain(part, plan) for part in parts))
        case Either(parts):
            return Either(tuple(_plain(part, plan) for part in parts))
    return condition


def _coordinate_bounds(plan: TablePlan, dim: str, part: str | None = None) -> Bounds | None:
    """The bounds of a coordinate in each selected chunk along its dimension; None for text.

    With `part`, the bounds of a part of its times.
    """
    axis = plan.table.dims.index(dim)
    edges = plan.chunks.edges[axis]
    column = plan.coordinates[dim]
    shape = [1] * len(plan.table.dims)
    shape[axis] = len(edges) - 1
    values = _comparable(column if part is None else conditions.TIME_PARTS[part](column))
    if values is None or not len(column):
        return None
    starts = edges[:-1]
    low = np.minimum.reduceat(values, starts).reshape(shape)
    high = np.maximum.reduceat(values, starts).reshape(shape)
    known = np.ones(shape, dtype=bool)
    return Bounds(low=low, high=high, known=known, some_null=~known, only_null=~known)


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


def _variable_bounds(session: SessionPort, plan: TablePlan, name: str) -> Bounds | None:
    """The bounds of a variable in each chunk, by statistics that are up to date."""
    variable = plan.table.variable(name)
    if variable is None or not variable.decoding.is_monotone:
        return None
    nans_count = not variable.decoding.reading.nan_is_null
    if nans_count and np.dtype(variable.decoding.dtype).kind == "f":
        return None  # NaN is a value then, and larger than all others
    entries = read_entries(session, variable)
    places = _own_chunks(plan, variable)
    if entries is None or places is None:
        return None
    numbers, current = entries
    own = np.ix_(*places)
    low, high, safe = decoded_bounds(numbers[own], variable.decoding)
    current = current[own]
    missing = numbers[own][..., 2]
    only_null = current & np.isnan(numbers[own][..., 0])
    known = current & (safe | only_null)
    parts = {"low": low, "high": high, "known": known, "some_null": missing > 0}
    parts["only_null"] = only_null
    return Bounds(**{name: _in_table_order(v, plan, variable) for name, v in parts.items()})


def _own_chunks(plan: TablePlan, variable: Variable) -> list[npt.NDArray[np.int64]] | None:
    """For each dimension of a variable its chunk for each run of the grid; None if not one."""
    places = []
    for dim, unit in zip(variable.dims, variable.units, strict=True):
        first, last = _run_ends(plan, dim)
        if (first // unit != last // unit).any():
            return None
        places.append(first // unit)
    return places


def _run_ends(plan: TablePlan, dim: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and last position of each run of the grid along a dimension."""
    axis = plan.table.dims.index(dim)
    edges = plan.chunks.edges[axis]
    numbers = plan.axes[axis].numbers()
    return numbers[edges[:-1]], numbers[edges[1:] - 1]


def _in_table_order(
    values: npt.NDArray[Any], plan: TablePlan, variable: Variable
) -> npt.NDArray[Any]:
    """Something by chunk of a variable, so that it broadcasts against the grid of the table."""
    order = [variable.dims.index(d) for d in plan.table.dims if d in variable.dims]
    shape = [
        values.shape[variable.dims.index(d)] if d in variable.dims else 1 for d in plan.table.dims
    ]
    return values.transpose(order).reshape(shape)


# --- what changed


def changed_chunks(session: SessionPort, plan: TablePlan, since: str) -> npt.NDArray[np.bool_]:
    """Chunks of the grid in which a variable changed after a snapshot.

    Only variables over all dimensions count: appending to a dataset with xarray rewrites its
    small coordinates, which changes no cell.
    """
    diff = changes_since(session, since)
    every = set(plan.table.dims)
    keep = np.zeros(plan.chunks.shape, dtype=bool)
    for name in plan.needed:
        variable = plan.table.variable(name)
        index = None if variable is None else diff.get(variable.path)
        if variable is None or index is None or set(variable.dims) != every:
            continue
        grid = [-(-size // unit) for size, unit in zip(variable.shape, variable.units, strict=True)]
        touched = np.zeros(grid, dtype=bool)
        coords = index.coords().astype(np.int64)
        inside = (coords < np.array(grid, dtype=np.int64)).all(axis=1)
        touched[tuple(coords[inside].T)] = True
        for axis, (dim, unit) in enumerate(zip(variable.dims, variable.units, strict=True)):
            first, last = (ends // unit for ends in _run_ends(plan, dim))
            touched = _any_between(touched, axis, first, last)
        keep |= _in_table_order(touched, plan, variable)
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


def changes_since(session: SessionPort, since: str) -> dict[str, ChunkIndex]:
    """The chunks that changed between a snapshot and that of a session, by path of the array."""
    history = session.tree.context.history
    older = history.resolve(Revision(snapshot_id=since))
    newer = SnapshotId.from_text(session.snapshot_id)
    return {} if older == newer else history.diff(older, newer).chunk_indexes()
