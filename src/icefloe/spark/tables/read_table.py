"""Arrays as DataFrames: `table`.

A scan is run in one of three ways. Few chunks are read by the driver, which hands their cells to
Spark. Otherwise Python tasks read the blocks: as lines of cells that the JVM makes cells of (see
`lines`), or as cells where lines do not fit the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record
from icefloe.spark.engine.worker import SessionSpec, ignore_codec_warnings
from icefloe.spark.tables import lines
from icefloe.spark.tables.arrow_types import arrow_schema, conform, spark_schema
from icefloe.spark.tables.tickets import ScanTicket
from icefloe.tables.decoding import Reading
from icefloe.tables.splits import count_cells
from icefloe.tables.table_plan import ScanRequest
from icefloe.tables.table_scan import Scan, open_repository, request_of, selector_of
from icefloe.tables.versions import SnapshotSelector
from icefloe.tables.where import columns_of, parse_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.tables.splits import Boxes
    from icefloe.tables.table_plan import Layout
    from icefloe.zarr_store.session_port import SessionPort

    Source = str | PathLike[str] | Repository

LOCAL_BYTES = 8 * 1024 * 1024
"""The driver reads chunks of up to this many decoded bytes: faster than starting Python tasks."""
LOCAL_CHUNKS = 64
"""The driver reads up to this many chunks: each may be a request to the storage."""
LOCAL_CELLS = 16 * 1024
"""The driver hands up to this many cells to Spark; the JVM makes more of lines."""


class TableKeywords(TypedDict, total=False):
    """The keyword arguments of `table`."""

    group: str
    variables: Sequence[str] | str | None
    dims: Sequence[str] | str | None
    columns: Sequence[str] | str | None
    sel: Mapping[str, Any] | None
    isel: Mapping[str, Any] | None
    where: str | None
    branch: str | None
    tag: str | None
    snapshot_id: str | None
    as_of: str | datetime | None
    layout: Layout
    changed_since: str | None
    nan_as_null: bool
    zoned_times: bool
    decode: bool
    partition_bytes: int | None
    local_bytes: int


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
    """A DataFrame of the variables of a group that share dimensions, with one row per cell.

    The snapshot is selected by this call, and every use of the DataFrame reads it. Chunks that
    `sel`, `isel` and `where` exclude are not read.

    Args:
        spark: The session, classic or Connect.
        source: A repository, or its URL.
        group: The group of the arrays.
        variables: The data variables; all of them by default, if they share dimensions.
        dims: Instead of `variables`: all variables over these dimensions.
        columns: The columns to return; all by default.
        sel: Coordinate values by dimension: a value, a list, a slice (both ends included), or
            `{"nearest": value}`. Times may be text such as `2020-02`.
        isel: Positions by dimension: a number, a list or a slice.
        where: A condition in SQL. Conditions on coordinates and, if there are statistics, on
            variables skip chunks before they are read.
        branch: The branch to read, `main` by default.
        tag: The tag to read instead.
        snapshot_id: The snapshot to read instead.
        as_of: Read the newest snapshot of the branch at this time, in ISO 8601.
        layout: `cells`, or `chunks` for one row per chunk.
        changed_since: Only cells in chunks that changed after this snapshot.
        nan_as_null: Whether NaN is null.
        zoned_times: Whether times are `timestamp` instead of `timestamp_ntz`.
        decode: Whether to apply CF attributes.
        partition_bytes: About how many bytes a task reads.
        local_bytes: If the needed chunks are few and have at most this many bytes, decoded, the
            driver reads them now and no Python task is started. 0: tasks always read, as they do
            if `partition_bytes` is given.

    Returns:
        A DataFrame; its columns are the dimensions, then coordinates, then variables.

    Raises:
        InvalidInputError: A column, selection or layout does not fit the table.
        NodeNotFoundError: There is no such group.

    Example:
        >>> warm = icefloe.spark.table(spark, repo, where="t2m > 300 and lat < 45")
        >>> warm.columns
        ['time', 'lat', 't2m']
        >>> warm.groupBy("time").count().count()
        2
    """
    choice = TableChoice.of(
        group=group,
        variables=variables,
        dims=dims,
        columns=columns,
        sel=sel,
        isel=isel,
        where=where,
        branch=branch,
        tag=tag,
        snapshot_id=snapshot_id,
        as_of=as_of,
        layout=layout,
        changed_since=changed_since,
        nan_as_null=nan_as_null,
        zoned_times=zoned_times,
        decode=decode,
        partition_bytes=partition_bytes,
        local_bytes=local_bytes,
    )
    session = choice.selector.session(open_repository(source))
    return frame_of(spark, session, choice)


class TableChoice(Record, frozen=True):
    """What the arguments of `table` select from a repository."""

    selector: SnapshotSelector
    request: ScanRequest
    where: str | None = None
    local_bytes: int = LOCAL_BYTES

    @classmethod
    def of(
        cls,
        *,
        where: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: str | datetime | None = None,
        layout: Layout = "cells",
        nan_as_null: bool = True,
        zoned_times: bool = False,
        decode: bool = True,
        partition_bytes: int | None = None,
        local_bytes: int = LOCAL_BYTES,
        **selection: Any,
    ) -> TableChoice:
        """Take the arguments of `table`."""
        if layout not in ("cells", "chunks"):
            raise InvalidInputError(
                f"layout is 'cells' or 'chunks', found {layout!r}; the data source reads lines"
            )
        names = ("variables", "dims", "columns", "sel", "isel")
        request = request_of(
            **{**dict.fromkeys(names), **selection},
            layout=layout,
            task_bytes=partition_bytes,
            reading=Reading(decode=decode, nan_is_null=nan_as_null, zoned_times=zoned_times),
        )
        selector = selector_of(branch, tag, snapshot_id, as_of)
        return cls(selector, request, where, 0 if partition_bytes else local_bytes)


def frame_of(spark: SparkSession, session: Session, choice: TableChoice) -> DataFrame:
    """A DataFrame of what is chosen from a snapshot; its version is not looked at again."""
    shared = SessionSpec.of(session)
    scan, spark_filter = scan_of(session, choice.request, choice.where)
    _check_case(spark, scan)
    run = _ScanRun(spark, shared, scan, choice.local_bytes)
    frame = run.frame(scan) if choice.request.layout == "chunks" else run.cells()
    return frame if spark_filter is None else frame.filter(spark_filter)


def scan_of(
    session: SessionPort, request: ScanRequest, where: str | None
) -> tuple[Scan, str | None]:
    """A scan that applies a condition, or one without it and the filter that is left to Spark."""
    if where is not None:
        try:
            scan = Scan(session, msgspec.structs.replace(request, where=where))
            condition = parse_condition(where, scan.plan.table.names)
        except InvalidInputError:
            # Functions and arithmetic are up to Spark, which needs all columns for it.
            return Scan(session, request), where
        named = scan.plan.table.schema(columns_of(condition))
        if not (request.reading.zoned_times and any(map(pa.types.is_timestamp, named.types))):
            return scan, None
        # Spark reads text as times of the session's zone, which may not be UTC.
    return Scan(session, request), where


def _check_case(spark: SparkSession, scan: Scan) -> None:
    """Raise for columns that Spark cannot tell apart."""
    by_lower: dict[str, list[str]] = {}
    for name in scan.plan.needed:
        by_lower.setdefault(name.lower(), []).append(name)
    same = [" and ".join(names) for names in by_lower.values() if len(names) > 1]
    if same and spark.conf.get("spark.sql.caseSensitive") != "true":
        raise InvalidInputError(
            f"Spark takes the columns {', '.join(same)} for one, as they differ in upper and lower "
            "case only; choose variables, or set spark.sql.caseSensitive to true"
        )


class _ScanRun:
    """Runs a scan on Spark, or in the driver if few chunks are needed."""

    def __init__(
        self, spark: SparkSession, session: SessionSpec, scan: Scan, local_bytes: int
    ) -> None:
        self._spark = spark
        self._session = session
        self._scan = scan
        self._splits = scan.splits()
        self._is_local = _is_small(scan, self._splits, local_bytes)

    def frame(self, scan: Scan) -> DataFrame:
        """The rows of a scan, in its own layout."""
        schema = spark_schema(scan.schema)
        arrow = arrow_schema(schema)
        if self._is_local:
            return self._local(list(conform(self._batches(scan), arrow)), schema, arrow)
        ticket = ScanTicket.of(self._session, scan.plan.request)
        count = len(self._splits)
        body = _task_body(ticket, self._splits, arrow)
        return self._spark.range(0, count, 1, count).mapInArrow(body, schema)

    def cells(self) -> DataFrame:
        """One row per cell."""
        few = self._few_cells() if self._is_local else None
        if few is not None:
            return few
        plan = lines.line_plan(self._scan.plan)
        if plan is None:
            return self.frame(self._scan)
        frame = self.frame(Scan(self._scan.session, plan=plan))
        return lines.cells_of(frame, plan, self._scan.plan)

    def _few_cells(self) -> DataFrame | None:
        """The cells themselves; None if there are so many that lines are less work."""
        cells = sum(map(count_cells, self._splits))
        if self._scan.plan.condition is None and cells > LOCAL_CELLS:
            return None
        schema = spark_schema(self._scan.schema)
        arrow = arrow_schema(schema)
        batches: list[pa.RecordBatch] = []
        rows = 0
        for batch in conform(self._batches(self._scan), arrow):
            batches.append(batch)
            rows += batch.num_rows
            if rows > LOCAL_CELLS:
                return None
        return self._local(batches, schema, arrow)

    def _batches(self, scan: Scan) -> Iterator[pa.RecordBatch]:
        return (batch for boxes in self._splits for batch in scan.read(boxes))

    def _local(
        self, batches: list[pa.RecordBatch], schema: StructType, arrow: pa.Schema
    ) -> DataFrame:
        if not batches:
            # Spark needs at least one chunk in each column.
            empty = [pa.array([], kind) for kind in arrow.types]
            batches = [pa.RecordBatch.from_arrays(empty, schema=arrow)]
        return self._spark.createDataFrame(pa.Table.from_batches(batches, schema=arrow), schema)


def _is_small(scan: Scan, splits: list[Boxes], local_bytes: int) -> bool:
    if not splits:
        return True
    if len(splits) > LOCAL_CHUNKS:
        return False
    chunks, size = scan.plan.cost(splits)
    return chunks <= LOCAL_CHUNKS and size <= local_bytes


def _task_body(
    ticket: ScanTicket, splits: list[Boxes], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # One array for all tasks: a list of thousands of small ones would be slow to unpickle.
    boxes = np.concatenate(splits)
    ends = np.cumsum([len(split) for split in splits])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ignore_codec_warnings()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first = int(ends[number - 1]) if number else 0
                yield from conform(ticket.scan().read(boxes[first : int(ends[number])]), schema)

    return read
