from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.storage.local import LocalStorage
from icefloe.testing.storage import StorageReadTests, StorageTests

if TYPE_CHECKING:
    from icefloe.storage.port import Storage
    from tests.endpoints.fixtures import AzureEndpoint, GcsEndpoint, HttpEndpoint, S3Endpoint

pytestmark = pytest.mark.endpoint


class TestS3(StorageTests):
    @pytest.fixture
    def storage(self, s3_endpoint: S3Endpoint) -> Storage:
        return s3_endpoint.storage()


class TestGcs(StorageTests):
    race_rounds = 50

    @pytest.fixture
    def storage(self, gcs_endpoint: GcsEndpoint) -> Storage:
        return gcs_endpoint.storage()


class TestAzure(StorageTests):
    @pytest.fixture
    def storage(self, azure_endpoint: AzureEndpoint) -> Storage:
        return azure_endpoint.storage()


class TestHttp(StorageReadTests):
    @pytest.fixture
    def storage(self, http_endpoint: HttpEndpoint) -> Storage:
        return http_endpoint.storage()

    @pytest.fixture
    def writer(self, http_endpoint: HttpEndpoint) -> Storage:
        return LocalStorage(http_endpoint.root)
