"""Lets parsers read only files that the opener of the repository has authorised.

Parsers ask a registry for the store of a URL, and the store for ranges of bytes. These are ours:
they know every kind of place that virtual chunks may be in, with the credentials given for it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icefloe.errors import VirtualChunkError
from icefloe.model.chunk_refs import VirtualRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icefloe.objects.foreign import VirtualChunkResolver
    from icefloe.objects.foreign.source import SourceStatus

_PARALLEL_READS = 8


class AuthorizedStore:
    """Reads by whole URLs, with the methods that parsers expect of a store."""

    def __init__(
        self, sources: VirtualChunkResolver, known: Mapping[str, SourceStatus] | None = None
    ) -> None:
        """Read through `sources`; what is known of a file, from a listing say, is not asked."""
        self.sources = sources
        self._known: dict[str, SourceStatus] = dict(known or {})

    def find(self, url: str) -> SourceStatus | None:
        """What is known of a file; None if it does not exist."""
        status = self._known.get(url)
        if status is None:
            status = self.sources.status(url)
            if status is not None:
                self._known[url] = status
        return status

    def status(self, url: str) -> SourceStatus:
        """What is known of a file; raises VirtualChunkError if it does not exist."""
        status = self.find(url)
        if status is None:
            raise VirtualChunkError(f"the file {url} does not exist")
        return status

    def read(self, url: str) -> bytes:
        """A whole file."""
        size = self.status(url).size
        if size is None:
            raise VirtualChunkError(f"the server of {url} does not tell how large it is")
        return self.get_range(url, start=0, length=size)

    # --- the names that parsers use

    def head(self, path: str) -> dict[str, Any]:
        """Size and age of a file."""
        status = self.status(path)
        moment = datetime.fromtimestamp(status.last_modified or 0, UTC)
        return {"path": path, "size": status.size, "e_tag": status.etag, "last_modified": moment}

    def get(self, path: str) -> _Whole:
        """A whole file, as an answer whose buffer can be taken."""
        return _Whole(self.read(path))

    def get_range(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> bytes:
        """Bytes `[start, end)`, or `length` of them; fewer if the file ends before."""
        wanted = (end - start) if end is not None else (length or 0)
        size = self.status(path).size
        if size is not None:
            wanted = max(0, min(wanted, size - start))
        return self.sources.read(VirtualRef(path, start, wanted), 0, wanted) if wanted else b""

    def get_ranges(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Many ranges of a file, some at a time."""
        if ends is not None:
            lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        pairs = list(zip(starts, lengths or [], strict=True))

        def read(pair: tuple[int, int]) -> bytes:
            return self.sources.read(VirtualRef(path, *pair), 0, pair[1]) if pair[1] else b""

        if len(pairs) <= 1:
            return list(map(read, pairs))
        with ThreadPoolExecutor(min(_PARALLEL_READS, len(pairs))) as threads:
            return list(threads.map(read, pairs))

    async def get_range_async(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> bytes:
        """Like `get_range`, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(self.get_range, path, start=start, end=end, length=length)

    async def get_ranges_async(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Like `get_ranges`, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(
            self.get_ranges, path, starts=starts, ends=ends, lengths=lengths
        )


class AuthorizedRegistry:
    """Gives parsers the one store for every URL."""

    def __init__(self, store: AuthorizedStore) -> None:
        """Always answer `store`."""
        self._store = store

    def resolve(self, url: str) -> tuple[AuthorizedStore, str]:
        """The store, and the path of the file in it: its whole URL."""
        return self._store, url


class _Whole:
    """An answer with all bytes of a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def bytes(self) -> bytes:
        return self._data

    buffer = bytes
