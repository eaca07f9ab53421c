"""The storage port: bytes by key, in the few verbs that a repository needs.

Keys are relative to the storage's root, `/`-separated, without leading, trailing or doubled
slashes and without `.` or `..` segments. Errors are icefloe's own: an adapter translates what its
library raises, so nothing above this layer catches a library's error.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from icefloe.storage.settings import StorageSettings


BytesLike: TypeAlias = bytes | bytearray | memoryview


class ObjectInfo(msgspec.Struct, frozen=True):
    """One listed object."""

    key: str
    size: int
    last_modified: datetime
    """By the storage's clock, timezone-aware."""


class Swept(msgspec.Struct, frozen=True):
    """Temporary files of dead writers that were removed, or would be."""

    files: int = 0
    size_bytes: int = 0


class ObjectVersion(msgspec.Struct, frozen=True):
    """Opaque token of one state of a replaceable object."""

    token: str


class Capabilities(msgspec.Struct, frozen=True):
    """What a storage can do, so that callers choose a strategy instead of guessing."""

    can_write: bool = True
    lists_in_pages: bool = True
    """The first keys of a long sorted listing are cheap. Otherwise the caller probes for keys."""
    can_list: bool = True
    """False on plain HTTP servers."""
    keeps_attributes: bool = False
    """Objects carry user metadata (spec 002: file information as object metadata)."""
    survives_pickle: bool = True
    """False for memory: a copy in another process would be empty."""
    needs_probe: bool = False
    """Only the server knows whether conditional writes work: probe it before the first write."""
    reads_are_immediate: bool = False
    """Reading a few KiB is quick enough to do it in the event loop (memory, local files)."""


@runtime_checkable
class Sharable(Protocol):
    """A storage that knows which other storages are the same place, seen by the same user."""

    def sharing_key(self) -> Hashable | None:
        """A key that is equal for storages that read the same objects with the same rights.

        None if that is not known. It has no secrets, since caches keep it longer than the storage.
        """


@runtime_checkable
class Naming(Protocol):
    """A storage that lists the names in a folder without looking into its subfolders."""

    def names(self, prefix: str) -> list[str]:
        """Names of the immediate children of a folder, including empty folders, in any order."""


@runtime_checkable
class ReadingInto(Protocol):
    """A storage that reads to where the caller wants the bytes, which saves a copy."""

    def get_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Fill buffers with the bytes of an object from `start`, one buffer after the other.

        Buffers are writable, contiguous, and of bytes. Raises as `get` does; then their contents
        are undefined.
        """


@runtime_checkable
class Storage(Protocol):
    """A place for objects. Synchronous methods release the GIL while they wait."""

    @property
    def capabilities(self) -> Capabilities:
        """What this storage can do."""

    @property
    def location(self) -> str:
        """URL of the root, without credentials, for messages and for equality."""

    def with_settings(self, settings: StorageSettings) -> Storage:
        """Return a storage for the same place that is used with these settings."""

    def default_settings(self) -> StorageSettings:
        """Return the settings that apply unless others are set."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or `length` bytes of it from `start`.

        Raises ObjectNotFoundError; StorageError if fewer bytes exist than were asked for.
        """

    def get_suffix(self, key: str, length: int) -> bytes:
        """Read the last `length` bytes (all of a shorter object)."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many `(start, length)` ranges of one object, neighbours coalesced."""

    async def get_async(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Like `get`, without blocking the event loop."""

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Write an object under a new key that no other writer uses.

        It is readable at once, and durable after `sync` (or a later `create`).
        """

    async def put_async(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Like `put`, without blocking the event loop."""

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create an object that must not exist: atomic, exclusive and durable, and settled.

        All that this process `put` before is durable when the object appears. Lost answers are
        settled by reading back: finding exactly `data` under the key counts as success.
        Raises AlreadyExistsError if other bytes are there, CommitStateUnknownError if it cannot
        be known.
        """

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        """Replace an object if it is still at `expected` (None: if it is absent).

        Settled like `create`. Raises ConflictError if it has changed.
        """

    def get_with_version(self, key: str) -> tuple[bytes, ObjectVersion]:
        """Read a replaceable object with the token for `replace`."""

    def get_attributes(self, key: str) -> dict[str, str]:
        """Return the attributes an object was written with (empty if the storage has none)."""

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time. Raises ObjectNotFoundError."""

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; absent ones are no error.

        Raises StorageError naming what is left if some could not be deleted.
        """

    def sync(self) -> None:
        """Make all earlier `put`s of this process durable."""

    def sweep_temporary(self, before: datetime, *, dry_run: bool = False) -> Swept:
        """Remove temporary files of writers that died before a time by the storage's clock.

        It removes no object. A writer that is still alive is not harmed.
        """

    def using_reserve(self) -> AbstractContextManager[None]:
        """Let writes use the disk space reserved for garbage collection, if there is any."""

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children (objects and folders) of the folder `prefix`."""

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in ascending order of the key's UTF-8 bytes."""
