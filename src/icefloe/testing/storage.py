"""What every storage must do: test classes for pytest, to be inherited with a `storage` fixture.

class TestMyStorage(StorageTests):
    @pytest.fixture
    def storage(self, tmp_path):
        return MyStorage(tmp_path)
"""

# ruff: noqa: D102 (the names of tests say what they test)

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.storage.port import ObjectVersion, Storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

ODD_KEYS = (
    "odd/with space",
    "odd/plus+and&equals=",
    "odd/percent%41",
    "odd/hash#mark",
    "odd/question?mark",
    "odd/quote'double\"(round)[square]",
    "odd/colon:at@comma,semicolon;",
    "odd/tilde~dollar$star*",
    "odd/.hidden",
    "odd/...",
    "odd/ünïcödé/日本/🧊",
    "odd/" + "long" * 50,
    "odd/UPPER",
    "odd/upper",
)
BAD_KEYS = (
    "",
    "/",
    "/leading",
    "trailing/",
    "double//slash",
    ".",
    "..",
    "../outside",
    "in/../side",
    "in/./side",
    "nul\0byte",
    "new\nline",
    "lone\ud800surrogate",
    ".icefloe-tmp/temporary",
    "deep/.icefloe-tmp-x",
)
MANY = 1200
BIG = 32 * 1024 * 1024


