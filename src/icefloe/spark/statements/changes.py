"""Statements that write: each is one commit on the branch of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import zarr

from icefloe.cf.encoding import fill_of
from icefloe.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NodeNotFoundError,
    RefNotFoundError,
)
from icefloe.model import MAIN, paths
from icefloe.model.bounded_text import shortened
from icefloe.repository import Repository
from icefloe.spark.engine.job import Job, JobOptions
from icefloe.spark.statements.catalog import (
    RegisteredTable,
    check_location,
    checked_name,
    refresh,
    selector_of_version,
    written_branch,
)
from icefloe.spark.tables.arrow_types import spark_type
from icefloe.spark.tables.options import SourceOptions
from icefloe.spark.tables.read_table import TableChoice
from icefloe.spark.tables.storage_providers import registered_providers
from icefloe.spark.tables.write_table import write_request, write_rows
from icefloe.tables.schema import read_table_schema, read_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from icefloe.session import Session
    from icefloe.spark.statements import parsing
    from icefloe.spark.statements.catalog import NamedTable
    from icefloe.spark.statements.queries import Statements
    from icefloe.tables.schema import TableSchema
    from icefloe.tables.target_arrays import Operation


class Changes:
    """Carries out the statements of one call that change a table."""

    def __init__(self, statements: Statements) -> None:
        """Take what reads the tables of a statement."""
        self._statements = statements
        self._spark = statements.spark

    # --- rows

    def insert(self, insert: parsing.Insert, target: NamedTable) -> DataFrame:
        """Add rows behind the end of the table, or replace the region that rows cover."""
        writer = self._begin(target)
        rows = self._statements.query(insert.query)
        existing = self._existing(target)
        if existing is None:
            kinds = dict(target.table.declared or ())
        else:
            # In the order in which SELECT * has them.
            shown = target.table.choice.request.columns or ()
            names = [name for name in shown if name in _writable(existing)]
            names += [name for name in _writable(existing) if name not in names]
            kinds = {name: _type_of(existing, name) for name in names}
        rows = _named_columns(rows, insert.columns or tuple(kinds), by_name=insert.by_name)
        rows = _of_types(rows, kinds)
        operation: Operation | None = (
            "overwrite" if insert.overwrite and existing is not None else None
        )
        words = "INSERT OVERWRITE" if insert.overwrite else "INSERT INTO"
        return self._write(rows, target, writer, words, operation=operation)

    def delete(self, delete: parsing.Delete, target: NamedTable) -> DataFrame:
        """Make cells missing."""
        writer = self._begin(target)
        schema = self._schema(target)
        _check_can_be_missing(schema, target.table.name)
        dims = [_quoted(dim) for dim in schema.dims]
        nulls = [_null(schema, name) for name in _values(schema)]
        text = f"{delete.with_} SELECT {', '.join([*dims, *nulls])} FROM {delete.table}"
        rows = self._statements.query(text + _where(delete.where))
        return self._write(rows, target, writer, "DELETE FROM", operation="upsert")

    def update(self, update: parsing.UpdateRows, target: NamedTable) -> DataFrame:
        """Set variables of cells."""
        writer = self._begin(target)
        schema = self._schema(target)
        columns = {name.lower(): name for name in _values(schema)}
        listed = [_quoted(dim) for dim in schema.dims]
        for assignment in update.assignments:
            name = self._assigned(assignment.column, columns, schema)
            kind = _type_of(schema, name)
            listed.append(f"CAST(({assignment.expression}) AS {kind}) AS {_quoted(name)}")
        text = f"{update.with_} SELECT {', '.join(listed)} FROM {update.table}"
        rows = self._statements.query(text + _where(update.where))
        return self._write(rows, target, writer, "UPDATE", operation="upsert")

    @staticmethod
    def _assigned(column: str, columns: dict[str, str], schema: TableSchema) -> str:
        name = columns.get(column.lower())
        if name is None:
            raise InvalidInputError(
                f"SET changes variables ({', '.join(columns.values())}), found {column!r}; the "
                f"dimensions {', '.join(schema.dims)} say which cell a row is"
            )
        return name

    def merge(self, merge: parsing.Merge, target: NamedTable) -> DataFrame:
        """Set, add and clear cells by the rows of a source."""
        writer = self._begin(target)
        schema = self._schema(target)
        self._statements.check_named_parameters(merge.on, *_expressions(merge))
        rows = self._statements.query(_MergeQuery(merge, schema).text())
        return self._write(rows, target, writer, "MERGE INTO", operation="upsert")

    def _begin(self, target: NamedTable) -> Session:
        """Open the session that a statement writes to, and reads its table from."""
        request = target.table.choice.request
        if request.layout != "cells" or not request.reading.decode:
            how = "decode=False" if request.layout == "cells" else f"layout={request.layout!r}"
            raise InvalidInputError(
                f"{target.table.name} was registered with {how} and can only be read: rows that "
                "are written are decoded cells; register the table again without it"
            )
        return self._statements.begin_writing(target, written_branch(target))

    def _write(
        self,
        rows: DataFrame,
        target: NamedTable,
        writer: Session,
        words: str,
        *,
        operation: Operation | None = None,
    ) -> DataFrame:
        table = target.table
        request = write_request(
            group=table.choice.request.group, operation=operation, **table.write_options
        )
        options = JobOptions(branch=written_branch(target), message=f"{words} {table.name}")
        job = Job(self._spark, table.repository, "write_table", options, session=writer)
        report = write_rows(job, rows, request)
        refresh(self._spark, table.repository)
        return self._told(report.snapshot_id, chunks=report.chunks)

    def _told(self, snapshot_id: str | None, **numbers: int) -> DataFrame:
        """The result of a statement: what it committed; null if there was nothing to commit."""
        kinds = "".join(f", {name} bigint" for name in numbers)
        row = (snapshot_id, *numbers.values())
        return self._spark.createDataFrame([row], f"snapshot_id string{kinds}")

    def _existing(self, target: NamedTable) -> TableSchema | None:
        request = target.table.choice.request
        try:
            return read_table_schema(
                self._statements.session(target),
                request.group,
                variables=request.variables,
                dims=request.dims,
                reading=request.reading,
            )
        except (NodeNotFoundError, InvalidInputError):
            if target.table.declared is None:
                raise
            return None

    def _schema(self, target: NamedTable) -> TableSchema:
        schema = self._existing(target)
        if schema is None:
            raise InvalidInputError(f"{target.table.name} has no rows yet; use INSERT INTO")
        if not schema.dims:
            raise InvalidInputError(
                f"{target.table.name} has no dimensions, and so no coordinates to find cells by; "
                "set its values with zarr or xarray"
            )
        return schema

    # --- tables

    def create(self, create: parsing.CreateTable) -> DataFrame:
        """Create a table by a query, or declare one that the first INSERT creates."""
        name = checked_name(create.name[-1])
        if create.columns and create.query is not None:
            raise InvalidInputError(
                "CREATE TABLE … AS takes columns and types from the query; name no columns behind "
                f"{name}"
            )
        options = SourceOptions(create.options, registered_providers())
        options.check(writing=True)
        location = options.location()
        check_location(location.url, self._statements.locations)
        request = options.write_request(overwrite=False)
        if create.query is None:
            self._check_declared(create, request.dims)
        is_new = location.provider is None and not Repository.exists(location.url)
        repository = Repository.create(location.url) if is_new else location.open()
        branch = options.text("branch") or MAIN
        settings: dict[str, Any] = {
            "dims": request.dims,
            "append_dim": request.append_dim,
            "chunks": request.chunks,
            "encoding": request.encoding,
            "attributes": _comments(create.columns) | request.attributes,
            "coordinates": request.coordinates,
            "statistics": request.statistics,
        }
        table = RegisteredTable(
            name=name,
            repository=repository,
            choice=TableChoice.of(group=request.group, branch=branch),
            declared=tuple((column.name, column.type) for column in create.columns),
            write_options=settings,
            order=tuple(column.name for column in create.columns),
        )
        return self._created(create, table, settings)

    def _check_declared(self, create: parsing.CreateTable, dims: Sequence[str] | None) -> None:
        """Raise unless columns make a table: their names, their types, and the dimensions."""
        if not create.columns:
            raise InvalidInputError(
                f"CREATE TABLE {shortened(create.name[-1])} needs columns, or a query behind AS"
            )
        names = [column.name for column in create.columns]
        lowered = [name.lower() for name in names]
        twice = [name for name in names if lowered.count(name.lower()) > 1]
        if twice:
            raise InvalidInputError(f"CREATE TABLE names the column {twice[0]!r} twice")
        if dims is None:
            raise InvalidInputError(
                "say which columns are the dimensions, in order: OPTIONS (dims 'time,lat,lon')"
            )
        missing = [dim for dim in dims if dim not in names]
        if missing:
            raise InvalidInputError(
                f"the dimension {missing[0]!r} is none of the columns {', '.join(names)}"
            )
        for column in create.columns:
            self._spark.createDataFrame([], f"{_quoted(column.name)} {column.type}")

    def _created(
        self, create: parsing.CreateTable, table: RegisteredTable, settings: dict[str, Any]
    ) -> DataFrame:
        group = table.choice.request.group
        if create.query is not None and create.properties:
            raise InvalidInputError(
                "CREATE TABLE … AS takes no TBLPROPERTIES or COMMENT; set them afterwards with "
                f"ALTER TABLE {table.name} SET TBLPROPERTIES (…)"
            )
        if table.has_arrays() and not create.or_replace:
            if not create.if_not_exists:
                raise AlreadyExistsError(
                    f"{group} of {table.repository.storage.location} has arrays already; use "
                    "CREATE OR REPLACE TABLE, CREATE TABLE IF NOT EXISTS or another group"
                )
            self._add(table)
            return self._told(None)
        if create.query is None:
            snapshot_id = _declare(table, create.properties)
            self._statements.catalog.tables[table.name.lower()] = table
            return self._told(snapshot_id)
        rows = self._statements.query(create.query)
        writer = table.repository.writable_session(table.branch)
        if create.or_replace:
            _delete_arrays(writer, group)
        request = write_request(group=group, operation="create", **settings)
        options = JobOptions(branch=table.branch, message=f"CREATE TABLE {table.name}")
        job = Job(self._spark, table.repository, "write_table", options, session=writer)
        report = write_rows(job, rows, request)
        self._add(msgspec.structs.replace(table, order=tuple(rows.columns)))
        return self._told(report.snapshot_id, chunks=report.chunks)

    def _add(self, table: RegisteredTable) -> None:
        self._statements.catalog.tables[table.name.lower()] = table
        table.frame(self._spark).createOrReplaceTempView(table.name)

    def drop(self, drop: parsing.DropTable) -> DataFrame:
        """Forget the name of a table; its arrays stay."""
        table = self._statements.catalog.tables.pop(drop.name[-1].lower())
        self._spark.catalog.dropTempView(table.name)
        return self._told(None)

    def rename(self, rename: parsing.RenameTable, target: NamedTable) -> DataFrame:
        """Give a table another name; its arrays stay where they are."""
        tables = self._statements.catalog.tables
        checked_name(rename.new_name)
        if target.table.name.lower() not in tables:
            raise InvalidInputError(
                f"{shortened(target.table.name)!r} is a URL, which keeps its name; use "
                "icefloe.spark.register"
            )
        if rename.new_name.lower() in tables:
            raise AlreadyExistsError(f"there is a table {rename.new_name!r} already")
        old = tables.pop(target.table.name.lower())
        self._spark.catalog.dropTempView(old.name)
        self._add(msgspec.structs.replace(old, name=rename.new_name))
        return self._told(None)

    def rename_column(self, rename: parsing.RenameColumn, target: NamedTable) -> DataFrame:
        """Move the array of a variable."""
        schema = self._schema(target)
        name = {one.lower(): one for one in _values(schema)}.get(rename.column.lower())
        variable = None if name is None else schema.variable(name)
        if variable is None:
            raise InvalidInputError(
                f"RENAME COLUMN takes a variable ({', '.join(_values(schema))}), found "
                f"{rename.column!r}; dimensions keep their names"
            )
        new = rename.new_column
        others = {one.lower() for one in schema.names if one != name}
        if "/" in new or new.lower() in others:
            raise InvalidInputError(
                f"RENAME COLUMN … TO takes a name without '/' that no other column has, in upper "
                f"or lower case, found {new!r}; there are {', '.join(schema.names)}"
            )
        session = target.table.repository.writable_session(written_branch(target))
        folder = paths.parent(variable.path) or "/"
        session.move(variable.path, f"{folder.rstrip('/')}/{new}")
        tables = self._statements.catalog.tables
        known = tables.get(target.table.name.lower())
        if known is not None and name in known.order:
            # Other branches still have the old name.
            place = known.order.index(str(name)) + 1
            order = (*known.order[:place], new, *known.order[place:])
            tables[known.name.lower()] = msgspec.structs.replace(known, order=order)
        return self._committed(session, target, f"RENAME COLUMN {name} TO {rename.new_column}")

    def set_attributes(self, change: parsing.SetAttributes, target: NamedTable) -> DataFrame:
        """Set and remove attributes of the group, or of the array of a column."""
        session = target.table.repository.writable_session(written_branch(target))
        path = paths.canonical(target.table.choice.request.group)
        if change.column is not None:
            schema = self._schema(target)
            name = {one.lower(): one for one in schema.names}.get(change.column.lower(), "")
            variable = schema.variable(name)
            if variable is None:
                raise InvalidInputError(
                    f"{target.table.name} has no column {change.column!r} with an array; it has "
                    f"{', '.join(schema.names)}"
                )
            path = variable.path
        node = zarr.open(session.store, path=path.lstrip("/"), mode="r+")
        values = dict(node.attrs)
        for key, value in change.values.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        node.attrs.put(values)
        is_set = any(value is not None for value in change.values.values())
        words = "SET TBLPROPERTIES" if is_set else "UNSET TBLPROPERTIES"
        return self._committed(session, target, f"{words} {', '.join(change.values)}")

    def _committed(self, session: Any, target: NamedTable, message: str) -> DataFrame:
        if not session.has_uncommitted_changes:
            return self._told(None)
        snapshot_id = session.commit(f"ALTER TABLE {target.table.name} {message}")
        refresh(self._spark, target.table.repository)
        return self._told(snapshot_id)

    # --- branches and tags

    def create_ref(self, create: parsing.CreateRef, target: NamedTable) -> DataFrame:
        """Create a branch or a tag, at the tip of the table's branch or at a version."""
        repository = target.table.repository
        selector = target.selector
        if create.version is not None:
            selector = selector_of_version(repository, create.version)
        snapshot_id = selector.session(repository).snapshot_id
        look = repository.lookup_branch if create.kind == "branch" else repository.lookup_tag
        exists = True
        try:
            look(create.ref)
        except RefNotFoundError:
            exists = False
        if exists and create.if_not_exists:
            return self._told(look(create.ref))
        if exists and create.or_replace and create.kind == "branch":
            repository.reset_branch(create.ref, snapshot_id)
        elif create.kind == "branch":
            repository.create_branch(create.ref, snapshot_id)
        else:
            repository.create_tag(create.ref, snapshot_id)
        return self._told(snapshot_id)

    def drop_ref(self, drop: parsing.DropRef, target: NamedTable) -> DataFrame:
        """Delete a branch or a tag."""
        repository = target.table.repository
        delete = repository.delete_branch if drop.kind == "branch" else repository.delete_tag
        try:
            delete(drop.ref)
        except RefNotFoundError:
            if not drop.if_exists:
                raise
        return self._told(None)


