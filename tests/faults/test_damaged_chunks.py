"""Flipped bits, cut-off files, and files under the wrong name: each is reported with its place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

import icefloe
from icefloe.config import ChunkPackingConfig
from icefloe.errors import DamagedChunkError, FormatError
from icefloe.model.byte_range import ByteRange
from icefloe.model.chunk_refs import NativeRef
from icefloe.model.segments import Segments
from icefloe.objects import checksums
from tests.documents import array, group

if TYPE_CHECKING:
    from icefloe.session import Session
    from icefloe.storage.port import Storage

PLACES = np.arange(6)[:, None]
SIZES = [700, 700, 900, 3000, 3000, 10]
"""A pack of three, two files, and an inline chunk."""


def data_of(place: int) -> bytes:
    return bytes([place + 1]) * SIZES[place]


def written(spec_version: int = 2) -> Storage:
    storage = icefloe.in_memory_storage()
    packing = ChunkPackingConfig(max_chunk_bytes=2000)
    config = icefloe.RepositoryConfig(chunk_packing=packing)
    repo = icefloe.Repository.create(storage, config, spec_version=spec_version)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((6,)))
    for place in (0, 3):
        session.tree.set_chunk("/a", (place,), data_of(place))
    rest = [1, 2, 4, 5]
    session.write_chunks("/a", PLACES[rest], Segments.of([data_of(place) for place in rest]))
    session.commit("chunks")
    return storage


@pytest.fixture(params=[2, 1])
def storage(request: pytest.FixtureRequest) -> Storage:
    return written(request.param)


def reader_of(storage: Storage, *, verify: bool = True) -> Session:
    config = icefloe.RepositoryConfig(verify_chunks=verify)
    return icefloe.Repository.open(storage, config).readonly_session("main")


def key_of(session: Session, place: int) -> str:
    ref = session.tree.locate("/a", (place,))
    assert isinstance(ref, NativeRef)
    return session.tree.context.format.layout.chunk_file(ref.file)


def read_all(session: Session) -> dict[int, bytes]:
    return {
        row: bytes(part.segments.piece(at))
        for part in session.read_chunks("/a", PLACES)
        for at, row in enumerate(part.rows.tolist())
    }


def errors_of(session: Session, place: int) -> list[DamagedChunkError]:
    """The errors of all ways to read a chunk."""
    ways = (
        lambda: session.get_chunk("/a", (place,)),
        lambda: session.get_chunk("/a", (place,), ByteRange(5, 3)),
        lambda: asyncio.run(session.tree.get_chunk_async("/a", (place,))),
        lambda: list(session.read_chunks("/a", PLACES[[place]])),
        lambda: read_all(session),
    )
    caught = []
    for way in ways:
        with pytest.raises(DamagedChunkError) as info:
            way()
        caught.append(info.value)
    return caught


def assert_named(error: DamagedChunkError, session: Session, place: int, key: str) -> None:
    assert (error.array, error.chunk, error.snapshot) == ("/a", (place,), session.snapshot_id)
    assert error.key == key
    assert isinstance(error, FormatError)
    for part in ("/a", f"[{place}]", session.snapshot_id, key):
        assert part in str(error)


def test_every_native_chunk_has_a_checksum(storage: Storage) -> None:  # ARCHITECTURE, rule 10
    session = reader_of(storage)
    for place in range(5):
        ref = session.tree.locate("/a", (place,))
        assert isinstance(ref, NativeRef)
        assert ref.checksum == checksums.checksum(data_of(place)) != 0
    assert read_all(session) == {place: data_of(place) for place in range(6)}


@pytest.mark.parametrize("place", range(5))
def test_a_flipped_bit_is_found(storage: Storage, place: int) -> None:
    session = reader_of(storage)
    ref = session.tree.locate("/a", (place,))
    assert isinstance(ref, NativeRef)
    key = key_of(session, place)
    whole = bytearray(storage.get(key))
    for position in (0, 4, SIZES[place] - 1):
        whole[ref.offset + position] ^= 1 << (position % 8)
        storage.put(key, bytes(whole))
        for error in errors_of(session, place):
            assert_named(error, session, place, key)
            assert "checksum" in str(error)
        whole[ref.offset + position] ^= 1 << (position % 8)
    others = [n for n in range(6) if n != place]
    whole[ref.offset] ^= 1
    storage.put(key, bytes(whole))
    assert [session.get_chunk("/a", (n,)) for n in others] == [data_of(n) for n in others]


def test_checksums_are_compared_only_if_asked(storage: Storage) -> None:
    session = reader_of(storage, verify=False)
    key = key_of(session, 1)
    whole = bytearray(storage.get(key))
    whole[700] ^= 1
    storage.put(key, bytes(whole))
    changed = bytes([data_of(1)[0] ^ 1]) + data_of(1)[1:]
    assert session.get_chunk("/a", (1,)) == changed
    assert read_all(session)[1] == changed
    with pytest.raises(DamagedChunkError):
        session.get_chunk("/a", (1,), verify=True)
    with pytest.raises(DamagedChunkError):
        list(session.read_chunks("/a", PLACES, verify=True))
    session.verify_chunks = True
    with pytest.raises(DamagedChunkError):
        session.get_chunk("/a", (1,))
    assert session.get_chunk("/a", (1,), verify=False) == changed


@pytest.mark.parametrize("place", [2, 3])
@pytest.mark.parametrize("verify", [True, False])
def test_a_cut_off_file_is_found_in_any_case(storage: Storage, place: int, verify: bool) -> None:
    session = reader_of(storage, verify=verify)
    key = key_of(session, place)
    whole = storage.get(key)
    for length in (len(whole) - 1, len(whole) - SIZES[place] + 2, 0):
        storage.put(key, whole[:length])
        if verify:
            found = errors_of(session, place)
        else:
            with pytest.raises(DamagedChunkError) as caught:
                session.get_chunk("/a", (place,))
            found = [caught.value]
            with pytest.raises(DamagedChunkError) as caught:
                read_all(session)
            found.append(caught.value)
        for error in found:
            assert_named(error, session, place, key)
            assert "too short" in str(error)


@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_file_is_found_in_any_case(storage: Storage, verify: bool) -> None:
    session = reader_of(storage, verify=verify)
    key = key_of(session, 4)
    storage.delete_many([key])
    for error in errors_of(session, 4):
        assert_named(error, session, 4, key)
        assert "missing" in str(error)


def test_swapped_files_are_found(storage: Storage) -> None:
    session = reader_of(storage)
    one, other = key_of(session, 3), key_of(session, 4)
    first, second = storage.get(one), storage.get(other)
    storage.put(one, second)
    storage.put(other, first)
    for place, key in ((3, one), (4, other)):
        with pytest.raises(DamagedChunkError) as caught:
            session.get_chunk("/a", (place,))
        assert_named(caught.value, session, place, key)
    with pytest.raises(DamagedChunkError):
        read_all(session)


def test_a_zarr_store_verifies_too(storage: Storage) -> None:
    import zarr

    session = reader_of(storage)
    key = key_of(session, 3)
    storage.put(key, b"?" * SIZES[3])
    # The array has chunks of one element, of whatever size: the store does not decode them.
    with pytest.raises(DamagedChunkError, match=r"chunk \[3\] of /a"):
        zarr.core.sync.sync(session.store.get("a/c/3", zarr.core.buffer.default_buffer_prototype()))


def test_chunks_without_a_checksum_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "IS_QUICK", False)
    storage = written()
    session = reader_of(storage)
    refs = [session.tree.locate("/a", (place,)) for place in range(5)]
    assert [ref.checksum for ref in refs if isinstance(ref, NativeRef)] == [0] * 5
    assert read_all(session) == {place: data_of(place) for place in range(6)}


def read_history(storage: Storage) -> list[bytes | None]:
    """A chunk in all versions that have it."""
    found = []
    for info in icefloe.Repository.open(storage).ancestry(branch="main"):
        session = icefloe.Repository.open(storage).readonly_session(snapshot_id=info.id)
        if session.get_node("/a") is not None:
            found.append(session.get_chunk("/a", (0,)))
    return found


def test_swapped_metadata_files_are_found() -> None:
    """Two files of a kind, both sound, and each under the name of the other."""
    storage = written()
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (0,), bytes([99]) * SIZES[0])
    session.commit("another manifest of the same shape")
    assert read_history(storage) == [bytes([99]) * SIZES[0], data_of(0)]
    for folder in ("snapshots/", "manifests/"):
        one, other = [info.key for info in storage.list(folder)][:2]
        first, second = storage.get(one), storage.get(other)
        storage.put(one, second)
        storage.put(other, first)
        with pytest.raises(FormatError) as caught:
            read_history(storage)
        assert caught.value.key in (one, other)
        storage.put(one, first)
        storage.put(other, second)
