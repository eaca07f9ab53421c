"""The working tree: the nodes, chunks and references of a snapshot with changes laid over it.

It does not depend on branches or commits: `engine/commit` makes a snapshot of it. Sessions
and forks have one each.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from icefloe.engine.tree.grid_checks import check_all_in_grid, check_box, checked_segments, in_grid
from icefloe.engine.tree.pending_packs import PendingPacks
from icefloe.engine.tree.view import TreeState, TreeView
from icefloe.errors import (
    DamagedChunkError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
)
from icefloe.model import paths
from icefloe.model.byte_range import WHOLE, ByteRange
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkRef, PendingRef
from icefloe.model.segments import FoundChunks, Segments
from icefloe.objects.bulk_reads import BulkReader, gap_bytes
from icefloe.objects.chunks import size_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.config.settings import Settings
    from icefloe.engine.context import Context
    from icefloe.engine.tree.chunk_batches import ArrayReader
    from icefloe.model.chunk_refs import VirtualRef
    from icefloe.model.located import Located
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import ArrayNode, Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.objects.snapshot_chunks import SnapshotChunks
    from icefloe.objects.uploads import Uploads
    from icefloe.storage.port import BytesLike

    Places = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]


class WorkingTree:
    """Reads and edits the nodes and chunks of a snapshot, in memory until they are committed.

    Threads and event loops may share a tree. Edits are made under its lock; readers take none
    (see `TreeState`). Paths are canonical unless a method says otherwise.
    """

    def __init__(
        self,
        context: Context,
        snapshot: Snapshot,
        changes: ChangeSet | None = None,
        *,
        read_only: bool = True,
    ) -> None:
        """Lay changes over a snapshot; a read-only tree shows them and refuses edits."""
        self.context = context
        self.read_only = read_only
        self.is_committed = False
        """Whether the changes were committed, after which the tree is read-only."""
        self.fork_points: set[str] = set()
        """When this tree was forked with uncommitted changes: the forks of these moments can be
        merged, for the tree has what they began with."""
        self.verify_chunks = context.settings.verify_chunks
        """Whether chunks are compared with their checksums when they are read."""
        self._state = TreeState(TreeView.of(context.files, snapshot, changes))
        self._packs = PendingPacks(context.chunk_files, self._state)

    # --- the state

    @property
    def lock(self) -> threading.RLock:
        """The lock under which the tree changes; hold it for several steps that must be one."""
        return self._state.lock

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot below the changes."""
        return self._state.view.snapshot

    @property
    def chunks(self) -> SnapshotChunks:
        """The chunks of that snapshot."""
        return self._state.view.chunks

    @property
    def changes(self) -> ChangeSet:
        """The uncommitted changes."""
        return self._state.view.changes

    def show(self, snapshot: Snapshot, changes: ChangeSet | None = None) -> None:
        """Replace the snapshot and the changes over it, both at once; no changes by default."""
        self._state.view = TreeView.of(self.context.files, snapshot, changes)

    def show_committed(self, snapshot: Snapshot) -> None:
        """Show a commit of this tree's changes, and refuse edits from now on."""
        self.read_only = True
        self.is_committed = True
        self.show(snapshot)

    @property
    def settings(self) -> Settings:
        """The settings of the repository that are in force."""
        return self.context.settings

    @property
    def reads_are_immediate(self) -> bool:
        """Whether the storage answers reads without waiting for a network."""
        return self.context.storage.capabilities.reads_are_immediate

    @property
    def gap_bytes(self) -> int:
        """The largest gap between two ranges of an object that are still fetched as one."""
        return gap_bytes(self.context.read_limits, is_immediate=self.reads_are_immediate)

    @property
    def virtual_sources(self) -> VirtualChunkResolver:
        """What the opener of the repository allows to be read outside of it."""
        return self.context.virtual

    def check_writable(self) -> None:
        """Raise ReadOnlyError if the tree is read-only."""
        if self.read_only:
            raise ReadOnlyError(
                f"Read only sessions cannot modify the repository: {self.why_read_only}"
            )

    @property
    def why_read_only(self) -> str:
        """Why nothing can be written, and what to do; for messages."""
        if self.is_committed:
            return (
                f"this session was committed as {self.snapshot.id}, and one session makes one "
                "commit; open the next with repo.writable_session(branch)"
            )
        return "this is a read-only session; open one with repo.writable_session(branch)"

    def portable_changes(self) -> ChangeSet:
        """A copy of the changes that means the same over another base, or beside other changes."""
        with self.lock:
            self._packs.write_all()
            view = self._state.view
            copied = view.changes.copy()
            copied.make_clears_explicit(view.chunks.table)
            return copied

    def discard(self, path: str) -> None:
        """Undo the changes of the node at a path and of all below it; moves stay."""
        with self.lock:
            self.check_writable()
            self.changes.discard(path)

    # --- nodes

    def get_node(self, path: str) -> Node | None:
        """The node at a path."""
        return self._state.view.changes.get(path)

    def get_array(self, path: str) -> ArrayNode:
        """The array at a path; raises NodeNotFoundError if there is none."""
        return self._state.view.array(path)

    def get_node_id(self, path: str) -> str:
        """The id of a node, which it keeps for life, also when it is moved."""
        node = self.get_node(path)
        if node is None:
            from icefloe.model.spelling import suggestion

            raise NodeNotFoundError(
                f"node not found: {path} in snapshot {self.snapshot.id}"
                f"{suggestion(path, self.node_paths(paths.ROOT))}",
                path,
            )
        return str(node.id)

    def document(self, path: str) -> bytes | None:
        """The zarr.json at a path, byte for byte as it was written."""
        view = self._state.view
        node = view.changes.get(path)
        return None if node is None else self.context.files.document(node, view.snapshot)

    def set_document(self, path: str, document: bytes) -> None:
        """Create a node or change its metadata."""
        with self.lock:
            self.check_writable()
            if self.document(path) != document:
                self.changes.set_document(path, document)

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it, if it exists."""
        with self.lock:
            self.check_writable()
            self.changes.delete(path)

    def node_paths(self, below: str) -> Sequence[str]:
        """Sorted paths of all nodes below a path."""
        with self.lock:
            return self.changes.paths_below(below)

    def array_paths(self) -> list[str]:
        """Sorted paths of all arrays."""
        nodes = ((path, self.get_node(path)) for path in (paths.ROOT, *self.node_paths(paths.ROOT)))
        return [path for path, node in nodes if node is not None and node.is_array]

    def move(self, from_path: str, to_path: str) -> None:
        """Move an array or group to another path; touches no manifest and no chunk (R3-09)."""
        with self.lock:
            self.check_writable()
            self.context.refs.check_move()
            self.changes.move(from_path, to_path)

    # --- reading chunks

    def locate(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """The reference of a chunk; None if it is not initialised or outside of the grid."""
        return self._state.view.locate(path, coords)

    async def locate_async(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """Like `locate`: here if all it needs is cached, else in a thread."""
        if not self.reads_are_immediate and not self._state.view.is_at_hand(path, coords):
            return await asyncio.to_thread(self.locate, path, coords)
        return self.locate(path, coords)

    def locate_chunks(self, path: str, coords: npt.NDArray[np.integer]) -> list[Located]:
        """The references of many chunks; those in no group are not initialised."""
        return self._state.view.locate_many(path, coords)

    def chunk_size(self, path: str, coords: tuple[int, ...]) -> int | None:
        """Number of bytes of an initialised chunk."""
        ref = self.locate(path, coords)
        return None if ref is None else size_of(ref)

    def get_chunk(
        self,
        path: str,
        coords: tuple[int, ...],
        byte_range: ByteRange = WHOLE,
        *,
        verify: bool | None = None,
    ) -> bytes | None:
        """The bytes of a chunk, or a part of them; None if it is not initialised.

        `verify` says whether the whole chunk is compared with its checksum; by default, as
        `verify_chunks` says.
        """
        ref = self.locate(path, coords)
        return None if ref is None else self.read_ref(path, coords, ref, byte_range, verify=verify)

    async def get_chunk_async(
        self, path: str, coords: tuple[int, ...], byte_range: ByteRange = WHOLE
    ) -> bytes | None:
        """Like `get_chunk`, without blocking the event loop."""
        ref = await self.locate_async(path, coords)
        if ref is None:
            return None
        read = self.context.chunk_files.read_async
        try:
            return await read(ref, byte_range, verify=self.verify_chunks)
        except DamagedChunkError as error:
            raise self._damaged(error, path, coords) from error

    def read_ref(
        self,
        path: str,
        coords: tuple[int, ...],
        ref: ChunkRef,
        byte_range: ByteRange = WHOLE,
        *,
        verify: bool | None = None,
    ) -> bytes:
        """The bytes of a chunk that was located, or a part of them."""
        verify = self.verify_chunks if verify is None else verify
        try:
            return self.context.chunk_files.read(ref, byte_range, verify=verify)
        except DamagedChunkError as error:
            raise self._damaged(error, path, coords) from error

    def read_chunks(
        self,
        path: str,
        coords: npt.NDArray[np.integer],
        buffers: Sequence[memoryview | None] | None = None,
        *,
        verify: bool | None = None,
    ) -> Iterator[FoundChunks]:
        """The bytes of many chunks, in any order; those in no group are not initialised.

        Args:
            path: Path of an array.
            coords: Coordinates of the chunks, (n, rank), none twice.
            buffers: See `BulkReader`.
            verify: Whether to compare the bytes with their checksums; by default, as
                `verify_chunks` says.
        """
        if len(coords) == 1 and buffers is None:
            return self._read_one(path, coords, verify=verify)
        located = self.locate_chunks(path, coords)
        return self.read_located(path, coords, located, buffers, verify=verify)

    def _read_one(
        self, path: str, coords: npt.NDArray[np.integer], *, verify: bool | None
    ) -> Iterator[FoundChunks]:
        """Like `read_chunks`, whose preparations a single chunk does not pay for."""
        data = self.get_chunk(path, tuple(coords[0].tolist()), verify=verify)
        if data is not None:
            yield FoundChunks(np.zeros(1, dtype=np.intp), Segments.of([data]))

    def read_located(
        self,
        path: str,
        coords: npt.NDArray[np.integer],
        located: Sequence[Located],
        buffers: Sequence[memoryview | None] | None = None,
        *,
        verify: bool | None = None,
    ) -> Iterator[FoundChunks]:
        """The bytes that references name, as `read_chunks` gives them.

        Args:
            path: Path of an array.
            coords: Coordinates of the chunks that the rows of `located` are about.
            located: References of chunks, or of parts of chunks.
            buffers: See `BulkReader`.
            verify: See `read_chunks`.
        """

        def damaged(row: int, what: str, key: str) -> DamagedChunkError:
            return self._damaged(DamagedChunkError(what, key), path, tuple(coords[row].tolist()))

        verify = self.verify_chunks if verify is None else verify
        context = self.context
        reader = BulkReader(
            context.chunk_files, context.read_limits, damaged, verify=verify, buffers=buffers
        )
        return reader.read(located)

    def _damaged(
        self, error: DamagedChunkError, path: str, coords: tuple[int, ...]
    ) -> DamagedChunkError:
        """An error about a chunk file, with the chunk and the snapshot that need it."""
        snapshot_id = str(self.snapshot.id)
        return DamagedChunkError(
            f"chunk {list(coords)} of {path} in snapshot {snapshot_id} is damaged: {error.message} "
            f"(chunk file {error.key}). Restore that file from a copy, or write the chunk again",
            error.key,
            path,
            coords,
            snapshot_id,
        )

    # --- writing chunks

    def set_chunk(self, path: str, coords: tuple[int, ...], data: BytesLike) -> None:
        """Write a chunk."""
        self._check_before_upload(path, coords, data)
        self._record(path, coords, self.context.chunk_files.write(data))
        if self._packs.is_due:
            self._packs.write_full()

    async def set_chunk_async(self, path: str, coords: tuple[int, ...], data: BytesLike) -> None:
        """Like `set_chunk`, without blocking the event loop."""
        self._check_before_upload(path, coords, data)
        await self._make_room()
        self._record(path, coords, await self.context.chunk_files.write_async(data))
        if self._packs.is_due:
            await asyncio.to_thread(self._packs.write_full)

    async def _make_room(self) -> None:
        """Wait until there is memory for pending chunks; thousands of tasks may wait at once."""
        while self._packs.is_due:
            await asyncio.to_thread(self._packs.write_full)

    def write_chunks(self, path: str, coords: npt.NDArray[np.integer], segments: Segments) -> None:
        """Write many chunks of an array; segment `i` is the chunk at `coords[i]`, none twice.

        Small chunks wait for a pack, full packs and large chunks are written at once, several at
        a time; the call returns when they are on the storage. If it fails, none of the chunks is
        set, and it can be tried again.
        """
        from icefloe.changes.pending import PendingChunks
        from icefloe.objects.bulk_writes import write_segments

        if len(coords) == 1 and len(segments) == 1:
            self.set_chunk(path, tuple(coords[0].tolist()), bytes(segments.piece(0)))
            return
        self.check_writable()
        places, segments = checked_segments(self._state.view.array(path), coords, segments)
        if len(places) == 0:
            return
        tables = write_segments(self.context.chunk_files, places, segments)
        with self.lock:
            # Checked again: while the bytes were written, others may have committed or resized.
            self.check_writable()
            node = self._state.view.array(path)
            check_all_in_grid(node, places)
            edits = self.changes.edits(node)
            for table in tables:
                edits.set_many(table)
                if isinstance(table, PendingChunks):
                    self._packs.add(table.nbytes)
        if self._packs.is_due:
            self._packs.write_full()

    def delete_chunk(self, path: str, coords: tuple[int, ...]) -> None:
        """Delete a chunk, initialised or not."""
        self._record(path, coords, None)

    def delete_chunks(self, path: str, coords: npt.NDArray[np.integer]) -> None:
        """Delete many chunks of an array, at coordinates (n, rank) within its grid, none twice."""
        if len(coords) == 0:
            return
        with self.lock:
            self.check_writable()
            node = self._state.view.array(path)
            self.changes.edits(node).delete_many(ChunkIndex.from_coords(coords)[0])

    def clear_chunks(self, path: str) -> None:
        """Delete all chunks of an array, if it exists."""
        with self.lock:
            self.check_writable()
            node = self.get_node(path)
            if node is not None and node.is_array:
                self.changes.clear_chunks(node)

    def settle_pending(self) -> None:
        """Write small chunks that wait to be packed now, which frees their memory."""
        with self.lock:
            self._packs.write_all()

    @contextmanager
    def packed(self) -> Iterator[tuple[ChangeSet, Uploads | None]]:
        """The changes without chunks that wait to be packed, to write a commit of them.

        Where a storage takes long to answer, packs are still being written, with what else is
        given to the uploads; they have ended when the block ends.
        """
        from icefloe.objects.uploads import Uploads

        files = self.context.chunk_files
        uploads = Uploads.where_it_helps(files.storage, *files.write_limits)
        with self.lock:
            if uploads is None:
                self._packs.write_all()
                yield self.changes, None
                return
            with self._packs.written_with(uploads) as changes:
                yield changes, uploads

    def _check_before_upload(self, path: str, coords: tuple[int, ...], data: BytesLike) -> None:
        """Refuse a chunk before its bytes become an object; small chunks do not, yet."""
        settings = self.context.chunk_files.settings
        if len(data) > max(settings.inline_up_to, settings.packed_up_to):
            self._writable_array(path, coords)

    def _writable_array(self, path: str, coords: tuple[int, ...]) -> ArrayNode:
        """The array of a chunk that may be written."""
        self.check_writable()
        node = self._state.view.array(path)
        if not in_grid(node, coords):
            raise InvalidInputError(
                f"invalid chunk index: {list(coords)} in {path}, whose chunk grid is "
                f"{list(node.array.grid_shape or ())}"
            )
        return node

    def _record(self, path: str, coords: tuple[int, ...], ref: ChunkRef | None) -> None:
        with self.lock:
            # Under the lock: while the bytes were written, others may have committed or resized.
            node = self._writable_array(path, coords)
            self.changes.edits(node).set(coords, ref)
            if isinstance(ref, PendingRef):
                self._packs.add(len(ref.data))

    # --- references

    def array_reader(self, path: str) -> ArrayReader:
        """A reader of all references of an array as they are now, whatever is written later."""
        with self.lock:
            return self._state.view.array_reader(path)

    def chunk_table(self, path: str) -> ArrayChunks | None:
        """All references of an array as columns; None if it has none."""
        with self.lock:
            return self._state.view.table(path)

    def chunk_tables(self, path: str) -> Iterator[ArrayChunks]:
        """All references of an array as columns, some manifests at a time, none twice."""
        return self.array_reader(path).tables()

    def chunk_coords(self, path: str) -> npt.NDArray[np.uint64]:
        """Coordinates (n, rank) of all initialised chunks of an array, in row-major order."""
        node = self._state.view.array(path)
        table = self.chunk_table(path)
        if table is None:
            return np.empty((0, node.array.rank), dtype=np.uint64)
        return table.index.coords()

    def set_virtual_ref(
        self,
        path: str,
        coords: tuple[int, ...],
        ref: VirtualRef,
        *,
        validate_container: bool = True,
    ) -> None:
        """Make a chunk a range of an object outside of the repository."""
        self._writable_array(path, coords)
        checked = self.context.virtual.check(ref, validate_container=validate_container)
        self._record(path, coords, checked)

    def set_chunk_refs(
        self, path: str, chunks: ArrayChunks | None, deleted: ChunkIndex | None = None
    ) -> None:
        """Set and delete many chunks at once, by references to bytes that are written already."""
        with self.lock:
            self.check_writable()
            node = self._state.view.array(path)
            for index in (None if chunks is None else chunks.index, deleted):
                if index is not None and len(index):
                    check_box(node, index.box)
            edits = self.changes.edits(node)
            if deleted is not None and len(deleted):
                edits.delete_many(deleted)
            if chunks is not None and len(chunks):
                edits.set_many(chunks)

    def rearrange_chunks(self, path: str, places: Places) -> None:
        """Give all chunks of an array other coordinates at once; those outside are dropped.

        Args:
            path: Path of an array.
            places: Returns new coordinates (n, rank) of chunks from their present ones, as a new
                array.
        """
        from icefloe.engine.tree.rearranging import rearrange

        with self.lock:
            self.check_writable()
            node = self._state.view.array(path)
            self._packs.write_all()
            table = self._state.view.table_with_hidden(path)
            if table is not None:
                rearrange(self.changes, node, table, places)

    # --- what leaves the process

    def written_chunks(self) -> dict[str, tuple[ArrayChunks | None, ChunkIndex | None]]:
        """References of the chunks that were written, and which ones were deleted, by array."""
        with self.lock:
            self.make_durable()
            edited = {}
            for node_id, edits in self.changes.chunks.items():
                node = self.changes.by_id(node_id)
                if node is not None and not edits.is_empty:
                    edited[node.path] = edits.own()
            return edited

    def make_durable(self) -> None:
        """Write pending chunks, and make sure that all that was written survives a power loss."""
        with self.lock:
            self._packs.write_all()
            self.context.storage.sync()

    def node_changes(self) -> ChangeSet:
        """A copy of the changes without those of chunks, but for arrays that were cleared."""
        with self.lock:
            nodes = self.changes.copy()
            nodes.linked = {}
            nodes.chunks = {
                node_id: _cleared(edits.rank)
                for node_id, edits in nodes.chunks.items()
                if edits.cleared
            }
            return nodes


def _cleared(rank: int) -> ChunkEdits:
    """Edits that delete all chunks of the base and do nothing else."""
    from icefloe.changes.chunk_edits import ChunkEdits

    edits = ChunkEdits(rank)
    edits.cleared = True
    return edits
