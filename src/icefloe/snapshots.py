"""Snapshots and differences: the names of the official package's module."""

from __future__ import annotations

from icefloe.display import (
    AncestryGraph,
)
from icefloe.engine.info import (
    Diff,
    ManifestFileInfo,
    SnapshotInfo,
)

__all__ = ["AncestryGraph", "Diff", "ManifestFileInfo", "SnapshotInfo"]
