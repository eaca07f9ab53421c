"""What object stores need beyond the port: sign-in, forks, parts, retries, and the probe."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import secrets
import subprocess
import sys
import traceback
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from icefloe.errors import (
    AlreadyExistsError,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
    StorageError,
    StoragePermissionError,
    UnsafeStorageError,
)
from icefloe.repository import Repository
from icefloe.storage import probe
from icefloe.storage.access.credentials import GcsBearerCredential, S3StaticCredentials
from icefloe.storage.access.factories import gcs_storage, http_storage, s3_storage
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.object_store import ObjectStorage
from icefloe.storage.port import ObjectVersion
from icefloe.storage.probe import PROBE_FOLDER, ensure_conditional_writes
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
)
from icefloe.testing.faults import FaultyStorage
from icefloe.testing.logged import LoggedStorage
from tests.endpoints.fault_proxy import Trouble, fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.endpoints.fixtures import AzureEndpoint, GcsEndpoint, HttpEndpoint, S3Endpoint

pytestmark = pytest.mark.endpoint

MIB = 1024 * 1024
CANARY = "canary-secret"


class TestProbe:
    def test_a_store_that_ignores_conditions_is_refused(
        self, careless_endpoint: S3Endpoint
    ) -> None:
        storage = careless_endpoint.storage()
        with pytest.raises(UnsafeStorageError, match="ignores conditional writes"):
            ensure_conditional_writes(storage)
        with pytest.raises(UnsafeStorageError):
            ensure_conditional_writes(storage)
        assert [*storage.list()] == []

    def test_creating_where_conditions_are_ignored_leaves_nothing_behind(
        self, careless_endpoint: S3Endpoint
    ) -> None:
        storage = careless_endpoint.storage()
        for generation in ("repository", "icechunk"):
            with pytest.raises(UnsafeStorageError, match="ignores conditional writes"):
                Repository.create(storage, generation=generation)
            assert [*storage.list()] == []

    def test_what_a_probe_wrote_is_deleted_where_a_repository_exists(
        self, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = s3_endpoint.storage()
        Repository.create(storage)
        before = [info.key for info in storage.list()]
        monkeypatch.setattr(probe._passed_create, "locations", set())
        with pytest.raises(AlreadyExistsError, match="exists already"):
            Repository.create(storage)
        assert [info.key for info in storage.list()] == before

    @pytest.mark.parametrize("name", ["s3_endpoint", "gcs_endpoint", "azure_endpoint"])
    def test_a_good_store_is_probed_once_and_left_clean(
        self, name: str, request: pytest.FixtureRequest
    ) -> None:
        storage = FaultyStorage(request.getfixturevalue(name).storage())
        ensure_conditional_writes(storage)
        assert len(storage.trace) > 8
        assert all(key.startswith(f"{PROBE_FOLDER}/") for _, key in storage.trace)
        assert [*storage.list()] == []
        storage.trace.clear()
        ensure_conditional_writes(storage)
        ensure_conditional_writes(pickle.loads(pickle.dumps(storage)))
        assert storage.trace == []

    def test_memory_and_local_files_need_none(self, tmp_path: Path) -> None:
        for inner in (MemoryStorage(), LocalStorage(tmp_path)):
            storage = FaultyStorage(inner)
            ensure_conditional_writes(storage)
            assert storage.trace == []

    def test_who_asks_for_unconditional_writes_gets_them(
        self, careless_endpoint: S3Endpoint
    ) -> None:
        unsafe = StorageSettings(unsafe_use_conditional_create=False)
        storage = careless_endpoint.storage().with_settings(unsafe)
        ensure_conditional_writes(storage)
        storage.create("refs/1", b"1")
        storage.create("refs/1", b"1")
        with pytest.raises(AlreadyExistsError):
            storage.create("refs/1", b"2")


FORK = """
import os, pickle, sys
from icefloe.errors import ForkedProcessError
storage, other = pickle.loads(bytes.fromhex(sys.argv[1]))
if sys.argv[2] == "used":
    storage.put("key", b"1")
