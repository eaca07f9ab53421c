"""Virtual chunks on web servers.

The client is urllib3 and not the object-store library, because that one follows a redirect to
wherever the server says: a server could make every reader of a repository fetch addresses inside of
the reader's network. Here urllib3 only moves bytes; redirects, retries and checks are ours, and a
redirect is followed only to another place below the same container.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from icefloe.config.locations import Location, parse_location
from icefloe.errors import InvalidInputError
from icefloe.objects.foreign.source import SourceStatus, VirtualRange, unlistable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import TypeAlias

    from urllib3.response import BaseHTTPResponse

    from icefloe.objects.foreign.source import ListedSource

_Answer = TypeVar("_Answer")
_Understand: TypeAlias = "Callable[[BaseHTTPResponse, VirtualRange], _Answer]"

_logger = logging.getLogger(__name__)

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WORTH_ANOTHER_TRY = frozenset({408, 429, 500, 502, 503, 504})
_MAX_REDIRECTS = 5
_MAX_TRIES = 5
_FIRST_BACKOFF_SECONDS = 0.1
_MAX_CONNECTIONS = 16
_PIECE_BYTES = 1024 * 1024
_NUMBER = r"[0-9]{1,18}"
_CONTENT_RANGE = re.compile(rf"bytes ({_NUMBER})-{_NUMBER}/(?:{_NUMBER}|\*)")
_TOTAL_SIZE = re.compile(rf"bytes .*/({_NUMBER})")


class HttpSource:
    """Files below one address of a web server."""

    def __init__(self, place: Location, timeout_seconds: float = 60.0) -> None:
        """Read files below `place`.

        Args:
            place: The address of the container.
            timeout_seconds: How long to wait for a connection, and for the next bytes.
        """
        self._place = place
        self._timeout = timeout_seconds
        self._pool: urllib3.PoolManager | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._owner = os.getpid()

    def read(self, byte_range: VirtualRange) -> bytes:
        """The bytes of a range."""
        return byte_range.completed(self._ask(byte_range, _bytes_of))

    def status(self, location: Location) -> SourceStatus | None:
        """The status of a file, by a request for its first byte; None if there is no file."""
        return self._ask(VirtualRange(location, 0, 1), _status_of)

    def list(self, folder: Location) -> Iterator[ListedSource]:
        """Refuse: web servers do not tell which files they have."""
        raise unlistable(folder, "web servers do not list their files; name them one by one")

    async def read_async(self, byte_range: VirtualRange) -> bytes:
        """Like `read`, without blocking the event loop."""
        self._leave_to_parent()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_MAX_CONNECTIONS, "icefloe-http")
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self.read, byte_range
        )

    def _ask(self, byte_range: VirtualRange, understand: _Understand[_Answer]) -> _Answer:
        """Send a request, and follow redirects within the container."""
        location = byte_range.location
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._answer(location, byte_range, understand)
            if not isinstance(answer, Location):
                return answer
            location = answer
        raise byte_range.unreadable(f"its server redirects more than {_MAX_REDIRECTS} times")

    def _answer(
        self, location: Location, byte_range: VirtualRange, understand: _Understand[_Answer]
    ) -> _Answer | Location:
        """The answer of the server, or the location that it redirects to."""
        problem = ""
        for attempt in range(_MAX_TRIES):
            if attempt:
                time.sleep(random.uniform(0, _FIRST_BACKOFF_SECONDS * 2**attempt))
            try:
                with self._sent(location, byte_range) as response:
                    if response.status in _REDIRECTS:
                        target = response.headers.get("Location", "")
                        return self._redirected(target, location, byte_range)
                    if response.status not in _WORTH_ANOTHER_TRY:
                        return understand(response, byte_range)
                    problem = f"its server answered {response.status} {response.reason}"
            except (OSError, urllib3.exceptions.HTTPError) as error:
                problem = f"{type(error).__name__}: {error}"
            _logger.debug("attempt %s to read %s failed: %s", attempt + 1, location, problem)
        raise byte_range.unreadable(problem)

    @contextmanager
    def _sent(self, location: Location, byte_range: VirtualRange) -> Iterator[BaseHTTPResponse]:
        """Request a range; the body of the response is still to be read."""
        self._leave_to_parent()
        if self._pool is None:
            self._pool = _pool_for(self._place)
        response = self._pool.request(
            "GET",
            str(location),
            headers={
                "Range": f"bytes={byte_range.start}-{byte_range.end - 1}",
                "Accept-Encoding": "identity",
                "User-Agent": "icefloe",
            },
            timeout=self._timeout,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )
        try:
            yield response
            response.read(_PIECE_BYTES)  # what is left of a short error page
        finally:
            response.close()  # the pool reuses a connection whose response was read to its end

    def _leave_to_parent(self) -> None:
        """After a fork, open connections and threads of our own: those there are the parent's."""
        if self._owner != os.getpid():
            self._pool, self._threads, self._owner = None, None, os.getpid()

    def _redirected(self, target: str, location: Location, byte_range: VirtualRange) -> Location:
        try:
            address = urljoin(str(location), target)
            redirect = parse_location(address)
        except (InvalidInputError, ValueError):
            address, redirect = target, None
        if redirect is None or not redirect.is_below(self._place):
            # Only the host is shown: the rest may hold a signature.
            host = _host_of(address)
            raise byte_range.unreadable(
                f"its server redirects to another place (on the host {host}), and only "
                f"{self._place} was authorized; write references to that place instead"
            )
        return redirect


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _bytes_of(response: BaseHTTPResponse, byte_range: VirtualRange) -> bytes:
    match response.status:
        case 200 | 206:
            return _body(response, byte_range)
        case 404 | 410:
            raise byte_range.missing()
        case 416:
            raise byte_range.too_short("a file that is shorter than that")
        case status:
            raise byte_range.unreadable(f"its server answered {status} {response.reason}")


