"""The writers behind `df.write.format("icefloe")` and `df.writeStream.format("icefloe")`."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from icefloe.model import MAIN
from icefloe.spark.engine.transactions import Transaction
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.tables.arrow_types import arrow_schema
from icefloe.spark.tables.staging import (
    DEFAULT_TRIES,
    MAX_STAGED_BYTES,
    Staged,
    StagedCommit,
    commit_staged,
    stage,
)
from icefloe.tables.target_arrays import dims_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.spark.tables.options import SourceOptions

logger = logging.getLogger(__name__)

_DEFAULT_MESSAGE = "rows written by Spark"


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task has staged, on its way to the commit."""

    staged: Staged
    query_id: str | None = None


class RowWriter:
    """The common part of batch and stream writers; made where the query is planned."""

    def __init__(
        self, options: SourceOptions, schema: StructType, job: str, *, overwrite: bool
    ) -> None:
        self._job = job
        self._started = time.time()
        self._options = options
        self._overwrite = overwrite
        self._schema = arrow_schema(schema)
        self._max_bytes = options.number("max-staged-bytes") or MAX_STAGED_BYTES
        request = options.write_request(overwrite=overwrite)
        repository = options.location().open()
        session = repository.writable_session(self._branch(options))
        self._dims = dims_of(session, request, self._schema)
        self._context = SessionSpec.of(repository.readonly_session(self._branch(options))).context

    @staticmethod
    def _branch(options: SourceOptions) -> str:
        return options.text("branch") or MAIN

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        return stage(self._context, self._dims, batches, self._max_bytes)

    def commit(self, parts: list[Staged], txn: tuple[str | None, int | None] | None) -> str | None:
        """Write all staged rows to arrays and commit."""
        options = self._options
        app, version = options.transaction() if txn is None else txn
        snapshot_id = commit_staged(
            options.location().open(),
            options.write_request(overwrite=self._overwrite),
            self._schema,
            self._dims,
            parts,
            StagedCommit(
                branch=self._branch(options),
                message=options.text("message") or _DEFAULT_MESSAGE,
                properties=options.properties(),
                transaction=Transaction.of(app, version),
                tries=options.number("commit-tries") or DEFAULT_TRIES,
                max_bytes=self._max_bytes,
                job=self._job,
                started=self._started,
            ),
        )
        logger.info("committed %s", snapshot_id)
        return snapshot_id


class TableWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame into arrays: all in one commit, or nothing."""

    def __init__(self, options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
        """Check the options; nothing is written yet."""
        options.transaction()
        self._rows = RowWriter(options, schema, "df.write", overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return StagedMessage(self._rows.stage(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all rows."""
        self._rows.commit([m.staged for m in messages if isinstance(m, StagedMessage)], None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing: tasks may still be writing, and a failed commit may have landed.

        Garbage collection deletes what was staged.
        """
        finished = sum(message is not None for message in messages)
        logger.warning("a write of rows failed; %d tasks had finished", finished)
