# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.spark.engine.events import JobEvent as JobEvent
from icefloe.spark.engine.events import add_listener as add_listener
from icefloe.spark.engine.exporters import OpenLineageEvents as OpenLineageEvents
from icefloe.spark.engine.exporters import OpenTelemetryMetrics as OpenTelemetryMetrics
from icefloe.spark.engine.job import JobOptions as JobOptions
from icefloe.spark.engine.job import JobPlan as JobPlan
from icefloe.spark.engine.job import JobReport as JobReport
from icefloe.spark.engine.local import local_session as local_session
from icefloe.spark.jobs.copy import copy as copy
from icefloe.spark.jobs.fill import write as write
from icefloe.spark.jobs.ingesting import IngestReport as IngestReport
from icefloe.spark.jobs.ingesting import ingest as ingest
from icefloe.spark.jobs.maintenance import check_virtual_sources as check_virtual_sources
from icefloe.spark.jobs.maintenance import expire_snapshots as expire_snapshots
from icefloe.spark.jobs.maintenance import materialize as materialize
from icefloe.spark.jobs.maintenance import migrate as migrate
from icefloe.spark.jobs.maintenance import remove_orphan_files as remove_orphan_files
from icefloe.spark.jobs.maintenance import rewrite_data_files as rewrite_data_files
from icefloe.spark.jobs.maintenance import rewrite_manifests as rewrite_manifests
from icefloe.spark.jobs.maintenance import verify as verify
from icefloe.spark.jobs.map_blocks import map_blocks as map_blocks
from icefloe.spark.jobs.rechunk import rechunk as rechunk
from icefloe.spark.jobs.reduce import reduce as reduce
from icefloe.spark.jobs.statistics import compute_statistics as compute_statistics
from icefloe.spark.publishing.expectations import BlockCheck as BlockCheck
from icefloe.spark.publishing.expectations import EqualTo as EqualTo
from icefloe.spark.publishing.expectations import GapFree as GapFree
from icefloe.spark.publishing.expectations import HasAttributes as HasAttributes
from icefloe.spark.publishing.expectations import HasUnits as HasUnits
from icefloe.spark.publishing.expectations import InRange as InRange
from icefloe.spark.publishing.expectations import MissingAtMost as MissingAtMost
from icefloe.spark.publishing.expectations import Monotonic as Monotonic
from icefloe.spark.publishing.expectations import NoDuplicates as NoDuplicates
from icefloe.spark.publishing.pipeline_file import load_pipeline as load_pipeline
from icefloe.spark.publishing.pipeline_run import PipelineReport as PipelineReport
from icefloe.spark.publishing.pipeline_run import run_pipeline as run_pipeline
from icefloe.spark.publishing.publication import PublishReport as PublishReport
from icefloe.spark.publishing.publication import publish as publish
from icefloe.spark.publishing.publication import read_report as read_report
from icefloe.spark.publishing.validating import validate as validate
from icefloe.spark.publishing.validation_report import CheckResult as CheckResult
from icefloe.spark.publishing.validation_report import ValidationReport as ValidationReport
from icefloe.spark.statements.catalog import register as register
from icefloe.spark.statements.execution import sql as sql
from icefloe.spark.tables.chunk_rows import Block as Block
from icefloe.spark.tables.chunk_rows import blocks as blocks
from icefloe.spark.tables.metadata_functions import register_functions as register_functions
from icefloe.spark.tables.read_table import table as table
from icefloe.spark.tables.storage_providers import register_storage_provider as register_storage_provider
from icefloe.spark.tables.write_table import write_table as write_table
from icefloe.tables.zarr_arrays import NewArray as NewArray
__all__ = [
    "Block",
    "BlockCheck",
    "CheckResult",
    "EqualTo",
    "GapFree",
    "HasAttributes",
    "HasUnits",
    "InRange",
    "IngestReport",
    "JobEvent",
    "JobOptions",
    "JobPlan",
    "JobReport",
    "MissingAtMost",
    "Monotonic",
    "NewArray",
    "NoDuplicates",
    "OpenLineageEvents",
    "OpenTelemetryMetrics",
    "PipelineReport",
    "PublishReport",
    "ValidationReport",
    "add_listener",
    "blocks",
    "check_virtual_sources",
    "compute_statistics",
    "copy",
    "expire_snapshots",
    "ingest",
    "load_pipeline",
    "local_session",
    "map_blocks",
    "materialize",
    "migrate",
    "publish",
    "read_report",
    "rechunk",
    "reduce",
    "register",
    "register_functions",
    "register_storage_provider",
    "remove_orphan_files",
    "rewrite_data_files",
    "rewrite_manifests",
    "run_pipeline",
    "sql",
    "table",
    "validate",
    "verify",
    "write",
    "write_table",
]
