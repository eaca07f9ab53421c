from __future__ import annotations

import pytest

from icefloe.storage.local import LocalStorage
from icefloe.testing.storage import StorageReadTests, StorageTests

pytestmark = pytest.mark.endpoint


class TestS3(StorageTests):
    @pytest.fixture
    def storage(self, s3_endpoint):
        return s3_endpoint.storage()


class TestGcs(StorageTests):
    race_rounds = 50

    @pytest.fixture
    def storage(self, gcs_endpoint):
        return gcs_endpoint.storage()


class TestAzure(StorageTests):
    @pytest.fixture
    def storage(self, azure_endpoint):
        return azure_endpoint.storage()


class TestHttp(StorageReadTests):
    @pytest.fixture
    def storage(self, http_endpoint):
        return http_endpoint.storage()

    @pytest.fixture
    def writer(self, http_endpoint):
        return LocalStorage(http_endpoint.root)
