"""Runs queries: each table is loaded with what the query needs, and Spark runs the user's text."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec
from sqlglot import TokenType

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.spark.engine.worker import pickled_context, unpickled_context
from icefloe.spark.statements.predicates import Value, condition_text
from icefloe.spark.statements.pushdown import SourceColumns, TableNeeds, table_needs
from icefloe.spark.statements.references import (
    CASE_SENSITIVE_DIALECT,
    DIALECT,
    ParsedQuery,
    first_word,
    parse_query,
    tokens_of,
    whole_table_query,
)
from icefloe.spark.tables.arrow_types import arrow_schema, conform, spark_schema, spark_type
from icefloe.spark.tables.read_table import TableChoice, frame_of
from icefloe.tables.metadata_tables import metadata_table, read_metadata_table
from icefloe.tables.schema import TableSchema, read_table_schema
from icefloe.tables.where import parse_condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.session import Session
    from icefloe.spark.statements.catalog import Catalog, NamedTable
    from icefloe.tables.versions import SnapshotSelector

_MARK = "\x00"
_READING = {"SELECT", "WITH", "FROM", "TABLE", "VALUES", "(", "INSERT", "CREATE"}
"""What statements begin with that may read tables."""


class PlannedTable(Record, frozen=True, eq=False):
    """A table that a query reads: its snapshot, and what is read of it."""

    named: Any
    session: Any
    schema: TableSchema
    choice: TableChoice
    """What is read; without what the query does not need."""
    condition: str | None
    """The part of `choice.where` that comes from the query."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that the query sees."""
        return self.named.table.choice.request.columns or tuple(self.schema.names)


