from __future__ import annotations

import asyncio
import logging
import pickle
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import CommitStateUnknownError, ObjectNotFoundError, StorageError
from icefloe.storage.local import LocalStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.faults import CrashError, Fault, FaultyStorage
from icefloe.testing.logged import LoggedStorage
from icefloe.testing.storage import StorageTests

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage


class TestForwarding(StorageTests):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return FaultyStorage(LoggedStorage(LocalStorage(tmp_path, durability="none")))


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(MemoryStorage())


def test_the_trace_tells_what_was_done_in_order(storage: FaultyStorage) -> None:
    storage.put("chunks/a", b"1")
    asyncio.run(storage.put_async("chunks/b", b"2"))
    storage.create("refs/1", b"3")
    asyncio.run(storage.get_async("chunks/a"))
    [*storage.list("refs/")]
    storage.sync()
    storage.delete_many(["chunks/a", "chunks/b"])
    assert storage.trace == [
        ("put", "chunks/a"),
        ("put", "chunks/b"),
        ("create", "refs/1"),
        ("get", "chunks/a"),
        ("list", "refs/"),
        ("sync", ""),
        ("delete_many", "chunks/a"),
    ]
    assert [verb for verb, _ in storage.writes()] == ["put", "put", "create", "delete_many"]


def test_an_error_means_not_done(storage: FaultyStorage) -> None:
    storage.inject(Fault.ERROR, verb="put", nth=2)
    storage.put("a", b"1")
    with pytest.raises(StorageError):
        storage.put("b", b"2")
    storage.put("c", b"3")
    assert [info.key for info in storage.list()] == ["a", "c"]


def test_a_lost_answer_means_done(storage: FaultyStorage) -> None:
    storage.inject(Fault.LOST_ANSWER, key="refs/")
    storage.put("chunks/a", b"1")
    with pytest.raises(CommitStateUnknownError) as caught:
        storage.create("refs/1", b"2")
    assert caught.value.key == "refs/1"
    assert storage.get("refs/1") == b"2"
    storage.inject(Fault.LOST_ANSWER, verb="put", times=2)
    for key in ("x", "y"):
        with pytest.raises(StorageError):
            storage.put(key, b"3")
        assert storage.get(key) == b"3"
    storage.put("z", b"3")


@pytest.mark.parametrize(
    ("fault", "done"), [(Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)]
)
def test_after_a_crash_nothing_works(storage: FaultyStorage, fault: Fault, done: bool) -> None:
    storage.put("a", b"1")
    storage.inject(fault, nth=2)
    storage.put("b", b"2")
    with pytest.raises(CrashError):
        storage.put("c", b"3")
    with pytest.raises(CrashError):
        storage.get("a")
    assert not issubclass(CrashError, Exception)
    storage.revive()
    assert [info.key for info in storage.list()] == ["a", "b"] + ["c"] * done


def test_a_pickled_copy_starts_anew(storage: FaultyStorage) -> None:
    storage.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.trace == []
    assert copy.get("a") == b"1"


def test_every_operation_is_logged_and_no_content(caplog: pytest.LogCaptureFixture) -> None:
    storage = LoggedStorage(MemoryStorage())
    with caplog.at_level(logging.DEBUG, logger="icefloe.testing.logged"):
        storage.put("chunks/a", b"content")
        assert storage.get("chunks/a") == b"content"
        with pytest.raises(ObjectNotFoundError):
            asyncio.run(storage.get_async("absent"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines] == ["put chunks/a", "get chunks/a", "get absent"]
    assert "7 bytes" in lines[1]
    assert "ObjectNotFoundError" in lines[2]
    assert not any("content" in line for line in lines)
