"""The writers behind `df.write.format("icefloe")` and `df.writeStream.format("icefloe")`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from icefloe.spark.engine.transactions import Transaction
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.sql.arrow_types import arrow_schema
from icefloe.spark.sql.staging import MAX_STAGED_BYTES, Commit, Staged, commit_staged, stage
from icefloe.spark.sql.table_writing import properties_of, request_of, transaction_of
from icefloe.tables.write_plan import dims_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.tables.options import Options

logger = logging.getLogger(__name__)

_DEFAULT_MESSAGE = "rows written by Spark"


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task put aside, on its way to the commit."""

    staged: Staged
    query_id: str | None = None


class RowWriter:
    """What batch and stream writers share; made where the query is planned."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._schema = arrow_schema(schema)
        self._max_bytes = options.number("max-staged-bytes") or MAX_STAGED_BYTES
        request = request_of(options, overwrite=overwrite)
        repository = options.place().open()
        session = repository.writable_session(self._branch(options))
        self._dims = dims_of(session, request, self._schema)
        self._context = SessionSpec.of(repository.readonly_session(self._branch(options))).context

    @staticmethod
    def _branch(options: Options) -> str:
        return options.text("branch") or "main"

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Put the rows of a task aside."""
        return stage(self._context, self._dims, batches, self._max_bytes)

    def commit(self, parts: list[Staged], txn: tuple[str | None, int | None] | None) -> str | None:
        """Make arrays of all rows and commit."""
        options = self._options
        app, version = transaction_of(options) if txn is None else txn
        found = commit_staged(
            options.place().open(),
            request_of(options, overwrite=self._overwrite),
            self._schema,
            self._dims,
            parts,
            Commit(
                self._branch(options),
                options.text("message") or _DEFAULT_MESSAGE,
                properties_of(options),
                Transaction.of(app, version),
                options.number("commit-tries") or 20,
                self._max_bytes,
            ),
        )
        logger.info("committed %s", found)
        return found


class TableWriter(DataSourceArrowWriter):
    """Writes the rows of a DataFrame into arrays: all in one commit, or nothing."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        """Check the options; nothing is written yet."""
        transaction_of(options)
        self._rows = RowWriter(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Put the rows of a task aside."""
        return StagedMessage(self._rows.stage(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all rows."""
        self._rows.commit([m.staged for m in messages if isinstance(m, StagedMessage)], None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing: tasks may still be writing, and a failed commit may have landed.

        What was put aside is garbage, and garbage collection finds it.
        """
        finished = sum(message is not None for message in messages)
        logger.warning("a write of rows failed; %d tasks had finished", finished)
