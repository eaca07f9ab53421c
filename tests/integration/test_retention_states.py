"""Every state that docs/explanation/retention.md names can be brought about, and is as it says."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from icefloe import Repository
from icefloe.engine.retention import collection, leases
from icefloe.engine.retention.announcements import (
    announce,
    list_announcements,
    running_collections,
)
from icefloe.engine.retention.leases import Lease, LeaseFiles
from icefloe.errors import SnapshotNotFoundError
from icefloe.model.ids import SnapshotId
from icefloe.storage.clock import storage_now
from tests.integration.maintained import DAY, HOUR, fill, make, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.engine.retention.session_lease import SessionLease

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "retention.md"
SOON = timedelta(minutes=6)


class World:
    """A repository whose storage, and this process, have a clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.repo = make()
        self.storage = self.repo.storage
        self._passed = 0.0
        monkeypatch.setattr(leases, "seconds_awake_or_asleep", lambda: self._passed)

    def wait(self, duration: timedelta) -> None:
        wait(self.repo, duration)
        self._passed += duration.total_seconds()

    def orphan(self) -> str:
        """A snapshot with chunks that no branch has any more."""
        tip = self.repo.lookup_branch("main")
        snapshot_id = fill(self.repo, 7)
        self.repo.reset_branch("main", tip)
        return snapshot_id

    def is_there(self, snapshot_id: str) -> bool:
        other = Repository.open(self.storage)
        other._context.files.forget()
        try:
            other.lookup_snapshot(snapshot_id)
        except SnapshotNotFoundError:
            return False
        return True

    def collect(self) -> int:
        return self.repo.garbage_collect(HOUR).snapshots_deleted

    def lease(self, *snapshots: str) -> Lease:
        return Lease(self.storage, snapshots=map(SnapshotId.parse, snapshots))

    def found(self) -> set[str]:
        return {lease.id for lease in LeaseFiles(self.storage).active(storage_now(self.storage))}


STATES: dict[tuple[str, str], Callable[[World], None]] = {}


