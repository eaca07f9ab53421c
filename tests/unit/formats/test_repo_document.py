"""The `repo` file of version 2: what it says, what it says after a change, and damaged ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError
from icefloe.formats.icechunk.container import HEADER_SIZE, FlatFileType, make_file, open_file
from icefloe.formats.icechunk.listed_snapshots import ListedSnapshots, MetadataItems, microseconds
from icefloe.formats.icechunk.repo_document import RepoDocument
from icefloe.formats.icechunk.repo_file import RepoFile
from icefloe.formats.icechunk.update_columns import UpdateColumns
from icefloe.model.ids import SnapshotId
from icefloe.model.nodes import NodeTable
from icefloe.model.repo_updates import RepoAvailability, RepoStatus, Update, UpdateType
from icefloe.model.snapshot import Snapshot
from icefloe.storage.memory import MemoryStorage
from tests import counting

if TYPE_CHECKING:
    import random

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
BACKUP = "repo.30708737344267.SPP8QB4P0WDX5APZN1G0"
_IDS = st.binary(min_size=12, max_size=12).map(SnapshotId)
_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=8)
_JSON = st.none() | st.integers(-5, 5) | st.text(max_size=5) | st.lists(st.booleans(), max_size=3)
_METADATA = st.dictionaries(_NAMES, _JSON, max_size=3)


def snapshot(
    snapshot_id: SnapshotId,
    parent: SnapshotId | None = None,
    seconds: int = 0,
    message: str = "a commit",
    metadata: dict[str, Any] | None = None,
) -> Snapshot:
    at = NOW + timedelta(seconds=seconds)
    return Snapshot(
        id=snapshot_id,
        parent_id=parent,
        written_at=at,
        started_at=at,
        message=message,
        metadata=metadata or {},
        total_parents=0,
        history=(),
        manifests=(),
        attribute_files=(),
        nodes=NodeTable.of([]),
    )


def ids(draw: st.DrawFn, listed: list[SnapshotId]) -> str:
    return str(draw(st.sampled_from(listed)))


@st.composite
def updates(draw: st.DrawFn, listed: list[SnapshotId]) -> Any:
    name = draw(_NAMES)
    kinds = UpdateType
    status = RepoStatus(draw(st.sampled_from(RepoAvailability)), NOW, draw(st.none() | _NAMES))
    return draw(
        st.sampled_from(
            [
                kinds.RepoInitialized(),
                kinds.RepoMigrated(1, 2),
                kinds.ConfigChanged(),
                kinds.MetadataChanged(),
                kinds.TagCreated(name),
                kinds.TagDeleted(name, ids(draw, listed)),
                kinds.BranchCreated(name),
                kinds.BranchDeleted(name, ids(draw, listed)),
                kinds.BranchReset(name, ids(draw, listed)),
                kinds.NewCommit(name, ids(draw, listed)),
                kinds.CommitAmended(name, ids(draw, listed), ids(draw, listed)),
                kinds.NewDetachedSnapshot(ids(draw, listed)),
                kinds.GCRan(),
                kinds.ExpirationRan(),
                kinds.FeatureFlagChanged(3, draw(st.none() | st.booleans())),
                kinds.RepoStatusChanged(status),
            ]
        )
    )


@st.composite
def documents(draw: st.DrawFn) -> RepoDocument:
    listed = draw(st.lists(_IDS, min_size=1, max_size=6, unique=True))
    snapshots = ListedSnapshots.of([])
    for place, each in enumerate(listed):
        parent = None if place == 0 else draw(st.sampled_from(listed[:place]))
        pruned = draw(st.lists(_IDS, max_size=2))
        new = snapshot(each, parent, place, draw(_NAMES), draw(_METADATA))
        snapshots = snapshots.with_snapshot(new, pruned)
    targets = st.sampled_from(listed)
    document = RepoDocument.first(
        snapshots,
        UpdateColumns.of(UpdateType.RepoInitialized(), microseconds(NOW)),
        branches={"main": draw(targets), **draw(st.dictionaries(_NAMES, targets, max_size=3))},
        tags=draw(st.dictionaries(_NAMES, targets, max_size=3)),
        deleted_tags=frozenset(draw(st.lists(_NAMES, max_size=3))),
        status=RepoStatus(RepoAvailability.online, NOW),
        metadata=draw(st.none() | _METADATA.map(MetadataItems.of)),
        config=draw(st.none() | st.binary(min_size=1, max_size=9)),
        enabled_flags=draw(st.none() | st.just((3, 9))),
        disabled_flags=draw(st.none() | st.just(())),
    )
    for number in range(draw(st.integers(0, 5))):
        kind = draw(updates(listed))
        document = document.updated(kind, microseconds(NOW), f"{BACKUP}{number}", 4)
    return document


def contents(document: RepoDocument) -> dict[str, Any]:
    listed = document.snapshots
    fields: dict[str, Any] = {
        name: getattr(document, name)
        for name in RepoDocument.__struct_fields__
        if name not in {"snapshots", "updates", "metadata"}
    }
    fields["metadata"] = None if document.metadata is None else document.metadata.decode("it")
    fields["updates"] = [document.updates.update(row) for row in range(len(document.updates))]
    fields["snapshots"] = [
        (listed.stub(row), listed.parent_id(row), listed.pruned_ids(row))
        for row in range(len(listed))
    ]
    names, values = listed.metadata.names, listed.metadata.values.pieces()
    fields["items"] = [
        [(names[n], values[n]) for n in listed.items.at(row).tolist()] for row in range(len(listed))
    ]
    return fields


@given(documents())
def test_what_is_written_is_read(document: RepoDocument) -> None:
    data = document.encode(3)
    assert contents(RepoDocument.parse(data)) == contents(document)


@given(documents(), st.randoms(use_true_random=False))
def test_damaged_bytes_are_a_format_error_or_another_document(
    document: RepoDocument, rng: random.Random
) -> None:
    data = document.encode(3)
    body = bytearray(open_file(data, FlatFileType.REPO, "repo").body)
    for _ in range(rng.randint(1, 3)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    damaged = make_file(
        2, FlatFileType.REPO, bytes(body[: rng.choice([len(body), len(body) // 2])]), 1
    )
    header = bytearray(data)
    header[rng.randrange(HEADER_SIZE)] ^= 1 << rng.randrange(8)
    for each in (damaged.data, bytes(header), data[: rng.randrange(len(data))]):
        counting.count("mutations of files")
        try:
            found = RepoDocument.parse(each)
            contents(found)
        except FormatError:
            continue


def chain(length: int) -> RepoDocument:
    listed = [
        SnapshotId(bytes([n % 251, n % 241, *bytes(8), n % 239, n % 7])) for n in range(length)
    ]
    parents = [None, *listed[:-1]]
    snapshots = [
        snapshot(each, up, n) for n, (each, up) in enumerate(zip(listed, parents, strict=True))
    ]
    return RepoDocument.first(
        ListedSnapshots.of(snapshots),
        UpdateColumns.of(UpdateType.RepoInitialized(), microseconds(NOW)),
        branches={"main": listed[-1]},
    )


def test_a_new_snapshot_finds_its_place_and_its_parent() -> None:
    document = chain(50)
    tip = document.branches["main"]
    new = snapshot(SnapshotId(bytes(11) + b"\1"), tip, 100, "the newest", {"n": 1})
    listed = document.snapshots.with_snapshot(new)
    row = listed.find(new.id)
    assert row is not None
    assert listed.stub(row) == new.stub()
    assert [listed.id_at(each) for each in listed.lineage(row)][:2] == [new.id, tip]
    assert len(list(listed.lineage(row))) == 51
    assert (listed.ids[1:] > listed.ids[:-1]).all()


def test_updates_go_on_in_backups_when_there_are_many() -> None:
    document = chain(2)
    for number in range(10):
        document = document.updated(UpdateType.GCRan(), 0, f"backup-{number}", 3)
    times = [document.updates.update(row).updated_at for row in range(len(document.updates))]
    assert times == sorted(set(times), reverse=True)  # strictly, though the clock stood still
    assert [document.updates.backup(row) for row in range(3)] == [None, "backup-9", "backup-8"]
    assert document.before_updates == "backup-7"


def test_updates_that_no_backup_has_are_never_cut() -> None:
    document = chain(2)
    columns = document.updates
    for _ in range(5):  # as a migration leaves them
        columns = columns.with_update(UpdateType.GCRan(), columns.newest_at() + 1, "")
    document = msgspec.structs.replace(document, updates=columns)
    document = document.updated(UpdateType.GCRan(), 0, "first", 3)
    assert len(document.updates) == 7
    assert document.before_updates is None


def test_an_update_of_a_newer_release_is_shown_and_not_written_again() -> None:
    document = chain(2)
    strange = msgspec.structs.replace(document.updates, kinds=np.array([99], dtype=np.uint8))
    assert strange.update(0) == Update(UpdateType.UnknownUpdate(99), NOW)
    changed = msgspec.structs.replace(document, updates=strange)
    with pytest.raises(Exception, match="newer icefloe"):
        changed.encode(3)


def test_a_parent_that_leads_in_a_circle_ends() -> None:
    document = chain(3)
    listed = msgspec.structs.replace(
        document.snapshots, parents=np.roll(np.arange(3, dtype=np.int64), 1)
    )
    assert len(list(listed.lineage(0))) == 3
    assert listed.depth(0) == 2


def test_a_snapshot_has_as_many_ancestors_as_its_lineage() -> None:
    listed = chain(100).snapshots
    for row in range(len(listed)):
        assert listed.depth(row) == len(list(listed.lineage(row))) - 1
    assert listed.newest() == listed.id_at(max(range(len(listed)), key=listed.depth))


def test_the_last_move_of_a_branch_is_found_however_long_ago_it_was() -> None:
    updates = UpdateColumns.of(UpdateType.BranchCreated("old"), 1)
    for at in range(2, 300):
        updates = updates.with_update(
            UpdateType.BranchReset("main", str(SnapshotId(bytes(12)))), at, f"{at}"
        )
    assert updates.last_move("main") == 299
    assert updates.last_move("old") == 1
    assert updates.last_move("absent") is None


def test_a_thread_that_parses_an_older_file_does_not_change_what_another_one_gets() -> None:
    # Its change would be made to the older document, and replace the newer file.
    old, new = chain(2).encode(1), chain(3).encode(1)
    file = RepoFile(MemoryStorage())
    file._parse(new)
    switches: list[int] = []

    class Compared(bytes):
        __slots__ = ()

        def __ne__(self, other: object) -> bool:
            switches.append(len(file._parse(old).snapshots.ids))
            return bytes(self) != other

    assert len(file._parse(Compared(new)).snapshots.ids) == 3
    assert switches == [2]
    assert len(file._parse(new).snapshots.ids) == 3
