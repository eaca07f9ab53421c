"""Virtual chunks on web servers.

The client is Python's own and not the object-store library, because that one follows a redirect to
wherever the server says: a server could make every reader of a repository fetch addresses inside of
the reader's network. Here a redirect is followed only to another place below the same container.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

from icefloe.config.locations import Location, parse_location
from icefloe.errors import InvalidInputError
from icefloe.files.virtual.source import SourceStatus, VirtualRange, unlistable
from icefloe.model.bounded_text import whole_number

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import TypeAlias

    from icefloe.files.virtual.source import ListedSource

_Answer = TypeVar("_Answer")
_Understand: TypeAlias = "Callable[[http.client.HTTPResponse, VirtualRange], _Answer]"

_logger = logging.getLogger(__name__)

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WORTH_ANOTHER_TRY = frozenset({408, 429, 500, 502, 503, 504})
_MAX_REDIRECTS = 5
_MAX_TRIES = 5
_FIRST_BACKOFF_SECONDS = 0.1
_MAX_CONNECTIONS = 16
_PIECE_BYTES = 1024 * 1024
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


class HttpSource:
    """Files below one address of a web server."""

    def __init__(self, place: Location, timeout_seconds: float = 60.0) -> None:
        """Serve what is below `place`.

        Args:
            place: The address of the container.
            timeout_seconds: How long to wait for a connection, and for the next bytes.
        """
        self._place = place
        self._connections = _Connections(place, timeout_seconds)
        self._threads: ThreadPoolExecutor | None = None
        self._owner = os.getpid()

    def read(self, wanted: VirtualRange) -> bytes:
        """The bytes of a range."""
        return wanted.completed(self._ask(wanted, _bytes_of))

    def status(self, location: Location) -> SourceStatus | None:
        """What its server says of a file when asked for its first byte; None if there is none."""
        return self._ask(VirtualRange(location, 0, 1), _status_of)

    def list(self, folder: Location) -> Iterator[ListedSource]:
        """Refuse: web servers do not tell which files they have."""
        raise unlistable(folder, "web servers do not list their files; name them one by one")

    async def read_async(self, wanted: VirtualRange) -> bytes:
        """Like `read`, without blocking the event loop."""
        if self._threads is None or self._owner != os.getpid():  # threads do not survive a fork
            self._threads = ThreadPoolExecutor(_MAX_CONNECTIONS, "icefloe-http")
            self._owner = os.getpid()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.read, wanted)

    def _ask(self, wanted: VirtualRange, understand: _Understand[_Answer]) -> _Answer:
        """What the server answers; redirects are followed inside of the container."""
        location = wanted.location
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._answer(location, wanted, understand)
            if not isinstance(answer, Location):
                return answer
            location = answer
        raise wanted.unreadable(f"its server redirects more than {_MAX_REDIRECTS} times")

    def _answer(
        self, location: Location, wanted: VirtualRange, understand: _Understand[_Answer]
    ) -> _Answer | Location:
        """What was asked for, or where the server says that it is."""
        problem = ""
        for attempt in range(_MAX_TRIES):
            if attempt:
                time.sleep(random.uniform(0, _FIRST_BACKOFF_SECONDS * 2**attempt))
            try:
                with self._connections.request(location, wanted) as response:
                    if response.status in _REDIRECTS:
                        target = response.getheader("Location", "")
                        return self._redirected(target, location, wanted)
                    if response.status not in _WORTH_ANOTHER_TRY:
                        return understand(response, wanted)
                    problem = f"its server answered {response.status} {response.reason}"
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            _logger.debug("attempt %s to read %s failed: %s", attempt + 1, location, problem)
        raise wanted.unreadable(problem)

    def _redirected(self, target: str, location: Location, wanted: VirtualRange) -> Location:
        try:
            address = urljoin(str(location), target)
            found = parse_location(address)
        except (InvalidInputError, ValueError):
            address, found = target, None
        if found is None or not found.is_below(self._place):
            # Only the host is shown: the rest may hold a signature.
            host = _host_of(address)
            raise wanted.unreadable(
                f"its server redirects to another place (on the host {host}), and only "
                f"{self._place} was authorized; write references to that place instead"
            )
        return found


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _bytes_of(response: http.client.HTTPResponse, wanted: VirtualRange) -> bytes:
    match response.status:
        case 200 | 206:
            return _body(response, wanted)
        case 404 | 410:
            raise wanted.missing()
        case 416:
            raise wanted.too_short("a file that is shorter than that")
        case status:
            raise wanted.unreadable(f"its server answered {status} {response.reason}")


def _status_of(response: http.client.HTTPResponse, wanted: VirtualRange) -> SourceStatus | None:
    match response.status:
        case 200:
            size = response.length
        case 206 | 416:
            total = response.getheader("Content-Range", "").rpartition("/")[2]
            size = whole_number(total)
        case 404 | 410:
            return None
        case status:
            raise wanted.unreadable(f"its server answered {status} {response.reason}")
    moment = _moment(response.getheader("Last-Modified"))
    modified = None if moment is None else int(moment.timestamp())
    return SourceStatus(size, response.getheader("ETag"), modified)


def _body(response: http.client.HTTPResponse, wanted: VirtualRange) -> bytes:
    encoding = response.getheader("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise wanted.unreadable(
            f"its server sends it encoded ({encoding}), which was not asked for"
        )
    wanted.verify_unchanged(
        response.getheader("ETag"), _moment(response.getheader("Last-Modified"))
    )
    start: int | None = 0
    if response.status == 206:
        content_range = response.getheader("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(content_range)
        start = whole_number(match[1]) if match else None
    if start != wanted.start:
        raise wanted.unreadable("its server does not serve ranges of files")
    return _read_up_to(response, wanted.length)


def _read_up_to(response: http.client.HTTPResponse, length: int) -> bytes:
    """The next bytes, piece by piece: memory is taken for bytes that came, not for promises."""
    promised = response.length
    data = bytearray()
    while len(data) < length:
        piece = response.read(min(_PIECE_BYTES, length - len(data)))
        if not piece:
            break
        data += piece
    if promised is not None and len(data) < min(promised, length):
        raise http.client.IncompleteRead(bytes(data))
    return bytes(data)


def _moment(header: str | None) -> datetime | None:
    try:
        return None if header is None else parsedate_to_datetime(header)
    except (ValueError, TypeError, OverflowError):
        return None


class _Connections:
    """Connections to one server that are kept for the next request."""

    def __init__(self, place: Location, timeout_seconds: float) -> None:
        self._place = place
        self._timeout = timeout_seconds
        self._idle: list[http.client.HTTPConnection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None

    def __del__(self) -> None:
        for connection in self._idle:
            connection.close()

    @contextmanager
    def request(
        self, location: Location, wanted: VirtualRange
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask for a range and give the answer, whose body is still to be read."""
        connection, response = self._sent(location, wanted)
        try:
            yield response
            if not response.isclosed():
                response.read(_PIECE_BYTES)  # what is left of a short error page
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close:
            self._keep(connection)
        else:
            connection.close()

    def _sent(
        self, location: Location, wanted: VirtualRange
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        headers = {
            "Range": f"bytes={wanted.start}-{wanted.end - 1}",
            "Accept-Encoding": "identity",
            "User-Agent": "icefloe",
        }
        while True:
            connection, is_new = self._take()
            try:
                connection.request("GET", self._target(location), headers=headers)
                return connection, connection.getresponse()
            except (ConnectionError, http.client.BadStatusLine, http.client.CannotSendRequest):
                connection.close()
                if is_new:
                    raise  # an old connection may have been closed by the server meanwhile
            except BaseException:
                connection.close()
                raise

    def _target(self, location: Location) -> str:
        address = str(location)
        if self._place.scheme == "http" and self._proxy() is not None:
            return address
        return urlsplit(address).path

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._owner != os.getpid():
                # Sockets that a parent process uses too: they stay with it.
                self._idle, self._owner = [], os.getpid()
            if self._idle:
                return self._idle.pop(), False
        return self._connected(), True

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if self._owner == os.getpid() and len(self._idle) < _MAX_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        host = self._place.host
        proxy = self._proxy()
        if self._place.scheme == "http":
            return http.client.HTTPConnection(proxy or host, timeout=self._timeout)
        if self._tls is None:
            import ssl

            self._tls = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            proxy or host, timeout=self._timeout, context=self._tls
        )
        if proxy is not None:
            connection.set_tunnel(host)
        return connection

    def _proxy(self) -> str | None:
        """Host and port of the proxy that the machine's settings name for this server."""
        from urllib.request import getproxies, proxy_bypass

        if proxy_bypass(self._place.host):
            return None
        proxy = getproxies().get(self._place.scheme)
        return None if proxy is None else urlsplit(proxy).netloc.rpartition("@")[2]
