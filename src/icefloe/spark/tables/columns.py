"""Which arrays of a group make one table, and what its columns are."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zarr

from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.spark.tables.decoding import AS_CF, Decoding, Reading, decoding_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.versioning.session import Session

# What these attributes name belongs to another variable and is no data of its own.
_BELONGS = ("bounds", "climatology", "grid_mapping", "ancillary_variables", "cell_measures")


class Variable(Record, frozen=True):
    """An array as a column."""

    name: str
    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    """The smallest unit that is read."""
    shards: tuple[int, ...] | None
    itemsize: int
    decoding: Decoding

    @property
    def units(self) -> tuple[int, ...]:
        """The smallest unit that is written."""
        return self.shards or self.chunks


class TableLayout(Record, frozen=True):
    """The columns of a table: one per dimension, then coordinates, then variables."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    indexes: dict[str, Variable]
    """Coordinate variables of dimensions; a dimension without one is numbered."""
    values: tuple[Variable, ...]
    """Other coordinates and data variables; those with fewer dimensions are repeated."""

    def field(self, name: str) -> pa.Field:
        """The column of a dimension, coordinate or variable."""
        if name in self.dims:
            index = self.indexes.get(name)
            return pa.field(name, pa.int64() if index is None else index.decoding.arrow_type)
        found = next((v for v in self.values if v.name == name), None)
        if found is None:
            raise InvalidInputError(
                f"the table has no column {name!r}; it has {', '.join(self.names)}"
            )
        return pa.field(name, found.decoding.arrow_type)

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return [*self.dims, *(variable.name for variable in self.values)]

    def schema(self, columns: Iterable[str] | None = None) -> pa.Schema:
        """Arrow schema of chosen columns, in the order given; of all by default."""
        return pa.schema([self.field(n) for n in (self.names if columns is None else columns)])

    def variable(self, name: str) -> Variable | None:
        """The array behind a column; None for a dimension that is numbered."""
        return self.indexes.get(name) or next((v for v in self.values if v.name == name), None)

    def cell_bytes(self, columns: Iterable[str]) -> int:
        """Bytes that one cell takes in memory, about."""
        chosen = set(columns)
        wide = [v for v in self.values if v.name in chosen]
        return max(8, sum(v.itemsize for v in wide if v.dims == self.dims))


def read_variables(
    session: Session, group: str = "/", reading: Reading = AS_CF
) -> dict[str, Variable]:
    """The arrays directly in a group, by name."""
    folder = paths.canonical(group)
    node = session.get_node(folder)
    if node is None or node.is_array:
        what = "is an array" if node is not None else "does not exist"
        raise NodeNotFoundError(f"node not found: {folder} {what}; expected a group", folder)
    prefix = paths.child_prefix(folder)
    found: dict[str, Variable] = {}
    for path in session.node_paths(folder):
        name = path[len(prefix) :]
        child = session.get_node(path)
        if "/" not in name and child is not None and child.is_array:
            found[name] = variable_of(session, path, reading)
    return found


def variable_of(session: Session, path: str, reading: Reading = AS_CF) -> Variable:
    """An array as a column."""
    array = open_array(session, path)
    named = getattr(array.metadata, "dimension_names", None) or (None,) * array.ndim
    dims = tuple(given or f"dim_{axis}" for axis, given in enumerate(named))
    dtype = np.dtype(array.dtype)
    return Variable(
        paths.name(path),
        path,
        dims,
        tuple(array.shape),
        tuple(max(1, c) for c in array.chunks),
        None if array.shards is None else tuple(array.shards),
        dtype.itemsize if dtype.kind not in "OT" else 32,
        decoding_of(dtype, dict(array.attrs), reading),
    )


def open_array(session: Session, path: str) -> zarr.Array[Any]:
    """An array of a session, through zarr."""
    mode: Any = "r" if session.read_only else "r+"
    return zarr.open_array(session.store, path=path.lstrip("/"), mode=mode)


def attributes_of(session: Session, path: str) -> dict[str, Any]:
    """The attributes of an array or group."""
    node: Any = zarr.open(session.store, path=path.lstrip("/"), mode="r")
    return dict(node.attrs)


