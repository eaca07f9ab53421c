"""Who wrote a file, and what it means where that package takes no locks."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from icefloe.errors import NotFoundError, StorageError
from icefloe.formats.icechunk.container import HEADER_SIZE, client_of, is_ours
from icefloe.formats.icechunk.layout import LAYOUT

if TYPE_CHECKING:
    from icefloe.model.ids import SnapshotId
    from icefloe.storage.port import Storage

logger = logging.getLogger(__name__)

_LOCAL = "file://"
_warned: set[str] = set()
"""Locations that were warned of by this process."""


def warn_of_unlocked_writers(storage: Storage, snapshot_id: SnapshotId) -> None:
    """Warn, once for a place, if another package made a commit on local files.

    The official package replaces local files without a condition and takes no lock, so that it and
    anyone else may lose commits to each other there. On object stores both use conditional writes.
    """
    location = storage.location
    if not location.startswith(_LOCAL) or location in _warned:
        return
    with contextlib.suppress(NotFoundError, StorageError):
        header = storage.get(LAYOUT.snapshot(snapshot_id), 0, HEADER_SIZE)
        if not is_ours(header):
            _warned.add(location)
            logger.warning(
                "the newest commit in %s was written by %s, which takes no locks on local files: "
                "let one of the two packages write at a time, or commits may be lost",
                location,
                client_of(header) or "another package",
            )
