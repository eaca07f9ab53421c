"""Reads blocks of a table and gives them as Arrow batches: cells, lines or whole chunks."""

from __future__ import annotations

import copy
import functools
import pickle
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.tables import where as conditions
from icefloe.tables.columns import TableLayout, Variable, layout_table, open_array
from icefloe.tables.places import AnySession
from icefloe.tables.planning import (
    Grid,
    box_chunks,
    chunk_boxes,
    chunk_shape_of,
    lay_grid,
    plan_tasks,
    sub_boxes,
)
from icefloe.tables.pruning import needed_chunks
from icefloe.tables.request import TableRequest
from icefloe.tables.selection import Axis, choose_axes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.session import Session
    from icefloe.tables.planning import Boxes

START = "_start"
"""With lines: for each inner dimension where the values begin, in chosen positions."""
EXTENT = "_extent"
"""With lines: how many positions each inner dimension has in this row."""
CHUNK = "chunk"
"""With chunks: the position of the first cell in the array."""
SHAPE = "shape"
_MIN_LINE_CELLS = 512
_MAX_SCANS = 8


class ScanTicket(Record, frozen=True):
    """All that a process needs to read blocks of a table."""

    session: AnySession
    request: TableRequest

    def scan(self) -> Scan:
        """The scan of this process; made once."""
        return _scan(pickle.dumps(self))


@functools.lru_cache(maxsize=_MAX_SCANS)
def _scan(packed: bytes) -> Scan:
    ticket: ScanTicket = pickle.loads(packed)
    return Scan(ticket.session.open(), ticket.request)


