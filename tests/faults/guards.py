"""The guards of garbage collection, each with a way to turn it off; tests must notice that.

Import this from tests only: with a guard turned off, data is lost.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.engine.commit import forks, publication
from icefloe.engine.retention import (
    candidate_files,
    collection,
    leases,
    marking,
    pins,
    uncommitted,
)
from icefloe.engine.retention.stored_objects import StoredObjects

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    TurnOff = Callable[[pytest.MonkeyPatch], None]

GUARDS: dict[str, TurnOff] = {}


def guard(name: str) -> Callable[[TurnOff], TurnOff]:
    def note(turn_off: TurnOff) -> TurnOff:
        GUARDS[name] = turn_off
        return turn_off

    return note


def nothing(*_: Any, **__: Any) -> None:
    """Instead of what a guard does."""


@guard("who names a snapshot takes a lease and minds announcements")
def no_pins(patch: pytest.MonkeyPatch) -> None:
    def take(self: pins.SnapshotLease) -> None:
        for snapshot_id in self._claimed:
            pins.check_snapshot(self._storage, self._layout, snapshot_id)

    patch.setattr(pins.SnapshotLease, "begin", nothing)
    patch.setattr(pins.SnapshotLease, "take", take)


@guard("who created a branch or tag looks again if its lease was broken")
def no_confirmation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pins.SnapshotLease, "confirm", nothing)


@guard("the collection announces what it deletes")
def no_announcement(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collection, "announce", nothing)


@guard("references and leases are read again before deleting")
def no_second_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collection._Collection, "_spare", lambda _self, found, _marks, _own: found)


@guard("what lies between the base of a session and its branch stays")
def no_path(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(marking.Marks, "add_paths", nothing)


@guard("what young snapshots refer to stays")
def no_young_roots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collection._Collection, "_mark_young", nothing)


@guard("what new snapshots refer to is looked for again before deleting")
def no_new_roots(patch: pytest.MonkeyPatch) -> None:
    mark = collection._Collection._mark_young

    def once(self: collection._Collection, *args: Any) -> None:
        if not hasattr(self, "_is_marked"):
            self._is_marked = True  # type: ignore[attr-defined]
            mark(self, *args)

    patch.setattr(collection._Collection, "_mark_young", once)


@guard("leases hold")
def no_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases.LeaseFiles, "find", lambda _self, **_but: [])


@guard("leases protect what is younger than their beginning")
def no_beginning(patch: pytest.MonkeyPatch) -> None:
    read = leases.LeaseFiles._read

    def without(self: leases.LeaseFiles, *args: Any) -> leases.StoredLease | None:
        found = read(self, *args)
        return None if found is None else msgspec.structs.replace(found, begins=None)

    patch.setattr(leases.LeaseFiles, "_read", without)


@guard("young objects stay")
def no_cutoff(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredObjects, "split", lambda self, _moment: (self, self))


@guard("snapshots are deleted before what they refer to")
def chunks_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collection, "_METADATA", collection._METADATA[::-1])
    patch.setattr(candidate_files, "chain", lambda *parts: chain(*reversed(parts)))


@guard("a collection that was suspended ends")
def no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collection._Fence, "check", nothing)


@guard("a lease that lapsed is noticed by its holder")
def no_lapses(patch: pytest.MonkeyPatch) -> None:
    renew = leases.Lease.renew

    def renewed(self: leases.Lease) -> bool:
        renew(self)
        return True

    patch.setattr(leases.Lease, "renew", renewed)


@guard("sessions look for what they need when their lease lapsed")
def no_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publication.Publication, "_check_lapsed_lease", nothing)


@guard("branches move before anything is deleted")
def no_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collection._Collection, "_move_branches", nothing)


@guard("sessions look for what they need when a collection moved their branch")
def no_look_after_a_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publication, "check_own_files", nothing)
    patch.setattr(forks, "check_own_files", nothing)


@guard("sessions mind what collections that run may delete")
def no_running(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(uncommitted, "running_collections", lambda _storage: [])


@guard("a collection asks for the storage's clock before it deletes")
def no_storage_clock(patch: pytest.MonkeyPatch) -> None:
    check = collection._Fence.check

    def once(self: collection._Fence) -> None:
        if not hasattr(self, "_is_checked"):
            self._is_checked = True  # type: ignore[attr-defined]
            check(self)

    patch.setattr(collection._Fence, "check", once)


@guard("a lease begins by the storage's clock")
def no_fixed_beginning(patch: pytest.MonkeyPatch) -> None:
    def beginning(body: Any, written: Any) -> Any:
        covers = body.covers_seconds
        return None if covers is None else written - timedelta(seconds=covers)

    patch.setattr(leases, "_beginning", beginning)


@guard("tags are references")
def no_tags(patch: pytest.MonkeyPatch) -> None:
    read = collection.read_references  # type: ignore[attr-defined]
    patch.setattr(collection, "read_references", lambda found: read(found)._replace(tags={}))
