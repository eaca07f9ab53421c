"""A client that dies before or after any single storage operation harms nothing (T-CRASH)."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from icefloe import ConflictDetector, Repository, RepositoryConfig
from icefloe.engine import initialize
from icefloe.errors import AlreadyExistsError, RepositoryNotFoundError
from icefloe.formats.icechunk.repo_document import RepoDocument
from icefloe.storage.local import LocalStorage
from icefloe.storage.probe import PROBE_FOLDER
from icefloe.storage.workers import MAX_THREADS, pool
from icefloe.testing.faults import WRITING, CrashError, Fault, FaultyStorage
from icefloe.testing.requests import FarStorage
from tests.builders import repository_of_two_kinds
from tests.faults.pictures import copy_objects, picture
from tests.formats import chosen, folder, how
from tests.profiles import IS_DEEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe.storage.port import Storage

CONFIG = RepositoryConfig(inline_chunk_threshold_bytes=4, inline_attributes_threshold_bytes=200)


def prepare(storage: Storage) -> None:
    """A repository with some history, two branches and a tag."""
    repo = repository_of_two_kinds(storage, CONFIG)
    with repo.transaction("main", message="two") as store:
        zarr.open_group(store)["native"][:8] = 2


def edit(session: Any) -> None:
    """Chunks of both kinds, metadata, long attributes, a new node, a moved one, a deleted one."""
    root = zarr.open_group(session.store, mode="r+")
    root["native"][8:24] = 3
    root["inline"][:2] = 3
    root.create_group("group").create_array(
        "new", shape=(8,), chunks=(8,), dtype="u1", compressors=None
    )[:] = 4
    root.attrs["long"] = "x" * 500
    root["inline"].resize((6,))
    session.move("/inline", "/group/inline")


def commit(repo: Repository) -> None:
    session = repo.writable_session("main")
    edit(session)
    session.commit("three", {"by": "a test"})


def commit_with_rebase(repo: Repository) -> None:
    session = repo.writable_session("dev")
    zarr.open_group(session.store, mode="r+").create_group("mine")
    with repo.transaction("dev", message="rival") as store:
        zarr.open_group(store, mode="r+").create_group("theirs")
    session.commit("rebased", rebase_with=ConflictDetector())


def amend(repo: Repository) -> None:
    session = repo.writable_session("main")
    edit(session)
    session.amend("two, amended")


def flush(repo: Repository) -> None:
    session = repo.writable_session("main")
    edit(session)
    session.flush("nowhere")


def save_config(repo: Repository) -> None:
    config = repo.config
    config.inline_chunk_threshold_bytes = 100
    repo.reopen(config).save_config()


@dataclass(frozen=True)
class Operation:
    act: Callable[[Repository], None]
    publishes: int = 1
    """How many steps of it others see."""


OPERATIONS = {
    "commit": Operation(commit),
    "commit with rebase": Operation(commit_with_rebase, publishes=2),
    "amend": Operation(amend),
    "flush": Operation(flush, publishes=0),
    "create branch": Operation(lambda repo: repo.create_branch("new", "main~1")),
    "delete branch": Operation(lambda repo: repo.delete_branch("dev")),
    "create tag": Operation(lambda repo: repo.create_tag("v2", "main~1")),
    "reset": Operation(lambda repo: repo.reset_branch("main", "main~1")),
    "save config": Operation(save_config),
}


PLACES = {
    "memory": "repository",
    "local": "repository",
    "store": "store",
    "dataset": "dataset",
    "icechunk": "icechunk",
    "far": "repository",
    "far dataset": "dataset",
}
"""Generations by where they are tried. Far away, requests are sent together."""


@pytest.fixture(params=PLACES)
def new_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Storage]]:
    with chosen(PLACES[request.param]):
        yield storage_maker(request.param, tmp_path)


def storage_maker(name: str, tmp_path: Path) -> Callable[[], Storage]:
    if name.startswith("far"):
        return lambda: FarStorage(icefloe.in_memory_storage())
    if name != "local":
        return icefloe.in_memory_storage
    numbers = iter(range(10**6))
    # What survives the death of a process does not depend on the disk.
    return lambda: LocalStorage(tmp_path / str(next(numbers)), durability="none")


def drain_pool() -> None:
    """Wait for what nobody waits for: a job for each thread, none of which ends before all run."""
    meeting = threading.Barrier(MAX_THREADS)
    for job in [pool().submit(meeting.wait) for _ in range(MAX_THREADS)]:
        job.result()


def crash_points(
    run: Callable[[FaultyStorage], object], make: Callable[[], Storage]
) -> Iterator[tuple[str, Storage]]:
    """Run something once for each operation that it makes, dying there; gives what is left.

    Gives where that was, and the storage as the next client finds it.
    """
    counted = FaultyStorage(make())
    run(counted)
    assert counted.trace
    for number, (verb, key) in enumerate(counted.trace, start=1):
        if verb not in WRITING and not IS_DEEP:
            continue  # to die there leaves what the write before it left
        # To die after a read is to die before the next operation.
        faults = [Fault.CRASH_BEFORE] + [Fault.CRASH_AFTER] * (verb in WRITING)
        for fault in faults:
            inner = make()
            faulty = FaultyStorage(inner)
            faulty.inject(fault, nth=number)
            if isinstance(inner, FarStorage):
                # In any order, and some that nobody waits for at the end.
                with contextlib.suppress(CrashError):
                    run(faulty)
                drain_pool()
            else:
                with pytest.raises(CrashError):
                    run(faulty)
                assert faulty.trace[-1][0] == verb
            yield f"{fault.value} {verb} {key}", inner


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_crash_point_leaves_the_old_or_the_new_state(
    name: str,
    new_storage: Callable[[], Storage],
    record_property: Callable[[str, object], None],
) -> None:  # R0-05, R0-06, R3-06
    operation = OPERATIONS[name]
    prepared = new_storage()
    prepare(prepared)

    def make() -> Storage:
        storage = new_storage()
        copy_objects(prepared, storage)
        return storage

    old, untouched = picture(prepared), objects(prepared)
    whole = make()
    operation.act(Repository.open(whole))
    new = picture(whole)
    assert (old == new) == (operation.publishes == 0)
    seen, checked, points = set(), set(), 0
    for place, left in crash_points(lambda s: operation.act(Repository.open(s)), make):
        points += 1
        found = objects(left)
        kept = untouched.keys() - {STATE_FILE, REPO_KEY}
        assert all(found[key] == untouched[key] for key in kept), "an object was altered"
        published = states(found) - states(untouched)
        seen.add(published)
        # Most deaths leave what an earlier one left, but for random names; official files are
        # compressed with these names in them, so that their sizes vary.
        is_official = REPO_KEY in found
        kinds: tuple[Any, ...] = tuple(
            sorted((key.partition("/")[0], 0 if is_official else len(found[key])) for key in found)
        )
        if STATE_FILE in found or is_official:
            kinds = (*kinds, published)
        if found == untouched or kinds in checked:
            continue
        checked.add(kinds)
        state = picture(left)
        if published in (0, operation.publishes):
            assert state == (new if published else old), place
        check_next_client(left, state, place)
    # A repository with all snapshots in one file lists those of a flush as well.
    steps = max(operation.publishes, int(name == "flush" and REPO_KEY in untouched))
    assert seen == set(range(steps + 1))
    record_property("crash points", points)


STATE_FILE, REPO_KEY = "state.json", "repo"
"""The one object that a generation replaces."""


def states(found: dict[str, bytes]) -> int:
    """How many states references and configuration had: files, or swaps of the state file."""
    count = sum(key.startswith((folder("refs"), "config/")) for key in found if key != STATE_FILE)
    if REPO_KEY in found:
        return count - 1 + len(RepoDocument.parse(found[REPO_KEY]).updates)
    return count + (json.loads(found[STATE_FILE])["generation"] if STATE_FILE in found else 0)


def objects(storage: Storage) -> dict[str, bytes]:
    return {info.key: storage.get(info.key) for info in storage.list()}


def check_next_client(storage: Storage, before: dict[str, Any], place: str) -> None:
    """Assert that somebody else can go on, and that this changes nothing else."""
    repo = Repository.open(storage)
    for branch in repo.list_branches():
        with repo.transaction(branch, message=f"next on {branch}") as store:
            group = zarr.open_group(store, mode="r+")
            group["native"][:8] = 9
            group.attrs["next"] = "y" * 300
    after = picture(storage)
    for branch, history in before["branches"].items():
        assert after["branches"][branch][1:] == history, place
        newest = after["branches"][branch][0][1]
        assert newest["/native"].chunks[(0,)] == b"\x09" * 8, place
        assert newest["/"].attributes["next"] == "y" * 300, place
    assert after["tags"] == before["tags"], place
    assert after["config"] == before["config"], place


@pytest.mark.parametrize("config", [None, CONFIG], ids=["without config", "with config"])
def test_every_crash_point_of_create_can_be_repaired_by_creating_again(
    config: RepositoryConfig | None,
    new_storage: Callable[[], Storage],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # R3-91, R1-39
    outcomes = set()
    for place, left in crash_points(lambda s: Repository.create(s, config, **how()), new_storage):
        exists = Repository.exists(left)
        outcomes.add(exists)
        if exists:
            with pytest.raises(AlreadyExistsError):
                Repository.create(left, config, **how())
        else:
            with pytest.raises(RepositoryNotFoundError):
                Repository.open(left)
            # Another client may be just creating it; after a while it must have died.
            with monkeypatch.context() as later:
                later.setattr(initialize, "ABANDONED_AFTER", timedelta(0))
                Repository.create(left, config, **how())
        repo = Repository.open(left)
        assert repo.list_branches() == {"main"}, place
        assert [info.message for info in repo.ancestry(branch="main")] == ["Repository initialized"]
        assert Repository.fetch_config(left) == config, place
        with repo.transaction("main", message="first") as store:
            zarr.create_group(store)
        assert Repository.open(left).readonly_session("main").get_node("/") is not None
    assert outcomes == {True, False}


@pytest.mark.parametrize("second", [None, RepositoryConfig(inline_chunk_threshold_bytes=7)])
def test_the_configuration_of_a_client_that_died_while_creating_is_replaced(
    second: RepositoryConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    storage.inject(Fault.CRASH_AFTER, verb="create", key="config/")
    with pytest.raises(CrashError):
        Repository.create(storage, CONFIG)
    storage.revive()
    monkeypatch.setattr(initialize, "ABANDONED_AFTER", timedelta(0))
    Repository.create(storage, second)
    assert Repository.open(storage).config == (second or RepositoryConfig.default())


def test_what_a_probe_left_behind_is_no_obstacle() -> None:
    storage = icefloe.in_memory_storage()
    storage.put(f"{PROBE_FOLDER}/left-by-a-dead-client", b"x")
    Repository.create(storage)


def test_a_client_that_died_while_creating_blocks_others_only_for_a_moment() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    storage.inject(Fault.CRASH_AFTER, verb="create")
    with pytest.raises(CrashError):
        Repository.create(storage)
    storage.revive()
    with pytest.raises(AlreadyExistsError, match="another client is creating"):
        Repository.create(storage)
    assert not Repository.exists(storage)
