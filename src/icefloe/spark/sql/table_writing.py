"""Rows of a DataFrame into arrays: a shuffle by block, one task per block, one commit."""

from __future__ import annotations

import pickle
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import json_value, shortened, whole_number
from icefloe.model.record import Record
from icefloe.spark.engine import tasks
from icefloe.spark.engine.job import Job, JobOptions, JobPlan, JobReport
from icefloe.spark.engine.runner import collect_rows, max_failures, parallelism
from icefloe.spark.engine.tasks import Output
from icefloe.spark.engine.worker import SessionSpec, unpickled
from icefloe.spark.jobs.fill import outputs_of
from icefloe.spark.sql.arrow_types import arrow_schema, spark_type
from icefloe.tables.assembling import Assembler, Refused, by_block
from icefloe.tables.selection import choice_of
from icefloe.tables.write_plan import (
    Found,
    WritePlan,
    WriteRequest,
    dims_of,
    needs_values,
    operation_of,
    prepare,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from icefloe.repository import Repository
    from icefloe.spark.engine.runner import Results
    from icefloe.tables.chunk_summaries import Summaries
    from icefloe.tables.options import Options
    from icefloe.tables.write_plan import Operation

_BLOCK = "_icefloe_block"
_PLACE = "_icefloe_place_"
_REFUSED = "refused rows"
_TASK_CELLS = 16 * 1024 * 1024


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
    **options: Any,
) -> JobReport:
    """Write the rows of a DataFrame into arrays, and commit once.

    The columns `dims` say where a row goes, all others are variables. If a row is outside of the
    grid, or two rows are for one cell, nothing is written and the error counts them. The
    DataFrame is computed twice where its coordinate values must be found first: cache it if that
    is dear.

    Args:
        frame: The rows.
        repository: A repository, or its URL.
        group: The group of the arrays.
        dims: Columns that are the dimensions, in order; of existing arrays they are known.
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
        statistics: Whether to keep smallest, largest and missing values of the chunks that are
            written, for conditions of later reads; True, or names of columns.
        options: What all jobs can be told; see `JobOptions`.
    """
    request = WriteRequest(
        group,
        None if dims is None else tuple(dims),
        operation,
        append_dim,
        {dim: choice_of(choice) for dim, choice in (region or {}).items()},
        dict(chunks or {}),
        {name: dict(given) for name, given in (encoding or {}).items()},
        {name: dict(given) for name, given in (attributes or {}).items()},
        dict(coordinates or {}),
        statistics if isinstance(statistics, bool) else tuple(statistics),
    )
    return run_write(frame, repository, request, JobOptions(**options))


def run_write(
    frame: DataFrame, repository: Repository | str, request: WriteRequest, options: JobOptions
) -> JobReport:
    """Do what `write_table` was told."""
    job = Job(frame.sparkSession, repository, "write_table", options)
    done = job.done_before()  # then the rows are not even computed
    if done is not None:
        return JobReport(JobPlan("write_table", (request.group,), 0, 0, 0, 0), done, repeated=True)
    schema = arrow_schema(frame.schema)
    dims = dims_of(job.session, request, schema)
    does = operation_of(job.session, request, schema)
    found = look_at(frame, schema, needs_values(does, request, dims))
    plan = prepare(job.session, msgspec.structs.replace(request, operation=does), found)
    tasks_wanted = max(1, min(plan.num_blocks, _task_count(job, plan)))
    told = JobPlan(
        f"write_table: {does} {found.rows} rows",
        tuple(target.path for target in plan.targets),
        tasks_wanted,
        plan.num_blocks * len(plan.targets),
        prod(plan.shape) * 8 * len(plan.targets),
        len(plan.targets),
    )
    settled = job.is_settled(told)
    if settled is not None:
        return settled
    results = _run(job, frame, plan, tasks_wanted)
    _take_over(job, plan, results)
    return job.commit(told)


