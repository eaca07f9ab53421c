"""A storage around another one, with one place to see every operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from icefloe.storage.port import (
        BytesLike,
        Capabilities,
        ObjectInfo,
        ObjectVersion,
        Storage,
        Swept,
    )
    from icefloe.storage.settings import StorageSettings

_Result = TypeVar("_Result")


class ForwardingStorage:
    """Forwards all to `inner`, through `_run` and `_run_async`, which a subclass overrides.

    Both get the name of the operation without `_async`, and the key (a prefix, for listings, and
    the first key, for `delete_many`).
    """

    def __init__(self, inner: Storage) -> None:
        self._inner = inner

    def __getstate__(self) -> Storage:
        return self._inner

    def __setstate__(self, inner: Storage) -> None:
        self.__init__(inner)  # type: ignore[misc]

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:  # noqa: ARG002
        return act()

    async def _run_async(
        self,
        verb: str,  # noqa: ARG002
        key: str,  # noqa: ARG002
        act: Callable[[], Awaitable[_Result]],
    ) -> _Result:
        return await act()

    @property
    def inner(self) -> Storage:
        """The storage that does the work."""
        return self._inner

    @property
    def capabilities(self) -> Capabilities:
        """What this storage can do."""
        return self._inner.capabilities

    @property
    def location(self) -> str:
        """URL of the root."""
        return self._inner.location

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForwardingStorage) and self._inner == other._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def with_settings(self, settings: StorageSettings) -> Self:
        """Use these settings from now on."""
        self._inner = self._inner.with_settings(settings)
        return self

    def default_settings(self) -> StorageSettings:
        """Return the settings that apply unless others are set."""
        return self._inner.default_settings()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or a part of it."""
        return self._run("get", key, lambda: self._inner.get(key, start, length))

    def get_suffix(self, key: str, length: int) -> bytes:
        """Read the last bytes of an object."""
        return self._run("get_suffix", key, lambda: self._inner.get_suffix(key, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many ranges of one object."""
        return self._run("get_ranges", key, lambda: self._inner.get_ranges(key, ranges))

    async def get_async(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Like `get`."""
        return await self._run_async("get", key, lambda: self._inner.get_async(key, start, length))

    def get_with_version(self, key: str) -> tuple[bytes, ObjectVersion]:
        """Read a replaceable object with its version."""
        return self._run("get_with_version", key, lambda: self._inner.get_with_version(key))

    def get_attributes(self, key: str) -> dict[str, str]:
        """Return the attributes of an object."""
        return self._run("get_attributes", key, lambda: self._inner.get_attributes(key))

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time."""
        return self._run("head", key, lambda: self._inner.head(key))

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Write an object under a fresh name."""
        self._run("put", key, lambda: self._inner.put(key, data, attributes))

    async def put_async(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Like `put`."""
        await self._run_async("put", key, lambda: self._inner.put_async(key, data, attributes))

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create an object that must not exist."""
        self._run("create", key, lambda: self._inner.create(key, data, attributes))

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        """Replace an object if it is still at `expected`."""
        return self._run("replace", key, lambda: self._inner.replace(key, data, expected))

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        names = [*keys]
        self._run("delete_many", names[0] if names else "", lambda: self._inner.delete_many(names))

    def sync(self) -> None:
        """Make all earlier `put`s of this process durable."""
        self._run("sync", "", self._inner.sync)

    def sweep_temporary(self, before: datetime, *, dry_run: bool = False) -> Swept:
        """Remove what dead writers left half written."""
        return self._run(
            "sweep_temporary", "", lambda: self._inner.sweep_temporary(before, dry_run=dry_run)
        )

    def using_reserve(self) -> AbstractContextManager[None]:
        """Let writes use the disk space that is reserved for garbage collection."""
        return self._inner.using_reserve()

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children of a folder."""
        return self._run("list_dir", prefix, lambda: self._inner.list_dir(prefix))

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in order."""
        return self._run(
            "list",
            prefix,
            lambda: self._inner.list(prefix, start_after=start_after, limit=limit),
        )
