"""The working tree: nodes and chunks of a snapshot with the changes of a user on top."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.pending import PendingChunks
from icefloe.errors import DamagedChunkError, InvalidInputError, NodeNotFoundError, ReadOnlyError
from icefloe.files.bulk_reads import BulkReader
from icefloe.files.bulk_writes import write_segments
from icefloe.files.chunks import size_of
from icefloe.files.snapshot_chunks import SnapshotChunks
from icefloe.model import paths
from icefloe.model.byte_range import WHOLE, ByteRange
from icefloe.model.chunk_index import ChunkIndex, bounding_box, is_inside
from icefloe.model.chunk_refs import (
    ChunkKind,
    ChunkRef,
    InlineRef,
    NativeRef,
    PendingRef,
    VirtualRef,
)
from icefloe.model.located import Located
from icefloe.model.manifest import ArrayChunks
from icefloe.model.segments import FoundChunks, Segments
from icefloe.versioning.async_twin import async_twin
from icefloe.versioning.bulk_checks import checked_table
from icefloe.versioning.bulk_refs import GivenColumns, read_refs
from icefloe.versioning.chunk_batches import WINDOW_REFS, ArrayReader
from icefloe.versioning.chunk_names import ChunkNames, named
from icefloe.versioning.pending_packs import PendingPacks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.config.settings import Settings
    from icefloe.files.virtual import VirtualChunkResolver
    from icefloe.model.chunk_index import Box
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot
    from icefloe.model.virtual_spec import VirtualChunkSpec
    from icefloe.versioning.chunk_batches import ChunkBatch, ChunkBytes
    from icefloe.versioning.context import Context


class _View(NamedTuple):
    """A snapshot with changes laid over it; they only make sense together."""

    snapshot: Snapshot
    chunks: SnapshotChunks
    changes: ChangeSet

    def array(self, path: str) -> Node:
        """The array at a path; raises NodeNotFoundError."""
        node = self.changes.get(path)
        if node is None or node.array is None:
            what = "is a group" if node is not None else "does not exist"
            raise NodeNotFoundError(f"node not found: {path} {what}; expected an array", path)
        return node


class WorkingTree:
    """Reads and edits nodes and chunks. Threads and event loops may share it.

    Edits are made under a lock. Readers take none: they look at one view, which a commit or a
    rebase replaces as a whole, and find each edit in it made or not made, never half.
    """

    def __init__(self, context: Context, snapshot: Snapshot) -> None:
        """Start from a snapshot, without changes."""
        self._context = context
        self._lock = threading.RLock()
        self._packs = PendingPacks(context.chunk_files, lambda: self._changes, self._lock)
        self._verify_chunks = context.settings.verify_chunks
        self._show(snapshot)

    def _show(self, snapshot: Snapshot, changes: ChangeSet | None = None) -> None:
        """Show a snapshot and the changes that are laid over it, if any."""
        chunks = SnapshotChunks(self._context.files, snapshot)
        self._view = _View(snapshot, chunks, changes or ChangeSet(snapshot.nodes))

    @property
    def _snapshot(self) -> Snapshot:
        return self._view.snapshot

    @property
    def _changes(self) -> ChangeSet:
        return self._view.changes

    @property
    def settings(self) -> Settings:
        """What holds under the configuration."""
        return self._context.settings

    @property
    def read_only(self) -> bool:
        """Whether nothing can be edited."""
        return True

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

    # --- nodes

    def get_node(self, path: str) -> Node | None:
        """The node at a canonical path, as the session sees it."""
        return self._changes.get(path)

    def get_node_id(self, path: str) -> str:
        """The id of a node, which it keeps for life, also when it is moved."""
        return str(self._node(paths.canonical(path)).id)

    def document(self, path: str) -> bytes | None:
        """The zarr.json at a path, byte for byte as it was written."""
        node = self._changes.get(path)
        return None if node is None else self._context.files.document(node)

    def set_document(self, path: str, document: bytes) -> None:
        """Create a node or change its metadata."""
        with self._lock:
            self._check_writable()
            if self.document(path) != document:
                self._changes.set_document(path, document)

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it, if it exists."""
        with self._lock:
            self._check_writable()
            self._changes.delete(path)

    def delete_chunks(self, path: str) -> None:
        """Delete all chunks of an array, if it exists."""
        with self._lock:
            self._check_writable()
            node = self._changes.get(path)
            if node is not None and node.is_array:
                self._changes.clear_chunks(node)

    def node_paths(self, below: str) -> Sequence[str]:
        """Sorted paths of all nodes below a path."""
        with self._lock:
            return self._changes.paths_below(below)

    def move(self, from_path: str, to_path: str) -> None:
        """Give an array or group another path; touches no manifest and no chunk (R3-09)."""
        with self._lock:
            self._check_writable()
            self._changes.move(paths.canonical(from_path), paths.canonical(to_path))

    move_async = async_twin(move)
    get_node_id_async = async_twin(get_node_id)

    def _node(self, path: str) -> Node:
        node = self._changes.get(path)
        if node is None:
            raise NodeNotFoundError(f"node not found: {path} in {self!r}", path)
        return node

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyError(
                "Read only sessions cannot modify the repository: this is a read-only store; "
                "open a writable_session on a branch"
            )

    # --- chunks

    def locate(self, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        """Where the bytes of a chunk are; None if it is not initialised or outside the grid."""
        return self._locate(self._view, path, coords)

    @staticmethod
    def _locate(view: _View, path: str, coords: tuple[int, ...]) -> ChunkRef | None:
        node = view.array(path)
        if not _in_grid(node, coords):
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
        view = self._view
        ref = self._locate(view, path, coords)
        if ref is None:
            return None
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
        self._record(path, coords, await self._context.chunk_files.write_async(data))
        if self._packs.is_due:
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
        view = self._view
        node = view.array(path)
        wanted, rows = _within_grid(node, coords)
        if len(wanted) == 0:
            return iter(())
        edits = view.changes.chunks.get(node.id)
        located, left = ([], np.arange(len(wanted))) if edits is None else edits.find_many(wanted)
        if len(left) and node.manifests:
            base = view.chunks.find_many(node, wanted[left])
            located += [Located(left[part.rows], part.refs) for part in base]
        if rows is not None:
            located = [Located(rows[part.rows], part.refs) for part in located]
        names = ChunkNames(path, coords, str(view.snapshot.id))
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
        wanted, segments = _checked(self._view.array(path), coords, segments)
        if len(wanted) == 0:
            return
        tables = write_segments(self._context.chunk_files, wanted, segments)
        with self._lock:
            # Checked again: while the bytes were written, others may have committed or resized.
            self._check_writable()
            node = self._view.array(path)
            _check_all_in_grid(node, wanted)
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

    def chunk_table(self, path: str) -> ArrayChunks | None:
        """All chunk references of an array, as columns; None if it has none."""
        with self._lock:
            view = self._view
            node = view.array(path)
            edits = view.changes.chunks.get(node.id)
            table = view.chunks.table(node) if node.manifests else None
            return table if edits is None else edits.apply(table)

    def chunk_tables(self, array_path: str) -> Iterator[ArrayChunks]:
        """All chunk references of an array as columns, some manifests at a time, none twice.

        It shows the session as it was at the call, whatever is written meanwhile.
        """
        return self._array_reader(array_path).tables()

    def chunk_coords(self, path: str) -> npt.NDArray[np.uint64]:
        """Coordinates (n, rank) of all initialised chunks of an array, in row-major order."""
        node = self._view.array(path)
        assert node.array is not None
        table = self.chunk_table(path)
        if table is None:
            return np.empty((0, node.array.rank), dtype=np.uint64)
        return table.index.coords()

    async def chunk_coordinates(
        self, array_path: str, batch_size: int = 1000
    ) -> AsyncIterator[tuple[int, ...]]:
        """Coordinates of all initialised chunks, one by one."""
        tables = self._array_reader(array_path).tables(max(batch_size, WINDOW_REFS))
        while (table := await asyncio.to_thread(next, tables, None)) is not None:
            coords = table.index.coords()
            for start in range(0, len(coords), batch_size):
                for row in coords[start : start + batch_size].tolist():
                    yield tuple(row)

    def chunk_batches(self, array_path: str, batch_size: int = 100_000) -> Iterator[ChunkBatch]:
        """All chunk references of an array as columns, batch by batch.

        Reads some manifests at a time: memory follows `batch_size`, not the array. It shows the
        session as it was at the call, whatever is written meanwhile. The chunks of a small array
        come in row-major order; those of an array with several manifests, by manifest.
        """
        containers = self._context.settings.virtual_chunk_containers
        return self._array_reader(array_path).batches(batch_size, containers)

    def chunk_count(self, array_path: str, kind: ChunkKind | None = None) -> int:
        """Number of initialised chunks of an array, of one kind or of all.

        To count all takes no look into manifests, unless edits reach into them.
        """
        return self._array_reader(array_path).count(kind)

    def chunk_bytes(self, array_path: str) -> ChunkBytes:
        """Number of bytes of all chunks of an array, by where they are kept."""
        return self._array_reader(array_path).bytes()

    def _array_reader(self, array_path: str) -> ArrayReader:
        with self._lock:
            view = self._view
            node = view.array(paths.canonical(array_path))
            edits = view.changes.chunks.get(node.id)
            copied = None if edits is None else edits.copy()
            return ArrayReader(view.snapshot, view.chunks, node, copied)

    def chunk_type(self, array_path: str, chunk_coordinates: Sequence[int]) -> ChunkKind:
        """Where a chunk is kept."""
        match self.locate(paths.canonical(array_path), tuple(chunk_coordinates)):
            case PendingRef():
                return ChunkKind.NATIVE
            case InlineRef():
                return ChunkKind.INLINE
            case NativeRef():
                return ChunkKind.NATIVE
            case VirtualRef():
                return ChunkKind.VIRTUAL
            case None:
                return ChunkKind.UNINITIALIZED

    chunk_type_async = async_twin(chunk_type)

    def set_virtual_ref(
        self,
        path: str,
        coords: tuple[int, ...],
        ref: VirtualRef,
        *,
        validate_container: bool = True,
    ) -> None:
        """Let a chunk be a range of an object outside of the repository."""
        self._check_chunk(path, coords)
        checked = self._context.virtual.check(ref, validate_container=validate_container)
        self._record(path, coords, checked)

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec] | object | None = None,
        *,
        coords: npt.ArrayLike | None = None,
        start: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
        locations: Any = None,
        location_codes: npt.ArrayLike | None = None,
        offsets: Any = None,
        lengths: Any = None,
        etags: Any = None,
        last_modified: Any = None,
        validate_containers: bool = True,
    ) -> list[tuple[int, ...]] | None:
        """Let many chunks of an array be ranges of objects outside of the repository.

        Give a list of VirtualChunkSpec, or columns, or an Arrow table (anything with the Arrow
        PyCapsule interface) whose columns have the names of the arguments below. Where
        coordinates repeat, the later row wins. If anything is wrong, nothing is set.

        Args:
            array_path: Path of the array.
            chunks: A list of VirtualChunkSpec, or an Arrow table.
            coords: Coordinates of the chunks, (n, rank); in a table, lists.
            start: Instead of `coords`: first chunk of a box that the rows fill in row-major order;
                zeros if not given.
            shape: How many chunks that box has along each dimension. An empty location leaves a
                chunk of it out.
            locations: URLs of the objects: a list, a numpy or Arrow array (also
                dictionary-encoded), or one URL for all chunks.
            location_codes: For each chunk the number of its location; then `locations`, `etags`
                and `last_modified` have an entry for each distinct object instead.
            offsets: Where the chunks begin in the objects, in bytes; one number may stand for all.
            lengths: Their numbers of bytes; one number may stand for all.
            etags: Etags of the objects; None or empty where unknown, one may stand for all.
            last_modified: Times since which the objects must not have changed: datetimes with a
                timezone, datetime64 or Arrow timestamps in UTC, or seconds since 1970; one may
                stand for all.
            validate_containers: Leave out locations in no virtual chunk container of the
                repository's configuration.

        Returns:
            The coordinates of chunks that were left out because no container has their location;
            None if there are none.
        """
        path = paths.canonical(array_path)
        self._check_writable()
        node = self._view.array(path)
        given = GivenColumns(
            coords=coords,
            start=start,
            shape=shape,
            locations=locations,
            location_codes=location_codes,
            offsets=offsets,
            lengths=lengths,
            etags=etags,
            last_modified=last_modified,
        )
        table, refused = checked_table(
            read_refs(chunks, given, path),
            node,
            self._context.virtual,
            validate_containers=validate_containers,
        )
        if table is not None:
            self.set_chunk_refs(path, table)
        return refused or None

    set_virtual_refs_async = async_twin(set_virtual_refs)

    def set_chunk_refs(
        self, path: str, chunks: ArrayChunks | None, deleted: ChunkIndex | None = None
    ) -> None:
        """Set and delete many chunks at once, by references to bytes that are written already."""
        with self._lock:
            self._check_writable()
            node = self._view.array(paths.canonical(path))
            indexes = (None if chunks is None else chunks.index, deleted)
            for index in indexes:
                if index is not None and len(index):
                    _check_box(node, index.box)
            edits = self._changes.edits(node)
            if deleted is not None and len(deleted):
                edits.delete_many(deleted)
            if chunks is not None and len(chunks):
                edits.set_many(chunks)

    @property
    def virtual_sources(self) -> VirtualChunkResolver:
        """What whoever opened the repository allowed to be read outside of it."""
        return self._context.virtual

    def all_virtual_chunk_locations(self) -> list[str]:
        """URLs of all virtual chunks, of each reference one, array by array."""
        found: list[str] = []
        for path in ("/", *self.node_paths("/")):
            node = self.get_node(path)
            if node is not None and node.is_array:
                for urls in self._array_reader(path).virtual_locations():
                    found += urls
        return found

    all_virtual_chunk_locations_async = async_twin(all_virtual_chunk_locations)

    def shift_array(self, array_path: str, chunk_offset: Sequence[int]) -> None:
        """Move all chunks of an array by whole chunks; what leaves the grid is dropped.

        Chunks that nothing moves into read as the fill value.
        """
        offset = np.array(list(chunk_offset), dtype=np.int64)

        def shifted(coords: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            if coords.shape[1] != len(offset):
                raise InvalidInputError(
                    f"{array_path} has {coords.shape[1]} dimensions; found {len(offset)} offsets"
                )
            moved: npt.NDArray[np.int64] = coords + offset
            return moved

        self.rearrange_chunks(paths.canonical(array_path), shifted)

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[tuple[int, ...]], Sequence[int] | None],
        backward: Callable[[tuple[int, ...]], Sequence[int] | None] | None = None,  # noqa: ARG002
    ) -> None:
        """Give each chunk the index that `forward` says; None drops the chunk.

        Chunks that nothing moves into read as the fill value, so `backward`, with which the
        official package clears them, is accepted and not needed.
        """

        def reindexed(coords: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            outside = [-1] * coords.shape[1]
            targets = [forward(tuple(row)) for row in coords.tolist()]
            rows = [outside if target is None else list(target) for target in targets]
            return np.array(rows, dtype=np.int64).reshape(coords.shape)

        self.rearrange_chunks(paths.canonical(array_path), reindexed)

    def rearrange_chunks(
        self, path: str, place: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
    ) -> None:
        """Give all chunks of an array other coordinates at once; those outside are dropped.

        Args:
            path: Canonical path of an array.
            place: New coordinates (n, rank) of chunks from their present ones, as a new array.
        """
        with self._lock:
            self._check_writable()
            node = self._view.array(path)
            assert node.array is not None
            self._packs.write_all()
            table = self.chunk_table(path)
            if table is None:
                return
            old = table.index.coords().astype(np.int64)
            coords = place(old)
            inside = (coords >= 0).all(axis=1)
            if node.array.grid_shape is not None:
                inside &= (coords < np.array(node.array.grid_shape, dtype=np.int64)).all(axis=1)
            rows = np.flatnonzero(inside)
            if len(np.unique(coords[rows], axis=0)) != len(rows):
                raise InvalidInputError(f"two chunks of {path} would get the same index")
            moves = (coords != old).any(axis=1) | ~inside
            if not moves.any():
                return
            edits = self._changes.edits(node)
            if node.manifests:
                # What stays is not touched: only manifests with chunks that move change.
                edits.delete_many(ChunkIndex.from_coords(old[moves])[0])
                rows = np.flatnonzero(inside & moves)
            else:
                edits.clear()
            if len(rows):
                edits.set_many(ArrayChunks.from_columns(coords[rows], table.refs.take(rows)))

    def _check_chunk(self, path: str, coords: tuple[int, ...]) -> Node:
        """The array of a chunk that may be written."""
        self._check_writable()
        node = self._view.array(path)
        if not _in_grid(node, coords):
            assert node.array is not None
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


def _within_grid(
    node: Node, coords: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp] | None]:
    """Coordinates (n, rank) in the chunk grid, and which ones they are; None if they are all."""
    assert node.array is not None
    if coords.ndim != 2 or coords.shape[1] != node.array.rank:
        raise InvalidInputError(
            f"chunks of {node.path} have coordinates of the shape (n, {node.array.rank}), "
            f"found {coords.shape}"
        )
    largest = np.iinfo(np.int64).max
    grid = node.array.grid_shape or (largest,) * node.array.rank
    inside = is_inside(coords, (0,) * node.array.rank, grid)
    if inside.all():
        return coords.astype(np.uint64), None
    rows = np.flatnonzero(inside)
    return coords[rows].astype(np.uint64), rows


