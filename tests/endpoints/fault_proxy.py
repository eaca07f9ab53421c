"""A proxy before an object store that loses, doubles and delays answers, in a thread."""

from __future__ import annotations

import http.client
import random
import threading
import time
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tests import counting
from tests.endpoints.processes import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Trouble(Enum):
    """What happens to a request. "After" means that the store has done what was asked."""

    DROP_BEFORE = "connection closed before"
    DROP_AFTER = "connection closed after"
    ERROR_500_BEFORE = "500 before"
    ERROR_500_AFTER = "500 after"
    ERROR_503_BEFORE = "503 before"
    ERROR_503_AFTER = "503 after"
    THROTTLED = "429"
    CONFLICT_409 = "409 though nothing is there"
    TIMEOUT_BEFORE = "no answer, nothing done"
    TIMEOUT_AFTER = "no answer after"
    TWICE = "delivered twice"
    FORBIDDEN = "403 before"


_STATUS = {
    Trouble.ERROR_500_BEFORE: 500,
    Trouble.ERROR_500_AFTER: 500,
    Trouble.ERROR_503_BEFORE: 503,
    Trouble.ERROR_503_AFTER: 503,
    Trouble.THROTTLED: 429,
    Trouble.CONFLICT_409: 409,
    Trouble.FORBIDDEN: 403,
}
_BEFORE = frozenset(
    {
        Trouble.DROP_BEFORE,
        Trouble.ERROR_500_BEFORE,
        Trouble.ERROR_503_BEFORE,
        Trouble.THROTTLED,
        Trouble.CONFLICT_409,
        Trouble.TIMEOUT_BEFORE,
        Trouble.FORBIDDEN,
    }
)
_CLIENT_GIVES_UP_WITHIN_SECONDS = 3


class FaultProxy:
    """Forwards to a store; `plan` and `storm` say what happens to requests."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target).netloc
        self._lock = threading.Lock()
        self._plans: list[tuple[str, str, Trouble, int]] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.struck = 0
        self._storm: Callable[[], Trouble | None] = lambda: None
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self.server = _Server((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self.server.server_port}"

    def plan(self, trouble: Trouble, *, method: str, path: str, times: int = 1) -> None:
        """Let the next `times` requests of a method, whose path ends so, come to grief."""
        with self._lock:
            self._plans.append((method, path, trouble, times))

    def storm(self, troubles: Sequence[Trouble], share: float, seed: int) -> None:
        """From now on, let a share of all requests come to grief, one way or another."""
        chance = random.Random(seed)

        def next_one() -> Trouble | None:
            return chance.choice(troubles) if chance.random() < share else None

        with self._lock:
            self._storm = next_one

    def calm(self) -> None:
        """End a storm."""
        with self._lock:
            self._storm = lambda: None

    def next_trouble(self, method: str, path: str) -> Trouble | None:
        with self._lock:
            self.requests.append((method, path))
            for index, (planned, end, trouble, left) in enumerate(self._plans):
                if planned == method and unquote(urlsplit(path).path).endswith(end):
                    if left > 1:
                        self._plans[index] = (planned, end, trouble, left - 1)
                    else:
                        del self._plans[index]
                    self.struck += 1
                    counting.count(counting.FAULTS)
                    return trouble
            struck = self._storm()
            self.struck += struck is not None
            counting.count(counting.FAULTS, struck is not None)
            return struck

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        connection = http.client.HTTPConnection(self._target, timeout=30)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """Say nothing: a client that hung up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: FaultProxy

    def log_message(self, *_: Any) -> None:
        pass

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = dict(self.headers.items())
        self.owner.headers.append(headers)
        trouble = self.owner.next_trouble(self.command, self.path)
        request = (self.command, self.path, headers, body)
        if trouble in _BEFORE:
            self.fail(trouble)
            return
        answer = self.owner.forward(*request)
        if trouble is Trouble.TWICE:
            answer = self.owner.forward(*request)
        elif trouble is not None:
            self.fail(trouble)
            return
        status, answered, content = answer
        self.send_response_only(status)
        for name, value in answered:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {n.lower(): v for n, v in answered}.get("content-length")
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", length if is_head and length else str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    def fail(self, trouble: Trouble | None) -> None:
        self.close_connection = True
        if trouble in (Trouble.TIMEOUT_BEFORE, Trouble.TIMEOUT_AFTER):
            time.sleep(_CLIENT_GIVES_UP_WITHIN_SECONDS)
        elif trouble in _STATUS:
            self.send_response_only(_STATUS[trouble])
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")
            self.end_headers()


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    proxy = FaultProxy(target)
    thread = threading.Thread(target=proxy.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
        thread.join()
