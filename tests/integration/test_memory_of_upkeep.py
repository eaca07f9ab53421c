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
from icefloe.testing.clock import ClockedStorage
from icefloe.upkeep import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.repository import Repository

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


def peak_bytes(storage: ClockedStorage, work: Callable[[Repository], object]) -> int:
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
