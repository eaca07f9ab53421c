"""Operations on a repository of a fixed size, whose requests are counted.

The repository has ten variables of four chunks, 32 commits, 21 branches and 20 tags, and each
operation starts from a copy of it: with a repository that was just opened, and nothing cached but
what opening read.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import xarray as xr
import zarr

import icefloe
from icefloe import Repository
from icefloe.storage.probe import ensure_conditional_replace, ensure_conditional_writes
from icefloe.testing.requests import CountingStorage, RequestCounts
from tests.builders import new_repository

VARIABLES = 10
COMMITS = 32
BRANCHES = 21
TAGS = 20
_SIDE = 64

Act = Callable[[], object]


class Prepared(NamedTuple):
    """What to count, and where."""

    storage: CountingStorage
    act: Act


class Scene:
    """The repository that operations start from; each gets a copy of its own."""

    def __init__(self) -> None:
        self._original = icefloe.in_memory_storage()
        repo = new_repository(self._original)
        _write(repo)
        for number in range(COMMITS - 2):
            _change(repo, "main", number % VARIABLES)
        main = repo.lookup_branch("main")
        for number in range(BRANCHES - 1):
            repo.create_branch(f"branch-{number:02}", main)
        for number in range(TAGS):
            repo.create_tag(f"tag-{number:02}", main)
        _change(repo, "branch-00", 8)
        for number in range(5):
            _change(repo, "branch-01", number)

    def copy(self) -> CountingStorage:
        """A storage with the same objects, where conditional writes are known to work."""
        copy = icefloe.in_memory_storage()
        for info in self._original.list():
            copy.put(info.key, self._original.get(info.key))
        storage = CountingStorage(copy)
        ensure_conditional_writes(storage)
        ensure_conditional_replace(storage)
        return storage

    def open(self) -> tuple[CountingStorage, Repository]:
        """A copy of the repository, just opened."""
        storage = self.copy()
        return storage, Repository.open(storage)


def _dataset() -> xr.Dataset:
    values = np.random.default_rng(7).random((2 * _SIDE, 2 * _SIDE), dtype=np.float32)
    return xr.Dataset({f"v{number}": (("y", "x"), values) for number in range(VARIABLES)})


def _write(repo: Repository) -> None:
    session = repo.writable_session("main")
    encoding = {f"v{number}": {"chunks": (_SIDE, _SIDE)} for number in range(VARIABLES)}
    _dataset().to_zarr(session.store, zarr_format=3, consolidated=False, encoding=encoding)
    session.commit("write the dataset")


def _change(repo: Repository, branch: str, number: int) -> str:
    session = repo.writable_session(branch)
    _change_chunk(session, number)
    return session.commit("change a chunk")


def _change_chunk(session: icefloe.Session, number: int) -> None:
    array = zarr.open_array(session.store, path=f"v{number}")
    array[:_SIDE, :_SIDE] = np.random.default_rng().random((_SIDE, _SIDE))


def _empty() -> CountingStorage:
    return CountingStorage(icefloe.in_memory_storage())


# --- operations: each prepares what is not counted


def create_at_new_place(scene: Scene) -> Prepared:
    storage = _empty()
    return Prepared(storage, lambda: new_repository(storage))


def create(scene: Scene) -> Prepared:
    storage = _empty()
    ensure_conditional_writes(storage)
    ensure_conditional_replace(storage)
    return Prepared(storage, lambda: new_repository(storage))


def write_and_commit(scene: Scene) -> Prepared:
    storage = _empty()
    repo = new_repository(storage)
    return Prepared(storage, lambda: _write(repo))


def open_repository(scene: Scene) -> Prepared:
    storage = scene.copy()
    return Prepared(storage, lambda: Repository.open(storage))


def open_and_read(scene: Scene) -> Prepared:
    storage = scene.copy()

    def act() -> None:
        session = Repository.open(storage).readonly_session("main")
        xr.open_zarr(session.store, consolidated=False, chunks=None)["v0"].load()

    return Prepared(storage, act)


def read_all(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    dataset = xr.open_zarr(repo.readonly_session("main").store, consolidated=False, chunks=None)
    dataset["v0"].load()
    return Prepared(storage, dataset.load)


def change_and_commit(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: _change(repo, "main", 1))


def change_all_and_commit(scene: Scene) -> Prepared:
    storage, repo = scene.open()

    def act() -> None:
        session = repo.writable_session("main")
        for number in range(VARIABLES):
            _change_chunk(session, number)
        session.commit("change a chunk of each")

    return Prepared(storage, act)


def _rebase(scene: Scene, commits: int) -> Prepared:
    storage, repo = scene.open()
    session = repo.writable_session("main")
    _change_chunk(session, 9)
    other = Repository.open(storage.inner)
    for number in range(commits):
        _change(other, "main", number)
    return Prepared(
        storage, lambda: session.commit("rebased", rebase_with=icefloe.ConflictDetector())
    )


def rebase_over_one(scene: Scene) -> Prepared:
    return _rebase(scene, 1)


def rebase_over_five(scene: Scene) -> Prepared:
    return _rebase(scene, 5)


def history(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: list(repo.ancestry(branch="main")))


def list_branches(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, repo.list_branches)


def list_tags(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, repo.list_tags)


def lookup_branch(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.lookup_branch("branch-03"))


def lookup_tag(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.lookup_tag("tag-03"))


def create_tag(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    target = repo.lookup_branch("main")
    return Prepared(storage, lambda: repo.create_tag("new", target))


def create_branch(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    target = repo.lookup_branch("main")
    return Prepared(storage, lambda: repo.create_branch("new", target))


def delete_branch(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.delete_branch("branch-03"))


def reset_branch(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    target = repo.lookup_branch("main~3")
    return Prepared(storage, lambda: repo.reset_branch("branch-03", target))


def merge(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.merge("branch-01", "branch-00", fast_forward=False))


def diff(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.diff(from_branch="main", to_branch="branch-01"))


def expire(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.expire_snapshots(keep_last=5))


def collect_nothing(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.garbage_collect(timedelta(days=1)))


def collect_garbage(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    with storage.counting():  # waits for what expiry deletes in the background
        repo.expire_snapshots(keep_last=5)
    return Prepared(storage, lambda: repo.garbage_collect(timedelta(0)))


def verify(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, repo.verify)


def compact(scene: Scene) -> Prepared:
    storage, repo = scene.open()
    return Prepared(storage, lambda: repo.compact(branch="main"))


def read_in_task(scene: Scene) -> Prepared:
    """What a Spark task does with a session that the driver sent."""
    _, repo = scene.open()
    session = pickle.loads(pickle.dumps(repo.readonly_session("main")))
    storage = session.tree.context.storage
    return Prepared(storage, lambda: zarr.open_array(session.store, path="v5", mode="r")[...])


OPERATIONS: dict[str, Callable[[Scene], Prepared]] = {
    "create a repository": create,
    "create one at a new location": create_at_new_place,
    "write the dataset and commit": write_and_commit,
    "open": open_repository,
    "open, session, `open_zarr`, first variable": open_and_read,
    "all ten variables": read_all,
    "read an array in a Spark task": read_in_task,
    "new session, change one chunk, commit": change_and_commit,
    "the same for a chunk of each variable": change_all_and_commit,
    "commit that rebases over one commit": rebase_over_one,
    "commit that rebases over five commits": rebase_over_five,
    "history of 32": history,
    "list 21 branches": list_branches,
    "list 20 tags": list_tags,
    "look up a branch": lookup_branch,
    "look up a tag": lookup_tag,
    "create a tag": create_tag,
    "create a branch": create_branch,
    "delete a branch": delete_branch,
    "reset a branch": reset_branch,
    "merge two branches": merge,
    "diff of two branches": diff,
    "expire snapshots": expire,
    "garbage collection, nothing to delete": collect_nothing,
    "garbage collection after expiry": collect_garbage,
    "verify": verify,
    "compact": compact,
}


def count(scene: Scene, name: str) -> RequestCounts:
    """What an operation asks of an object store."""
    prepared = OPERATIONS[name](scene)
    with prepared.storage.counting() as counts:
        prepared.act()
    return counts