# --- parts of statements


class _MergeQuery:
    """The query whose rows a MERGE sets: one for each cell that changes."""

    def __init__(self, merge: parsing.Merge, schema: TableSchema) -> None:
        self._merge = merge
        self._schema = schema
        self._values = _values(schema)
        self._target = _quoted(merge.alias)
        self._source = _quoted(merge.source_alias)
        for clause in merge.clauses:
            self._check(clause)

    def _check(self, clause: parsing.MergeClause) -> None:
        """Raise if a clause sets what no row can set."""
        known = {name.lower() for name in (*self._schema.dims, *self._values)}
        for assignment in clause.assignments or ():
            if assignment.column.lower() not in known:
                raise InvalidInputError(
                    f"{clause.action.upper()} sets variables ({', '.join(self._values)}), found "
                    f"{assignment.column!r}"
                )

    def text(self) -> str:
        merge = self._merge
        parts = []
        joins = {
            "matched": f"{merge.table} JOIN {merge.source}",
            "not matched": f"{merge.source} LEFT ANTI JOIN {merge.table}",
            "not matched by source": f"{merge.table} LEFT ANTI JOIN {merge.source}",
        }
        for when, join in joins.items():
            clauses = [clause for clause in merge.clauses if clause.when == when]
            if clauses:
                parts.append(self._select(clauses, f"{join} ON {merge.on}"))
        return f"{merge.with_} {' UNION ALL '.join(parts)}"

    def _select(self, clauses: Sequence[parsing.MergeClause], join: str) -> str:
        """The rows that some clauses set, of which the first whose condition holds counts."""
        tests = [f"({clause.condition})" if clause.condition else "TRUE" for clause in clauses]
        listed = []
        for name in self._schema.names:
            if name not in self._schema.dims and name not in self._values:
                continue
            cases = " ".join(
                f"WHEN {test} THEN {self._value(clause, name)}"
                for test, clause in zip(tests, clauses, strict=True)
            )
            kind = _type_of(self._schema, name)
            listed.append(f"CAST(CASE {cases} END AS {kind}) AS {_quoted(name)}")
        return f"SELECT {', '.join(listed)} FROM {join} WHERE {' OR '.join(tests)}"

    def _value(self, clause: parsing.MergeClause, name: str) -> str:
        """What a clause makes of a column."""
        is_dim = name in self._schema.dims
        assigned = {a.column.lower(): a.expression for a in clause.assignments or ()}
        if name.lower() in assigned:
            if is_dim and clause.action == "update":
                raise InvalidInputError(
                    f"UPDATE SET changes variables, found the dimension {name!r}; use INSERT"
                )
            return f"({assigned[name.lower()]})"
        if clause.action != "insert" and is_dim:
            return f"{self._target}.{_quoted(name)}"
        if clause.action == "delete":
            return "NULL"
        if clause.assignments is None:
            return f"{self._source}.{_quoted(name)}"
        if clause.action == "update":
            return f"{self._target}.{_quoted(name)}"
        if is_dim:
            raise InvalidInputError(
                f"INSERT needs a value for each dimension ({', '.join(self._schema.dims)}), and "
                f"has none for {name!r}"
            )
        return "NULL"


