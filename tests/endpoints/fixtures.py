"""Fixtures that start the object stores, once in a test session and only if a test asks."""

from __future__ import annotations

import http.client
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from icefloe.storage.access.factories import azure_storage, gcs_storage, http_storage, s3_storage
from icefloe.storage.settings import (
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from tests.endpoints import azurite
from tests.endpoints.processes import free_port, server
from tests.npm_packages import NotInstallableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.object_store import ObjectStorage

HERE = Path(__file__).parent

QUICK = StorageSettings(
    retries=StorageRetriesSettings(max_tries=6, initial_backoff_ms=10, max_backoff_ms=200),
    timeouts=StorageTimeoutSettings(operation_timeout_ms=60_000),
)
"""Settings for a store on this machine: what fails once may be tried again at once."""


def fresh_prefix() -> str:
    return f"tests/{secrets.token_hex(6)}"


@dataclass(frozen=True)
class S3Endpoint:
    """An S3 store on loopback, with one bucket."""

    endpoint_url: str
    bucket: str = "icefloe-tests"
    access_key_id: str = "test-access-key"
    secret_access_key: str = "test-secret-key"
    region: str = "us-east-1"

    def storage(self, prefix: str | None = None, endpoint_url: str | None = None) -> ObjectStorage:
        """Make a storage under a prefix of its own, or under the given one."""
        return s3_storage(
            bucket=self.bucket,
            prefix=prefix or fresh_prefix(),
            region=self.region,
            endpoint_url=endpoint_url or self.endpoint_url,
            allow_http=True,
            force_path_style=True,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        ).with_settings(QUICK)


@dataclass(frozen=True)
class GcsEndpoint:
    """A double of Google Cloud Storage on loopback."""

    endpoint_url: str
    bucket: str = "icefloe-tests"
    token: str = "test-token"

    def storage(self, prefix: str | None = None, endpoint_url: str | None = None) -> ObjectStorage:
        return gcs_storage(
            bucket=self.bucket,
            prefix=prefix or fresh_prefix(),
            bearer_token=self.token,
            config={"base_url": endpoint_url or self.endpoint_url, "allow_http": "true"},
        ).with_settings(QUICK)


@dataclass(frozen=True)
class AzureEndpoint:
    """Azurite on loopback."""

    endpoint_url: str
    container: str = "icefloe-tests"
    account: str = azurite.ACCOUNT
    key: str = azurite.KEY

    def storage(self, prefix: str | None = None, endpoint_url: str | None = None) -> ObjectStorage:
        return azure_storage(
            account=self.account,
            container=self.container,
            prefix=prefix or fresh_prefix(),
            access_key=self.key,
            config={
                "endpoint": f"{endpoint_url or self.endpoint_url}/{self.account}",
                "allow_http": "true",
            },
        ).with_settings(QUICK)


@dataclass(frozen=True)
class HttpEndpoint:
    """A web server on loopback that serves a folder to who knows the password."""

    endpoint_url: str
    root: Path
    user: str = "reader"
    password: str = "test-password"

    def storage(self) -> ObjectStorage:
        host = urlsplit(self.endpoint_url).netloc
        return http_storage(
            f"http://{self.user}:{self.password}@{host}", {"allow_http": "true"}
        ).with_settings(QUICK)


def _create_bucket(endpoint_url: str, bucket: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(endpoint_url).netloc, timeout=30)
    connection.request("PUT", f"/{bucket}", headers={"Content-Length": "0"})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status in (200, 409), response.status


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[S3Endpoint]:
    """S3 by moto, whose conditional writes are made atomic by a lock."""
    port = free_port()
    with server([sys.executable, str(HERE / "moto_server.py"), str(port)], port) as url:
        endpoint = S3Endpoint(url)
        _create_bucket(url, endpoint.bucket)
        yield endpoint


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[GcsEndpoint]:
    """Our double of Google Cloud Storage."""
    port = free_port()
    script = str(HERE / "bucket_server.py")
    with server([sys.executable, script, "gcs", str(port), GcsEndpoint.token], port) as url:
        yield GcsEndpoint(url)


@pytest.fixture(scope="session")
def careless_endpoint() -> Iterator[S3Endpoint]:
    """An S3 store that ignores conditions, as several real ones do."""
    port = free_port()
    script = str(HERE / "bucket_server.py")
    with server([sys.executable, script, "careless", str(port), "unused"], port) as url:
        yield S3Endpoint(url)


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureEndpoint]:
    """Azurite; the tests are skipped where it cannot be installed."""
    port = free_port()
    try:
        command = azurite.command(port, tmp_path_factory.mktemp("azurite"))
    except NotInstallableError as error:
        pytest.skip(f"no Azurite: {error}")
    with server(command, port) as url:
        endpoint = AzureEndpoint(url)
        azurite.create_container(url, endpoint.container)
        yield endpoint


@pytest.fixture
def http_endpoint(tmp_path: Path) -> Iterator[HttpEndpoint]:
    """A web server of an empty folder, for tests to put files into."""
    port = free_port()
    root = tmp_path / "served"
    root.mkdir()
    password = f"{HttpEndpoint.user}:{HttpEndpoint.password}"
    script = str(HERE / "file_server.py")
    with server([sys.executable, script, str(port), str(root), password], port) as url:
        yield HttpEndpoint(url, root)
