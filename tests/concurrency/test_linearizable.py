"""Histories of sixteen writers and readers of one branch are linearizable (T-LIN).

Sequence numbers order all commits, so the check takes linear time: an operation that returned
before another was called comes before it, a read gives a state between the newest commit that had
returned when it was called and the newest that was called when it returned, and who was told of a
conflict left nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest
import zarr

import icefloe
from icefloe import ConflictDetector, ConflictError, Repository
from icefloe.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from icefloe.storage.port import Storage

WRITERS = 16
ROUNDS = 6


class Call(NamedTuple):
    """One operation as its caller saw it."""

    what: str
    called: float
    returned: float
    snapshot: str | None
    """What was committed or read; None if the commit was refused."""
    message: str


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return icefloe.in_memory_storage()
    return LocalStorage(tmp_path / "repository", durability="none")


def worker(storage: Storage, number: int, barrier: threading.Barrier) -> list[Call]:
    repo = Repository.open(storage)
    calls = []
    barrier.wait()
    for step in range(ROUNDS):
        message = f"{number}.{step}"
        solver = ConflictDetector() if (number + step) % 2 else None
        session = repo.writable_session("main")
        zarr.open_group(session.store)[f"n{number}"].attrs["step"] = step
        called = time.monotonic()
        try:
            snapshot: str | None = session.commit(message, rebase_with=solver)
        except ConflictError:
            snapshot = None
        calls.append(Call("commit", called, time.monotonic(), snapshot, message))
        called = time.monotonic()
        tip = repo.lookup_branch("main")
        calls.append(Call("read", called, time.monotonic(), tip, ""))
    return calls


def test_histories_of_sixteen_writers_are_linearizable(
    storage: Storage, record_property: Callable[[str, object], None]
) -> None:
    repo = Repository.create(storage)
    with repo.transaction("main", message="start") as store:
        root = zarr.create_group(store)
        for number in range(WRITERS):
            root.create_group(f"n{number}")
    barrier = threading.Barrier(WRITERS)
    with ThreadPoolExecutor(WRITERS) as pool:
        parts = list(pool.map(lambda n: worker(storage, n, barrier), range(WRITERS)))
    calls = list(itertools.chain.from_iterable(parts))
    history = list(Repository.open(storage).ancestry(branch="main"))[::-1]
    place = {info.id: at for at, info in enumerate(history)}
    check(calls, place, {info.message for info in history})
    assert any(call.snapshot is None for call in calls), "nobody met anybody"
    record_property("calls of linearizable histories", len(calls))


def check(calls: list[Call], place: dict[str, int], messages: set[str]) -> None:
    commits = [call for call in calls if call.what == "commit"]
    done = [call for call in commits if call.snapshot is not None]
    assert {call.message for call in done} == messages - {"start", "Repository initialized"}
    for call in commits:
        assert (call.message in messages) == (call.snapshot is not None)
    assert len({call.snapshot for call in done}) == len(done)
    # Real time: whatever returned before something was called comes before it.
    newest, ended = 1, sorted(done, key=lambda call: call.returned)
    waiting = iter(ended)
    following = next(waiting, None)
    for call in sorted(calls, key=lambda call: call.called):
        while following is not None and following.returned < call.called:
            newest = max(newest, place[following.snapshot])
            following = next(waiting, None)
        if call.snapshot is None:
            continue
        if call.what == "read":
            assert place[call.snapshot] >= newest, "a read went back in time"
        else:
            assert place[call.snapshot] > newest, "a commit went back in time"
    called = {call.snapshot: call.called for call in done}
    for call in calls:
        if call.what == "read" and call.snapshot in called:
            assert called[call.snapshot] < call.returned, "a read saw what was not written yet"


def test_the_check_finds_what_is_not_linearizable() -> None:
    place = {"s": 1, "a": 2, "b": 3}
    names = {"start", "Repository initialized", "A", "B"}
    good = [Call("commit", 0, 1, "a", "A"), Call("commit", 2, 3, "b", "B")]
    check(good, place, names)
    stale = [*good, Call("read", 4, 5, "a", "")]
    swapped = [Call("commit", 0, 1, "b", "B"), Call("commit", 2, 3, "a", "A")]
    early = [*good, Call("read", 1.1, 1.2, "b", "")]
    lost = [*good, Call("commit", 0, 1, "c", "C")]
    for wrong in (stale, swapped, early, lost):
        with pytest.raises((AssertionError, KeyError)):
            check(wrong, place, names)
