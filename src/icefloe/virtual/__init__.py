"""Files of other formats as Zarr arrays, without copying their data.

`reference_files` does all of it for a few files. Its steps are functions of their own, which a
cluster runs for many: `read_header`, `plan_files`, `references`, `write_documents` and the like.
"""

from icefloe.lazy_names import lazy_names

PUBLIC_NAMES = {
    "icefloe.config": "VirtualChunkContainer",
    "icefloe.ingest.file_rules": "FileAttribute",
    "icefloe.ingest.headers": "FileHeader",
    "icefloe.ingest.local": "Referenced reference_files",
    "icefloe.ingest.log": "ingested_files",
    "icefloe.ingest.options": "ParseOptions",
    "icefloe.ingest.place": "references",
    "icefloe.ingest.plan": "Difference IngestPlan",
    "icefloe.ingest.planner": "plan_files",
    "icefloe.ingest.policies": "Policies",
    "icefloe.ingest.read": "read_file read_header",
    "icefloe.model.virtual_spec": "VirtualChunkSpec",
    "icefloe.virtual.datasets": "write_virtual",
}
"""The public names by module; `make api` writes the stub of this package from it."""

__all__, __getattr__, __dir__ = lazy_names(__name__, PUBLIC_NAMES)
