"""Collection deletes what nothing needs and nothing else (api-facts 42; G1 to G6)."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from icefloe import Repository
from icefloe.errors import FormatError, InvalidInputError, SnapshotNotFoundError
from icefloe.formats.registry import format_for
from icefloe.model.ids import ChunkFileId, ManifestId
from icefloe.testing.clock import ClockedStorage, LaggingStorage
from icefloe.testing.faults import FaultyStorage
from icefloe.testing.requests import FarStorage
from tests.formats import folder, keeps_logs
from tests.integration.maintained import (
    DAY,
    HOUR,
    NATIVE,
    PACKED,
    clock,
    fill,
    make,
    messages,
    names,
    values,
    wait,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.storage.port import ObjectInfo, Storage


NOW = timedelta(0)
DATA = ("snapshots", "transactions", "manifests", "attributes", "chunks")

pytestmark = pytest.mark.usefixtures("each_generation")


def sizes(repo: Repository) -> int:
    return sum(info.size for info in repo.storage.list() if info.key.startswith(data()))


def data() -> tuple[str, ...]:
    return tuple(map(folder, DATA))


@pytest.fixture(params=[NATIVE, PACKED], ids=["native", "packed"])
def repo(request: pytest.FixtureRequest) -> Repository:
    return make(request.param)


def test_nothing_is_collected_that_a_reference_reaches(repo: Repository) -> None:
    for value in range(1, 5):
        fill(repo, value)
    repo.create_branch("dev", repo.lookup_branch("main"))
    fill(repo, 9, "dev")
    repo.create_tag("v1", "main~2")
    repo.reset_branch("main", "main~1")
    wait(repo, DAY)
    before = {info.key for info in repo.storage.list()}
    summary = repo.garbage_collect(NOW)
    # The fourth commit of main is one of dev, too.
    assert summary.snapshots_deleted == summary.bytes_deleted == 0
    assert before <= {info.key for info in repo.storage.list()}


def test_counts_and_bytes_are_those_of_what_is_gone(repo: Repository) -> None:  # R0-14, R3-16
    for value in range(1, 5):
        fill(repo, value)
    repo.reset_branch("main", "main~3")
    wait(repo, DAY)
    before = sizes(repo)
    promised = repo.garbage_collect(HOUR, dry_run=True)
    assert sizes(repo) == before
    summary = repo.garbage_collect(HOUR)
    assert summary == promised
    assert summary.bytes_deleted == before - sizes(repo)
    assert summary.snapshots_deleted == 3
    assert summary.transaction_logs_deleted == 3 * keeps_logs()
    assert summary.manifests_deleted == 3
    assert summary.chunks_deleted == len(names(repo, "chunks")) * 3
    assert repo.garbage_collect(HOUR).bytes_deleted == 0
    assert values(repo, branch="main") == [1] * 4
    assert messages(repo, branch="main") == ["1"]


def test_young_objects_stay(repo: Repository) -> None:
    fill(repo, 1)
    fill(repo, 2)
    repo.reset_branch("main", "main~1")
    wait(repo, HOUR)
    assert repo.garbage_collect(2 * HOUR).snapshots_deleted == 0
    assert repo.garbage_collect(clock(repo).now - 2 * HOUR).snapshots_deleted == 0
    assert repo.garbage_collect(HOUR / 2).snapshots_deleted == 1


def test_a_cutoff_in_the_future_is_now(repo: Repository) -> None:
    fill(repo, 1)
    fill(repo, 2)
    repo.reset_branch("main", "main~1")
    summary = repo.garbage_collect(datetime.now(UTC) + 365 * DAY)
    assert summary.cutoff <= clock(repo).now + timedelta(seconds=1)


def test_a_pack_lives_while_one_of_its_chunks_does() -> None:
    repo = make(PACKED)
    fill(repo, 1)
    (pack,) = names(repo, "chunks")
    fill(repo, 2, chunks=slice(0, 3))
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).chunks_deleted == 0
    assert pack in names(repo, "chunks")
    assert values(repo, branch="main") == [2, 2, 2, 1]
    fill(repo, 3, chunks=slice(3, 4))
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).chunks_deleted == 1
    assert pack not in names(repo, "chunks")
    assert values(repo, branch="main") == [2, 2, 2, 3]


def test_debris_of_writers_that_died_is_removed(repo: Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 9
    session.flush("nobody will name this")
    before = sizes(repo)
    wait(repo, DAY)
    summary = repo.garbage_collect(HOUR)
    assert (summary.snapshots_deleted, summary.manifests_deleted) == (1, 1)
    assert names(repo, "chunks") == names(repo, "manifests") == set()
    assert summary.bytes_deleted == before - sizes(repo)
    assert values(repo, branch="main") == [0] * 4


def test_a_young_snapshot_keeps_what_it_builds_on() -> None:
    repo = make()
    old = fill(repo, 1)
    repo.create_branch("away", old)
    fill(repo, 2, "away", slice(0, 1))
    repo.reset_branch("main", "main~1")
    session = repo.writable_session("away")
    repo.delete_branch("away")
    wait(repo, DAY)
    zarr.open_array(session.store, path="a")[1:2] = 3
    flushed = session.flush("young, on an old snapshot that nothing else reaches")
    assert repo.garbage_collect(HOUR).snapshots_deleted == 0
    repo.create_branch("back", flushed)
    assert values(repo, branch="back") == [2, 3, 1, 1]
    assert len(messages(repo, branch="back")) == 3


def test_foreign_objects_and_sequence_files_stay(repo: Repository) -> None:
    for value in range(1, 4):
        fill(repo, value)
    repo.create_branch("gone", repo.lookup_branch("main"))
    repo.delete_branch("gone")
    foreign = ["notes.txt", "refs/other"] + [
        f"{folder(kind)}{name}"
        for kind, name in (("chunks", "README"), ("snapshots", "lower-case"), ("manifests", "a/b"))
    ]
    for key in foreign:
        repo.storage.put(key, b"mine")
    refs = names(repo, "refs")
    repo.expire_snapshots(keep_last=1)
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).snapshots_deleted == 3
    assert names(repo, "refs") >= refs
    assert {info.key for info in repo.storage.list()} >= set(foreign)


def test_what_cannot_be_read_ends_the_collection_before_it_deletes(repo: Repository) -> None:
    for value in range(1, 4):
        fill(repo, value)
    repo.reset_branch("main", "main~1")
    wait(repo, DAY)
    live = repo.lookup_snapshot("main").manifests[0].id
    key = format_for(repo.generation).layout.manifest(ManifestId.parse(live))
    whole = repo.storage.get(key)
    ClockedStorage.put(clock(repo), key, whole[:-3])
    before = {info.key for info in repo.storage.list()}
    with pytest.raises(FormatError):
        Repository.open(repo.storage).garbage_collect(HOUR)
    assert {i.key for i in repo.storage.list() if i.key.startswith(data())} == {
        key for key in before if key.startswith(data())
    }


def test_a_recent_cutoff_is_warned_of(repo: Repository, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "icefloe.engine"):
        repo.garbage_collect(HOUR)
        assert caplog.records == []
        repo.garbage_collect(timedelta(seconds=10))
    assert "sessions that are open now" in caplog.text


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wrong_clock_of_this_computer_deletes_no_more_than_a_right_one(hours: int) -> None:
    storage = ClockedStorage(icefloe.in_memory_storage(), datetime.now(UTC) + hours * HOUR)
    repo = make(storage=storage)
    fill(repo, 1)
    fill(repo, 2)
    repo.reset_branch("main", "main~1")
    wait(repo, HOUR / 4)
    # Half an hour ago, as this computer sees it; nothing is that old.
    assert repo.garbage_collect(datetime.now(UTC) - HOUR / 2).snapshots_deleted == 0
    assert repo.garbage_collect(HOUR / 2).snapshots_deleted == 0
    assert repo.garbage_collect(HOUR / 5).snapshots_deleted == 1


def test_a_stale_listing_hides_no_commit(repo: Repository) -> None:
    """Listings show neither the newest commit nor that anything was deleted (T-GC)."""
    fill(repo, 1)
    lagging = LaggingStorage(repo.storage)
    slow = Repository.open(lagging)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 2
    session.tree.settle_pending()
    wait(repo, DAY)
    lagging.freeze_listings()
    session.commit("not listed yet")
    slow.garbage_collect(HOUR)
    assert values(repo, branch="main") == [2] * 4
    repo.reset_branch("main", "main~1")
    lagging.freeze_listings()
    wait(repo, DAY)
    first = repo.garbage_collect(HOUR)
    assert first.snapshots_deleted == 1
    slow.garbage_collect(HOUR)
    assert values(repo, branch="main") == [1] * 4


def test_references_are_read_after_the_listing_and_again_before_deletion(repo: Repository) -> None:
    doomed = fill(repo, 1)
    repo.reset_branch("main", "main~1")
    wait(repo, DAY)
    events: list[str] = []

    class Watched(FaultyStorage):
        def _run(self, verb: Any, key: Any, act: Any) -> Any:
            if verb == "put" and key.startswith("maintenance/collections/"):
                # Between the two looks somebody gives the doomed snapshot a name, unnoticed.
                repo._context.refs.create_branch(
                    "saved",
                    repo._context.history.resolve(
                        icefloe.engine.history.walk.Revision(snapshot_id=doomed)
                    ),
                )
            names = (name for name in ("refs", "chunks") if key.startswith(folder(name)))
            events.append(f"{verb} {next(names, key)}")
            return super()._run(verb, key, act)

    import icefloe.engine.history.walk

    summary = Repository.open(Watched(repo.storage)).garbage_collect(HOUR)
    assert summary.snapshots_deleted == summary.chunks_deleted == 0
    assert values(repo, branch="saved") == [1] * 4
    reads = [place for place, event in enumerate(events) if event.endswith(" refs")]
    assert events.index("list chunks") < reads[-1]


def test_a_snapshot_that_is_being_collected_cannot_be_named(repo: Repository) -> None:
    doomed = fill(repo, 1)
    repo.reset_branch("main", "main~1")
    wait(repo, DAY)
    refused = []

    class Watched(FaultyStorage):
        def _run(self, verb: Any, key: Any, act: Any) -> Any:
            if verb == "delete_many" and key.startswith(folder("snapshots")):
                # The official format takes it out of the `repo` file before it deletes.
                reason = "about to delete it|does not exist"
                for name in (repo.create_branch, repo.create_tag):
                    with pytest.raises(SnapshotNotFoundError, match=reason):
                        name("late", doomed)
                with pytest.raises(SnapshotNotFoundError, match=reason):
                    repo.reset_branch("main", doomed)
                refused.append(key)
            return super()._run(verb, key, act)

    summary = Repository.open(Watched(repo.storage)).garbage_collect(HOUR)
    assert summary.snapshots_deleted == len(refused) == 1
    with pytest.raises(SnapshotNotFoundError, match="does not exist"):
        repo.create_tag("late", doomed)
    assert repo.list_tags() == set()
    assert names(repo, "maintenance/leases") == names(repo, "maintenance/collections") == set()


def test_old_debris_of_maintenance_goes(repo: Repository) -> None:
    storage = repo.storage
    storage.put("maintenance/clock/left", b"")
    storage.put("probe/left", b"x")
    storage.put("maintenance/collections/left", b"[]")
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).notes_deleted == 3
    assert names(repo, "probe") == names(repo, "maintenance/clock") == set()


def test_memory_follows_ids_and_not_objects() -> None:
    """Ten thousand chunk files that nobody needs, besides one that somebody does."""
    import tracemalloc

    from icefloe.model.ids import ChunkFileId

    repo = make()
    fill(repo, 1)
    layout = format_for(repo.generation).layout
    for _ in range(10_000):
        clock(repo).inner.put(layout.chunk_file(ChunkFileId.random()), b"")
    wait(repo, DAY)
    tracemalloc.start()
    summary = repo.garbage_collect(HOUR, dry_run=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary.chunks_deleted >= 10_000
    assert peak < 6 * 1024 * 1024


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_snapshots_are_held_than_asked_for(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    from icefloe.objects.metadata import MetadataFiles

    for value in range(12):
        fill(repo, value)
    repo.reset_branch("main", "main~1")
    wait(repo, DAY)
    kept: list[int] = []
    find_snapshots = MetadataFiles.find_snapshots

    def watched(self: Any, ids: Any) -> Any:
        kept.append(len(ids) + len(self._caches.snapshots))
        return find_snapshots(self, ids)

    monkeypatch.setattr(MetadataFiles, "find_snapshots", watched)
    summary = repo.garbage_collect(HOUR, max_snapshots_in_memory=limit)
    assert summary.snapshots_deleted == 1
    assert 1 <= max(kept) <= limit
    stats = repo.chunk_storage_stats(max_snapshots_in_memory=limit)
    assert stats == repo.chunk_storage_stats()
    with pytest.raises(InvalidInputError, match="max_snapshots_in_memory is 1 or more"):
        repo.garbage_collect(HOUR, max_snapshots_in_memory=0)


def test_a_branch_that_was_merged_and_went_on_keeps_its_history(repo: Repository) -> None:
    """Marking the merged tip must not end the walk of the branch at it, whichever comes first."""
    for attempt in range(4):
        work = f"work-{attempt}"
        repo.create_branch(work, "main")
        for value in range(1, 4):
            fill(repo, value, work, slice(0, 1))
        fill(repo, attempt, "main", slice(1, 2))
        repo.merge(work, "main")
        fill(repo, 9, work, slice(2, 3))
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR).snapshots_deleted == 0
    assert repo.verify(deep=True).is_clean


def test_a_snapshot_whose_manifests_were_collected_before_it_was_written_is_in_nobodys_way(
    repo: Repository,
) -> None:
    """Its writer was suspended in between; it is young, and refers to what is gone."""
    fill(repo, 1)
    repo.reset_branch("main", "main~1")
    wait(repo, DAY)
    before = names(repo, "manifests")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:] = 2
    session.flush("of a writer that was suspended")
    repo.storage.delete_many(names(repo, "manifests") - before)
    fresh = Repository.open(repo.storage)
    assert fresh.garbage_collect(HOUR).snapshots_deleted == 1


def test_only_what_appeared_lately_is_collected(repo: Repository) -> None:
    doomed = [fill(repo, 1)]
    repo.reset_branch("main", "main~1")
    wait(repo, 10 * DAY)
    doomed.append(fill(repo, 2))
    repo.reset_branch("main", "main~1")
    kept = fill(repo, 3)
    wait(repo, DAY)
    assert repo.garbage_collect(HOUR, written_since=5 * DAY).snapshots_deleted == 1
    assert repo.readonly_session(snapshot_id=doomed[0]) is not None
    with pytest.raises(SnapshotNotFoundError):
        repo.readonly_session(snapshot_id=doomed[1])
    assert values(repo, branch="main") == [3] * 4
    assert repo.garbage_collect(HOUR).snapshots_deleted == 1
    assert repo.lookup_branch("main") == kept
    assert repo.verify(deep=True).is_clean


def test_a_collection_of_what_appeared_lately_reads_nothing_older(
    each_generation: str,
) -> None:
    del each_generation
    storage = FaultyStorage(ClockedStorage(icefloe.in_memory_storage()))
    repo = make(storage=storage)
    for value in range(10):
        fill(repo, value)
    inner = storage.inner
    assert isinstance(inner, ClockedStorage)
    inner.wait(10 * DAY)
    fill(repo, 11)
    inner.wait(DAY)
    storage.trace.clear()
    repo.garbage_collect(HOUR, written_since=5 * DAY)
    read = {key for verb, key in storage.trace if verb == "get"}
    assert len([key for key in read if key.startswith(folder("snapshots"))]) <= 1
    assert len([key for key in read if key.startswith(folder("manifests"))]) <= 1


def test_requests_of_a_collection_are_limited() -> None:
    repo = make(storage=FarStorage(icefloe.in_memory_storage()))
    fill(repo, 1)
    repo.reset_branch("main", "main~1")
    with pytest.raises(InvalidInputError, match="max_concurrent_requests is 1 or more"):
        repo.garbage_collect(NOW, max_concurrent_requests=0)
    assert repo.garbage_collect(NOW, max_concurrent_requests=1).snapshots_deleted == 1
    assert repo.verify(deep=True).is_clean


class Crowded(FarStorage):
    """Counts how many listings and deletions are in progress at a time, and lets them meet."""

    def __init__(self, inner: Storage, meet: int) -> None:
        super().__init__(inner)
        self._changed = threading.Condition()
        self._meet = meet
        self._now: dict[str, int] = {}
        self.most: dict[str, int] = {}

    @contextmanager
    def _counted(self, verb: str) -> Iterator[None]:
        with self._changed:
            now = self._now[verb] = self._now.get(verb, 0) + 1
            self.most[verb] = max(self.most.get(verb, 0), now)
            self._changed.notify_all()
            if verb == "delete":  # as many as may be in progress are, before one is answered
                self._changed.wait_for(lambda: self.most[verb] >= self._meet, 0.2)
        try:
            yield
        finally:
            with self._changed:
                self._now[verb] -= 1

    def list(
        self, prefix: str = "", *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        is_of_objects = prefix.rstrip("/") in {folder(each).rstrip("/") for each in DATA}
        with self._counted("list" if is_of_objects else "other"):
            infos = [*self.inner.list(prefix, start_after=start_after, limit=limit)]
            time.sleep(0.01)
        return iter(infos)

    def delete_many(self, keys: Iterable[str]) -> None:
        names = [*keys]
        if len(names) < 500:
            self.inner.delete_many(names)
            return
        with self._counted("delete"):
            self.inner.delete_many(names)


@pytest.mark.parametrize("limit", [1, 2])
def test_listings_and_deletions_keep_to_the_limit_that_was_set(limit: int) -> None:
    inner = icefloe.in_memory_storage()
    repo = make(storage=inner)
    for _ in range(3500):
        inner.put(repo._context.format.layout.chunk_file(ChunkFileId.random()), b"x")
    storage = Crowded(inner, limit)
    far = Repository.open(storage)
    storage.most.clear()
    assert far.garbage_collect(NOW, max_concurrent_requests=limit).chunks_deleted == 3500
    assert storage.most["delete"] == limit
    assert storage.most["list"] <= limit
