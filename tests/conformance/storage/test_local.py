from __future__ import annotations

import pytest

from icefloe.storage.local import LocalStorage
from icefloe.testing.storage import StorageTests


class TestLocalStorage(StorageTests):
    race_rounds = 200

    @pytest.fixture
    def storage(self, tmp_path):
        return LocalStorage(tmp_path / "made" / "on" / "demand")


class TestLocalStorageWithoutFsync(StorageTests):
    race_rounds = 200

    @pytest.fixture
    def storage(self, tmp_path):
        return LocalStorage(tmp_path, durability="none")
