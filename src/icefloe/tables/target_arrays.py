"""The arrays that rows are written to: created, grown or checked before any row is written."""

from __future__ import annotations

from itertools import product
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zarr

from icefloe.cf.encoding import fill_of
from icefloe.errors import AlreadyExistsError, InvalidInputError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.tables.decoding import Decoding
from icefloe.tables.encoding import encode, new_storage, stored_decoding
from icefloe.tables.indexing import select_values
from icefloe.tables.schema import TableSchema, Variable, read_table_schema, read_variables
from icefloe.tables.statistics import wanted_arrays
from icefloe.tables.table_plan import read_coordinate
from icefloe.tables.zarr_arrays import NewArray, create, open_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from icefloe.zarr_store.session_port import SessionPort

Operation = Literal["create", "append", "overwrite", "upsert", "replace"]
OPERATIONS: tuple[Operation, ...] = ("create", "append", "overwrite", "upsert", "replace")
_MAX_BLOCK_CELLS = 64 * 1024 * 1024


class WriteRequest(Record, frozen=True):
    """How to write rows to arrays."""

    group: str = "/"
    dims: tuple[str, ...] | None = None
    """Columns that are coordinates, in the order of the array's dimensions."""
    operation: Operation | None = None
    """None: create the arrays if they do not exist, else append."""
    append_dim: str | None = None
    """The dimension that may grow; the first by default."""
    region: dict[str, Any] = msgspec.field(default_factory=dict)
    """With overwrite: coordinate values of the region that is replaced."""
    chunks: dict[str, int] = msgspec.field(default_factory=dict)
    encoding: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    coordinates: dict[str, Any] = msgspec.field(default_factory=dict)
    """Coordinate values of a new grid, if not those of the rows."""
    statistics: bool | tuple[str, ...] = False
    """Whether statistics of the chunks are kept, or of which variables."""


