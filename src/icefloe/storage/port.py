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
    """What dead writers had left behind outside of all objects, and was or would be removed."""

    files: int = 0
    size_bytes: int = 0


class Version(msgspec.Struct, frozen=True):
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
    """Whether conditional writes work is for the server to say: probe it before the first write."""
    reads_are_immediate: bool = False
    """Reading a few KiB is so quick that an event loop may do it itself (memory, local files)."""


@runtime_checkable
class Sharable(Protocol):
    """A storage that can tell which others are the same place, seen by the same user."""

    def sharing_key(self) -> Hashable | None:
        """Equal for storages that read the same objects with the same rights; None: not known.

        Without any secret, for it may live longer than the storage.
        """


@runtime_checkable
class Naming(Protocol):
    """A storage that can name what is in a folder without looking into each folder there."""

    def names(self, prefix: str) -> list[str]:
        """Names of the immediate children of a folder in any order, and of empty folders, too."""


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
        """Return the settings that hold where nothing else is said."""

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
        """Write an object under a fresh name that nobody else uses.

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

    def replace(self, key: str, data: BytesLike, expected: Version | None) -> Version:
        """Replace an object if it is still at `expected` (None: if it is absent).

        Settled like `create`. Raises ConflictError if it has changed.
        """

    def get_with_version(self, key: str) -> tuple[bytes, Version]:
        """Read a replaceable object with the token for `replace`."""

    def get_attributes(self, key: str) -> dict[str, str]:
        """Return the attributes an object was written with (none where none are kept)."""

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time. Raises ObjectNotFoundError."""

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects; absent ones are no error.

        Raises StorageError naming what is left if some could not be deleted.
        """

    def sync(self) -> None:
        """Make all earlier `put`s of this process durable."""

    def sweep_temporary(self, before: datetime, *, dry_run: bool = False) -> Swept:
        """Remove what writers that died before a moment of the storage's clock left half written.

        Only what is no object under any key. A writer that lives is not harmed.
        """

    def using_reserve(self) -> AbstractContextManager[None]:
        """Let writes use room that is kept for cleaning up, where a storage keeps some."""

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children (objects and folders) of the folder `prefix`."""

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in ascending order of the key's UTF-8 bytes."""
