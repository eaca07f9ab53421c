"""Change data: which cells were inserted, updated and deleted between two snapshots, with values.

A cell is identified by its coordinates. It exists if one of its variables over all dimensions has a
value, so setting all of them to missing deletes it, and so does a smaller array. Only chunks that
changed are read, of both snapshots, and compared cell by cell.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import InvalidInputError
from icefloe.tables.pruning import changed_chunks
from icefloe.tables.splits import divide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.tables.splits import Boxes
    from icefloe.tables.table_plan import ScanRequest
    from icefloe.tables.table_scan import Scan

CHANGE_TYPE = "_change_type"
SNAPSHOT = "_commit_snapshot_id"
INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
_OLD, _NEW = "\0old", "\0new"
"""Suffixes of columns, and names of the marks of both sides: no variable has such a name."""


def change_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a table with those that tell of changes."""
    taken = [name for name in schema.names if name.lower() in (CHANGE_TYPE, SNAPSHOT)]
    if taken:
        raise InvalidInputError(
            f"change data has the columns {CHANGE_TYPE} and {SNAPSHOT} of its own, and so cannot "
            f"have the variable {taken[0]!r}; leave it out with columns"
        )
    return schema.append(pa.field(CHANGE_TYPE, pa.string())).append(pa.field(SNAPSHOT, pa.string()))


def check_change_request(request: ScanRequest) -> None:
    """Raise InvalidInputError for a selection of cells: which ones match could change, too."""
    chosen = {"sel": request.sel, "isel": request.isel, "where": request.where}
    wrong = [name for name, value in chosen.items() if value]
    if wrong or request.layout != "cells":
        what = wrong[0] if wrong else "layout"
        raise InvalidInputError(
            f"change data is about all cells, so {what!r} is not possible with it; filter its rows"
        )


