"""Requests without a condition are sent again when they fail, as often as the settings allow."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from icefloe import Repository, RepositoryConfig
from icefloe.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    StorageError,
    StoragePermissionError,
    StorageUnreachableError,
)
from icefloe.storage.access.factories import s3_storage
from icefloe.storage.settings import (
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from tests.endpoints.fault_proxy import CUTS, Trouble, fault_proxy
from tests.endpoints.processes import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.storage.port import Storage
    from tests.endpoints.fault_proxy import FaultProxy
    from tests.endpoints.fixtures import GcsEndpoint, S3Endpoint

pytestmark = pytest.mark.endpoint

PASSING = [
    Trouble.DROP_BEFORE,
    Trouble.DROP_AFTER,
    Trouble.RESET_BEFORE,
    Trouble.ERROR_500_AFTER,
    Trouble.ERROR_503_BEFORE,
    Trouble.THROTTLED,
    Trouble.CONFLICT_409,
]
FOR_GOOD = [Trouble.PRECONDITION_412]
DATA = os.urandom(100_000)
MANY = 1100  # two pages of a listing


@pytest.fixture
def proxy(endpoint: Any) -> Iterator[FaultProxy]:
    with fault_proxy(endpoint.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def storage(endpoint: Any, proxy: FaultProxy) -> Storage:
    return endpoint.storage(endpoint_url=proxy.url)


def bucket_of(endpoint: Any) -> str:
    return getattr(endpoint, "bucket", None) or endpoint.container


READS = {
    "whole": (lambda storage: storage.get("chunks/one"), DATA),
    "range": (lambda storage: storage.get("chunks/one", 1000, 50_000), DATA[1000:51_000]),
    "rest": (lambda storage: storage.get("chunks/one", 70_000), DATA[70_000:]),
    "suffix": (lambda storage: storage.get_suffix("chunks/one", 5000), DATA[-5000:]),
    "ranges": (
        lambda storage: storage.get_ranges("chunks/one", [(0, 10), (90_000, 10)]),
        [DATA[:10], DATA[90_000:90_010]],
    ),
    "version": (lambda storage: storage.get_with_version("chunks/one")[0], DATA),
    "async": (lambda storage: asyncio.run(storage.get_async("chunks/one")), DATA),
    "async range": (lambda storage: asyncio.run(storage.get_async("chunks/one", 5, 9)), DATA[5:14]),
}


@pytest.mark.parametrize("trouble", [*PASSING, *CUTS], ids=lambda trouble: trouble.name)
def test_every_read_is_sent_again(storage: Storage, proxy: FaultProxy, trouble: Trouble) -> None:
    storage.put("chunks/one", DATA)
    for name, (read, expected) in READS.items():
        struck = proxy.struck
        proxy.plan(trouble, method="GET", path="chunks/one", times=2)
        assert read(storage) == expected, name
        assert proxy.struck == struck + 2, name


def test_each_part_of_a_big_read_is_sent_again_by_itself(
    storage: Storage, proxy: FaultProxy
) -> None:
    in_parts = StorageSettings(concurrency=StorageConcurrencySettings(4, 10_000))
    storage.put("chunks/one", DATA)
    storage = storage.with_settings(in_parts)
    proxy.plan(Trouble.CUT_HALFWAY, method="GET", path="chunks/one", times=3)
    before = len(proxy.requests)
    assert storage.get("chunks/one", 0, len(DATA)) == DATA
    assert len(proxy.requests) == before + 13
    proxy.plan(Trouble.CUT_HALFWAY, method="GET", path="chunks/one", times=3)
    assert asyncio.run(storage.get_async("chunks/one", 0, len(DATA))) == DATA


@pytest.mark.parametrize("trouble", PASSING, ids=lambda trouble: trouble.name)
def test_heads_writes_and_deletes_are_sent_again(
    storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    proxy.plan(trouble, method="PUT", path="chunks/one", times=2)
    storage.put("chunks/one", DATA, {"icefloetype": "chunk"})
    proxy.plan(trouble, method="PUT", path="chunks/two", times=2)
    asyncio.run(storage.put_async("chunks/two", b"2"))
    for ask in (lambda: storage.head("chunks/one").size, lambda: len(storage.get("chunks/one"))):
        proxy.plan(trouble, method="HEAD", path="chunks/one", times=2)
        assert ask() == len(DATA)
    assert storage.get_attributes("chunks/one") == {"icefloetype": "chunk"}
    assert storage.get("chunks/two") == b"2"
    for method in ("DELETE", "POST"):
        proxy.plan(trouble, method=method, path="", times=2)
    storage.delete_many(["chunks/one", "chunks/two"])
    assert [*storage.list()] == []
    assert proxy.struck >= 8


@pytest.mark.parametrize("trouble", [*PASSING, *CUTS], ids=lambda trouble: trouble.name)
def test_a_listing_is_sent_again(
    endpoint: Any, storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    for number in range(3):
        storage.put(f"chunks/{number}", b"")
    for listed in (
        lambda: [info.key.rpartition("/")[2] for info in storage.list("chunks/")],
        lambda: storage.list_dir("chunks"),
    ):
        proxy.plan(trouble, method="GET", path=bucket_of(endpoint), times=2)
        assert listed() == ["0", "1", "2"]
    assert proxy.struck == 4


def test_a_listing_of_many_pages_goes_on_where_it_broke_off(
    s3_endpoint: S3Endpoint, gcs_endpoint: GcsEndpoint
) -> None:
    for endpoint in (s3_endpoint, gcs_endpoint):
        with fault_proxy(endpoint.endpoint_url) as proxy:
            storage = endpoint.storage(endpoint_url=proxy.url)
            keys = [f"many/{number:04}" for number in range(MANY)]
            with ThreadPoolExecutor(16) as threads:
                for done in [threads.submit(storage.put, key, b"") for key in keys]:
                    done.result()
            for skip in (0, 1):
                for trouble in CUTS:
                    proxy.plan(trouble, method="GET", path=endpoint.bucket, skip=skip)
                    assert [info.key for info in storage.list("many/")] == keys
                    proxy.plan(trouble, method="GET", path=endpoint.bucket, skip=skip)
                    assert storage.list_dir("many") == [key[5:] for key in keys]
            assert proxy.struck == 4 * len(CUTS)


OPERATIONS = {
    "get": lambda storage: storage.get("chunks/one"),
    "async": lambda storage: asyncio.run(storage.get_async("chunks/one")),
    "head": lambda storage: storage.head("chunks/one"),
    "list": lambda storage: [*storage.list()],
    "list_dir": lambda storage: storage.list_dir("chunks"),
    "put": lambda storage: storage.put("chunks/one", b"1"),
    "put_async": lambda storage: asyncio.run(storage.put_async("chunks/one", b"1")),
}
METHODS = ("GET", "HEAD", "PUT")


@pytest.mark.parametrize(
    "trouble", [*PASSING, Trouble.CUT_HALFWAY, *FOR_GOOD], ids=lambda trouble: trouble.name
)
def test_what_never_passes_is_an_error_of_the_storage(
    storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    # A plain put has no condition: that it "exists already" or "changed" can be no answer to it.
    storage.put("chunks/one", DATA)
    tries = 1 if trouble in FOR_GOOD else 3
    storage = storage.with_settings(
        StorageSettings(retries=StorageRetriesSettings(max_tries=3, initial_backoff_ms=1))
    )
    for name, act in OPERATIONS.items():
        if trouble in CUTS and name in ("head", "put", "put_async"):
            continue  # their answers have no body
        for method in METHODS:
            proxy.plan(trouble, method=method, path="", times=100)
        before = len(proxy.requests)
        with pytest.raises(StorageError) as caught:
            act(storage)
        assert type(caught.value) is StorageError, name
        assert len(proxy.requests) == before + tries, name
        proxy.forget_plans()


def test_a_plain_write_that_meets_a_conflict_for_ever_says_so(
    storage: Storage, proxy: FaultProxy
) -> None:
    proxy.plan(Trouble.CONFLICT_409, method="PUT", path="chunks/one", times=100)
    with pytest.raises(StorageError, match="409"):
        storage.put("chunks/one", b"data")


def test_a_request_that_the_server_found_slow_is_sent_again(s3_endpoint: S3Endpoint) -> None:
    with fault_proxy(s3_endpoint.endpoint_url) as proxy:
        storage = s3_endpoint.storage(endpoint_url=proxy.url)
        proxy.plan(Trouble.SLOW_SENDER_400, method="PUT", path="chunks/one", times=2)
        storage.put("chunks/one", b"data")
        assert storage.get("chunks/one") == b"data"
        assert proxy.struck == 2


def test_retries_are_logged(s3_endpoint: S3Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with fault_proxy(s3_endpoint.endpoint_url) as proxy:
        storage = s3_endpoint.storage(endpoint_url=proxy.url)
        storage.put("key", b"1")
        proxy.plan(Trouble.ERROR_503_BEFORE, method="GET", path="key", times=2)
        with caplog.at_level(logging.INFO, "icefloe.storage"):
            storage.get("key")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" failed")[0] for line in lines] == ["attempt 1 of 6", "attempt 2 of 6"]
    assert all("503" in line for line in lines)


class TestUnreachable:
    """Nothing was sent: that is certain, so nothing is in doubt, and nobody waits for long."""

    def storage(self, endpoint_url: Any, **retries: Any) -> Any:
        return s3_storage(
            bucket="bucket",
            prefix="repository",
            region="us-east-1",
            endpoint_url=endpoint_url,
            allow_http=True,
            access_key_id="id",
            secret_access_key="secret",
        ).with_settings(
            StorageSettings(
                retries=StorageRetriesSettings(**retries),
                timeouts=StorageTimeoutSettings(connect_timeout_ms=200),
            )
        )

    @pytest.fixture(params=["refused", "no such host", "no answer"])
    def address(self, request: pytest.FixtureRequest) -> Iterator[str]:
        if request.param == "refused":
            yield f"http://{HOST}:{free_port()}"
            return
        if request.param == "no such host":
            yield "http://no-such-host.invalid"
            return
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind((HOST, 0))
            full.listen(0)
            for client in (first, second):  # until its queue is full
                client.setblocking(False)
                client.connect_ex(full.getsockname())
            yield f"http://{HOST}:{full.getsockname()[1]}"

    @pytest.mark.parametrize("act", [Repository.create, Repository.open, Repository.open_or_create])
    def test_a_place_that_is_not_there_is_named_at_once(
        self, address: str, act: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        storage = self.storage(address)
        with (
            caplog.at_level(logging.WARNING, "icefloe"),
            pytest.raises(StorageUnreachableError, match="cannot be reached") as caught,
        ):
            act(storage)
        assert caught.value.location == storage.location
        assert storage.location in caught.value.message
        assert "nothing was sent" in caught.value.message
        # By default two more attempts to connect, and a line about each, of every request that was
        # sent at the same time.
        lines = [record.getMessage() for record in caplog.records]
        assert {line.partition(" failed")[0] for line in lines} == {
            "attempt 1 of 3",
            "attempt 2 of 3",
        }

    def test_every_operation_says_so(self, address: str) -> None:
        storage = self.storage(address, max_connect_tries=1)
        for act in (
            *OPERATIONS.values(),
            lambda storage: storage.create("key", b"1"),
            lambda storage: storage.replace("key", b"1", None),
            lambda storage: storage.delete_many(["a", "b"]),
            lambda storage: storage.get_suffix("key", 3),
        ):
            with pytest.raises(StorageUnreachableError):
                act(storage)

    def test_the_number_of_attempts_is_a_setting(self, caplog: pytest.LogCaptureFixture) -> None:
        storage = self.storage(f"http://{HOST}:{free_port()}", max_connect_tries=5)
        with (
            caplog.at_level(logging.WARNING, "icefloe"),
            pytest.raises(StorageUnreachableError),
        ):
            storage.get("key")
        assert len(caplog.records) == 4

    def test_the_configuration_of_a_caller_counts_from_the_first_request_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        storage = self.storage(f"http://{HOST}:{free_port()}")
        config = RepositoryConfig(
            storage=StorageSettings(retries=StorageRetriesSettings(max_connect_tries=1))
        )
        for act in (Repository.create, Repository.open, Repository.open_or_create):
            with pytest.raises(StorageUnreachableError):
                act(storage, config)
        assert caplog.records == []

    def test_a_place_that_answered_before_is_given_more_time(
        self, s3_endpoint: S3Endpoint, caplog: pytest.LogCaptureFixture
    ) -> None:
        with fault_proxy(s3_endpoint.endpoint_url) as proxy:
            storage = s3_endpoint.storage(endpoint_url=proxy.url)
            proxy.plan(Trouble.CUT_LATE, method="PUT", path="key")  # closes the connection
            storage.put("key", b"1")
        with (
            caplog.at_level(logging.WARNING, "icefloe"),
            pytest.raises(StorageUnreachableError),
        ):
            storage.get("key")
        assert len(caplog.records) == 5  # six attempts, as with any other failure

    def test_a_write_in_doubt_stays_in_doubt(self, s3_endpoint: S3Endpoint) -> None:
        # The first attempt landed, and nobody can be asked any more.
        with fault_proxy(s3_endpoint.endpoint_url) as proxy:
            storage = s3_endpoint.storage(endpoint_url=proxy.url)
            proxy.plan(Trouble.CLOSE_AFTER, method="PUT", path="refs/next")
            with pytest.raises(CommitStateUnknownError) as caught:
                storage.create("refs/next", b"ours")
        assert isinstance(caught.value.__cause__, StorageError)

    def test_a_bad_port_is_refused_before_anything_is_tried(self) -> None:
        with pytest.raises(InvalidInputError, match="port"):
            self.storage(f"http://{HOST}:99999")


def test_listing_a_bucket_that_is_missing_says_so(s3_endpoint: S3Endpoint) -> None:
    storage = dataclasses.replace(s3_endpoint, bucket="missing").storage()
    for act in (lambda: [*storage.list()], lambda: storage.list_dir("refs")):
        with pytest.raises(StoragePermissionError, match="no bucket"):
            act()
