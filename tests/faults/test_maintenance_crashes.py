"""A client that dies at any storage operation: what is left is sound, and is tidied up (T-CRASH).

For every operation that changes a repository, maintenance included: afterwards it opens, every
committed snapshot reads, the operation happened or did not, verification finds nothing wrong, and a
collection removes all that the dead client left.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.errors import CommitStateUnknownError, StorageError
from icefloe.storage.local import LocalStorage
from icefloe.testing.clock import ClockedStorage
from icefloe.testing.faults import WRITING, CrashError, Fault, FaultyStorage
from tests.builders import repository_of_two_kinds
from tests.faults.pictures import copy_objects
from tests.faults.test_crash_points import CONFIG, OPERATIONS
from tests.profiles import IS_DEEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe.session import Session
    from icefloe.storage.port import Storage

NOW = timedelta(0)
MAINTENANCE = {
    "expiry": lambda repo: repo.expire_snapshots(keep_last=1),
    # A moment to come means all that there is, although clocks of file systems tick slowly.
    "collection": lambda repo: repo.garbage_collect(datetime.now(UTC) + timedelta(hours=1)),
    "compaction": lambda repo: repo.compact("compacted", branch="main"),
    "compaction on a branch": lambda repo: repo.compact("apart", branch="main", to_branch="tidy"),
    "rewriting manifests": lambda repo: repo.rewrite_manifests("rewritten", branch="main"),
    "merging": lambda repo: repo.merge("dev", "main", message="merged"),
}
ALL = {**{name: operation.act for name, operation in OPERATIONS.items()}, **MAINTENANCE}


def prepare(storage: Storage) -> None:
    """Some history with garbage in it: small files, a branch that was reset, expired snapshots."""
    repo = repository_of_two_kinds(storage, CONFIG)
    for value in (2, 3):
        with repo.transaction("main", message=f"native is {value}") as store:
            zarr.open_group(store)["native"][:8] = value
    with repo.transaction("dev", message="given up") as store:
        zarr.open_group(store)["native"][8:16] = 9
    repo.reset_branch("dev", "v1")
    with repo.transaction("dev", message="on dev") as store:
        zarr.open_group(store)["native"][24:] = 4


@pytest.fixture(params=["memory", "local"])
def new_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    if request.param == "memory":
        return icefloe.in_memory_storage
    numbers = iter(range(10**6))
    return lambda: LocalStorage(tmp_path / str(next(numbers)), durability="none")


Digests = dict[str, list[tuple[str, str]]]
_trees: dict[str, str] = {}


def shown(storage: Storage) -> Digests:
    """The history of each reference: messages, and digests of all nodes and chunks.

    A snapshot is looked at once, wherever it is found: that it is whole is for `verify` to say.
    """
    repo = Repository.open(storage)
    refs = {
        **{f"branch {name}": repo.lookup_branch(name) for name in repo.list_branches()},
        **{f"tag {name}": repo.lookup_tag(name) for name in repo.list_tags()},
    }
    found: Digests = {}
    for ref, tip in refs.items():
        history = list(repo.ancestry(snapshot_id=tip))
        for info in history:
            if info.id not in _trees:
                _trees[info.id] = digest(repo.readonly_session(snapshot_id=info.id))
        found[ref] = [(info.message, _trees[info.id]) for info in history]
    return found


def digest(session: Session) -> str:
    state = hashlib.sha256()
    for path in ("/", *session.tree.node_paths("/")):
        node = session.get_node(path)
        if node is None:
            continue
        state.update(path.encode() + session.tree.document(path))
        if node.is_array:
            for coords in map(tuple, session.tree.chunk_coords(path).tolist()):
                state.update(repr(coords).encode() + session.get_chunk(path, coords))
    return state.hexdigest()


def operations(trace: list[tuple[str, str]]) -> Iterator[tuple[str, int]]:
    """Which operations to die at, each as the nth of its verb.

    To die at a read is to die after the write before it, so only a long run tries those. Threads
    read in any order, but who writes does so in the same order each time.
    """
    seen: Counter[str] = Counter()
    for verb, _ in trace:
        seen[verb] += 1
        if verb in WRITING or IS_DEEP:
            yield verb, seen[verb]


def deaths(
    act: Callable[[Repository], object], make: Callable[[], Storage]
) -> Iterator[tuple[str, Storage]]:
    counted = FaultyStorage(make())
    act(Repository.open(counted))
    for verb, nth in operations(counted.trace):
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            inner = make()
            faulty = FaultyStorage(inner)
            faulty.inject(fault, verb=verb, nth=nth)
            with pytest.raises(CrashError):
                act(Repository.open(faulty))
            yield f"{fault.value} {verb} {nth}: {faulty.trace[-1]}", inner


@pytest.mark.parametrize("name", ALL)
def test_every_crash_point_leaves_what_is_sound_and_can_be_tidied_up(
    name: str,
    new_storage: Callable[[], Storage],
    record_property: Callable[[str, object], None],
) -> None:
    act = ALL[name]
    prepared = new_storage()
    prepare(prepared)

    def make() -> Storage:
        storage = new_storage()
        copy_objects(prepared, storage)
        return storage

    old = shown(prepared)
    whole = make()
    act(Repository.open(whole))
    new = shown(whole)
    checked = set()
    points = 0
    for place, left in deaths(act, make):
        points += 1
        kinds = tuple(sorted((i.key.rpartition("/")[0], i.size) for i in left.list()))
        if kinds in checked:
            continue  # but for random names, an earlier death left the same
        checked.add(kinds)
        check_sound(left, old, new, place)
        check_tidied(left, place)
    assert len(checked) > 1
    record_property("crash points", points)


def check_sound(storage: Storage, old: Digests, new: Digests, place: str) -> None:
    found = shown(storage)
    for ref in {*old, *new, *found}:
        states = [old.get(ref), new.get(ref)]
        if found.get(ref) not in states:
            # A rebase has two steps that others see, and this is the first.
            assert found[ref][0][0] == "rival", (place, ref)
    report = Repository.open(storage).verify(deep=True)
    assert report.is_clean, f"{place}\n{report}"


def check_tidied(storage: Storage, place: str) -> None:
    """Assert that a collection, a day later, leaves nothing that nobody needs."""
    later = Repository.open(ClockedStorage(storage, datetime.now(UTC) + timedelta(days=1)))
    before = shown(storage)
    later.garbage_collect(timedelta(hours=1))
    assert shown(storage) == before, place
    report = later.verify(deep=True)
    assert report.is_clean, f"{place}\n{report}"
    assert not any(orphans.count for orphans in report.orphans.values()), place
    left = {info.key.rpartition("/")[0] for info in storage.list("maintenance/")}
    assert left <= {"maintenance/operations", "maintenance/cuts"}, (place, left)


@pytest.fixture
def faulty() -> FaultyStorage:
    storage = FaultyStorage(icefloe.in_memory_storage())
    prepare(storage)
    return storage


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST_ANSWER])
@pytest.mark.parametrize("name", MAINTENANCE)
def test_every_operation_that_fails_leaves_what_is_sound(
    name: str, fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    """Errors and lost answers; then the same is done again, to the end."""
    prepared = icefloe.in_memory_storage()
    prepare(prepared)

    def start() -> FaultyStorage:
        storage = FaultyStorage(icefloe.in_memory_storage())
        copy_objects(prepared, storage.inner)
        return storage

    counted = start()
    MAINTENANCE[name](Repository.open(counted))
    old, new = shown(prepared), shown(counted.inner)
    raised = 0
    for verb, nth in operations(counted.trace):
        storage = start()
        storage.inject(fault, verb=verb, nth=nth)
        try:
            MAINTENANCE[name](Repository.open(storage))
        except StorageError:
            raised += 1
        storage.revive()
        check_sound(storage.inner, old, new, f"{fault} {verb} {nth}")
    again = Repository.open(storage.inner)
    if "tidy" not in again.list_branches():
        MAINTENANCE[name](again)
    assert again.verify().is_clean
    assert raised > 0
    record_property("failed operations", raised)


def test_an_unknown_cut_is_made_by_the_next_expiry(faulty: FaultyStorage) -> None:
    repo = Repository.open(faulty)
    faulty.inject(Fault.LOST_ANSWER, verb="create", key="maintenance/cuts/")
    with pytest.raises(CommitStateUnknownError):
        repo.expire_snapshots(keep_last=1)
    assert repo.expire_snapshots(keep_last=1) is not None
    assert repo.expire_snapshots(keep_last=1) == set()
    assert repo.verify().is_clean


def test_a_collection_that_fails_half_way_is_finished_by_the_next(faulty: FaultyStorage) -> None:
    repo = Repository.open(faulty)
    repo.expire_snapshots(keep_last=1)
    expected = repo.garbage_collect(NOW, dry_run=True)
    for kind in ("snapshots/", "transactions/", "manifests/", "chunks/"):
        faulty.inject(Fault.LOST_ANSWER, verb="delete_many", key=kind)
        with pytest.raises(StorageError):
            repo.garbage_collect(NOW)
        faulty.revive()
        assert repo.verify().is_clean
    assert expected.snapshots_deleted > 0
    assert repo.garbage_collect(NOW).bytes_deleted == 0
    report = repo.verify()
    assert all(orphans.count == 0 for orphans in report.orphans.values())


def test_logging_that_fails_does_not_fail_what_was_done(faulty: FaultyStorage) -> None:
    repo = Repository.open(faulty)
    faulty.inject(Fault.ERROR, verb="put", key="maintenance/operations/", times=100)
    repo.create_tag("v2", "main")
    repo.expire_snapshots(keep_last=1)
    assert repo.lookup_tag("v2") == repo.lookup_branch("main")
