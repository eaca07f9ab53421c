# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.ingest.differences import Difference as Difference
from icefloe.ingest.headers import FileHeader as FileHeader
from icefloe.ingest.ingested import ingested_files as ingested_files
from icefloe.ingest.place import references as references
from icefloe.ingest.plan import IngestPlan as IngestPlan
from icefloe.ingest.planning import plan_files as plan_files
from icefloe.ingest.referencing import ParseOptions as ParseOptions
from icefloe.ingest.referencing import Referenced as Referenced
from icefloe.ingest.referencing import read_file as read_file
from icefloe.ingest.referencing import read_header as read_header
from icefloe.ingest.referencing import reference_files as reference_files
__all__ = [
    "Difference",
    "FileHeader",
    "IngestPlan",
    "ParseOptions",
    "Referenced",
    "ingested_files",
    "plan_files",
    "read_file",
    "read_header",
    "reference_files",
    "references",
]
