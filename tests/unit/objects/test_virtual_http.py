"""Virtual chunks on web servers, with a server on loopback that can misbehave in every way."""

from __future__ import annotations

import asyncio
import os
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

from icefloe.config import VirtualChunkContainer
from icefloe.config.locations import parse_location
from icefloe.errors import InvalidInputError, VirtualChunkError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.objects.foreign import VirtualChunkResolver
from icefloe.objects.foreign.http import HttpSource
from icefloe.objects.foreign.source import VirtualRange
from icefloe.storage.access.stores import http_store

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = {
    "/data/x": b"0123456789",
    "/data/a b/ü%.nc": b"odd name",
    "/data/%2e%2e/x": b"a folder named by encoded dots",
    "/data/large": os.urandom(3 * 1024 * 1024),
    "/secret": b"secret",
}
CHANGED = "Tue, 14 Nov 2023 22:13:20 GMT"  # 1,700,000,000 seconds since 1970


class QuietServer(ThreadingHTTPServer):
    """Threads of its requests end with it, and a client that went away is no news."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass


class Server:
    """A web server in a thread: which requests it got, and how it shall answer the next ones."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.connections = 0
        self.behaviour: dict[str, Any] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_GET(self) -> None:
                outer.requests.append((self.path, dict(self.headers)))
                outer.answer(self)

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        statuses = self.behaviour.get("statuses")
        redirect = self.behaviour.get("redirects", {}).get(request.path)
        if statuses:
            self._send(request, statuses.pop(0), b"<html>not now</html>")
        elif redirect is not None:
            self._send(request, 302, b"", {"Location": redirect})
        elif (data := FILES.get(unquote(request.path))) is None:
            self._send(request, 404, b"<html>no such thing</html>")
        else:
            self._send_file(request, data)

    def _send_file(self, request: BaseHTTPRequestHandler, data: bytes) -> None:
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, len(data))
        headers = {"ETag": '"v1"', "Last-Modified": CHANGED, **self.behaviour.get("headers", {})}
        if self.behaviour.get("ignores ranges"):
            self._send(request, 200, data, headers)
        elif start >= len(data):
            self._send(request, 416, b"")
        else:
            begins = start + self.behaviour.get("shift", 0)
            headers.setdefault("Content-Range", f"bytes {begins}-{end - 1}/{len(data)}")
            self._send(request, 206, data[start:end], headers)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            if value:
                request.send_header(name, value)
        cut = self.behaviour.get("cuts", 0)
        request.send_header("Content-Length", str(len(body)))
        if self.behaviour.get("closes"):
            request.send_header("Connection", "close")
        request.end_headers()
        if cut and body:
            self.behaviour["cuts"] = cut - 1
            request.wfile.write(body[: len(body) // 2])
            request.close_connection = True
        else:
            request.wfile.write(body)
        if self.behaviour.get("drops idle connections"):
            request.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def other_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def source(server: Server, path: str = "/data/") -> HttpSource:
    return HttpSource(parse_location(server.url + path), timeout_seconds=20)


def wanted(
    server: Server, path: str = "/data/x", start: int = 0, length: int = 10, **checksum: Any
) -> VirtualRange:
    return VirtualRange(parse_location(server.url + path), start, length, **checksum)


class TestReading:
    def test_a_range_is_read(self, server: Server) -> None:
        assert source(server).read(wanted(server, start=3, length=4)) == b"3456"
        assert server.requests[0][1]["Range"] == "bytes=3-6"

    def test_through_a_resolver(self, server: Server) -> None:
        prefix = f"{server.url}/data/"
        container = VirtualChunkContainer(prefix, http_store({"timeout": "20s"}))
        resolver = VirtualChunkResolver({prefix: container}, {prefix: None})
        ref = VirtualRef(f"{server.url}/data/x", 2, 6)

        assert resolver.read(ref, 1, 2) == b"34"
        assert asyncio.run(resolver.read_async(ref, 0, 6)) == b"234567"
        with pytest.raises(VirtualChunkError, match="in no virtual chunk container"):
            resolver.read(VirtualRef(f"{server.url}/data/../secret", 0, 1), 0, 1)
        with pytest.raises(VirtualChunkError, match="in no virtual chunk container"):
            resolver.read(VirtualRef(f"{server.url}/data/%2e%2e/secret", 0, 1), 0, 1)
        assert len(server.requests) == 2

    def test_nothing_of_the_readers_is_sent(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hunter2")
        source(server).read(wanted(server))

        [(_, headers)] = server.requests
        assert not {"authorization", "cookie", "referer"} & {name.lower() for name in headers}

    def test_odd_names_are_encoded(self, server: Server) -> None:
        path = "/data/a b/ü%25.nc"

        assert source(server).read(wanted(server, path, 0, 8)) == b"odd name"
        assert server.requests[0][0] == "/data/a%20b/%C3%BC%25.nc"

    def test_dots_that_are_encoded_twice_stay_a_name(self, server: Server) -> None:
        assert source(server).read(wanted(server, "/data/%252e%252e/x", 0, 8)) == b"a folder"
        assert server.requests[0][0] == "/data/%252e%252e/x"

    def test_many_reads_share_connections(self, server: Server) -> None:
        http = source(server)

        async def read_all() -> list[bytes]:
            ranges = [wanted(server, start=index % 10, length=1) for index in range(100)]
            return await asyncio.gather(*map(http.read_async, ranges))

        assert b"".join(asyncio.run(read_all())) == b"0123456789" * 10
        assert server.connections <= 16

    def test_a_large_file_is_read_whole(self, server: Server) -> None:
        large = FILES["/data/large"]

        assert source(server).read(wanted(server, "/data/large", 0, len(large))) == large

    def test_an_unknown_option_of_the_container_is_refused(self, server: Server) -> None:
        prefix = f"{server.url}/data/"
        container = VirtualChunkContainer(prefix, http_store({"proxy_url": "http://127.0.0.1:9"}))
        resolver = VirtualChunkResolver({prefix: container}, {prefix: None})

        with pytest.raises(InvalidInputError, match="proxy_url"):
            resolver.read(VirtualRef(f"{prefix}x", 0, 1), 0, 1)


class TestRedirects:
    def test_below_the_container_are_followed(self, server: Server) -> None:
        server.behaviour["redirects"] = {"/data/old": "/data/older", "/data/older": "x"}

        assert source(server).read(wanted(server, "/data/old")) == b"0123456789"

    def test_to_another_server_are_refused(self, server: Server, other_server: Server) -> None:
        target = f"{other_server.url}/data/x?X-Amz-Signature=hunter2"
        server.behaviour["redirects"] = {"/data/x": target}

        with pytest.raises(VirtualChunkError, match="redirects to another place") as error:
            source(server).read(wanted(server))

        assert other_server.requests == []
        assert "hunter2" not in str(error.value)

    @pytest.mark.parametrize(
        "target",
        [
            "/secret",
            "../secret",
            "/data/%2e%2e/secret",
            "file:///etc/passwd",
            "http://169.254.169.254/latest/meta-data/",
            "http://user:password@127.0.0.1/data/x",
            "//127.0.0.1:1/data/x",
            "",
        ],
    )
    def test_out_of_the_container_are_refused(self, server: Server, target: str) -> None:
        server.behaviour["redirects"] = {"/data/old": target}

        with pytest.raises(VirtualChunkError, match="redirects"):
            source(server).read(wanted(server, "/data/old"))

        assert {path for path, _ in server.requests} == {"/data/old"}

    def test_in_circles_end(self, server: Server) -> None:
        server.behaviour["redirects"] = {"/data/old": "/data/older", "/data/older": "/data/old"}

        with pytest.raises(VirtualChunkError, match="more than 5 times"):
            source(server).read(wanted(server, "/data/old"))


class TestChecksums:
    def test_an_unchanged_file_is_read(self, server: Server) -> None:
        for checksum in (
            {"etag": '"v1"'},
            {"etag": "v1"},
            {"last_modified": 1_700_000_000},
            {"etag": "v1", "last_modified": 1_700_000_001},
        ):
            assert source(server).read(wanted(server, **checksum)) == b"0123456789"

    def test_a_changed_file_is_refused(self, server: Server) -> None:
        for checksum in ({"etag": '"v0"'}, {"last_modified": 1_699_999_999}):
            with pytest.raises(VirtualChunkError, match=r"chunk has changed.*/data/x"):
                source(server).read(wanted(server, **checksum))

    def test_a_server_that_does_not_tell_proves_nothing(self, server: Server) -> None:
        server.behaviour["headers"] = {"ETag": "", "Last-Modified": "yesterday"}

        for checksum in ({"etag": '"v1"'}, {"last_modified": 1_700_000_000}):
            with pytest.raises(VirtualChunkError, match="found None"):
                source(server).read(wanted(server, **checksum))

    def test_a_short_file_is_an_error_unless_the_checksum_proves_it(self, server: Server) -> None:
        with pytest.raises(VirtualChunkError, match="not enough data"):
            source(server).read(wanted(server, length=100))
        assert source(server).read(wanted(server, length=100, etag="v1")) == b"0123456789"


class TestTrouble:
    def test_a_missing_file_is_named(self, server: Server) -> None:
        with pytest.raises(VirtualChunkError, match="/data/nothing does not exist"):
            source(server).read(wanted(server, "/data/nothing"))

    def test_a_range_after_the_end(self, server: Server) -> None:
        with pytest.raises(VirtualChunkError, match="not enough data"):
            source(server).read(wanted(server, start=10))

    @pytest.mark.parametrize("status", [400, 401, 403, 418])
    def test_a_refusal_is_final(self, server: Server, status: int) -> None:
        server.behaviour["statuses"] = [status]

        with pytest.raises(VirtualChunkError, match=f"answered {status}"):
            source(server).read(wanted(server))
        assert len(server.requests) == 1

    def test_a_busy_server_is_asked_again(self, server: Server) -> None:
        server.behaviour["statuses"] = [503, 429, 500]

        assert source(server).read(wanted(server)) == b"0123456789"
        assert len(server.requests) == 4

    def test_a_server_that_stays_busy_is_given_up(self, server: Server) -> None:
        server.behaviour["statuses"] = [503] * 100

        with pytest.raises(VirtualChunkError, match="answered 503"):
            source(server).read(wanted(server))
        assert len(server.requests) == 5

    def test_a_body_that_was_cut_is_asked_for_again(self, server: Server) -> None:
        server.behaviour["cuts"] = 2

        assert source(server).read(wanted(server)) == b"0123456789"
        assert len(server.requests) == 3

    def test_a_connection_that_was_closed_meanwhile_is_replaced(self, server: Server) -> None:
        server.behaviour["drops idle connections"] = True
        http = source(server)

        for _ in range(20):
            assert http.read(wanted(server)) == b"0123456789"

    def test_a_server_that_closes_connections(self, server: Server) -> None:
        server.behaviour["closes"] = True
        http = source(server)

        assert http.read(wanted(server)) == http.read(wanted(server)) == b"0123456789"
        assert server.connections == 2

    def test_a_server_without_ranges_serves_the_beginning_of_files(self, server: Server) -> None:
        server.behaviour["ignores ranges"] = True
        http = source(server)

        assert http.read(wanted(server, "/data/large", 0, 5)) == FILES["/data/large"][:5]
        assert http.read(wanted(server, length=3)) == b"012"
        with pytest.raises(VirtualChunkError, match="does not serve ranges"):
            http.read(wanted(server, start=1, length=3))

    def test_another_range_than_asked_for_is_refused(self, server: Server) -> None:
        server.behaviour["shift"] = 1

        with pytest.raises(VirtualChunkError, match="does not serve ranges"):
            source(server).read(wanted(server, start=1, length=3))

    def test_an_encoded_body_is_refused(self, server: Server) -> None:
        server.behaviour["headers"] = {"Content-Encoding": "gzip"}

        with pytest.raises(VirtualChunkError, match=r"encoded \(gzip\)"):
            source(server).read(wanted(server))

    def test_a_server_that_is_not_there(self, server: Server) -> None:
        address = server.url
        server.stop()
        nowhere = HttpSource(parse_location(f"{address}/data/"), timeout_seconds=5)

        with pytest.raises(VirtualChunkError, match="Connection refused"):
            nowhere.read(VirtualRange(parse_location(f"{address}/data/x"), 0, 1))


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_opens_its_own_connections(server: Server) -> None:
    http = source(server)
    assert asyncio.run(http.read_async(wanted(server))) == b"0123456789"

    child = os.fork()
    if child == 0:
        try:
            data = http.read(wanted(server, start=1, length=2))
        except BaseException:  # noqa: BLE001 (whatever it is, the parent reports it)
            os._exit(2)
        os._exit(0 if data == b"12" else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert http.read(wanted(server)) == b"0123456789"


class Proxy(Server):
    """A proxy that answers for all servers."""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        request.path = urlsplit(request.path).path
        super().answer(request)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.stop()


class TestProxy:
    def test_the_proxy_of_the_environment_is_used_with_its_password(
        self, server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://me:p%40ss@"))
        assert source(server).read(wanted(server)) == b"0123456789"
        assert server.requests == []
        [(path, headers)] = proxy.requests
        assert path == f"{server.url}/data/x"
        assert headers["proxy-authorization"] == f"Basic {b64encode(b'me:p@ss').decode()}"

    def test_servers_that_are_excepted_are_asked_directly(
        self, server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert source(server).read(wanted(server)) == b"0123456789"
        assert proxy.requests == []


class TestStatus:
    @pytest.mark.parametrize("total", ["9" * 5_000, "", "*", "-1"])
    def test_a_size_that_is_none(self, server: Server, total: str) -> None:
        server.behaviour["headers"] = {"Content-Range": f"bytes 0-0/{total}"}
        status = source(server).status(parse_location(f"{server.url}/data/x"))
        assert status.size is None

    def test_size_etag_and_time(self, server: Server) -> None:
        status = source(server).status(parse_location(f"{server.url}/data/large"))
        assert (status.size, status.etag) == (3 * 1024 * 1024, '"v1"')
        assert status.last_modified == 1_700_000_000
        assert source(server).status(parse_location(f"{server.url}/data/nothing")) is None

    def test_of_a_server_without_ranges(self, server: Server) -> None:
        server.behaviour["ignores ranges"] = True
        assert source(server).status(parse_location(f"{server.url}/data/x")).size == 10

    def test_redirects_stay_inside(self, server: Server, other_server: Server) -> None:
        location = parse_location(f"{server.url}/data/old")
        server.behaviour["redirects"] = {"/data/old": "/data/x"}
        assert source(server).status(location).size == 10
        server.behaviour["redirects"] = {"/data/old": f"{other_server.url}/data/x"}
        with pytest.raises(VirtualChunkError, match="redirects to another place"):
            source(server).status(location)
        assert other_server.requests == []

    @pytest.mark.parametrize("target", ["http://[/x", "//[", "http://a]b/x"])
    def test_redirects_to_what_is_no_address_are_refused(self, server: Server, target: str) -> None:
        server.behaviour["redirects"] = {"/data/old": target}
        with pytest.raises(VirtualChunkError, match="redirects to another place"):
            source(server).status(parse_location(f"{server.url}/data/old"))

    def test_sizes_and_times_that_are_none_are_not_known(self, server: Server) -> None:
        server.behaviour["headers"] = {
            "Content-Range": f"bytes 0-0/{'9' * 5000}",
            "Last-Modified": "Mon, 01 Jan 99999 00:00:00 +99999999",
        }
        status = source(server).status(parse_location(f"{server.url}/data/x"))
        assert (status.size, status.last_modified) == (None, None)

    def test_refusals_are_errors_and_no_absence(self, server: Server) -> None:
        server.behaviour["statuses"] = [403]
        with pytest.raises(VirtualChunkError, match="403"):
            source(server).status(parse_location(f"{server.url}/data/x"))

    def test_files_are_not_listed(self, server: Server) -> None:
        with pytest.raises(VirtualChunkError, match="name them one by one"):
            source(server).list(parse_location(f"{server.url}/data/"))
