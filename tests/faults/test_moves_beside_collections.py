"""Branches are moved, made and deleted while a garbage collection moves them to where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icefloe import Repository
from icefloe.engine.history.walk import Revision
from icefloe.engine.retention.leases import LEASES_FOLDER
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.storage.forwarding import ForwardingStorage
from tests.faults.test_collection_guards import CREATION, MINUTE, Meanwhile, garbage
from tests.formats import folder
from tests.integration.maintained import DAY, HOUR, fill, make, messages, values, wait

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("each_generation")


@pytest.fixture
def repo() -> Repository:
    """Two branches, one of them ahead, and something to collect."""
    repo = make()
    fill(repo, 1)
    fill(repo, 2)
    repo.create_branch("work", "main")
    fill(repo, 3, "work")
    garbage(repo)
    wait(repo, DAY)
    return repo


def beside(repo: Repository, act: Callable[[], object] | None = None) -> Repository:
    """The repository of who is about to move a branch when somebody else acts, or collects."""
    act = act or (lambda: repo.garbage_collect(HOUR))
    return Repository.open(Meanwhile(repo, *CREATION[repo.generation], act))


def reset(repo: Repository) -> None:
    before = repo.lookup_branch("main")
    repo.reset_branch("main", "main~1", from_snapshot_id=before)
    assert values(repo, branch="main") == [1] * 4


def delete(repo: Repository) -> None:
    repo.delete_branch("work")
    assert repo.list_branches() == {"main"}


def publish(repo: Repository) -> None:
    assert repo.publish("work", "main") == repo.lookup_branch("work")
    assert values(repo, branch="main") == [3] * 4


def merge(repo: Repository) -> None:
    assert repo.merge("work", "main") == repo.lookup_branch("work")
    assert values(repo, branch="main") == [3] * 4


def squash(repo: Repository) -> None:
    repo.squash("main", "main~2", message="one")
    assert messages(repo, branch="main") == ["one"]
    assert values(repo, branch="main") == [2] * 4


def rewrite(repo: Repository) -> None:
    repo.rewrite_manifests("tidy", branch="main")
    assert messages(repo, branch="main") == ["tidy", "2", "1"]


def amend(repo: Repository) -> None:
    repo.rewrite_manifests("tidy", branch="main", commit_method="amend")
    assert messages(repo, branch="main") == ["tidy", "1"]


def expire(repo: Repository) -> None:
    old = repo.lookup_branch("work")
    assert old in repo.expire_snapshots(HOUR, delete_expired_branches=True)
    assert repo.list_branches() == {"main"}
    (entry,) = [entry for entry in repo.operations() if entry.kind == "expire_snapshots"]
    assert entry.details["branches_deleted"] == ["work"]


MOVES = [reset, delete, publish, merge, squash, rewrite, amend, expire]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
def test_a_collection_is_in_nobodys_way(repo: Repository, move: Callable[..., None]) -> None:
    move(beside(repo))
    fresh = Repository.open(ForwardingStorage(repo.storage))
    assert fresh.verify(deep=True).is_clean


@pytest.mark.parametrize("move", [delete, publish, squash, rewrite, reset])
def test_other_moves_still_are(repo: Repository, move: Callable[..., None]) -> None:
    branch = "work" if move is delete else "main"

    def act() -> None:
        fill(repo, 9, branch)
        repo.garbage_collect(HOUR)

    with pytest.raises(ConflictError, match="moved"):
        move(beside(repo, act))
    assert values(repo, branch=branch) == [9] * 4


@pytest.mark.parametrize("how", ["reset", "publish"])
def test_nothing_goes_to_what_was_collected_meanwhile(repo: Repository, how: str) -> None:
    target, before = repo.lookup_branch("work"), repo.lookup_branch("main")

    def act() -> None:
        repo.delete_branch("work")
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).snapshots_deleted == 2

    paused = beside(repo, act)
    with pytest.raises(SnapshotNotFoundError, match=target):
        paused.reset_branch("main", target) if how == "reset" else paused.publish("work", "main")
    assert repo.lookup_branch("main") == before
    assert repo.verify(deep=True).is_clean


def test_a_branch_that_moved_does_not_expire(repo: Repository) -> None:
    """Nor is it told that it was deleted."""
    old = repo.lookup_branch("work")
    paused = beside(repo, lambda: fill(repo, 9, "work"))
    assert old not in paused.expire_snapshots(HOUR, delete_expired_branches=True)
    assert repo.list_branches() == {"main", "work"}
    (entry,) = [entry for entry in repo.operations() if entry.kind == "expire_snapshots"]
    assert entry.details["branches_deleted"] == []
    assert old in [info.id for info in repo.ancestry(branch="work")]


def test_histories_that_are_cut_and_collected_meanwhile(repo: Repository) -> None:
    repo.delete_branch("work")

    def act() -> None:
        repo.expire_snapshots(keep_last=1)
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).snapshots_deleted > 1

    with pytest.raises(InvalidInputError, match="not an earlier snapshot"):
        beside(repo, act).squash("main", "main~2", message="one")
    fill(repo, 4)
    fill(repo, 5)
    beside(repo, act).rewrite_manifests("tidy", branch="main", commit_method="amend")
    fresh = Repository.open(ForwardingStorage(repo.storage))
    assert next(fresh.ancestry(branch="main")).message == "tidy"
    assert values(fresh, branch="main") == [5] * 4
    assert fresh.verify(deep=True).is_clean


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_name_that_was_moved_is_taken_back(repo: Repository, goes_on: bool) -> None:
    """By a collection that is paused while the branch is made; or somebody goes on with it."""
    doomed = garbage(repo)

    def pause() -> None:
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).snapshots_deleted > 0

    def move() -> None:
        refs = repo._context.refs
        tip = refs.tip("late")
        assert tip is not None
        target = "main" if goes_on else doomed
        refs.advance(tip, repo._context.history.resolve(Revision(snapshot_id=target)))

    paused = beside(repo, pause)
    looking = Repository.open(Meanwhile(paused, "head", f"{LEASES_FOLDER}/", move))
    with pytest.raises(SnapshotNotFoundError, match=doomed):
        looking.create_branch("late", doomed)
    # In `icechunk` the list of snapshots says at once that it is gone, and no branch is made.
    assert ("late" in repo.list_branches()) == (goes_on and repo.generation != "icechunk")
    assert Repository.open(ForwardingStorage(repo.storage)).verify(deep=True).is_clean


# --- compactions that start a branch


@pytest.mark.parametrize("when", ["before the snapshot", "before the branch"])
def test_a_compaction_that_was_paused_starts_no_branch(when: str) -> None:
    repo = make()
    fill(repo, 3)

    def pause() -> None:
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).chunks_deleted == 1

    at = CREATION[repo.generation] if when == "before the branch" else ("put", folder("snapshots"))
    paused = Repository.open(Meanwhile(repo, *at, pause))
    with pytest.raises(SessionStateError, match="compaction was suspended"):
        paused.compact("packs", branch="main", to_branch="tidy")
    assert repo.list_branches() == {"main"}
    assert repo.verify(deep=True).is_clean
    assert repo.compact("packs", branch="main", to_branch="tidy").new_files == 1
    assert values(repo, branch="tidy") == [3] * 4


def test_a_compaction_keeps_what_it_reads() -> None:
    """The other branch goes elsewhere meanwhile, and the machine is paused, but not for long."""
    repo = make()
    fill(repo, 3)
    wait(repo, DAY)

    def pause() -> None:
        repo.reset_branch("main", "main~1")
        wait(repo, 50 * MINUTE)
        assert repo.garbage_collect(10 * MINUTE).snapshots_deleted == 0

    paused = Repository.open(Meanwhile(repo, "put", folder("snapshots"), pause))
    paused.compact("packs", branch="main", to_branch="tidy")
    fresh = Repository.open(ForwardingStorage(repo.storage))
    assert values(fresh, branch="tidy") == [3] * 4
    assert fresh.verify(deep=True).is_clean
    with pytest.raises(AlreadyExistsError):
        repo.compact("packs", branch="tidy", to_branch="tidy")
