"""Attribute files: a Parquet table with one JSON object per row (H-07)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icefloe.formats.container import bad_file
from icefloe.formats.dataset.arrow_schemas import attributes_schema
from icefloe.formats.dataset.parquet_files import ParquetWriter, read_table, read_whole_footer
from icefloe.formats.nodes import parse_document

if TYPE_CHECKING:
    from collections.abc import Sequence


def encode_attributes(rows: Sequence[bytes], level: int) -> bytes:
    """The bytes of an attribute file."""
    schema = attributes_schema()
    writer = ParquetWriter(schema, level, is_wide=False)
    columns = [pa.array(range(len(rows)), pa.uint32()), pa.array(rows, pa.binary())]
    writer.write(pa.Table.from_arrays(columns, schema=schema))
    return writer.close({"rows": len(rows)})


def decode_attributes(data: bytes, key: str) -> list[bytes]:
    """Read an attribute file; the rows of another program may be in any order, and text."""
    is_foreign = read_whole_footer(data, key).notes is None
    table = read_table(data, key)
    if not {"row", "attrs"} <= set(table.schema.names):
        raise bad_file(key, "an attribute file has the columns 'row' and 'attrs'")
    try:
        numbers = table["row"].cast(pa.uint32()).to_pylist()
        texts = table["attrs"].cast(pa.binary()).to_pylist()
    except pa.ArrowException as error:
        raise bad_file(key, f"'row' is an integer and 'attrs' is JSON as bytes: {error}") from None
    rows = dict(zip(numbers, texts, strict=True))
    if None in rows or sorted(rows) != list(range(len(texts))):
        raise bad_file(key, "the rows of an attribute file are not numbered from 0")
    if is_foreign:
        for number, text in rows.items():
            _check_object(text, number, key)
    return [rows[number] for number in range(len(rows))]


def _check_object(text: bytes | None, number: int, key: str) -> None:
    if text is None:
        raise bad_file(key, f"row {number} is null; expected a JSON object: write {{}} for none")
    try:
        is_object = isinstance(parse_document(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise bad_file(key, f"row {number} is not a JSON object: {text[:40]!r}")
