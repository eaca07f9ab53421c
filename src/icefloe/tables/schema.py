"""The columns of a table: which arrays of a group make one table, and their types."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.arrays.layout import layout_of
from icefloe.engine.port import parsed_document
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.record import Record
from icefloe.tables.decoding import AS_CF, Decoding, Reading, decoding_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from icefloe.model.nodes import Node
    from icefloe.zarr_store.session_port import SessionPort

_SHOWN = 8
# Variables that these attributes name describe another variable.
_BELONGS = ("bounds", "climatology", "grid_mapping", "ancillary_variables", "cell_measures")


class Variable(Record, frozen=True):
    """An array that is a column of a table."""

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


class TableSchema(Record, frozen=True):
    """The columns of a table: one per dimension, then coordinates, then variables."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    indexes: dict[str, Variable]
    """The coordinate variable of each dimension that has one; others are numbered."""
    values: tuple[Variable, ...]
    """Other coordinates and data variables; those with fewer dimensions are repeated."""

    def field(self, name: str) -> pa.Field:
        """The column of a dimension, coordinate or variable."""
        if name in self.dims:
            index = self.indexes.get(name)
            return pa.field(name, pa.int64() if index is None else index.decoding.arrow_type)
        variable = next((v for v in self.values if v.name == name), None)
        if variable is None:
            raise InvalidInputError(
                f"the table has no column {name!r}; it has {', '.join(self.names)}"
            )
        return pa.field(name, variable.decoding.arrow_type)

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return [*self.dims, *(variable.name for variable in self.values)]

    def schema(self, columns: Iterable[str] | None = None) -> pa.Schema:
        """The Arrow schema of some columns, in this order; of all by default."""
        return pa.schema([self.field(n) for n in (self.names if columns is None else columns)])

    def variable(self, name: str) -> Variable | None:
        """The array behind a column; None for a dimension that is numbered."""
        return self.indexes.get(name) or next((v for v in self.values if v.name == name), None)

    def cell_bytes(self, columns: Iterable[str]) -> int:
        """About how many bytes of stored values one cell takes."""
        chosen = set(columns)
        wide = [v for v in self.values if v.name in chosen]
        return max(8, sum(v.itemsize for v in wide if v.dims == self.dims))

    def decoded_bytes(self, columns: Iterable[str]) -> int:
        """About how many bytes one cell takes, decoded; not less than stored."""
        chosen = set(columns)
        wide = [v for v in self.values if v.name in chosen and set(v.dims) == set(self.dims)]
        return max(1, sum(max(v.itemsize, _width(v.decoding.arrow_type)) for v in wide))


def _width(kind: pa.DataType) -> int:
    try:
        return int(kind.bit_width) // 8
    except ValueError:  # of texts and structs
        return 32


def read_variables(
    session: SessionPort, group: str = "/", reading: Reading = AS_CF
) -> dict[str, Variable]:
    """The arrays directly in a group, by name."""
    folder = paths.canonical(group)
    node = session.get_node(folder)
    if node is None or node.is_array:
        raise NodeNotFoundError(_no_group(session, folder, node), folder)
    prefix = paths.child_prefix(folder)
    variables: dict[str, Variable] = {}
    for path in session.tree.node_paths(folder):
        name = path[len(prefix) :]
        child = session.get_node(path)
        if "/" not in name and child is not None and child.is_array:
            variables[name] = variable_of(session, path, reading)
    return variables


def _no_group(session: SessionPort, folder: str, node: Node | None) -> str:
    if node is not None:
        return f"node not found: {folder} is an array; expected a group"
    there = ["/", *(path for path in session.tree.node_paths("/") if not path.startswith("/."))]
    groups = [p for p in there if (one := session.get_node(p)) is not None and not one.is_array]
    known = ", ".join(groups[:_SHOWN]) + (", …" if len(groups) > _SHOWN else "")
    has = f"this version has the groups {known}" if groups else "this version is empty"
    return f"node not found: group {folder} does not exist; {has}"