class ChangeScan:
    """The changes of a table between two snapshots; everything is new without an earlier one."""

    def __init__(self, before: Scan | None, after: Scan, columns: Sequence[str]) -> None:
        """Take scans of the whole table, and the columns to return."""
        dims = after.plan.table.dims
        if before is not None and before.plan.table.dims != dims:
            raise InvalidInputError(
                f"the table had the dimensions {', '.join(before.plan.table.dims)} and has "
                f"{', '.join(dims)}, so its cells cannot be compared; begin at a later snapshot"
            )
        if not dims:
            raise InvalidInputError(
                "change data is about cells, and a table without dimensions has none"
            )
        self._columns = tuple(columns)
        self._after = _with_columns(after, (*dims, *(n for n in columns if n not in dims)))
        self._before = None
        if before is not None:
            known = [n for n in columns if n in before.plan.table.names and n not in dims]
            self._before = _with_columns(before, (*dims, *known))
        self._dims = dims
        self.schema = change_schema(self._after.plan.table.schema(self._columns))

    def splits(self) -> list[Boxes]:
        """Blocks of positions that may have changes, divided into tasks of bounded size."""
        if self._before is None:
            return self._after.splits()
        plan = self._after.plan
        keep = changed_chunks(self._after.session, plan, self._before.session.snapshot_id)
        for axis, dim in enumerate(self._dims):
            moved = self._relabelled(self._before, dim)
            if moved.any():
                edges = plan.chunks.edges[axis]
                touched = np.add.reduceat(moved, edges[:-1]) > 0
                shape = [1] * len(self._dims)
                shape[axis] = len(touched)
                keep = keep | touched.reshape(shape)
        return [
            *divide(
                plan.chunks,
                plan.table.cell_bytes(plan.needed),
                keep=keep,
                task_bytes=plan.request.task_bytes,
            ),
            *self._lost(self._before),
        ]

    def _relabelled(self, before: Scan, dim: str) -> npt.NDArray[np.int64]:
        """Positions along a dimension whose coordinate differs from the earlier one."""
        old, new = before.plan.coordinates[dim], self._after.plan.coordinates[dim]
        common = min(len(old), len(new))
        moved = np.zeros(len(new), dtype=np.int64)
        if common:
            differs = _differ(old.slice(0, common).cast(new.type), new.slice(0, common))
            moved[:common] = differs.to_numpy(zero_copy_only=False)
        return moved

    def _lost(self, before: Scan) -> list[Boxes]:
        """Blocks of positions that no longer exist."""
        plan, shape = before.plan, self._after.plan.table.shape
        keep = np.zeros(plan.chunks.shape, dtype=np.bool_)
        for axis, size in enumerate(shape):
            ends = plan.chunks.edges[axis][1:]
            keep |= (ends > size).reshape([-1 if at == axis else 1 for at in range(len(shape))])
        boxes = divide(plan.chunks, plan.table.cell_bytes(plan.needed), keep=keep)
        beyond = [_beyond(each, np.array(shape, dtype=np.int64)) for each in boxes]
        return [each for each in beyond if len(each)]

    def read(self, boxes: Boxes) -> Iterator[pa.RecordBatch]:
        """The changes in some blocks."""
        snapshot_id = self._after.session.snapshot_id
        for box in boxes:
            after = _rows(self._after, box)
            before = None if self._before is None else _rows(self._before, box)
            for kind, rows in self._compared(before, after):
                if rows.num_rows:
                    told = [pa.repeat(kind, rows.num_rows), pa.repeat(snapshot_id, rows.num_rows)]
                    columns = [rows.column(name) for name in self._columns]
                    table = pa.table([*columns, *told], schema=self.schema)
                    yield from table.to_batches()

    def _compared(self, before: pa.Table | None, after: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        values = [name for name in after.schema.names if name not in self._dims]
        telling = self._telling(values)
        after = after.filter(_exists(after, telling))
        if before is None:
            yield INSERT, after
            return
        for name in values:
            if name not in before.schema.names:
                none = pa.nulls(before.num_rows, after.schema.field(name).type)
                before = before.append_column(name, none)
        before = before.select(after.schema.names).cast(after.schema)
        before = before.filter(_exists(before, telling))
        both = before.append_column(_OLD, pa.repeat(True, before.num_rows)).join(  # noqa: FBT003
            after.append_column(_NEW, pa.repeat(True, after.num_rows)),  # noqa: FBT003
            keys=list(self._dims),
            join_type="full outer",
            left_suffix=_OLD,
            right_suffix=_NEW,
        )
        was, is_now = pc.is_valid(both.column(_OLD)), pc.is_valid(both.column(_NEW))
        pairs = [(both.column(name + _OLD), both.column(name + _NEW)) for name in values]
        differs = reduce(pc.or_, (_differ(*pair) for pair in pairs))
        updated = pc.and_(pc.and_(was, is_now), differs)
        yield DELETE, self._side(both, pc.and_(was, pc.invert(is_now)), _OLD)
        yield BEFORE, self._side(both, updated, _OLD)
        yield AFTER, self._side(both, updated, _NEW)
        yield INSERT, self._side(both, pc.and_(is_now, pc.invert(was)), _NEW)

    def _telling(self, values: list[str]) -> list[str]:
        """The variables that tell whether a cell exists: those over all dimensions."""
        table = self._after.plan.table
        full = [
            name
            for name in values
            if (variable := table.variable(name)) is not None
            and set(variable.dims) == set(self._dims)
        ]
        if not full:
            raise InvalidInputError(
                "change data needs a variable over all dimensions "
                f"({', '.join(self._dims)}) among its columns"
            )
        return full

    def _side(self, both: pa.Table, rows: pa.ChunkedArray, suffix: str) -> pa.Table:
        chosen = both.filter(rows)
        names = [name if name in self._dims else name + suffix for name in self._columns]
        return pa.table([chosen.column(name) for name in names], names=list(self._columns))


def _with_columns(scan: Scan, columns: Sequence[str]) -> Scan:
    request = scan.plan.request
    return scan.with_request(msgspec.structs.replace(request, columns=tuple(columns)))


def _rows(scan: Scan, box: npt.NDArray[np.int64]) -> pa.Table:
    """The rows of a block, as far as the table has it."""
    shape = np.array(scan.plan.table.shape, dtype=np.int64)
    clipped = np.minimum(box, shape[:, np.newaxis])
    is_empty = bool((clipped[:, 0] >= clipped[:, 1]).any())
    batches = [] if is_empty else list(scan.read(clipped[np.newaxis]))
    return pa.Table.from_batches(batches, schema=scan.schema)


def _beyond(boxes: Boxes, shape: npt.NDArray[np.int64]) -> Boxes:
    """The parts of blocks that are outside of a shape, disjoint."""
    parts = []
    for axis, size in enumerate(shape.tolist()):
        outer = boxes.copy()
        outer[:, axis, 0] = np.maximum(outer[:, axis, 0], size)
        parts.append(outer)
        boxes = boxes.copy()
        boxes[:, axis, 1] = np.minimum(boxes[:, axis, 1], size)
    every = np.concatenate(parts)
    chosen: Boxes = every[(every[:, :, 0] < every[:, :, 1]).all(axis=1)]
    return chosen


def _exists(rows: pa.Table, telling: Sequence[str]) -> pa.ChunkedArray:
    return reduce(pc.or_, (pc.is_valid(rows.column(name)) for name in telling))


def _differ(old: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where two columns differ; missing values are equal to each other, and so is NaN."""
    differs = pc.fill_null(pc.not_equal(old, new), False)  # noqa: FBT003
    if pa.types.is_floating(old.type):
        nans = pc.and_(
            pc.fill_null(pc.is_nan(old), False),  # noqa: FBT003
            pc.fill_null(pc.is_nan(new), False),  # noqa: FBT003
        )
        differs = pc.and_(differs, pc.invert(nans))
    return pc.or_(differs, pc.xor(pc.is_valid(old), pc.is_valid(new)))
