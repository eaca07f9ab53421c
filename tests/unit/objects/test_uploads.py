"""Objects are written at the same time, within limits, and nothing refers to what failed."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import RepositoryConfig
from icefloe.errors import StorageError
from icefloe.objects.single_flight import SingleFlight
from icefloe.objects.uploads import Uploads
from icefloe.storage.concurrency import in_threads
from icefloe.storage.memory import MemoryStorage
from icefloe.testing.faults import Fault, FaultyStorage
from icefloe.testing.requests import FarStorage
from tests.builders import new_repository

PACKED = RepositoryConfig(inline_chunk_threshold_bytes=0)


def test_all_are_stored_when_the_wait_is_over() -> None:
    storage = FarStorage(MemoryStorage())
    uploads = Uploads(storage, 3, 25)
    for number in range(20):
        uploads.put(f"k/{number:02}", bytes(10))
    uploads.put("k/large", bytes(1000))  # one may always run
    uploads.wait()
    assert len(list(storage.list("k/"))) == 21
    uploads.wait()


def test_an_error_is_raised_when_nothing_is_under_way() -> None:
    storage = FaultyStorage(FarStorage(MemoryStorage()))
    storage.inject(Fault.ERROR, verb="put", nth=2)
    uploads = Uploads(storage, 2, 100)
    for number in range(5):
        uploads.put(str(number), b"x")
    with pytest.raises(StorageError, match="injected"):
        uploads.wait()
    assert len(list(storage.list())) == 4
    uploads.wait()


@pytest.mark.parametrize("what", ["chunks", "manifests", "transactions"])
def test_what_a_failed_commit_wrote_is_readable_and_committed_next_time(what: str) -> None:
    storage = FaultyStorage(FarStorage(icefloe.in_memory_storage()))
    repo = new_repository(storage, PACKED)
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=8, chunks=(2,), dtype="i4")
    array[:] = np.arange(8)
    storage.inject(Fault.ERROR, verb="put", key=f"{what}/")
    with pytest.raises(StorageError, match="injected"):
        session.commit("fails")
    assert not list(storage.list("snapshots/"))[1:], "nothing refers to what is missing"
    assert array[:].tolist() == list(range(8))
    array[0] = 100
    session.commit("succeeds")
    stored = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert stored[:].tolist() == [100, *range(1, 8)]
    assert repo.verify(deep=True).is_clean


def test_a_snapshot_waits_for_everything_that_it_refers_to() -> None:  # invariant 2
    storage = FaultyStorage(FarStorage(icefloe.in_memory_storage()))
    session = new_repository(storage, PACKED).writable_session("main")
    zarr.create_array(session.store, name="a", shape=8, chunks=(2,), dtype="i4")[:] = 1
    storage.trace.clear()
    session.commit("three rounds")
    kinds = [key.partition("/")[0] for verb, key in storage.trace if verb in {"put", "create"}]
    assert sorted(kinds[:3]) == ["chunks", "manifests", "transactions"]
    assert kinds[3:] == ["snapshots", "refs"]


def test_several_threads_that_want_one_thing_ask_once() -> None:
    flights = SingleFlight()
    calls = []
    begun = threading.Barrier(8)

    def work() -> int:
        calls.append(1)
        while len(flights._running) == 0:
            pass
        threading.Event().wait(0.05)
        return 7

    def want(_: int) -> int:
        begun.wait()
        return flights.do("key", work)

    assert in_threads(want, range(8)) == [7] * 8
    assert len(calls) < 8
    assert flights.do("key", lambda: 8) == 8, "only while it is under way"


def test_an_error_reaches_all_who_wait() -> None:
    flights = SingleFlight()
    with pytest.raises(KeyError):
        flights.do("key", lambda: {}["nothing"])
    assert flights.do("key", lambda: 1) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_during_a_flight_leaves_its_key_usable() -> None:
    flights = SingleFlight()
    begun, end = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert end.wait(60)
        return 1

    thread = threading.Thread(target=flights.do, args=("key", work))
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        # The thread that works is not in this process, so that waiting for it would never end.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        os._exit(flights.do("key", lambda: 0))
    _, status = os.waitpid(child, 0)
    end.set()
    thread.join()
    assert status == 0
