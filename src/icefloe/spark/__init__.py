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
    from icefloe.spark.jobs.copying import copy as copy
    from icefloe.spark.jobs.filling import write as write
    from icefloe.spark.jobs.ingest_report import IngestReport as IngestReport
    from icefloe.spark.jobs.ingesting import ingest as ingest
    from icefloe.spark.jobs.mapping import map_blocks as map_blocks
    from icefloe.spark.jobs.rechunking import rechunk as rechunk
    from icefloe.spark.jobs.reducing import reduce as reduce
    from icefloe.spark.jobs.statistics import compute_statistics as compute_statistics
    from icefloe.spark.sql.chunk_rows import Block as Block
    from icefloe.spark.sql.chunk_rows import blocks as blocks
    from icefloe.spark.sql.metadata_functions import register_functions as register_functions
    from icefloe.spark.sql.read_table import register as register
    from icefloe.spark.sql.read_table import table as table
    from icefloe.spark.sql.storage_providers import (
        register_storage_provider as register_storage_provider,
    )
    from icefloe.spark.sql.write_table import write_table as write_table
    from icefloe.zarr_store.session_arrays import NewArray as NewArray

_HOMES = {
    "IngestReport": "jobs.ingest_report",
    "Block": "sql.chunk_rows",
    "blocks": "sql.chunk_rows",
    "compute_statistics": "jobs.statistics",
    "JobOptions": "engine.job",
    "JobPlan": "engine.job",
    "JobReport": "engine.job",
    "NewArray": ".zarr_store.session_arrays",
    "copy": "jobs.copying",
    "ingest": "jobs.ingesting",
    "local_session": "engine.local",
    "map_blocks": "jobs.mapping",
    "rechunk": "jobs.rechunking",
    "register": "sql.read_table",
    "register_functions": "sql.metadata_functions",
    "register_storage_provider": "sql.storage_providers",
    "table": "sql.read_table",
    "reduce": "jobs.reducing",
    "write": "jobs.filling",
    "write_table": "sql.write_table",
}
"""Public name: the module that has it, relative to this package."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
