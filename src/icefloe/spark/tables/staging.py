"""Stages rows in the tasks of a data source writer, and writes arrays of them in one process.

A Spark writer has a single stage: its tasks know neither the grid nor each other's rows. They
write rows to chunk files that nothing refers to, which garbage collection deletes later. The
process that commits reads them one by one. Its memory is bounded, and so is the size of a write.
"""

from __future__ import annotations

import logging
import pickle
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icefloe.errors import ConflictError, InvalidInputError
from icefloe.model.record import Record
from icefloe.spark.engine.application import Application
from icefloe.spark.engine.chunk_tables import WrittenChunks
from icefloe.spark.engine.events import JobEvent, announce
from icefloe.spark.engine.tasks import pack, unpack
from icefloe.spark.engine.transactions import Ledger, Transaction, find_transaction
from icefloe.spark.engine.worker import unpickled_context
from icefloe.tables.block_writer import BlockFiller, BlockWriter, clear_rest
from icefloe.tables.job_summary import SUMMARY, JobSummary
from icefloe.tables.summarize import WrittenStatistics
from icefloe.tables.target_arrays import (
    RowSummary,
    WritePlan,
    WriteRequest,
    needs_values,
    operation_of,
    prepare,
)
from icefloe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.objects.chunks import ChunkFiles
    from icefloe.repository import Repository
    from icefloe.zarr_store.session_port import SessionPort

logger = logging.getLogger(__name__)

FRAGMENT_BYTES = 32 * 1024 * 1024
"""The size of a file of staged rows."""
MAX_STAGED_BYTES = 4 * 1024**3
"""The largest write by default: one process writes its arrays."""
_MAX_VALUES_BYTES = 256 * 1024
_MAX_DISTINCT = 256 * 1024
DEFAULT_TRIES = 20


class Fragment(Record, frozen=True, eq=False):
    """A file of staged rows."""

    ref: bytes
    """A pickled chunk reference, which may have the rows inline."""
    num_bytes: int


class Staged(Record, frozen=True, eq=False):
    """What one task has staged."""

    fragments: tuple[Fragment, ...] = ()
    rows: int = 0
    nulls: dict[str, int] = msgspec.field(default_factory=dict)
    values: dict[str, bytes] | None = None
    """Distinct values of dimensions; None if they are too many to send to the driver."""
    application: Application | None = None
    started: float = 0.0
    """When the task started, by the clock of its machine."""
    seconds: float = 0.0


class StagedCommit(Record, frozen=True, eq=False):
    """How to commit the arrays."""

    branch: str
    message: str
    properties: dict[str, Any]
    transaction: Transaction | None = None
    tries: int = DEFAULT_TRIES
    max_bytes: int = MAX_STAGED_BYTES
    job: str = "df.write"
    """The kind of job, for the summary of the commit."""
    started: float = msgspec.field(default_factory=time.time)
    """When the job was planned."""


def stage(
    context: bytes,
    dims: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    max_bytes: int = MAX_STAGED_BYTES,
) -> Staged:
    """Stage rows, in a task."""
    started = time.time()
    files = unpickled_context(context).chunk_files
    fragments: list[Fragment] = []
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = all_bytes = rows = 0
    nulls: dict[str, int] = {}
    values: dict[str, pa.Array] | None = {}

    def flush() -> None:
        nonlocal waiting, waiting_bytes
        if waiting:
            data = pack(pa.Table.from_batches(waiting))
            fragments.append(Fragment(pickle.dumps(files.write(data)), waiting_bytes))
            waiting, waiting_bytes = [], 0

    for batch in batches:
        rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            nulls[name] = nulls.get(name, 0) + column.null_count
        values = _with_values(values, batch, dims)
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        all_bytes += batch.nbytes
        if all_bytes > max_bytes:
            raise _too_many(all_bytes, max_bytes)
        if waiting_bytes >= FRAGMENT_BYTES:
            flush()
    flush()
    return Staged(
        fragments=tuple(fragments),
        rows=rows,
        nulls=nulls,
        values=_packed_values(values),
        application=Application.of_task(),
        started=started,
        seconds=max(0.0, time.time() - started),
    )


def _with_values(
    values: dict[str, pa.Array] | None, batch: pa.RecordBatch, dims: Sequence[str]
) -> dict[str, pa.Array] | None:
    """Distinct values with those of a batch added; None once they are too many."""
    if values is None:
        return None
    for dim in dims:
        found = pc.unique(batch.column(dim))
        before = values.get(dim)
        values[dim] = found if before is None else pc.unique(pa.concat_arrays([before, found]))
    return None if any(len(each) > _MAX_DISTINCT for each in values.values()) else values


def _too_many(found: int, max_bytes: int) -> InvalidInputError:
    return InvalidInputError(
        f"the rows take {found} bytes or more, and one process makes arrays of what df.write gets, "
        f"so it takes {max_bytes} bytes at most. Use icefloe.spark.write_table(df, …), whose "
        "executors write the chunks, or raise the option max-staged-bytes"
    )


def _packed_values(values: dict[str, pa.Array] | None) -> dict[str, bytes] | None:
    if values is None:
        return None
    packed = {dim: pack(pa.table({dim: column})) for dim, column in values.items()}
    return packed if sum(map(len, packed.values())) <= _MAX_VALUES_BYTES else None


