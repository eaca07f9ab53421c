"""Expiry, garbage collection and histories as functions of a context, without a repository."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe.engine.branches import refs
from icefloe.engine.history.blame import blame
from icefloe.engine.history.expired_parents import CachedCuts, Cuts, cut_key
from icefloe.engine.history.walk import Revision
from icefloe.engine.retention.collection import collect_garbage
from icefloe.engine.retention.expiry import ExpirationPolicy, expire
from icefloe.engine.retention.id_sets import id_column
from icefloe.engine.retention.marking import DEFAULT_LIMITS, Marks, MemoryLimits, read_references
from icefloe.engine.retention.stored_objects import StoredObjects, list_objects
from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import FIRST_SNAPSHOT_ID, SnapshotId
from icefloe.objects.metadata import MetadataFiles
from icefloe.objects.shared_caches import CacheBudget
from icefloe.testing.clock import ClockedStorage
from tests.unit.engine.on_context import new_context, set_chunk

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.engine.context import Context

HOUR = timedelta(hours=1)


@pytest.fixture
def storage() -> ClockedStorage:
    return ClockedStorage(icefloe.in_memory_storage())


@pytest.fixture
def context(storage: ClockedStorage) -> Context:
    return new_context(storage)


def tip(context: Context, branch: str = "main") -> SnapshotId:
    return context.history.resolve(Revision(branch=branch))


def test_what_expires_is_collected_when_it_is_old(
    context: Context, storage: ClockedStorage
) -> None:
    gone = [set_chunk(context, 0, data) for data in (b"1", b"2")]
    set_chunk(context, 0, b"3")
    storage.wait(2 * HOUR)
    done = expire(
        context,
        ExpirationPolicy(keep_last=1),
        branches={},
        tags={},
        delete_branches=False,
        delete_tags=False,
        dry_run=False,
    )
    assert set(gone) <= {str(snapshot_id) for snapshot_id in done.expired}
    assert [stub.id for stub in context.history.stubs(tip(context))] == [
        tip(context),
        FIRST_SNAPSHOT_ID,
    ]
    summary = collect_garbage(context, HOUR, dry_run=False, limits=DEFAULT_LIMITS)
    assert summary.chunks_deleted == 2
    assert summary.snapshots_deleted == 3, "and the commit that made the array"


def test_cuts_are_read_once_by_those_who_walk_many_histories(context: Context) -> None:
    cuts, cached = Cuts(context.storage), CachedCuts(context.storage)
    assert cached.all() == frozenset()
    cuts.add(tip(context), FIRST_SNAPSHOT_ID)
    assert cuts.all() == {tip(context)}
    assert cuts.root_behind(tip(context)) == FIRST_SNAPSHOT_ID
    assert cached.all() == frozenset()
    assert cached.root_behind(tip(context)) == FIRST_SNAPSHOT_ID
    key = cut_key(tip(context))
    context.storage.put(key, b"{")
    with pytest.raises(FormatError, match=key):
        cuts.root_behind(tip(context))


def test_marks_reach_what_references_reach(context: Context) -> None:
    set_chunk(context, 0, b"0")
    refs.create_tag(context, "old", "main~1")
    references = read_references(context)
    assert references.all() == {tip(context), context.history.resolve(Revision(tag="old"))}
    marks = Marks(context)
    marks.add_history(tip(context))
    assert len(marks.snapshots) == 3
    assert marks.num_refs == 1
    assert len(marks.chunk_file_ids()) == 1
    with pytest.raises(InvalidInputError, match="max_snapshots_in_memory"):
        Marks(context, MemoryLimits(snapshots=0))


def test_private_caches_see_what_is_gone(tmp_path: Path) -> None:
    local = new_context(icefloe.local_filesystem_storage(str(tmp_path)))
    newest = tip(local)
    shared = MetadataFiles(local.storage, local.format, CacheBudget())
    shared.read_snapshot(newest)
    local.storage.delete_many([local.format.layout.snapshot(newest)])
    again = MetadataFiles(local.storage, local.format, CacheBudget())
    private = MetadataFiles(local.storage, local.format, CacheBudget(is_private=True))
    assert again.find_snapshot(newest) is not None
    assert private.find_snapshot(newest) is None


def test_objects_are_split_and_measured_by_id(context: Context, storage: ClockedStorage) -> None:
    set_chunk(context, 0, b"0")
    storage.wait(HOUR)
    set_chunk(context, 1, b"11")
    objects = list_objects(storage, context.format.layout, ObjectKind.CHUNK_FILE)
    middle = float(objects.times.mean())
    old, young = (part.ids.tolist() for part in objects.split(datetime.fromtimestamp(middle, UTC)))
    assert len(old) == len(young) == 1
    sizes = objects.sizes_of(id_column([*old, *young, b"x" * 12]))
    assert sizes.tolist() == [1, 2, -1]
    empty = StoredObjects(objects.ids[:0], objects.sizes[:0], objects.times[:0])
    assert empty.sizes_of(objects.ids).tolist() == [-1, -1]


def test_blame_follows_logs_to_who_wrote_a_chunk(context: Context) -> None:
    first, second = set_chunk(context, 0, b"0"), set_chunk(context, 1, b"1")
    found = blame(context.history, tip(context), "/a")
    assert [found.snapshot_id(index) for index in range(3)] == [first, second, None]
