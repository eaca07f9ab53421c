"""Virtual chunks in object stores: with the credential that was given, and with no other."""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.config import VirtualChunkContainer
from icefloe.errors import InvalidInputError, VirtualChunkError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.objects.foreign import VirtualChunkResolver
from icefloe.storage.access.credentials import (
    azure_credentials,
    containers_credentials,
    gcs_credentials,
    s3_from_env_credentials,
    s3_static_credentials,
)
from icefloe.storage.access.stores import azure_store, gcs_store, s3_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.endpoints.fixtures import GcsEndpoint, S3Endpoint

DATA = b"0123456789"


def resolver(container: VirtualChunkContainer, credential: Any = None) -> VirtualChunkResolver:
    prefix = container.url_prefix
    return VirtualChunkResolver({prefix: container}, containers_credentials({prefix: credential}))


class Recorder:
    """A server that answers every request alike and keeps what it was sent."""

    redirect: str | None = None

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.path, headers))
                if outer.redirect is not None:
                    self.send_response(307)
                    self.send_header("Location", outer.redirect)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Length", str(len(DATA)))
                self.send_header("Content-Range", f"bytes 0-{len(DATA) - 1}/{len(DATA)}")
                self.send_header("ETag", '"v1"')
                self.send_header("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")
                self.end_headers()
                self.wfile.write(DATA)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.stop()


@pytest.fixture
def other_recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.stop()


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that the machine happens to have."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AMBIENTCANARY",
        "AWS_SECRET_ACCESS_KEY": "ambient-canary-secret",
        "AWS_SESSION_TOKEN": "ambient-canary-token",
        "AZURE_STORAGE_ACCOUNT_KEY": "YW1iaWVudC1jYW5hcnk=",
        "AZURE_STORAGE_TOKEN": "ambient-canary-token",
    }.items():
        monkeypatch.setenv(name, value)