class TargetArray(Record, frozen=True, eq=False):
    """An array that rows are written to."""

    name: str
    path: str
    dims: tuple[str, ...]
    decoding: Decoding
    fill: Any
    units: tuple[int, ...]
    """The smallest unit that is written."""
    begins_missing: bool = True
    """Whether cells that nobody has written are missing; if not, new ones must be made so."""

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The numpy type of the values that are written."""
        stored = self.decoding.dtype
        return np.dtypes.StringDType() if stored == "string" else np.dtype(stored)


class WritePlan(Record, frozen=True, eq=False):
    """The grid that rows fill, and its blocks: each is written by one task."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    coordinates: dict[str, Any]
    """Values along each dimension, as the columns of the rows have them."""
    block: tuple[int, ...]
    targets: tuple[TargetArray, ...]
    allowed: dict[str, Any]
    """Positions along dimensions that rows may have; all if a dimension is not named."""
    clear: bool
    """Whether cells of the allowed positions that get no row become missing."""
    is_new: bool
    grown: dict[str, int] = msgspec.field(default_factory=dict)
    """The dimension along which the grid has grown, and its length before."""
    statistics: tuple[str, ...] = ()
    """The arrays that get chunk statistics."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each dimension."""
        return tuple(-(-size // b) for size, b in zip(self.shape, self.block, strict=True))

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return prod(self.grid)

    @property
    def is_append(self) -> bool:
        """Whether rows may only be past the former end of the grid."""
        return bool(self.allowed) and not self.clear

    @property
    def vacant(self) -> dict[str, Any] | None:
        """Positions along each dimension whose cells become missing if they get no row."""
        if self.clear:
            return self.allowed
        if not self.grown or all(t.begins_missing or t.fill is None for t in self.targets):
            return None
        return {
            dim: np.arange(self.grown.get(dim, 0), size, dtype=np.int64)
            for dim, size in zip(self.dims, self.shape, strict=True)
        }

    def region_of(self, block: int) -> tuple[slice, ...]:
        """The cells of a block."""
        place = np.unravel_index(block, self.grid) if self.grid else ()
        return tuple(
            slice(int(p) * b, min(int(p + 1) * b, size))
            for p, b, size in zip(place, self.block, self.shape, strict=True)
        )


class RowSummary(Record, frozen=True, eq=False):
    """What is known about the rows before they are written."""

    schema: Any
    """Arrow schema."""
    values: dict[str, Any]
    """Distinct values of dimensions, ascending, without nulls."""
    rows: int
    nulls: dict[str, int]
    """Number of nulls in columns."""


def dims_of(session: SessionPort, request: WriteRequest, schema: pa.Schema) -> tuple[str, ...]:
    """The columns that are coordinates: as asked, or as the existing table has them."""
    if request.dims is not None:
        dims = request.dims
    else:
        existing = _existing(session, request, schema)
        if existing is None:
            raise InvalidInputError(
                f"{request.group} has no array that is named like one of the columns "
                f"{schema.names}. To create arrays, say which columns are the dimensions, in "
                "order: dims=['time', 'lat', 'lon']"
            )
        dims = existing.dims
    missing = [d for d in dims if d not in schema.names]
    if missing:
        raise InvalidInputError(
            f"the rows have no column for the dimension {missing[0]!r}; found {schema.names}"
        )
    return dims


def operation_of(session: SessionPort, request: WriteRequest, schema: pa.Schema) -> Operation:
    """The operation that was requested, or the one that fits."""
    exists = _existing(session, request, schema) is not None
    if request.operation is not None:
        if request.operation not in OPERATIONS:
            raise InvalidInputError(
                f"operation is one of {OPERATIONS}, found {request.operation!r}"
            )
        if request.operation == "overwrite" and not exists:
            raise InvalidInputError(
                f"{request.operation} needs existing arrays in {request.group}; use create"
            )
        if request.operation in ("append", "upsert") and not exists:
            return "create"
        return request.operation
    return "append" if exists else "create"


def needs_values(operation: Operation, request: WriteRequest, dims: Sequence[str]) -> list[str]:
    """The dimensions of which distinct values must be known before rows are written."""
    if operation in ("create", "replace"):
        return [d for d in dims if d not in request.coordinates]
    if operation == "overwrite":
        return [d for d in dims if d not in request.region]
    return [request.append_dim or dims[0]]


def _existing(session: SessionPort, request: WriteRequest, schema: pa.Schema) -> TableSchema | None:
    node = session.get_node(paths.canonical(request.group))
    if node is None or node.is_array:
        return None
    there = read_variables(session, request.group)
    named = [n for n in schema.names if n in there and n not in there[n].dims]
    named = [n for n in named if there[n].dims]
    if not named:
        return None
    return read_table_schema(session, request.group, variables=named)


def prepare(session: SessionPort, request: WriteRequest, rows: RowSummary) -> WritePlan:
    """Create, grow or check the arrays; nothing but metadata and coordinates is written."""
    dims = dims_of(session, request, rows.schema)
    operation = operation_of(session, request, rows.schema)
    names = [n for n in rows.schema.names if n not in dims]
    if not names:
        raise InvalidInputError(f"the rows have no columns but the dimensions {dims}")
    if operation in ("create", "replace"):
        plan = _prepare_new(session, request, rows, dims, names, replace=operation == "replace")
    else:
        plan = _prepare_existing(session, request, rows, dims, names, operation)
    _check_nulls(plan, rows)
    written = [target.path for target in plan.targets]
    wanted = wanted_arrays(session, request.statistics, written, request.group)
    return msgspec.structs.replace(plan, statistics=wanted)


def _check_nulls(plan: WritePlan, rows: RowSummary) -> None:
    """Refuse nulls that an array cannot store, before any task runs."""
    for target in plan.targets:
        count = rows.nulls.get(target.name, 0)
        if count and target.fill is None:
            raise InvalidInputError(
                f"column {target.name!r} has {count} nulls, but the array has no _FillValue that "
                "could represent them; replace them, or create the array with one"
            )


# --- new arrays


def _prepare_new(
    session: SessionPort,
    request: WriteRequest,
    rows: RowSummary,
    dims: tuple[str, ...],
    names: list[str],
    *,
    replace: bool,
) -> WritePlan:
    folder = paths.canonical(request.group)
    existing = _make_room(session, folder, dims, names, replace=replace)
    _make_group(session, folder)
    coordinates = {
        d: existing[d] if d in existing else _new_coordinate(request, rows, d) for d in dims
    }
    shape = tuple(len(coordinates[d]) for d in dims)
    if not all(shape):
        raise InvalidInputError("there are no rows: an empty table creates no arrays")
    for dim in dims:
        if dim not in existing:
            _write_coordinate(session, request, folder, dim, coordinates[dim])
    targets = [_create_target(session, request, rows, name, dims, shape) for name in names]
    return WritePlan(
        dims=dims,
        shape=shape,
        coordinates=coordinates,
        block=_common_block(targets, dims, shape),
        targets=tuple(targets),
        allowed={},
        clear=False,
        is_new=True,
    )


def _create_target(
    session: SessionPort,
    request: WriteRequest,
    rows: RowSummary,
    name: str,
    dims: tuple[str, ...],
    shape: tuple[int, ...],
) -> TargetArray:
    """Create the array of a column."""
    stored = new_storage(
        name,
        rows.schema.field(name).type,
        request.encoding.get(name, {}),
        request.attributes.get(name, {}),
        has_gaps=rows.rows != prod(shape) or bool(rows.nulls.get(name, 1)),
    )
    lengths = tuple(request.chunks.get(d, 0) for d in dims)
    new = NewArray(
        shape,
        stored.dtype,
        chunks=stored.chunks or (_chunks(lengths, shape) if any(lengths) else None),
        shards=stored.shards,
        dims=dims,
        attributes=stored.attributes,
        fill_value=stored.fill_value,
    )
    path = create(session, _join(paths.canonical(request.group), name), new)
    decoding = stored_decoding(stored)
    return TargetArray(
        name=name,
        path=path,
        dims=dims,
        decoding=decoding,
        fill=fill_of(decoding),
        units=_units(session, path),
    )


def _make_room(
    session: SessionPort, folder: str, dims: tuple[str, ...], names: Sequence[str], *, replace: bool
) -> dict[str, pa.Array]:
    """Delete what is replaced; returns the coordinates that stay, because other arrays use them."""
    there: dict[str, Variable] = {}
    if session.get_node(folder) is not None:
        there = read_variables(session, folder)
    for name in names:
        if name in there:
            if not replace:
                raise AlreadyExistsError(
                    f"{there[name].path} exists already; use the operation append, upsert, "
                    "overwrite or replace"
                )
            session.tree.delete_node(there.pop(name).path)
    remaining = {}
    for dim in dims:
        index = there.get(dim)
        if index is None:
            continue
        if index.dims != (dim,):
            raise AlreadyExistsError(f"{index.path} exists and is no coordinate of {dim!r}")
        if replace and not any(dim in v.dims for n, v in there.items() if n not in dims):
            session.tree.delete_node(index.path)
        else:
            remaining[dim] = index.decoding.column(session.read_region(index.path))
    return remaining


def _make_group(session: SessionPort, folder: str) -> None:
    if session.get_node(folder) is None:
        root = zarr.open_group(session.store, mode="a")
        if folder != "/":
            root.require_group(folder.lstrip("/"))


def _new_coordinate(request: WriteRequest, rows: RowSummary, dim: str) -> pa.Array:
    kind = rows.schema.field(dim).type
    settings = request.coordinates.get(dim)
    if settings is None:
        return rows.values[dim]
    values = pa.array(
        np.asarray(settings).tolist() if hasattr(settings, "tolist") else list(settings)
    )
    if pa.types.is_timestamp(kind) and pa.types.is_string(values.type):
        values = pc.strptime(values, format="%Y-%m-%dT%H:%M:%S", unit="us", error_is_null=True)
    values = values.cast(kind)
    if values.null_count or len(pc.unique(values)) != len(values):
        raise InvalidInputError(f"coordinates of {dim!r} must be distinct values, without nulls")
    return values


def _write_coordinate(
    session: SessionPort, request: WriteRequest, folder: str, dim: str, values: pa.Array
) -> None:
    settings = request.encoding.get(dim, {})
    stored = new_storage(
        dim, values.type, settings, request.attributes.get(dim, {}), has_gaps=False, sample=values
    )
    attributes = {k: v for k, v in stored.attributes.items() if k != "_FillValue"}
    decoding = msgspec.structs.replace(stored_decoding(stored), missing=())
    numbers = encode(dim, values, decoding)
    new = NewArray(
        (len(values),), stored.dtype, chunks=(len(values),), dims=(dim,), attributes=attributes
    )
    path = create(session, _join(folder, dim), new)
    open_array(session, path)[...] = numbers


def _chunks(wanted: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(min(w, size) if w else size for w, size in zip(wanted, shape, strict=True))


def _join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


# --- existing arrays


def _prepare_existing(
    session: SessionPort,
    request: WriteRequest,
    rows: RowSummary,
    dims: tuple[str, ...],
    names: list[str],
    operation: Operation,
) -> WritePlan:
    table = read_table_schema(session, request.group, variables=names)
    if set(table.dims) != set(dims):
        raise InvalidInputError(
            f"the arrays in {request.group} are over {table.dims}, the rows over {dims}"
        )
    sizes = dict(zip(table.dims, table.shape, strict=True))
    coordinates = {d: read_coordinate(session, table, d, sizes[d]) for d in dims}
    allowed: dict[str, Any] = {}
    grown: dict[str, int] = {}
    if operation in ("append", "upsert"):
        dim = request.append_dim or dims[0]
        if dim not in dims:
            raise InvalidInputError(f"append-dim is one of {dims}, found {dim!r}")
        before = sizes[dim]
        coordinates[dim] = _grown(session, table, dim, coordinates[dim], rows.values[dim])
        sizes[dim] = len(coordinates[dim])
        if sizes[dim] > before:
            grown[dim] = before
            _fill_others(session, table, dim, before, names)
        if operation == "append":
            allowed[dim] = np.arange(before, sizes[dim], dtype=np.int64)
    elif operation == "overwrite":
        for dim in dims:
            allowed[dim] = _region(request, rows, dim, coordinates[dim])
    shape = tuple(sizes[d] for d in dims)
    targets = [_target(session, table, name) for name in names]
    return WritePlan(
        dims=dims,
        shape=shape,
        coordinates=coordinates,
        block=_common_block(targets, dims, shape),
        targets=tuple(targets),
        allowed=allowed,
        clear=operation == "overwrite",
        is_new=False,
        grown=grown,
    )


def _target(session: SessionPort, table: TableSchema, name: str) -> TargetArray:
    variable = table.variable(name)
    assert variable is not None
    if set(variable.dims) != set(table.dims):
        raise InvalidInputError(
            f"{variable.path} is over {variable.dims}, not over all of {table.dims}: "
            "write it as a table of its own"
        )
    return TargetArray(
        name=name,
        path=variable.path,
        dims=variable.dims,
        decoding=variable.decoding,
        fill=fill_of(variable.decoding),
        units=variable.units,
        begins_missing=_begins_missing(session, variable),
    )


def _begins_missing(session: SessionPort, variable: Variable) -> bool:
    """Whether the fill value of an array, which cells have that nobody wrote, means missing."""
    array = open_array(session, variable.path)
    stored = np.full(1, array.fill_value, dtype=array.dtype)
    mask = variable.decoding.missing_mask(stored)
    if mask is not None and bool(mask[0]):
        return True
    if stored.dtype.kind in "fc":
        return bool(np.isnan(stored[0]))
    return stored.dtype.kind == "M" and bool(np.isnat(stored[0]))


def _fill_others(
    session: SessionPort, table: TableSchema, dim: str, before: int, names: Sequence[str]
) -> None:
    """Make new cells missing of arrays that rows do not set, where their fill value is a number."""
    for variable in _all_along(session, table, dim):
        fill = fill_of(variable.decoding)
        if variable.name in names or fill is None or _begins_missing(session, variable):
            continue
        array = open_array(session, variable.path)
        axis = variable.dims.index(dim)
        unit = array.shards or array.chunks
        starts = [range(0, size, step) for size, step in zip(array.shape, unit, strict=True)]
        starts[axis] = range(before // unit[axis] * unit[axis], array.shape[axis], unit[axis])
        for corner in product(*starts):
            region = [
                slice(start, min(start + step, size))
                for start, step, size in zip(corner, unit, array.shape, strict=True)
            ]
            region[axis] = slice(max(before, region[axis].start), region[axis].stop)
            extent = tuple(part.stop - part.start for part in region)
            session.write_region(variable.path, tuple(region), np.full(extent, fill, array.dtype))


def _grown(
    session: SessionPort, table: TableSchema, dim: str, existing: pa.Array, values: pa.Array
) -> pa.Array:
    """Coordinate values with new ones at the end; arrays along the dimension are resized."""
    values = _as_kept(dim, values, existing.type)
    new = values.filter(pc.invert(pc.is_in(values, value_set=existing)))
    if not len(new):
        return existing
    index = table.indexes.get(dim)
    if index is None:
        end = int(pc.max(new).as_py()) + 1
        if int(pc.min(new).as_py()) < 0:
            raise InvalidInputError(f"dimension {dim!r} is numbered from 0; found {pc.min(new)}")
        grown = pa.array(np.arange(end, dtype=np.int64))
    else:
        new = _in_order(dim, existing, new)
        grown = pa.concat_arrays([existing, new])
        stored = open_array(session, index.path)
        before = stored.shape[0]
        stored.resize((len(grown),))
        stored[before:] = encode(dim, new, index.decoding)
    for variable in _all_along(session, table, dim):
        array = open_array(session, variable.path)
        shape = tuple(
            len(grown) if d == dim else size
            for d, size in zip(variable.dims, variable.shape, strict=True)
        )
        array.resize(shape)
    return grown


def _all_along(session: SessionPort, table: TableSchema, dim: str) -> list[Variable]:
    """Every array of the group along a dimension: they all grow together."""
    some = next(iter((*table.values, *table.indexes.values())))
    folder = paths.parent(some.path) or "/"
    return [v for v in read_variables(session, folder).values() if dim in v.dims and v.name != dim]


def _in_order(dim: str, existing: pa.Array, new: pa.Array) -> pa.Array:
    """New values in the order of the existing ones; raises if some belong between those."""
    new = new.take(pc.sort_indices(new))
    if len(existing) == 0:
        return new
    ascends = len(existing) < 2 or bool(pc.all(pc.less(existing[:-1], existing[1:])).as_py())
    descends = len(existing) > 1 and bool(pc.all(pc.greater(existing[:-1], existing[1:])).as_py())
    if descends:
        new = new.take(pa.array(np.arange(len(new))[::-1]))
    last, first = existing[-1], new[0]
    wrong = (ascends and pc.less(first, last).as_py()) or (
        descends and pc.greater(first, last).as_py()
    )
    if wrong:
        raise InvalidInputError(
            f"{dim} = {first} is new and belongs before {last}, the end of the grid; arrays grow "
            "at their end. Write those rows with the operation replace, on the whole table"
        )
    return new


def _as_kept(dim: str, values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(values.type):
            return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()).cast(kind)
        return values.cast(kind, safe=not pa.types.is_floating(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInputError(
            f"column {dim!r} is of {values.type}, but the coordinate is of {kind}"
        ) from None


def _region(request: WriteRequest, rows: RowSummary, dim: str, existing: pa.Array) -> Any:
    """Positions of the region along a dimension."""
    if dim in request.region:
        return select_values(dim, existing, request.region[dim])
    values = _as_kept(dim, rows.values[dim], existing.type)
    positions = pc.index_in(values, value_set=existing)
    return np.sort(positions.drop_null().to_numpy(zero_copy_only=False).astype(np.int64))


def _units(session: SessionPort, path: str) -> tuple[int, ...]:
    array = open_array(session, path)
    return tuple(array.shards or array.chunks)


def _common_block(
    targets: Sequence[TargetArray], dims: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Blocks that are made of whole chunks, or shards, of all arrays."""
    block = dict.fromkeys(dims, 1)
    sizes = dict(zip(dims, shape, strict=True))
    for target in targets:
        for dim, length in zip(target.dims, target.units, strict=True):
            block[dim] = lcm(block[dim], max(1, length))
    edges = tuple(max(1, min(block[d], sizes[d])) for d in dims)
    if prod(edges) > _MAX_BLOCK_CELLS and gcd(*edges) >= 1:
        raise InvalidInputError(
            f"the chunks of {', '.join(t.path for t in targets)} have no common block of fewer "
            f"than {_MAX_BLOCK_CELLS} cells (found {edges}); write the variables one by one"
        )
    return edges


def positions(plan: WritePlan, dim: str, column: pa.Array) -> npt.NDArray[np.int64]:
    """Where rows are along a dimension; -1 where they are outside of the grid."""
    kept = plan.coordinates[dim]
    found = pc.index_in(_as_kept(dim, column, kept.type), value_set=kept)
    numbers: npt.NDArray[np.int64] = (
        found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if missing.any():
        numbers = np.where(missing, -1, numbers)
    return numbers