def commit_staged(
    repository: Repository,
    request: WriteRequest,
    schema: pa.Schema,
    dims: Sequence[str],
    parts: Sequence[Staged],
    commit: StagedCommit,
) -> str | None:
    """Write all staged rows to arrays, and commit once; None if there are no rows.

    If the branch moves meanwhile, all rows are written again on its new tip.
    """
    fragments = [fragment for part in parts for fragment in part.fragments]
    rows = sum(part.rows for part in parts)
    if not rows:
        return None
    num_bytes = sum(fragment.num_bytes for fragment in fragments)
    if num_bytes > commit.max_bytes:
        raise _too_many(num_bytes, commit.max_bytes)
    properties = dict(commit.properties)
    if commit.transaction is not None:
        properties |= commit.transaction.properties
    for attempt in range(max(1, commit.tries)):
        done = _done_before(repository, commit)
        if done is not None:
            logger.info("transaction %s was committed before", commit.transaction)
            return done
        session = repository.writable_session(commit.branch)
        plan = prepare(
            session, request, _row_summary(session, request, schema, dims, parts, fragments)
        )
        _write(session, plan, fragments)
        if not session.has_uncommitted_changes:
            return None
        summary = _job_summary(session, plan, parts, commit)
        Ledger(session, commit.transaction).write()
        parent = session.snapshot_id
        try:
            snapshot_id = session.commit(commit.message, {SUMMARY: summary.to_data(), **properties})
        except ConflictError:
            if attempt + 1 >= commit.tries:
                raise
        else:
            announce(
                JobEvent(
                    location=repository.storage.location,
                    branch=commit.branch,
                    snapshot_id=snapshot_id,
                    parent_id=parent,
                    arrays=tuple(target.path for target in plan.targets),
                    summary=summary,
                )
            )
            return snapshot_id
        time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
    raise AssertionError("the last try raises")


def _done_before(repository: Repository, commit: StagedCommit) -> str | None:
    if commit.transaction is None:
        return None
    return find_transaction(repository, commit.branch, commit.transaction)


def _job_summary(
    session: SessionPort, plan: WritePlan, parts: Sequence[Staged], commit: StagedCommit
) -> JobSummary:
    """What the commit says of the query that made the rows, as commits of other jobs do."""
    known = [part.application for part in parts if part.application is not None]
    application = known[0] if known else Application.of_task()
    arrays = {target.path for target in plan.targets}
    written = [
        WrittenChunks(chunks, deleted)
        for path, (chunks, deleted) in session.tree.written_chunks().items()
        if path in arrays
    ]
    started = min([commit.started, *(part.started for part in parts)])
    return JobSummary(
        job=commit.job,
        application_id=application.id,
        application_name=application.name,
        user=application.user,
        spark_version=application.version,
        icefloe_version=__version__,
        input_snapshots=(session.snapshot_id,),
        chunks=sum(each.num_chunks for each in written),
        bytes_written=sum(each.nbytes for each in written),
        rows=sum(part.rows for part in parts),
        tasks=len(parts),
        seconds=round(max(0.0, time.time() - started), 3),
        task_seconds=round(sum(part.seconds for part in parts), 3),
    )


def _row_summary(
    session: SessionPort,
    request: WriteRequest,
    schema: pa.Schema,
    dims: Sequence[str],
    parts: Sequence[Staged],
    fragments: Sequence[Fragment],
) -> RowSummary:
    needed = needs_values(operation_of(session, request, schema), request, dims)
    nulls: dict[str, int] = {}
    for part in parts:
        for name, count in part.nulls.items():
            nulls[name] = nulls.get(name, 0) + count
    values = {}
    for dim in needed:
        kind = schema.field(dim).type
        pieces = [column.cast(kind) for column in _columns(session, parts, fragments, dim)]
        distinct = pc.unique(pa.concat_arrays(pieces)).drop_null()
        values[dim] = distinct.take(pc.sort_indices(distinct))
    return RowSummary(
        schema=schema, values=values, rows=sum(part.rows for part in parts), nulls=nulls
    )


def _columns(
    session: SessionPort, parts: Sequence[Staged], fragments: Sequence[Fragment], dim: str
) -> Iterator[pa.Array]:
    if all(part.values is not None for part in parts):
        for part in parts:
            packed = (part.values or {}).get(dim)
            if packed is not None:
                yield from unpack(packed).column(0).chunks
        return
    for fragment in fragments:
        yield from (pc.unique(chunk) for chunk in _read(session, fragment).column(dim).chunks)


def _read(session: SessionPort, fragment: Fragment) -> pa.Table:
    return unpack(files_of(session).read(pickle.loads(fragment.ref)))


def files_of(session: SessionPort) -> ChunkFiles:
    """The chunk files of the repository that a session is on."""
    return session.tree.context.chunk_files  # rows are no chunk of an array


def _write(session: SessionPort, plan: WritePlan, fragments: Sequence[Fragment]) -> None:
    """Write all blocks; of the rows, one fragment at a time is in memory."""
    writer = BlockWriter(session, plan)
    passes = BlockFiller(writer, plan).fill(
        [partial(_read, session, fragment) for fragment in fragments]
    )
    logger.info("%d fragments of rows were read in %d passes", len(fragments), passes)
    if writer.refused:
        raise writer.refused.error(plan)
    statistics = WrittenStatistics(session)
    statistics.add_own(writer.summaries)
    if plan.vacant is not None:
        statistics.add_own(clear_rest(session, plan))
    statistics.write()
