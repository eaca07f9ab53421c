"""The data pipeline on Spark: ingest, distributed writes, arrays as tables, rechunking.

Names are loaded when they are first used: executors import parts of this package without pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.spark.engine.job import JobOptions as JobOptions
    from icefloe.spark.engine.job import JobPlan as JobPlan
    from icefloe.spark.engine.job import JobReport as JobReport
    from icefloe.spark.engine.local import local_session as local_session
    from icefloe.spark.jobs.arrays import NewArray as NewArray
    from icefloe.spark.jobs.chunk_statistics import compute_statistics as compute_statistics
    from icefloe.spark.jobs.copy import copy as copy
    from icefloe.spark.jobs.fill import write as write
    from icefloe.spark.jobs.ingest_report import IngestReport as IngestReport
    from icefloe.spark.jobs.ingesting import ingest as ingest
    from icefloe.spark.jobs.map_blocks import map_blocks as map_blocks
    from icefloe.spark.jobs.rechunk import rechunk as rechunk
    from icefloe.spark.jobs.reduce import reduce as reduce
    from icefloe.spark.sql.chunk_rows import Block as Block
    from icefloe.spark.sql.chunk_rows import blocks as blocks
    from icefloe.spark.sql.storage_providers import (
        register_storage_provider as register_storage_provider,
    )
    from icefloe.spark.sql.table_functions import register_functions as register_functions
    from icefloe.spark.sql.table_reading import register as register
    from icefloe.spark.sql.table_reading import table as table
    from icefloe.spark.sql.table_writing import write_table as write_table

_HOMES = {
    "IngestReport": "jobs.ingest_report",
    "Block": "sql.chunk_rows",
    "blocks": "sql.chunk_rows",
    "compute_statistics": "jobs.chunk_statistics",
    "JobOptions": "engine.job",
    "JobPlan": "engine.job",
    "JobReport": "engine.job",
    "NewArray": "jobs.arrays",
    "copy": "jobs.copy",
    "ingest": "jobs.ingesting",
    "local_session": "engine.local",
    "map_blocks": "jobs.map_blocks",
    "rechunk": "jobs.rechunk",
    "register": "sql.table_reading",
    "register_functions": "sql.table_functions",
    "register_storage_provider": "sql.storage_providers",
    "table": "sql.table_reading",
    "reduce": "jobs.reduce",
    "write": "jobs.fill",
    "write_table": "sql.table_writing",
}
"""Public name: module of this package that has it."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
