"""The moves of branches in the state file: what is listed, for how long, and what is left out."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe import Repository
from icefloe.errors import ConflictError
from icefloe.formats.dataset import state as state_module
from icefloe.formats.dataset.state import State
from icefloe.testing.faults import FaultyStorage
from tests.builders import commit_documents, repository_with
from tests.documents import array

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

NOW = timedelta(0)


@pytest.fixture
def storage() -> Storage:
    return icefloe.in_memory_storage()


@pytest.fixture
def repo(storage: Storage) -> Repository:
    return repository_with({}, storage, generation="dataset")


def document(storage: Storage) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(storage.get("state.json"))
    return parsed


def listed_ids(storage: Storage) -> set[str]:
    """All ids of snapshots that the state file mentions in any place."""
    state = document(storage)
    ids = {entry["snapshot-id"] for entry in state["snapshots"]}
    ids |= {entry.get("parent-snapshot-id") for entry in state["snapshots"]}
    ids |= {ref["snapshot-id"] for ref in state["refs"].values()}
    ids |= {target for log in state["icefloe"]["branches"].values() for _, target in log}
    return ids - {None}


def test_nothing_that_was_collected_is_listed(repo: Repository, storage: Storage) -> None:
    base = repo.lookup_branch("main")
    repo.create_branch("dev", base)
    gone = [
        commit_documents(repo, {"/a": array()}, "dev"),
        commit_documents(repo, {"/b": array()}, "dev"),
    ]
    repo.reset_branch("dev", base)
    repo.create_branch("old", gone[0])
    repo.delete_branch("old")
    assert listed_ids(storage) >= set(gone)
    before = {name: repo._context.refs.tip(name) for name in ("main", "dev", "old")}
    assert repo.garbage_collect(NOW).snapshots_deleted == 2
    assert not listed_ids(storage) & set(gone)
    files = {info.key for info in storage.list("s/")}
    assert {f"s/{each}.parquet" for each in listed_ids(storage)} == files
    refs = Repository.open(storage)._context.refs
    for name, tip in before.items():
        assert tip is not None
        found = refs.tip(name)
        assert found is not None
        assert found.snapshot_id == tip.snapshot_id
        # The collection moved branches that are there, and numbers go on where they were.
        assert found.sequence == tip.sequence + (tip.snapshot_id is not None)
    repo.create_branch("old", base)
    assert repo._context.refs.tip("old").sequence == 2


def test_a_session_from_before_the_trimming_notices_that_the_branch_moved(
    repo: Repository, storage: Storage
) -> None:
    session = repo.writable_session("main")
    session.tree.set_document("/mine", array())
    base = repo.lookup_branch("main")
    commit_documents(repo, {"/a": array()})
    repo.reset_branch("main", base)
    commit_documents(repo, {"/b": array()})
    Repository.open(storage).garbage_collect(NOW)
    with pytest.raises(ConflictError, match="moved"):
        session.commit("too late")


def test_logs_do_not_grow_for_ever(
    repo: Repository, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "_MAX_LOG", 5)
    for value in range(12):
        commit_documents(repo, {f"/{value}": array()})
    state = document(storage)
    assert len(state["icefloe"]["branches"]["main"]) == 5
    assert state["icefloe"]["trimmed"] == {"main": 9}
    refs = Repository.open(storage)._context.refs
    assert [tip.sequence for tip in refs.reflog("main")] == [13, 12, 11, 10, 9]
    assert len(list(repo.ancestry(branch="main"))) == 14


def test_a_collection_moves_the_branch_of_a_dataset_without_references(
    repo: Repository, storage: Storage
) -> None:
    """A commit that is under way must notice that a collection came by (invariant 7)."""
    state = document(storage)
    del state["refs"], state["icefloe"]
    storage.put("state.json", json.dumps(state).encode())
    before = State.parse(storage.get("state.json")).latest()
    assert before is not None
    assert repo._context.refs.repeat([before]) == set()
    after = State.parse(storage.get("state.json")).tip("main")
    assert after is not None
    assert (after.sequence, after.snapshot_id) == (before.sequence + 1, before.snapshot_id)


def test_a_collection_moves_all_branches_in_one_swap(repo: Repository, storage: Storage) -> None:
    base = repo.lookup_branch("main")
    for number in range(5):
        repo.create_branch(f"branch-{number}", base)
    session = repo.writable_session("main")
    session.tree.set_document("/a", array())
    session.flush("garbage")
    before = State.parse(storage.get("state.json"))
    faulty = FaultyStorage(storage)
    assert Repository.open(faulty).garbage_collect(NOW).snapshots_deleted == 1
    swaps = [key for operation, key in faulty.trace if operation == "replace"]
    assert swaps == ["state.json"]
    after = State.parse(storage.get("state.json"))
    for name in before.names("branch"):
        moved, tip = after.tip(name), before.tip(name)
        assert moved is not None
        assert tip is not None
        assert (moved.sequence, moved.snapshot_id) == (tip.sequence + 1, tip.snapshot_id)