class Statements:
    """Runs the statements of one call: what they read and write, and with which values."""

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        args: Mapping[str, Any] | Sequence[Any] | None,
        locations: Sequence[str],
    ) -> None:
        """Take the session, its catalog, the arguments of the statement and allowed URLs."""
        self.spark = spark
        self.catalog = catalog
        self.args = args
        self.locations = tuple(locations)
        self.zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
        self._sessions: dict[tuple[int, SnapshotSelector], Session] = {}

    def named(self, parts: Sequence[str]) -> NamedTable | None:
        """What a name means; None if it is a name of Spark's own."""
        return self.catalog.find(parts, self.locations, None, self.zone)

    def session(self, named: NamedTable) -> Session:
        """The snapshot of a table; the same for all of a statement."""
        repository = named.table.repository
        key = (id(repository), named.selector)
        if key not in self._sessions:
            self._sessions[key] = named.selector.session(repository)
        return self._sessions[key]

    def begin_writing(self, named: NamedTable, branch: str) -> Session:
        """A session that writes to a table, based on the snapshot that the statement reads.

        A commit that comes between the two would be undone by values that were computed before it.
        """
        repository = named.table.repository
        writer: Session = repository.writable_session(branch)
        base = repository.readonly_session(snapshot_id=writer.snapshot_id)
        self._sessions[id(repository), named.selector] = base
        return writer

    def check_named_parameters(self, *texts: str) -> None:
        """Raise if expressions that are repeated have parameters without names."""
        for text in texts:
            if any(token.token_type == TokenType.PLACEHOLDER for token in tokens_of(text)):
                raise InvalidInputError(
                    "parameters of MERGE have names: write :value instead of ?, and give "
                    'args={"value": …}'
                )

    # --- queries

    def query(self, text: str) -> DataFrame:
        """Run a query, or whatever else Spark knows: that sees the views of registered tables."""
        if first_word(text) not in _READING:
            args: Any = self.args
            return self.spark.sql(text, args)
        parsed, tables = self.plan(text)
        return self.run(parsed, self.frames(tables))

    def frames(self, tables: Sequence[PlannedTable | DataFrame | None]) -> list[DataFrame | None]:
        """The DataFrames of planned tables."""
        return [self._frame(table) for table in tables]

    def run(
        self, parsed: ParsedQuery, frames: Sequence[DataFrame | None], prefix: str = ""
    ) -> DataFrame:
        """Run a query on DataFrames instead of some of its tables, behind a prefix (EXPLAIN)."""
        if _MARK in parsed.text:
            raise InvalidInputError("a statement has no character of the number 0")
        marks = [
            None if frame is None else f"{_MARK}{number}{_MARK}"
            for number, frame in enumerate(frames)
        ]
        text = prefix + parsed.with_tables(marks)
        named = {f"t{number}": f for number, f in enumerate(frames) if f is not None}
        args: Any = self.args
        if not named:
            return self.spark.sql(text, args)
        text = text.replace("{", "{{").replace("}", "}}")
        for number in range(len(frames)):
            text = text.replace(f"{_MARK}{number}{_MARK}", f"{{t{number}}}")
        return self.spark.sql(text, args, **named)

    def plan(self, text: str) -> tuple[ParsedQuery, list[PlannedTable | DataFrame | None]]:
        """Parse a query, and plan what it reads of each table; None for tables of Spark."""
        is_sensitive = self.spark.conf.get("spark.sql.caseSensitive") == "true"
        dialect = CASE_SENSITIVE_DIALECT if is_sensitive else DIALECT
        parsed = parse_query(whole_table_query(text), dialect)
        named = [
            self.catalog.find(reference.parts, self.locations, reference.as_of, self.zone)
            for reference in parsed.references
        ]
        others = [None if one is None else self._other_frame(one) for one in named]
        schemas: list[TableSchema | None] = []
        columns: list[SourceColumns | None] = []
        for reference, one, other in zip(parsed.references, named, others, strict=True):
            if one is None and reference.as_of is not None:
                raise InvalidInputError(
                    f"{'.'.join(reference.parts)} is no registered table, and only those have "
                    "versions; register it with icefloe.spark.register"
                )
            schema = None if one is None or other is not None else self._schema(one)
            schemas.append(schema)
            fields = self._fields(reference.parts, one, schema, other)
            columns.append(_source_columns(fields, is_sensitive=is_sensitive))
        if not any(named):
            return parsed, [None] * len(named)
        needs = table_needs(parsed.tree, columns, dialect, self._parameters())
        planned: list[PlannedTable | DataFrame | None] = []
        for one, other, schema, need in zip(named, others, schemas, needs, strict=True):
            if one is not None and schema is not None:
                planned.append(self._planned(one, schema, need))
            else:
                planned.append(other)
        return parsed, planned

    def _other_frame(self, named: NamedTable) -> DataFrame | None:
        """The rows of a metadata table, or of one that was only declared; None for others."""
        if named.metadata is not None:
            return metadata_frame(self.spark, named, named.metadata)
        table = named.table
        if table.declared is not None and not table.has_arrays(self.session(named)):
            return table.no_rows(self.spark)
        return None

    def _schema(self, named: NamedTable) -> TableSchema:
        request = named.table.choice.request
        return read_table_schema(
            self.session(named),
            request.group,
            variables=request.variables,
            dims=request.dims,
            reading=request.reading,
        )

    def _fields(
        self,
        parts: Sequence[str],
        named: NamedTable | None,
        schema: TableSchema | None,
        other: DataFrame | None,
    ) -> list[pa.Field] | None:
        """The columns of a table of a query; None if they are not known."""
        if named is None:
            return self._spark_columns(parts)
        if other is not None:
            return list(arrow_schema(other.schema))
        request = named.table.choice.request
        if schema is None or request.layout != "cells":
            return None
        return list(schema.schema(request.columns))

    def _spark_columns(self, parts: Sequence[str]) -> list[pa.Field] | None:
        from pyspark.errors import PySparkException

        name = ".".join("`" + part.replace("`", "``") + "`" for part in parts)
        try:
            schema = self.spark.table(name).schema
            return list(arrow_schema(schema))
        except PySparkException:
            return None  # Spark says so when it runs the query

    def _parameters(self) -> dict[str, Value]:
        """The values of named parameters that conditions may be compared with."""
        if not isinstance(self.args, dict):
            return {}
        known = {}
        for name, value in self.args.items():
            if isinstance(value, bool):
                known[name] = Value("boolean", str(value).lower())
            elif isinstance(value, int):
                known[name] = Value("integer", str(value))
            elif isinstance(value, float) and isfinite(value):
                known[name] = Value("decimal", repr(value))
            elif isinstance(value, str):
                known[name] = Value("text", value)
        return known

    # --- tables

    def _planned(self, named: NamedTable, schema: TableSchema, needs: TableNeeds) -> PlannedTable:
        choice = named.table.choice
        condition = None
        if choice.request.layout == "cells":
            choice, condition = self._narrowed(choice, schema, needs)
        return PlannedTable(
            named=named,
            session=self.session(named),
            schema=schema,
            choice=choice,
            condition=condition,
        )

    def _narrowed(
        self, choice: TableChoice, schema: TableSchema, needs: TableNeeds
    ) -> tuple[TableChoice, str | None]:
        visible = choice.request.columns or tuple(schema.names)
        types = {f.name.lower(): f.type for f in schema.schema(visible)}
        if not _is_readable(choice.where, schema):
            # Spark filters by it, and needs all columns for that.
            return choice, None
        condition = condition_text(needs.predicate, types, zone_is_utc=_is_utc(self.zone))
        request = choice.request
        if needs.columns is not None:
            lowered = {name.lower() for name in needs.columns}
            used = tuple(name for name in visible if name.lower() in lowered)
            # To count rows, one coordinate is enough.
            request = msgspec.structs.replace(request, columns=used or visible[:1])
        where = choice.where
        if condition is not None:
            where = condition if where is None else f"({where}) AND ({condition})"
        return msgspec.structs.replace(choice, request=request, where=where), condition

    def _frame(self, table: PlannedTable | DataFrame | None) -> DataFrame | None:
        if not isinstance(table, PlannedTable):
            return table
        frame = frame_of(self.spark, table.session, table.choice)
        if table.choice.request.layout != "cells":
            return frame
        return with_all_columns(frame, table)


