"""Packs small chunks that were written to a tree into shared objects."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from icefloe.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.chunk_edits import Waiting
    from icefloe.changes.pending import PendingChunks
    from icefloe.engine.tree.view import TreeState
    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.objects.chunks import ChunkFiles
    from icefloe.objects.uploads import Uploads

    _Packed: TypeAlias = list[tuple[NodeId, list[Waiting], list[list[ArrayChunks | PendingChunks]]]]
    """By array: the tables that waited, and what replaces each of them."""


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
        with self._giving_back(taken):
            written = self._packed(taken, only_full=only_full)
        self._settle(written)

    @contextmanager
    def written_with(self, uploads: Uploads) -> Iterator[ChangeSet]:
        """The changes as they are when all pending chunks are written, which continues meanwhile.

        If the block succeeds, the uploads have ended, and the tree records where its chunks are;
        likewise if only the branch has moved. If it fails otherwise, they are pending as before.
        """
        taken = self._take()
        moved: ConflictError | None = None
        with self._giving_back(taken):
            written = self._packed(taken, only_full=False, uploads=uploads)
            with self._state.lock:
                changes = self._state.view.changes.copy()
            _settle(changes, written)
            try:
                yield changes
                uploads.wait()
            except BaseException as error:
                if not uploads.abandon() or not isinstance(error, ConflictError):
                    raise
                moved = error
        self._settle(written)
        if moved is not None:
            raise moved

    def _packed(
        self,
        taken: dict[NodeId, list[Waiting]],
        *,
        only_full: bool,
        uploads: Uploads | None = None,
    ) -> _Packed:
        from icefloe.objects.packs import write_packs

        node_ids = sorted(taken)
        arrays = [taken[node_id] for node_id in node_ids]
        results = write_packs(self._chunk_files, arrays, only_full=only_full, uploads=uploads)
        return list(zip(node_ids, arrays, results, strict=True))

    @contextmanager
    def _giving_back(self, taken: dict[NodeId, list[Waiting]]) -> Iterator[None]:
        """Let chunks wait again if they cannot be written."""
        try:
            yield
        except BaseException:
            with self._state.lock:
                for waiting in taken.values():
                    for each in waiting:
                        each.table.is_taken = False
                        self._pending_bytes += each.nbytes
            raise

    def _settle(self, written: _Packed) -> None:
        with self._state.lock:
            # The changes of now: a rebase may have replaced those that the chunks came from.
            self._pending_bytes += _settle(self._state.view.changes, written)


def _settle(changes: ChangeSet, written: _Packed) -> int:
    """Record in the changes where chunks are; returns the bytes of those that still wait."""
    from icefloe.changes.pending import PendingChunks

    pending = 0
    for node_id, waiting, outcomes in written:
        edits = changes.chunks.get(node_id)
        for each, outcome in zip(waiting, outcomes, strict=True):
            pending += sum(part.nbytes for part in outcome if isinstance(part, PendingChunks))
            if edits is not None:
                edits.settle(each.table, outcome)
    return pending