def _expressions(merge: parsing.Merge) -> list[str]:
    """The expressions of a MERGE, which its query repeats."""
    clauses = merge.clauses
    assigned = [a.expression for clause in clauses for a in clause.assignments or ()]
    return [*assigned, merge.source, *(c.condition for c in clauses if c.condition is not None)]


def _where(text: str | None) -> str:
    return "" if text is None else f" WHERE {text}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _null(schema: TableSchema, name: str) -> str:
    return f"CAST(NULL AS {_type_of(schema, name)}) AS {_quoted(name)}"


def _values(schema: TableSchema) -> list[str]:
    """The variables that rows can set: those over all dimensions."""
    return [v.name for v in schema.values if set(v.dims) == set(schema.dims)]


def _check_can_be_missing(schema: TableSchema, table: str) -> None:
    """Raise an error for missing cells of variables that have no fill value for them."""
    decodings = {v.name: v.decoding for v in schema.values if v.name in _values(schema)}
    never = [name for name, decoding in decodings.items() if fill_of(decoding) is None]
    if never:
        others = [name for name in decodings if name not in never]
        advice = (
            f"set the others: UPDATE {table} SET {', '.join(f'{n} = NULL' for n in others)} WHERE …"
            if others
            else "give them one when you create them: OPTIONS (fill '{…}')"
        )
        raise InvalidInputError(
            f"DELETE makes cells missing, and {', '.join(never)} of {table} cannot be: the arrays "
            f"have no _FillValue; {advice}"
        )


