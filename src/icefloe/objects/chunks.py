"""Reads and writes the bytes of chunks, wherever a reference says they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

from icefloe.errors import DamagedChunkError, ObjectNotFoundError, StorageError
from icefloe.model.byte_range import WHOLE, ByteRange
from icefloe.model.chunk_refs import ChunkRef, InlineRef, NativeRef, PendingRef, VirtualRef
from icefloe.model.ids import ChunkFileId
from icefloe.objects.checksums import checksum, new_checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.formats.port import Layout
    from icefloe.objects.chunk_cache import ChunkCache
    from icefloe.storage.port import BytesLike, Storage

MAX_IMMEDIATE_BYTES = 256 * 1024
"""Reads up to this size are done by the event loop itself where the storage is that quick."""


_IMMEDIATE_THREADS = 4
"""More threads than this only wait for each other where a write is a system call."""


class VirtualReader(Protocol):
    """Reads ranges of objects outside of the repository."""

    def read(self, ref: VirtualRef, start: int, length: int) -> bytes:
        """Bytes `[start, start + length)` of the referenced range."""

    async def read_async(self, ref: VirtualRef, start: int, length: int) -> bytes:
        """Like `read`, without blocking the event loop."""


class ChunkSettings(NamedTuple):
    """Which chunks go where, by their number of bytes."""

    inline_up_to: int = 512
    """Kept in the manifest (R2-36)."""
    packed_up_to: int = 1024 * 1024
    """Written with others as one chunk file; larger ones have a file of their own."""
    pack_bytes: int = 32 * 1024 * 1024
    """When so many bytes wait, they are written."""


class WriteLimits(NamedTuple):
    """How much is written at the same time."""

    at_a_time: int = 16
    in_flight_bytes: int = 128 * 1024 * 1024


class ChunkFiles:
    """The bytes of chunks: inline, in chunk files, or in virtual sources."""

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        open_virtual: Callable[[], VirtualReader],
        settings: ChunkSettings,
        write_limits: WriteLimits | None = None,
        cache: ChunkCache | None = None,
    ) -> None:
        """Take where chunks are, which go where, how many at a time, and what keeps some."""
        self.cache = cache
        self.storage = storage
        self.layout = layout
        self._open_virtual = open_virtual
        self.settings = settings
        limits = write_limits or WriteLimits()
        if storage.capabilities.reads_are_immediate:
            limits = limits._replace(at_a_time=min(limits.at_a_time, _IMMEDIATE_THREADS))
        self.write_limits = limits

    @property
    def virtual(self) -> VirtualReader:
        """Reads chunks in files outside of the repository; made for the first of them."""
        return self._open_virtual()

    def write(self, data: BytesLike) -> ChunkRef:
        """Store a chunk, or keep it for a pack; its bytes stay as they are (R2-01)."""
        ref = self._kept(data)
        if ref is None:
            file_id = ChunkFileId.random()
            self.storage.put(self.layout.chunk_file(file_id), data)
            ref = NativeRef(file=file_id, offset=0, length=len(data), checksum=new_checksum(data))
        return ref

    async def write_async(self, data: BytesLike) -> ChunkRef:
        """Like `write`, without blocking the event loop."""
        ref = self._kept(data)
        if ref is None:
            file_id = ChunkFileId.random()
            await self.storage.put_async(self.layout.chunk_file(file_id), data)
            ref = NativeRef(file=file_id, offset=0, length=len(data), checksum=new_checksum(data))
        return ref

    def _kept(self, data: BytesLike) -> ChunkRef | None:
        """A chunk that needs no file now."""
        if len(data) <= self.settings.inline_up_to:
            return InlineRef(bytes(data))
        if len(data) <= self.settings.packed_up_to:
            return PendingRef(bytes(data))
        return None

    def read(self, ref: ChunkRef, byte_range: ByteRange = WHOLE, *, verify: bool = False) -> bytes:
        """Read a chunk or a part of it.

        Args:
            ref: Where it is.
            byte_range: Which part.
            verify: Compare its bytes with the checksum that was recorded, if there is one; then
                the whole chunk is read, also for a part.

        Raises:
            DamagedChunkError: The chunk file is not as the reference says.
        """
        if isinstance(ref, InlineRef):
            start, length = byte_range.resolve(len(ref.data))
            return ref.data[start : start + length]
        start, length = byte_range.resolve(ref.length)
        held = self._held(ref)
        if held is not None:
            return held[start : start + length]
        if isinstance(ref, VirtualRef):
            return self._keep(ref, self.virtual.read(ref, start, length))
        if length == 0:
            return b""
        if verify and ref.checksum:
            return self._keep(ref, self._read_verified(ref))[start : start + length]
        return self._keep(ref, self._read_native(ref, start, length))

    async def read_async(
        self, ref: ChunkRef, byte_range: ByteRange = WHOLE, *, verify: bool = False
    ) -> bytes:
        """Like `read`, without blocking the event loop for long."""
        if isinstance(ref, InlineRef):
            return self.read(ref, byte_range)
        start, length = byte_range.resolve(ref.length)
        held = self._held(ref)
        if held is not None:
            return held[start : start + length]
        if isinstance(ref, VirtualRef):
            return self._keep(ref, await self.virtual.read_async(ref, start, length))
        if length == 0:
            return b""
        is_immediate = self.storage.capabilities.reads_are_immediate
        if is_immediate and length <= MAX_IMMEDIATE_BYTES:
            return self.read(ref, byte_range, verify=verify)
        if is_immediate or verify:
            return await asyncio.to_thread(self.read, ref, byte_range, verify=verify)
        key = self.layout.chunk_file(ref.file)
        try:
            data = await self.storage.get_async(key, ref.offset + start, length)
        except (ObjectNotFoundError, StorageError) as error:
            explained = await asyncio.to_thread(self._explained, ref, key, error)
            raise explained from error
        if self.cache is None or length <= MAX_IMMEDIATE_BYTES:
            return self._keep(ref, data)
        return await asyncio.to_thread(self._keep, ref, data)

    def _held(self, ref: NativeRef | VirtualRef) -> bytes | None:
        return None if self.cache is None else self.cache.find(ref)

    def _keep(self, ref: NativeRef | VirtualRef, data: bytes) -> bytes:
        """Cache a chunk if all of it was read; returns the bytes."""
        if self.cache is not None:
            self.cache.keep(ref, data)
        return data

    def _read_native(self, ref: NativeRef, start: int, length: int) -> bytes:
        key = self.layout.chunk_file(ref.file)
        try:
            return self.storage.get(key, ref.offset + start, length)
        except (ObjectNotFoundError, StorageError) as error:
            raise self._explained(ref, key, error) from error

    def _read_verified(self, ref: NativeRef) -> bytes:
        data = self._read_native(ref, 0, ref.length)
        found = checksum(data)
        if found != ref.checksum:
            key = self.layout.chunk_file(ref.file)
            raise DamagedChunkError(wrong_checksum(found, ref.checksum), key)
        return data

    def _explained(
        self, ref: NativeRef, key: str, error: ObjectNotFoundError | StorageError
    ) -> Exception:
        """The error to raise if a chunk cannot be read: is its file at fault?"""
        what = self.fault_of_file(key, ref.offset, ref.length, error)
        return error if what is None else DamagedChunkError(what, key)

    def fault_of_file(
        self, key: str, offset: int, length: int, error: ObjectNotFoundError | StorageError
    ) -> str | None:
        """Why a chunk could not be read from its file; None if the file is fine."""
        if isinstance(error, ObjectNotFoundError):
            return "its file is missing; perhaps it was cleaned up while the repository was open"
        try:
            size = self.storage.head(key).size
        except ObjectNotFoundError:
            return "its file is missing; perhaps it was cleaned up while the repository was open"
        except StorageError:
            return None
        if size >= offset + length:
            return None
        return (
            f"its file is too short: expected {length} bytes from byte {offset}, found a file of "
            f"{size} bytes"
        )


def wrong_checksum(found: int, recorded: int) -> str:
    """The problem of a chunk whose bytes differ from what was written."""
    return (
        f"its bytes have the checksum {found:08x}, and {recorded:08x} was recorded when they were "
        "written"
    )


def size_of(ref: ChunkRef) -> int:
    """Number of bytes of a chunk."""
    return len(ref.data) if isinstance(ref, InlineRef) else ref.length
