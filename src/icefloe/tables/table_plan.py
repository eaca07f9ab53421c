"""The plan of a scan: the columns, the selected cells and the chunks that they are in.

A plan is made once from a session and a request. It reads coordinates, but no variables.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.tables import where as conditions
from icefloe.tables.decoding import AS_CF, Reading
from icefloe.tables.indexing import DimSelection, select_axes
from icefloe.tables.schema import TableSchema, read_table_schema
from icefloe.tables.splits import SelectedChunks, chunk_shape_of, count_chunks, select_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.tables.splits import Boxes
    from icefloe.zarr_store.session_port import SessionPort

Layout = Literal["cells", "lines", "chunks"]
LAYOUTS: tuple[Layout, ...] = ("cells", "lines", "chunks")
DEFAULT_BATCH_ROWS = 131_072

START = "_start"
"""Column of the layout `lines`: for each inner dimension the first selected position."""
EXTENT = "_extent"
"""Column of the layout `lines`: the number of positions along each inner dimension."""
CHUNK = "chunk"
"""Column of the layout `chunks`: the position of the first cell in the array."""
SHAPE = "shape"
"""Column of the layout `chunks`: the shape of the block."""
_MIN_LINE_CELLS = 512
_LONGEST_DIMENSION = 2**31


class ScanRequest(Record, frozen=True):
    """The columns, cells and layout that a reader asks for."""

    group: str = "/"
    variables: tuple[str, ...] | None = None
    dims: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    """The columns to return; all by default."""
    sel: dict[str, Any] = msgspec.field(default_factory=dict)
    isel: dict[str, Any] = msgspec.field(default_factory=dict)
    where: str | None = None
    layout: Layout = "cells"
    inner_dims: int | None = None
    """With lines: how many of the last dimensions are in one row."""
    carried: tuple[str, ...] = ()
    """With lines: inner dimensions whose coordinate values are in every row."""
    changed_since: str | None = None
    """Only cells whose chunks changed after this snapshot."""
    task_bytes: int | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    reading: Reading = AS_CF
    use_statistics: bool = True


class TablePlan(Record, frozen=True, eq=False):
    """One table of one snapshot, and the cells that were selected from it."""

    request: ScanRequest
    table: TableSchema
    columns: tuple[str, ...]
    needed: tuple[str, ...]
    """The columns to read: those to return, and those that the condition is about."""
    condition: conditions.Condition | None
    """The rest of the condition, after the axes were narrowed by it."""
    axes: tuple[DimSelection, ...]
    coordinates: dict[str, Any]
    """The selected coordinate values of each dimension, as Arrow arrays."""
    chunks: SelectedChunks

    def with_request(self, request: ScanRequest) -> TablePlan:
        """The same cells for another list of columns or another layout."""
        return _with_columns(
            request=request,
            table=self.table,
            condition=self.condition,
            axes=self.axes,
            coordinates=self.coordinates,
        )

    @property
    def inner_dims(self) -> int:
        """With lines: how many of the last dimensions are in one row."""
        rank = len(self.table.dims)
        requested = self.request.inner_dims
        if requested is not None:
            if not 0 < requested <= rank:
                raise InvalidInputError(
                    f"inner-dims is between 1 and {rank}, the number of dimensions; found "
                    f"{requested}"
                )
            return requested
        cells = 1
        for count, axis in enumerate(range(rank - 1, -1, -1), start=1):
            cells *= min(self.chunks.chunk_shape[axis], max(1, len(self.axes[axis])))
            # One dimension stays outside, so that filters on it come before the explode.
            if cells >= _MIN_LINE_CELLS or count == rank - 1:
                return count
        return max(1, rank - 1)

    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        if self.request.layout == "cells":
            return self.table.schema(self.columns)
        if self.request.layout == "lines":
            return self._line_schema()
        self._check_names(CHUNK, SHAPE)
        numbers = [pa.field(CHUNK, pa.list_(pa.int64())), pa.field(SHAPE, pa.list_(pa.int32()))]
        return pa.schema([*numbers, *map(_listed, self.table.schema(self.columns))])

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
        outer = set(self.table.dims[: len(self.table.dims) - self.inner_dims])
        fields = [self.table.field(n) for n in self.columns if n in outer]
        fields += [pa.field(START, pa.list_(pa.int32())), pa.field(EXTENT, pa.list_(pa.int32()))]
        carried = [n for n in self.columns if n in self.request.carried and n not in outer]
        values = [n for n in self.columns if n not in self.table.dims]
        return pa.schema([*fields, *(_listed(self.table.field(n)) for n in (*carried, *values))])

    def cost(self, splits: Sequence[Boxes]) -> tuple[int, int]:
        """The number of chunks of a variable in some splits, and about their decoded bytes."""
        chunks = sum(count_chunks(self.chunks, boxes) for boxes in splits)
        sizes = (
            min(length, max(1, size))
            for length, size in zip(self.chunks.chunk_shape, self.table.shape, strict=True)
        )
        return chunks, chunks * prod(sizes) * self.table.decoded_bytes(self.needed)


def plan_table(session: SessionPort, request: ScanRequest) -> TablePlan:
    """Find the columns and the selected cells; reads coordinates, but no variables."""
    table = read_table_schema(
        session,
        request.group,
        variables=request.variables,
        dims=request.dims,
        reading=request.reading,
    )
    _checked_columns(table, request.columns)
    condition = (
        None if request.where is None else conditions.parse_condition(request.where, table.names)
    )
    if condition is not None:
        conditions.check_parts(condition, lambda name: table.field(name).type)
    coordinates = {
        dim: read_coordinate(session, table, dim, size)
        for dim, size in zip(table.dims, table.shape, strict=True)
    }
    axes = select_axes(table.dims, table.shape, coordinates, request.sel, request.isel)
    if condition is not None:
        axes, condition = _narrowed(axes, condition, coordinates)
    return _with_columns(
        request=request,
        table=table,
        condition=condition,
        axes=axes,
        coordinates={axis.dim: _selected(coordinates[axis.dim], axis) for axis in axes},
    )


def read_coordinate(session: SessionPort, table: TableSchema, dim: str, size: int) -> pa.Array:
    """All coordinate values of a dimension; positions if it has no coordinate variable."""
    if size > _LONGEST_DIMENSION:
        raise InvalidInputError(
            f"the dimension {dim!r} has {size:,} positions: a table has at most "
            f"{_LONGEST_DIMENSION:,} along one, since it lists them in memory; read the array "
            "with zarr or Session.read_region"
        )
    index = table.indexes.get(dim)
    if index is None:
        return pa.array(np.arange(size, dtype=np.int64))
    return index.decoding.column(session.read_region(index.path))


def _selected(column: pa.Array, axis: DimSelection) -> pa.Array:
    return column if axis.indices is None else column.take(pa.array(axis.indices))


def _with_columns(
    *,
    request: ScanRequest,
    table: TableSchema,
    condition: conditions.Condition | None,
    axes: tuple[DimSelection, ...],
    coordinates: dict[str, Any],
) -> TablePlan:
    columns = _checked_columns(table, request.columns)
    extra = set() if condition is None else conditions.columns_of(condition)
    needed = (*columns, *sorted(extra - set(columns)))
    return TablePlan(
        request=request,
        table=table,
        columns=columns,
        needed=needed,
        condition=condition,
        axes=axes,
        coordinates=coordinates,
        chunks=select_chunks(axes, chunk_shape_of(table, needed)),
    )


def _narrowed(
    axes: tuple[DimSelection, ...],
    condition: conditions.Condition,
    coordinates: dict[str, pa.Array],
) -> tuple[tuple[DimSelection, ...], conditions.Condition | None]:
    """Apply conditions on a single coordinate by selecting positions; returns the others."""
    others = []
    narrowed = {axis.dim: axis for axis in axes}
    for part in conditions.conjuncts(condition):
        names = conditions.columns_of(part)
        dim = next(iter(names))
        if len(names) > 1 or dim not in narrowed:
            others.append(part)
            continue
        truth = conditions.evaluate(part, coordinates)
        positions = np.flatnonzero(truth.fill_null(False).to_numpy(zero_copy_only=False))  # noqa: FBT003
        narrowed[dim] = narrowed[dim].narrowed(positions)
    rest = None if not others else others[0] if len(others) == 1 else conditions.Both(tuple(others))
    return tuple(narrowed[axis.dim] for axis in axes), rest


def _checked_columns(table: TableSchema, columns: tuple[str, ...] | None) -> tuple[str, ...]:
    if columns is None:
        return tuple(table.names)
    for name in columns:
        table.field(name)
    return columns


def _listed(field: pa.Field) -> pa.Field:
    return pa.field(field.name, pa.list_(field.type))
