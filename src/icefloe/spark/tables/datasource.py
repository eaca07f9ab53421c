"""The data source `icefloe`: arrays of a repository as tables, by options alone.

It has no `pushFilters` on purpose: PySpark keeps one set of pushed filters for all uses of a
DataFrame, so a second query of it would silently miss rows. Selection is by options.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
)

from icefloe.errors import IcefloeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.spark.tables.options import SourceOptions
    from icefloe.spark.tables.tickets import (
        ChangeTicket,
        MetadataTicket,
        PinnedSnapshot,
        ScanTicket,
    )


class IcefloeDataSource(DataSource):
    """Arrays as tables: `spark.read.format("icefloe").option("branch", "main").load(url)`."""

    providers: ClassVar[Mapping[str, bytes]] = {}
    """The storage providers that the driver registered: pickled functions by name."""

    def __init__(self, options: dict[str, str]) -> None:
        """Take the options of a reader or writer."""
        super().__init__(options)
        self._pinned: PinnedSnapshot | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "icefloe"

    def schema(self) -> StructType:
        """Columns of the table; also pins the snapshot, which every later use reads."""
        from icefloe.spark.tables.arrow_types import spark_schema
        from icefloe.tables.change_data import change_schema
        from icefloe.tables.metadata_tables import metadata_table

        with _without_traceback():
            name = self._options().text("inspect")
            if name is not None:
                return spark_schema(metadata_table(name).schema)
            if self._options().flag("change-data", default=False):
                return spark_schema(change_schema(self._ticket().scan().schema))
            return spark_schema(self._ticket().scan().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns of a schema."""
        from icefloe.spark.tables.tickets import MetadataTicket

        with _without_traceback():
            options = self._options()
            name = options.text("inspect")
            if name is not None:
                ticket = MetadataTicket(options.location(), options.selector(), name)
                return MetadataTableReader(ticket, schema)
            if options.flag("change-data", default=False):
                return ChangeReader(self._change_ticket(options), schema)
            return TableReader(self._ticket(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """A writer of rows: mode `append` creates or appends, `overwrite` replaces."""
        from icefloe.spark.tables.writer import TableWriter

        with _without_traceback():
            return TableWriter(self._options(writing=True), schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802 (Spark's name)
        """A stream of the cells that each new commit changes."""
        from icefloe.spark.tables.streams import TableStreamReader

        return TableStreamReader(self._options(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: FBT001, N802
        """A writer of one commit for each micro-batch."""
        from icefloe.spark.tables.streams import TableStreamWriter

        return TableStreamWriter(self._options(writing=True), schema, overwrite=overwrite)

    def _options(self, *, writing: bool = False) -> SourceOptions:
        from icefloe.spark.tables.options import SourceOptions

        options = SourceOptions(self.options, self.providers)
        options.check(writing=writing)
        return options

    def _change_ticket(self, options: SourceOptions) -> ChangeTicket:
        """The changes after one snapshot, up to the one that is pinned."""
        from icefloe.spark.tables.tickets import ChangeTicket

        self._ticket()
        assert self._pinned is not None
        start = options.text("start-snapshot-id")
        request = options.scan_request()
        return ChangeTicket.of(self._pinned.location, start, self._pinned.snapshot_id, request)

    def _ticket(self, schema: StructType | None = None) -> ScanTicket:
        import msgspec

        from icefloe.spark.tables.tickets import PinnedSnapshot, ScanTicket

        options = self._options()
        if self._pinned is None:
            location = options.location()
            selector = options.selector()
            end = options.text("end-snapshot-id")
            if end is not None:
                selector = type(selector)(snapshot_id=end)
            session = selector.session(location.open())
            self._pinned = PinnedSnapshot(location, session.snapshot_id)
        request = options.scan_request()
        if schema is not None and request.layout == "cells":
            request = msgspec.structs.replace(request, columns=tuple(schema.names))
        return ScanTicket.of(self._pinned, request)


@contextmanager
def _without_traceback() -> Iterator[None]:
    """Let icefloe's errors that planning raises reach the user as a sentence.

    Planners are processes of Python that Spark starts for data sources only. What they raise,
    PySpark sends with its traceback, unless this variable of the environment is set.
    """
    try:
        yield
    except IcefloeError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def source_with(providers: Mapping[str, bytes]) -> type[IcefloeDataSource]:
    """The data source with storage providers.

    Spark pickles a class of a function by value: planners and executors get the providers with it.
    """

    class IcefloeDataSourceWithProviders(IcefloeDataSource):
        pass

    IcefloeDataSourceWithProviders.providers = providers
    return IcefloeDataSourceWithProviders


class Blocks(InputPartition):
    """The blocks that one task reads."""

    def __init__(self, boxes: Any) -> None:
        """Take blocks, (n, dimensions, 2)."""
        super().__init__(boxes)


class TableReader(DataSourceReader):
    """Reads one table of one snapshot."""

    def __init__(self, ticket: ScanTicket, schema: StructType) -> None:
        """Take what to read, and the schema that was promised."""
        self._ticket = ticket
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Tasks of whole chunks, in the order of the array."""
        return [Blocks(boxes) for boxes in self._ticket.scan().splits()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task."""
        from icefloe.spark.engine.worker import ignore_codec_warnings
        from icefloe.spark.tables.arrow_types import arrow_schema, conform

        ignore_codec_warnings()
        if partition.value is None:  # what Spark makes of no partitions at all
            return
        wanted = arrow_schema(self._schema)
        names = self._schema.names
        found = self._ticket.scan().read(partition.value)
        yield from conform((batch.select(names) for batch in found), wanted)


class ChangeReader(DataSourceReader):
    """Reads the changes of a table between two snapshots."""

    def __init__(self, ticket: ChangeTicket, schema: StructType) -> None:
        """Take what to compare, and the schema that was promised."""
        self._ticket = ticket
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Tasks of whole chunks that changed."""
        return [Blocks(boxes) for boxes in self._ticket.scan(self._schema.names).splits()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one task."""
        from icefloe.spark.tables.change_rows import change_batches

        if partition.value is not None:  # what Spark makes of no partitions at all
            yield from change_batches(self._ticket, self._schema, partition.value)


class MetadataTableReader(DataSourceReader):
    """Reads a metadata table of a repository."""

    def __init__(self, ticket: MetadataTicket, schema: StructType) -> None:
        """Take the table to read, and the schema that was promised."""
        self._ticket = ticket
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One task: metadata tables are small, or are read batch by batch."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """All rows."""
        from icefloe.spark.tables.arrow_types import arrow_schema, conform

        names = self._schema.names
        batches = (batch.select(names) for batch in self._ticket.read())
        yield from conform(batches, arrow_schema(self._schema))
