"""Processes that commit to one branch at the same time: no commit is lost, doubled or half."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository
from tests.concurrency.writers import (
    Outcome,
    append_to_series,
    create_pair,
    create_repository,
    create_series,
    create_tags,
    read_pair,
    run_together,
    write_cells,
    write_pair,
    write_pairs,
)

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage
    from tests.endpoints.fixtures import S3Endpoint


def check_history(storage: Storage, outcomes: list[Outcome], before: int = 2) -> list[str]:
    """Assert that the branch has what was acknowledged, once, in a line; returns it, oldest first.

    `before` counts the snapshots that were there before.
    """
    repo = Repository.open(storage)
    history = list(repo.ancestry(branch="main"))
    messages = [info.message for info in history[:-before]]
    assert len(messages) == len(set(messages)), "a commit is in the history twice"
    acknowledged = {m: i for outcome in outcomes for m, i in outcome.committed.items()}
    assert {info.message: info.id for info in history[:-before]} == acknowledged
    for info, parent in itertools.pairwise(history):
        assert info.parent_id == parent.id
    # The reflog raises if the sequence has a gap; a reset or a lost commit would break the chain.
    states = list(repo._context.refs.reflog("main"))
    assert [state.sequence for state in states] == list(range(len(states) - 1, -1, -1))
    assert [str(state.snapshot_id) for state in states] == [info.id for info in history]
    return [info.id for info in history[::-1]]


class Reader:
    """Looks at the newest snapshot again and again, in a thread."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.seen: list[tuple[str, int, int]] = []
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Reader:
        self._done = self._thread.submit(self._read)
        return self

    def _read(self) -> None:
        repo = Repository.open(self.storage)
        while True:
            is_last = self._stop.is_set()
            session = repo.readonly_session("main")
            self.seen.append((session.snapshot_id, *read_pair(session)))
            if is_last:
                return

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._done.result()
        self._thread.shutdown()

    def check(self, history: list[str], values: dict[str, int]) -> None:
        """Assert that whole commits were seen, in the order of the history, the last one too."""
        places = [history.index(snapshot_id) for snapshot_id, _, _ in self.seen]
        assert places == sorted(places)
        assert places[-1] == len(history) - 1
        for snapshot_id, a, b in self.seen:
            assert a == b == values.get(snapshot_id, 0)


def check_pairs(storage: Storage, writers: int, commits: int) -> None:
    create_pair(storage)
    with Reader(storage) as reader:
        outcomes = run_together(write_pairs, [(storage, w, commits) for w in range(writers)])
    for outcome in outcomes:
        assert len(outcome.committed) + len(outcome.refused) == commits
    history = check_history(storage, outcomes)
    values = {i: int(m) for outcome in outcomes for m, i in outcome.committed.items()}
    reader.check(history, values)
    repo = Repository.open(storage)
    for snapshot_id in history[2:]:
        session = repo.readonly_session(snapshot_id=snapshot_id)
        assert read_pair(session) == (values[snapshot_id],) * 2


def check_cells(
    storage: Storage, writers: int, commits: int, generation: str = "repository"
) -> None:
    create_pair(storage, writers, commits, generation)
    outcomes = run_together(write_cells, [(storage, w, commits) for w in range(writers)])
    check_history(storage, outcomes)
    assert sum(len(outcome.committed) for outcome in outcomes) == writers * commits
    session = Repository.open(storage).readonly_session("main")
    grid = zarr.open_array(session.store, path="grid", mode="r")
    expected = np.arange(writers * commits).reshape(writers, commits)
    np.testing.assert_array_equal(grid[...], expected)


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return icefloe.local_filesystem_storage(str(tmp_path / "repository"))


def test_two_processes_commit_200_times_each_on_local_files(local: Storage) -> None:
    check_pairs(local, writers=2, commits=200)


def test_eight_processes_rebase_160_commits_on_local_files(local: Storage) -> None:
    check_cells(local, writers=8, commits=20)  # performance.md section 3: 160 of 160


@pytest.mark.endpoint
def test_two_processes_commit_on_s3(s3_endpoint: S3Endpoint) -> None:
    check_pairs(s3_endpoint.storage(), writers=2, commits=20)


