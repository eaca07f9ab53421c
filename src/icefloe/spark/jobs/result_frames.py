"""What a maintenance job did, as a DataFrame: records as rows, their fields as columns."""

from __future__ import annotations

import types
import typing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

_TYPES: dict[Any, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    datetime: "timestamp",
}


def record_frame(
    spark: SparkSession, kind: type[msgspec.Struct], records: Iterable[msgspec.Struct]
) -> DataFrame:
    """Records of one type as rows; columns are named after the fields of the type."""
    rows = [tuple(map(_plain, msgspec.structs.astuple(record))) for record in records]
    return spark.createDataFrame(rows, record_schema(kind))


def record_schema(kind: type[msgspec.Struct]) -> str:
    """The columns of records of one type."""
    fields = msgspec.structs.fields(kind)
    return ", ".join(f"{field.name} {column_type(field.type)}" for field in fields)


def column_type(annotation: Any) -> str:
    """The type of Spark for an annotation; texts for enumerations, and arrays and maps of them."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [each for each in arguments if each is not type(None)]
        return column_type(inner)
    if origin is dict:
        return f"map<{column_type(arguments[0])}, {column_type(arguments[1])}>"
    if origin in (tuple, list):
        return f"array<{column_type(arguments[0])}>"
    known = [name for base, name in _TYPES.items() if issubclass(annotation, base)]
    return known[0]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, str) else value
