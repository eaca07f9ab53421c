"""Rounds are counted by causes: what may be sent at the same time is of one round."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from icefloe.objects.cache import ByteCache
from icefloe.storage.concurrency import each_at_once, together
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.workers import ThreadJob, in_any_order
from icefloe.testing.requests import PAGE, CountingStorage

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def storage() -> CountingStorage:
    storage = CountingStorage(MemoryStorage())
    for number in range(5):
        storage.put(f"a/{number}", bytes(10))
    return storage


def one_after_the_other(storage: CountingStorage) -> None:
    for number in range(5):
        storage.get(f"a/{number}")


def in_a_pool(storage: CountingStorage) -> None:
    with ThreadPoolExecutor(1) as pool:  # one thread is enough: they do not wait for each other
        list(pool.map(storage.get, [f"a/{number}" for number in range(5)]))


def in_a_pool_twice(storage: CountingStorage) -> None:
    in_a_pool(storage)
    in_a_pool(storage)


def at_once(storage: CountingStorage) -> None:
    each_at_once(storage, storage.get, [f"a/{number}" for number in range(5)])


def at_once_and_nested(storage: CountingStorage) -> None:
    together(storage, lambda: at_once(storage), lambda: in_a_pool_twice(storage))


def in_any_order_of_jobs(storage: CountingStorage) -> None:
    jobs = [ThreadJob(1, lambda: storage.get("a/0")) for _ in range(5)]
    list(in_any_order(jobs, at_a_time=5, max_bytes=100))


def gathered(storage: CountingStorage) -> None:
    async def twice() -> None:
        await asyncio.gather(*(storage.get_async(f"a/{number}") for number in range(5)))
        await asyncio.to_thread(storage.get, "a/0")

    asyncio.run(twice())


def handed_to_a_loop(storage: CountingStorage) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    storage.get("a/0")
    for _ in range(2):
        asyncio.run_coroutine_threadsafe(storage.get_async("a/0"), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def found_in_a_cache(storage: CountingStorage) -> None:
    """Whoever finds something depends on the request that brought it, in whatever thread."""
    cache: ByteCache[str, bytes] = ByteCache(100)

    def fetch() -> None:
        storage.get("a/0")
        cache.put("a/0", storage.get("a/1"), 10)

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    assert cache.get("a/0") is not None
    storage.get("a/2")


@pytest.mark.parametrize(
    ("act", "requests", "rounds"),
    [
        (one_after_the_other, 5, 5),
        (in_a_pool, 5, 1),
        (in_a_pool_twice, 10, 2),
        (at_once, 5, 1),
        (at_once_and_nested, 15, 2),
        (in_any_order_of_jobs, 5, 1),
        (gathered, 6, 2),
        (handed_to_a_loop, 3, 3),
        (found_in_a_cache, 3, 3),
    ],
)
def test_rounds_follow_causes(
    storage: CountingStorage, act: Callable[[CountingStorage], None], requests: int, rounds: int
) -> None:
    for _ in range(2):  # clocks begin again
        with storage.counting() as counts:
            act(storage)
        assert (counts.requests, counts.rounds) == (requests, rounds), str(counts)
        assert counts.bytes_read == 10 * requests


def test_work_that_nobody_waits_for_is_counted_and_no_round(storage: CountingStorage) -> None:
    with ThreadPoolExecutor(1) as pool, storage.counting() as counts:
        pool.submit(one_after_the_other, storage)
    assert (counts.requests, counts.rounds) == (5, 0)


def test_listings_and_deletions_count_for_each_thousand(storage: CountingStorage) -> None:
    for number in range(PAGE + 1):
        storage.put(f"many/{number}", b"")
    with storage.counting() as counts:
        keys = [info.key for info in storage.list("many/")]
        next(iter(storage.list("many/", limit=1)))
        storage.delete_many(keys)
    assert [request.verb for request in counts.log] == ["list"] * 3 + ["delete_many"] * 2
    assert counts.rounds == 4


def test_ranges_that_lie_apart_are_requests_of_their_own(storage: CountingStorage) -> None:
    storage.put("large", bytes(4 * 1024 * 1024))
    with storage.counting() as counts:
        storage.get_ranges("large", [(0, 10), (20, 10), (3 * 1024 * 1024, 10)])
        storage.create("other", bytes(7))
    assert [(each.verb, each.round) for each in counts.log] == [
        ("get", 1),
        ("get", 1),
        ("create", 2),
    ]
    assert (counts.bytes_read, counts.bytes_written) == (40, 7)