def _task_count(job: Job, plan: WritePlan) -> int:
    cells = prod(plan.shape) * len(plan.targets)
    return max(2 * parallelism(job.spark), -(-cells // _TASK_CELLS))


def look_at(frame: DataFrame, schema: pa.Schema, needed: Sequence[str]) -> Found:
    """Distinct coordinate values, number of rows and of nulls: one pass, all in the JVM."""
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
    return Found(schema, values, row.column("rows")[0].as_py(), nulls)


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
    return collect_rows(
        job.spark,
        sorted_rows.mapInArrow(body, tasks.DDL),
        count,
        label=job.label,
        progress_bar=job.options.progress,
    )


def _placed(spark: Any, frame: DataFrame, plan: WritePlan) -> DataFrame:
    """Rows with their positions along all dimensions and the number of their block.

    Positions are found by joins with small tables, in the JVM; where there is none, it is null.
    """
    from pyspark.sql import functions as sql

    places = []
    for axis, dim in enumerate(plan.dims):
        kept = plan.coordinates[dim]
        numbers = np.arange(len(kept), dtype=np.int64)
        allowed = plan.allowed.get(dim)
        if allowed is not None:
            kept, numbers = kept.take(pa.array(allowed)), allowed
        place, value = f"{_PLACE}{axis}", f"{_PLACE}value_{axis}"
        if frame.schema[dim].dataType.typeName() == "timestamp":
            # Spark would cast such times to local ones; stored times are UTC.
            kept = kept.cast(pa.timestamp("us", "UTC"))
        index = spark.createDataFrame(pa.table({value: kept, place: pa.array(numbers)}))
        wanted = _col(dim).cast(spark_type(kept.type))
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

        from icefloe.spark.sql.table_writing import assemble

        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        attempt = 0 if context is None else context.attemptNumber()
        yield from assemble(batches, shared, number, may_retry=attempt + 1 < attempts)

    return body


def assemble(
    batches: Iterator[pa.RecordBatch], shared: bytes, task: int, *, may_retry: bool
) -> Iterator[pa.RecordBatch]:
    """Write the blocks of sorted rows; yields the rows that `collect` understands."""
    common: _Shared = unpickled(shared)

    def work() -> Iterator[Output]:
        part = common.session.open_part()
        assembler = Assembler(part, common.plan)
        for rows in by_block(_sorted_parts(batches, common.plan, assembler)):
            assembler.write(rows)
        if assembler.refused:
            text = msgspec.json.encode(assembler.refused).decode()
            yield Output(_REFUSED, pa.table({"refused": [text]}))
        else:
            yield from outputs_of(part, 0, assembler.summaries)

    yield from tasks.run_item(task, work, may_retry=may_retry)


def _sorted_parts(
    batches: Iterator[pa.RecordBatch], plan: WritePlan, assembler: Assembler
) -> Iterator[tuple[Any, Any, pa.RecordBatch]]:
    names = [target.name for target in plan.targets]
    for batch in batches:
        blocks = batch.column(_BLOCK).to_numpy(zero_copy_only=False)
        outside = int(np.searchsorted(blocks, 0))
        if outside:
            assembler.refuse_outside(batch.slice(0, outside))
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
    if plan.clear:
        job.statistics.take_own(clear_rest(job.session, plan))


def clear_rest(session: Any, plan: WritePlan) -> Summaries:
    """Make cells of blocks missing that lie in the region and got no row at all.

    Returns what was found about the chunks that were written for it.
    """
    touched = _touched_blocks(session, plan)
    assembler = Assembler(session, plan)
    per_axis = [
        np.unique(plan.allowed[d] // size) for d, size in zip(plan.dims, plan.block, strict=True)
    ]
    if not all(len(numbers) for numbers in per_axis):
        return assembler.summaries
    mesh = np.meshgrid(*per_axis, indexing="ij")
    numbers = np.ravel_multi_index(tuple(m.ravel() for m in mesh), plan.grid)
    for block in numbers.tolist():
        if block not in touched:
            assembler.clear(block)
    return assembler.summaries


def _touched_blocks(session: Any, plan: WritePlan) -> set[int]:
    """Blocks that tasks wrote: those with chunks that the session changed."""
    target = plan.targets[0]
    diff = session.status().chunk_indexes().get(target.path)
    if diff is None:
        return set()
    from icefloe.tables.columns import open_array

    array = open_array(session, target.path)
    unit = np.array(array.shards or array.chunks, dtype=np.int64)
    cells = diff.coords().astype(np.int64) * unit
    order = [target.dims.index(d) for d in plan.dims]
    places = cells[:, order] // np.array(plan.block, dtype=np.int64)
    return set(np.ravel_multi_index(tuple(places.T), plan.grid).tolist())


def request_of(options: Options, *, overwrite: bool) -> WriteRequest:
    """What the options of a writer say."""
    operation: Any = options.text("operation")
    if operation is None and overwrite:
        operation = "replace"
    encoding = options.mapping("encoding")
    for name, settings in encoding.items():
        if not isinstance(settings, dict):
            raise InvalidInputError(
                'option "encoding" is a JSON object such as {"column": {"dtype": "f4"}}, found '
                f"{settings!r} for {name!r}"
            )
    for name, fill in options.mapping("fill").items():
        encoding[name] = {**encoding.get(name, {}), "_FillValue": fill}
    return WriteRequest(
        options.text("group") or "/",
        options.names("dims"),
        operation,
        options.text("append-dim"),
        options.mapping("region"),
        options.mapping("chunks"),
        encoding,
        options.mapping("attributes"),
        options.mapping("coordinates"),
        options.flag("statistics", default=False),
    )


def transaction_of(options: Options) -> tuple[str | None, int | None]:
    """The application and version that name a transaction."""
    app, version = options.text("txnappid"), options.text("txnversion")
    if (app is None) != (version is None):
        raise InvalidInputError("give both txnAppId and txnVersion, or neither")
    number = None if version is None else whole_number(version)
    if version is not None and number is None:
        raise InvalidInputError(
            f"txnVersion is a whole number of 64 bits, found {shortened(version)!r}"
        )
    return app, number


def properties_of(options: Options) -> dict[str, Any]:
    """Properties of the snapshot; values that are JSON numbers or objects stay such."""
    return {name: _plain(value) for name, value in options.properties().items()}


def _plain(text: str) -> Any:
    try:
        found = json_value(text)
    except ValueError:
        return text
    return found if isinstance(found, dict | list | int | float | bool) else text
