from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe.storage.memory import MemoryStorage
from icefloe.testing.storage import StorageTests

if TYPE_CHECKING:
    from icefloe.storage.port import Storage


class TestMemoryStorage(StorageTests):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()
