"""What an operation costs does not follow the size of the repository: requests, bytes, calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.formats.dataset.layout import STATE_KEY
from icefloe.testing.faults import FaultyStorage
from tests.calls import count_calls
from tests.formats import how

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("each_generation")


def commit_values(repo: Repository, number: int) -> None:
    with repo.transaction("main", message=f"commit {number}") as store:
        zarr.open_array(store, path="a")[0] = number


def repository(commits: int) -> tuple[FaultyStorage, Any]:
    """A repository with an array and some commits, and the storage under it."""
    memory = icefloe.in_memory_storage()
    storage = FaultyStorage(memory)
    repo = Repository.create(storage, **how())
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")
    for number in range(commits):
        commit_values(repo, number + 1)
    return storage, memory


OPERATIONS: dict[str, Callable[[Repository], object]] = {
    "open": lambda repo: repo.readonly_session("main"),
    "commit": lambda repo: commit_values(repo, -1),
    "tag": lambda repo: repo.create_tag("v1", repo.lookup_branch("main")),
    "branch": lambda repo: repo.create_branch("work", repo.lookup_branch("main")),
}


def requests_of(name: str, commits: int) -> list[str]:
    storage, _ = repository(commits)
    fresh = Repository.open(storage)
    storage.trace.clear()
    OPERATIONS[name](fresh)
    return [operation for operation, _ in storage.trace]


@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_of_an_operation_do_not_follow_the_history(name: str) -> None:
    few, many = requests_of(name, 3), requests_of(name, 40)
    # A branch is found by steps that double: some more requests in a history ten times as long.
    assert len(many) <= len(few) + 8


def with_references(count: int) -> FaultyStorage:
    """A repository with one array, and so many branches and tags."""
    storage, _ = repository(1)
    repo = Repository.open(storage)
    tip = repo.lookup_branch("main")
    for number in range(count):
        repo.create_tag(f"tag-{number}", tip)
        repo.create_branch(f"branch-{number}", tip)
    return storage


def calls_of(name: str, storage: FaultyStorage) -> int:
    """How many functions an operation calls."""
    fresh = Repository.open(storage)
    return count_calls(lambda: OPERATIONS[name](fresh))


# Not "tag" and "branch": a storage in memory walks through a page of keys to list a folder.
# test_growth_on_files.py counts their calls.
@pytest.mark.parametrize("name", ["open", "commit"])
def test_work_of_an_operation_does_not_follow_the_history(name: str) -> None:
    calls_of(name, repository(3)[0])  # imports, and what a process keeps
    few, many = (calls_of(name, repository(count)[0]) for count in (10, 60))
    # A branch is found by steps that double.
    assert many <= few * 1.15 + 400


@pytest.mark.parametrize("name", ["open", "commit"])
def test_work_of_an_operation_does_not_follow_the_references(name: str) -> None:
    calls_of(name, with_references(1))
    few, many = (calls_of(name, with_references(count)) for count in (2, 40))
    assert many <= few * 1.05 + 40


def bytes_of_a_commit(commits: int) -> dict[str, int]:
    """How much the next commit writes, by the first part of the keys."""
    storage, memory = repository(commits)
    before = {info.key: info.size for info in memory.list("")}
    commit_values(Repository.open(storage), -1)
    written: dict[str, int] = {}
    for info in memory.list(""):
        if before.get(info.key) != info.size:
            folder = info.key.split("/", maxsplit=1)[0]
            written[folder] = written.get(folder, 0) + info.size
    return written


def test_bytes_of_a_commit_do_not_follow_the_history(each_generation: str) -> None:
    few, many = bytes_of_a_commit(20), bytes_of_a_commit(60)
    # Spec 000 has all snapshots in the state file, and the official format in its `repo` file
    # (and in the copy of it that a commit leaves): a line of each, and nothing else grows.
    lists = (STATE_KEY, "repo", "overwritten")
    line = sum(many.pop(name, 0) - few.pop(name, 0) for name in lists)
    assert (line > 0) == (each_generation in {"dataset", "icechunk"})
    assert line < 40 * 400
    assert sum(many.values()) <= sum(few.values()) * 1.1 + 512
