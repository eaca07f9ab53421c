"""Headers that callers give, and addresses that redirect to a repository, on loopback."""

from __future__ import annotations

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe import (
    InvalidInputError,
    ObjectNotFoundError,
    ReadOnlyError,
    Repository,
    StorageError,
    StorageUnreachableError,
    redirect_storage,
)
from tests.endpoints.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.storage.object_store import ObjectStorage

Answer = tuple[int, dict[str, str]] | tuple[int, dict[str, str], str]


@contextmanager
def server(
    answer: Callable[[str, str], Answer],
    log: list[tuple[str, dict[str, str]]],
    bodies: list[bytes] | None = None,
) -> Any:
    """A web server that answers as a function of method and path says, and notes the headers.

    And the bodies, for whoever gives a list for them.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            log.append((self.command, dict(self.headers.items())))
            received = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if bodies is not None:
                bodies.append(received)
            status, headers, *text = answer(self.command, self.path)
            body = "".join(text).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = respond  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def bucket(method: str, _: str) -> Answer:
    return (200, {"ETag": '"1"'}) if method == "PUT" else (404, {})


@pytest.fixture
def log() -> list[tuple[str, dict[str, str]]]:
    return []


@pytest.fixture
def bucket_url(log: list[tuple[str, dict[str, str]]]) -> Iterator[str]:
    with server(bucket, log) as url:
        yield url


def storage_at(url: str, **options: Any) -> ObjectStorage:
    return icefloe.s3_storage(
        bucket="b",
        prefix="p",
        region="us-east-1",
        endpoint_url=url,
        allow_http=True,
        access_key_id="key",
        secret_access_key="secret",
        **options,
    )


def use(storage: ObjectStorage) -> None:
    with pytest.raises(ObjectNotFoundError):
        storage.get("a")
    storage.put("a", b"data")


def test_reads_and_writes_have_headers_of_their_own(
    bucket_url: str, log: list[tuple[str, dict[str, str]]]
) -> None:
    storage = storage_at(
        bucket_url,
        headers={"x-team": "ocean", "x-what": "both"},
        read_headers={"x-what": "read"},
        write_headers={"x-what": "write"},
    )
    use(storage)
    sent = {method: (headers["x-team"], headers["x-what"]) for method, headers in log}
    assert sent == {"GET": ("ocean", "read"), "PUT": ("ocean", "write")}
    assert "ocean" not in repr(storage)


def test_requests_say_who_sends_them(
    bucket_url: str, log: list[tuple[str, dict[str, str]]]
) -> None:
    use(storage_at(bucket_url))
    assert {headers["user-agent"] for _, headers in log} == {icefloe.user_agent()}
    log.clear()
    labels = icefloe.Attribution(client="app/1.2", workload="nightly", principal="ocean")
    with pytest.raises(icefloe.StoragePermissionError):  # it has no bucket
        Repository.open(storage_at(bucket_url), attribution=labels)
    expected = f"{icefloe.user_agent()} (workload=nightly; principal=ocean) app/1.2"
    assert {headers["user-agent"] for _, headers in log} == {expected}


@pytest.mark.parametrize(
    "labels", [{"client": "two words"}, {"workload": "a\r\nx: y"}, {"principal": "p" * 200}]
)
def test_labels_that_no_header_can_have_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="of an attribution is"):
        icefloe.Attribution(**labels)


def test_s3_is_asked_to_verify_a_checksum(
    bucket_url: str, log: list[tuple[str, dict[str, str]]]
) -> None:
    use(storage_at(bucket_url, checksum_algorithm=icefloe.ChecksumAlgorithm.Sha256))
    [written] = [headers for method, headers in log if method == "PUT"]
    assert "x-amz-checksum-sha256" in written
    with pytest.raises(InvalidInputError, match=r"Sha256 only, found ChecksumAlgorithm\.Crc32c"):
        storage_at(bucket_url, checksum_algorithm=icefloe.ChecksumAlgorithm.Crc32c)


def test_the_old_layout_of_keys_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="begin with a slash"):
        icefloe.s3_storage(bucket="b", prefix=None, anonymous=True, legacy_rooted_keys=True)


def test_web_servers_get_the_headers_too(log: list[tuple[str, dict[str, str]]]) -> None:
    with server(lambda *_: (404, {}), log) as url:
        storage = icefloe.http_storage(url, {"allow_http": "true"}, {"Authorization": "Bearer t"})
        with pytest.raises(ObjectNotFoundError):
            storage.get("a")
    assert log[0][1]["authorization"] == "Bearer t"


# --- redirects


def test_a_redirect_leads_to_a_bucket_that_is_only_read(
    bucket_url: str, log: list[tuple[str, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    target = f"s3://b/repo?region=us-east-1&endpoint_url={bucket_url}&allow_http=true"
    hops = {"/first": "/second", "/second": target}
    with server(lambda _, path: (307, {"Location": hops[path]}), []) as url:
        storage = redirect_storage(f"{url}/first")
    assert storage.location.startswith("s3://b/repo")
    with pytest.raises(ObjectNotFoundError):
        storage.get("a")
    assert "authorization" not in {name.lower() for name in log[0][1]}  # anonymous
    with pytest.raises(ReadOnlyError):
        storage.put("a", b"data")


@pytest.mark.parametrize("more", ["", "&anonymous=false", "&anonymous=false&anonymous=0"])
@pytest.mark.parametrize(
    "target",
    [
        "s3://b/repo?region=us-east-1&endpoint_url={}&allow_http=true",
        "az://account/container/repo?endpoint={}&allow_http=true",
    ],
)
def test_a_redirect_does_not_lead_credentials_to_a_server_of_its_choice(
    bucket_url: str,
    log: list[tuple[str, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    more: str,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    location = target.format(bucket_url) + more
    with server(lambda *_: (302, {"Location": location}), []) as url:
        storage = redirect_storage(url)
    with pytest.raises(ObjectNotFoundError):
        storage.get("a")
    names = {name.lower() for _, headers in log for name in headers}
    assert names
    assert not names & {"authorization", "x-amz-security-token"}


def test_a_redirect_does_not_make_the_reader_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    location = "s3://b/repo?region=us-east-1&requester_pays=true"
    with (
        server(lambda *_: (302, {"Location": location}), []) as url,
        pytest.raises(StorageError, match="requester_pays"),
    ):
        redirect_storage(url)


def test_a_redirect_leads_to_a_web_server() -> None:
    with server(lambda *_: (302, {"Location": "https+icechunk://example.org/repo"}), []) as url:
        assert redirect_storage(url).location == "https://example.org/repo"


@pytest.mark.parametrize("target", ["file:///etc", "memory://other", "gopher://x"])
def test_a_server_does_not_lead_to_local_files(target: str) -> None:
    with (
        server(lambda *_: (302, {"Location": target}), []) as url,
        pytest.raises(StorageError, match="which is none of"),
    ):
        redirect_storage(url)


def test_addresses_that_redirect_nowhere() -> None:
    with (
        server(lambda *_: (200, {}), []) as url,
        pytest.raises(StorageError, match="answers 200 and redirects nowhere"),
    ):
        redirect_storage(url)
    with (
        server(lambda *_: (302, {"Location": "/again"}), []) as url,
        pytest.raises(StorageError, match="redirects more than 10 times"),
    ):
        redirect_storage(url)
    with pytest.raises(StorageUnreachableError, match="cannot be reached"):
        redirect_storage(f"http://127.0.0.1:{free_port()}/repo")
    with pytest.raises(InvalidInputError, match="starts with http"):
        redirect_storage("s3://bucket/repo")