class TestCredentials:
    def s3(self, recorder: Recorder) -> VirtualChunkContainer:
        store = s3_store("us-east-1", recorder.url, allow_http=True, s3_compatible=True)
        return VirtualChunkContainer("s3://bucket/data/", store)

    @pytest.mark.usefixtures("surroundings")
    def test_none_signs_nothing_whatever_the_machine_has(self, recorder: Recorder) -> None:
        ref = VirtualRef("s3://bucket/data/x", 0, 10)

        assert resolver(self.s3(recorder)).read(ref, 0, 10) == DATA

        [(path, headers)] = recorder.requests
        assert path == "/bucket/data/x"
        assert "authorization" not in headers
        assert "canary" not in str(recorder.requests).lower()

    @pytest.mark.usefixtures("surroundings")
    def test_the_given_one_is_used_alone(self, recorder: Recorder) -> None:
        credential = s3_static_credentials(access_key_id="GIVENKEY", secret_access_key="given")
        ref = VirtualRef("s3://bucket/data/x", 0, 10)

        assert resolver(self.s3(recorder), credential).read(ref, 0, 10) == DATA

        [(_, headers)] = recorder.requests
        assert "Credential=GIVENKEY/" in headers["authorization"]
        assert "canary" not in str(recorder.requests).lower()

    @pytest.mark.usefixtures("surroundings")
    def test_the_machines_own_is_used_if_that_was_said(self, recorder: Recorder) -> None:
        ref = VirtualRef("s3://bucket/data/x", 0, 10)

        assert resolver(self.s3(recorder), s3_from_env_credentials()).read(ref, 0, 10) == DATA

        [(_, headers)] = recorder.requests
        assert "Credential=AMBIENTCANARY/" in headers["authorization"]

    @pytest.mark.usefixtures("surroundings")
    def test_none_signs_nothing_on_other_stores(self, recorder: Recorder) -> None:
        options = {"allow_http": "true"}
        gcs = gcs_store({"base_url": recorder.url, **options})
        azure = azure_store(account="someone", config={"endpoint": recorder.url, **options})

        for prefix, store in (("gs://bucket/", gcs), ("az://bucket/", azure)):
            container = VirtualChunkContainer(prefix, store)
            assert resolver(container).read(VirtualRef(f"{prefix}x", 0, 10), 0, 10) == DATA

        assert len(recorder.requests) == 2
        assert not any("authorization" in headers for _, headers in recorder.requests)
        assert "canary" not in str(recorder.requests).lower()

    def test_names_are_decoded_once(self, recorder: Recorder) -> None:
        reader = resolver(self.s3(recorder))
        names = {"a b": "a%20b", "a%20b": "a%20b", "a%2520b": "a%2520b", "%252e%252e": "%252e%252e"}

        for name, sent in names.items():
            reader.read(VirtualRef(f"s3://bucket/data/{name}", 0, 10), 0, 10)
            assert recorder.requests[-1][0] == f"/bucket/data/{sent}"

    @pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
    def test_a_redirect_to_another_server_is_not_followed(
        self, recorder: Recorder, other_recorder: Recorder, kind: str
    ) -> None:
        port = other_recorder.url.rpartition(":")[2]
        recorder.redirect = f"http://localhost:{port}/bucket/data/x"  # the same machine by name
        options = {"allow_http": "true"}
        container = {
            "s3": self.s3(recorder),
            "gcs": VirtualChunkContainer(
                "gs://bucket/data/", gcs_store({"base_url": recorder.url, **options})
            ),
            "azure": VirtualChunkContainer(
                "az://bucket/data/",
                azure_store(account="a", config={"endpoint": recorder.url, **options}),
            ),
        }[kind]

        with pytest.raises(VirtualChunkError, match="cannot read"):
            resolver(container).read(VirtualRef(f"{container.url_prefix}x", 0, 10), 0, 10)

        assert recorder.requests
        assert other_recorder.requests == []

    def test_an_azure_container_needs_an_account(self) -> None:
        container = VirtualChunkContainer("az://bucket/", azure_store(account="a"))
        del container.store.opts["account"]

        with pytest.raises(InvalidInputError, match="'account'"):
            resolver(container).read(VirtualRef("az://bucket/x", 0, 1), 0, 1)

    def test_nothing_but_containers_of_the_configuration_is_asked(self, recorder: Recorder) -> None:
        reader = resolver(self.s3(recorder))

        for location in (
            "s3://bucket/x",
            "s3://bucket/data/../x",
            "s3://bucket/data/%2e%2e/x",
            "s3://bucket/data-evil/x",
            "s3://other/data/x",
        ):
            with pytest.raises(VirtualChunkError, match="edit the repository configuration"):
                reader.read(VirtualRef(location, 0, 1), 0, 1)
        assert recorder.requests == []