class StorageReadTests:
    """Reading, for every storage. What is read is written through `writer`."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return the storage under test, empty: to be overridden."""
        raise NotImplementedError("override the fixture `storage`")

    @pytest.fixture
    def writer(self, storage: Storage) -> Storage:
        """Return a storage of the same objects that can be written to."""
        return storage

    def test_an_object_is_read_as_it_was_written(self, storage: Storage, writer: Storage) -> None:
        data = os.urandom(5000)
        writer.put("folder/object", data)
        assert storage.get("folder/object") == data
        assert type(storage.get("folder/object")) is bytes
        assert storage.head("folder/object").size == 5000

    def test_an_empty_object_is_not_an_absent_one(self, storage: Storage, writer: Storage) -> None:
        writer.put("empty", b"")
        assert storage.get("empty") == b""
        assert storage.get("empty", 0, 0) == b""
        assert storage.get_suffix("empty", 10) == b""
        assert storage.head("empty").size == 0

    @pytest.mark.parametrize(
        "read",
        [
            lambda storage: storage.get("absent/object"),
            lambda storage: storage.get("absent/object", 1, 2),
            lambda storage: storage.get("absent/object", 5),
            lambda storage: storage.get("absent/object", 0, 0),
            lambda storage: storage.get_suffix("absent/object", 2),
            lambda storage: storage.get_ranges("absent/object", [(0, 1)]),
            lambda storage: storage.get_with_version("absent/object"),
            lambda storage: storage.head("absent/object"),
            lambda storage: asyncio.run(storage.get_async("absent/object")),
            lambda storage: asyncio.run(storage.get_async("absent/object", 1, 2)),
        ],
    )
    def test_an_absent_object_is_reported_by_key(
        self, storage: Storage, writer: Storage, read: Callable[[Storage], object]
    ) -> None:
        writer.put("present", b"")
        with pytest.raises(ObjectNotFoundError) as caught:
            read(storage)
        assert caught.value.key == "absent/object"

    def test_a_folder_is_no_object(self, storage: Storage, writer: Storage) -> None:
        writer.put("folder/object", b"1")
        with pytest.raises(ObjectNotFoundError):
            storage.get("folder")
        with pytest.raises(ObjectNotFoundError):
            storage.get("folder/object/below")

    def test_ranges_are_exact(self, storage: Storage, writer: Storage) -> None:  # R3-15
        # R0-13, R1-05
        data = bytes(range(256)) * 4
        writer.put("ranges", data)
        assert storage.get("ranges", 10, 20) == data[10:30]
        assert storage.get("ranges", 1000) == data[1000:]
        assert storage.get("ranges", 0, 1024) == data
        assert storage.get("ranges", 1023, 1) == data[1023:]
        assert storage.get("ranges", 7, 0) == b""
        assert storage.get("ranges", 1024) == b""
        assert storage.get("ranges", 1024, 0) == b""

    @pytest.mark.parametrize(
        ("start", "length"), [(1020, 5), (0, 1025), (1024, 1), (2000, 1), (2000, 0), (2000, None)]
    )
    def test_a_range_past_the_end_is_an_error(
        self, storage: Storage, writer: Storage, start: int, length: int | None
    ) -> None:
        writer.put("ranges", bytes(1024))
        with pytest.raises(StorageError):
            storage.get("ranges", start, length)
        with pytest.raises(StorageError):
            asyncio.run(storage.get_async("ranges", start, length))
        if length is not None:
            with pytest.raises(StorageError):
                storage.get_ranges("ranges", [(0, 10), (start, length)])

    def test_negative_ranges_are_refused(self, storage: Storage, writer: Storage) -> None:
        writer.put("ranges", bytes(10))
        for start, length in ((-1, 1), (0, -1)):
            with pytest.raises(InvalidInputError):
                storage.get("ranges", start, length)
            with pytest.raises(InvalidInputError):
                storage.get_ranges("ranges", [(start, length)])
        with pytest.raises(InvalidInputError):
            storage.get_suffix("ranges", -1)

    def test_suffixes(self, storage: Storage, writer: Storage) -> None:
        writer.put("suffix", b"0123456789")
        assert storage.get_suffix("suffix", 3) == b"789"
        assert storage.get_suffix("suffix", 10) == b"0123456789"
        assert storage.get_suffix("suffix", 11) == b"0123456789"
        assert storage.get_suffix("suffix", 0) == b""

    def test_many_ranges_come_in_the_order_asked(self, storage: Storage, writer: Storage) -> None:
        data = os.urandom(4096)
        writer.put("ranges", data)
        ranges = [(4000, 96), (0, 10), (5, 10), (100, 0), (0, 4096), (4, 1), (10, 10), (20, 10)]
        expected = [data[start : start + length] for start, length in ranges]
        assert storage.get_ranges("ranges", ranges) == expected
        assert storage.get_ranges("ranges", []) == []

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_read(self, storage: Storage, writer: Storage, key: str) -> None:
        writer.put(key, key.encode())
        assert storage.get(key) == key.encode()
        assert storage.get(key, 1, 3) == key.encode()[1:4]
        assert storage.head(key).key == key

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_are_refused(self, storage: Storage, key: str) -> None:
        with pytest.raises(InvalidInputError):
            storage.get(key)
        with pytest.raises(InvalidInputError):
            storage.head(key)
        with pytest.raises(InvalidInputError):
            asyncio.run(storage.get_async(key))

    def test_head_says_when_by_an_aware_time(self, storage: Storage, writer: Storage) -> None:
        writer.put("first", b"1")
        info = storage.head("first")
        assert info.key == "first"
        assert info.last_modified.tzinfo is not None
        assert writer.head("first").last_modified.replace(microsecond=0) == (
            info.last_modified.replace(microsecond=0)
        )

    def test_async_reads_from_several_loops(self, storage: Storage, writer: Storage) -> None:
        data = {f"async/{number}": os.urandom(100 + number) for number in range(16)}
        for key, body in data.items():
            writer.put(key, body)

        async def read_all() -> list[bytes]:
            whole = await asyncio.gather(*(storage.get_async(key) for key in data))
            parts = await asyncio.gather(*(storage.get_async(key, 10, 20) for key in data))
            assert parts == [body[10:30] for body in data.values()]
            return whole

        with ThreadPoolExecutor(4) as threads:
            loops = [threads.submit(asyncio.run, read_all()) for _ in range(4)]
            for loop in loops:
                assert loop.result() == [*data.values()]

    def test_reads_from_many_threads(self, storage: Storage, writer: Storage) -> None:
        data = os.urandom(100_000)
        writer.put("threads", data)

        def read(number: int) -> bool:
            return storage.get("threads", number * 1000, 1000) == data[number * 1000 :][:1000]

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(read, range(100)))

    def test_a_pickled_copy_reads_the_same(self, storage: Storage, writer: Storage) -> None:
        writer.put("pickled", b"here")
        copy: Storage = pickle.loads(pickle.dumps(storage))
        assert copy.get("pickled") == b"here"
        assert copy.location == storage.location
        assert copy == storage
        assert copy.capabilities == storage.capabilities

    def test_a_pickle_travels_or_says_that_it_cannot(
        self, storage: Storage, writer: Storage
    ) -> None:
        writer.put("travels", b"far")
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_read_elsewhere, args=(pickle.dumps(storage), "travels", sender)
        )
        process.start()
        sender.close()
        outcome = receiver.recv()
        process.join()
        if storage.capabilities.survives_pickle:
            assert outcome == b"far"
        else:
            assert isinstance(outcome, StorageError)
            assert "process" in str(outcome)

    def test_is_a_storage(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)
        assert "://" in storage.location


