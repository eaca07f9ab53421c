"""Files of other formats as Zarr arrays, without copying their data.

`reference_files` does all of it for a few files. Its steps are functions of their own, which a
cluster runs for many: `read_header`, `plan_files`, `references`, `write_documents` and the like.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Difference": "icefloe.ingest.differences",
    "FileHeader": "icefloe.ingest.headers",
    "IngestPlan": "icefloe.ingest.plan",
    "ingested_files": "icefloe.ingest.ingested",
    "ParseOptions": "icefloe.ingest.referencing",
    "Referenced": "icefloe.ingest.referencing",
    "plan_files": "icefloe.ingest.planning",
    "read_file": "icefloe.ingest.referencing",
    "read_header": "icefloe.ingest.referencing",
    "reference_files": "icefloe.ingest.referencing",
    "references": "icefloe.ingest.place",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 (a list)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
