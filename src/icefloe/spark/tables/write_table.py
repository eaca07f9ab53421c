"""Writes the rows of a DataFrame to arrays: a shuffle by block, one task per block, one commit."""

from __future__ import annotations

import pickle
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.model.record import Record
from icefloe.spark.engine import tasks
from icefloe.spark.engine.job import Job, JobOptions, JobPlan, JobReport, job_options
from icefloe.spark.engine.runner import max_failures, parallelism
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.spark.engine.worker import SessionSpec, unpickled
from icefloe.spark.jobs.fill import outputs_of
from icefloe.spark.tables.arrow_types import arrow_schema, spark_schema, spark_type
from icefloe.tables.block_writer import BlockWriter, Refused, by_block, clear_rest
from icefloe.tables.indexing import selection_of
from icefloe.tables.target_arrays import (
    RowSummary,
    WritePlan,
    WriteRequest,
    dims_of,
    needs_values,
    operation_of,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    from pyspark.sql import DataFrame

    from icefloe.repository import Repository
    from icefloe.spark.engine.job import JobKeywords
    from icefloe.spark.engine.runner import Results
    from icefloe.tables.target_arrays import Operation

_BLOCK = "_icefloe_block"
_PLACE = "_icefloe_place_"
_REFUSED = "refused rows"
_TASK_CELLS = 16 * 1024 * 1024


@with_keywords_of(JobOptions)
def write_table(
    frame: DataFrame,
    repository: Repository | str,
    *,
    group: str = "/",
    dims: Sequence[str] | None = None,
    operation: Operation | None = None,
    append_dim: str | None = None,
    region: Mapping[str, Any] | None = None,
    chunks: Mapping[str, int] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    coordinates: Mapping[str, Any] | None = None,
    statistics: bool | Sequence[str] = False,
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> JobReport:
    """Write the rows of a DataFrame to arrays, in one commit.

    The columns `dims` are the coordinates of a row's cell, all others are variables. If a row is
    outside the grid, or two rows are for the same cell, nothing is written and the error counts
    them. The DataFrame is computed twice if its distinct coordinate values must be found first:
    cache it if that is expensive.

    Args:
        frame: The rows.
        repository: A repository, or its URL.
        group: The group of the arrays.
        dims: The columns that are the dimensions, in order; only needed for new arrays.
        operation: `create` new arrays; `append` rows with new values of `append_dim`; `upsert`:
            set the cells of the rows, new values of `append_dim` are appended; `overwrite` a
            region: its cells without a row become missing; `replace` the arrays by new ones. By
            default `create`, or `append` if the arrays exist.
        append_dim: The dimension that may grow; the first by default.
        region: With `overwrite`, coordinate values as for `sel`; by default all combinations of
            the rows' coordinate values.
        chunks: Length of chunks by dimension, for new arrays.
        encoding: By column, for new arrays: dtype, scale_factor, add_offset, _FillValue, units,
            calendar, chunks, shards.
        attributes: By column, for new arrays.
        coordinates: Coordinate values by dimension, for new arrays: the grid may be larger than
            the rows.
        statistics: Whether to store chunk statistics, with which later conditions skip chunks:
            True, or names of columns.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Returns:
        A report with the id of the new snapshot.

    Raises:
        InvalidInputError: Rows do not fit the grid, or columns do not fit the arrays.
        AlreadyExistsError: `create` of arrays that exist.
        ConflictError: The branch moved, and the change cannot be rebased.

    Example:
        >>> rows = spark.createDataFrame([(0, 0, 1.5), (0, 1, 2.5)], "y int, x int, v double")
        >>> report = icefloe.spark.write_table(rows, repo, group="/grid", dims=["y", "x"])
        >>> repo.readonly_session("main").read_region("/grid/v").tolist()
        [[1.5, 2.5]]
    """
    request = write_request(
        group=group,
        dims=dims,
        operation=operation,
        append_dim=append_dim,
        region=region,
        chunks=chunks,
        encoding=encoding,
        attributes=attributes,
        coordinates=coordinates,
        statistics=statistics,
    )
    job = Job(frame.sparkSession, repository, "write_table", job_options(options, keywords))
    return write_rows(job, frame, request)


def write_request(
    *,
    group: str,
    dims: Sequence[str] | None = None,
    operation: Operation | None = None,
    append_dim: str | None = None,
    region: Mapping[str, Any] | None = None,
    chunks: Mapping[str, int] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    coordinates: Mapping[str, Any] | None = None,
    statistics: bool | Sequence[str] = False,
) -> WriteRequest:
    """The arguments of `write_table` as one value."""
    return WriteRequest(
        group=group,
        dims=None if dims is None else tuple(dims),
        operation=operation,
        append_dim=append_dim,
        region={dim: selection_of(choice) for dim, choice in (region or {}).items()},
        chunks=dict(chunks or {}),
        encoding={name: dict(settings) for name, settings in (encoding or {}).items()},
        attributes={name: dict(values) for name, values in (attributes or {}).items()},
        coordinates=dict(coordinates or {}),
        statistics=statistics if isinstance(statistics, bool) else tuple(statistics),
    )


def write_rows(job: Job, frame: DataFrame, request: WriteRequest) -> JobReport:
    """Write the rows of a DataFrame by a job, and commit."""
    done = job.done_before()  # then the rows are not even computed
    if done is not None:
        nothing = JobPlan(
            label="write_table",
            arrays=(request.group,),
            tasks=0,
            chunks=0,
            num_bytes=0,
            manifests=0,
        )
        return JobReport(nothing, done, repeated=True)
    schema = arrow_schema(frame.schema)
    dims = dims_of(job.session, request, schema)
    chosen = operation_of(job.session, request, schema)
    rows = summarize_rows(frame, schema, needs_values(chosen, request, dims))
    job.rows = rows.rows
    plan = prepare(job.session, msgspec.structs.replace(request, operation=chosen), rows)
    num_tasks = max(1, min(plan.num_blocks, _task_count(job, plan)))
    job_plan = JobPlan(
        label=f"write_table: {chosen} {rows.rows} rows",
        arrays=tuple(target.path for target in plan.targets),
        tasks=num_tasks,
        chunks=plan.num_blocks * len(plan.targets),
        num_bytes=prod(plan.shape) * 8 * len(plan.targets),
        manifests=len(plan.targets),
    )
    settled = job.is_settled(job_plan)
    if settled is not None:
        return settled
    _take_over(job, plan, _run(job, frame, plan, num_tasks))
    return job.commit(job_plan)


def _task_count(job: Job, plan: WritePlan) -> int:
    cells = prod(plan.shape) * len(plan.targets)
    return max(2 * parallelism(job.spark), -(-cells // _TASK_CELLS))


def summarize_rows(frame: DataFrame, schema: pa.Schema, needed: Sequence[str]) -> RowSummary:
    """Distinct coordinate values and numbers of rows and nulls, in one pass of the JVM."""
    from pyspark.sql import functions as sql

    names = schema.names
    columns = [sql.collect_set(_col(name)).alias(f"v{at}") for at, name in enumerate(needed)]
    columns += [
        sql.count(sql.when(_col(name).isNull(), 1)).alias(f"n{at}") for at, name in enumerate(names)
    ]
    row = frame.agg(sql.count(sql.lit(1)).alias("rows"), *columns).toArrow()
    values = {}
    for at, name in enumerate(needed):
        kind = schema.field(name).type
        distinct = row.column(f"v{at}").combine_chunks()
        flat = distinct.values if isinstance(distinct, pa.ListArray) else distinct.chunk(0).values
        flat = flat.cast(kind)
        values[name] = flat.take(pa.compute.sort_indices(flat))
    nulls = {name: row.column(f"n{at}")[0].as_py() for at, name in enumerate(names)}
    return RowSummary(schema=schema, values=values, rows=row.column("rows")[0].as_py(), nulls=nulls)


def _col(name: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.col("`" + name.replace("`", "``") + "`")


# --- the job


class _Shared(Record, frozen=True, eq=False):
    session: SessionSpec
    plan: WritePlan


def _run(job: Job, frame: DataFrame, plan: WritePlan, count: int) -> Results:
    placed = _placed(job.spark, frame, plan)
    sorted_rows = placed.repartition(count, _BLOCK).sortWithinPartitions(_BLOCK)
    shared = pickle.dumps(_Shared(SessionSpec.of(job.session), plan))
    body = _body(shared, max_failures(job.spark))
    return job.collect(sorted_rows.mapInArrow(body, tasks.DDL), count)


def _placed(spark: Any, frame: DataFrame, plan: WritePlan) -> DataFrame:
    """Rows with their positions along all dimensions and the number of their block.

    Positions are found by joins with small tables, in the JVM; where there is none, it is null.
    """
    from pyspark.sql import functions as sql

    places = []
    for axis, dim in enumerate(plan.dims):
        coordinate = plan.coordinates[dim]
        numbers = np.arange(len(coordinate), dtype=np.int64)
        allowed = plan.allowed.get(dim)
        if allowed is not None:
            coordinate, numbers = coordinate.take(pa.array(allowed)), allowed
        place, value = f"{_PLACE}{axis}", f"{_PLACE}value_{axis}"
        if frame.schema[dim].dataType.typeName() == "timestamp":
            # Spark would cast such times to local ones; stored times are UTC.
            coordinate = coordinate.cast(pa.timestamp("us", "UTC"))
        positions = pa.table({value: coordinate, place: pa.array(numbers)})
        # Without the schema Spark would take times for those of the session's zone.
        index = spark.createDataFrame(positions, spark_schema(positions.schema))
        wanted = _col(dim).cast(spark_type(coordinate.type))
        frame = frame.join(sql.broadcast(index), wanted == _col(value), "left").drop(value)
        places.append(_col(place))
    number: Any = sql.lit(0).cast("bigint")
    for place, size, extent in zip(places, plan.block, plan.grid, strict=True):
        number = number * sql.lit(extent) + sql.floor(place / sql.lit(size)).cast("bigint")
    return frame.withColumn(_BLOCK, sql.coalesce(number, sql.lit(-1)))


def _body(
    shared: bytes, attempts: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from icefloe.spark.tables.write_table import assemble

        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        attempt = 0 if context is None else context.attemptNumber()
        yield from assemble(batches, shared, number, may_retry=attempt + 1 < attempts)

    return body


def assemble(
    batches: Iterator[pa.RecordBatch], shared: bytes, task: int, *, may_retry: bool
) -> Iterator[pa.RecordBatch]:
    """Write the blocks of sorted rows; yields the result rows of a task."""
    common: _Shared = unpickled(shared)

    def work() -> Iterator[TaskOutput]:
        part = common.session.open_part()
        writer = BlockWriter(part, common.plan)
        for rows in by_block(_sorted_parts(batches, common.plan, writer)):
            writer.write(rows)
        if writer.refused:
            text = msgspec.json.encode(writer.refused).decode()
            yield TaskOutput(_REFUSED, pa.table({"refused": [text]}))
        else:
            yield from outputs_of(part, 0, writer.summaries)

    yield from tasks.run_item(task, work, may_retry=may_retry)


def _sorted_parts(
    batches: Iterator[pa.RecordBatch], plan: WritePlan, writer: BlockWriter
) -> Iterator[tuple[Any, Any, pa.RecordBatch]]:
    names = [target.name for target in plan.targets]
    for batch in batches:
        blocks = batch.column(_BLOCK).to_numpy(zero_copy_only=False)
        outside = int(np.searchsorted(blocks, 0))
        if outside:
            writer.refuse_outside(batch.slice(0, outside))
        rows = batch.slice(outside)
        if not rows.num_rows:
            continue
        places = np.stack(
            [
                rows.column(f"{_PLACE}{axis}").to_numpy(zero_copy_only=False)
                for axis in range(len(plan.dims))
            ],
            axis=1,
        ).astype(np.int64)
        yield blocks[outside:], places, rows.select(names)


def _take_over(job: Job, plan: WritePlan, results: Results) -> None:
    refused = Refused()
    for _, name, table in results.outputs():
        if name == _REFUSED:
            for text in table.column("refused").to_pylist():
                refused = refused.plus(msgspec.json.decode(text, type=Refused))
    if refused:
        raise refused.error(plan)
    job.take_over(results)
    if plan.vacant is not None:
        job.statistics.add_own(clear_rest(job.session, plan))
