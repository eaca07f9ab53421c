"""The Zarr face of a session: a `zarr.abc.store.Store` whose keys are the session's nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import SyncMixin

from icefloe.engine.async_twin import async_twin
from icefloe.errors import (
    InvalidInputError,
    InvalidTypeError,
    NodeNotFoundError,
    ReadOnlyStoreError,
    StoreKeyNotFoundError,
)
from icefloe.model.byte_range import WHOLE, ByteRange
from icefloe.model.paths import ROOT, check_canonical
from icefloe.zarr_store.acceleration import enable_by_default
from icefloe.zarr_store.keys import resolve
from icefloe.zarr_store.tree_store import TreeStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from datetime import datetime

    import numpy.typing as npt
    from zarr.core.common import BytesLike

    from icefloe.engine.port import Tree
    from icefloe.engine.tree.chunk_batches import ChunkBatch
    from icefloe.model.virtual_spec import VirtualChunkSpec
    from icefloe.session import ForkSession, Session, TreeSession
    from icefloe.zarr_store.listing import KeyListing


class IcefloeStore(TreeStore, SyncMixin):
    """A session as a Zarr store, for zarr, xarray, dask and other libraries that use Zarr stores.

    `session.store` creates one. All stores of a session are views of the same state: all show what
    one writes, and `store.session.commit(...)` commits it. Reading and writing work from any thread
    and any event loop, and on stores that Zarr considers closed.

    >>> import icefloe, zarr
    >>> repo = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> store = repo.writable_session("main").store
    >>> array = zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4")
    >>> array[:] = [1, 2, 3, 4]
    >>> sorted(store.list())
    ['a/c/0', 'a/c/1', 'a/zarr.json', 'zarr.json']
    >>> _ = store.session.commit("an array")
    """

    def __init__(self, session: TreeSession, *, read_only: bool | None = None) -> None:
        """Wrap a session; use `session.store` instead."""
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        self._session = session
        self._is_open = True
        enable_by_default()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        enable_by_default()

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a store, which is already open."""
        return cls(*args, **kwargs)

    @property
    def session(self) -> Session | ForkSession:
        """The session or fork that this store shows."""
        return cast("Session | ForkSession", self._session)  # there are no others

    @property
    def tree(self) -> Tree:
        """The working tree of that session."""
        return self._session.tree

    def with_read_only(self, read_only: bool = False) -> IcefloeStore:  # noqa: FBT001, FBT002
        """Another store of the same session, which Zarr still has to open."""
        store = type(self)(self._session, read_only=read_only)
        store.close()
        return store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IcefloeStore) and self._session == other._session

    __hash__ = None  # type: ignore[assignment]  # like the stores of zarr itself

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._session!r}, read_only={self.read_only})"

    def __str__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def supports_writes(self) -> bool:
        """True: a store writes unless it is read-only."""
        return True

    @property
    def supports_deletes(self) -> bool:
        """True."""
        return True

    @property
    def supports_listing(self) -> bool:
        """True."""
        return True

    @property
    def supports_partial_writes(self) -> Literal[False]:
        """False: a chunk is always written completely."""
        return False

    @property
    def supports_consolidated_metadata(self) -> bool:
        """False: a snapshot contains all documents anyway."""
        return False

    @property
    def _supports_sync_io(self) -> bool:
        """Whether Zarr's pipelines should prefer the synchronous methods (newer than Zarr 3.1).

        Only where reads do not wait for a network: there, many at once need the event loop.
        """
        return self.tree.reads_are_immediate

    def check_writable(self) -> None:
        """Raise ReadOnlyStoreError unless this store can be written to."""
        if self._read_only or self.tree.read_only:
            why = (
                self.tree.why_read_only
                if self.tree.read_only
                else "the store was opened in read-only mode and does not support writing; open "
                "it again, or call store.with_read_only(False)"
            )
            raise ReadOnlyStoreError(f"cannot write to a read-only store: {why}")

    # Reading

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """The value of a key or part of it; None if it does not exist.

        Raises NodeNotFoundError for a chunk of an array that does not exist.
        """
        part = _byte_range(byte_range)
        target = resolve(key, self.tree)
        if target is None:
            return None
        path, coords = target
        if coords is None:
            return _buffer(_cut(self.tree.document(path), part), prototype)
        return _buffer(await self.tree.get_chunk_async(path, coords, part), prototype)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Like `get`, for callers without an event loop."""
        part = _byte_range(byte_range)
        target = resolve(key, self.tree)
        if target is None:
            return None
        path, coords = target
        if coords is None:
            value = _cut(self.tree.document(path), part)
        else:
            value = self.tree.get_chunk(path, coords, part)
        return _buffer(value, prototype or default_buffer_prototype())

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Many values or parts of values, in the requested order."""
        settings = self.tree.settings
        limit = asyncio.Semaphore(
            min(settings.get_partial_values_concurrency, settings.max_concurrent_requests)
        )

        async def get(key: str, byte_range: ByteRequest | None) -> Buffer | None:
            async with limit:
                return await self.get(key, prototype, byte_range)

        return list(await asyncio.gather(*(get(*each) for each in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        target = resolve(key, self.tree)
        if target is None:
            return False
        path, coords = target
        if coords is None:
            return self.tree.get_node(path) is not None
        try:
            return await self.tree.locate_async(path, coords) is not None
        except NodeNotFoundError:
            return False

    async def getsize(self, key: str) -> int:
        """Number of bytes of a key's value, found without reading it."""
        target = resolve(key, self.tree)
        size = None if target is None else self._size(*target)
        if size is None:
            raise StoreKeyNotFoundError(f"the store has no value under {key!r}", key)
        return size

    def _size(self, path: str, coords: tuple[int, ...] | None) -> int | None:
        if coords is None:
            document = self.tree.document(path)
            return None if document is None else len(document)
        try:
            return self.tree.chunk_size(path, coords)
        except NodeNotFoundError:
            return None

    async def getsize_prefix(self, prefix: str) -> int:
        """Number of bytes of all values below a node or in a folder of chunks."""
        from icefloe.zarr_store.listing import chunk_folders, folder_path, size_below, size_in

        path = folder_path(prefix)
        if self.tree.get_node(path) is not None or path == ROOT:
            return size_below(self.tree, path)
        folders = list(chunk_folders(self.tree, path))
        if not folders:
            raise _bad_prefix(prefix)
        return sum(size_in(self.tree, array_path, start) for array_path, _, start in folders)

    # Writing

    async def set(self, key: str, value: Buffer) -> None:
        """Set the value of a key: a node's document, or a chunk of an existing array."""
        path, coords = self._to_write(key, value)
        if coords is None:
            self.tree.set_document(path, value.to_bytes())
        else:
            await self.tree.set_chunk_async(path, coords, _view(value))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Like `set`, for callers without an event loop."""
        path, coords = self._to_write(key, value)
        if coords is None:
            self.tree.set_document(path, value.to_bytes())
        else:
            self.tree.set_chunk(path, coords, _view(value))

    def _to_write(self, key: str, value: Buffer) -> tuple[str, tuple[int, ...] | None]:
        """The node or chunk that a key names, if it may be set."""
        self.check_writable()
        if not isinstance(value, Buffer):
            raise InvalidTypeError(
                f"{type(self).__name__}.set(): `value` must be a Buffer instance. "
                f"Got an instance of {type(value)} instead."
            )
        target = resolve(key, self.tree)
        if target is None:
            raise InvalidInputError(
                f"cannot set {key!r}: metadata of Zarr 2 cannot be stored; use zarr_format=3"
            )
        path, coords = target
        if coords is None:
            check_canonical(path)
        return path, coords

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Set a key unless it exists; then the value is not even validated."""
        self.check_writable()
        if not await self.exists(key):
            await self.set(key, value)

    async def set_partial_values(
        self, key_start_values: Iterable[tuple[str, int, BytesLike]]
    ) -> None:
        """Not possible: a chunk is always written completely."""
        raise NotImplementedError("IcefloeStore does not support partial writes")

    # Deleting

    async def delete(self, key: str) -> None:
        """Remove a chunk, or with a node's document the node and everything below it.

        A missing key is not an error, but the array of a chunk must exist.
        """
        self.delete_sync(key)

    def delete_sync(self, key: str) -> None:
        """Like `delete`, for callers without an event loop."""
        self.check_writable()
        target = resolve(key, self.tree)
        if target is None:
            return
        path, coords = target
        if coords is None:
            self.tree.delete_node(path)
        elif self._may_exist(path, coords):
            self.tree.delete_chunk(path, coords)

    def _may_exist(self, path: str, coords: tuple[int, ...]) -> bool:
        """Whether an array's grid has a chunk; Zarr also deletes keys that cannot exist."""
        node = self.tree.get_node(path)
        grid = None if node is None or not node.is_array else node.array.grid_shape
        if grid is None:
            return True
        return len(grid) == len(coords) and all(map(int.__lt__, coords, grid))

    async def delete_dir(self, prefix: str) -> None:
        """Remove a node and everything below it, or all chunks in a folder, if they exist."""
        from icefloe.zarr_store.listing import chunk_folders, chunks_in, folder_path

        self.check_writable()
        path = folder_path(prefix)
        folders = list(chunk_folders(self.tree, path))
        self.tree.delete_node(path)
        for array_path, _, coords in folders:
            if coords:
                self.tree.delete_chunks(array_path, chunks_in(self.tree, array_path, coords))
            else:
                self.tree.clear_chunks(array_path)

    async def clear(self) -> None:
        """Remove all nodes of the session; the repository's history stays."""
        self.sync_clear()

    def sync_clear(self) -> None:
        """Like `clear`, for callers without an event loop."""
        self.check_writable()
        self.tree.delete_node(ROOT)

    # Listing

    def list(self) -> KeyListing:
        """All keys."""
        from icefloe.zarr_store.listing import KeyListing, keys_below

        return KeyListing(keys_below(self.tree, ROOT))

    def list_prefix(self, prefix: str) -> KeyListing:
        """All keys of a node and of everything below it.

        Raises InvalidInputError, immediately, if there is no such node.
        """
        from icefloe.zarr_store.listing import KeyListing, folder_path, keys_below

        path = folder_path(prefix)
        if path != ROOT and self.tree.get_node(path) is None:
            raise _bad_prefix(prefix)
        return KeyListing(keys_below(self.tree, path))

    def list_dir(self, prefix: str) -> KeyListing:
        """Names of the immediate members of a node or of a folder of chunks."""
        from icefloe.zarr_store.listing import KeyListing, folder_path, names_in

        return KeyListing(names_in(self.tree, folder_path(prefix)))

    async def is_empty(self, prefix: str) -> bool:
        """Whether a folder has no keys."""
        from icefloe.zarr_store.listing import chunk_folders, chunks_in, folder_path

        path = folder_path(prefix)
        tree = self.tree
        if tree.get_node(path) is not None or tree.node_paths(path):
            return False
        return not any(
            len(chunks_in(tree, array_path, coords))
            for array_path, _, coords in chunk_folders(tree, path)
        )

    # Virtual chunks

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Set a virtual chunk: a range of an object outside the repository.

        Args:
            key: the chunk's key, e.g. `array/c/0/0`.
            location: URL of the object.
            offset: offset of the chunk in the object, in bytes.
            length: length of the chunk, in bytes.
            checksum: the object's etag, or a time since which it must not have changed.
            validate_container: raise an error for a location in no virtual chunk container of the
                repository's configuration.
        """
        from icefloe.model.virtual_spec import virtual_ref

        self.check_writable()
        target = resolve(key, self.tree)
        path, coords = (None, None) if target is None else target
        if path is None or coords is None:
            raise InvalidInputError(f"invalid zarr key format {key!r}: expected a chunk's key")
        reference = virtual_ref(location, offset, length, checksum)
        self.tree.set_virtual_ref(path, coords, reference, validate_container=validate_container)

    async def set_virtual_ref_async(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Like `set_virtual_ref`."""
        self.set_virtual_ref(
            key,
            location,
            offset=offset,
            length=length,
            checksum=checksum,
            validate_container=validate_container,
        )

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> Sequence[tuple[int, ...]] | None:
        """Set many virtual references of one array, from a list or an Arrow table.

        Returns the coordinates of those that are in no virtual chunk container and were skipped;
        None if there are none. `Session.set_virtual_refs` also takes columns.
        """
        self.check_writable()
        return self._session.set_virtual_refs(
            array_path, chunks, validate_containers=validate_containers
        )

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: Sequence[int],
        locations: Any,
        offsets: npt.ArrayLike,
        lengths: npt.ArrayLike,
        *,
        validate_containers: bool = True,
        arr_offset: Sequence[int] | None = None,
        checksum: str | datetime | None = None,
    ) -> Sequence[tuple[int, ...]] | None:
        """Set virtual references of a box of chunks, given as columns in row-major order.

        Args:
            array_path: Path of the array.
            chunk_grid_shape: How many chunks the box has along each dimension.
            locations: URLs of the objects; an empty one skips a chunk.
            offsets: Offsets of the chunks in the objects, in bytes.
            lengths: Lengths of the chunks, in bytes.
            validate_containers: Skip locations in no virtual chunk container.
            arr_offset: First chunk of the box; the first of the array if not given.
            checksum: Etag of all objects, or a time since which they must not have changed.

        Returns:
            The coordinates of chunks that were skipped because no container has their location;
            None if there are none.
        """
        self.check_writable()
        is_time = not (checksum is None or isinstance(checksum, str))
        return self._session.set_virtual_refs(
            array_path,
            start=arr_offset,
            shape=chunk_grid_shape,
            locations=locations,
            offsets=offsets,
            lengths=lengths,
            etags=None if is_time else checksum,
            last_modified=checksum if is_time else None,
            validate_containers=validate_containers,
        )

    set_virtual_refs_async = async_twin(set_virtual_refs)
    set_virtual_refs_arr_async = async_twin(set_virtual_refs_arr)

    async def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncGenerator[ChunkBatch]:
        """All chunk references of an array as columns, batch by batch.

        A batch is a tuple (coords, kinds, paths, offsets, lengths, inlined); see
        `Session.chunk_batches`.
        """
        batches = self._session.chunk_batches(array_path, batch_size)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch


IcechunkStore = IcefloeStore


def _byte_range(request: ByteRequest | None) -> ByteRange:
    match request:
        case None:
            return WHOLE
        case RangeByteRequest(start, end) if start >= 0:
            return ByteRange(start, max(0, end - start))
        case OffsetByteRequest(offset) if offset >= 0:
            return ByteRange(offset)
        case SuffixByteRequest(suffix) if suffix >= 0:
            # "The last 0 bytes" is an empty part, but -0 would be the whole.
            return ByteRange(-suffix) if suffix else ByteRange(0, 0)
    raise InvalidInputError(f"Unexpected byte_range, got {request!r}")


def _bad_prefix(prefix: str) -> InvalidInputError:
    return InvalidInputError(
        f"bad key prefix {prefix!r}: only prefixes that are the path of an array or group are "
        "allowed"
    )


def _cut(document: bytes | None, part: ByteRange) -> bytes | None:
    if document is None or part is WHOLE:
        return document
    start, length = part.resolve(len(document))
    return document[start : start + length]


def _view(value: Buffer) -> memoryview:
    """The bytes of a chunk, not copied: they are written or copied before `set` returns."""
    return np.asarray(value.as_numpy_array()).data.cast("B")


def _buffer(value: bytes | None, prototype: BufferPrototype) -> Buffer | None:
    return None if value is None else prototype.buffer.from_bytes(value)