def _status_of(response: BaseHTTPResponse, byte_range: VirtualRange) -> SourceStatus | None:
    match response.status:
        case 200:
            size = response.length_remaining
        case 206 | 416:
            total = _TOTAL_SIZE.fullmatch(response.headers.get("Content-Range", ""))
            size = None if total is None else int(total[1])
        case 404 | 410:
            return None
        case status:
            raise byte_range.unreadable(f"its server answered {status} {response.reason}")
    moment = _moment(response.headers.get("Last-Modified"))
    modified = None if moment is None else int(moment.timestamp())
    return SourceStatus(size, response.headers.get("ETag"), modified)


def _body(response: BaseHTTPResponse, byte_range: VirtualRange) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise byte_range.unreadable(
            f"its server sends it encoded ({encoding}), which was not asked for"
        )
    byte_range.verify_unchanged(
        response.headers.get("ETag"), _moment(response.headers.get("Last-Modified"))
    )
    start: int | None = 0
    if response.status == 206:
        content_range = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(content_range)
        start = int(match[1]) if match else None
    if start != byte_range.start:
        raise byte_range.unreadable("its server does not serve ranges of files")
    return _read_up_to(response, byte_range.length)


def _read_up_to(response: BaseHTTPResponse, length: int) -> bytes:
    """The next bytes, piece by piece: memory is taken for bytes that came, not for promises."""
    data = bytearray()
    while len(data) < length:
        piece = response.read(min(_PIECE_BYTES, length - len(data)))
        if not piece:
            break
        data += piece
    return bytes(data)


def _moment(header: str | None) -> datetime | None:
    try:
        return None if header is None else parsedate_to_datetime(header)
    except (ValueError, TypeError, OverflowError):
        return None


def _pool_for(place: Location) -> urllib3.PoolManager:
    """Connections to one server, by way of the proxy that the machine's settings name for it."""
    proxy = None if proxy_bypass(place.host) else getproxies().get(place.scheme)
    if proxy is None:
        return urllib3.PoolManager(maxsize=_MAX_CONNECTIONS)
    parts = urlsplit(proxy)
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return urllib3.ProxyManager(
        f"{parts.scheme or 'http'}://{parts.netloc.rpartition('@')[2]}",
        proxy_headers=urllib3.make_headers(proxy_basic_auth=login),
        maxsize=_MAX_CONNECTIONS,
    )
