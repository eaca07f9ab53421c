"""Arrays as DataFrames: rows per line from Python, made into cells by the JVM."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.spark.engine.job import open_repository
from icefloe.spark.engine.worker import SessionSpec, ignore_codec_warnings
from icefloe.spark.sql.arrow_types import arrow_schema, conform, spark_schema
from icefloe.tables.decoding import Reading
from icefloe.tables.places import Version
from icefloe.tables.planning import box_cells
from icefloe.tables.request import TableRequest
from icefloe.tables.scanning import EXTENT, START, Scan, ScanTicket
from icefloe.tables.selection import choice_of
from icefloe.tables.where import columns_of, parse_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.tables.planning import Boxes
    from icefloe.tables.request import Layout

    Source = str | PathLike[str] | Repository

MAX_LITERAL_VALUES = 20_000
"""Longer coordinates travel with the rows instead of in the plan."""
LOCAL_BYTES = 8 * 1024 * 1024
"""Chunks of fewer bytes, decoded, are read by the driver: quicker than starting Python tasks."""
LOCAL_CHUNKS = 64
"""The same for their number: each may be a request to the storage."""
LOCAL_CELLS = 16 * 1024
"""More cells than this are made by the JVM, from lines."""
_POSITION = "_position"
_OWN_NAMES = {START, EXTENT, _POSITION}


def table(
    spark: SparkSession,
    source: Source,
    *,
    group: str = "/",
    variables: Sequence[str] | str | None = None,
    dims: Sequence[str] | str | None = None,
    columns: Sequence[str] | str | None = None,
    sel: Mapping[str, Any] | None = None,
    isel: Mapping[str, Any] | None = None,
    where: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: str | datetime | None = None,
    layout: Layout = "cells",
    changed_since: str | None = None,
    nan_as_null: bool = True,
    zoned_times: bool = False,
    decode: bool = True,
    partition_bytes: int | None = None,
    local_bytes: int = LOCAL_BYTES,
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
        local_bytes: If the chunks that are needed have no more bytes than this, decoded (and are
            few), they are read here and now, and Spark gets their values: no Python task takes
            part. 0: tasks read in any case, as they do if `partition_bytes` is given.
    """
    if layout not in ("cells", "chunks"):
        raise InvalidInputError(
            f"layout is 'cells' or 'chunks', found {layout!r}; lines are read by the data source"
        )
    repository = open_repository(source)
    moment = as_of.isoformat() if isinstance(as_of, datetime) else as_of
    version = Version(branch, tag, snapshot_id, moment)
    session = version.session(repository)
    request = TableRequest(
        group=group,
        variables=_tuple(variables),
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
    scan, later = _planned(session, request, where)
    _check_case(spark, scan)
    local = 0 if partition_bytes else local_bytes
    tasks = scan.tasks()
    is_little = _is_little(scan, tasks, local)
    if layout == "chunks":
        return _frame(spark, shared, scan, tasks, is_little=is_little)
    frame = _cells(spark, shared, scan, tasks, is_little=is_little)
    return frame if later is None else frame.filter(later)


def _planned(session: Session, request: TableRequest, where: str | None) -> tuple[Scan, str | None]:
    """A scan that obeys a condition, or one that leaves it to Spark."""
    if where is not None:
        try:
            scan = Scan(session, msgspec.structs.replace(request, where=where))
            condition = parse_condition(where, scan.layout.names)
        except InvalidInputError:
            # Functions and arithmetic: Spark's business alone, which must find the columns.
            return Scan(session, request), where
        named = scan.layout.schema(columns_of(condition))
        if not (request.reading.zoned_times and any(map(pa.types.is_timestamp, named.types))):
            return scan, None
        # Spark reads texts as times of the session's zone, which may not be UTC.
    return Scan(session, request), where


def _check_case(spark: SparkSession, scan: Scan) -> None:
    """Columns that Spark takes for one and the same are refused with advice."""
    by_lower: dict[str, list[str]] = {}
    for name in scan.needed:
        by_lower.setdefault(name.lower(), []).append(name)
    same = [" and ".join(names) for names in by_lower.values() if len(names) > 1]
    if same and spark.conf.get("spark.sql.caseSensitive") != "true":
        raise InvalidInputError(
            f"Spark takes the columns {', '.join(same)} for one, as they differ in upper and lower "
            "case only; choose variables, or set spark.sql.caseSensitive to true"
        )


def register(spark: SparkSession, source: Source, name: str, **arguments: Any) -> DataFrame:
    """Make a table a temporary view for SQL; the arguments are those of `table`."""
    frame = table(spark, source, **arguments)
    frame.createOrReplaceTempView(name)
    return frame


def _tuple(names: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)


# --- running


def _frame(
    spark: SparkSession, shared: SessionSpec, scan: Scan, tasks: list[Boxes], *, is_little: bool
) -> DataFrame:
    """A DataFrame of what a scan yields: read by tasks, or at once if it is little."""
    schema = spark_schema(scan.schema())
    wanted = arrow_schema(schema)
    if is_little:
        found = conform((batch for boxes in tasks for batch in scan.read(boxes)), wanted)
        return _handed_over(spark, list(found), schema, wanted)
    body = _task_body(ScanTicket(shared, scan.request), tasks, wanted)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(body, schema)


def _is_little(scan: Scan, tasks: list[Boxes], local_bytes: int) -> bool:
    if not tasks:
        return True
    if len(tasks) > LOCAL_CHUNKS:
        return False
    chunks, size = scan.cost(tasks)
    return chunks <= LOCAL_CHUNKS and size <= local_bytes


def _few_cells(spark: SparkSession, scan: Scan, tasks: list[Boxes]) -> DataFrame | None:
    """The cells themselves if they are few; None if lines of them are less work."""
    if scan.condition is None and sum(map(box_cells, tasks)) > LOCAL_CELLS:
        return None
    schema = spark_schema(scan.schema())
    wanted = arrow_schema(schema)
    found: list[pa.RecordBatch] = []
    rows = 0
    for batch in conform((batch for boxes in tasks for batch in scan.read(boxes)), wanted):
        found.append(batch)
        rows += batch.num_rows
        if rows > LOCAL_CELLS:
            return None
    return _handed_over(spark, found, schema, wanted)


def _handed_over(
    spark: SparkSession, batches: list[pa.RecordBatch], schema: StructType, wanted: pa.Schema
) -> DataFrame:
    """Values as they are, in Spark."""
    if not batches:
        # Spark wants a column of at least one piece.
        none = [pa.array([], kind) for kind in wanted.types]
        batches = [pa.RecordBatch.from_arrays(none, schema=wanted)]
    return spark.createDataFrame(pa.Table.from_batches(batches, schema=wanted), schema)


def _task_body(
    ticket: ScanTicket, tasks: list[Boxes], wanted: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # One array for all tasks: a list of thousands of small ones would be slow to unpickle.
    boxes = np.concatenate(tasks)
    ends = np.cumsum([len(task) for task in tasks])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ignore_codec_warnings()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first = int(ends[number - 1]) if number else 0
                yield from conform(ticket.scan().read(boxes[first : int(ends[number])]), wanted)

    return read


def _cells(
    spark: SparkSession, shared: SessionSpec, scan: Scan, tasks: list[Boxes], *, is_little: bool
) -> DataFrame:
    few = _few_cells(spark, scan, tasks) if is_little else None
    if few is not None:
        return few
    values = [name for name in scan.needed if name not in scan.layout.dims]
    full = [
        name
        for name in values
        if (variable := scan.layout.variable(name)) and set(variable.dims) == set(scan.layout.dims)
    ]
    if not full or not scan.layout.dims or _OWN_NAMES & {name.lower() for name in scan.needed}:
        return _frame(spark, shared, scan, tasks, is_little=is_little)
    inner = scan.layout.dims[len(scan.layout.dims) - scan.inner_dims :]
    literals = {dim: text for dim in inner if (text := _literal(scan, dim)) is not None}
    lined = msgspec.structs.replace(
        scan.request,
        layout="lines",
        columns=scan.needed,
        inner_dims=scan.inner_dims,
        carried=tuple(dim for dim in inner if dim not in literals),
    )
    lines = scan.in_form(lined)
    frame = _frame(spark, shared, lines, tasks, is_little=is_little)
    exploded = _explode(frame, lines, scan, full[0], literals)
    left = _left_condition(scan)
    if left is None:
        return exploded
    exploded = exploded.filter(left)
    if scan.needed == scan.columns:
        return exploded
    return exploded.selectExpr(*map(_quoted, scan.columns))


def _explode(
    frame: DataFrame, lines: Scan, scan: Scan, first: str, literals: dict[str, str]
) -> DataFrame:
    """Cells of lines: the position within a line gives all inner coordinates.

    Texts of SQL, as a round trip to the JVM for every operation of an expression would be slow.
    """
    kept = [_quoted(n) for n in lines.schema().names if n != first]
    rows = frame.selectExpr(
        *kept, f"posexplode({_quoted(first)}) AS ({_POSITION}, {_quoted(first)})"
    )
    outer = len(scan.layout.dims) - scan.inner_dims
    cells = []
    for name in scan.needed:
        axis = scan.layout.dims.index(name) if name in scan.layout.dims else -1
        if axis >= outer:
            text = _inner_value(scan, name, axis - outer, literals)
            cells.append(f"{text} AS {_quoted(name)}")
        elif axis >= 0 or name == first:
            cells.append(_quoted(name))
        else:
            cells.append(f"{_quoted(name)}[{_POSITION}] AS {_quoted(name)}")
    return rows.selectExpr(*cells)


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
