"""Power that fails at any moment loses nothing that was acknowledged, and leaves no half commit."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.errors import IcefloeError
from icefloe.storage.local import LocalStorage
from icefloe.storage.local import local_storage as local
from tests.faults.disk import Disk
from tests.faults.pictures import picture
from tests.faults.test_crash_points import OPERATIONS, Operation, prepare
from tests.formats import chosen
from tests.property.hierarchy import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe.storage.port import Storage
    from tests.faults.disk import State


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="system calls are watched by means of /proc"
)


def collect(repo: Repository) -> None:
    """Delete what the second commit wrote."""
    repo.reset_branch("main", "main~1")
    assert repo.garbage_collect(timedelta(0)).snapshots_deleted


ALL = {**OPERATIONS, "collect": Operation(collect)}


@pytest.fixture(params=["repository", "store", "dataset"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Where a repository is going to be."""
    # One of them with the call that syncs a whole file system.
    sync_all_from = 0 if request.param == "store" else 10**6
    monkeypatch.setattr(local, "_SYNC_ALL_FROM", sync_all_from)
    with chosen(request.param):
        yield tmp_path / "repository"


@pytest.mark.parametrize("name", ALL)
def test_the_old_or_the_new_state_is_on_the_disk(
    name: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    operation = ALL[name]
    prepare(LocalStorage(root))
    with monkeypatch.context() as watched:
        disk = Disk(root, watched)
        operation.act(Repository.open(LocalStorage(root)))
    found = Pictures()
    old, new = found.of(next(disk.states(0))), picture(LocalStorage(root))
    for count in range(len(disk.calls)):
        for state in disk.states(count):
            between = found.of(state)
            assert between in (old, new) or operation.publishes > 1, disk.calls[count]
    for state in disk.states(len(disk.calls)):
        assert found.of(state) == new, "it was acknowledged"
    record_property("states of a disk without power", len(found))


def test_what_was_created_or_flushed_is_on_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as watched:
        disk = Disk(root, watched)
        prepare(LocalStorage(root))
        session = Repository.open(LocalStorage(root)).writable_session("dev")
        zarr.open_group(session.store, mode="r+")["native"][:] = 5
        flushed = session.flush("aside")
    expected = observe(Repository.open(LocalStorage(root)).readonly_session(snapshot_id=flushed))
    for state in disk.states(len(disk.calls)):
        repo = Repository.open(stored(state))
        assert observe(repo.readonly_session(snapshot_id=flushed)) == expected


@pytest.mark.parametrize("missing", ["sync", "sync of folders", "sync of the new name"])
def test_a_sync_that_is_left_out_is_noticed(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "repository"
    prepare(LocalStorage(root))
    monkeypatch.setattr(local, "_SYNC_ALL_FROM", 10**6)
    if missing == "sync":
        monkeypatch.setattr(LocalStorage, "_sync", lambda *_: None)
    elif missing == "sync of folders":
        monkeypatch.setattr(LocalStorage, "_sync_folder", lambda *_: True)
    with monkeypatch.context() as watched:
        disk = Disk(root, watched)
        OPERATIONS["commit"].act(Repository.open(LocalStorage(root)))
    if missing == "sync of the new name":
        assert disk.calls.pop().kind == "sync"
    new = picture(LocalStorage(root))
    assert not all(shows(state, new) for state in disk.states(len(disk.calls)))


def shows(state: State, expected: dict[str, Any]) -> bool:
    try:
        return picture(stored(state)) == expected
    except IcefloeError:
        return False


class Pictures:
    """What clients see, each state once."""

    def __init__(self) -> None:
        self._known: dict[frozenset[tuple[str, bytes]], Any] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, state: State) -> Any:
        """What a client sees; it must find all that it looks for."""
        known = frozenset(state.items())
        if known not in self._known:
            self._known[known] = picture(stored(state))
        return self._known[known]


def stored(state: State) -> Storage:
    storage = icefloe.in_memory_storage()
    for key, data in state.items():
        storage.put(key, data)
    return storage
