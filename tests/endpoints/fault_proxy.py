"""A proxy before an object store that loses, doubles and delays answers, in a thread."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from icefloe.storage.settings import StorageSettings, StorageTimeoutSettings
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
    RESET_BEFORE = "connection reset before"
    SLOW_SENDER_400 = "400 because the request came too slowly"
    CLOSE_AFTER = "the whole store is gone after"
    PRECONDITION_412 = "412 though no condition failed"
    CUT_AT_ONCE = "no byte of the body"
    CUT_EARLY = "a tenth of the body"
    CUT_HALFWAY = "half of the body"
    CUT_LATE = "all but the last byte of the body"


_STATUS = {
    Trouble.ERROR_500_BEFORE: 500,
    Trouble.ERROR_500_AFTER: 500,
    Trouble.ERROR_503_BEFORE: 503,
    Trouble.ERROR_503_AFTER: 503,
    Trouble.THROTTLED: 429,
    Trouble.CONFLICT_409: 409,
    Trouble.FORBIDDEN: 403,
    Trouble.PRECONDITION_412: 412,
    Trouble.SLOW_SENDER_400: 400,
}
_BODIES = {Trouble.SLOW_SENDER_400: b"<Error><Code>RequestTimeout</Code></Error>"}
_CUTS = {
    Trouble.CUT_AT_ONCE: lambda size: 0,
    Trouble.CUT_EARLY: lambda size: size // 10,
    Trouble.CUT_HALFWAY: lambda size: size // 2,
    Trouble.CUT_LATE: lambda size: max(0, size - 1),
}
CUTS = tuple(_CUTS)
"""Answers whose body breaks off; those without a body are not harmed."""
_BEFORE = frozenset(
    {
        Trouble.DROP_BEFORE,
        Trouble.ERROR_500_BEFORE,
        Trouble.ERROR_503_BEFORE,
        Trouble.THROTTLED,
        Trouble.CONFLICT_409,
        Trouble.TIMEOUT_BEFORE,
        Trouble.FORBIDDEN,
        Trouble.RESET_BEFORE,
        Trouble.PRECONDITION_412,
        Trouble.SLOW_SENDER_400,
    }
)
_CLIENT_GIVES_UP_WITHIN_SECONDS = 3


@dataclass
class _Plan:
    method: str
    path: str
    trouble: Trouble
    times: int
    skip: int

    def strikes(self, method: str, path: str) -> bool:
        if not self.times or method != self.method:
            return False
        if not unquote(urlsplit(path).path).endswith(self.path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class FaultProxy:
    """Forwards to a store; `plan` and `storm` say what happens to requests."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target).netloc
        self._lock = threading.Lock()
        self._plans: list[_Plan] = []
        self._meanwhile: list[tuple[_Plan, Callable[[], object]]] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.written: dict[str, dict[str, str]] = {}
        """Headers of the last PUT to each path."""
        self.struck = 0
        self._storm: Callable[[], Trouble | None] = lambda: None
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self.server = _Server((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self.server.server_port}"

    def plan(
        self, trouble: Trouble, *, method: str, path: str, times: int = 1, skip: int = 0
    ) -> None:
        """Let `times` requests of a method, whose path ends so, come to grief after `skip`."""
        with self._lock:
            self._plans.append(_Plan(method, path, trouble, times, skip))

    def before_next(self, method: str, path: str, act: Callable[[], object]) -> None:
        """Do something when the next request of a method, whose path ends so, has come in."""
        with self._lock:
            self._meanwhile.append((_Plan(method, path, Trouble.TWICE, 1, 0), act))

    def begin(self, method: str, path: str) -> None:
        """Do what was to be done before a request."""
        with self._lock:
            acts = [act for plan, act in self._meanwhile if plan.strikes(method, path)]
        for act in acts:
            act()

    def storm(self, troubles: Sequence[Trouble], share: float, seed: int) -> None:
        """From now on, let a share of all requests come to grief, one way or another."""
        chance = random.Random(seed)

        def next_one() -> Trouble | None:
            return chance.choice(troubles) if chance.random() < share else None

        with self._lock:
            self._storm = next_one

    def forget_plans(self) -> None:
        """From now on, let requests pass for which trouble was planned."""
        with self._lock:
            self._plans.clear()

    def calm(self) -> None:
        """End a storm."""
        with self._lock:
            self._storm = lambda: None

    def next_trouble(self, method: str, path: str) -> Trouble | None:
        with self._lock:
            self.requests.append((method, path))
            for plan in self._plans:
                if plan.strikes(method, path):
                    self.struck += 1
                    counting.count(counting.FAULTS)
                    return plan.trouble
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
        if self.command == "PUT":
            self.owner.written[unquote(urlsplit(self.path).path)] = headers
        self.owner.begin(self.command, self.path)
        trouble = self.owner.next_trouble(self.command, self.path)
        request = (self.command, self.path, headers, body)
        if trouble in _BEFORE:
            self.fail(trouble)
            return
        answer = self.owner.forward(*request)
        if trouble is Trouble.TWICE:
            answer = self.owner.forward(*request)
        elif trouble is not None and trouble not in _CUTS:
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
        if trouble in _CUTS:
            self.close_connection = True
            content = content[: _CUTS[trouble](len(content))]
        if not is_head:
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

    def fail(self, trouble: Trouble | None) -> None:
        self.close_connection = True
        if trouble is Trouble.RESET_BEFORE:
            self.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # closing it then sends RST
            self.connection.close()
        elif trouble in (Trouble.TIMEOUT_BEFORE, Trouble.TIMEOUT_AFTER):
            time.sleep(_CLIENT_GIVES_UP_WITHIN_SECONDS)
        elif trouble in _STATUS:
            self.send_response_only(_STATUS[trouble])
            body = _BODIES.get(trouble, b"")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
        elif trouble is Trouble.CLOSE_AFTER:
            self.server.socket.close()  # type: ignore[attr-defined]


IMPATIENT = StorageSettings(timeouts=StorageTimeoutSettings(operation_attempt_timeout_ms=1000))
"""Settings for storages behind a proxy, which may swallow a request."""


@contextmanager
def troubled(target: str) -> Iterator[FaultProxy]:
    """A proxy for a test that is about trouble: it must have struck."""
    with fault_proxy(target) as proxy:
        yield proxy
        assert proxy.struck, "the trouble that this test is about never happened"


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
