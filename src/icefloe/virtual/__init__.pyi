# Generated from PUBLIC_NAMES in __init__.py: run `make api` after a change there.
from icefloe.config import VirtualChunkContainer as VirtualChunkContainer
from icefloe.ingest.file_rules import FileAttribute as FileAttribute
from icefloe.ingest.headers import FileHeader as FileHeader
from icefloe.ingest.local import Referenced as Referenced
from icefloe.ingest.local import reference_files as reference_files
from icefloe.ingest.log import ingested_files as ingested_files
from icefloe.ingest.options import ParseOptions as ParseOptions
from icefloe.ingest.place import references as references
from icefloe.ingest.plan import Difference as Difference
from icefloe.ingest.plan import IngestPlan as IngestPlan
from icefloe.ingest.planner import plan_files as plan_files
from icefloe.ingest.policies import Policies as Policies
from icefloe.ingest.read import read_file as read_file
from icefloe.ingest.read import read_header as read_header
from icefloe.model.virtual_spec import VirtualChunkSpec as VirtualChunkSpec
from icefloe.virtual.datasets import write_virtual as write_virtual
__all__ = [
    "Difference",
    "FileAttribute",
    "FileHeader",
    "IngestPlan",
    "ParseOptions",
    "Policies",
    "Referenced",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "ingested_files",
    "plan_files",
    "read_file",
    "read_header",
    "reference_files",
    "references",
    "write_virtual",
]