def _writable(schema: TableSchema) -> list[str]:
    return [*schema.dims, *_values(schema)]


def _type_of(schema: TableSchema, name: str) -> str:
    return str(spark_type(schema.field(name).type).simpleString())


def _of_types(rows: DataFrame, kinds: dict[str, str]) -> DataFrame:
    """Rows with the types of a table's columns."""
    known = {name.lower(): (name, kind) for name, kind in kinds.items()}
    unknown = [name for name in rows.columns if name.lower() not in known]
    if unknown:
        raise InvalidInputError(
            f"the table has no column {unknown[0]!r} that rows can set; it has {', '.join(kinds)}"
        )
    columns = [(name, *known[name.lower()]) for name in rows.columns]
    return rows.selectExpr(
        *(f"CAST({_quoted(name)} AS {kind}) AS {_quoted(own)}" for name, own, kind in columns)
    )


def _named_columns(rows: DataFrame, names: Sequence[str], *, by_name: bool) -> DataFrame:
    """Rows with the columns of a table: by their order, as SQL has it, or by their names."""
    if by_name:
        return rows
    if len(rows.columns) != len(names):
        raise InvalidInputError(
            f"INSERT takes {len(names)} columns in this order: {', '.join(names)}; the query has "
            f"{len(rows.columns)}: {', '.join(rows.columns)}. Name columns behind the table, or "
            "write INSERT INTO … BY NAME"
        )
    return rows.toDF(*names)


def _comments(columns: Sequence[parsing.DeclaredColumn]) -> dict[str, dict[str, Any]]:
    return {c.name: {"long_name": c.comment} for c in columns if c.comment is not None}


def _delete_arrays(session: Session, group: str) -> None:
    """Delete the arrays of a group, but not the groups in it."""
    if session.get_node(paths.canonical(group)) is None:
        return
    for variable in read_variables(session, group).values():
        session.tree.delete_node(variable.path)


def _declare(table: RegisteredTable, properties: dict[str, str]) -> str | None:
    """Make the group of a table, with its attributes."""
    session = table.repository.writable_session(table.branch)
    root = zarr.open_group(session.store, mode="a")
    folder = paths.canonical(table.choice.request.group).lstrip("/")
    group = root.require_group(folder) if folder else root
    if properties:
        group.attrs.update(properties)
    if not session.has_uncommitted_changes:
        return None
    snapshot_id: str = session.commit(f"CREATE TABLE {table.name}")
    return snapshot_id
