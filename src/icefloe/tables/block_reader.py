"""Reads blocks of a table as Arrow batches: one row per cell, per line of cells or per chunk."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.tables import where as conditions
from icefloe.tables.splits import chunk_boxes, sub_boxes
from icefloe.tables.table_plan import EXTENT, START
from icefloe.tables.zarr_arrays import open_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.tables.schema import Variable
    from icefloe.tables.splits import Boxes
    from icefloe.tables.table_plan import TablePlan
    from icefloe.zarr_store.session_port import SessionPort


class BlockReader:
    """Reads the blocks of a plan through a session."""

    def __init__(self, session: SessionPort, plan: TablePlan) -> None:
        """Take the session of the snapshot that was planned; reads nothing yet."""
        self._session = session
        self._plan = plan
        self._table = plan.table
        self._schema: pa.Schema = plan.schema()
        self._arrays: dict[str, Any] = {}

    def read(self, boxes: Boxes) -> Iterator[pa.RecordBatch]:
        """The batches of some blocks, one block after the other."""
        for box in boxes:
            if self._plan.request.layout == "chunks":
                for part in chunk_boxes(self._plan.chunks, box):
                    yield self._chunk_row(part, self._read_block(part))
                continue
            block = self._read_block(box)
            if self._plan.request.layout == "lines":
                yield from self._lines(box, block)
            else:
                yield from self._cells(box, block)

    def _read_block(self, box: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        """The stored values of all needed variables in a block, with axes in the table's order."""
        places = {
            axis.dim: axis.at(int(start), int(stop))
            for axis, (start, stop) in zip(self._plan.axes, box, strict=True)
        }
        block = {}
        for name in self._plan.needed:
            if name in self._table.dims:
                continue
            variable = self._table.variable(name)
            assert variable is not None
            block[name] = self._read_variable(variable, places)
        return block

    def _read_variable(self, variable: Variable, places: dict[str, Any]) -> npt.NDArray[Any]:
        chosen = tuple(places[dim] for dim in variable.dims)
        if all(isinstance(one, slice) for one in chosen):
            values = self._session.read_region(variable.path, chosen if chosen else ...)
        else:
            values = np.asarray(self._array(variable.path).oindex[chosen])
        # Axes in the order of the table, of length 1 where the variable lacks a dimension.
        order = [variable.dims.index(d) for d in self._table.dims if d in variable.dims]
        shape = [
            values.shape[variable.dims.index(d)] if d in variable.dims else 1
            for d in self._table.dims
        ]
        return values.transpose(order).reshape(shape)

    def _array(self, path: str) -> Any:
        if path not in self._arrays:
            self._arrays[path] = open_array(self._session, path)
        return self._arrays[path]

    def _decoded(
        self, name: str, values: npt.NDArray[Any], part: Sequence[slice], shape: tuple[int, ...]
    ) -> pa.Array:
        """A column of a part of a block; a variable with fewer dimensions is repeated."""
        variable = self._table.variable(name)
        assert variable is not None
        # A dimension that the variable lacks has length 1 and is taken whole.
        own = tuple(
            one if dim in variable.dims else slice(None)
            for one, dim in zip(part, self._table.dims, strict=True)
        )
        piece = values[own]
        column = variable.decoding.column(piece)
        return column if piece.shape == shape else _spread(column, piece.shape, shape)

    def _coordinate_column(
        self, dim: str, start: int, stop: int, shape: tuple[int, ...]
    ) -> pa.Array:
        axis = self._table.dims.index(dim)
        own = [1] * len(shape)
        own[axis] = stop - start
        return _spread(self._plan.coordinates[dim].slice(start, stop - start), tuple(own), shape)

    def _cells(
        self, box: npt.NDArray[np.int64], block: dict[str, npt.NDArray[Any]]
    ) -> Iterator[pa.RecordBatch]:
        extent = tuple((box[:, 1] - box[:, 0]).tolist())
        for part in sub_boxes(extent, self._plan.request.batch_rows):
            shape = tuple(one.stop - one.start for one in part)
            columns: dict[str, pa.Array] = {}
            for name in self._plan.needed:
                if name in self._table.dims:
                    axis = self._table.dims.index(name)
                    first = int(box[axis, 0])
                    here = part[axis]
                    columns[name] = self._coordinate_column(
                        name, first + here.start, first + here.stop, shape
                    )
                else:
                    columns[name] = self._decoded(name, block[name], part, shape)
            batch = pa.RecordBatch.from_arrays(
                [columns[name] for name in self._plan.columns], schema=self._schema
            )
            if self._plan.condition is not None:
                batch = batch.filter(conditions.evaluate(self._plan.condition, columns))
            if batch.num_rows:
                yield batch

    def _lines(
        self, box: npt.NDArray[np.int64], block: dict[str, npt.NDArray[Any]]
    ) -> Iterator[pa.RecordBatch]:
        rank, inner = len(self._table.dims), self._plan.inner_dims
        extent = tuple((box[:, 1] - box[:, 0]).tolist())
        line = extent[rank - inner :]
        length = prod(line)
        lines = max(1, self._plan.request.batch_rows // max(1, length))
        starts = box[rank - inner :, 0].tolist()
        for outer in sub_boxes(extent[: rank - inner], lines):
            part = (*outer, *(slice(0, size) for size in line))
            shape = tuple(one.stop - one.start for one in part)
            rows = prod(shape[: rank - inner])
            columns = []
            for field in self._schema:
                if field.name in (START, EXTENT):
                    columns.append(_constant(starts if field.name == START else line, rows))
                elif field.name in self._table.dims:
                    columns.append(self._line_coordinate(field.name, box, part, inner))
                else:
                    cells = self._decoded(field.name, block[field.name], part, shape)
                    columns.append(_lists(cells, rows, length))
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _line_coordinate(
        self, dim: str, box: npt.NDArray[np.int64], part: Sequence[slice], inner: int
    ) -> pa.Array:
        """A coordinate of lines: one value for a row, or all of an inner dimension as a list."""
        axis = self._table.dims.index(dim)
        start, stop = (int(box[axis, 0]) + at for at in (part[axis].start, part[axis].stop))
        outer = tuple(one.stop - one.start for one in part[: len(part) - inner])
        if axis < len(outer):
            return self._coordinate_column(dim, start, stop, (*outer, *(1,) * inner))
        values = self._plan.coordinates[dim].slice(start, stop - start)
        rows = prod(outer)
        again = np.tile(np.arange(len(values), dtype=np.int64), rows)
        return _lists(values.take(pa.array(again)), rows, len(values))

    def _chunk_row(
        self, box: npt.NDArray[np.int64], block: dict[str, npt.NDArray[Any]]
    ) -> pa.RecordBatch:
        shape = tuple((box[:, 1] - box[:, 0]).tolist())
        part = tuple(slice(0, size) for size in shape)
        corner = [
            int(axis.numbers()[start])
            for axis, start in zip(self._plan.axes, box[:, 0], strict=True)
        ]
        columns = [
            pa.array([corner], pa.list_(pa.int64())),
            pa.array([shape], pa.list_(pa.int32())),
        ]
        for name in self._plan.columns:
            if name in self._table.dims:
                start, stop = box[self._table.dims.index(name)].tolist()
                cells = self._plan.coordinates[name].slice(start, stop - start)
            else:
                cells = self._decoded(name, block[name], part, shape)
            columns.append(_lists(cells, 1, len(cells)))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _lists(cells: pa.Array, rows: int, length: int) -> pa.Array:
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(length)
    return pa.ListArray.from_arrays(pa.array(offsets), cells)


def _constant(values: Sequence[int], rows: int) -> pa.Array:
    repeated = np.tile(np.asarray(values, dtype=np.int32), rows)
    return _lists(pa.array(repeated), rows, len(values))


def _spread(column: pa.Array, own: tuple[int, ...], shape: tuple[int, ...]) -> pa.Array:
    """Repeat a column along the dimensions in which it has length 1."""
    if own == shape:
        return column
    if column.null_count == 0 and _is_fixed(column.type):
        plain = column.view(f"int{column.type.bit_width}").to_numpy(zero_copy_only=True)
        spread = np.broadcast_to(plain.reshape(own), shape).reshape(-1)
        return pa.array(np.ascontiguousarray(spread)).view(column.type)
    rows = np.arange(len(column), dtype=np.int64).reshape(own)
    return column.take(pa.array(np.broadcast_to(rows, shape).reshape(-1)))


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_timestamp(kind)
    )
