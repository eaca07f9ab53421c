"""The chunks of a snapshot with the changes of a user on top: their bytes, read and written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from icefloe.changes.pending import PendingChunks
from icefloe.engine.chunk_names import ChunkNames, named
from icefloe.engine.grid_checks import check_all_in_grid, checked_segments, in_grid, within_grid
from icefloe.engine.node_tree import NodeTree, View
from icefloe.engine.pending_packs import PendingPacks
from icefloe.errors import DamagedChunkError, InvalidInputError
from icefloe.model.byte_range import WHOLE, ByteRange
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkRef, PendingRef
from icefloe.model.located import Located
from icefloe.model.segments import FoundChunks, Segments
from icefloe.objects.bulk_reads import BulkReader
from icefloe.objects.bulk_writes import write_segments
from icefloe.objects.chunks import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from icefloe.engine.context import Context
    from icefloe.model.nodes import ArrayNode
    from icefloe.model.snapshot import Snapshot


class ChunkTree(NodeTree):
    """Reads and writes the bytes of chunks, one or many at a time."""

    def __init__(self, context: Context, snapshot: Snapshot) -> None:
        """Start from a snapshot, without changes."""
        super().__init__(context, snapshot)
        self._packs = PendingPacks(context.chunk_files, lambda: self._changes, self._lock)
        self._verify_chunks = context.settings.verify_chunks

    @property
    def verify_chunks(self) -> bool:
        """Whether chunks are compared with their checksums when they are read.

        It starts as the configuration says, and can be set.
        """
        return self._verify_chunks

    @verify_chunks.setter
    def verify_chunks(self, value: bool) -> None:
        self._verify_chunks = value

    def _verifies(self, *, asked: bool | None) -> bool:
        return self._verify_chunks if asked is None else asked

    def locate(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """Where the bytes of a chunk are; None if it is not initialised or outside the grid."""
        return self._locate(self._view, path, coords)

    @staticmethod
    def _locate(view: View, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        node = view.array(path)
        if not in_grid(node, coords):
            return None
        edits = view.changes.chunks.get(node.id)
        if edits is not None:
            decided, ref = edits.get(coords)
            if decided:
                return ref
        return view.chunks.find(node, coords) if node.manifests else None

    async def locate_async(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """Like `locate`: at once if what it takes is at hand, else in a thread."""
        if not self._context.storage.capabilities.reads_are_immediate:
            view = self._view
            node = view.array(path)
            edits = view.changes.chunks.get(node.id)
            edited = edits is not None and edits.get(coords)[0]
            if not edited and not view.chunks.is_at_hand(node, coords):
                return await asyncio.to_thread(self.locate, path, coords)
        return self.locate(path, coords)

    def get_chunk(
        self,
        path: str,
        coords: tuple[int, ...],
        byte_range: ByteRange = WHOLE,
        *,
        verify: bool | None = None,
    ) -> bytes | None:
        """The bytes of a chunk, or a part of them; None if it is not initialised.

        `verify` says whether the whole chunk is compared with its checksum; the setting if not
        given.
        """
        ref = self._locate(self._view, path, coords)
        return None if ref is None else self._read_ref(path, coords, ref, byte_range, verify=verify)

    def _read_ref(
        self,
        path: str,
        coords: tuple[int, ...],
        ref: ChunkRef,
        byte_range: ByteRange = WHOLE,
        *,
        verify: bool | None = None,
    ) -> bytes:
        """The bytes of a chunk of which it is known where they are, or a part of them."""
        view = self._view
        try:
            return self._context.chunk_files.read(
                ref, byte_range, verify=self._verifies(asked=verify)
            )
        except DamagedChunkError as error:
            raise named(error, path, coords, str(view.snapshot.id)) from error

    async def get_chunk_async(
        self, path: str, coords: tuple[int, ...], byte_range: ByteRange = WHOLE
    ) -> bytes | None:
        """Like `get_chunk`, without blocking the event loop."""
        view = self._view
        ref = await self.locate_async(path, coords)
        if ref is None:
            return None
        read = self._context.chunk_files.read_async
        try:
            return await read(ref, byte_range, verify=self._verify_chunks)
        except DamagedChunkError as error:
            raise named(error, path, coords, str(view.snapshot.id)) from error

    def set_chunk(self, path: str, coords: tuple[int, ...], data: bytes) -> None:
        """Write a chunk."""
        self._check_chunk(path, coords)
        self._record(path, coords, self._context.chunk_files.write(data))
        if self._packs.is_due:
            self._packs.write_full()

    async def set_chunk_async(self, path: str, coords: tuple[int, ...], data: bytes) -> None:
        """Like `set_chunk`, without blocking the event loop."""
        self._check_chunk(path, coords)
        if self._packs.is_due:
            await self._make_room()
        self._record(path, coords, await self._context.chunk_files.write_async(data))
        if self._packs.is_due:
            await asyncio.to_thread(self._packs.write_full)

    async def _make_room(self) -> None:
        """Wait until chunks may be kept: thousands of tasks may want it at the same time."""
        while self._packs.is_due:
            await asyncio.to_thread(self._packs.write_full)

    def read_chunks(
        self, path: str, coords: npt.NDArray[np.integer], *, verify: bool | None = None
    ) -> Iterator[FoundChunks]:
        """The bytes of many chunks, in any order; those in no group are not initialised.

        Chunks that are near each other in a file are fetched together, and several requests are
        on their way at a time. Segments are pieces of what was fetched, not copies. Fetching
        waits for a caller who is slow to take the groups.

        Args:
            path: Canonical path of an array.
            coords: Coordinates of the chunks, (n, rank), none twice; those outside of the grid
                are not initialised.
            verify: Whether to compare the bytes with their checksums; the setting if not given.
        """
        if len(coords) == 1:
            return self._read_one(path, coords, verify=verify)
        located = self._locate_chunks(path, coords)
        return self._read_located(path, coords, located, verify=verify)

    def _locate_chunks(self, path: str, coords: npt.NDArray[np.integer]) -> list[Located]:
        """Where the bytes of many chunks are; those in no group are not initialised."""
        view = self._view
        node = view.array(path)
        wanted, rows = within_grid(node, coords)
        if len(wanted) == 0:
            return []
        edits = view.changes.chunks.get(node.id)
        located, left = ([], np.arange(len(wanted))) if edits is None else edits.find_many(wanted)
        if len(left) and node.manifests:
            base = view.chunks.find_many(node, wanted[left])
            located += [Located(left[part.rows], part.refs) for part in base]
        if rows is not None:
            located = [Located(rows[part.rows], part.refs) for part in located]
        return located

    def _read_located(
        self,
        path: str,
        coords: npt.NDArray[np.integer],
        located: Sequence[Located],
        *,
        verify: bool | None = None,
    ) -> Iterator[FoundChunks]:
        """The bytes that references name, as `read_chunks` gives them.

        Args:
            path: Canonical path of an array.
            coords: Coordinates of the chunks that rows of `located` speak of.
            located: References of chunks, or of parts of chunks.
            verify: Whether to compare the bytes with their checksums; the setting if not given.
        """
        names = ChunkNames(path, coords, str(self._view.snapshot.id))
        reader = BulkReader(
            self._context.chunk_files,
            self._context.read_limits,
            names.damaged,
            verify=self._verifies(asked=verify),
        )
        return reader.read(located)

    def _read_one(
        self, path: str, coords: npt.NDArray[np.integer], *, verify: bool | None
    ) -> Iterator[FoundChunks]:
        """Like `read_chunks`, for which a single chunk is too little."""
        data = self.get_chunk(path, tuple(coords[0].tolist()), verify=verify)
        if data is not None:
            yield FoundChunks(np.zeros(1, dtype=np.intp), Segments.of([data]))

    def write_chunks(self, path: str, coords: npt.NDArray[np.integer], segments: Segments) -> None:
        """Write many chunks of an array; segment `i` is the chunk at `coords[i]`, none twice.

        Small chunks wait for a pack, full packs and large chunks are written at once, several at
        a time; the call returns when they are on the storage. If it fails, none of the chunks is
        set, and it can be tried again.
        """
        if len(coords) == 1 and len(segments) == 1:
            self.set_chunk(path, tuple(coords[0].tolist()), bytes(segments.piece(0)))
            return
        self._check_writable()
        wanted, segments = checked_segments(self._view.array(path), coords, segments)
        if len(wanted) == 0:
            return
        tables = write_segments(self._context.chunk_files, wanted, segments)
        with self._lock:
            # Checked again: while the bytes were written, others may have committed or resized.
            self._check_writable()
            node = self._view.array(path)
            check_all_in_grid(node, wanted)
            edits = self._changes.edits(node)
            for table in tables:
                edits.set_many(table)
                if isinstance(table, PendingChunks):
                    self._packs.note(table.nbytes)
        if self._packs.is_due:
            self._packs.write_full()

    def delete_chunk(self, path: str, coords: tuple[int, ...]) -> None:
        """Delete a chunk; that it was not initialised is no error."""
        self._check_chunk(path, coords)
        self._record(path, coords, None)

    def delete_chunk_set(self, path: str, coords: npt.NDArray[np.integer]) -> None:
        """Delete many chunks of an array, at coordinates (n, rank) within its grid, none twice."""
        if len(coords) == 0:
            return
        with self._lock:
            self._check_writable()
            node = self._view.array(path)
            self._changes.edits(node).delete_many(ChunkIndex.from_coords(coords)[0])

    def chunk_size(self, path: str, coords: tuple[int, ...]) -> int | None:
        """Number of bytes of an initialised chunk."""
        ref = self.locate(path, coords)
        return None if ref is None else size_of(ref)

    def _check_chunk(self, path: str, coords: tuple[int, ...]) -> ArrayNode:
        """The array of a chunk that may be written."""
        self._check_writable()
        node = self._view.array(path)
        if not in_grid(node, coords):
            raise InvalidInputError(
                f"invalid chunk index: {list(coords)} in {path}, whose chunk grid is "
                f"{list(node.array.grid_shape or ())}"
            )
        return node

    def _record(self, path: str, coords: tuple[int, ...], ref: ChunkRef | None) -> None:
        with self._lock:
            # Checked again: while the bytes were written, others may have committed or resized.
            node = self._check_chunk(path, coords)
            self._changes.edits(node).set(coords, ref)
            if isinstance(ref, PendingRef):
                self._packs.note(len(ref.data))

    def settle_pending(self) -> None:
        """Write small chunks that wait for others now, to free their memory."""
        with self._lock:
            self._packs.write_all()
