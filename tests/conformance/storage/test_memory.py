from __future__ import annotations

import pytest

from icefloe.storage.memory import MemoryStorage
from icefloe.testing.storage import StorageTests


class TestMemoryStorage(StorageTests):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()
