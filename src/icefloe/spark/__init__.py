"""The data pipeline on Spark: ingest, distributed writes, arrays as tables, rechunking.

Names are loaded when they are first used: executors import parts of this package without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.spark.arrays import NewArray as NewArray
    from icefloe.spark.chunk_rows import Block as Block
    from icefloe.spark.chunk_rows import blocks as blocks
    from icefloe.spark.chunk_statistics import compute_statistics as compute_statistics
    from icefloe.spark.copying import copy as copy
    from icefloe.spark.ingest_report import IngestReport as IngestReport
    from icefloe.spark.ingesting import ingest as ingest
    from icefloe.spark.job import JobOptions as JobOptions
    from icefloe.spark.job import JobPlan as JobPlan
    from icefloe.spark.job import JobReport as JobReport
    from icefloe.spark.mapping import map_blocks as map_blocks
    from icefloe.spark.rechunking import rechunk as rechunk
    from icefloe.spark.reducing import reduce as reduce
    from icefloe.spark.session import local_session as local_session
    from icefloe.spark.storage_providers import (
        register_storage_provider as register_storage_provider,
    )
    from icefloe.spark.table_functions import register_functions as register_functions
    from icefloe.spark.table_reading import register as register
    from icefloe.spark.table_reading import table as table
    from icefloe.spark.table_writing import write_table as write_table
    from icefloe.spark.writing import write as write

_HOMES = {
    "IngestReport": "ingest_report",
    "Block": "chunk_rows",
    "blocks": "chunk_rows",
    "compute_statistics": "chunk_statistics",
    "JobOptions": "job",
    "JobPlan": "job",
    "JobReport": "job",
    "NewArray": "arrays",
    "copy": "copying",
    "ingest": "ingesting",
    "local_session": "session",
    "map_blocks": "mapping",
    "rechunk": "rechunking",
    "register": "table_reading",
    "register_functions": "table_functions",
    "register_storage_provider": "storage_providers",
    "table": "table_reading",
    "reduce": "reducing",
    "write": "writing",
    "write_table": "table_writing",
}
"""Public name: module of this package that has it."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
