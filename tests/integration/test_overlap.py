"""Far storages: chunks are compressed while others are uploaded, and read several at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import ChunkPackingConfig, Repository, RepositoryConfig
from icefloe.testing.requests import FarStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

_Result = TypeVar("_Result")
CHUNK = 4096
VALUES = np.random.default_rng(20261118).integers(0, 2**32, size=64 * CHUNK, dtype=np.uint32)
MOST_UPLOADS = 16
"""The limit of `Uploads`."""


class MeetingStorage(FarStorage):
    """Answers no request for a chunk file before two of them are under way."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.met = threading.Event()
        self.most_at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()

    def _run(self, verb: str, key: str, act: Callable[[], _Result]) -> _Result:
        if not key.startswith("chunks/"):
            return super()._run(verb, key, act)
        with self._lock:
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        if self._under_way > 1:
            self.met.set()
        self.met.wait(20)  # the test has failed if it takes that long
        try:
            return super()._run(verb, key, act)
        finally:
            with self._lock:
                self._under_way -= 1


@pytest.mark.parametrize("packed", [True, False], ids=["packs", "a file for each chunk"])
def test_uploads_overlap_compression_and_each_other_and_reads_overlap(packed: bool) -> None:
    packing = ChunkPackingConfig(pack_bytes=8 * CHUNK * 4, max_chunk_bytes=None if packed else 0)
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, chunk_packing=packing)
    memory = icefloe.in_memory_storage()
    storage = MeetingStorage(memory)
    session = Repository.create(storage, config).writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=VALUES.shape, chunks=(CHUNK,), dtype="u4"
    )
    array[:] = VALUES
    # The second pack was compressed before the first one was stored.
    assert storage.met.is_set()
    assert storage.most_at_once <= MOST_UPLOADS
    session.commit("values")
    files = len(list(memory.list("chunks/")))
    assert 5 <= files <= 12 if packed else files == 64
    far = MeetingStorage(memory)
    store = Repository.open(far).readonly_session("main").store
    assert np.array_equal(zarr.open_array(store, path="a", mode="r")[:], VALUES)
    assert far.met.is_set()