@pytest.mark.endpoint
class TestStores:
    """The same on every kind of store."""

    @pytest.fixture(params=["s3", "gcs", "azure"])
    def place(self, request: pytest.FixtureRequest) -> tuple[VirtualChunkContainer, Any, str]:
        """A container, its credential, and the URL of a folder with the object `x` in it."""
        endpoint = request.getfixturevalue(f"{request.param}_endpoint")
        storage = endpoint.storage()
        storage.put("x", DATA)
        folder = storage.location.partition("?")[0].rpartition("tests/")[2]
        store: Any
        credential: Any
        match request.param:
            case "s3":
                prefix = f"s3://{endpoint.bucket}/tests/"
                store = s3_store(
                    endpoint.region, endpoint.endpoint_url, allow_http=True, s3_compatible=True
                )
                credential = s3_static_credentials(
                    access_key_id=endpoint.access_key_id,
                    secret_access_key=endpoint.secret_access_key,
                )
            case "gcs":
                prefix = f"gs://{endpoint.bucket}/tests/"
                store = gcs_store({"base_url": endpoint.endpoint_url, "allow_http": "true"})
                credential = gcs_credentials(bearer_token=endpoint.token)
            case _:
                prefix = f"az://{endpoint.container}/tests/"
                address = f"{endpoint.endpoint_url}/{endpoint.account}"
                store = azure_store(
                    account=endpoint.account, config={"endpoint": address, "allow_http": "true"}
                )
                credential = azure_credentials(access_key=endpoint.key)
        return VirtualChunkContainer(prefix, store), credential, f"{prefix}{folder}"

    def test_a_range_is_read(self, place: tuple[Any, ...]) -> None:
        container, credential, folder = place
        reader = resolver(container, credential)
        ref = VirtualRef(f"{folder}/x", 2, 6)

        assert reader.read(ref, 0, 6) == b"234567"
        assert reader.read(ref, 1, 2) == b"34"
        assert asyncio.run(reader.read_async(ref, 5, 1)) == b"7"

    def test_a_missing_object_is_named(self, place: tuple[Any, ...]) -> None:
        container, credential, folder = place
        reader = resolver(container, credential)

        with pytest.raises(VirtualChunkError, match=r"/nothing does not exist"):
            reader.read(VirtualRef(f"{folder}/nothing", 0, 1), 0, 1)
        with pytest.raises(VirtualChunkError, match=r"/nothing does not exist"):
            asyncio.run(reader.read_async(VirtualRef(f"{folder}/nothing", 0, 1), 0, 1))

    def test_too_few_bytes_are_an_error_unless_the_checksum_proves_the_object(
        self, place: tuple[Any, ...]
    ) -> None:
        container, credential, folder = place
        reader = resolver(container, credential)

        with pytest.raises(VirtualChunkError, match="not enough data"):
            reader.read(VirtualRef(f"{folder}/x", 5, 6), 0, 6)
        with pytest.raises(VirtualChunkError, match="not enough data"):
            reader.read(VirtualRef(f"{folder}/x", 10, 1), 0, 1)
        future = VirtualRef(f"{folder}/x", 5, 6, None, 4_294_111_232)
        assert reader.read(future, 0, 6) == b"56789"

    def test_a_changed_object_is_refused(self, place: tuple[Any, ...]) -> None:
        container, credential, folder = place
        reader = resolver(container, credential)

        for checksum in (('"other"', None), (None, 1_600_000_000)):
            ref = VirtualRef(f"{folder}/x", 0, 10, *checksum)
            with pytest.raises(VirtualChunkError, match="chunk has changed"):
                reader.read(ref, 0, 10)
            with pytest.raises(VirtualChunkError, match="chunk has changed"):
                asyncio.run(reader.read_async(ref, 0, 10))

    def test_a_promise_of_exabytes_costs_no_memory(self, place: tuple[Any, ...]) -> None:
        container, credential, folder = place

        with pytest.raises(VirtualChunkError, match="not enough data"):
            resolver(container, credential).read(VirtualRef(f"{folder}/x", 0, 2**62), 0, 2**62)


@pytest.mark.endpoint
def test_a_wrong_secret_is_an_error_that_does_not_show_it(gcs_endpoint: GcsEndpoint) -> None:
    store = gcs_store({"base_url": gcs_endpoint.endpoint_url, "allow_http": "true"})
    container = VirtualChunkContainer(f"gs://{gcs_endpoint.bucket}/", store)
    credential = gcs_credentials(bearer_token="hunter2")

    with pytest.raises(VirtualChunkError, match="cannot read") as error:
        resolver(container, credential).read(VirtualRef(f"{container.url_prefix}x", 0, 1), 0, 1)

    assert "hunter2" not in f"{error.value!r}{error.value.__cause__!r}"


@pytest.mark.endpoint
def test_the_etag_of_the_store_is_accepted(s3_endpoint: S3Endpoint) -> None:
    storage = s3_endpoint.storage("tests/etag")
    storage.put("x", DATA)
    store = s3_store(
        s3_endpoint.region, s3_endpoint.endpoint_url, allow_http=True, s3_compatible=True
    )
    container = VirtualChunkContainer(f"s3://{s3_endpoint.bucket}/tests/", store)
    credential = s3_static_credentials(
        access_key_id=s3_endpoint.access_key_id, secret_access_key=s3_endpoint.secret_access_key
    )
    etag = "781e5e245d69b566979b86e28d23f2c7"  # MD5 of the data, as S3 has it

    for spelling in (etag, f'"{etag}"'):
        ref = VirtualRef(f"{container.url_prefix}etag/x", 0, 10, spelling)
        assert resolver(container, credential).read(ref, 0, 10) == DATA
    with pytest.raises(VirtualChunkError, match="authorize_virtual_chunk_access"):
        resolver(container).read(ref, 0, 10)