class Scan:
    """One table of one snapshot, with the cells that were asked for."""

    def __init__(self, session: Session, request: TableRequest) -> None:
        """Find out the columns and the chosen positions; reads coordinates, no variables."""
        self.session = session
        self.request = request
        self.layout: TableLayout = layout_table(
            session,
            request.group,
            variables=request.variables,
            dims=request.dims,
            reading=request.reading,
        )
        self.columns: tuple[str, ...] = _checked_columns(self.layout, request.columns)
        self.condition = (
            None
            if request.where is None
            else conditions.parse_condition(request.where, self.layout.names)
        )
        self._arrays: dict[str, Any] = {}
        self._all_coordinates: dict[str, pa.Array] = {
            dim: self._coordinate(dim, size)
            for dim, size in zip(self.layout.dims, self.layout.shape, strict=True)
        }
        axes = choose_axes(
            self.layout.dims, self.layout.shape, self._all_coordinates, request.sel, request.isel
        )
        self.axes, self.condition = self._narrow(axes)
        self.coordinates: dict[str, pa.Array] = {
            axis.dim: self._all_coordinates[axis.dim]
            if axis.indices is None
            else self._all_coordinates[axis.dim].take(pa.array(axis.indices))
            for axis in self.axes
        }

    def _coordinate(self, dim: str, size: int) -> pa.Array:
        index = self.layout.indexes.get(dim)
        if index is None:
            return pa.array(np.arange(size, dtype=np.int64))
        return index.decoding.column(self.session.read_region(index.path))

    def _array(self, variable: Variable) -> Any:
        found = self._arrays.get(variable.path)
        if found is None:
            found = self._arrays[variable.path] = open_array(self.session, variable.path)
        return found

    def _narrow(
        self, axes: tuple[Axis, ...]
    ) -> tuple[tuple[Axis, ...], conditions.Condition | None]:
        """Obey conditions on one coordinate by choosing positions; others are left."""
        if self.condition is None:
            return axes, None
        left = []
        narrowed = {axis.dim: axis for axis in axes}
        for part in conditions.conjuncts(self.condition):
            names = conditions.columns_of(part)
            dim = next(iter(names))
            if len(names) > 1 or dim not in narrowed:
                left.append(part)
                continue
            truth = conditions.evaluate(part, self._all_coordinates)
            positions = np.flatnonzero(truth.fill_null(False).to_numpy(zero_copy_only=False))  # noqa: FBT003
            narrowed[dim] = narrowed[dim].narrowed(positions)
        rest = None if not left else left[0] if len(left) == 1 else conditions.Both(tuple(left))
        return tuple(narrowed[axis.dim] for axis in axes), rest

    def in_form(self, request: TableRequest) -> Scan:
        """The same cells in another form: nothing is read or chosen again."""
        other = copy.copy(self)
        other.request = request
        other.columns = _checked_columns(self.layout, request.columns)
        for name in ("needed", "grid", "inner_dims"):
            other.__dict__.pop(name, None)
        return other

    # --- what there is

    @functools.cached_property
    def needed(self) -> tuple[str, ...]:
        """Columns that are read: those asked for, and those that the condition looks at."""
        extra = set() if self.condition is None else conditions.columns_of(self.condition)
        return (*self.columns, *sorted(extra - set(self.columns)))

    @functools.cached_property
    def grid(self) -> Grid:
        """The chunks that the chosen cells lie in."""
        return lay_grid(self.axes, chunk_shape_of(self.layout, self.needed))

    @functools.cached_property
    def inner_dims(self) -> int:
        """With lines: how many of the last dimensions one row holds."""
        given = self.request.inner_dims
        rank = len(self.layout.dims)
        if given is not None:
            if not 0 < given <= rank:
                raise InvalidInputError(
                    f"inner-dims is between 1 and {rank}, the number of dimensions; found {given}"
                )
            return given
        cells = 1
        for count, axis in enumerate(range(rank - 1, -1, -1), start=1):
            cells *= min(self.grid.chunk_shape[axis], max(1, len(self.axes[axis])))
            # One dimension stays outside, so that filters on it come before the explode.
            if cells >= _MIN_LINE_CELLS or count == rank - 1:
                return count
        return max(1, rank - 1)

    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        if self.request.layout == "cells":
            return self.layout.schema(self.columns)
        if self.request.layout == "lines":
            return self._line_schema()
        self._check_names(CHUNK, SHAPE)
        numbers = [pa.field(CHUNK, pa.list_(pa.int64())), pa.field(SHAPE, pa.list_(pa.int32()))]
        return pa.schema([*numbers, *map(_listed, self.layout.schema(self.columns))])

    def _check_names(self, *reserved: str) -> None:
        taken = [name for name in self.columns if name.lower() in reserved]
        if taken:
            raise InvalidInputError(
                f"the layout {self.request.layout!r} has the columns {', '.join(reserved)} of its "
                f"own, and so cannot have the variable or dimension {', '.join(taken)}; leave it "
                "out with columns, or read the layout 'cells'"
            )

    def _line_schema(self) -> pa.Schema:
        self._check_names(START, EXTENT)
        outer = set(self.layout.dims[: len(self.layout.dims) - self.inner_dims])
        fields = [self.layout.field(n) for n in self.columns if n in outer]
        fields += [pa.field(START, pa.list_(pa.int32())), pa.field(EXTENT, pa.list_(pa.int32()))]
        carried = [n for n in self.columns if n in self.request.carried and n not in outer]
        values = [n for n in self.columns if n not in self.layout.dims]
        return pa.schema([*fields, *(_listed(self.layout.field(n)) for n in (*carried, *values))])

    def tasks(self) -> list[Boxes]:
        """Blocks for each task; chunks that cannot have a wanted cell are left out."""
        keep = needed_chunks(self)
        cell = self.layout.cell_bytes(self.needed)
        return plan_tasks(self.grid, cell, keep=keep, task_bytes=self.request.task_bytes)

    def cost(self, tasks: Sequence[Boxes]) -> tuple[int, int]:
        """How many chunks of a variable tasks read, and about how many bytes all become."""
        chunks = sum(box_chunks(self.grid, boxes) for boxes in tasks)
        sizes = (
            min(length, max(1, size))
            for length, size in zip(self.grid.chunk_shape, self.layout.shape, strict=True)
        )
        return chunks, chunks * prod(sizes) * self.layout.decoded_bytes(self.needed)

    # --- reading

    def read(self, boxes: Boxes) -> Iterator[pa.RecordBatch]:
        """The batches of some blocks."""
        for box in boxes:
            if self.request.layout == "chunks":
                for part in chunk_boxes(self.grid, box):
                    yield self._chunk_row(part, self.read_block(part))
                continue
            block = self.read_block(box)
            if self.request.layout == "lines":
                yield from self._lines(box, block)
            else:
                yield from self._cells(box, block)

    def read_block(self, box: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        """Stored values of all needed variables in a block, in the order of the table."""
        places = {
            axis.dim: axis.at(int(start), int(stop))
            for axis, (start, stop) in zip(self.axes, box, strict=True)
        }
        block = {}
        for name in self.needed:
            if name in self.layout.dims:
                continue
            variable = self.layout.variable(name)
            assert variable is not None
            block[name] = self._read_variable(variable, places)
        return block

    def _read_variable(self, variable: Variable, places: dict[str, Any]) -> npt.NDArray[Any]:
        chosen = tuple(places[dim] for dim in variable.dims)
        if all(isinstance(one, slice) for one in chosen):
            values = self.session.read_region(variable.path, chosen if chosen else ...)
        else:
            values = np.asarray(self._array(variable).oindex[chosen])
        # Axes in the order of the table, of length 1 where the variable lacks a dimension.
        order = [variable.dims.index(d) for d in self.layout.dims if d in variable.dims]
        shape = [
            values.shape[variable.dims.index(d)] if d in variable.dims else 1
            for d in self.layout.dims
        ]
        return values.transpose(order).reshape(shape)

    def _decoded(
        self, name: str, values: npt.NDArray[Any], part: Sequence[slice], shape: tuple[int, ...]
    ) -> pa.Array:
        """A column of a part of a block; a variable with fewer dimensions is repeated."""
        variable = self.layout.variable(name)
        assert variable is not None
        # A dimension that the variable lacks has length 1 and is taken whole.
        own = tuple(
            one if dim in variable.dims else slice(None)
            for one, dim in zip(part, self.layout.dims, strict=True)
        )
        piece = values[own]
        column = variable.decoding.column(piece)
        return column if piece.shape == shape else _spread(column, piece.shape, shape)

    def _coordinate_column(
        self, dim: str, start: int, stop: int, shape: tuple[int, ...]
    ) -> pa.Array:
        axis = self.layout.dims.index(dim)
        own = [1] * len(shape)
        own[axis] = stop - start
        return _spread(self.coordinates[dim].slice(start, stop - start), tuple(own), shape)

    def _cells(
        self, box: npt.NDArray[np.int64], block: dict[str, npt.NDArray[Any]]
    ) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        extent = tuple((box[:, 1] - box[:, 0]).tolist())
        for part in sub_boxes(extent, self.request.batch_rows):
            shape = tuple(one.stop - one.start for one in part)
            columns: dict[str, pa.Array] = {}
            for name in self.needed:
                if name in self.layout.dims:
                    axis = self.layout.dims.index(name)
                    first = int(box[axis, 0])
                    here = part[axis]
                    columns[name] = self._coordinate_column(
                        name, first + here.start, first + here.stop, shape
                    )
                else:
                    columns[name] = self._decoded(name, block[name], part, shape)
            batch = pa.RecordBatch.from_arrays(
                [columns[name] for name in self.columns], schema=schema
            )
            if self.condition is not None:
                batch = batch.filter(conditions.evaluate(self.condition, columns))
            if batch.num_rows:
                yield batch

    def _lines(
        self, box: npt.NDArray[np.int64], block: dict[str, npt.NDArray[Any]]
    ) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        rank, inner = len(self.layout.dims), self.inner_dims
        extent = tuple((box[:, 1] - box[:, 0]).tolist())
        line = extent[rank - inner :]
        length = prod(line)
        lines = max(1, self.request.batch_rows // max(1, length))
        starts = box[rank - inner :, 0].tolist()
        for outer in sub_boxes(extent[: rank - inner], lines):
            part = (*outer, *(slice(0, size) for size in line))
            shape = tuple(one.stop - one.start for one in part)
            rows = prod(shape[: rank - inner])
            columns = []
            for field in schema:
                if field.name in (START, EXTENT):
                    columns.append(_constant(starts if field.name == START else line, rows))
                elif field.name in self.layout.dims:
                    columns.append(self._line_coordinate(field.name, box, part, inner))
                else:
                    cells = self._decoded(field.name, block[field.name], part, shape)
                    columns.append(_lists(cells, rows, length))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _line_coordinate(
        self, dim: str, box: npt.NDArray[np.int64], part: Sequence[slice], inner: int
    ) -> pa.Array:
        """A coordinate of lines: one value for a row, or all of an inner dimension as a list."""
        axis = self.layout.dims.index(dim)
        start, stop = (int(box[axis, 0]) + at for at in (part[axis].start, part[axis].stop))
        outer = tuple(one.stop - one.start for one in part[: len(part) - inner])
        if axis < len(outer):
            return self._coordinate_column(dim, start, stop, (*outer, *(1,) * inner))
        values = self.coordinates[dim].slice(start, stop - start)
        rows = prod(outer)
        again = np.tile(np.arange(len(values), dtype=np.int64), rows)
        return _lists(values.take(pa.array(again)), rows, len(values))

    def _chunk_row(
        self, box: npt.NDArray[np.int64], block: dict[str, npt.NDArray[Any]]
    ) -> pa.RecordBatch:
        schema = self.schema()
        shape = tuple((box[:, 1] - box[:, 0]).tolist())
        part = tuple(slice(0, size) for size in shape)
        corner = [
            int(axis.numbers()[start]) for axis, start in zip(self.axes, box[:, 0], strict=True)
        ]
        columns = [
            pa.array([corner], pa.list_(pa.int64())),
            pa.array([shape], pa.list_(pa.int32())),
        ]
        for name in self.columns:
            if name in self.layout.dims:
                start, stop = box[self.layout.dims.index(name)].tolist()
                cells = self.coordinates[name].slice(start, stop - start)
            else:
                cells = self._decoded(name, block[name], part, shape)
            columns.append(_lists(cells, 1, len(cells)))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _checked_columns(layout: TableLayout, columns: tuple[str, ...] | None) -> tuple[str, ...]:
    if columns is None:
        return tuple(layout.names)
    for name in columns:
        layout.field(name)
    return columns


def _listed(field: pa.Field) -> pa.Field:
    return pa.field(field.name, pa.list_(field.type))


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
