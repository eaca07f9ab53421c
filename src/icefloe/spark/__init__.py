"""The data pipeline on Spark: ingest, distributed writes, arrays as tables, rechunking.

Names are imported when they are first used: executors import parts of this package without
pyspark.
"""

from icefloe.lazy_names import lazy_names

PUBLIC_NAMES = {
    "icefloe.spark.engine.events": "JobEvent add_listener",
    "icefloe.spark.engine.exporters": "OpenLineageEvents OpenTelemetryMetrics",
    "icefloe.spark.engine.job": "JobOptions JobPlan JobReport",
    "icefloe.spark.engine.local": "local_session",
    "icefloe.spark.jobs.copy": "copy",
    "icefloe.spark.jobs.fill": "write",
    "icefloe.spark.jobs.ingesting": "IngestReport ingest",
    "icefloe.spark.jobs.maintenance": (
        "check_virtual_sources expire_snapshots materialize migrate remove_orphan_files "
        "rewrite_data_files rewrite_manifests verify"
    ),
    "icefloe.spark.jobs.map_blocks": "map_blocks",
    "icefloe.spark.jobs.rechunk": "rechunk",
    "icefloe.spark.jobs.reduce": "reduce",
    "icefloe.spark.jobs.statistics": "compute_statistics",
    "icefloe.spark.publishing.expectations": (
        "BlockCheck EqualTo GapFree HasAttributes HasUnits InRange MissingAtMost Monotonic "
        "NoDuplicates"
    ),
    "icefloe.spark.publishing.pipeline_file": "load_pipeline",
    "icefloe.spark.publishing.pipeline_run": "PipelineReport run_pipeline",
    "icefloe.spark.publishing.publication": "PublishReport publish read_report",
    "icefloe.spark.publishing.validating": "validate",
    "icefloe.spark.publishing.validation_report": "CheckResult ValidationReport",
    "icefloe.spark.statements.catalog": "register",
    "icefloe.spark.statements.execution": "sql",
    "icefloe.spark.tables.chunk_rows": "Block blocks",
    "icefloe.spark.tables.metadata_functions": "register_functions",
    "icefloe.spark.tables.read_table": "table",
    "icefloe.spark.tables.storage_providers": "register_storage_provider",
    "icefloe.spark.tables.write_table": "write_table",
    "icefloe.tables.zarr_arrays": "NewArray",
}
"""The public names by module; `make api` writes the stub of this package from it."""

__all__, __getattr__, __dir__ = lazy_names(__name__, PUBLIC_NAMES)
