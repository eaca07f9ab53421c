"""Large writes where each request takes long: some slabs are on their way, others are encoded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

import icefloe
from icefloe import Repository
from icefloe.arrays import batch_codecs, chunk_arrays, transfer
from icefloe.testing.requests import FarStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from icefloe.storage.port import BytesLike, Storage

SIDE = 1 << 19
"""A chunk has 2 MiB: a file of its own."""


class ThreeAtATime(FarStorage):
    """Answers writes of chunks once three of them are in progress, and not before."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._barrier = threading.Barrier(3)

    def put(self, key: str, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        if key.startswith("chunks/"):
            self._barrier.wait(60)
        self.inner.put(key, data, attributes)


def test_slabs_are_uploaded_while_one_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_REMOTE_SLAB_BYTES", 1)
    monkeypatch.setattr(transfer, "_WRITTEN_SLAB_BYTES", 1)
    encode_all, encoding, most = batch_codecs.encode_all, [0], [0]
    lock = threading.Lock()

    def watched(*args: Any) -> Any:
        with lock:
            encoding[0] += 1
            most[0] = max(most[0], encoding[0])
        try:
            return encode_all(*args)
        finally:
            with lock:
                encoding[0] -= 1

    monkeypatch.setattr(chunk_arrays, "encode_all", watched)
    config = icefloe.RepositoryConfig(codec_threads=1)
    repo = Repository.create(ThreeAtATime(icefloe.in_memory_storage()), config)
    values = np.random.default_rng(3).integers(0, 2**32, 6 * SIDE, dtype=np.uint32)
    with repo.transaction("main", message="values") as store:
        array = zarr.create_array(
            store, name="a", shape=values.shape, chunks=(SIDE,), dtype="uint32"
        )
        array[:] = values
    read = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:]
    np.testing.assert_array_equal(read, values)
    assert most == [1]
