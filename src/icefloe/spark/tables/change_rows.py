"""Rows of change data in tasks of Spark, for queries and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.spark.engine.worker import ignore_codec_warnings
from icefloe.spark.tables.arrow_types import arrow_schema, conform

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from icefloe.spark.tables.tickets import ChangeTicket


def change_batches(
    ticket: ChangeTicket, schema: StructType, boxes: Any
) -> Iterator[pa.RecordBatch]:
    """The changes in some blocks, with the columns of a schema."""
    ignore_codec_warnings()
    changes = ticket.scan(schema.names).read(boxes)
    yield from conform((batch.select(schema.names) for batch in changes), arrow_schema(schema))
