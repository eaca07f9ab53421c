from __future__ import annotations

import gc
import os
import pickle

import pytest

from icefloe.errors import StorageError
from icefloe.storage.memory import MemoryStorage


def test_two_storages_share_nothing() -> None:
    one, other = MemoryStorage(), MemoryStorage()
    one.put("key", b"1")
    assert [*other.list()] == []
    assert one != other


def test_one_name_is_one_storage() -> None:
    storage = MemoryStorage.named("shared-by-name")
    storage.put("key", b"1")
    assert MemoryStorage.named("shared-by-name").get("key") == b"1"
    assert storage.location == "memory://shared-by-name"
    assert [*MemoryStorage.named("another-name").list()] == []


def test_a_pickle_does_not_keep_the_data_alive() -> None:
    storage = MemoryStorage()
    storage.put("key", b"1")
    pickled = pickle.dumps(storage)
    del storage
    gc.collect()
    copy = pickle.loads(pickled)
    assert len(pickled) < 500
    with pytest.raises(StorageError, match="cannot travel"):
        copy.get("key")
    with pytest.raises(StorageError, match="cannot travel"):
        copy.put("key", b"2")
    with pytest.raises(StorageError, match="cannot travel"):
        copy.list()
    assert pickle.loads(pickle.dumps(copy)).location == copy.location


def test_a_write_in_a_forked_child_does_not_vanish_silently() -> None:
    storage = MemoryStorage()
    storage.put("key", b"1")
    child = os.fork()
    if child == 0:
        try:
            assert storage.get("key") == b"1"
            with pytest.raises(StorageError, match="forked"):
                storage.put("key", b"2")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_objects_change_between_the_pages_of_a_listing() -> None:
    storage = MemoryStorage()
    for number in range(3000):
        storage.put(f"{number:05}", b"")
    listing = storage.list()
    assert next(listing).key == "00000"
    storage.delete_many(f"{number:05}" for number in range(3000))
    storage.put("99999", b"")
    rest = [info.key for info in listing]
    assert rest[-1] == "99999"
    assert rest == sorted(rest)
