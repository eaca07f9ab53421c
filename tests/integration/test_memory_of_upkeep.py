"""Verification and garbage collection read everything, and hold little of it at a time."""

from __future__ import annotations

import gc
import tracemalloc
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.engine.retention import candidate_files, stored_objects
from icefloe.model.ids import ChunkFileId, ManifestId
from icefloe.testing.clock import ClockedStorage
from icefloe.testing.requests import FarStorage
from icefloe.upkeep import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.repository import Repository
    from icefloe.storage.port import Storage

CHUNKS, COMMITS = 500, 40
"""Each commit replaces all chunks: 20,000 references to 20,000 chunks are reached."""
BOUND = 2 << 20
"""Bytes: half of what the keys of all chunks and their sorted copies take."""


@pytest.fixture(scope="module")
def storage() -> ClockedStorage:
    storage = ClockedStorage(icefloe.in_memory_storage())
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(CHUNKS,), chunks=(1,), dtype="i8", compressors=None
    )
    for commit in range(COMMITS):
        session.write_region("a", ..., np.arange(CHUNKS) + commit * CHUNKS + 1)
        session.commit(str(commit))
        session = repo.writable_session("main")
    storage.wait(timedelta(days=1))
    return storage


def peak_bytes(storage: Storage, work: Callable[[Repository], object]) -> int:
    """The most that some work holds, without what it loads when it runs first."""
    work(icefloe.Repository.create(icefloe.in_memory_storage()))
    repo = icefloe.Repository.open(storage)
    gc.collect()
    tracemalloc.start()
    try:
        work(repo)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("deep", [False, True])
def test_verification_holds_a_bounded_number_of_chunks(
    storage: ClockedStorage, monkeypatch: pytest.MonkeyPatch, *, deep: bool
) -> None:
    monkeypatch.setattr(checks, "_MOST_SEEN", 2 * CHUNKS)
    reports = []
    peak = peak_bytes(storage, lambda repo: reports.append(repo.verify(deep=deep)))
    assert reports[-1].is_clean
    assert not deep or reports[-1].checked["bytes of chunks"] == 8 * CHUNKS * COMMITS
    assert peak < BOUND


def test_collection_holds_a_bounded_number_of_references(storage: ClockedStorage) -> None:
    summaries = []

    def collect(repo: Repository) -> None:
        summaries.append(repo.garbage_collect(timedelta(hours=1), dry_run=True))

    assert peak_bytes(storage, collect) < BOUND
    assert summaries[-1].chunks_deleted == 0


# --- growth by the number of objects

FEW, MANY = 1_000, 5_000
"""Of each kind of object that nothing reaches."""
BYTES_PER_OBJECT = 160
"""A column of ids, sizes and times, some copies of parts of it, and the names in memory's listing;
with an object of Python for each it is more than 200."""


def with_garbage(count: int, *, far: bool) -> Storage:
    """A repository with chunk files and manifests that nothing reaches."""
    clocked = ClockedStorage(icefloe.in_memory_storage())
    storage = FarStorage(clocked) if far else clocked
    layout = icefloe.Repository.create(storage)._context.format.layout
    for _ in range(count):
        storage.put(layout.chunk_file(ChunkFileId.random()), b"x")
        storage.put(layout.manifest(ManifestId.random()), b"x")
    clocked.wait(timedelta(days=1))
    return storage


def verify(repo: Repository) -> None:
    report = repo.verify()
    assert report.is_clean


def collect(repo: Repository) -> None:
    repo.garbage_collect(timedelta(hours=1), max_concurrent_requests=2)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("work", [verify, collect])
def test_memory_grows_by_little_for_each_object(
    work: Callable[[Repository], None], monkeypatch: pytest.MonkeyPatch, *, far: bool
) -> None:
    # Parts of a listing and of what is deleted are Python objects, as many as these say.
    monkeypatch.setattr(stored_objects, "_ROWS_AT_ONCE", 100)
    monkeypatch.setattr(candidate_files, "BATCH", 100)
    few, many = (peak_bytes(with_garbage(count, far=far), work) for count in (FEW, MANY))
    assert many - few < BYTES_PER_OBJECT * 2 * (MANY - FEW)
