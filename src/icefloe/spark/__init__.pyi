# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.spark.engine.job import JobOptions as JobOptions
from icefloe.spark.engine.job import JobPlan as JobPlan
from icefloe.spark.engine.job import JobReport as JobReport
from icefloe.spark.engine.local import local_session as local_session
from icefloe.spark.jobs.copy import copy as copy
from icefloe.spark.jobs.fill import write as write
from icefloe.spark.jobs.ingesting import IngestReport as IngestReport
from icefloe.spark.jobs.ingesting import ingest as ingest
from icefloe.spark.jobs.map_blocks import map_blocks as map_blocks
from icefloe.spark.jobs.rechunk import rechunk as rechunk
from icefloe.spark.jobs.reduce import reduce as reduce
from icefloe.spark.jobs.statistics import compute_statistics as compute_statistics
from icefloe.spark.sql.chunk_rows import Block as Block
from icefloe.spark.sql.chunk_rows import blocks as blocks
from icefloe.spark.sql.metadata_functions import register_functions as register_functions
from icefloe.spark.sql.read_table import register as register
from icefloe.spark.sql.read_table import table as table
from icefloe.spark.sql.storage_providers import register_storage_provider as register_storage_provider
from icefloe.spark.sql.write_table import write_table as write_table
from icefloe.tables.zarr_arrays import NewArray as NewArray
__all__ = [
    "Block",
    "IngestReport",
    "JobOptions",
    "JobPlan",
    "JobReport",
    "NewArray",
    "blocks",
    "compute_statistics",
    "copy",
    "ingest",
    "local_session",
    "map_blocks",
    "rechunk",
    "reduce",
    "register",
    "register_functions",
    "register_storage_provider",
    "table",
    "write",
    "write_table",
]
