"""Arrays as DataFrames: rows per line from Python, made into cells by the JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.spark.arrow_types import arrow_schema, conform, spark_schema
from icefloe.spark.tables.decoding import Reading
from icefloe.spark.tables.places import Version
from icefloe.spark.tables.request import TableRequest
from icefloe.spark.tables.scanning import EXTENT, START, Scan, ScanTicket
from icefloe.spark.tables.selection import choice_of
from icefloe.spark.tables.where import columns_of, parse_condition
from icefloe.spark.worker import SessionSpec
from icefloe.versioning.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from pyspark.sql import Column, DataFrame, SparkSession

    from icefloe.spark.tables.planning import Boxes
    from icefloe.spark.tables.request import Layout
    from icefloe.versioning.session import Session

    Source = str | PathLike[str] | Repository

MAX_LITERAL_VALUES = 20_000
"""Longer coordinates travel with the rows instead of in the plan."""
_POSITION = "_position"


def table(
    spark: SparkSession,
    source: Source,
    *,
    group: str = "/",
    variables: Sequence[str] | str | None = None,
    dims: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    sel: Mapping[str, Any] | None = None,
    isel: Mapping[str, Any] | None = None,
    where: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: str | None = None,
    layout: Layout = "cells",
    changed_since: str | None = None,
    nan_as_null: bool = True,
    zoned_times: bool = False,
    decode: bool = True,
    partition_bytes: int | None = None,
) -> DataFrame:
    """The variables of a group that share dimensions as a DataFrame, a row for each cell.

    The snapshot is chosen now; every use of the DataFrame reads it. What `sel`, `isel` and
    `where` leave out is not read, chunk by chunk.

    Args:
        spark: The session, classic or Connect.
        source: A repository, or its URL.
        group: The group whose arrays are meant.
        variables: Data variables; all of them by default, if they share dimensions.
        dims: Instead: all variables over these dimensions.
        columns: Which columns to return.
        sel: Coordinate values by dimension: a value, a list, a slice (both ends included), or
            `{"nearest": value}`. Times may be texts such as `2020-02`.
        isel: Positions by dimension: a number, a list or a slice.
        where: A condition in SQL. Conditions on coordinates and, where there are statistics, on
            variables leave chunks out before they are read.
        branch: Which version; the branch main by default.
        tag: Which version.
        snapshot_id: Which version.
        as_of: The newest version of the branch up to a moment, in ISO 8601.
        layout: `cells`, or `chunks` for one row per chunk.
        changed_since: Only cells in chunks that changed after this snapshot.
        nan_as_null: Whether NaN is missing.
        zoned_times: Whether times are `timestamp` instead of `timestamp_ntz`.
        decode: Whether to obey CF attributes.
        partition_bytes: About how many bytes a task reads.
    """
    if layout == "lines":
        raise InvalidInputError("layout is 'cells' or 'chunks'; lines are read by the data source")
    repository = open_source(source)
    version = Version(branch, tag, snapshot_id, as_of)
    session = version.session(repository)
    request = TableRequest(
        group=group,
        variables=(variables,) if isinstance(variables, str) else _tuple(variables),
        dims=_tuple(dims),
        columns=_tuple(columns),
        sel={dim: choice_of(choice) for dim, choice in (sel or {}).items()},
        isel=dict(isel or {}),
        layout=layout,
        changed_since=changed_since,
        task_bytes=partition_bytes,
        reading=Reading(decode, nan_as_null, zoned_times),
    )
    shared = SessionSpec.of(session)
    request, later = _with_condition(session, request, where)
    if layout == "chunks":
        return _frame(spark, ScanTicket(shared, request), Scan(session, request))
    frame = _cells(spark, shared, request, session)
    return frame if later is None else frame.filter(later)


def _with_condition(
    session: Session, request: TableRequest, where: str | None
) -> tuple[TableRequest, str | None]:
    """Let the scan obey a condition, or prune by the part of it that it understands."""
    if where is None:
        return request, None
    import msgspec

    asked = msgspec.structs.replace(request, where=where)
    try:
        scan = Scan(session, asked)
        condition = parse_condition(where, scan.layout.names)
    except InvalidInputError:
        # Functions and arithmetic: Spark's business alone, which must find the columns.
        return request, where
    named = scan.layout.schema(columns_of(condition))
    if request.reading.zoned_times and any(map(pa.types.is_timestamp, named.types)):
        # Spark reads texts as times of the session's zone, which may not be UTC.
        return request, where
    return asked, None


def register(spark: SparkSession, source: Source, name: str, **arguments: Any) -> DataFrame:
    """Make a table a temporary view for SQL; the arguments are those of `table`."""
    frame = table(spark, source, **arguments)
    frame.createOrReplaceTempView(name)
    return frame


def open_source(source: Source) -> Repository:
    """The repository that is meant."""
    return source if isinstance(source, Repository) else Repository.open(source)


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


# --- running


def _frame(spark: SparkSession, ticket: ScanTicket, scan: Scan) -> DataFrame:
    """A DataFrame of what a scan yields."""
    schema = spark_schema(scan.schema())
    tasks = scan.tasks()
    if not tasks:
        return spark.createDataFrame([], schema)
    body = _task_body(ticket, tasks, arrow_schema(schema))
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(body, schema)


def _task_body(
    ticket: ScanTicket, tasks: list[Boxes], wanted: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # One array for all tasks: a list of thousands of small ones would be slow to unpickle.
    boxes = np.concatenate(tasks)
    ends = np.cumsum([len(task) for task in tasks])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first = int(ends[number - 1]) if number else 0
                yield from conform(ticket.scan().read(boxes[first : int(ends[number])]), wanted)

    return read


def _cells(
    spark: SparkSession, shared: SessionSpec, request: TableRequest, session: Session
) -> DataFrame:
    import msgspec

    scan = Scan(session, request)
    values = [name for name in scan.needed if name not in scan.layout.dims]
    full = [
        name
        for name in values
        if (variable := scan.layout.variable(name)) and set(variable.dims) == set(scan.layout.dims)
    ]
    if not full or not scan.layout.dims:
        return _frame(spark, ScanTicket(shared, request), scan)
    inner = scan.layout.dims[len(scan.layout.dims) - scan.inner_dims :]
    literals = {dim: text for dim in inner if (text := _literal(scan, dim)) is not None}
    lined = msgspec.structs.replace(
        request,
        layout="lines",
        columns=scan.needed,
        inner_dims=scan.inner_dims,
        carried=tuple(dim for dim in inner if dim not in literals),
    )
    lines = _frame(spark, ScanTicket(shared, lined), Scan(session, lined))
    exploded = _explode(lines, scan, full[0], [v for v in values if v != full[0]], literals)
    left = _left_condition(scan)
    if left is not None:
        exploded = exploded.filter(left)
    return exploded.select(*(_quoted(name) for name in scan.columns))


def _explode(
    lines: DataFrame, scan: Scan, first: str, others: list[str], literals: dict[str, str]
) -> DataFrame:
    """Cells of lines: the position within a line gives all inner coordinates."""
    from pyspark.sql import functions as sql

    rank, count = len(scan.layout.dims), scan.inner_dims
    outer = [d for d in scan.layout.dims[: rank - count] if d in scan.needed]
    inner = [d for d in scan.layout.dims[rank - count :] if d in scan.needed]
    kept = [n for n in lines.columns if n != first]
    rows = lines.select(
        *(_quoted(n) for n in kept),
        sql.posexplode(_column(first)).alias(_POSITION, first),
    )
    cells: list[Column] = [_column(n) for n in outer]
    for dim in inner:
        order = scan.layout.dims.index(dim) - (rank - count)
        cells.append(sql.expr(_inner_value(scan, dim, order, literals)).alias(dim))
    cells.append(_column(first))
    cells += [sql.expr(f"{_quoted(n)}[{_POSITION}]").alias(n) for n in others]
    return rows.select(*cells)


def _inner_value(scan: Scan, dim: str, order: int, literals: dict[str, str]) -> str:
    """SQL for an inner coordinate of the cell at a position of a line."""
    count = scan.inner_dims
    behind = [f"{EXTENT}[{axis}]" for axis in range(order + 1, count)]
    number = _POSITION if not behind else f"({_POSITION} div ({' * '.join(behind)}))"
    if order > 0:
        number = f"({number} % {EXTENT}[{order}])"
    if dim not in literals:
        return f"{_quoted(dim)}[int({number})]"
    at = f"int({START}[{order}] + {number})"
    if literals[dim] == "":
        return f"bigint({at})"
    return f"{literals[dim]}[{at}]"


def _literal(scan: Scan, dim: str) -> str | None:
    """SQL for all values of a coordinate; empty if they are their own positions."""
    axis = next(a for a in scan.axes if a.dim == dim)
    column = scan.coordinates[dim]
    if dim not in scan.layout.indexes and axis.indices is None:
        return ""
    if len(column) > MAX_LITERAL_VALUES or column.null_count:
        return None
    kind = column.type
    if pa.types.is_floating(kind):
        if not np.isfinite(column.to_numpy(zero_copy_only=False)).all():
            return None
        return _json_literal(column.to_pylist(), "double" if kind == pa.float64() else "float")
    if pa.types.is_integer(kind):
        return _json_literal(
            column.to_pylist(), spark_schema(pa.schema([("v", kind)]))[0].dataType.simpleString()
        )
    if pa.types.is_string(kind):
        return _json_literal(column.to_pylist(), "string")
    if pa.types.is_timestamp(kind) and kind.tz is None:
        texts = [str(v) for v in np.datetime_as_string(column.to_numpy(zero_copy_only=False), "us")]
        return _json_literal(texts, "timestamp_ntz")
    return None


def _json_literal(values: list[Any], kind: str) -> str:
    text = json.dumps(values).replace("\\", "\\\\").replace("'", "\\'")
    return f"from_json('{text}', 'array<{kind}>')"


def _left_condition(scan: Scan) -> str | None:
    """The condition as Spark reads it, where the scan did not obey all of it by itself."""
    return None if scan.condition is None else f"({scan.request.where})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column(name: str) -> Column:
    from pyspark.sql import functions as sql

    return sql.col(_quoted(name))
