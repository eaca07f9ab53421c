"""Verification beside writers and garbage collections: no false alarm, and no damage overlooked."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest

import icefloe
from icefloe import ProblemKind, Repository
from icefloe.errors import ConflictError, SessionStateError, SnapshotNotFoundError
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.clock import ClockedStorage
from tests.integration.maintained import HOUR, fill, make, names, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

pytestmark = pytest.mark.usefixtures("each_generation")

_Result = TypeVar("_Result")


class Interrupted(ForwardingStorage):
    """Lets somebody else act before the request of a number, counted from `start` on."""

    def __init__(self, inner: Storage, number: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._left: int | None = None
        self._number = number
        self._act = act
        self._lock = threading.Lock()

    def start(self) -> None:
        self._left = self._number

    @property
    def has_acted(self) -> bool:
        return self._left is not None and self._left < 0

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        with self._lock:
            if self._left is not None and self._left >= 0:
                self._left -= 1
                if self._left < 0:
                    self._act()
        return act()


def source() -> Storage:
    """A repository with a history, a branch beside it and a tag."""
    repo = make()
    fill(repo, 1)
    fill(repo, 2, chunks=slice(0, 2))
    repo.create_branch("work", "main")
    fill(repo, 3, "work", slice(2, 3))
    repo.create_tag("old", "main~1")
    fill(repo, 4, chunks=slice(0, 1))
    return repo.storage


def copy_of(storage: Storage) -> Repository:
    """The same repository somewhere else, an hour later."""
    memory = icefloe.in_memory_storage()
    for info in storage.list():
        memory.put(info.key, storage.get(info.key))
    clocked = ClockedStorage(memory)
    clocked.wait(HOUR)
    return Repository.open(clocked)


def commit(repo: Repository) -> None:
    fill(repo, 9, chunks=slice(1, 2))


def commit_and_collect(repo: Repository) -> None:
    repo.reset_branch("main", "main~1")
    fill(repo, 9, chunks=slice(1, 2))
    repo.garbage_collect(HOUR / 2)


def delete_and_collect(repo: Repository) -> None:
    repo.delete_branch("work")
    repo.garbage_collect(HOUR / 2)


def expire_and_collect(repo: Repository) -> None:
    assert repo.expire_snapshots(HOUR / 2)
    assert repo.garbage_collect(HOUR / 2).snapshots_deleted


OTHERS = [commit, commit_and_collect, delete_and_collect, expire_and_collect]


def each_moment(
    storage: Storage, act: Callable[[Repository], None], look: Callable[[Repository], None]
) -> int:
    """Let others act before each request of `look`; returns how many there were."""
    number = 0
    while True:
        repo = copy_of(storage)
        between = Interrupted(repo.storage, number, partial(act, repo))
        seen = Repository.open(between)
        between.start()
        look(seen)
        if not between.has_acted:
            return number
        number += 1


@pytest.mark.parametrize("act", OTHERS, ids=lambda act: act.__name__)
def test_nothing_is_wrong_whatever_others_do_meanwhile(act: Callable[[Repository], None]) -> None:
    def look(repo: Repository) -> None:
        report = repo.verify(deep=True)
        assert report.is_clean, str(report)

    assert each_moment(source(), act, look) > 10


def test_damage_is_found_although_others_delete_what_shares_it() -> None:
    storage = source()
    whole = Repository.open(storage)
    deleted = names(whole, "chunks")
    # The chunks that the tag shares with all branches: what came first.
    kept = copy_of(storage)
    for branch in ("work", "main"):
        kept.reset_branch(branch, "old")
    kept.garbage_collect(HOUR / 2)
    shared = sorted(names(kept, "chunks"))
    assert set(shared) < deleted
    storage.delete_many(shared)

    def look(repo: Repository) -> None:
        problems = repo.verify().problems
        assert {problem.kind for problem in problems} == {ProblemKind.CHUNK_FILE}
        assert {problem.key for problem in problems} == set(shared)

    assert each_moment(storage, delete_and_collect, look) > 10


def test_sizes_of_chunk_files_beside_a_writer() -> None:
    def look(repo: Repository) -> None:
        assert (repo.chunk_file_stats().sizes > 0).all()

    assert each_moment(source(), commit, look) > 5


def test_repair_beside_a_collection() -> None:
    """A log that is missing is written again, unless its snapshot goes meanwhile."""
    storage = source()
    work = Repository.open(storage).lookup_branch("work")
    keys = [key for key in names(Repository.open(storage), "transactions") if work in key]
    storage.delete_many(keys)

    def look(repo: Repository) -> None:
        repo.repair()
        assert Repository.open(ForwardingStorage(repo.storage)).verify().is_clean

    assert each_moment(storage, delete_and_collect, look) > 5


def test_threads_that_write_collect_and_verify() -> None:
    storage = icefloe.in_memory_storage()
    repo = make(storage=storage)
    repo.create_branch("work", "main")
    stop = threading.Event()
    failures: list[BaseException] = []

    def keep(act: Callable[[Repository, int], None]) -> threading.Thread:
        def run() -> None:
            mine = Repository.open(storage)
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    act(mine, number)
                except (ConflictError, SessionStateError, SnapshotNotFoundError):
                    continue  # somebody else was quicker, as may happen
                except BaseException as error:  # noqa: BLE001 (raised below)
                    failures.append(error)
                    return

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(mine: Repository, number: int) -> None:
        fill(mine, number % 200, ("main", "work")[number % 2])

    def collect(mine: Repository, number: int) -> None:
        if number % 2:
            mine.reset_branch("work", "main")
        mine.expire_snapshots(HOUR * 0)
        mine.garbage_collect(HOUR * 0)

    threads = [keep(write), keep(collect)]
    try:
        for _ in range(20):
            report = Repository.open(storage).verify(deep=True)
            assert report.is_clean, str(report)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(set(values(repo, branch="main"))) == 1
