"""Virtual chunks in object stores (S3, GCS, Azure), with the credentials that were given for them.

Nothing is taken from the machine's surroundings unless the credential says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.errors import (
    ForkedProcessError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
    StoragePermissionError,
    VirtualChunkError,
)
from icefloe.objects.foreign.source import ListedSource, SourceStatus, VirtualRange, unlistable
from icefloe.storage.object_store import ObjectStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore import GetResult, ObjectMeta
    from obstore.store import ObjectStore

    from icefloe.config.locations import Location


class ObjectSource(ObjectStorage):
    """Objects of one bucket, read together with what their store says of them."""

    def read(self, byte_range: VirtualRange) -> bytes:
        """The bytes of a range."""
        key = byte_range.location.key

        def fetch(store: ObjectStore) -> bytes:
            result = store.get(self._path(key), options=_options(byte_range))
            _verify(result, byte_range)
            return result.bytes().to_bytes()

        try:
            data = self._send(key, fetch)
        except (StorageError, ObjectNotFoundError, InvalidInputError) as error:
            raise self._explained(error, byte_range) from error
        return byte_range.completed(data)

    async def read_async(self, byte_range: VirtualRange) -> bytes:
        """Like `read`, without blocking the event loop."""
        key = byte_range.location.key

        async def fetch(store: ObjectStore) -> bytes:
            result = await store.get_async(self._path(key), options=_options(byte_range))
            _verify(result, byte_range)
            return (await result.bytes_async()).to_bytes()

        try:
            data = await self._send_async(key, fetch)
        except (StorageError, ObjectNotFoundError, InvalidInputError) as error:
            raise self._explained(error, byte_range) from error
        return byte_range.completed(data)

    def status(self, location: Location) -> SourceStatus | None:
        """The status of an object; None if it does not exist."""
        try:
            path = self._path(location.key)
            return _described(self._send(location.key, lambda store: store.head(path)))
        except ObjectNotFoundError:
            return None
        except (StorageError, InvalidInputError) as error:
            raise self._explained(error, VirtualRange(location, 0, 0)) from error

    def list(self, folder: Location) -> Iterator[ListedSource]:  # type: ignore[override]
        """All objects below a folder."""
        key = folder.key
        depth = len(key) + 1 if key else 0
        try:
            for page in self._pages(key, f"{key}/" if key else None):
                for meta in page:
                    below = tuple(part for part in meta["path"][depth:].split("/") if part)
                    yield ListedSource(folder.joined(below), _described(meta))
        except (StorageError, ObjectNotFoundError, InvalidInputError) as error:
            raise unlistable(folder, error.message) from error

    def _explained(
        self,
        error: StorageError | ObjectNotFoundError | InvalidInputError,
        byte_range: VirtualRange,
    ) -> VirtualChunkError | ForkedProcessError:
        if isinstance(error, ForkedProcessError):
            return error
        if isinstance(error, ObjectNotFoundError):
            return byte_range.missing()
        if isinstance(error, StoragePermissionError):
            return byte_range.unreadable(
                f"its store refused access: {error.message}. Check the credentials given in "
                "authorize_virtual_chunk_access"
            )
        size = self._size(byte_range.location.key)
        if size is not None and size <= byte_range.start:
            return byte_range.too_short(f"an object of {size} bytes")
        return byte_range.unreadable(error.message)

    def _size(self, key: str) -> int | None:
        """The size of the object, if its store reports it."""
        try:
            return self.head(key).size
        except (StorageError, ObjectNotFoundError, InvalidInputError):
            return None


def _described(meta: ObjectMeta) -> SourceStatus:
    return SourceStatus(meta["size"], meta["e_tag"], int(meta["last_modified"].timestamp()))


def _options(byte_range: VirtualRange) -> Any:
    return {"range": (byte_range.start, byte_range.end)}


def _verify(result: GetResult, byte_range: VirtualRange) -> None:
    # What the store says comes with the very bytes: there is no time for a change in between.
    byte_range.verify_unchanged(result.meta["e_tag"], result.meta["last_modified"])
