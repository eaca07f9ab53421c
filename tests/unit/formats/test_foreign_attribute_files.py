"""Attribute files that another program laid out, or that are not what they should be."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icefloe.errors import FormatError
from icefloe.formats.registry import format_for

ROWS = [b'{"a": 1}', b'{"b": [1, 2, {"c": "}"}]}', b"{}"]


def parquet(rows: list[Any], attrs: list[Any], kind: pa.DataType | None = None) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"row": pa.array(rows), "attrs": pa.array(attrs, kind or pa.binary())})
    pq.write_table(table, sink)
    return sink.getvalue()


def test_white_space_in_tables_is_read() -> None:  # H-07
    codec = format_for("dataset").codec
    spaced = [b'\n {\t"a" : 1 }\r\n', b"{ }"]
    assert codec.decode_attributes(parquet([0, 1], spaced), "a/x") == spaced


def test_rows_in_any_order_and_as_text_are_read() -> None:
    codec = format_for("dataset").codec
    data = parquet([1, 0], ['{"b":2}', '{"a":1}'], pa.string())
    assert codec.decode_attributes(data, "a/x") == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize(
    ("rows", "attrs", "kind"),
    [
        ([0, 1], [b"{}", None], None),
        ([0, None], [b"{}", b"{}"], None),
        ([0, 0], [b"{}", b"{}"], None),
        ([0, 2], [b"{}", b"{}"], None),
        ([-1], [b"{}"], None),
        (["zero"], [b"{}"], None),
        ([0], [b"[]"], None),
        ([0], [b"{"], None),
        ([0], [b""], None),
        ([0], [b"\xff"], None),
        ([0], [b"[" * 100_000], None),
        ([0], [1], pa.int64()),
        ([0], [[1]], pa.list_(pa.int64())),
    ],
)
def test_other_rows_are_an_error_that_names_the_file(
    rows: list[Any], attrs: list[Any], kind: pa.DataType | None
) -> None:
    with pytest.raises(FormatError, match="a/x") as caught:
        format_for("dataset").codec.decode_attributes(parquet(rows, attrs, kind), "a/x")
    assert caught.value.key == "a/x"


@pytest.mark.parametrize("layout", [{"indent": 2}, {"separators": (",", ":")}, {}])
def test_white_space_in_json_is_read(layout: dict[str, Any]) -> None:  # R3-81 H-07
    codec = format_for("store").codec
    ours = codec.encode_attributes(ROWS).data
    theirs = json.dumps(json.loads(ours), **layout).encode()
    assert theirs != ours
    found = codec.decode_attributes(theirs, "a/x")
    assert [json.loads(row) for row in found] == [json.loads(row) for row in ROWS]


def test_json_of_ours_is_compared_with_its_checksum() -> None:
    codec = format_for("store").codec
    data = codec.encode_attributes(ROWS).data
    with pytest.raises(FormatError, match="checksum"):
        codec.decode_attributes(data.replace(b'"a": 1', b'"a": 2'), "a/x")
