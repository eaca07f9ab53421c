"""What a query needs of each table: the columns, and conditions on rows that can matter.

A pure function of a parsed query and the columns of its tables. The query itself is not changed.
sqlglot assigns each column to its source; that a row of a source cannot matter is concluded
here (docs/decisions/0063-sql-with-pushdown.md has the rules), because sqlglot moves predicates in
order to run another query, and we need what follows from them for the tables of this one.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, build_scope

from icefloe.model.record import Record
from icefloe.spark.statements.predicates import (
    Leaf,
    Predicate,
    about,
    every,
    predicate_of,
    rejects_nulls,
    restricted,
    some,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icefloe.spark.statements.predicates import Value

REFERENCE = "icefloe_reference"
"""The key of a table's number among the metadata of its node."""
RENAMED = "icefloe_renamed"
"""The key that marks a table whose columns get other names: `weather AS w(a, b)`."""
_NOT_REPEATABLE = {
    *("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "input_file_name"),
    *("monotonically_increasing_id", "spark_partition_id"),
}


class SourceColumns(Record, frozen=True):
    """The columns of a table that a query names: types by name, as the dialect normalizes names."""

    types: dict[str, Any]
    """Values that are equal for equal types."""


class TableNeeds(Record, frozen=True):
    """What a query needs of one table."""

    columns: frozenset[str] | None = None
    """The columns that it uses; None for all."""
    predicate: Predicate | None = None
    """What holds for every row that can matter; None if that may be any row."""


ALL = TableNeeds()


def table_needs(
    query: exp.Expr,
    tables: Sequence[SourceColumns | None],
    dialect: str,
    parameters: Mapping[str, Value] | None = None,
) -> list[TableNeeds]:
    """What a query needs of each of its tables.

    Args:
        query: The parsed query, which is altered. Tables are numbered under `REFERENCE` in the
            metadata of their nodes, and named `_0`, `_1` and so on by their numbers.
        tables: The columns of each table, by number; None if they are not known.
        dialect: The dialect of sqlglot.
        parameters: Values of named parameters.
    """
    schema: dict[str, object] = {
        f"_{number}": dict.fromkeys(table.types, "INT")
        for number, table in enumerate(tables)
        if table is not None
    }
    try:
        qualified = qualify(
            query,
            dialect=dialect,
            schema=schema,
            expand_alias_refs=False,
            allow_partial_qualification=True,
            validate_qualify_columns=False,
            quote_identifiers=False,
        )
        root = build_scope(qualified)
    except (SqlglotError, RecursionError):
        return [ALL] * len(tables)  # Spark says what is wrong with the query
    if root is None or any(with_.recursive for with_ in qualified.find_all(exp.With)):
        return [ALL] * len(tables)
    return _Analysis(root, tables, parameters or {}).needs()


class _Analysis:
    """Goes through the blocks of a query, those that use others first."""

    def __init__(
        self,
        root: Scope,
        tables: Sequence[SourceColumns | None],
        parameters: Mapping[str, Value],
    ) -> None:
        self._tables = tables
        self._parameters = parameters
        self._order = _users_first(root)
        self._blocks = {id(scope): _Block(scope) for scope in self._order}
        self._uses = root.ref_count()
        self._used: dict[int, set[str] | None] = {id(root): None}
        """The outputs of each block that are used; None for all."""
        self._wanted: dict[int, list[Predicate | None]] = {}
        """What each use of a block says of its outputs."""
        self._columns: dict[int, set[str] | None] = {}
        self._predicates: dict[int, Predicate | None] = {}

    def needs(self) -> list[TableNeeds]:
        for scope in self._order:
            block = self._blocks[id(scope)]
            self._use_columns(block)
            self._push(block)
        return [self._needs_of(number) for number in range(len(self._tables))]

    def _needs_of(self, number: int) -> TableNeeds:
        columns = self._columns.get(number)  # None even if it was not met: all are needed then
        return TableNeeds(
            columns=None if columns is None else frozenset(columns),
            predicate=self._predicates.get(number),
        )

    # --- columns

    def _use_columns(self, block: _Block) -> None:
        used = self._used.setdefault(id(block.scope), set())
        if block.is_opaque or block.is_distinct or (block.operands and block.is_cut):
            used = None
        if block.operands:
            self._use_operands(block, used)
            return
        dead = block.dead_projections(used)
        for column in block.columns():
            if not any(column is node or _is_inside(column, node) for node in dead):
                self._use(block, column)
        for name, source in block.sources.items():
            if block.needs_all(name):
                self._use_all(source)
            elif not isinstance(source, Scope) and REFERENCE in source.meta:
                self._columns.setdefault(source.meta[REFERENCE], set())
        for subquery in block.scope.subquery_scopes:
            is_exists = isinstance(subquery.expression.parent, exp.Exists)
            self._use_outputs(subquery, set() if is_exists else None)
        for other in block.other_scopes():
            self._use_outputs(other, None)

    def _use_operands(self, block: _Block, used: set[str] | None) -> None:
        places = None if used is None else block.places_of(used)
        for operand in block.operands:
            names = self._blocks[id(operand)].output_names()
            if places is None or names is None or any(place >= len(names) for place in places):
                self._use_outputs(operand, None)
            else:
                self._use_outputs(operand, {names[place] for place in places})

    def _use(self, block: _Block, column: exp.Column) -> None:
        if column.table:
            source = block.sources.get(column.table)
            if source is not None:
                self._use_column(source, column.name)
            return
        for source in block.sources.values():  # it may be of any of them
            self._use_column(source, column.name)

    def _use_column(self, source: exp.Expr | Scope, name: str) -> None:
        if isinstance(source, Scope):
            self._use_outputs(source, {name})
            return
        number = source.meta.get(REFERENCE)
        if number is None:
            return
        known = self._tables[number]
        columns = self._columns.setdefault(number, set())
        if columns is not None and (known is None or name in known.types):
            columns.add(name)

    def _use_all(self, source: exp.Expr | Scope) -> None:
        if isinstance(source, Scope):
            self._use_outputs(source, None)
        elif REFERENCE in source.meta:
            self._columns[source.meta[REFERENCE]] = None

    def _use_outputs(self, scope: Scope, names: set[str] | None) -> None:
        used = self._used.setdefault(id(scope), set())
        if names is None or used is None:
            self._used[id(scope)] = None
        else:
            used |= names

    # --- rows

    def _push(self, block: _Block) -> None:
        uses = self._wanted.get(id(block.scope), [])
        is_known = len(uses) == self._uses.get(id(block.scope), 1) and not block.is_opaque
        outer = some(uses) if uses and is_known and not block.is_cut else None
        if block.operands:
            self._push_to_operands(block, outer)
            return
        inner = block.inside(outer)
        for name, source in block.sources.items():
            conditions = every(self._conditions(block, name, inner))
            if isinstance(source, Scope):
                self._wanted.setdefault(id(source), []).append(conditions)
            elif REFERENCE in source.meta:
                is_other = block.is_sampled(source) or block.is_renamed(source)
                pushed = None if is_other else conditions
                self._predicates[source.meta[REFERENCE]] = pushed
        for other in (*block.scope.subquery_scopes, *block.other_scopes()):
            self._wanted.setdefault(id(other), []).append(None)

    def _conditions(
        self, block: _Block, name: str, inner: Predicate | None
    ) -> Iterator[Predicate | None]:
        """What must hold for a row of a source, or else it does not matter."""
        if block.is_opaque:
            return
        for predicate in (inner, self._read(block.where)):
            condition = about(predicate, name)
            if condition is not None and (rejects_nulls(condition) or not block.may_be_null(name)):
                yield condition
        for join in block.joins:
            condition = about(self._read(join.args.get("on")), name)
            if condition is not None and block.filters_by(join, name, rejects_nulls(condition)):
                yield condition

    def _read(self, expression: exp.Expr | None) -> Predicate | None:
        return None if expression is None else predicate_of(expression, self._parameters)

    def _push_to_operands(self, block: _Block, outer: Predicate | None) -> None:
        names = block.output_names()
        operands = [self._blocks[id(operand)] for operand in block.operands]
        for operand in operands:
            theirs = operand.output_names()

            def renamed(leaf: Leaf, theirs: list[str] | None = theirs) -> Leaf | None:
                if names is None or theirs is None or names.count(leaf.column) != 1:
                    return None
                place = names.index(leaf.column)
                if place >= len(theirs) or not self._are_alike(operands, place):
                    return None
                return _with(leaf, leaf.source, theirs[place])

            found = restricted(outer, renamed)
            self._wanted.setdefault(id(operand.scope), []).append(found)

    def _are_alike(self, operands: Sequence[_Block], place: int) -> bool:
        """Whether an output has the same type in all operands, so that none of them is cast."""
        kinds = [self._kind(operand, place) for operand in operands]
        return kinds[0] is not None and all(kind == kinds[0] for kind in kinds)

    def _kind(self, block: _Block, place: int) -> Any:
        if block.operands:
            kinds = [self._kind(self._blocks[id(one)], place) for one in block.operands]
            return kinds[0] if all(kind == kinds[0] for kind in kinds) else None
        column = block.column_at(place)
        source = None if column is None else block.sources.get(column.table)
        if column is None or source is None:
            return None
        if isinstance(source, Scope):
            inner = self._blocks[id(source)]
            names = inner.output_names() or []
            return self._kind(inner, names.index(column.name)) if column.name in names else None
        table = self._tables[source.meta[REFERENCE]] if REFERENCE in source.meta else None
        return None if table is None else table.types.get(column.name)


class _Block:
    """A SELECT, or a set operation of several, with what it reads from."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.expression = scope.expression
        self.operands: list[Scope] = list(scope.set_operation_scopes)
        self.joins: list[exp.Join] = self.expression.args.get("joins") or []
        self.sources = self._sources()

    def _sources(self) -> dict[str, exp.Expr | Scope]:
        """What the block reads from, by alias; also what is joined only to see if it is there."""
        sources: dict[str, exp.Expr | Scope] = {}
        for name, (_, source) in self.scope.selected_sources.items():
            sources[name] = source
        for join in self.joins:
            name = join.alias_or_name
            if name and name not in sources and name in self.scope.sources:
                sources[name] = self.scope.sources[name]
        return sources

    @cached_property
    def is_opaque(self) -> bool:
        """Whether nothing is known of how outputs follow from inputs."""
        if self.operands:
            return bool(self.expression.args.get("by_name"))
        return not isinstance(self.expression, exp.Select) or any(
            self.expression.find_all(exp.Pivot)
        )

    @property
    def is_distinct(self) -> bool:
        """Whether equal rows become one, so that all outputs matter."""
        if self.operands:
            is_union_all = isinstance(self.expression, exp.Union) and not self.expression.args.get(
                "distinct"
            )
            return not is_union_all
        return bool(self.expression.args.get("distinct"))

    @property
    def where(self) -> exp.Expr | None:
        where = self.expression.args.get("where")
        return None if where is None else where.this

    def columns(self) -> list[exp.Column]:
        """All columns that the block names, with those of outer blocks in its subqueries."""
        return list(self.scope.columns)

    def other_scopes(self) -> Iterable[Scope]:
        """Blocks in it that are neither sources nor subqueries: of table functions."""
        mine = {id(source) for source in self.sources.values()}
        both = (*self.scope.udtf_scopes, *self.scope.derived_table_scopes, *self.scope.cte_scopes)
        return [
            scope for scope in both if id(scope) not in mine and scope not in self.scope.cte_scopes
        ]

    def needs_all(self, source: str) -> bool:
        """Whether all columns of a source matter, named or not."""
        if self.is_opaque or self.is_renamed(self.sources[source]):
            return True
        if any(join.method == "NATURAL" for join in self.joins):
            return True
        for star in self.scope.find_all(exp.Star):
            if isinstance(star.parent, exp.Count):
                continue
            parent = star.parent
            if not isinstance(parent, exp.Column) or parent.table in ("", source):
                return True
        return False

    # --- outputs

    def output_names(self) -> list[str] | None:
        if self.operands:
            return _Block(self.operands[0]).output_names()
        if not isinstance(self.expression, exp.Select):
            return None
        names = [projection.alias_or_name for projection in self.expression.expressions]
        return names if all(names) else None

    def places_of(self, names: set[str]) -> set[int] | None:
        own = self.output_names()
        if own is None or not names <= set(own):
            return None
        return {place for place, name in enumerate(own) if name in names}

    def column_at(self, place: int) -> exp.Column | None:
        """The column that an output is; None if it is computed."""
        if not isinstance(self.expression, exp.Select):
            return None
        projections = self.expression.expressions
        found = projections[place].unalias() if place < len(projections) else None
        return found if isinstance(found, exp.Column) and found.table else None

    def dead_projections(self, used: set[str] | None) -> list[exp.Expr]:
        """The outputs that nothing uses."""
        select = self.expression
        if used is None or not isinstance(select, exp.Select) or self._has_ordinals():
            return []
        if select.args.get("order") is not None and select.args.get("limit") is not None:
            return []  # the order may be by an output, and decides what is in the result
        inside = {column.name for column in self.scope.columns if not column.table}
        inside |= {
            column.name for column in self.expression.find_all(exp.Column) if not column.table
        }
        return [
            projection
            for projection in self.expression.expressions
            if projection.alias_or_name not in used | inside
        ]

    def _has_ordinals(self) -> bool:
        parts = [self.expression.args.get("group"), self.expression.args.get("order")]
        return any(
            isinstance(
                getattr(one, "this", None) if isinstance(one, exp.Ordered) else one, exp.Literal
            )
            for part in parts
            if part is not None
            for one in part.expressions
        ) or any(part is not None and bool(part.args.get("all")) for part in parts)

    # --- rows

    def inside(self, outer: Predicate | None) -> Predicate | None:
        """What a predicate on outputs says of the rows before they become outputs."""
        if outer is None:
            return None
        allowed = self._allowed_outputs()

        def renamed(leaf: Leaf) -> Leaf | None:
            column = allowed.get(leaf.column)
            return None if column is None else _with(leaf, column.table, column.name)

        return restricted(outer, renamed)

    @cached_property
    def is_cut(self) -> bool:
        """Whether rows are left out by their number, or values depend on the number of rows."""
        select = self.expression
        if any(
            select.args.get(part) is not None for part in ("limit", "offset", "fetch", "qualify")
        ):
            return True
        return any(
            _function_name(node) in _NOT_REPEATABLE for node in self.scope.find_all(exp.Func)
        )

    def _allowed_outputs(self) -> dict[str, exp.Column]:
        """The outputs that are columns, and by which rows may be left out before anything else."""
        names = self.output_names() or []
        columns: dict[str, exp.Column] = {}
        for place, name in enumerate(names):
            column = self.column_at(place)
            if column is not None and names.count(name) == 1:
                columns[name] = column
        for group in self._groups():
            columns = {name: column for name, column in columns.items() if column in group}
        return columns

    def _groups(self) -> Iterator[list[exp.Expr]]:
        """For each thing that looks at several rows, the columns that are equal among them."""
        group = self.expression.args.get("group")
        if group is not None:
            special = any(
                group.args.get(part)
                for part in ("rollup", "cube", "grouping_sets", "all", "totals")
            )
            yield [] if special else group.expressions
        elif any(True for _ in self._aggregates()):
            yield []
        for window in self.scope.find_all(exp.Window):
            yield window.args.get("partition_by") or []
        if self.expression.args.get("windows"):
            yield []

    def _aggregates(self) -> Iterator[exp.Expr]:
        for function in self.scope.find_all(exp.AggFunc):
            if not isinstance(function.parent, exp.Window):
                yield function
        yield from self.scope.find_all(exp.Anonymous)  # it may be one
        if self.expression.args.get("having") is not None:
            yield self.expression

    # --- joins

    def _place(self, name: str) -> int | None:
        """The number of the join that brings a source; -1 for the first, None if it is nested."""
        from_ = self.expression.args.get("from_")
        if from_ is not None and from_.alias_or_name == name and not self._is_nested(from_.this):
            return -1
        for place, join in enumerate(self.joins):
            if join.alias_or_name == name and not self._is_nested(join.this):
                return place
        return None

    @staticmethod
    def _is_nested(node: exp.Expr) -> bool:
        if isinstance(node, exp.Subquery):
            return not isinstance(node.this, exp.Query) or bool(node.args.get("joins"))
        return bool(node.args.get("joins"))

    def may_be_null(self, name: str) -> bool:
        """Whether an outer join may give rows without a row of a source."""
        place = self._place(name)
        if place is None:
            return True
        own = self.joins[place] if place >= 0 else None
        if own is not None and (own.side or "").upper() in ("LEFT", "FULL"):
            return True
        return any(
            (join.side or "").upper() in ("RIGHT", "FULL") for join in self.joins[place + 1 :]
        )

    def filters_by(self, join: exp.Join, name: str, rejects: bool) -> bool:  # noqa: FBT001
        """Whether rows of a source that do not meet the condition of a join do not matter."""
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        place, at = self._place(name), self.joins.index(join)
        if (
            place is None
            or join.method
            or kind not in ("", "INNER", "OUTER", "SEMI", "ANTI", "CROSS")
        ):
            return False
        if place == at:
            return side in ("", "LEFT")
        if place > at or kind == "ANTI" or not rejects:
            return False
        return side in ("", "RIGHT") or kind == "SEMI"

    @staticmethod
    def is_renamed(source: exp.Expr | Scope) -> bool:
        """Whether the columns of a table have other names in the query."""
        return not isinstance(source, Scope) and RENAMED in source.meta

    def is_sampled(self, table: exp.Expr) -> bool:
        return bool(table.args.get("sample")) or isinstance(table.parent, exp.TableSample)


def _users_first(root: Scope) -> list[Scope]:
    """All blocks of a query, each behind those that use it."""
    behind: list[Scope] = []
    seen: set[int] = set()

    def visit(scope: Scope) -> None:
        if id(scope) in seen:
            return
        seen.add(id(scope))
        parts = [source for source in scope.sources.values() if isinstance(source, Scope)]
        for part in (
            *parts,
            *scope.set_operation_scopes,
            *scope.subquery_scopes,
            *scope.derived_table_scopes,
            *scope.udtf_scopes,
            *scope.cte_scopes,
        ):
            visit(part)
        behind.append(scope)

    visit(root)
    return behind[::-1]


def _function_name(node: exp.Func) -> str:
    return str(node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()


def _is_inside(node: exp.Expr, ancestor: exp.Expr) -> bool:
    parent = node.parent
    while parent is not None:
        if parent is ancestor:
            return True
        parent = parent.parent
    return False


def _with(leaf: Leaf, source: str, column: str) -> Leaf:
    return msgspec.structs.replace(leaf, source=source, column=column)