def layout_table(
    session: Session,
    group: str = "/",
    *,
    variables: Sequence[str] | None = None,
    dims: Sequence[str] | None = None,
    reading: Reading = AS_CF,
) -> TableLayout:
    """The table of a group: of the named variables, or of those over the named dimensions.

    With neither, all data variables of the group must be over the same dimensions.
    """
    found = read_variables(session, group, reading)
    attributes = {name: attributes_of(session, v.path) for name, v in found.items()}
    auxiliary = _auxiliary(attributes, attributes_of(session, paths.canonical(group)), found)
    belonging = _belonging(attributes)
    if variables is not None:
        for name in variables:
            if name not in found:
                raise InvalidInputError(
                    f"there is no variable {name!r} in {group}; it has {', '.join(sorted(found))}"
                )
        data = [found[name] for name in variables if name not in found[name].dims]
        if not data:
            data = [found[name] for name in variables]
    else:
        data = [
            v
            for name, v in found.items()
            if v.dims != (name,) and name not in auxiliary and name not in belonging
        ]
    return _layout(data, found, auxiliary, dims, group, explicit=variables is not None)


def _layout(
    data: list[Variable],
    found: Mapping[str, Variable],
    auxiliary: set[str],
    dims: Sequence[str] | None,
    group: str,
    *,
    explicit: bool,
) -> TableLayout:
    over = tuple(dims) if dims is not None else _common_dims(data, group, explicit=explicit)
    sizes: dict[str, int] = {}
    if explicit:
        for variable in data:
            if not set(variable.dims) <= set(over):
                raise InvalidInputError(
                    f"variable {variable.name!r} is over {variable.dims}, which is no part of "
                    f"the dimensions {over} of the table; read it as a table of its own"
                )
        chosen = data
    else:
        chosen = [v for v in data if set(v.dims) == set(over)]
    others = [
        found[name]
        for name in sorted(auxiliary)
        if set(found[name].dims) <= set(over) and found[name] not in chosen
    ]
    indexes = {d: v for d in over if (v := found.get(d)) is not None and v.dims == (d,)}
    for variable in (*chosen, *others, *indexes.values()):
        _note_sizes(sizes, variable)
    missing = [d for d in over if d not in sizes]
    if missing:
        raise InvalidInputError(
            f"no variable of {group} has the dimension {', '.join(map(repr, missing))}"
        )
    values = tuple(v for v in (*others, *chosen) if v.name not in over)
    return TableLayout(over, tuple(sizes[d] for d in over), indexes, values)


def _note_sizes(sizes: dict[str, int], variable: Variable) -> None:
    for dim, size in zip(variable.dims, variable.shape, strict=True):
        if sizes.setdefault(dim, size) != size:
            raise InvalidInputError(
                f"dimension {dim!r} is {sizes[dim]} long, but {size} in {variable.path}; "
                "name variables that agree"
            )


def _common_dims(data: list[Variable], group: str, *, explicit: bool) -> tuple[str, ...]:
    if not data:
        raise InvalidInputError(
            f"group {group} has no data variables; name a group with arrays, or variables"
        )
    kinds: dict[frozenset[str], list[Variable]] = {}
    for variable in data:
        kinds.setdefault(frozenset(variable.dims), []).append(variable)
    if explicit or len(kinds) == 1:
        return max(data, key=lambda v: (len(v.dims), prod(v.shape))).dims
    listing = "; ".join(
        f"({', '.join(same[0].dims)}): {', '.join(v.name for v in same)}" for same in kinds.values()
    )
    raise InvalidInputError(
        f"the variables of {group} are over several sets of dimensions and make several tables: "
        f"{listing}. Choose one with the option dims or variables"
    )


def _auxiliary(
    attributes: Mapping[str, Mapping[str, Any]],
    of_group: Mapping[str, Any],
    found: Mapping[str, Variable],
) -> set[str]:
    named: set[str] = set()
    for given in (*attributes.values(), of_group):
        text = given.get("coordinates")
        if isinstance(text, str):
            named.update(text.split())
    return {name for name in named if name in found and found[name].dims != (name,)}


def _belonging(attributes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    named: set[str] = set()
    for given in attributes.values():
        for key in _BELONGS:
            if isinstance(given.get(key), str):
                named.update(word.rstrip(":") for word in given[key].split())
    return named