def _check_all_in_grid(node: Node, coords: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Coordinates (n, rank) of chunks that may be written."""
    wanted, rows = _within_grid(node, coords)
    if rows is not None:
        assert node.array is not None
        outside = np.setdiff1d(np.arange(len(coords)), rows)
        raise InvalidInputError(
            f"invalid chunk index: {coords[outside[0]].tolist()} in {node.path}, whose chunk grid "
            f"is {list(node.array.grid_shape or ())}"
        )
    return wanted


def _in_octets(segments: Segments) -> Segments:
    """Segments whose buffer counts bytes, also if it was given as numbers of another size."""
    if isinstance(segments.data, bytes | bytearray):
        return segments
    try:
        octets = memoryview(segments.data).cast("B")
    except TypeError as error:
        raise InvalidInputError(f"the buffer of segments must be contiguous: {error}") from None
    return Segments(octets, segments.offsets, segments.lengths)


def _checked(
    node: Node, coords: npt.NDArray[np.integer], segments: Segments
) -> tuple[npt.NDArray[np.uint64], Segments]:
    """Chunks that may be written, in row-major order."""
    wanted = _check_all_in_grid(node, coords)
    if len(wanted) != len(segments):
        raise InvalidInputError(
            f"expected a segment for each of {len(wanted)} chunks of {node.path}, found "
            f"{len(segments)}"
        )
    if len(wanted) == 0:
        return wanted, segments
    segments = _in_octets(segments)
    size = len(segments.data)
    lowest = min(int(segments.offsets.min()), int(segments.lengths.min()))
    if lowest < 0 or int((segments.offsets + segments.lengths).max()) > size:
        raise InvalidInputError(f"segments of chunks of {node.path} lie outside of their buffer")
    linear = bounding_box(wanted).linearize(wanted)
    if not (linear[1:] > linear[:-1]).all():
        order = np.argsort(linear, kind="stable")
        wanted, segments, linear = wanted[order], segments.take(order), linear[order]
        twice = np.flatnonzero(linear[1:] == linear[:-1])
        if len(twice):
            raise InvalidInputError(
                f"chunk {wanted[twice[0]].tolist()} of {node.path} is given twice"
            )
    return wanted, segments


def _check_box(node: Node, box: Box) -> None:
    if not _in_grid(node, tuple(upper - 1 for upper in box.upper)):
        assert node.array is not None
        raise InvalidInputError(
            f"invalid chunk index: chunks {box.lower} to {box.upper} of {node.path} lie outside "
            f"of its grid {node.array.grid_shape}"
        )


def _in_grid(node: Node, coords: tuple[int, ...]) -> bool:
    assert node.array is not None
    grid = node.array.grid_shape
    if grid is None:
        return len(coords) == node.array.rank
    if len(coords) != len(grid):
        return False
    return all(map(operator.lt, coords, grid)) and min(coords, default=0) >= 0
