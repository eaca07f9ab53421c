"""Arrow schemas as Spark schemas, and batches of exactly the schema that Spark expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as spark_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_SIMPLE: list[tuple[Callable[[pa.DataType], bool], type[spark_types.DataType]]] = [
    (pa.types.is_boolean, spark_types.BooleanType),
    (pa.types.is_int8, spark_types.ByteType),
    (pa.types.is_int16, spark_types.ShortType),
    (pa.types.is_int32, spark_types.IntegerType),
    (pa.types.is_int64, spark_types.LongType),
    (pa.types.is_float32, spark_types.FloatType),
    (pa.types.is_float64, spark_types.DoubleType),
    (pa.types.is_string, spark_types.StringType),
    (pa.types.is_binary, spark_types.BinaryType),
    (pa.types.is_duration, spark_types.DayTimeIntervalType),
    (pa.types.is_date32, spark_types.DateType),
]


def spark_type(kind: pa.DataType) -> spark_types.DataType:
    """The Spark type of an Arrow type that a table has."""
    for is_kind, found in _SIMPLE:
        if is_kind(kind):
            return found()
    if pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
        return spark_types.TimestampType() if zoned else spark_types.TimestampNTZType()
    if pa.types.is_decimal(kind):
        return spark_types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark_types.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return spark_types.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    return spark_schema(pa.schema(list(kind)))


def spark_schema(schema: pa.Schema) -> spark_types.StructType:
    """The Spark schema of an Arrow schema; everything may be null."""
    return spark_types.StructType(
        [spark_types.StructField(field.name, spark_type(field.type)) for field in schema]
    )


def arrow_schema(schema: spark_types.StructType) -> pa.Schema:
    """The Arrow schema that Spark requires for one of its own."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cast batches to a schema, which Spark checks down to nullability."""
    for batch in batches:
        if batch.schema.equals(schema):
            yield batch
        else:
            columns = [
                column if column.type == kind else column.cast(kind)
                for column, kind in zip(batch.columns, schema.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
