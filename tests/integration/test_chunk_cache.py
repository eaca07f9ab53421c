"""Chunks and transaction logs that are kept in memory: fewer requests, and never other bytes."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import CachingConfig, Repository, RepositoryConfig
from icefloe.errors import DamagedChunkError, IcefloeError
from icefloe.formats.port import ObjectKind
from icefloe.formats.registry import format_for
from icefloe.objects.cache import ByteCache
from icefloe.objects.shared_caches import forget_shared
from icefloe.testing.faults import FaultyStorage
from tests.formats import folder, how, keeps_logs
from tests.integration.maintained import HOUR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe.session import Session
    from icefloe.storage.port import Storage

pytestmark = pytest.mark.usefixtures("each_generation")

SIZE = 600
"""Bytes of a chunk: too many to be inline."""
COUNT = 8
VALUES = np.arange(SIZE * COUNT, dtype="u4").astype("u1")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    forget_shared()
    yield
    forget_shared()


def config(chunk_bytes: int | None, changes: int | None = None) -> RepositoryConfig:
    return RepositoryConfig(
        caching=CachingConfig(num_bytes_chunks=chunk_bytes, num_transaction_changes=changes),
        chunk_packing=icefloe.ChunkPackingConfig(max_chunk_bytes=0),
    )


def written(storage: Storage) -> None:
    repo = Repository.create(storage, config(None), **how())
    with repo.transaction("main", message="chunks") as store:
        zarr.create_array(
            store, name="a", shape=VALUES.shape, chunks=(SIZE,), dtype="u1", compressors=None
        )[:] = VALUES


def through_zarr(session: Session) -> np.ndarray:
    return np.asarray(zarr.open_array(session.store, path="a", mode="r"))


def region(session: Session) -> np.ndarray:
    return session.read_region("/a")


def bulk(session: Session) -> np.ndarray:
    pieces: dict[int, bytes] = {}
    for found in session.read_chunks("/a", np.arange(COUNT, dtype="u8").reshape(-1, 1)):
        for at, row in enumerate(found.rows.tolist()):
            pieces[row] = bytes(found.segments.piece(at))
    return np.frombuffer(b"".join(pieces[row] for row in sorted(pieces)), "u1")


def single(session: Session) -> np.ndarray:
    chunks = [session.get_chunk("/a", (row,)) for row in range(COUNT)]
    return np.frombuffer(b"".join(chunk or b"" for chunk in chunks), "u1")


def by_key(session: Session) -> np.ndarray:
    chunks = [session.store.get_sync(f"a/c/{row}") for row in range(COUNT)]
    return np.frombuffer(b"".join(chunk.to_bytes() for chunk in chunks), "u1")


WAYS = [through_zarr, region, bulk, single, by_key]


def chunk_requests(storage: FaultyStorage) -> int:
    start = folder("chunks")
    return sum(verb.startswith("get") and key.startswith(start) for verb, key in storage.trace)


@pytest.mark.parametrize("again", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("first", WAYS, ids=lambda way: way.__name__)
def test_what_was_read_is_not_read_again(
    first: Callable[[Session], np.ndarray], again: Callable[[Session], np.ndarray]
) -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    written(storage)
    session = Repository.open(storage, config(1 << 20)).readonly_session("main")
    np.testing.assert_array_equal(first(session), VALUES)
    assert chunk_requests(storage) > 0
    storage.trace.clear()
    np.testing.assert_array_equal(again(session), VALUES)
    assert chunk_requests(storage) == 0


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("chunk_bytes", [None, 0])
def test_nothing_is_kept_unless_configured(
    way: Callable[[Session], np.ndarray], chunk_bytes: int | None
) -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    written(storage)
    session = Repository.open(storage, config(chunk_bytes)).readonly_session("main")
    for _ in range(2):
        storage.trace.clear()
        np.testing.assert_array_equal(way(session), VALUES)
        assert chunk_requests(storage) > 0


def test_parts_come_from_chunks_that_are_kept() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    written(storage)
    session = Repository.open(storage, config(1 << 20)).readonly_session("main")
    single(session)
    storage.trace.clear()
    assert zarr.open_array(session.store, path="a", mode="r")[700:705].tolist() == [
        int(value) for value in VALUES[700:705]
    ]
    assert chunk_requests(storage) == 0


def test_repositories_of_a_process_share_them(tmp_path: Path) -> None:
    written(icefloe.local_filesystem_storage(str(tmp_path)))
    place = str(tmp_path)
    bulk(Repository.open(place, config(1 << 20)).readonly_session("main"))
    for path in (tmp_path / folder("chunks").rstrip("/")).rglob("*"):
        if path.is_file():
            path.write_bytes(b"?" * SIZE)  # nobody does that; it shows who reads
    again = Repository.open(place, config(1 << 20)).readonly_session("main")
    np.testing.assert_array_equal(bulk(again), VALUES)
    # Another budget is another cache, and so is another place.
    other = Repository.open(place, config(1 << 21)).readonly_session("main")
    assert bulk(other).tobytes() == b"?" * SIZE * COUNT


def test_no_more_bytes_are_kept_than_configured() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    written(storage)
    room = 3 * (SIZE + 256)
    repo = Repository.open(storage, config(room))
    session = repo.readonly_session("main")
    for way in WAYS:
        np.testing.assert_array_equal(way(session), VALUES)
        kept = repo._context.files._caches.chunks
        assert 0 < kept.nbytes <= room
    storage.trace.clear()
    session.get_chunk("/a", (COUNT - 1,))
    assert chunk_requests(storage) == 0
    session.get_chunk("/a", (0,))
    assert chunk_requests(storage) == 1


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("verify", [False, True])
def test_a_damaged_chunk_is_not_kept(
    way: Callable[[Session], np.ndarray], verify: bool, each_generation: str
) -> None:
    if not format_for(each_generation).keeps_checksums:
        pytest.skip("this generation has no checksums of chunks")
    storage = icefloe.in_memory_storage()
    written(storage)
    key = next(info.key for info in storage.list(folder("chunks")))
    whole = storage.get(key)
    storage.put(key, whole[:-1] + bytes([whole[-1] ^ 1]))
    repo = Repository.open(storage, config(1 << 20))
    session = repo.readonly_session("main")
    session.verify_chunks = verify
    if verify:
        with pytest.raises((DamagedChunkError, IcefloeError)):
            way(session)
    else:
        assert (way(session) != VALUES).sum() == 1
    storage.put(key, whole)
    np.testing.assert_array_equal(way(session), VALUES)


def test_nothing_wrong_is_served_after_a_collection() -> None:
    storage = icefloe.in_memory_storage()
    written(storage)
    repo = Repository.open(storage, config(1 << 20))
    old = repo.readonly_session("main")
    np.testing.assert_array_equal(bulk(old), VALUES)
    with repo.transaction("main", message="others") as store:
        zarr.open_array(store, path="a")[:] = 255 - VALUES
    repo.expire_snapshots(0 * HOUR)
    repo.reset_branch("main", "main")
    repo.garbage_collect(0 * HOUR)
    assert (bulk(repo.readonly_session("main")) == 255 - VALUES).all()
    assert len(repo._context.files._caches.chunks) == COUNT
    with pytest.raises(IcefloeError, match="missing"):
        bulk(old)


def test_many_threads_read_through_one_cache() -> None:
    storage = icefloe.in_memory_storage()
    written(storage)
    session = Repository.open(storage, config(5 * (SIZE + 256))).readonly_session("main")
    failures: list[BaseException] = []

    def read(number: int) -> None:
        try:
            for turn in range(10):
                found = WAYS[(number + turn) % len(WAYS)](session)
                np.testing.assert_array_equal(found, VALUES)
        except BaseException as error:  # noqa: BLE001 (raised below)
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# --- virtual chunks


def virtual_session(
    tmp_path: Path, *, is_checked: bool, may_read: bool = True, settings: RepositoryConfig
) -> Session:
    source = tmp_path / "source.bin"
    url = f"file://{tmp_path}/"
    settings.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(url, icefloe.local_filesystem_store(str(tmp_path)))
    )
    place = str(tmp_path / "repo")
    if not Repository.exists(place):
        source.write_bytes(VALUES.tobytes())
        repo = Repository.create(place, settings, {url: None}, **how())
        session = repo.writable_session("main")
        zarr.create_array(
            session.store,
            name="a",
            shape=VALUES.shape,
            chunks=(SIZE,),
            dtype="u1",
            compressors=None,
        )
        time = datetime.now(UTC) + HOUR if is_checked else None
        for row in range(COUNT):
            session.store.set_virtual_ref(
                f"a/c/{row}", f"{url}source.bin", offset=row * SIZE, length=SIZE, checksum=time
            )
        session.commit("virtual")
    return Repository.open(place, settings, {url: None} if may_read else None).readonly_session(
        "main"
    )


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("is_checked", [False, True])
def test_virtual_chunks_are_kept_if_their_version_is_known(
    way: Callable[[Session], np.ndarray], is_checked: bool, tmp_path: Path
) -> None:
    settings = config(1 << 20)
    session = virtual_session(tmp_path, is_checked=is_checked, settings=settings)
    np.testing.assert_array_equal(way(session), VALUES)
    (tmp_path / "source.bin").unlink()
    if not is_checked:
        with pytest.raises(IcefloeError):
            way(session)
        return
    np.testing.assert_array_equal(way(session), VALUES)
    # Whoever may not read there finds nothing, although it is in the cache of the process.
    stranger = virtual_session(tmp_path, is_checked=True, may_read=False, settings=config(1 << 20))
    with pytest.raises(IcefloeError):
        way(stranger)


# --- transaction logs


def test_logs_are_kept_up_to_a_number_of_changes() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    written(storage)
    logs = folder("transactions")

    def reads(changes: int | None) -> list[int]:
        repo = Repository.open(storage, config(None, changes))
        counts = []
        for _ in range(2):
            storage.trace.clear()
            diff = repo.diff(from_snapshot_id="main~1", to_branch="main")
            assert diff.new_arrays == {"/a"}
            counts.append(
                sum(verb == "get" and key.startswith(logs) for verb, key in storage.trace)
            )
        return counts

    if not keeps_logs():  # what changed is found by comparison
        assert reads(1000) == [0, 0]
        return
    assert reads(None) == reads(0) == reads(COUNT) == [1, 1]
    assert reads(1000) == [1, 0]


def test_a_log_that_was_repaired_is_not_the_one_that_was_kept(each_generation: str) -> None:
    if not keeps_logs() or not format_for(each_generation).keeps_checksums:
        pytest.skip("this generation has no logs, or nothing to tell a damaged one by")
    storage = icefloe.in_memory_storage()
    written(storage)
    repo = Repository.open(storage, config(None, 1000))
    tip = repo.lookup_branch("main")
    layout = repo._context.format.layout
    name = layout.parse(next(storage.list(layout.folder(ObjectKind.TRANSACTION_LOG))).key)
    assert name is not None
    assert repo.diff(from_snapshot_id="main~1", to_branch="main").new_arrays == {"/a"}
    storage.delete_many([info.key for info in storage.list(folder("transactions"))])
    (problem,) = repo.verify().problems
    assert problem.snapshot_id == tip
    assert repo.repair() == [problem]
    assert repo.diff(from_snapshot_id="main~1", to_branch="main").new_arrays == {"/a"}
    assert repo._context.files.read_transaction_log(name.id).repaired_for == name.id  # type: ignore[arg-type]
    assert repo.verify().is_clean


# --- the cache itself


def test_many_values_are_found_at_once() -> None:
    cache: ByteCache[str, int] = ByteCache(3)
    for number, key in enumerate("abc"):
        cache.put(key, number, 1)
    assert cache.get_many(["a", None, "x", "b"]) == [0, None, None, 1]
    cache.put("d", 3, 1)
    assert cache.get_many(list("abcd")) == [0, 1, None, 3]  # the least recently used went first