def variable_of(session: SessionPort, path: str, reading: Reading = AS_CF) -> Variable:
    """The variable at a path."""
    plan = layout_of(session.tree, path)
    metadata = plan.metadata
    named = metadata.dimension_names or (None,) * len(plan.shape)
    dims = tuple(name or f"dim_{axis}" for axis, name in enumerate(named))
    dtype = np.dtype(plan.dtype)
    return Variable(
        name=paths.name(path),
        path=path,
        dims=dims,
        shape=plan.shape,
        chunks=tuple(max(1, c) for c in metadata.chunks),
        shards=None if metadata.shards is None else tuple(metadata.shards),
        itemsize=dtype.itemsize if dtype.kind not in "OT" else 32,
        decoding=decoding_of(dtype, attributes_of(session, path), reading),
    )


def attributes_of(session: SessionPort, path: str) -> dict[str, Any]:
    """The attributes of an array or group."""
    return parsed_document(session.tree, path).get("attributes") or {}


def read_table_schema(
    session: SessionPort,
    group: str = "/",
    *,
    variables: Sequence[str] | None = None,
    dims: Sequence[str] | None = None,
    reading: Reading = AS_CF,
) -> TableSchema:
    """The table of a group: of the named variables, or of those over the named dimensions.

    With neither, all data variables of the group must be over the same dimensions.
    """
    known = read_variables(session, group, reading)
    attributes = {name: attributes_of(session, v.path) for name, v in known.items()}
    auxiliary = _auxiliary(attributes, attributes_of(session, paths.canonical(group)), known)
    belonging = _belonging(attributes)
    if variables is not None:
        for name in variables:
            if name not in known:
                raise InvalidInputError(
                    f"there is no variable {name!r} in {group}; it has {', '.join(sorted(known))}"
                )
        data = [known[name] for name in variables if name not in known[name].dims]
        if not data:
            data = [known[name] for name in variables]
    else:
        data = [
            v
            for name, v in known.items()
            if v.dims != (name,) and name not in auxiliary and name not in belonging
        ]
    return _table_schema(data, known, auxiliary, dims, group, explicit=variables is not None)


def _table_schema(
    data: list[Variable],
    known: Mapping[str, Variable],
    auxiliary: set[str],
    dims: Sequence[str] | None,
    group: str,
    *,
    explicit: bool,
) -> TableSchema:
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
        known[name]
        for name in sorted(auxiliary)
        if set(known[name].dims) <= set(over) and known[name] not in chosen
    ]
    indexes = {d: v for d in over if (v := known.get(d)) is not None and v.dims == (d,)}
    for variable in (*chosen, *others, *indexes.values()):
        _note_sizes(sizes, variable)
    if any(d not in sizes for d in over):
        raise InvalidInputError(
            f"no variable of {group} is over the dimensions ({', '.join(over)}); there are "
            f"{_listing([v for v in known.values() if v.dims])}"
        )
    values = tuple(v for v in (*others, *chosen) if v.name not in over)
    return TableSchema(
        dims=over, shape=tuple(sizes[d] for d in over), indexes=indexes, values=values
    )


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
    # A scalar beside arrays describes them: a projection or a constant.
    data = [v for v in data if v.dims] or data
    if explicit or len({frozenset(v.dims) for v in data}) == 1:
        return max(data, key=lambda v: (len(v.dims), prod(v.shape))).dims
    raise InvalidInputError(
        f"the variables of {group} are over several sets of dimensions and make several tables: "
        f"{_listing(data)}. Choose one with the option dims or variables"
    )


def _listing(variables: Iterable[Variable]) -> str:
    """Variables by their dimensions, for errors."""
    kinds: dict[frozenset[str], list[Variable]] = {}
    for variable in variables:
        kinds.setdefault(frozenset(variable.dims), []).append(variable)
    return "; ".join(
        f"({', '.join(same[0].dims)}): {', '.join(v.name for v in same)}" for same in kinds.values()
    )


def _auxiliary(
    attributes: Mapping[str, Mapping[str, Any]],
    of_group: Mapping[str, Any],
    known: Mapping[str, Variable],
) -> set[str]:
    named: set[str] = set()
    for of_variable in (*attributes.values(), of_group):
        text = of_variable.get("coordinates")
        if isinstance(text, str):
            named.update(text.split())
    return {name for name in named if name in known and known[name].dims != (name,)}


def _belonging(attributes: Mapping[str, Mapping[str, Any]]) -> set[str]:
    named: set[str] = set()
    for of_variable in attributes.values():
        for key in _BELONGS:
            if isinstance(of_variable.get(key), str):
                named.update(word.rstrip(":") for word in of_variable[key].split())
    return named
