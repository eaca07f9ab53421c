from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.storage.local import LocalStorage
from icefloe.testing.storage import StorageTests

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage


class TestLocalStorage(StorageTests):
    race_rounds = 200

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "made" / "on" / "demand")


class TestLocalStorageWithoutFsync(StorageTests):
    race_rounds = 200

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path, durability="none")
