"""Packs small chunks that were written to a tree into shared objects."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from icefloe.changes.pending import PendingChunks
from icefloe.objects.packs import write_packs

if TYPE_CHECKING:
    from icefloe.changes.chunk_edits import Waiting
    from icefloe.engine.tree.view import TreeState
    from icefloe.model.ids import NodeId
    from icefloe.objects.chunks import ChunkFiles


class PendingPacks:
    """Writes the small chunks that are pending in a tree's changes, as packs.

    The tree's lock is not held while a pack is uploaded: pending chunks can be read, overwritten
    and deleted meanwhile. Writers who fill a pack wait for the upload of the one before it, so at
    most two packs are in memory.
    """

    def __init__(self, chunk_files: ChunkFiles, state: TreeState) -> None:
        """Take where packs are written and the state of the tree whose chunks they hold."""
        self._chunk_files = chunk_files
        self._state = state
        self._uploading = threading.Lock()
        self._pending_bytes = 0

    def add(self, nbytes: int) -> None:
        """Count bytes of chunks that are pending from now on."""
        self._pending_bytes += nbytes

    @property
    def is_due(self) -> bool:
        """Whether enough chunks are pending to fill a pack."""
        return self._pending_bytes >= self._chunk_files.settings.pack_bytes

    def write_full(self) -> None:
        """Write as many full packs as the pending chunks fill."""
        with self._uploading:
            if self.is_due and (taken := self._take_if_full()):
                self._write(taken, only_full=True)

    def write_all(self) -> None:
        """Write all pending chunks: before a commit, a fork or whatever needs references.

        This includes chunks that another thread is uploading right now: whichever upload
        finishes first is recorded.
        """
        if taken := self._take():
            self._write(taken, only_full=False)

    def _take_if_full(self) -> dict[NodeId, list[Waiting]]:
        with self._state.lock:
            chunks = self._state.view.changes.chunks
            size = sum(edits.pending_bytes() for edits in chunks.values())
            if size >= self._chunk_files.settings.pack_bytes:
                return self._take()
            # The rest of what was counted has been overwritten since, and costs nothing.
            for edits in chunks.values():
                edits.compact_pending()
            self._pending_bytes = size
            return {}

    def _take(self) -> dict[NodeId, list[Waiting]]:
        with self._state.lock:
            chunks = self._state.view.changes.chunks
            taken = {node_id: edits.take_pending() for node_id, edits in chunks.items()}
            self._pending_bytes = 0
            return {node_id: waiting for node_id, waiting in taken.items() if waiting}

    def _write(self, taken: dict[NodeId, list[Waiting]], *, only_full: bool) -> None:
        node_ids = sorted(taken)
        arrays = [taken[node_id] for node_id in node_ids]
        try:
            results = write_packs(self._chunk_files, arrays, only_full=only_full)
        except BaseException:
            with self._state.lock:
                for waiting in arrays:
                    for each in waiting:
                        each.table.is_taken = False
                        self._pending_bytes += each.nbytes
            raise
        with self._state.lock:
            # The changes of now: a rebase may have replaced those that the chunks came from.
            chunks = self._state.view.changes.chunks
            for node_id, waiting, outcomes in zip(node_ids, arrays, results, strict=True):
                edits = chunks.get(node_id)
                for each, outcome in zip(waiting, outcomes, strict=True):
                    unwritten = [part for part in outcome if isinstance(part, PendingChunks)]
                    self._pending_bytes += sum(part.nbytes for part in unwritten)
                    if edits is not None:
                        edits.settle(each.table, outcome)
