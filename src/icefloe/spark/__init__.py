"""The data pipeline on Spark: ingest, distributed writes, arrays as tables, rechunking.

Names are imported when they are first used: executors import parts of this package without
pyspark.
"""

from icefloe.lazy_names import lazy_names

PUBLIC_NAMES = {
    "icefloe.spark.engine.job": "JobOptions JobPlan JobReport",
    "icefloe.spark.engine.local": "local_session",
    "icefloe.spark.jobs.copy": "copy",
    "icefloe.spark.jobs.fill": "write",
    "icefloe.spark.jobs.ingesting": "IngestReport ingest",
    "icefloe.spark.jobs.map_blocks": "map_blocks",
    "icefloe.spark.jobs.rechunk": "rechunk",
    "icefloe.spark.jobs.reduce": "reduce",
    "icefloe.spark.jobs.statistics": "compute_statistics",
    "icefloe.spark.sql.chunk_rows": "Block blocks",
    "icefloe.spark.sql.metadata_functions": "register_functions",
    "icefloe.spark.sql.read_table": "register table",
    "icefloe.spark.sql.storage_providers": "register_storage_provider",
    "icefloe.spark.sql.write_table": "write_table",
    "icefloe.tables.zarr_arrays": "NewArray",
}
"""The public names by module; `make api` writes the stub of this package from it."""

__all__, __getattr__, __dir__ = lazy_names(__name__, PUBLIC_NAMES)
