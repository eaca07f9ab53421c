"""Writes the packs of a session: when enough chunks wait, and when none may wait any longer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from icefloe.changes.pending import PendingChunks
from icefloe.objects.packs import write_packs

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.chunk_edits import Waiting
    from icefloe.model.ids import NodeId
    from icefloe.objects.chunks import ChunkFiles


class PendingPacks:
    """Looks after the chunks that wait in the changes of a session.

    Nobody waits for the lock of the session while a pack is on its way: chunks that are written
    can be read, overwritten and deleted meanwhile. Writers who fill a pack wait for the one before
    it, so that no more than two packs are in memory.
    """

    def __init__(
        self,
        chunk_files: ChunkFiles,
        changes: Callable[[], ChangeSet],
        lock: threading.RLock,
    ) -> None:
        """Take where packs go, the changes of the moment, and the lock under which they change."""
        self._chunk_files = chunk_files
        self._changes = changes
        self._lock = lock
        self._turn = threading.Lock()
        self._noted = 0

    def note(self, nbytes: int) -> None:
        """Count bytes that wait from now on."""
        self._noted += nbytes

    @property
    def is_due(self) -> bool:
        """Whether enough wait for a pack."""
        return self._noted >= self._chunk_files.settings.pack_bytes

    def write_full(self) -> None:
        """Write what fills packs."""
        with self._turn:
            if self.is_due and (taken := self._take_enough()):
                self._write(taken, only_full=True)

    def write_all(self) -> None:
        """Write all that waits: before a commit, a fork or anything that needs references.

        Also what another thread is writing just now: whoever is done first settles it.
        """
        if taken := self._take():
            self._write(taken, only_full=False)

    def _take_enough(self) -> dict[NodeId, list[Waiting]]:
        """What waits, if it fills a pack."""
        with self._lock:
            chunks = self._changes().chunks
            size = sum(edits.pending_bytes() for edits in chunks.values())
            if size >= self._chunk_files.settings.pack_bytes:
                return self._take()
            # The rest of what was noted was overwritten since: it costs nothing.
            for edits in chunks.values():
                edits.compact_pending()
            self._noted = size
            return {}

    def _take(self) -> dict[NodeId, list[Waiting]]:
        with self._lock:
            chunks = self._changes().chunks
            taken = {node_id: edits.take_pending() for node_id, edits in chunks.items()}
            self._noted = 0
            return {node_id: waiting for node_id, waiting in taken.items() if waiting}

    def _write(self, taken: dict[NodeId, list[Waiting]], *, only_full: bool) -> None:
        node_ids = sorted(taken)
        arrays = [taken[node_id] for node_id in node_ids]
        try:
            results = write_packs(self._chunk_files, arrays, only_full=only_full)
        except BaseException:
            with self._lock:
                for waiting in arrays:
                    for each in waiting:
                        each.table.is_taken = False
                        self._noted += each.nbytes
            raise
        with self._lock:
            chunks = self._changes().chunks
            for node_id, waiting, outcomes in zip(node_ids, arrays, results, strict=True):
                edits = chunks.get(node_id)
                for each, outcome in zip(waiting, outcomes, strict=True):
                    kept = [part for part in outcome if isinstance(part, PendingChunks)]
                    self._noted += sum(part.nbytes for part in kept)
                    if edits is not None:
                        edits.settle(each.table, outcome)
