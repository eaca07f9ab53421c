"""Objects that are being written while others that refer to them are made.

Names of objects are random and their checksums are those of bytes in memory, so a manifest need not
wait until the chunks that it refers to are stored, nor a log until the manifests are. Whoever makes
them visible waits for all.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, wait
from typing import TYPE_CHECKING

from icefloe.storage.workers import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from icefloe.storage.port import BytesLike, Storage


class Uploads:
    """Writes objects in threads, a limited number of requests and bytes at a time."""

    def __init__(self, storage: Storage, at_a_time: int, in_flight_bytes: int) -> None:
        """Take where objects are written, and how many at a time."""
        self._storage = storage
        self._at_a_time = at_a_time
        self._in_flight_bytes = in_flight_bytes
        self._running: dict[Future[None], int] = {}
        self._ended: list[Future[None]] = []
        self._checks: set[Future[None]] = set()
        self._has_lost_one = False
        self._lock = threading.Lock()

    @classmethod
    def where_it_helps(
        cls, storage: Storage, at_a_time: int = 16, in_flight_bytes: int = 128 * 1024 * 1024
    ) -> Uploads | None:
        """For a storage whose answers take long; None for one that answers immediately."""
        if storage.capabilities.reads_are_immediate:
            return None
        return cls(storage, at_a_time, in_flight_bytes)

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Begin to write an object under a new key that no other writer uses.

        Waits while too many others are being written. Errors are raised by `wait`.
        """
        nbytes = memoryview(data).nbytes
        with self._lock:
            while self._running and not self._has_room(nbytes):
                self._take(wait(self._running, return_when=FIRST_COMPLETED).done)
            future = pool().submit(self._storage.put, key, data, attributes)
            self._running[future] = nbytes

    def check(self, call: Callable[[], None]) -> None:
        """Begin a check that needs the storage; `wait` raises its error, too."""
        with self._lock:
            future = pool().submit(call)
            self._checks.add(future)
            self._running[future] = 0

    def _has_room(self, nbytes: int) -> bool:
        is_few = len(self._running) < self._at_a_time
        return is_few and sum(self._running.values()) + nbytes <= self._in_flight_bytes

    def _take(self, done: set[Future[None]]) -> None:
        for future in done:
            del self._running[future]
            self._ended.append(future)
            if future not in self._checks and future.exception() is not None:
                self._has_lost_one = True

    def wait(self) -> None:
        """Return when all objects are stored; raises the first error when none is in progress."""
        with self._lock:
            self._take(wait(self._running).done)
            ended, self._ended = self._ended, []
        failures = []
        for future in ended:
            try:
                future.result()
            except BaseException as error:  # noqa: BLE001 (of all of them, the first is raised)
                failures.append(error)
        if failures:
            raise failures[0]

    def abandon(self) -> bool:
        """Wait until no upload is in progress; returns whether all objects were stored."""
        with self._lock:
            self._take(wait(self._running).done)
            self._ended.clear()
        return not self._has_lost_one
