"""The files of virtual chunks, found in manifests and asked for their state by executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from icefloe.spark.engine.runner import parallelism, rows_of_groups, rows_of_items
from icefloe.spark.jobs.result_frames import record_schema
from icefloe.upkeep.virtual_sources import (
    ExpectedSource,
    VirtualSourceInfo,
    examine_sources,
    expected_sources,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from icefloe.spark.engine.worker import SessionSpec

_EXPECTED = "url string, expected binary"
_SOURCES = pa.schema(
    {
        "url": pa.string(),
        "problem": pa.string(),
        "explanation": pa.string(),
        "chunks": pa.int64(),
        "referenced_bytes": pa.int64(),
        "arrays": pa.list_(pa.string()),
        "is_checked": pa.bool_(),
    }
)
"""The fields of `VirtualSourceInfo`."""
_SOURCES_AT_ONCE = 10_000


def source_rows(spark: SparkSession, shared: SessionSpec, paths: Sequence[str]) -> DataFrame:
    """One row for each file that virtual chunks of arrays are in, checked now and once."""
    from pyspark.sql import functions as f

    schema = record_schema(VirtualSourceInfo)
    if not paths:
        return spark.createDataFrame([], schema)
    rows = rows_of_items(spark, _expected_rows, paths, shared, _EXPECTED)
    bucket = f.pmod(f.xxhash64("url"), f.lit(8 * parallelism(spark)))
    checked = rows_of_groups(rows, bucket, _examined_rows, shared, schema)
    return checked.orderBy("url").localCheckpoint()


# --- on executors


def _expected_rows(path: str, shared: SessionSpec) -> Iterator[pa.RecordBatch]:
    """What an array expects of each file."""
    expected = expected_sources(shared.open().tree, [path])
    urls = list(expected)
    for start in range(0, len(urls), _SOURCES_AT_ONCE):
        part = urls[start : start + _SOURCES_AT_ONCE]
        packed = [msgspec.msgpack.encode(expected[url]) for url in part]
        yield pa.record_batch({"url": part, "expected": pa.array(packed, pa.binary())})


def _examined_rows(table: pa.Table, shared: SessionSpec) -> Iterator[pa.RecordBatch]:
    """The state of the files of one bucket, which no other task has."""
    expected: dict[str, ExpectedSource] = {}
    decode = msgspec.msgpack.Decoder(ExpectedSource).decode
    rows = zip(
        table.column("url").to_pylist(),
        map(decode, table.column("expected").to_pylist()),
        strict=True,
    )
    for url, one in sorted(rows, key=lambda row: row[1].arrays):
        expected[url] = expected[url].joined(one) if url in expected else one
    sources = examine_sources(expected, shared.open().tree.virtual_sources)
    plain = [msgspec.structs.asdict(each) for each in sources]
    yield pa.RecordBatch.from_pylist(plain, schema=_SOURCES)