child = os.fork()
if child == 0:
    for candidate in (storage, other, pickle.loads(pickle.dumps(other))):
        try:
            getattr(candidate, sys.argv[3])("child", b"1")
            print("written", flush=True)
        except ForkedProcessError as error:
            print("refused" if "spawn" in str(error) else error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("verb", ["put", "create"])
@pytest.mark.parametrize(("parent", "outcome"), [("used", "refused"), ("unused", "written")])
def test_a_forked_child_raises_instead_of_hanging(
    s3_endpoint: S3Endpoint, parent: str, outcome: str, verb: str
) -> None:
    storages = pickle.dumps((s3_endpoint.storage(), s3_endpoint.storage())).hex()
    result = subprocess.run(
        [sys.executable, "-c", FORK, storages, parent, verb],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.split() == [outcome] * 3


class TestBigObjects:
    SETTINGS = StorageSettings(
        concurrency=StorageConcurrencySettings(4, 5 * MIB),
        minimum_size_for_multipart_upload=6 * MIB,
    )

    @pytest.mark.parametrize("name", ["s3_endpoint", "gcs_endpoint", "azure_endpoint"])
    async def test_they_are_written_and_read_in_parts(
        self, name: str, request: pytest.FixtureRequest
    ) -> None:
        endpoint = request.getfixturevalue(name)
        data = secrets.token_bytes(MIB) * 16
        with fault_proxy(endpoint.endpoint_url) as proxy:
            storage = endpoint.storage(endpoint_url=proxy.url).with_settings(self.SETTINGS)
            storage.put("big", data, {"icefloetype": "chunk"})
            assert sum(method == "PUT" for method, _ in proxy.requests) > 3
            await storage.put_async("big too", data)
            assert storage.head("big").size == len(data)
            proxy.requests.clear()
            assert storage.get("big", 1, len(data) - 1) == data[1:]
            assert sum(method == "GET" for method, _ in proxy.requests) == 4
            assert await storage.get_async("big too", 1, len(data) - 1) == data[1:]

    def test_near_ranges_are_read_at_once(self, gcs_endpoint: GcsEndpoint) -> None:
        data = secrets.token_bytes(MIB) * 4
        with fault_proxy(gcs_endpoint.endpoint_url) as proxy:
            storage = gcs_endpoint.storage(endpoint_url=proxy.url)
            storage.put("pack", data)
            proxy.requests.clear()
            near = [(number * 1000, 500) for number in range(100)]
            assert storage.get_ranges("pack", near) == [data[s : s + n] for s, n in near]
            assert len(proxy.requests) == 1
            proxy.requests.clear()
            far = [(0, 10), (3 * MIB, 10)]
            assert storage.get_ranges("pack", far) == [data[s : s + n] for s, n in far]
            assert len(proxy.requests) == 2


class TestListing:
    def test_the_first_key_costs_one_request(
        self, s3_endpoint: S3Endpoint, gcs_endpoint: GcsEndpoint, azure_endpoint: AzureEndpoint
    ) -> None:
        for endpoint in (s3_endpoint, gcs_endpoint, azure_endpoint):
            with fault_proxy(endpoint.endpoint_url) as proxy:
                storage = endpoint.storage(endpoint_url=proxy.url)
                for number in range(30):
                    storage.put(f"refs/branch.main/{number:04}", b"")
                proxy.requests.clear()
                first = next(storage.list("refs/branch.main/", limit=1))
                assert first.key == "refs/branch.main/0000"
                assert len(proxy.requests) == 1

    def test_a_store_that_lists_in_no_order_is_sorted_here(self, s3_endpoint: S3Endpoint) -> None:
        storage = s3_endpoint.storage()
        place = msgspec.structs.replace(storage.__getstate__()[0], lists_in_order=False)
        unordered = ObjectStorage(place)
        for key in ("b/2", "a/1", "c", "b/1"):
            unordered.put(key, b"")
        assert [info.key for info in unordered.list()] == ["a/1", "b/1", "b/2", "c"]
        assert [info.key for info in unordered.list("b/", limit=1)] == ["b/1"]
        assert not unordered.capabilities.lists_in_pages


class TestDeleting:
    def test_what_is_left_is_named(self, gcs_endpoint: GcsEndpoint) -> None:
        with fault_proxy(gcs_endpoint.endpoint_url) as proxy:
            storage = gcs_endpoint.storage(endpoint_url=proxy.url)
            keys = [f"chunks/{number:02}" for number in range(30)]
            for key in keys:
                storage.put(key, b"")
            proxy.plan(Trouble.FORBIDDEN, method="DELETE", path="chunks/07", times=1000)
            with pytest.raises(StorageError, match="1 objects") as caught:
                storage.delete_many(keys)
            assert "chunks/07" in str(caught.value)
            assert [info.key for info in storage.list()] == ["chunks/07"]

    def test_a_passing_failure_is_healed(self, s3_endpoint: S3Endpoint) -> None:
        with fault_proxy(s3_endpoint.endpoint_url) as proxy:
            storage = s3_endpoint.storage(endpoint_url=proxy.url)
            for number in range(10):
                storage.put(f"chunks/{number}", b"")
            proxy.plan(Trouble.FORBIDDEN, method="POST", path=storage.location[5:].split("/")[0])
            storage.delete_many(f"chunks/{number}" for number in range(10))
            assert proxy.struck == 1
            assert [*storage.list()] == []


def fetch_gcs_token() -> GcsBearerCredential:
    return GcsBearerCredential("test-token", datetime.now(UTC) + timedelta(hours=1))


def fetch_wrong_type() -> str:
    return CANARY


def fetch_failing() -> S3StaticCredentials:
    raise RuntimeError("no token today")


def fetch_s3_keys() -> S3StaticCredentials:
    return S3StaticCredentials("refreshed-key", CANARY, "refreshed-token")


class TestSigningIn:
    def gcs(self, endpoint: Any, **credentials: Any) -> Any:
        config = {"base_url": endpoint.endpoint_url, "allow_http": "true"}
        prefix = secrets.token_hex(6)
        return gcs_storage(bucket=endpoint.bucket, prefix=prefix, config=config, **credentials)

    def s3(self, endpoint_url: Any, **credentials: Any) -> Any:
        return s3_storage(
            bucket="icefloe-tests",
            prefix=secrets.token_hex(6),
            region="us-east-1",
            endpoint_url=endpoint_url,
            allow_http=True,
            **credentials,
        ).with_settings(StorageSettings(retries=StorageRetriesSettings(max_tries=2)))

    def test_refreshable_credentials_are_fetched_where_they_are_used(
        self, gcs_endpoint: GcsEndpoint
    ) -> None:
        storage = self.gcs(gcs_endpoint, get_credentials=fetch_gcs_token)
        storage.create("key", b"1")
        assert pickle.loads(pickle.dumps(storage)).get("key") == b"1"

    def test_wrong_credentials_are_reported(self, gcs_endpoint: GcsEndpoint) -> None:
        storage = self.gcs(gcs_endpoint, bearer_token=CANARY)
        for act in (
            lambda: storage.get("key"),
            lambda: storage.put("key", b""),
            lambda: storage.create("key", b""),
            lambda: [*storage.list()],
        ):
            with pytest.raises(StoragePermissionError) as caught:
                act()
            assert CANARY not in "".join(traceback.format_exception(caught.value))

    def test_a_missing_bucket_is_reported_at_once(self, s3_endpoint: S3Endpoint) -> None:
        with fault_proxy(s3_endpoint.endpoint_url) as proxy:
            storage = dataclasses.replace(s3_endpoint, bucket="missing").storage(
                endpoint_url=proxy.url
            )
            for write in (
                lambda: storage.put("key", b""),
                lambda: storage.create("key", b""),
                lambda: storage.replace("key", b"", None),
            ):
                with pytest.raises(StorageError, match="no bucket"):
                    write()
            assert sum(method == "PUT" for method, _ in proxy.requests) == 3

    def test_an_anonymous_gcs_storage_only_reads(self, gcs_endpoint: GcsEndpoint) -> None:
        storage = self.gcs(gcs_endpoint, anonymous=True)
        assert not storage.capabilities.can_write
        with pytest.raises(ReadOnlyError):
            storage.put("key", b"")

    @pytest.mark.parametrize("fetch", [fetch_wrong_type, fetch_failing])
    def test_a_failing_function_is_reported(
        self, s3_endpoint: S3Endpoint, fetch: Callable[..., Any]
    ) -> None:
        storage = self.s3(s3_endpoint.endpoint_url, get_credentials=fetch)
        with pytest.raises(IcefloeError) as caught:
            storage.get("key")
        assert CANARY not in "".join(traceback.format_exception(caught.value))

    def test_given_credentials_are_not_mixed_with_the_environment(
        self, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "environment-token")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environment-secret")
        with fault_proxy(s3_endpoint.endpoint_url) as proxy:
            self.s3(proxy.url, access_key_id="given", secret_access_key="secret").put("key", b"")
            assert "given/" in proxy.headers[-1]["authorization"]
            assert "x-amz-security-token" not in proxy.headers[-1]
            self.s3(proxy.url, get_credentials=fetch_s3_keys).put("key", b"")
            assert "refreshed-key/" in proxy.headers[-1]["authorization"]
            assert proxy.headers[-1]["x-amz-security-token"] == "refreshed-token"
            self.s3(proxy.url, anonymous=True).put("key", b"")
            assert "authorization" not in proxy.headers[-1]
            self.s3(proxy.url, from_env=True).put("key", b"")
            assert "environment-key/" in proxy.headers[-1]["authorization"]

    def test_no_secret_in_logs_or_errors(self, caplog: pytest.LogCaptureFixture) -> None:
        nobody = "http://127.0.0.1:9"  # refuses connections
        storages = [
            self.s3(nobody, access_key_id="id", secret_access_key=CANARY, session_token=CANARY),
            gcs_storage(
                bucket="b",
                prefix="p",
                bearer_token=CANARY,
                config={"base_url": nobody, "allow_http": "true"},
            ),
            http_storage(f"http://user:{CANARY}@127.0.0.1:9/", {"allow_http": "true"}),
        ]
        quick = StorageSettings(retries=StorageRetriesSettings(1, 1, 1))
        with caplog.at_level(logging.DEBUG):
            for storage in storages:
                logged = LoggedStorage(storage.with_settings(quick))
                for act in (logged.get, logged.head):
                    with pytest.raises(StorageError) as caught:
                        act("key")
                    text = "".join(traceback.format_exception(caught.value))
                    assert "127.0.0.1:9" in text
                    assert CANARY not in text
                    assert CANARY not in repr(caught.value)
        assert CANARY not in caplog.text

    def test_a_wrong_password_of_a_web_server(self, http_endpoint: HttpEndpoint) -> None:
        host = http_endpoint.endpoint_url.removeprefix("http://")
        storage = http_storage(f"http://reader:{CANARY}@{host}", {"allow_http": "true"})
        with pytest.raises(StoragePermissionError) as caught:
            storage.get("key")
        assert CANARY not in "".join(traceback.format_exception(caught.value))


class TestWebServer:
    def test_it_can_only_be_read(self, http_endpoint: HttpEndpoint) -> None:
        storage = http_endpoint.storage()
        assert not storage.capabilities.can_write
        assert not storage.capabilities.can_list
        for write in (
            lambda: storage.put("key", b""),
            lambda: storage.create("key", b""),
            lambda: storage.replace("key", b"", None),
            lambda: storage.delete_many(["key"]),
        ):
            with pytest.raises(ReadOnlyError):
                write()
        with pytest.raises(StorageError, match="cannot list"):
            storage.list()
        with pytest.raises(StorageError, match="cannot list"):
            storage.list_dir("")


def test_the_number_of_tries_is_a_setting(s3_endpoint: S3Endpoint) -> None:
    with fault_proxy(s3_endpoint.endpoint_url) as proxy:
        once = StorageSettings(retries=StorageRetriesSettings(max_tries=1))
        storage = s3_endpoint.storage(endpoint_url=proxy.url).with_settings(once)
        proxy.plan(Trouble.ERROR_503_BEFORE, method="GET", path="key", times=100)
        with pytest.raises(StorageError):
            storage.get("key")
        assert len(proxy.requests) == 1


def test_a_strange_version_is_refused(s3_endpoint: S3Endpoint) -> None:
    with pytest.raises(InvalidInputError):
        s3_endpoint.storage().replace("key", b"1", ObjectVersion("not one of ours"))


def test_settings_are_added_to_settings(s3_endpoint: S3Endpoint) -> None:
    storage = s3_endpoint.storage().with_settings(
        StorageSettings(concurrency=StorageConcurrencySettings(3, None))
    )
    settings = storage.default_settings()
    assert settings.concurrency == StorageConcurrencySettings(3, 12 * MIB)
    assert settings.retries.max_tries == 6
    assert pickle.loads(pickle.dumps(storage)).default_settings() == settings