@pytest.mark.endpoint
def test_four_processes_rebase_on_s3(s3_endpoint: S3Endpoint) -> None:
    check_cells(s3_endpoint.storage(), writers=4, commits=5)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.endpoint)])
def shared_storage(request: pytest.FixtureRequest) -> Storage:
    if request.param == "local":
        return request.getfixturevalue("local")
    return request.getfixturevalue("s3_endpoint").storage()


@pytest.mark.parametrize("generation", ["store", "dataset"])
def test_processes_race_in_every_generation(local: Storage, generation: str) -> None:  # R3-31
    check_cells(local, writers=3, commits=4, generation=generation)  # R3-14 H-13


def test_of_eight_who_create_a_repository_one_does(shared_storage: Storage) -> None:
    created = run_together(create_repository, [(shared_storage, number) for number in range(8)])
    assert created.count(True) == 1  # R3-92
    repo = Repository.open(shared_storage)
    assert repo.config.inline_chunk_threshold_bytes == created.index(True)
    assert repo.list_branches() == {"main"}
    assert len(list(repo.ancestry(branch="main"))) == 1


def test_of_four_who_create_a_tag_one_does(shared_storage: Storage) -> None:
    repo = create_pair(shared_storage)
    targets = []
    for value in range(4):
        session = repo.writable_session("main")
        write_pair(session, value)
        targets.append(session.commit(str(value)))
    names = [f"v{number}" for number in range(20)]
    won = run_together(create_tags, [(shared_storage, target, names) for target in targets])
    for name in names:
        (winner,) = [number for number, ours in enumerate(won) if name in ours]
        assert Repository.open(shared_storage).lookup_tag(name) == targets[winner]


@pytest.mark.parametrize("shared", [True, False])
def test_eight_threads_rebase_160_commits_in_memory(shared: bool) -> None:
    storage = icefloe.in_memory_storage()
    repo = create_pair(storage, 8, 20)
    barrier = threading.Barrier(8)

    def write(row: int) -> Outcome:
        barrier.wait()
        outcome = Outcome()
        mine = repo if shared else Repository.open(storage)
        for column in range(20):
            session = mine.writable_session("main")
            zarr.open_array(session.store, path="grid", mode="r+")[row, column] = row * 20 + column
            message = f"{row}/{column}"
            outcome.committed[message] = session.commit(
                message, rebase_with=icefloe.ConflictDetector()
            )
        return outcome

    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(write, range(8)))
    check_history(storage, outcomes)
    session = repo.readonly_session("main")
    grid = zarr.open_array(session.store, path="grid", mode="r")
    np.testing.assert_array_equal(grid[...], np.arange(160).reshape(8, 20))


def test_threads_share_a_session(local: Storage) -> None:
    repo = create_pair(local, 8, 20)
    session = repo.writable_session("main")
    grid = zarr.open_array(session.store, path="grid", mode="r+")

    def write(row: int) -> None:
        for column in range(20):
            grid[row, column] = row * 20 + column
            assert grid[row, column] == row * 20 + column

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    session.commit("all of it")
    np.testing.assert_array_equal(
        zarr.open_array(repo.readonly_session("main").store, path="grid", mode="r")[...],
        np.arange(160).reshape(8, 20),
    )


def test_concurrent_appends_follow_each_other(tmp_path: Path) -> None:
    """Eight writers append 50 times each to an array and its coordinate; none is lost or torn."""
    times = 50
    storage = icefloe.local_filesystem_storage(tmp_path / "r")
    create_series(storage)
    outcomes = run_together(append_to_series, [(storage, writer, times) for writer in range(8)])
    check_history(storage, outcomes)
    root = zarr.open_group(Repository.open(storage).readonly_session("main").store, mode="r")
    values, time = (np.asarray(root[name]) for name in ("values", "time"))
    expected = [1000 * writer + turn for writer in range(8) for turn in range(times)]
    assert sorted(time[::2].tolist()) == expected
    np.testing.assert_array_equal(time[::2], time[1::2])
    np.testing.assert_array_equal(values, np.repeat(time[:, None], 3, axis=1))
    for writer in range(8):
        mine = [mark for mark in time[::2].tolist() if mark // 1000 == writer]
        assert mine == sorted(mine)
