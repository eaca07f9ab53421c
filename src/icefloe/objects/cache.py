"""A cache of values that is bounded by the bytes they take, or by what else measures them."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

K = TypeVar("K")
V = TypeVar("V")

_living: weakref.WeakSet[ByteCache[object, object]]


class ByteCache(Generic[K, V]):
    """Least recently used values go first when the budget is spent; safe for many threads.

    A forked process has its own copy, with what was in it.
    """

    def __init__(self, max_bytes: int, max_entries: int | None = None) -> None:
        """Take the budget; a value larger than it is never kept."""
        self.max_bytes = max_bytes
        self._max_entries = max_entries
        self._bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        _living.add(self)  # type: ignore[arg-type]

    def get(self, key: K) -> V | None:
        """The value of a key, if it is kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def get_many(self, keys: Sequence[K | None]) -> list[V | None]:
        """The values of some keys; None for those that are not cached."""
        values: list[V | None] = []
        with self._lock:
            for key in keys:
                entry = None if key is None else self._entries.get(key)
                if entry is not None and key is not None:
                    self._entries.move_to_end(key)
                values.append(None if entry is None else entry[0])
        return values

    def put(self, key: K, value: V, nbytes: int) -> None:
        """Keep a value that takes `nbytes`."""
        if nbytes > self.max_bytes:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._bytes -= old[1]
            self._entries[key] = (value, nbytes)
            self._bytes += nbytes
            self._make_room()

    def grow(self, key: K, nbytes: int) -> None:
        """Account for a cached value that takes so many bytes more than when it was put here."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries[key] = (entry[0], entry[1] + nbytes)
                self._bytes += nbytes
                self._make_room()

    def _make_room(self) -> None:
        while self._bytes > self.max_bytes or self._has_too_many():
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed

    def _has_too_many(self) -> bool:
        return self._max_entries is not None and len(self._entries) > self._max_entries

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._bytes

    def _start_in_child(self) -> None:
        # Another thread may have held the lock at the fork, in the middle of `put`.
        self._lock = threading.Lock()
        self._bytes = sum(nbytes for _, nbytes in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


_living = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_living):
        cache._start_in_child()  # noqa: SLF001 (of this module)


os.register_at_fork(after_in_child=_after_fork)