def with_all_columns(frame: DataFrame, table: PlannedTable) -> DataFrame:
    """A DataFrame with all columns of its table, of which some were not read.

    Spark never computes those, as nothing uses them. If it did, it would raise an error.
    """
    read = table.choice.request.columns
    if read is None or set(read) == set(table.columns):
        return frame
    columns = [
        frame["`" + name.replace("`", "``") + "`"]
        if name in read
        else _unread(name, spark_type(table.schema.field(name).type)).alias(name)
        for name in table.columns
    ]
    return frame.select(*columns)


def _unread(name: str, kind: Any) -> Any:
    """A column that fails when it is computed.

    It is a function of Python because Spark evaluates its own functions on small tables before it
    drops the columns that nothing uses.
    """
    from pyspark.sql.functions import udf

    def fail() -> None:
        raise InvalidInputError(
            f"column {name} was not read, because the query did not seem to use it; read the table "
            "with icefloe.spark.table, and report this query"
        )

    return udf(fail, kind)()


def metadata_frame(spark: SparkSession, named: NamedTable, name: str) -> DataFrame:
    """A metadata table, which one task reads."""
    schema = spark_schema(metadata_table(name).schema)
    columns = arrow_schema(schema)
    repository, selector = named.table.repository, named.selector
    context = pickled_context(repository.context)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from icefloe.repository import Repository

        for _ in batches:
            opened = Repository(unpickled_context(context))
            yield from conform(read_metadata_table(opened, selector, name), columns)

    return spark.range(0, 1, 1, 1).mapInArrow(read, schema)


def _source_columns(
    fields: Sequence[pa.Field] | None, *, is_sensitive: bool
) -> SourceColumns | None:
    if fields is None:
        return None
    return SourceColumns({f.name if is_sensitive else f.name.lower(): f.type for f in fields})


def _is_readable(where: str | None, schema: TableSchema) -> bool:
    if where is None:
        return True
    try:
        parse_condition(where, schema.names)
    except InvalidInputError:
        return False
    return True


def _is_utc(zone: str) -> bool:
    return zone.upper() in ("UTC", "ETC/UTC", "GMT", "Z", "+00:00")
