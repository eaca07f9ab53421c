"""Who is let in, what is never served, and that nothing can be changed."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from icefloe import InvalidInputError, Repository
from icefloe.storage.memory import MemoryStorage
from icefloe.viewer.server import Viewer
from tests.viewer.repositories import climate_repository
from tests.viewer.serving import served
from tests.viewer.test_answers import CountingStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message


class Answer(NamedTuple):
    status: int
    headers: Message
    text: str


class Client:
    """Sends requests as they are, without tidying up their paths."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.cookie = ""

    def get(
        self, address: str, *, method: str = "GET", host: str | None = None, cookie: str = ""
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.viewer.port, timeout=60)
        try:
            connection.putrequest(method, address, skip_host=True)
            connection.putheader("Host", f"127.0.0.1:{self.viewer.port}" if host is None else host)
            connection.putheader("Cookie", cookie or self.cookie)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def storage() -> CountingStorage:
    return CountingStorage(MemoryStorage())


@pytest.fixture(scope="module")
def viewer(storage: CountingStorage) -> Iterator[Viewer]:
    with served(climate_repository(storage)) as viewer:
        yield viewer


@pytest.fixture
def stranger(viewer: Viewer) -> Client:
    return Client(viewer)


@pytest.fixture
def user(viewer: Viewer) -> Client:
    client = Client(viewer)
    client.cookie = f"icefloe-{viewer.port}={viewer.token}"
    return client


ADDRESSES = ["/", "/viewer.js", "/api/summary", "/api/tree?version=main", "/nothing"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_is_shown_without_the_token(stranger: Client, address: str) -> None:
    port, token = stranger.viewer.port, stranger.viewer.token
    join = "&" if "?" in address else "?"
    assert stranger.get(address).status == 403
    assert stranger.get(f"{address}{join}token={token}x").status == 403
    assert stranger.get(f"{address}{join}token=").status == 403
    assert stranger.get(address, cookie=f"icefloe-{port}=guess").status == 403
    assert stranger.get(address, cookie=f"icefloe-{port + 1}={token}").status == 403
    assert stranger.get(address, cookie="=;=; icefloe").status == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(stranger: Client) -> None:
    answer = stranger.get(f"/?token={stranger.viewer.token}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert stranger.get("/api/summary", cookie=cookie.partition(";")[0]).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1", "PORT", ""])
def test_other_names_of_the_server_are_refused(user: Client, host: str) -> None:
    name = host.replace("PORT", str(user.viewer.port))
    assert user.get("/api/summary", host=name).status in (400, 403)
    assert user.get(f"/?token={user.viewer.token}", host=name).status in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "[::1]"])
def test_names_of_loopback_are_accepted(user: Client, host: str) -> None:
    assert user.get("/api/summary", host=f"{host}:{user.viewer.port}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("address", ["/", "/api/summary", "/api/history"])
def test_only_reading_methods_are_answered(user: Client, method: str, address: str) -> None:
    assert user.get(address, method=method).status == 405


def test_no_question_writes_anything(user: Client, storage: CountingStorage) -> None:
    storage.clear()
    plane = "rows=1&columns=2&at=0,0,0&path=/surface/t2m"
    for question in (
        "summary",
        "history?count=5",
        "commit?version=main",
        "tree?version=main",
        "node?version=main&path=/surface/t2m",
        "sizes?version=main&path=/",
        "chunks?version=main&path=/surface/t2m&rows=1&columns=2",
        f"picture?version=main&{plane}",
        f"difference?from=v1&to=main&{plane}",
        "changes?from=v1&to=main",
    ):
        answer = user.get(f"/api/{question}")
        assert answer.status == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
    assert storage.writes == []


@pytest.mark.parametrize(
    "address",
    [
        "/../server.py",
        "/%2e%2e/server.py",
        "/..%2f..%2fetc%2fpasswd",
        "/page/index.html",
        "//etc/passwd",
        "/index.html",
        "/api/../viewer.js/x",
        "/api/node?version=main&path=../../../etc/passwd",
        "/api/node?version=main&path=%2Fsurface%2F..%2F..%2Fx",
    ],
)
def test_paths_lead_nowhere_else(user: Client, address: str) -> None:
    answer = user.get(address)
    assert answer.status in (400, 404)
    assert "root:" not in answer.text
    assert "import " not in answer.text


@pytest.mark.parametrize(
    "question",
    [
        "picture?version=main&path=/surface/t2m&rows=1&columns=x&at=0,0,0",
        "picture?version=main&path=/surface/t2m&rows=1&columns=2&at=0,-1,0",
        "picture?version=main&path=/surface/t2m&rows=1&columns=99999999999999999999&at=0,0,0",
        "picture?version=main",
        "history?count=abc",
        "history?cursor=%00",
        "tree?version=main@{never}",
    ],
)
def test_wrong_arguments_get_a_sentence(user: Client, question: str) -> None:
    answer = user.get(f"/api/{question}")
    assert answer.status == 400
    assert json.loads(answer.text)["error"]


def test_answers_have_headers_that_lock_the_page_in(user: Client) -> None:
    headers = user.get("/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_the_server_listens_on_loopback_only_with_a_new_token(viewer: Viewer) -> None:
    repository = Repository.create(MemoryStorage())
    other = Viewer(repository)
    try:
        assert viewer._socket.getsockname()[0] == other._socket.getsockname()[0] == "127.0.0.1"
        assert viewer.token != other.token
        assert len(other.token) >= 32
        with pytest.raises(InvalidInputError, match="cannot be used"):
            Viewer(repository, viewer.port)
    finally:
        other.close()
