"""Files of other formats as Zarr arrays, without copying their data.

`reference_files` does all of it for a few files. Its steps are functions of their own, which a
cluster runs for many: `read_header`, `plan_files`, `references`, `write_documents` and the like.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icefloe.virtual.differences import Difference as Difference
    from icefloe.virtual.headers import FileHeader as FileHeader
    from icefloe.virtual.ingested import ingested_files as ingested_files
    from icefloe.virtual.placing import references as references
    from icefloe.virtual.plan import IngestPlan as IngestPlan
    from icefloe.virtual.planning import plan_files as plan_files
    from icefloe.virtual.referencing import ParseOptions as ParseOptions
    from icefloe.virtual.referencing import Referenced as Referenced
    from icefloe.virtual.referencing import read_file as read_file
    from icefloe.virtual.referencing import read_header as read_header
    from icefloe.virtual.referencing import reference_files as reference_files

_HOMES = {
    "Difference": "icefloe.virtual.differences",
    "FileHeader": "icefloe.virtual.headers",
    "IngestPlan": "icefloe.virtual.plan",
    "ingested_files": "icefloe.virtual.ingested",
    "ParseOptions": "icefloe.virtual.referencing",
    "Referenced": "icefloe.virtual.referencing",
    "plan_files": "icefloe.virtual.planning",
    "read_file": "icefloe.virtual.referencing",
    "read_header": "icefloe.virtual.referencing",
    "reference_files": "icefloe.virtual.referencing",
    "references": "icefloe.virtual.placing",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 (a list)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
