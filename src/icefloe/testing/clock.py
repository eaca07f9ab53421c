"""Storages whose clock tests can set, and whose listings lag behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec

from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.faults import WRITING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.storage.port import ObjectInfo, Storage

_Result = TypeVar("_Result")


class ClockedStorage(ForwardingStorage):
    """A storage with a clock of its own, which only moves when a test says so."""

    def __init__(self, inner: Storage, now: datetime | None = None) -> None:
        super().__init__(inner)
        self.now = now or datetime.now(UTC)
        self._times: dict[str, datetime] = {}

    def wait(self, duration: timedelta) -> None:
        """Let time pass."""
        self.now += duration

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        if verb in WRITING:
            self._times[key] = self.now
        return act()

    def _shown(self, info: ObjectInfo) -> ObjectInfo:
        time = self._times.get(info.key, info.last_modified)
        return msgspec.structs.replace(info, last_modified=time)

    def head(self, key: str) -> ObjectInfo:
        """Size and last-modified time."""
        return self._shown(super().head(key))

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in order."""
        return map(self._shown, super().list(prefix, start_after=start_after, limit=limit))


class LaggingStorage(ForwardingStorage):
    """A storage whose listings are stale: they show the objects at a time that the test chose."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._seen: list[ObjectInfo] | None = None

    def freeze_listings(self) -> None:
        """Let listings show from now on what there is now."""
        self._seen = list(self._inner.list())

    def list_dir(self, prefix: str) -> list[str]:
        """Sorted names of the immediate children of a folder, as they were."""
        if self._seen is None:
            return super().list_dir(prefix)
        start = f"{prefix}/" if prefix else ""
        names = {
            i.key[len(start) :].partition("/")[0] for i in self._seen if i.key.startswith(start)
        }
        return sorted(names)

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in order, as they were."""
        if self._seen is None:
            return super().list(prefix, start_after=start_after, limit=limit)
        found = [i for i in self._seen if i.key.startswith(prefix) and i.key > start_after]
        return iter(found[:limit])