class StorageTests(StorageReadTests):
    """All of the port, for a storage that can be written to and listed."""

    race_rounds = 20
    race_threads = 16
    race_processes = 4

    def test_written_bytes_are_a_copy(self, storage: Storage) -> None:
        data = bytearray(b"before")
        storage.put("copied", data)
        storage.create("created", data)
        data[:] = b"after!"
        assert storage.get("copied") == b"before"
        assert storage.get("created") == b"before"

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_are_not_written(self, storage: Storage, key: str) -> None:
        with pytest.raises(InvalidInputError):
            storage.put(key, b"")
        with pytest.raises(InvalidInputError):
            storage.create(key, b"")
        with pytest.raises(InvalidInputError):
            storage.replace(key, b"", None)
        with pytest.raises(InvalidInputError):
            storage.delete_many([key])
        assert [*storage.list()] == []

    def test_odd_keys_are_listed_and_deleted(self, storage: Storage) -> None:  # R3-16, R1-05
        for key in ODD_KEYS:
            storage.create(key, b"1")
        assert [info.key for info in storage.list()] == sorted(ODD_KEYS, key=str.encode)
        names = {key.split("/")[1] for key in ODD_KEYS}
        assert storage.list_dir("odd") == sorted(names, key=str.encode)
        storage.delete_many(ODD_KEYS)
        assert [*storage.list()] == []

    def test_reads_and_lists_show_writes_at_once(self, storage: Storage) -> None:  # R3-13, R1-05
        for number in range(20):
            key = f"now/{number:02}"
            storage.put(key, b"%d" % number)
            assert storage.get(key) == b"%d" % number
            assert [info.key for info in storage.list("now/")][-1] == key
        for number in range(20):
            key = f"now/{number:02}"
            storage.delete_many([key])
            with pytest.raises(ObjectNotFoundError):
                storage.head(key)
            assert key not in [info.key for info in storage.list("now/")]

    def test_a_big_object(self, storage: Storage) -> None:
        data = os.urandom(1024 * 1024) * (BIG // (1024 * 1024))
        storage.put("big/put", data)
        storage.create("big/created", data)
        for key in ("big/put", "big/created"):
            assert storage.head(key).size == BIG
            assert storage.get(key) == data
            assert storage.get(key, 1, BIG - 2) == data[1:-1]
            assert asyncio.run(storage.get_async(key, 1, BIG - 2)) == data[1:-1]
        with pytest.raises(AlreadyExistsError):
            storage.create("big/created", data[:-1] + bytes([data[-1] ^ 1]))

    def test_attributes_are_kept_where_they_can_be(self, storage: Storage) -> None:  # R2-14
        storage.put("attributed", b"1", {"icefloetype": "snapshot", "icefloeversion": "2"})
        storage.create("created", b"1", {"icefloetype": "snapshot", "icefloeversion": "2"})
        storage.put("plain", b"1")
        storage.create("created plain", b"1")
        expected = {"icefloetype": "snapshot", "icefloeversion": "2"}
        if not storage.capabilities.keeps_attributes:
            expected = {}
        assert storage.get_attributes("attributed") == expected
        assert storage.get_attributes("created") == expected
        assert storage.get_attributes("plain") == {}
        assert storage.get_attributes("created plain") == {}
        assert storage.get("attributed") == b"1"

    # Conditional writes

    def test_create_refuses_to_overwrite(self, storage: Storage) -> None:  # R3-14, R1-05
        storage.create("refs/first", b"ours")
        with pytest.raises(AlreadyExistsError):
            storage.create("refs/first", b"theirs")
        with pytest.raises(AlreadyExistsError):
            storage.create("refs/first", b"ours and more")
        with pytest.raises(AlreadyExistsError):
            storage.create("refs/first", b"")
        assert storage.get("refs/first") == b"ours"

    def test_create_of_the_same_bytes_is_done_already(self, storage: Storage) -> None:
        storage.create("refs/same", b"same")
        storage.create("refs/same", b"same")
        storage.create("refs/empty", b"")
        storage.create("refs/empty", b"")
        assert storage.get("refs/same") == b"same"

    def test_create_again_after_deletion(self, storage: Storage) -> None:
        storage.create("again", b"1")
        storage.delete_many(["again"])
        storage.create("again", b"2")
        assert storage.get("again") == b"2"

    def test_replace_needs_the_current_version(self, storage: Storage) -> None:
        first = storage.replace("state", b"1", None)
        with pytest.raises(ConflictError):
            storage.replace("state", b"other 1", None)
        assert storage.get_with_version("state") == (b"1", first)
        second = storage.replace("state", b"2", first)
        assert second != first
        with pytest.raises(ConflictError):
            storage.replace("state", b"3", first)
        assert storage.get_with_version("state") == (b"2", second)
        storage.delete_many(["state"])
        with pytest.raises(ConflictError):
            storage.replace("state", b"4", second)

    def test_versions_survive_pickling(self, storage: Storage) -> None:
        version: ObjectVersion = pickle.loads(pickle.dumps(storage.replace("state", b"1", None)))
        storage.replace("state", b"2", version)

    def test_no_increment_is_lost(self, storage: Storage) -> None:
        storage.replace("counter", b"0 start", None)

        def increment(name: int) -> None:
            for _ in range(5):
                while True:
                    data, version = storage.get_with_version("counter")
                    count = int(data.split()[0]) + 1
                    try:
                        # The name makes the bytes of each writer unlike all others.
                        storage.replace("counter", b"%d %d" % (count, name), version)
                    except ConflictError:
                        continue
                    break

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(increment, name) for name in range(4)]:
                done.result()
        assert storage.get("counter").split()[0] == b"20"

    def test_one_of_many_threads_creates(self, storage: Storage) -> None:  # R3-14
        barrier = threading.Barrier(self.race_threads)

        def race(name: int) -> list[bool]:
            return [
                _wins(storage, f"race/{number}", b"%d" % name, barrier)
                for number in range(self.race_rounds)
            ]

        with ThreadPoolExecutor(self.race_threads) as threads:
            results = [*threads.map(race, range(self.race_threads))]
        self._require_one_winner(storage, results)

    def test_one_of_many_processes_creates(self, storage: Storage) -> None:  # R3-14
        if not storage.capabilities.survives_pickle:
            pytest.skip("this storage cannot travel to other processes")
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(self.race_processes)
        pipes = [context.Pipe(duplex=False) for _ in range(self.race_processes)]
        processes = [
            context.Process(
                target=_race_elsewhere,
                args=(pickle.dumps(storage), name, self.race_rounds, barrier, sender),
            )
            for name, (_, sender) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        results = [receiver.recv() for receiver, _ in pipes]
        for process in processes:
            process.join()
        for result in results:
            if isinstance(result, Exception):
                raise result
        self._require_one_winner(storage, results)

    def _require_one_winner(self, storage: Storage, results: list[list[bool]]) -> None:
        for number in range(self.race_rounds):
            winners = [name for name, won in enumerate(results) if won[number]]
            assert len(winners) == 1, f"round {number} was won by {winners}"
            assert storage.get(f"race/{number}") == b"%d" % winners[0]

    # Listing and deleting

    def test_a_listing_is_sorted_by_bytes(self, storage: Storage) -> None:  # R3-17, R1-05
        keys = [
            "a-b",
            "a.b",
            "a/c",
            "a/c-d",
            "a/e/f",
            "a0",
            "B",
            "b/x-y",
            "b/x/y",
            "z",
            "é",
            "日",
            "🧊",
        ]
        for key in reversed(keys):
            storage.put(key, key.encode())
        expected = sorted(keys, key=str.encode)
        infos = [*storage.list()]
        assert [info.key for info in infos] == expected
        assert [info.size for info in infos] == [len(key.encode()) for key in expected]
        assert all(info.last_modified.tzinfo is not None for info in infos)

    def test_a_prefix_is_text(self, storage: Storage) -> None:
        for key in ("refs/branch.main/1", "refs/branch.main/2", "refs/branch.maintenance/1", "z"):
            storage.put(key, b"")

        def keys(prefix: str) -> list[str]:
            return [info.key for info in storage.list(prefix)]

        main = ["refs/branch.main/1", "refs/branch.main/2"]
        assert keys("refs/branch.main/") == main
        assert keys("refs/branch.main") == [*main, "refs/branch.maintenance/1"]
        assert keys("refs/branch.main/2") == ["refs/branch.main/2"]
        assert keys("refs/branch.x") == []
        assert keys("nothing/here/") == []
        assert keys("z") == ["z"]

    def test_a_listing_starts_where_told(self, storage: Storage) -> None:
        keys = [f"n/{number:03}" for number in range(30)] + ["n-", "n0", "other/x"]
        for key in keys:
            storage.put(key, b"")
        keys.sort()

        def listed(prefix: str, after: str, limit: int | None = None) -> list[str]:
            return [info.key for info in storage.list(prefix, start_after=after, limit=limit)]

        assert listed("", "") == keys
        assert listed("n/", "n/010") == [f"n/{number:03}" for number in range(11, 30)]
        assert listed("n/", "n/0105") == [f"n/{number:03}" for number in range(11, 30)]
        assert listed("n/01", "n/010") == [f"n/{number:03}" for number in range(11, 20)]
        assert listed("n/", "n/029") == []
        assert listed("n/", "zzz") == []
        assert listed("n/", "a") == [f"n/{number:03}" for number in range(30)]
        assert listed("", "n/029") == ["n0", "other/x"]
        assert listed("", "", 0) == []
        assert listed("n/", "", 1) == ["n/000"]
        assert listed("n/", "n/004", 3) == ["n/005", "n/006", "n/007"]

    def test_folders_are_listed(self, storage: Storage) -> None:
        for key in ("top", "a/1", "a/2", "a/b/3", "a/b/c/4", "a-b/5"):
            storage.put(key, b"")
        assert storage.list_dir("") == ["a", "a-b", "top"]
        assert storage.list_dir("a") == ["1", "2", "b"]
        assert storage.list_dir("a/") == ["1", "2", "b"]
        assert storage.list_dir("a/b") == ["3", "c"]
        assert storage.list_dir("absent") == []
        storage.delete_many(["a/b/3", "a/b/c/4"])
        assert storage.list_dir("a") == ["1", "2"]

    def test_bad_prefixes_are_refused(self, storage: Storage) -> None:
        for prefix in ("/", "../", "a//", "a/../", "a\0"):
            with pytest.raises(InvalidInputError):
                storage.list(prefix)
            with pytest.raises(InvalidInputError):
                storage.list_dir(prefix)

    def test_many_objects(self, storage: Storage) -> None:
        keys = sorted(f"many/{number % 10}/{number * 7919 % 100_000:08}" for number in range(MANY))
        with ThreadPoolExecutor(16) as threads:
            for done in [threads.submit(storage.put, key, b"x") for key in keys]:
                done.result()
        assert [info.key for info in storage.list("many/")] == keys
        assert [info.key for info in storage.list(start_after=keys[100])] == keys[101:]
        assert [info.key for info in storage.list("many/", limit=1001)] == keys[:1001]
        assert storage.list_dir("many") == [str(digit) for digit in range(10)]
        assert len(storage.list_dir("many/7")) == MANY // 10
        left = set(keys[::2])
        storage.delete_many(key for key in keys if key not in left)
        assert [info.key for info in storage.list()] == sorted(left)
        storage.delete_many(keys)  # half of them are gone already
        assert [*storage.list()] == []

    def test_deleting_what_is_absent_is_no_error(self, storage: Storage) -> None:
        storage.put("here", b"1")
        storage.delete_many(["absent", "here", "also/absent"])
        storage.delete_many(["absent"])
        storage.delete_many([])
        assert [*storage.list()] == []

    # Many at once

    async def test_async_writes(self, storage: Storage) -> None:
        data = {f"async/{number}": os.urandom(1000) for number in range(32)}
        await asyncio.gather(*(storage.put_async(key, body) for key, body in data.items()))
        storage.sync()
        assert await asyncio.gather(*(storage.get_async(key) for key in data)) == [*data.values()]

    def test_writes_from_many_threads(self, storage: Storage) -> None:
        def write(number: int) -> None:
            for part in range(5):
                storage.put(f"{number}/{part}", b"%d %d" % (number, part))

        with ThreadPoolExecutor(16) as threads:
            for done in [threads.submit(write, number) for number in range(16)]:
                done.result()
        storage.sync()
        assert len([*storage.list()]) == 80
        assert all(
            storage.get(f"{number}/{part}") == b"%d %d" % (number, part)
            for number in range(16)
            for part in range(5)
        )


def _wins(storage: Storage, key: str, data: bytes, barrier: threading.Barrier | Barrier) -> bool:
    barrier.wait(60)
    try:
        storage.create(key, data)
    except AlreadyExistsError:
        return False
    return True


def _race_elsewhere(
    pickled: bytes, name: int, rounds: int, barrier: Barrier, answer: Connection
) -> None:
    try:
        storage: Storage = pickle.loads(pickled)
        won = [_wins(storage, f"race/{number}", b"%d" % name, barrier) for number in range(rounds)]
        answer.send(won)
    except Exception as error:  # noqa: BLE001 (reported by the parent)
        barrier.abort()
        answer.send(error)


def _read_elsewhere(pickled: bytes, key: str, answer: Connection) -> None:
    try:
        storage: Storage = pickle.loads(pickled)
        answer.send(storage.get(key))
    except Exception as error:  # noqa: BLE001 (looked at by the parent)
        answer.send(error)
