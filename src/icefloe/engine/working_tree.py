"""The working tree: a snapshot with the changes of a user on top, with its tables of references."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.engine.async_twin import async_twin
from icefloe.engine.chunk_batches import WINDOW_REFS, ArrayReader
from icefloe.engine.chunk_tree import ChunkTree
from icefloe.engine.grid_checks import check_box
from icefloe.engine.user_references import user_references
from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.chunk_refs import ChunkKind, InlineRef, NativeRef, PendingRef, VirtualRef
from icefloe.model.manifest import ArrayChunks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    import numpy.typing as npt

    from icefloe.engine.chunk_batches import ChunkBatch, ChunkBytes
    from icefloe.model.virtual_spec import VirtualChunkSpec
    from icefloe.objects.foreign import VirtualChunkResolver


class WorkingTree(ChunkTree):
    """Lists, sets and rearranges references of chunks, many at a time."""

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
        columns = {
            "coords": coords,
            "start": start,
            "shape": shape,
            "locations": locations,
            "location_codes": location_codes,
            "offsets": offsets,
            "lengths": lengths,
            "etags": etags,
            "last_modified": last_modified,
        }
        table, refused = user_references(
            chunks, columns, node, self._context.virtual, validate_containers=validate_containers
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
                    check_box(node, index.box)
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