def state(thing: str, name: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    def note(check: Callable[[World], None]) -> Callable[[World], None]:
        STATES[thing, name] = check
        return check

    return note


@state("An object", "young")
def young_objects_stay(world: World) -> None:
    orphan = world.orphan()
    world.wait(HOUR / 2)
    assert world.collect() == 0
    assert world.is_there(orphan)


@state("An object", "reachable")
def reachable_objects_stay(world: World) -> None:
    orphan = world.orphan()
    world.repo.create_tag("kept", orphan)
    world.wait(DAY)
    assert world.collect() == 0
    assert world.is_there(orphan)


@state("An object", "expired")
def expired_snapshots_can_be_read(world: World) -> None:
    middle, _ = fill(world.repo, 1), fill(world.repo, 2)
    world.wait(DAY)
    assert middle in world.repo.expire_snapshots(keep_last=1)
    assert middle not in {info.id for info in world.repo.ancestry(branch="main")}
    assert world.is_there(middle)
    assert world.collect() > 0
    assert not world.is_there(middle)


@state("An object", "garbage")
def garbage_can_be_named_again(world: World) -> None:
    orphan = world.orphan()
    world.wait(DAY)
    assert world.repo.garbage_collect(HOUR, dry_run=True).snapshots_deleted == 1
    world.repo.create_branch("again", orphan)
    assert world.collect() == 0


@state("An object", "announced")
def announced_snapshots_cannot_be_named(world: World) -> None:
    orphan = world.orphan()
    world.wait(DAY)
    lease = world.lease()
    lease.take()
    announce(world.storage, lease.id, [SnapshotId.parse(orphan)], storage_now(world.storage))
    with pytest.raises(SnapshotNotFoundError, match="about to delete it"):
        world.repo.create_branch("late", orphan)
    assert world.is_there(orphan)


@state("An object", "deleted")
def deleted_objects_are_gone(world: World) -> None:
    orphan = world.orphan()
    world.wait(DAY)
    assert world.collect() == 1
    assert not world.is_there(orphan)
    with pytest.raises(SnapshotNotFoundError):
        world.repo.create_branch("late", orphan)


@state("A lease", "unwritten")
def a_lease_that_was_not_taken_is_not_found(world: World) -> None:
    assert world.lease().id not in world.found()


@state("A lease", "held")
def a_lease_that_holds_protects(world: World) -> None:
    orphan = world.orphan()
    world.wait(DAY)
    lease = world.lease(orphan)
    lease.take()
    assert lease.id in world.found()
    assert world.collect() == 0


@state("A lease", "lapsed")
def a_lapsed_lease_is_ignored_and_its_holder_told(world: World) -> None:
    lease = world.lease()
    lease.take()
    world.wait(DAY)
    assert lease.id not in world.found()
    assert not lease.is_broken()
    assert not lease.renew()
    assert lease.id in world.found()


@state("A lease", "broken")
def a_collection_breaks_a_lapsed_lease(world: World) -> None:
    lease = world.lease()
    lease.take()
    world.wait(DAY)
    world.collect()
    assert lease.is_broken()
    assert not lease.renew()
    assert lease.id in world.found()


@state("A lease", "released")
def a_released_lease_is_gone(world: World) -> None:
    lease = world.lease()
    lease.take()
    lease.release()
    assert lease.id not in world.found()
    lease.renew()
    assert lease.id not in world.found()


def session_lease(world: World) -> SessionLease:
    session = world.repo.writable_session("main")
    world.monkeypatch.setattr(world, "session", session, raising=False)  # it must live
    assert session.publication is not None
    return session.publication.lease


@state("A session", "unleased")
def a_young_session_has_no_lease(world: World) -> None:
    lease = session_lease(world)
    assert lease.confirm()
    assert not world.found()


@state("A session", "leased")
def an_older_session_has_a_lease(world: World) -> None:
    lease = session_lease(world)
    world.wait(timedelta(minutes=5))
    assert lease._keep()
    assert len(world.found()) == 1
    assert lease.confirm()


@state("A session", "unprotected")
def a_session_that_slept_must_look_for_its_files(world: World) -> None:
    lease = session_lease(world)
    world.wait(DAY)
    assert not lease.confirm()
    assert not lease.confirm(), "until it has looked"
    lease.note_all_present()
    assert lease.confirm()


@state("A session", "ended")
def a_session_that_ended_has_no_lease(world: World) -> None:
    lease = session_lease(world)
    world.wait(SOON)
    assert lease._keep()
    lease.end()
    assert not world.found()
    assert not lease._keep()


@state("An announcement", "standing")
def an_announcement_stands_while_its_collection_deletes(world: World) -> None:
    orphan = world.orphan()
    world.wait(DAY)
    seen: list[str] = []
    check = collection._Fence.check

    def look(fence: collection._Fence) -> None:
        seen.extend(each for one in running_collections(world.storage) for each in one.snapshots)
        check(fence)

    world.monkeypatch.setattr(collection._Fence, "check", look)
    assert world.collect() == 1
    assert orphan in seen


@state("An announcement", "stale")
def a_stale_announcement_is_not_minded(world: World) -> None:
    orphan = world.orphan()
    lease = world.lease()
    lease.take()
    announce(world.storage, lease.id, [SnapshotId.parse(orphan)], storage_now(world.storage))
    world.wait(DAY)
    assert list_announcements(world.storage)
    assert not running_collections(world.storage)
    world.repo.create_branch("named", orphan)
    world.collect()
    assert not list_announcements(world.storage)


@state("An announcement", "withdrawn")
def an_announcement_is_withdrawn_at_the_end(world: World) -> None:
    world.orphan()
    world.wait(DAY)
    assert world.collect() == 1
    assert not list_announcements(world.storage)


def named_on_the_page() -> Iterator[tuple[str, str]]:
    thing = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            thing = line[3:]
        elif row := re.match(r"\| `([a-z]+)` \|", line):
            yield thing, row[1]


def test_the_page_names_the_states_that_are_checked_here() -> None:
    assert sorted(named_on_the_page()) == sorted(STATES)


@pytest.mark.parametrize(("thing", "name"), STATES)
def test_the_state_is_as_the_page_says(  # invariant 7
    thing: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    STATES[thing, name](World(monkeypatch))


def test_the_page_has_every_rule_of_the_code() -> None:
    assert collection.__doc__ is not None
    rules = set(re.findall(r"^(G\d)  ", collection.__doc__, re.MULTILINE))
    assert rules == {f"G{number}" for number in range(1, 8)}
    assert set(re.findall(r"^\| (G\d) \|", PAGE.read_text(), re.MULTILINE)) == rules
