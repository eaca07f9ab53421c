"""Who wrote a file, and what it means where that package takes no locks."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from icefloe.errors import NotFoundError, StorageError
from icefloe.formats.icechunk.container import HEADER_SIZE, client_of, is_ours
from icefloe.formats.icechunk.layout import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

logger = logging.getLogger(__name__)

_LOCAL = "file://"
_warned: set[str] = set()
"""Locations that were warned of by this process."""


class UnlockedWriters:
    """Warns, once for a place, before the first write after another package's commit.

    The official package replaces local files without a condition and takes no lock, so that it and
    anyone else may lose commits to each other there. On object stores both use conditional writes.
    """

    def __init__(self, storage: Storage) -> None:
        """Take where the repository is."""
        self._storage = storage
        self._looked_at: SnapshotId | None = None

    def warn(self, newest: SnapshotId | Callable[[], SnapshotId | None] | None) -> None:
        """Warn if another package made the newest commit, or the one that a function finds."""
        location = self._storage.location
        if not location.startswith(_LOCAL) or location in _warned:
            return
        with contextlib.suppress(NotFoundError, StorageError):
            snapshot_id = newest() if callable(newest) else newest
            if snapshot_id is None or snapshot_id == self._looked_at:
                return
            header = self._storage.get(LAYOUT.snapshot(snapshot_id), 0, HEADER_SIZE)
            self._looked_at = snapshot_id
            if not is_ours(header):
                _warned.add(location)
                logger.warning(
                    "the newest commit in %s was written by %s, which takes no locks on local "
                    "files: let one of the two packages write at a time, or commits may be lost",
                    location,
                    client_of(header) or "another package",
                )
