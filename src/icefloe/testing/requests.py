"""Storages that pretend to be far away, one of which counts requests, rounds and bytes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.ranges import coalesce
from icefloe.testing.causes import following_causes, note_rounds, rounds_so_far, wait_for_jobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from icefloe.storage.port import BytesLike, Capabilities, ObjectInfo, ObjectVersion, Storage

_Result = TypeVar("_Result")

PAGE = 1000
"""How many objects an object store lists or deletes in one request."""
_LOCAL = frozenset({"sync", "sweep_temporary"})


class CountedRequest(msgspec.Struct, frozen=True):
    """One request to an object store."""

    verb: str
    key: str
    round: int
    """1, or one more than the largest round of the requests that it had to wait for."""
    bytes_read: int = 0
    bytes_written: int = 0


class RequestCounts:
    """What an operation asked of an object store."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.log: list[CountedRequest] = []
        """All requests, in the order in which they ended."""
        self.rounds = 0
        """Length of the longest chain of requests, each sent after the one before was answered,
        that the caller waited for."""

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.log)

    @property
    def bytes_read(self) -> int:
        """Bytes of objects that were read."""
        return sum(request.bytes_read for request in self.log)

    @property
    def bytes_written(self) -> int:
        """Bytes of objects that were written."""
        return sum(request.bytes_written for request in self.log)

    def __str__(self) -> str:
        lines = [f"{self.requests} requests in {self.rounds} rounds"]
        by_round = sorted(self.log, key=lambda request: request.round)
        lines += [f"  {each.round:>3} {each.verb} {each.key}" for each in by_round]
        return "\n".join(lines)


class FarStorage(ForwardingStorage):
    """Pretends that a storage takes long to answer, so that requests are sent together."""

    @property
    def capabilities(self) -> Capabilities:
        """The same, but for reads that are not immediate."""
        return msgspec.structs.replace(
            self._inner.capabilities, reads_are_immediate=False, lists_in_pages=True
        )


class CountingStorage(FarStorage):
    """Counts the requests that would go to an object store, and the rounds that they take.

    A request is in round `n` if the longest chain of requests that it had to wait for has `n - 1`.
    It is found by following causes through threads, pools and event loops (`causes.py`), not by a
    clock: requests that may be sent at the same time are one round, however fast the responses.

    Listings count once for each thousand objects, as do deletions; ranges of one object that lie
    apart count each. The storage pretends to be far away, whatever the inner one is: reads are not
    immediate, listings come in pages and conditional writes must be probed.

    Examples:
        >>> import icefloe
        >>> from icefloe.testing.requests import CountingStorage
        >>> storage = CountingStorage(icefloe.in_memory_storage())
        >>> repo = icefloe.Repository.create(storage)
        >>> with storage.counting() as counts:
        ...     tags = repo.list_tags()
        >>> counts.requests, counts.rounds
        (1, 1)
    """

    def __init__(self, inner: Storage) -> None:
        """Count nothing yet."""
        super().__init__(inner)
        self._counts: RequestCounts | None = None
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """Those of an object store."""
        return msgspec.structs.replace(super().capabilities, needs_probe=True)

    @contextmanager
    def counting(self) -> Iterator[RequestCounts]:
        """Count the requests of the block."""
        with following_causes():
            self._counts = counts = RequestCounts()
            try:
                yield counts
                counts.rounds = rounds_so_far()
                wait_for_jobs()
            finally:
                self._counts = None

    def _note(self, verb: str, key: str, before: int, read: int = 0, written: int = 0) -> None:
        with self._lock:
            if self._counts is not None:
                self._counts.log.append(
                    CountedRequest(
                        verb=verb, key=key, round=before + 1, bytes_read=read, bytes_written=written
                    )
                )
        note_rounds(before + 1)

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        if verb in _LOCAL:
            return act()
        before = rounds_so_far()
        result: object = None
        try:
            result = act()
        finally:
            self._note(verb, key, before, read=_size(result))
        return result

    async def _run_async(
        self, verb: str, key: str, act: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        before = rounds_so_far()
        result: object = None
        try:
            result = await act()
        finally:
            self._note(verb, key, before, read=_size(result))
        return result

    def _write(self, verb: str, key: str, data: BytesLike, act: Callable[[], _Result]) -> _Result:
        before = rounds_so_far()
        try:
            return act()
        finally:
            self._note(verb, key, before, written=memoryview(data).nbytes)

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Write an object under a fresh name."""
        self._write("put", key, data, lambda: self._inner.put(key, data, attributes))

    async def put_async(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Like `put`."""
        before = rounds_so_far()
        await self._inner.put_async(key, data, attributes)
        self._note("put", key, before, written=memoryview(data).nbytes)

    def create(
        self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Create an object that must not exist."""
        self._write("create", key, data, lambda: self._inner.create(key, data, attributes))

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        """Replace an object if it is still at `expected`."""
        return self._write("replace", key, data, lambda: self._inner.replace(key, data, expected))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read many ranges of one object, as many requests as there are ranges apart."""
        before = rounds_so_far()
        bodies = self._inner.get_ranges(key, ranges)
        for span in coalesce(ranges):
            self._note("get", key, before, read=span.length)
        return bodies

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand in each request."""
        names = [*keys]
        before = rounds_so_far()
        self._inner.delete_many(names)
        for first in names[::PAGE]:
            self._note("delete_many", first, before)

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in order, a thousand in each request."""
        infos = iter(self._inner.list(prefix, start_after=start_after, limit=limit))
        more = True
        while more:
            page = [*islice(infos, PAGE)]
            self._note("list", prefix, rounds_so_far())
            more = len(page) == PAGE and len(page) != limit
            yield from page


def _size(result: object) -> int:
    if isinstance(result, tuple):
        result = result[0] if result else None
    return len(result) if isinstance(result, bytes) else 0
