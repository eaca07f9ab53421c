"""A cache of decoded values that is bounded by the bytes they take."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Least recently used values go first when the budget is spent; safe for many threads."""

    def __init__(self, max_bytes: int) -> None:
        """Take the budget; a value larger than it is never kept."""
        self.max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of a key, if it is kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

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
            while self._bytes > self.max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed

    def __len__(self) -> int:
        return len(self._entries)
