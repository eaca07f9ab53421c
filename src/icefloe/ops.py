"""What was done to a repository: the names of the official package's module."""

from __future__ import annotations

from icefloe.engine.retention.collection import (
    GCSummary,
)
from icefloe.model.repo_updates import (
    Update,
    UpdateType,
)

__all__ = ["GCSummary", "Update", "UpdateType"]
