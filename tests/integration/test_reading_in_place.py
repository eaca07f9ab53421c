"""Uncompressed large chunks of local files are read right into the result."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.arrays import large_chunks, transfer
from icefloe.errors import DamagedChunkError
from icefloe.storage.local import LocalStorage
from tests.property.region_arrays import assert_same, selections

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHAPE, CHUNKS = (7, 6), (2, 3)
VALUES = np.arange(42, dtype="<i4").reshape(SHAPE) + 1


class Noting(LocalStorage):
    """Notes what is read to where the caller wants it."""

    filled: list[list[int]]

    def get_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        self.filled.append([len(buffer) for buffer in buffers])
        super().get_into(key, start, buffers)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_chunks, "LARGE_PLAIN_BYTES", 1)


@pytest.fixture
def storage(tmp_path: Path) -> Noting:
    storage = Noting(tmp_path / "repository", durability="none")
    storage.filled = []
    return storage


def configured(**more: Any) -> icefloe.RepositoryConfig:
    return icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0, **more)


def write(storage: LocalStorage, values: Any = VALUES, **more: Any) -> icefloe.Repository:
    repository = icefloe.Repository.create(storage, configured())
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=values.shape,
        chunks=CHUNKS,
        dtype=values.dtype,
        compressors=None,
        **more,
    )
    array[...] = values
    session.commit("values")
    return repository


def test_whole_chunks_are_read_there_and_neighbours_at_once(storage: Noting) -> None:
    # Rows of chunks of the whole width are contiguous in the result.
    values = np.arange(42, dtype="<i4").reshape(14, 3)
    session = write(storage, values).readonly_session("main")
    assert_same(session.read_region("a"), values)
    assert storage.filled == [[24] * 7]


def test_many_are_located_together_and_every_thread_has_a_share(
    storage: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(48, dtype="<i4").reshape(8, 6)
    write(storage, values)
    slabs: list[int] = []
    read = large_chunks.LargeChunks.read

    def counted(self: large_chunks.LargeChunks, slab: Any) -> Any:
        slabs.append(int(np.prod(slab.grid)))
        return read(self, slab)

    monkeypatch.setattr(large_chunks.LargeChunks, "read", counted)
    monkeypatch.setattr(transfer, "_SLAB_BYTES", 24)  # one chunk
    for threads, expected in ((1, [8]), (2, [4, 4])):
        slabs.clear()
        repository = icefloe.Repository.open(storage, config=configured(codec_threads=threads))
        found = repository.readonly_session("main").read_region("a")
        assert_same(found, values)
        assert slabs == expected


def test_what_does_not_fit_is_read_by_itself(storage: Noting) -> None:
    session = write(storage, VALUES[:, :3]).readonly_session("main")
    assert_same(session.read_region("a", slice(1, 6)), VALUES[1:6, :3])
    assert {size for sizes in storage.filled for size in sizes} <= {24}
    storage.filled = []
    out = np.zeros((7, 3), dtype=np.int64)
    assert_same(session.read_region("a", ..., out), VALUES[:, :3].astype(np.int64))
    assert storage.filled == []


def test_missing_chunks_are_filled_and_uncommitted_ones_found(storage: Noting) -> None:
    values = np.arange(36, dtype="<i4").reshape(12, 3) + 1
    values[4:6] = 0
    session = write(storage, values).writable_session("main")
    session.write_region("a", slice(8, 10), -1)
    values[8:10] = -1
    assert_same(session.read_region("a"), values)


def test_reading_twice_from_one_place(storage: Noting) -> None:
    """References of two chunks to the same bytes cannot be filled by one call."""
    values = np.arange(12, dtype="<i4").reshape(4, 3)
    repository = write(storage, values)
    session = repository.writable_session("main")
    table = session.tree.chunk_table("/a")
    assert table is not None
    refs = table.refs.take(np.array([0, 0]))
    session.tree.set_chunk_refs("/a", type(table).from_sorted(table.index.coords(), refs))
    assert_same(session.read_region("a"), np.concatenate([values[:2], values[:2]]))


def test_a_flipped_bit_is_found_in_the_result(storage: Noting) -> None:  # invariant 10
    values = np.arange(42, dtype="<i4").reshape(14, 3)
    write(storage, values)
    (file,) = (storage.root / "chunks").iterdir()
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    lax = icefloe.Repository.open(storage).readonly_session("main")
    assert lax.read_region("a")[5, 0] != values[5, 0]
    strict = icefloe.Repository.open(storage, configured(verify_chunks=True))
    with pytest.raises(DamagedChunkError, match=r"chunk \[2, 0\] of /a"):
        strict.readonly_session("main").read_region("a")
    assert storage.filled == [[24] * 7] * 2


def test_a_file_that_was_cut_is_an_error(storage: Noting) -> None:
    write(storage, VALUES[:, :3])
    (file,) = (storage.root / "chunks").iterdir()
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(DamagedChunkError, match=r"chunk .* of /a in snapshot .* is damaged"):
        icefloe.Repository.open(storage).readonly_session("main").read_region("a")


def test_a_file_that_is_gone_is_an_error(storage: Noting) -> None:
    write(storage, VALUES[:6, :3])
    (file,) = (storage.root / "chunks").iterdir()
    file.unlink()
    with pytest.raises(DamagedChunkError, match="of /a in snapshot"):
        icefloe.Repository.open(storage).readonly_session("main").read_region("a")


def test_with_a_chunk_cache(storage: Noting) -> None:
    values = np.arange(42, dtype="<i4").reshape(14, 3)
    write(storage, values)
    caching = icefloe.CachingConfig(num_bytes_chunks=1 << 20)
    session = icefloe.Repository.open(storage, configured(caching=caching)).readonly_session("main")
    for _ in range(2):
        first = session.read_region("a")
        assert_same(first, values)
        first[...] = 0  # what is cached must not be the caller's array
    assert storage.filled == [[24] * 7]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arrays of all kinds that are stored uncompressed, by name; all have the same values."""
    root = tmp_path_factory.mktemp("in-place")
    kinds: dict[str, Any] = {
        "plain": {},
        "shards": {"shards": (4, 6)},
        "transposed": {"filters": zarr.codecs.TransposeCodec(order=(1, 0))},
        "big": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    }
    return {
        name: write(LocalStorage(root / name, durability="none"), **more).readonly_session("main")
        for name, more in kinds.items()
    }


@given(selection=selections(SHAPE), order=st.sampled_from("CF"))
@pytest.mark.parametrize("kind", ["plain", "shards", "transposed", "big"])
def test_any_selection_is_what_numpy_says(
    arrays: dict[str, Any], kind: str, selection: Any, order: Any
) -> None:
    expected = VALUES[selection]
    out = np.zeros(expected.shape, VALUES.dtype, order=order)
    assert_same(arrays[kind].read_region("a", selection, out), expected)
