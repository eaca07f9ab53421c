"""Runs work functions on executors; their results are Arrow rows. No pyspark here.

A work function gets one item and a value that all items share, and yields `TaskOutput`s. Spark may
run it more than once for an item, even at the same time (retries, speculation). What it writes has
random names, so that only the rows of the attempt that Spark accepts matter.
"""

from __future__ import annotations

import functools
import pickle
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from icefloe.spark.engine.failures import RetryableTaskError, as_json, describe, is_permanent
from icefloe.spark.engine.worker import ignore_codec_warnings, unpickled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class TaskOutput(NamedTuple):
    """One result of a work function."""

    name: str = ""
    """Mostly the path of an array."""
    table: pa.Table | None = None
    chunks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


Work: TypeAlias = "Callable[[Any, Any], Iterable[TaskOutput]]"
"""A work function: (item, shared) -> outputs."""

RowWork: TypeAlias = "Callable[[Any, Any], Iterable[pa.RecordBatch]]"
"""A work function whose rows stay on the cluster: (item or rows, shared) -> rows."""

SCHEMA = pa.schema(
    [
        pa.field("task", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("chunks", pa.int64()),
        pa.field("bytes_read", pa.int64()),
        pa.field("bytes_written", pa.int64()),
        pa.field("seconds", pa.float64()),
        pa.field("error", pa.string()),
    ]
)
DDL = (
    "task int, name string, payload binary, chunks bigint, bytes_read bigint, "
    "bytes_written bigint, seconds double, error string"
)


def run_items(
    items: Iterable[tuple[int, bytes]],
    work: bytes,
    shared: bytes,
    *,
    may_retry: bool,
) -> Iterator[pa.RecordBatch]:
    """Work on pickled items, one after the other; yield rows of `SCHEMA`.

    A permanent error, and any error of the last attempt, becomes a row. Other errors are raised,
    so that Spark tries again.
    """
    function: Work = unpickled(work)
    common = unpickled(shared)
    for task, item in items:
        yield from run_item(
            task, functools.partial(_call, function, item, common), may_retry=may_retry
        )


def stream_items(
    items: Iterable[tuple[int, bytes]], work: bytes, shared: bytes
) -> Iterator[pa.RecordBatch]:
    """Work on pickled items, one after the other; yield the rows that the function makes.

    Errors are raised, so that Spark tries again; after the last attempt the job ends.
    """
    function: RowWork = unpickled(work)
    common = unpickled(shared)
    for task, item in items:
        yield from _raising(task, function(pickle.loads(item), common))


def stream_rows(
    task: int, rows: Iterable[pa.RecordBatch] | pa.Table, work: bytes, shared: bytes
) -> Iterator[pa.RecordBatch]:
    """Work on rows of one task; yield the rows that the function makes of them."""
    function: RowWork = unpickled(work)
    yield from _raising(task, function(rows, unpickled(shared)))


def _raising(task: int, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of a work function, whose errors are raised so that the driver can read them."""
    ignore_codec_warnings()
    try:
        yield from rows
    except Exception as error:
        raise RetryableTaskError(describe(task, error)) from error


def _call(function: Work, item: bytes, common: Any) -> Iterable[TaskOutput]:
    return function(pickle.loads(item), common)


def run_item(
    task: int, work: Callable[[], Iterable[TaskOutput]], *, may_retry: bool
) -> Iterator[pa.RecordBatch]:
    """Work on one item; yield rows of `SCHEMA`."""
    ignore_codec_warnings()
    started = time.perf_counter()
    try:
        outputs = list(work())
    except Exception as error:
        failure = describe(task, error)
        if may_retry and not is_permanent(error):
            raise RetryableTaskError(failure) from error
        yield _row(task, TaskOutput(), time.perf_counter() - started, as_json(failure))
        return
    seconds = time.perf_counter() - started
    for output in outputs or [TaskOutput()]:
        yield _row(task, output, seconds, "")
        seconds = 0.0  # of the item, in its first row


def _row(task: int, output: TaskOutput, seconds: float, error: str) -> pa.RecordBatch:
    payload = b"" if output.table is None else pack(output.table)
    row = (
        task,
        output.name,
        payload,
        output.chunks,
        output.bytes_read,
        output.bytes_written,
        seconds,
        error,
    )
    columns = [pa.array([value], type=field.type) for value, field in zip(row, SCHEMA, strict=True)]
    return pa.record_batch(columns, schema=SCHEMA)


def pack(table: pa.Table) -> bytes:
    """Write a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(payload: pa.Buffer | bytes) -> pa.Table:
    """Read a table that `pack` wrote."""
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_all()
