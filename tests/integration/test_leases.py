"""Leases: what is promised to jobs that take longer than the cutoff (H-47)."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import zarr

import icefloe
from icefloe import ConflictDetector, Repository
from icefloe.engine.retention import background, leases
from icefloe.engine.retention.leases import LeaseFiles
from icefloe.errors import InvalidInputError, SessionStateError, StoragePermissionError
from icefloe.testing.clock import ClockedStorage
from tests.integration.maintained import DAY, HOUR, clock, fill, make, names, values, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from icefloe.session import TreeSession

pytestmark = pytest.mark.usefixtures("each_generation")


@pytest.fixture
def repo() -> Repository:
    return make()


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch, repo: Repository) -> Callable[[timedelta], None]:
    """Lets time pass for the storage and for this process."""
    passed = [0.0]
    monkeypatch.setattr(leases, "seconds_awake_or_asleep", lambda: passed[0])

    def wait_both(duration: timedelta) -> None:
        wait(repo, duration)
        passed[0] += duration.total_seconds()

    return wait_both


def write(session: TreeSession, value: int, chunks: slice = slice(None)) -> None:
    zarr.open_array(session.store, path="a")[chunks] = value
    session.tree.settle_pending()


def test_a_session_that_takes_longer_than_the_cutoff_loses_nothing(
    repo: Repository, pass_time: Callable[[timedelta], None]
) -> None:
    session = repo.writable_session("main")
    write(session, 1, slice(0, 2))
    pass_time(timedelta(minutes=6))
    session.publication.lease._keep()  # what the thread does after five minutes
    for _ in range(40):
        pass_time(HOUR / 2)
        session.publication.lease._keep()
        repo.garbage_collect(HOUR)
    write(session, 2, slice(2, 4))
    session.commit("after twenty hours")
    assert values(repo, branch="main") == [1, 1, 2, 2]
    assert names(repo, "maintenance/leases") == set()
    pass_time(DAY)
    assert repo.garbage_collect(HOUR).chunks_deleted == 0


def test_forks_are_under_the_lease_of_their_session(
    repo: Repository, pass_time: Callable[[timedelta], None]
) -> None:
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for number, fork in enumerate(forks):
        write(fork, number + 1, slice(2 * number, 2 * number + 2))
    pass_time(timedelta(minutes=6))
    session.publication.lease._keep()
    pass_time(HOUR * 3 / 4)
    repo.garbage_collect(HOUR / 10)
    session.merge(*forks)
    session.commit("merged")
    assert values(repo, branch="main") == [1, 1, 2, 2]


def test_a_session_whose_lease_lapsed_says_so_instead_of_committing_holes(
    repo: Repository, pass_time: Callable[[timedelta], None]
) -> None:
    session = repo.writable_session("main")
    write(session, 1)
    pass_time(timedelta(minutes=6))
    session.publication.lease._keep()
    pass_time(DAY)  # the machine sleeps
    assert repo.garbage_collect(HOUR).chunks_deleted == 4
    tip = repo.lookup_branch("main")
    with pytest.raises(SessionStateError, match=r"4 chunk files .* collected as garbage"):
        session.commit("holes")
    assert repo.lookup_branch("main") == tip
    write(session, 2)
    session.commit("written again")
    assert values(repo, branch="main") == [2] * 4


def test_a_lapsed_lease_that_nobody_broke_does_no_harm(
    repo: Repository, pass_time: Callable[[timedelta], None]
) -> None:
    session = repo.writable_session("main")
    write(session, 1)
    pass_time(timedelta(minutes=6))
    session.publication.lease._keep()
    pass_time(DAY)
    session.commit("late")
    assert values(repo, branch="main") == [1] * 4


def test_a_session_whose_thread_had_no_chance_looks_for_its_files(
    repo: Repository, pass_time: Callable[[timedelta], None]
) -> None:
    lost, lucky = repo.writable_session("main"), repo.writable_session("main")
    write(lost, 1)
    pass_time(DAY)
    repo.garbage_collect(HOUR)
    write(lucky, 2)
    with pytest.raises(SessionStateError, match="collected as garbage"):
        lost.commit("holes")
    lucky.commit("nothing of this was old enough")
    assert values(repo, branch="main") == [2] * 4
    lost.discard_changes()


def test_a_leased_session_can_rebase_over_what_has_expired(
    repo: Repository, pass_time: Callable[[timedelta], None]
) -> None:
    session = repo.writable_session("main")
    write(session, 9, slice(3, 4))
    pass_time(timedelta(minutes=6))
    session.publication.lease._keep()
    for value in range(1, 5):
        fill(repo, value, chunks=slice(0, 3))
        pass_time(HOUR / 6)
        session.publication.lease._keep()
    repo.expire_snapshots(keep_last=1)
    repo.garbage_collect(HOUR / 60)
    session.commit("on top", rebase_with=ConflictDetector())
    assert values(repo, branch="main") == [4, 4, 4, 9]
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["on top", "4"]


def test_a_lease_protects_what_others_write_meanwhile(repo: Repository) -> None:
    wait(repo, DAY)
    with repo.lease(holder="nightly job") as lease:
        fill(repo, 1)
        repo.reset_branch("main", "main~1")
        wait(repo, timedelta(minutes=50))
        assert repo.garbage_collect(timedelta(minutes=20)).snapshots_deleted == 0
        (found,) = LeaseFiles(repo.storage).find()
        assert (found.id, found.holder) == (lease.id, "nightly job")
    assert repo.garbage_collect(timedelta(minutes=20)).snapshots_deleted == 1


def test_a_lease_keeps_the_snapshots_that_it_names(repo: Repository) -> None:
    old = fill(repo, 1)
    fill(repo, 2)
    repo.create_branch("dev", old)
    fill(repo, 3, "dev")
    with repo.lease(snapshot_ids=[old, "dev"]):
        repo.delete_branch("dev")
        repo.expire_snapshots(keep_last=1)
        wait(repo, HOUR / 2)
        repo.garbage_collect(HOUR / 4)
        assert values(repo, snapshot_id=old) == [1] * 4
    repo.garbage_collect(HOUR / 4)
    with pytest.raises(KeyError):
        Repository.open(repo.storage).readonly_session(snapshot_id=old)


def test_one_snapshot_need_not_be_a_list(repo: Repository) -> None:
    with repo.lease(snapshot_ids="main"):
        (found,) = LeaseFiles(repo.storage).find()
    assert [str(each) for each in found.snapshots] == [repo.lookup_branch("main")]


def test_a_lease_of_a_dead_process_lapses(repo: Repository) -> None:
    wait(repo, DAY)
    lease = repo.lease()
    lease.take()
    fill(repo, 1)
    repo.reset_branch("main", "main~1")
    wait(repo, timedelta(minutes=59))
    assert repo.garbage_collect(timedelta(minutes=5)).snapshots_deleted == 0
    wait(repo, timedelta(minutes=2))
    summary = repo.garbage_collect(timedelta(minutes=5))
    assert (summary.snapshots_deleted, summary.leases) == (1, 0)
    assert names(repo, "maintenance/leases") == set()
    assert not lease.renew()


def test_a_holder_that_renews_while_it_is_broken_is_found(repo: Repository) -> None:
    """Breaking deletes and then looks; renewing writes and then looks: one sees the other."""
    lease = repo.lease()
    lease.take()
    wait(repo, 2 * HOUR)
    storage = clock(repo)
    delete_many = storage.delete_many

    def renew_first(keys: list[str]) -> None:
        storage.delete_many = delete_many  # type: ignore[method-assign]
        lease._write()
        delete_many(keys)

    storage.delete_many = renew_first  # type: ignore[assignment, method-assign]
    (found,) = LeaseFiles(storage).break_lapsed(storage.now)
    assert found.id == lease.id


def test_a_damaged_lease_protects_everything_for_a_while(repo: Repository) -> None:
    fill(repo, 1)
    repo.reset_branch("main", "main~1")
    wait(repo, DAY)
    repo.storage.put("maintenance/leases/damaged/00000000.json", b"{")
    assert repo.garbage_collect(HOUR).snapshots_deleted == 0
    wait(repo, 2 * HOUR)
    assert repo.garbage_collect(HOUR).snapshots_deleted == 1


def test_young_sessions_have_no_lease_and_cost_nothing(repo: Repository) -> None:
    fill(repo, 1)
    assert names(repo, "maintenance") == set()
    with pytest.raises(InvalidInputError, match="a minute or more"):
        repo.lease(lifetime=timedelta(seconds=1))


def test_the_thread_renews_as_long_as_the_lease_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    called = threading.Event()

    class Kept:
        calls = 0

        def keep(self) -> bool:
            self.calls += 1
            if self.calls == 1:
                raise SessionStateError("tried again")
            called.set()
            return self.calls < 3

    monkeypatch.setattr(background, "_RETRY_SECONDS", 0.001)
    kept = Kept()
    background.keep_calling(kept.keep, 0.001)
    assert called.wait(20)
    gone = Kept()
    background.keep_calling(gone.keep, 3600)
    waiting = len(background._timer._due)
    del gone
    gc.collect()
    assert any(method() is None for *_, method in background._timer._due[:waiting])
    background._timer._purge()
    assert all(method() is not None for *_, method in background._timer._due)


class Permanent(ClockedStorage):
    """One from which the caller may not delete."""

    may_delete = False

    def delete_many(self, keys: Iterable[str]) -> None:
        if not self.may_delete:
            raise StoragePermissionError("deleting is not allowed")
        super().delete_many(keys)


def test_only_collections_need_the_permission_to_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    monkeypatch.setattr(leases, "seconds_awake_or_asleep", lambda: passed[0])
    storage = Permanent(icefloe.in_memory_storage())
    repo = make(storage=storage)
    repo.create_branch("work", fill(repo, 1))
    fill(repo, 2, "work", slice(0, 2))
    fill(repo, 3, "main", slice(2, 4))
    repo.merge("work", "main")
    repo.create_tag("v1", repo.lookup_branch("main"))
    repo.reset_branch("work", repo.lookup_branch("main"))
    repo.compact(branch="main")
    with repo.lease(holder="a job"):
        fill(repo, 4)
    repo.delete_branch("work")
    session = repo.writable_session("main")
    write(session, 4)
    for _ in range(4):
        wait(repo, HOUR / 4)
        passed[0] += HOUR.total_seconds() / 4
        session.publication.lease._keep()  # what the thread does
    session.commit("after an hour")
    wait(repo, DAY)
    assert repo.expire_snapshots(keep_last=1)
    assert values(repo, branch="main") == [4, 4, 4, 4]
    with pytest.raises(StoragePermissionError):
        repo.garbage_collect(HOUR)
    assert repo.verify().is_clean
    storage.may_delete = True
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).snapshots_deleted
    assert not names(repo, "maintenance/leases")
    assert values(repo, branch="main") == [4, 4, 4, 4]
