"""Chunk files that another implementation named by 16 bytes, beside ours of 12 (R3-71)."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import numpy as np
import pytest

import icefloe
from icefloe import (
    ConflictDetector,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RebaseFailedError,
    Repository,
    SessionStateError,
)
from icefloe.engine.retention.announcements import announce
from icefloe.engine.retention.leases import Lease
from icefloe.engine.retention.uncommitted import check_own_files
from icefloe.storage.clock import storage_now
from icefloe.testing.clock import ClockedStorage
from tests.documents import array, chunks_of, group, set_chunks
from tests.formats import wide_ids
from tests.integration.maintained import NATIVE


@pytest.fixture(params=["store", "dataset"])
def repository(request: pytest.FixtureRequest) -> Repository:
    """An array with chunks 0 to 3 in files that another implementation wrote."""
    storage = ClockedStorage(icefloe.in_memory_storage())
    repository = Repository.create(storage, NATIVE, generation=request.param)
    with wide_ids():
        session = repository.writable_session("main")
        session.tree.set_document("/", group())
        session.tree.set_document("/a", array())
        set_chunks(session, "/a", range(4))
        session.commit("theirs")
    repository.create_branch("work", repository.lookup_branch("main"))
    return repository


def put(repository: Repository, branch: str, *places: int, value: int) -> str:
    session = repository.writable_session(branch)
    set_chunks(session, "/a", places, bytes([value]))
    snapshot_id = session.commit(f"{places} = {value}")
    repository._context.files.forget()  # as another process reads it
    return snapshot_id


def chunks(repository: Repository, branch: str = "main") -> dict[int, int]:
    found = chunks_of(repository.readonly_session(branch), "/a")
    return {place: data[0] for place, data in found.items()}


# A manifest has ids of 12 bytes only if all chunks in it are ours, so some tests overwrite all.


@pytest.mark.parametrize("places", [[1, 5], [0, 1, 2, 3]], ids=["some", "all"])
def test_a_diff_in_both_directions(repository: Repository, places: list[int]) -> None:
    before = repository.lookup_branch("main")
    after = put(repository, "main", *places, value=2)
    for one, other in ((before, after), (after, before)):
        diff = repository.diff(from_snapshot_id=one, to_snapshot_id=other)
        assert diff.updated_chunks == {"/a": [[place] for place in places]}


@pytest.mark.parametrize("places", [[1], [0, 1, 2, 3]], ids=["some", "all"])
def test_a_rebase_over_chunks_with_ids_of_another_width(
    repository: Repository, places: list[int]
) -> None:
    session, loser = repository.writable_session("main"), repository.writable_session("main")
    set_chunks(session, "/a", [4], b"\x03")
    set_chunks(loser, "/a", [1], b"\x04")
    put(repository, "main", *places, value=2)
    session.rebase(ConflictDetector())
    session.commit("ours")
    assert chunks(repository) == {**dict.fromkeys(range(4), 1), **dict.fromkeys(places, 2), 4: 3}
    with pytest.raises(RebaseFailedError, match="ChunkDoubleUpdate"):
        loser.rebase(ConflictDetector())


@pytest.mark.parametrize("places", [[1, 5], [0, 1, 2, 3, 5]], ids=["some", "all"])
def test_a_revert_brings_back_files_with_the_other_width(
    repository: Repository, places: list[int]
) -> None:
    undone = put(repository, "main", *places, value=2)
    put(repository, "main", 6, value=3)
    repository.revert(undone, branch="main")
    assert chunks(repository) == {0: 1, 1: 1, 2: 1, 3: 1, 6: 3}
    assert repository.verify(deep=True).is_clean


@pytest.mark.parametrize("places", [[1, 5], [0, 1, 2, 3, 5]], ids=["some", "all"])
def test_a_merge_of_both_widths(repository: Repository, places: list[int]) -> None:
    put(repository, "work", *places, value=2)
    with wide_ids():
        put(repository, "main", 6, value=3)
    repository.merge("work", "main")
    merged = {**dict.fromkeys(range(4), 1), **dict.fromkeys(places, 2), 6: 3}
    assert chunks(repository) == merged
    put(repository, "work", 1, value=4)
    with wide_ids():
        put(repository, "main", *places, value=5)
    with pytest.raises(RebaseFailedError, match="ChunkDoubleUpdate"):
        repository.merge("work", "main")
    assert repository.verify(deep=True).is_clean


@pytest.mark.parametrize("places", [[1], [0, 1, 2, 3]], ids=["some", "all"])
def test_blame_and_picks(repository: Repository, places: list[int]) -> None:
    theirs = repository.lookup_branch("main")
    ours = put(repository, "work", *places, value=2)
    found = repository.blame("/a", branch="work")
    writers = [ours if place in places else theirs for place in range(4)]
    assert [found.snapshot_id(place) for place in range(4)] == writers
    repository.cherry_pick(ours, branch="main")
    repository.merge("work", "main")
    assert chunks(repository) == {**dict.fromkeys(range(4), 1), **dict.fromkeys(places, 2)}


def test_uncommitted_chunks_are_read_with_committed_ones(repository: Repository) -> None:
    session = repository.writable_session("main")
    set_chunks(session, "/a", [1, 5], b"\x02")
    region = session.read_region("/a", (slice(0, 6),))
    assert np.asarray(region).tolist() == [1, 2, 1, 1, 0, 2]
    session.write_region("/a", (slice(2, 4),), np.array([8, 9], dtype="u1"))
    assert np.asarray(session.read_region("/a", (slice(0, 6),))).tolist() == [1, 2, 8, 9, 0, 2]
    session.commit("ours")
    assert chunks(repository) == {0: 1, 1: 2, 2: 8, 3: 9, 5: 2}


def test_a_wide_writer_writes_many_chunks_at_once(repository: Repository) -> None:
    with wide_ids():
        session = repository.writable_session("main")
        session.write_region("/a", (slice(0, 10),), np.arange(1, 11, dtype="u1"))
        session.commit("theirs, many")
    assert chunks(repository) == {place: place + 1 for place in range(10)}
    assert repository.verify(deep=True).is_clean


def test_a_session_finds_the_files_of_its_base_again(request: pytest.FixtureRequest) -> None:
    """Ids of 12 bytes are filled up with zeros where they stand beside wider ones."""
    storage = ClockedStorage(icefloe.in_memory_storage())
    splitting = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 2}}
    )
    config = msgspec.structs.replace(NATIVE, manifest=ManifestConfig(splitting=splitting))
    repository = Repository.create(storage, config, generation="store")
    session = repository.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array())
    session.commit("start")
    with wide_ids():
        put(repository, "main", 0, 1, value=1)
    put(repository, "main", 2, 3, value=2)
    session = repository.writable_session("main")
    session.shift_array("/a", [1])
    lease = Lease(storage)
    lease.take()
    request.addfinalizer(lease.release)
    announce(storage, lease.id, [], storage_now(storage) + timedelta(days=1))
    check_own_files(repository._context, session.tree.changes)
    session.tree.set_chunk("/a", (9,), b"\x09")
    with pytest.raises(SessionStateError, match="1 chunk files that this session wrote"):
        check_own_files(repository._context, session.tree.changes)
