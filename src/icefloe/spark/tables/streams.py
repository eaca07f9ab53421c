"""Streams: the cells that each commit changes as a source, each micro-batch as a commit."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition, WriterCommitMessage

from icefloe.errors import InvalidInputError
from icefloe.model import MAIN
from icefloe.spark.tables.arrow_types import arrow_schema, conform
from icefloe.spark.tables.change_rows import change_batches
from icefloe.spark.tables.tickets import ChangeTicket, PinnedSnapshot, ScanTicket
from icefloe.spark.tables.writer import RowWriter, StagedMessage
from icefloe.tables.versions import parse_timestamp

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamWriterBase
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:  # PySpark before 4.2
    raise ImportError("streams of icefloe need PySpark 4.2 or newer") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.repository import Repository
    from icefloe.spark.tables.options import SourceOptions

_SNAPSHOT = "snapshot"
_NOTHING = ""
"""The offset before the first batch, which then reads the whole table."""
LATEST = "latest"


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads, batch by batch, the cells whose chunks changed since the batch before.

    An offset is a snapshot of a branch. The first batch is the whole table, unless the option
    `starting-snapshot-id` (or `stream-from-timestamp`) says after which snapshot to begin. With
    `change-data`, rows are the changes of cells: inserts, deletes, and updates with the values
    before and after.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Take the options of the stream and the schema that was promised."""
        self._options = options
        self._schema = schema
        self._target: str | None = None

    def _parsed(self) -> SourceOptions:
        options = self._options
        for name in ("tag", "snapshot-id", "as-of-timestamp", "start-snapshot-id", "inspect"):
            if options.text(name) is not None:
                raise InvalidInputError(f"a stream follows a branch: it has no option {name!r}")
        return options

    def _is_change_data(self) -> bool:
        return self._options.flag("change-data", default=False)

    def _repository(self) -> Repository:
        return self._parsed().location().open()

    def _head(self) -> str:
        return self._repository().lookup_branch(self._parsed().text("branch") or MAIN)

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        """Where a new stream begins."""
        options = self._parsed()
        start = options.text("starting-snapshot-id")
        moment = options.text("stream-from-timestamp")
        if start is not None and moment is not None:
            raise InvalidInputError("give starting-snapshot-id or stream-from-timestamp, not both")
        if moment is not None:
            branch = options.text("branch") or MAIN
            session = self._repository().readonly_session(branch, as_of=parse_timestamp(moment))
            return {_SNAPSHOT: session.snapshot_id}
        if start == LATEST:
            return {_SNAPSHOT: self._head()}
        return {_SNAPSHOT: start or _NOTHING}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """How many commits a batch has at most."""
        count = self._parsed().number("max-commits-per-trigger")
        return ReadAllAvailable() if count is None else ReadMaxFiles(count)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End where the branch is now."""
        self._target = self._head()

    def latestOffset(self, start: dict[str, str], limit: Any) -> dict[str, str]:  # noqa: N802
        """Where the next batch ends."""
        head = self._target or self._head()
        if head == start[_SNAPSHOT] or not isinstance(limit, ReadMaxFiles):
            return {_SNAPSHOT: head}
        path: list[str] = []
        for info in self._repository().ancestry(snapshot_id=head):
            if info.id == start[_SNAPSHOT]:
                break
            path.append(info.id)
        else:
            if start[_SNAPSHOT] == _NOTHING:
                return {_SNAPSHOT: head}
            raise InvalidInputError(
                f"the history of the branch does not have snapshot {start[_SNAPSHOT]} any more, "
                "at which the stream stands: it was reset. Begin with a new checkpoint"
            )
        return {_SNAPSHOT: path[-min(limit.max_files, len(path))]}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """The blocks that changed between two snapshots."""
        if start[_SNAPSHOT] == end[_SNAPSHOT]:
            return []
        options = self._parsed()
        if self._is_change_data():
            location, request = options.location(), options.scan_request()
            changes = ChangeTicket.of(location, start[_SNAPSHOT] or None, end[_SNAPSHOT], request)
            parts = changes.scan(self._schema.names).splits()
            return [InputPartition((changes, boxes)) for boxes in parts]
        request = msgspec.structs.replace(
            options.scan_request(),
            columns=tuple(self._schema.names),
            changed_since=start[_SNAPSHOT] or None,
        )
        ticket = ScanTicket.of(PinnedSnapshot(options.location(), end[_SNAPSHOT]), request)
        return [InputPartition((ticket, boxes)) for boxes in ticket.scan().splits()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task."""
        if partition.value is None:
            return
        ticket, boxes = partition.value
        if isinstance(ticket, ChangeTicket):
            yield from change_batches(ticket, self._schema, boxes)
            return
        found = (batch.select(self._schema.names) for batch in ticket.scan().read(boxes))
        yield from conform(found, arrow_schema(self._schema))

    def commit(self, end: dict[str, str]) -> None:
        """Do nothing: no state is kept for finished batches."""

    def stop(self) -> None:
        """Do nothing: no resources are held."""


class TableStreamWriter(_StreamWriterBase):
    """Writes each micro-batch into arrays as one commit, exactly once.

    A batch that Spark runs again after a crash is found in the history and not written again.
    """

    def __init__(self, options: SourceOptions, schema: StructType, *, overwrite: bool) -> None:
        """Take the options of the query."""
        self._checkpoint = options.text("checkpointlocation")
        self._rows = RowWriter(options, schema, "df.writeStream", overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return StagedMessage(self._rows.stage(iterator), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the rows of a batch, unless that was done before."""
        done = [m for m in messages if isinstance(m, StagedMessage)]
        query = next((m.query_id for m in done if m.query_id), None) or self._checkpoint or ""
        name = hashlib.sha256(query.encode()).hexdigest()[:24]
        self._rows.commit([m.staged for m in done], (f"spark-stream-{name}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete nothing: Spark runs the batch again, and garbage collection cleans up."""
