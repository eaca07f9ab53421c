"""Interleavings in which one guard of garbage collection alone saves the data.

Each is played twice: as it is, nothing is lost; with the guard turned off, something is.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zarr

from icefloe import BasicConflictSolver, Repository, RepositoryConfig
from icefloe.engine.retention import leases
from icefloe.engine.retention.announcements import COLLECTIONS_FOLDER, announce, list_announcements
from icefloe.engine.retention.leases import LEASES_FOLDER, Lease
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    IcefloeError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.model.ids import FIRST_SNAPSHOT_ID
from icefloe.session import Session
from icefloe.storage.clock import CLOCK_FOLDER
from icefloe.storage.forwarding import ForwardingStorage
from tests.documents import group
from tests.faults.guards import GUARDS
from tests.formats import GENERATIONS, chosen, folder
from tests.integration.maintained import DAY, HOUR, fill, make, values, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

MINUTE = timedelta(minutes=1)


class Clock:
    """The clock of this process, and of the storage if that goes along."""

    def __init__(self, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
        self._repo = repo
        self._passed = 0.0
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(leases, "seconds_awake_or_asleep", lambda: self._passed)

    def sleep(self, duration: timedelta) -> None:
        """Time passes, and nobody does anything."""
        wait(self._repo, duration)
        self._passed += duration.total_seconds()


class Meanwhile(ForwardingStorage):
    """Lets somebody else act before the first request of a kind, or the nth."""

    def __init__(
        self,
        repo: Repository,
        verb: str,
        prefix: str,
        act: Callable[[], object],
        *,
        nth: int = 1,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(storage or repo.storage)
        self._when = (verb, prefix)
        self._act = act
        self._left = nth

    def _run(self, verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == self._when[0] and key.startswith(self._when[1]):
            self._left -= 1
            if self._left == 0:
                self._act()
        return super()._run(verb, key, act)


def garbage(repo: Repository) -> str:
    """A snapshot that nothing reaches."""
    doomed = fill(repo, 1)
    repo.reset_branch("main", "main~1")
    return doomed


def after_the_first(repo: Repository, **version: Any) -> list[str]:
    """The messages of a history without its first snapshot, newest first."""
    return [info.message for info in repo.ancestry(**version)][:-1]


def named_before_the_announcement(repo: Repository, clock: Clock) -> None:
    doomed = garbage(repo)
    clock.sleep(DAY)
    name = lambda: repo.create_tag("saved", doomed)  # noqa: E731
    Repository.open(Meanwhile(repo, "put", "maintenance/collections/", name)).garbage_collect(HOUR)
    assert values(repo, tag="saved") == [1] * 4


def named_with_an_expired_history_before_the_announcement(repo: Repository, clock: Clock) -> None:
    """A snapshot that is spared keeps the note that says where its history ends."""
    for value in (1, 2, 3):
        doomed = fill(repo, value)
    repo.expire_snapshots(keep_last=1)
    repo.reset_branch("main", str(FIRST_SNAPSHOT_ID))
    clock.sleep(DAY)
    name = lambda: repo.create_tag("saved", doomed)  # noqa: E731
    Repository.open(Meanwhile(repo, "put", "maintenance/collections/", name)).garbage_collect(HOUR)
    assert values(repo, tag="saved") == [3] * 4
    assert after_the_first(repo, tag="saved") == ["3"]


def expired_and_collected_while_another_collection_marks(repo: Repository, clock: Clock) -> None:
    for value in range(5):
        fill(repo, value)
    garbage(repo)
    clock.sleep(DAY)

    def tidy_up() -> None:
        repo.expire_snapshots(keep_last=2)
        repo.garbage_collect(HOUR)

    Repository.open(Meanwhile(repo, "get", "snapshots/", tidy_up)).garbage_collect(HOUR)
    assert after_the_first(repo, branch="main") == ["4", "3"]


def reset_and_collected_while_another_collection_marks(repo: Repository, clock: Clock) -> None:
    for value in range(5):
        fill(repo, value)
    clock.sleep(DAY)

    def tidy_up() -> None:
        repo.reset_branch("main", "main~2")
        repo.garbage_collect(HOUR)

    # Opening it reads the newest snapshot, too.
    other = Repository.open(Meanwhile(repo, "get", "snapshots/", tidy_up, nth=2))
    other.garbage_collect(HOUR)
    assert after_the_first(repo, branch="main")[:3] == ["2", "1", "0"]


def expired_and_collected_while_a_history_is_read(repo: Repository, clock: Clock) -> None:
    for value in range(5):
        fill(repo, value)
    clock.sleep(DAY)

    def tidy_up() -> None:
        repo.expire_snapshots(keep_last=1)
        repo.garbage_collect(HOUR)

    reader = Repository.open(Meanwhile(repo, "get", "snapshots/", tidy_up, nth=3))
    assert after_the_first(reader, branch="main") == ["4", "3"], "as it was when that was read"
    assert after_the_first(reader, branch="main") == ["4"]


def named_while_it_is_deleted(repo: Repository, clock: Clock) -> None:
    doomed = garbage(repo)
    clock.sleep(DAY)

    def name() -> None:
        with pytest.raises(SnapshotNotFoundError, match="about to delete it"):
            repo.create_tag("late", doomed)

    Repository.open(Meanwhile(repo, "delete_many", "snapshots/", name)).garbage_collect(HOUR)
    assert repo.list_tags() == set()


def collected_while_it_is_named(repo: Repository, clock: Clock) -> None:
    doomed = garbage(repo)
    clock.sleep(DAY)
    collect = lambda: repo.garbage_collect(HOUR)  # noqa: E731
    Repository.open(Meanwhile(repo, "create", "refs/", collect)).create_tag("saved", doomed)
    assert values(repo, tag="saved") == [1] * 4


def leased_while_it_is_deleted(repo: Repository, clock: Clock) -> None:
    doomed = garbage(repo)
    clock.sleep(DAY)

    def read() -> None:
        with pytest.raises(SnapshotNotFoundError, match="about to delete it"):
            repo.lease(snapshot_ids=[doomed]).take()

    Repository.open(Meanwhile(repo, "delete_many", "snapshots/", read)).garbage_collect(HOUR)


def flushed_over_what_is_garbage(repo: Repository, clock: Clock) -> None:
    fill(repo, 1)
    clock.sleep(HOUR)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 2
    flushed = session.flush("aside")
    repo.reset_branch("main", "main~1")
    repo.garbage_collect(HOUR / 2)
    repo.create_branch("work", flushed)
    assert values(repo, branch="work") == [2, 1, 1, 1]


def expired_below_a_session(repo: Repository, clock: Clock) -> None:
    """The clock of a machine that is paused from outside stands still: its lease begins late.

    And more was committed meanwhile than a snapshot remembers.
    """
    clock.monkeypatch.setattr("icefloe.engine.commit.write.MAX_HISTORY", 1)
    # Another process: a storage around a storage shares no caches.
    session = Repository.open(ForwardingStorage(repo.storage)).writable_session("main")
    for value in range(1, 5):
        fill(repo, value, chunks=slice(0, 3))
        wait(repo, HOUR)
    zarr.open_array(session.store, path="a")[3] = 9
    session.publication.lease._keep()
    repo.expire_snapshots(keep_last=1)
    clock.sleep(10 * MINUTE)
    repo.garbage_collect(8 * MINUTE)
    session.commit("on top", rebase_with=BasicConflictSolver())
    assert values(repo, branch="main") == [4, 4, 4, 9]


def named_while_the_collector_sleeps(repo: Repository, clock: Clock) -> None:
    doomed = garbage(repo)
    clock.sleep(DAY)

    def oversleep() -> None:
        clock.sleep(DAY)
        repo.create_tag("saved", doomed)

    # When it looks for small objects that are left over, for the second time.
    sleepy = Repository.open(Meanwhile(repo, "list", f"{CLOCK_FOLDER}/", oversleep, nth=2))
    # It ends, whether somebody else broke its lease or not.
    with contextlib.suppress(SessionStateError):
        sleepy.garbage_collect(HOUR)
    assert values(repo, tag="saved") == [1] * 4


def written(session: Any, value: int, chunks: slice = slice(None)) -> Any:
    zarr.open_array(session.store, path="a")[chunks] = value
    session.tree.settle_pending()
    return session


def committed_by_a_machine_that_was_paused(repo: Repository, clock: Clock) -> None:
    """From outside, and its clock with it: for the session no time has passed."""
    del clock
    session = written(repo.writable_session("main"), 1)
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    tip = repo.lookup_branch("main")
    with pytest.raises(SessionStateError, match="4 chunk files"):
        session.commit("holes")
    assert repo.lookup_branch("main") == tip


def amended_and_flushed_by_a_machine_that_was_paused(repo: Repository, clock: Clock) -> None:
    del clock
    fill(repo, 5)
    for publish in (Session.amend, Session.flush):
        session = written(repo.writable_session("main"), 1)
        wait(repo, DAY)
        repo.garbage_collect(HOUR)
        with pytest.raises(SessionStateError, match="4 chunk files"):
            publish(session, "holes")
    assert values(repo, branch="main") == [5] * 4


def rebased_by_a_machine_that_was_paused(repo: Repository, clock: Clock) -> None:
    del clock
    session = written(repo.writable_session("main"), 1, slice(0, 2))
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    fill(repo, 2, chunks=slice(2, 4))
    with pytest.raises(SessionStateError, match="2 chunk files"):
        session.commit("holes", rebase_with=BasicConflictSolver())
    with pytest.raises(SessionStateError, match="2 chunk files"):
        session.rebase(BasicConflictSolver())


def merged_into_a_session_that_came_later(repo: Repository, clock: Clock) -> None:
    """Files of a fork are collected, and who merges it stands where the branch stands now."""
    del clock
    driver = repo.writable_session("main")
    fork = written(driver.fork(), 1)
    again = written(driver.fork(), 2)
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).chunks_deleted == 8
    driver.rebase(BasicConflictSolver())
    later = repo.writable_session("main")
    for session in (driver, later, later.fork()):
        with pytest.raises(SessionStateError, match="4 chunk files"):
            session.merge(fork)
        assert not session.has_uncommitted_changes
    written(again, 3)
    driver.merge(again)
    driver.commit("written again")
    assert values(repo, branch="main") == [3] * 4


def rebased_over_a_branch_that_was_published(repo: Repository, clock: Clock) -> None:
    """Two commits and a collection in two moves."""
    del clock
    repo.create_branch("work", repo.lookup_branch("main"))
    session = written(repo.writable_session("main"), 1, slice(0, 2))
    fill(repo, 2, "work", slice(2, 3))
    fill(repo, 3, "work", slice(3, 4))
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    repo.publish("work", "main")
    with pytest.raises(SessionStateError, match="2 chunk files"):
        session.commit("holes", rebase_with=BasicConflictSolver())
    assert values(repo, branch="main") == [0, 0, 2, 3]


def rebased_over_a_branch_that_was_deleted(repo: Repository, clock: Clock) -> None:
    """And created again, after a collection that did not see it."""
    del clock
    repo.create_branch("work", repo.lookup_branch("main"))
    session = written(repo.writable_session("work"), 1, slice(0, 2))
    fill(repo, 2, chunks=slice(2, 4))
    repo.delete_branch("work")
    wait(repo, DAY)
    repo.garbage_collect(HOUR)
    repo.create_branch("work", repo.lookup_branch("main"))
    with pytest.raises(SessionStateError, match="2 chunk files"):
        session.commit("holes", rebase_with=BasicConflictSolver())
    assert values(repo, branch="work") == [0, 0, 2, 2]


def paused_between_snapshot_and_reference(repo: Repository, clock: Clock) -> None:
    """Nothing but metadata was written, and all of it is collected."""
    del clock

    def pause() -> None:
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).snapshots_deleted == 1

    paused = Repository.open(Meanwhile(repo, "create", "refs/branch.main", pause))
    session = paused.writable_session("main")
    session.tree.set_document("/b", group())
    session.commit("written twice")
    assert list(repo.readonly_session("main").tree.node_paths("/")) == ["/a", "/b"]


def committed_while_it_is_deleted(repo: Repository, clock: Clock) -> None:
    """The files are there when the session looks, and go after that."""
    del clock
    session = written(repo.writable_session("main"), 1)
    wait(repo, DAY)

    def commit() -> None:
        with pytest.raises(SessionStateError, match="runs at this moment"):
            session.commit("holes")

    collector = Repository.open(Meanwhile(repo, "delete_many", "chunks/", commit))
    assert collector.garbage_collect(HOUR).chunks_deleted == 4
    with pytest.raises(SessionStateError, match="4 chunk files"):
        session.commit("holes")
    written(session, 2).commit("written again")
    assert values(repo, branch="main") == [2] * 4


def committed_beside_a_collection(repo: Repository, clock: Clock) -> None:
    """A commit that no collection could harm does not fail because one runs."""
    del clock
    garbage(repo)
    wait(repo, DAY)
    session = written(repo.writable_session("main"), 2)
    commit = lambda: session.commit("beside it")  # noqa: E731
    collector = Repository.open(Meanwhile(repo, "delete_many", "snapshots/", commit))
    assert collector.garbage_collect(HOUR).snapshots_deleted == 1
    assert values(repo, branch="main") == [2] * 4


def merged_by_a_machine_that_was_paused(repo: Repository, clock: Clock) -> None:
    """The branch that is merged is deleted and collected meanwhile."""
    del clock
    repo.create_branch("work", repo.lookup_branch("main"))
    fill(repo, 1, "work", slice(0, 2))
    fill(repo, 2, chunks=slice(2, 4))

    def pause() -> None:
        repo.delete_branch("work")
        wait(repo, DAY)
        repo.garbage_collect(HOUR)

    paused = Repository.open(Meanwhile(repo, "create", "refs/branch.main", pause))
    with pytest.raises(SnapshotNotFoundError):
        paused.merge("work", "main")
    assert values(repo, branch="main") == [0, 0, 2, 2]


def compacted_by_a_machine_that_was_paused(repo: Repository, clock: Clock) -> None:
    del clock
    fill(repo, 3)

    def pause() -> None:
        wait(repo, DAY)
        repo.garbage_collect(HOUR)

    paused = Repository.open(Meanwhile(repo, "create", "refs/branch.main", pause))
    with pytest.raises(SessionStateError, match="compaction was suspended"):
        paused.compact("packs", branch="main")
    assert values(repo, branch="main") == [3] * 4


def named_while_the_machine_of_the_collector_is_paused(repo: Repository, clock: Clock) -> None:
    """It has begun to delete; for its clock no time passes."""
    clock.monkeypatch.setattr("icefloe.engine.retention.candidate_files.BATCH", 1)
    doomed = garbage(repo)
    wait(repo, MINUTE)
    garbage(repo)  # newer, and the first to go
    wait(repo, DAY)

    def oversleep() -> None:
        wait(repo, DAY)
        repo.create_tag("saved", doomed)

    paused = Repository.open(Meanwhile(repo, "delete_many", "snapshots/", oversleep))
    with contextlib.suppress(SessionStateError):
        paused.garbage_collect(HOUR)
    assert values(repo, tag="saved") == [1] * 4


def leased_by_a_machine_that_was_paused(repo: Repository, clock: Clock) -> None:
    """For less than the lease holds: what it had protected it goes on to protect."""
    session = written(repo.writable_session("main"), 1)
    clock.sleep(6 * MINUTE)
    session.publication.lease._keep()
    wait(repo, 50 * MINUTE)
    session.publication.lease._keep()
    wait(repo, MINUTE)
    assert repo.garbage_collect(10 * MINUTE).chunks_deleted == 0
    session.commit("all there")
    assert values(repo, branch="main") == [1] * 4


def paused_while_it_takes_a_lease(repo: Repository, clock: Clock) -> None:
    """The lease is broken before it was even looked at."""
    del clock
    doomed = garbage(repo)

    def pause() -> None:
        wait(repo, DAY)
        repo.garbage_collect(2 * DAY)

    paused = Repository.open(Meanwhile(repo, "head", "maintenance/leases/", pause))
    paused.create_tag("saved", doomed)
    assert values(repo, tag="saved") == [1] * 4


def named_by_a_machine_that_was_paused(repo: Repository, clock: Clock) -> None:
    """After it took a lease and saw that the snapshot is there, for longer than the lease holds."""
    del clock
    doomed = garbage(repo)

    def pause() -> None:
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).snapshots_deleted == 1

    paused = Repository.open(Meanwhile(repo, "create", "refs/", pause))
    with pytest.raises(SnapshotNotFoundError, match=doomed):
        paused.create_tag("late", doomed)
    assert repo.list_tags() == set()


def flushed_before_the_announcement(repo: Repository, clock: Clock) -> None:
    """Over chunk files that the collection has found to be garbage, by a machine that slept."""
    del clock
    session = written(repo.writable_session("main"), 1)
    wait(repo, DAY)
    flushed: list[str] = []

    def flush() -> None:
        flushed.append(session.flush("aside"))

    Repository.open(Meanwhile(repo, "put", "maintenance/collections/", flush)).garbage_collect(HOUR)
    assert values(repo, snapshot_id=flushed[0]) == [1] * 4


def named_after_the_collector_slept(repo: Repository, clock: Clock) -> None:
    named_while_the_collector_sleeps(repo, clock)


def committed_after_a_sleep(repo: Repository, clock: Clock) -> None:
    """It was too young for a lease when it fell asleep, and takes one when it wakes up."""
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 1
    session.tree.settle_pending()
    clock.sleep(DAY)
    repo.garbage_collect(HOUR)
    session.publication.lease._keep()
    with pytest.raises(SessionStateError, match="4 chunk files"):
        session.commit("holes")


def flushed_over_what_is_gone(repo: Repository, clock: Clock) -> None:
    fill(repo, 1)
    session = repo.writable_session("main")
    clock.sleep(6 * MINUTE)
    session.publication.lease._keep()
    repo.reset_branch("main", "main~1")
    clock.sleep(DAY)
    repo.garbage_collect(HOUR)
    zarr.open_array(session.store, path="a")[0] = 2
    with pytest.raises(SessionStateError, match="based on was collected"):
        session.flush("holes")
    with pytest.raises(SessionStateError, match="based on was collected"):
        session.commit("holes")
    assert repo.garbage_collect(HOUR).snapshots_deleted == 0, "nothing is in its way"


def renewed_while_it_is_read(repo: Repository, clock: Clock) -> None:
    """The lease of a session, between the listing of leases and the reading of this one."""
    session = written(repo.writable_session("main"), 1)
    clock.sleep(6 * MINUTE)
    for _ in range(8):
        session.publication.lease._keep()
        clock.sleep(10 * MINUTE)
    # Leases are read twice: to break those that have lapsed, and to find the others.
    renews = Meanwhile(repo, "get", LEASES_FOLDER, session.publication.lease._keep, nth=2)
    assert Repository.open(renews).garbage_collect(HOUR).chunks_deleted == 0
    session.commit("all there")
    assert values(repo, branch="main") == [1] * 4


def named_while_the_collection_renews_its_lease(repo: Repository, clock: Clock) -> None:
    doomed = garbage(repo)
    clock.sleep(DAY)

    def renew() -> None:
        storage = repo.storage
        held = {info.key: storage.get(info.key) for info in storage.list(LEASES_FOLDER)}
        (key,) = (key for key, data in held.items() if b"garbage collection" in data)
        lease, _, name = key.rpartition("/")
        storage.put(f"{lease}/{int(name[:8]) + 1:08d}.json", held[key])
        storage.delete_many([key])

    def name() -> None:
        client = Repository.open(Meanwhile(repo, "get", LEASES_FOLDER, renew))
        with pytest.raises(SnapshotNotFoundError, match="about to delete it"):
            client.create_tag("late", doomed)

    collector = Repository.open(Meanwhile(repo, "delete_many", "snapshots/", name))
    with contextlib.suppress(SessionStateError):  # somebody else renewed its lease
        collector.garbage_collect(HOUR)
    assert repo.list_tags() == set()


def announced_beside_another_collection(repo: Repository, clock: Clock) -> None:
    """Each takes a lease before it announces: one that has none is dead, and no other."""
    del clock
    other = Lease(repo.storage, holder="another collection", protects_new=False)

    def begin() -> None:
        other.take()
        announce(repo.storage, other.id, [], datetime.now(UTC))

    Repository.open(Meanwhile(repo, "list", COLLECTIONS_FOLDER, begin)).garbage_collect(HOUR)
    assert other.id in list_announcements(repo.storage)
    other.release()
    repo.garbage_collect(HOUR)
    assert not list_announcements(repo.storage)


def amended_while_the_history_expires(repo: Repository, clock: Clock) -> None:
    for value in (1, 2, 3):
        fill(repo, value)
    clock.sleep(DAY)

    def expire() -> None:
        repo.expire_snapshots(keep_last=1)
        assert repo.garbage_collect(HOUR).snapshots_deleted == 3

    session = Repository.open(Meanwhile(repo, "put", "snapshots/", expire)).writable_session("main")
    written(session, 7, slice(0, 1)).amend("amended")
    assert values(repo, branch="main") == [7, 3, 3, 3]
    messages = [info.message for info in repo.ancestry(branch="main")]
    assert messages == ["amended", "Repository initialized"]


def flushed_by_a_machine_that_was_paused_before_the_snapshot(
    repo: Repository, clock: Clock
) -> None:
    """The manifest of inline chunks is collected before the snapshot that names it is written."""
    del clock

    def pause() -> None:
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).manifests_deleted == 1

    inline = RepositoryConfig(inline_chunk_threshold_bytes=512)
    paused = Repository.open(Meanwhile(repo, "put", "snapshots/", pause), inline)
    flushed = written(paused.writable_session("main"), 5).flush("aside")
    assert values(repo, snapshot_id=flushed) == [5] * 4


INTERLEAVINGS = {
    named_before_the_announcement: "references and leases are read again before deleting",
    named_while_it_is_deleted: "who names a snapshot takes a lease and minds announcements",
    collected_while_it_is_named: "who names a snapshot takes a lease and minds announcements",
    named_by_a_machine_that_was_paused: (
        "who created a branch or tag looks again if its lease was broken"
    ),
    leased_while_it_is_deleted: "the collection announces what it deletes",
    flushed_before_the_announcement: (
        "what new snapshots refer to is looked for again before deleting"
    ),
    flushed_over_what_is_garbage: "what young snapshots refer to stays",
    expired_below_a_session: "what lies between the base of a session and its branch stays",
    named_while_the_collector_sleeps: "a collection that was suspended ends",
    committed_by_a_machine_that_was_paused: "branches move before anything is deleted",
    amended_and_flushed_by_a_machine_that_was_paused: (
        "sessions look for what they need when a collection moved their branch"
    ),
    rebased_by_a_machine_that_was_paused: (
        "sessions look for what they need when a collection moved their branch"
    ),
    merged_into_a_session_that_came_later: (
        "sessions look for what they need when a collection moved their branch"
    ),
    rebased_over_a_branch_that_was_published: "branches move before anything is deleted",
    rebased_over_a_branch_that_was_deleted: (
        "sessions look for what they need when a collection moved their branch"
    ),
    paused_between_snapshot_and_reference: "branches move before anything is deleted",
    committed_while_it_is_deleted: "sessions mind what collections that run may delete",
    merged_by_a_machine_that_was_paused: "branches move before anything is deleted",
    compacted_by_a_machine_that_was_paused: "branches move before anything is deleted",
    named_while_the_machine_of_the_collector_is_paused: (
        "a collection asks for the storage's clock before it deletes"
    ),
    leased_by_a_machine_that_was_paused: "a lease begins by the storage's clock",
    named_after_the_collector_slept: "a lease that lapsed is noticed by its holder",
    flushed_over_what_is_gone: "sessions look for what they need when their lease lapsed",
}


@pytest.fixture
def repo() -> Repository:
    return make()


UNHARMED = [
    committed_after_a_sleep,
    committed_beside_a_collection,
    renewed_while_it_is_read,
    named_while_the_collection_renews_its_lease,
    announced_beside_another_collection,
    amended_while_the_history_expires,
    flushed_by_a_machine_that_was_paused_before_the_snapshot,
    paused_while_it_takes_a_lease,
    named_with_an_expired_history_before_the_announcement,
    expired_and_collected_while_another_collection_marks,
    expired_and_collected_while_a_history_is_read,
    reset_and_collected_while_another_collection_marks,
]
"""More that no single guard decides: several do, or there is nothing to guard against."""


@pytest.mark.parametrize("play", [*INTERLEAVINGS, *UNHARMED], ids=lambda play: play.__name__)
def test_nothing_is_lost(
    play: Callable[[Repository, Clock], None], repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(repo, Clock(repo, monkeypatch))
    assert repo.verify(deep=True).is_clean


@pytest.mark.parametrize("play", INTERLEAVINGS, ids=lambda play: play.__name__)
def test_the_guard_is_needed(
    play: Callable[[Repository, Clock], None], repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    GUARDS[INTERLEAVINGS[play]](monkeypatch)
    with pytest.raises((AssertionError, IcefloeError, ConflictError, pytest.fail.Exception)):
        play(repo, Clock(repo, monkeypatch))


CREATION = {
    "repository": ("create", "refs/"),
    "store": ("create", "r/"),
    "dataset": ("replace", "state.json"),
    "icechunk": ("replace", "repo"),
}
"""The request that creates a branch or tag."""


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("name", [Repository.create_branch, Repository.create_tag])
def test_names_for_what_was_collected_meanwhile_are_taken_back(
    generation: str, name: Callable[[Repository, str, str], None]
) -> None:
    with chosen(generation):
        repo = make()
    doomed = garbage(repo)

    def pause() -> None:
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).snapshots_deleted == 1

    paused = Repository.open(Meanwhile(repo, *CREATION[generation], pause))
    with pytest.raises(SnapshotNotFoundError, match=doomed):
        name(paused, "late", doomed)
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == set()
    assert repo.verify(deep=True).is_clean
    name(repo, "late", repo.lookup_branch("main"))


# In `icechunk` a tag of a snapshot that is not listed any more is not made in the first place.
@pytest.mark.parametrize("generation", [each for each in GENERATIONS if each != "icechunk"])
def test_nobody_is_told_of_a_tag_that_is_about_to_be_taken_back(generation: str) -> None:
    with chosen(generation):
        repo = make()
    doomed = garbage(repo)
    lasting = repo.lookup_branch("main")
    tellings: list[type[Exception]] = []

    def pause() -> None:
        wait(repo, DAY)
        assert repo.garbage_collect(HOUR).snapshots_deleted == 1

    def meet() -> None:
        # The tag is there, and whoever made it has not looked again.
        try:
            repo.create_tag("late", lasting)
        except (AlreadyExistsError, ConflictError) as error:
            tellings.append(type(error))

    behind = Meanwhile(repo, *CREATION[generation], pause)
    looks = Meanwhile(repo, "head", f"{LEASES_FOLDER}/", meet, storage=behind)
    with pytest.raises(SnapshotNotFoundError, match=doomed):
        Repository.open(looks).create_tag("late", doomed)
    assert tellings == [ConflictError]
    assert repo.list_tags() == set()
    repo.create_tag("late", lasting)
    assert repo.lookup_tag("late") == lasting


@pytest.mark.parametrize("generation", GENERATIONS)
def test_forks_whose_files_were_collected_are_not_merged(
    generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chosen(generation):
        repo = make()
    merged_into_a_session_that_came_later(repo, Clock(repo, monkeypatch))
    assert repo.verify(deep=True).is_clean


@pytest.mark.parametrize("generation", GENERATIONS)
def test_old_files_of_the_base_are_in_no_danger(generation: str) -> None:
    """Chunks that a session only moves, in part next to what it wrote when it was young."""
    with chosen(generation):
        repo = make()
    fill(repo, 1)
    garbage(repo)
    wait(repo, DAY)
    session = repo.writable_session("main")
    session.shift_array("/a", (1,))
    written(session, 2, slice(0, 1))
    is_slow = repo.writable_session("main")
    is_slow.shift_array("/a", (1,))
    written(is_slow, 3, slice(0, 1))
    wait(repo, DAY)
    written(session, 4, slice(0, 1))

    def commit() -> None:
        session.commit("moved")
        with pytest.raises(SessionStateError, match="1 chunk files that this session wrote"):
            is_slow.rebase(BasicConflictSolver())

    with chosen(generation):
        place = folder("snapshots")
    collector = Repository.open(Meanwhile(repo, "delete_many", place, commit))
    assert collector.garbage_collect(HOUR).snapshots_deleted == 1
    assert values(repo, branch="main") == [4, 1, 1, 1]
    assert repo.verify(deep=True).is_clean
