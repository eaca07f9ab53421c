"""How an object came from one storage to another."""

from __future__ import annotations

from enum import StrEnum


class CopyMethod(StrEnum):
    """How an object came to another place."""

    LINKED = "linked"
    """Both names stand for the same bytes on disk or in memory."""
    SERVER_SIDE = "server-side"
    """The store copied it by itself."""
    TRANSFERRED = "transferred"
    """Its bytes were read and written."""
