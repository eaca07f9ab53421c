"""Configuration as versioned files (H-33)."""

from __future__ import annotations

import pytest

from icefloe.errors import ConflictError
from icefloe.formats.config_files import ConfigFiles
from icefloe.storage.memory import MemoryStorage


def test_each_change_is_one_more_file() -> None:
    storage = MemoryStorage()
    config = ConfigFiles(storage)
    assert config.read() is None
    assert config.write(None, b'{"a":1}') == 0
    assert config.write(0, b'{"a":2}') == 1
    assert config.read() == (1, b'{"a":2}')
    assert [info.key for info in storage.list()] == ["config/ZZZZZZZY.json", "config/ZZZZZZZZ.json"]
    assert storage.get("config/ZZZZZZZZ.json") == b'{"a":1}'


@pytest.mark.parametrize("expected", [None, 0])
def test_a_change_on_an_old_state_is_a_conflict(expected: int | None) -> None:
    config = ConfigFiles(MemoryStorage())
    config.write(None, b"0")
    config.write(0, b"1")
    with pytest.raises(ConflictError, match="changed by someone else"):
        config.write(expected, b"other")
    assert config.read() == (1, b"1")


def test_the_legacy_file_is_read() -> None:
    storage = MemoryStorage()
    config = ConfigFiles(storage)
    assert config.read_legacy() is None
    storage.put("config.yaml", b"inline_chunk_threshold_bytes: 12\n")
    assert config.read_legacy() == b"inline_chunk_threshold_bytes: 12\n"
