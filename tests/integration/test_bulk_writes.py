"""Many chunks are written at once: each goes where its size says, none has an object of its own."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import icefloe
from icefloe.config import ChunkPackingConfig, ChunkReadingConfig
from icefloe.errors import InvalidInputError, NodeNotFoundError, ReadOnlyError, StorageError
from icefloe.model.chunk_refs import InlineRef, NativeRef, PendingRef
from icefloe.model.segments import Segments
from icefloe.testing.faults import CrashError, Fault, FaultyStorage
from tests.documents import array, group

if TYPE_CHECKING:
    from icefloe.session import Session
    from icefloe.storage.port import BytesLike
    from tests.endpoints.fixtures import S3Endpoint

SIDE = 20
GRID = np.array(list(np.ndindex(SIDE, SIDE)))


def repository(pack_bytes: int = 50_000, **others: Any) -> tuple[icefloe.Repository, FaultyStorage]:
    storage = FaultyStorage(icefloe.in_memory_storage())
    packing = ChunkPackingConfig(max_chunk_bytes=2000, pack_bytes=pack_bytes)
    config = icefloe.RepositoryConfig(chunk_packing=packing, **others)
    repo = icefloe.Repository.create(storage, config)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((SIDE, SIDE)))
    session.tree.set_document("/b", array((400,)))
    session.commit("arrays")
    storage.trace.clear()
    return repo, storage


def chunk_files(storage: FaultyStorage) -> list[int]:
    return sorted(info.size for info in storage.list("chunks/"))


def equal(count: int, size: int = 1000, first: int = 0) -> Segments:
    return Segments.of([bytes([(first + n) % 251]) * size for n in range(count)])


def values(session: Session, coords: np.ndarray, path: str = "/a") -> list[bytes | None]:
    found: list[bytes | None] = [None] * len(coords)
    for part in session.read_chunks(path, coords):
        for at, row in enumerate(part.rows.tolist()):
            found[row] = bytes(part.segments.piece(at))
    assert found == [session.get_chunk(path, tuple(place)) for place in coords.tolist()]
    return found


def test_chunks_go_where_their_size_says() -> None:  # R0-62, R2-36
    repo, storage = repository()
    session = repo.writable_session("main")
    sizes = [100, 1000, 5000, 0, 513, 512, 2000, 2001]
    data = [bytes([n]) * size for n, size in enumerate(sizes)]
    session.write_chunks("/a", GRID[: len(sizes)], Segments.of(data))
    assert chunk_files(storage) == [2001, 5000], "large ones are written at once"
    kinds = [type(session.tree.locate("/a", tuple(place))) for place in GRID[:8].tolist()]
    packed, alone, inline = PendingRef, NativeRef, InlineRef
    assert kinds == [inline, packed, alone, inline, packed, inline, packed, alone]
    assert values(session, GRID[:9]) == [*data, None]
    session.commit("eight")
    assert chunk_files(storage) == [2001, 1000 + 513 + 2000, 5000]
    reader = icefloe.Repository.open(storage).readonly_session("main")
    assert values(reader, GRID[:9]) == [*data, None]


def test_full_packs_are_written_at_once_and_the_rest_waits() -> None:
    repo, storage = repository(pack_bytes=30_000)
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:100], equal(100))
    assert chunk_files(storage) == [30_000] * 3
    assert values(session, GRID[:100]) == [bytes([n]) * 1000 for n in range(100)]
    session.commit("a hundred")
    assert chunk_files(storage) == [10_000, *[30_000] * 3]
    reader = icefloe.Repository.open(storage).readonly_session("main")
    assert values(reader, GRID[:100]) == [bytes([n]) * 1000 for n in range(100)]


def test_what_waits_is_joined_to_packs_in_the_order_of_the_grid() -> None:
    repo, storage = repository(pack_bytes=30_000)
    session = repo.writable_session("main")
    shuffled = np.random.default_rng(1).permutation(60)
    for rows in np.split(shuffled, 6):
        pieces = [bytes([row]) * 1000 for row in rows.tolist()]
        session.write_chunks("/a", GRID[rows], Segments.of(pieces))
    session.commit("in six parts")
    assert chunk_files(storage) == [30_000, 30_000]
    reader = repo.readonly_session("main")
    refs = [reader.tree.locate("/a", tuple(place)) for place in GRID[:60].tolist()]
    by_file: dict[bytes, list[int]] = {}
    for ref in refs:
        assert isinstance(ref, NativeRef)
        by_file.setdefault(ref.file, []).append(ref.offset)
    assert all(offsets == list(range(0, 30_000, 1000)) for offsets in by_file.values())
    assert values(reader, GRID[:60]) == [bytes([n]) * 1000 for n in range(60)]


def test_a_batch_in_disorder_is_written_in_the_order_of_the_grid() -> None:
    repo, storage = repository(pack_bytes=30_000)
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:60][::-1], equal(60))
    session.commit("backwards")
    assert chunk_files(storage) == [30_000, 30_000]
    reader = repo.readonly_session("main")
    refs = [reader.tree.locate("/a", tuple(place)) for place in GRID[:30].tolist()]
    offsets = [ref.offset for ref in refs if isinstance(ref, NativeRef)]
    assert offsets == list(range(0, 30_000, 1000))
    assert values(reader, GRID[:60]) == [bytes([59 - n]) * 1000 for n in range(60)]


def test_a_pack_is_a_slice_of_what_was_given() -> None:
    put: list[object] = []

    class Noting(FaultyStorage):
        def put(self, key: str, data: BytesLike, attributes: object = None) -> None:
            put.append(data)
            super().put(key, data, attributes)  # type: ignore[arg-type]

    storage = Noting(icefloe.in_memory_storage())
    packing = ChunkPackingConfig(max_chunk_bytes=2000, pack_bytes=30_000)
    config = icefloe.RepositoryConfig(chunk_packing=packing)
    session = icefloe.Repository.create(storage, config).writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((SIDE, SIDE)))
    put.clear()
    segments = equal(60)
    session.write_chunks("/a", GRID[:60], segments)
    assert [isinstance(data, memoryview) and data.obj is segments.data for data in put] == [
        True
    ] * 2


def test_the_buffer_may_be_used_again() -> None:
    repo, _ = repository()
    session = repo.writable_session("main")
    buffer = bytearray(b"a" * 1000 + b"i" * 100)
    offsets, lengths = np.array([0, 1000]), np.array([1000, 100])
    session.write_chunks("/a", GRID[:2], Segments(buffer, offsets, lengths))
    session.write_chunks("/a", GRID[2:4], Segments(memoryview(buffer), offsets, lengths))
    buffer[:] = b"z" * len(buffer)
    expected = [b"a" * 1000, b"i" * 100] * 2
    assert values(session, GRID[:4]) == expected
    session.commit("kept")
    assert values(repo.readonly_session("main"), GRID[:4]) == expected


def test_a_buffer_may_hold_numbers() -> None:
    repo, _ = repository()
    session = repo.writable_session("main")
    numbers = np.arange(600, dtype=np.float64).reshape(2, 300)
    offsets, lengths = np.array([0, 2400]), np.array([2400, 2400])
    session.write_chunks("/a", GRID[:2], Segments(numbers.data, offsets, lengths))
    assert values(session, GRID[:2]) == [numbers[0].tobytes(), numbers[1].tobytes()]
    with pytest.raises(InvalidInputError, match="contiguous"):
        session.write_chunks("/a", GRID[:2], Segments(numbers.T.data, offsets, lengths))


def test_later_writes_win_however_they_are_made() -> None:
    repo, storage = repository(pack_bytes=100_000)
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:50], equal(50))
    session.tree.set_chunk("/a", (0, 3), b"single" * 200)
    session.write_chunks("/a", GRID[2:4], equal(2, 600, first=100))
    session.tree.set_chunk("/a", (0, 5), b"inline")
    session.tree.delete_chunk("/a", (0, 6))
    session.write_chunks("/a", GRID[6:8], equal(2, 10, first=7))
    session.tree.set_chunk("/a", (0, 7), b"last" * 300)
    expected: list[bytes | None] = [bytes([n]) * 1000 for n in range(50)]
    expected[2:4] = [bytes([100]) * 600, bytes([101]) * 600]
    expected[5:8] = [b"inline", bytes([7]) * 10, b"last" * 300]
    assert values(session, GRID[:50]) == expected
    session.commit("layers")
    assert values(repo.readonly_session("main"), GRID[:50]) == expected
    alive = sum(len(data) for data in expected if data is not None and len(data) > 512)
    assert sum(chunk_files(storage)) == alive, "what was overwritten is not written"


def test_what_was_overwritten_costs_nothing() -> None:
    repo, storage = repository(pack_bytes=100_000)
    session = repo.writable_session("main")
    for round_ in range(100):
        session.write_chunks("/a", GRID[:10], equal(10, first=round_))
    assert chunk_files(storage) == []
    edits = next(iter(session.tree.changes.chunks.values()))
    tables = [waiting.table for waiting in edits.take_pending()]
    assert sum(len(buffer) for table in tables for buffer in table.buffers) < 120_000
    session.commit("the last")
    assert chunk_files(storage) == [10_000]
    assert values(repo.readonly_session("main"), GRID[:10]) == [
        bytes([99 + n]) * 1000 for n in range(10)
    ]


def test_references_and_rearranging_mix_with_what_waits() -> None:
    repo, storage = repository()
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:SIDE], equal(SIDE))
    session.shift_array("/a", (1, 0))
    session.write_chunks("/a", GRID[:3], equal(3, first=60))
    expected = [bytes([60 + n]) * 1000 if n < 3 else None for n in range(SIDE)]
    expected += [bytes([n]) * 1000 for n in range(SIDE)]
    assert values(session, GRID[: 2 * SIDE]) == expected
    assert session.chunk_count("/a") == 23
    assert len(session.status().updated_chunks["/a"]) == 23
    session.commit("shifted")
    assert values(repo.readonly_session("main"), GRID[: 2 * SIDE]) == expected
    assert chunk_files(storage) == [3000, 20_000]


def test_what_cannot_be_written_is_refused() -> None:
    repo, storage = repository()
    session = repo.writable_session("main")
    two = equal(2)
    with pytest.raises(InvalidInputError, match=r"invalid chunk index: \[20, 0\]"):
        session.write_chunks("/a", np.array([[0, 0], [20, 0]]), two)
    with pytest.raises(InvalidInputError, match="twice"):
        session.write_chunks("/a", np.array([[1, 0], [1, 0]]), two)
    with pytest.raises(InvalidInputError, match="a segment for each of 2"):
        session.write_chunks("/a", GRID[:2], equal(3))
    with pytest.raises(InvalidInputError, match="outside of their buffer"):
        session.write_chunks("/a", GRID[:2], Segments(two.data, two.offsets + 1, two.lengths))
    with pytest.raises(NodeNotFoundError):
        session.write_chunks("/c", GRID[:2], two)
    with pytest.raises(ReadOnlyError):
        repo.readonly_session("main").write_chunks("/a", GRID[:2], two)
    assert not session.has_uncommitted_changes
    assert chunk_files(storage) == []
    session.write_chunks("/a", GRID[:0], equal(0))
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("size", [1000, 3000])
def test_a_batch_that_fails_is_not_set_and_can_be_tried_again(size: int) -> None:
    repo, storage = repository(pack_bytes=10_000)
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:5], equal(5))
    storage.inject(Fault.ERROR, verb="put", key="chunks/", nth=3)
    batch = equal(100, size, first=50)
    with pytest.raises(StorageError):
        session.write_chunks("/a", GRID[:100], batch)
    assert values(session, GRID[:6]) == [*(bytes([n]) * 1000 for n in range(5)), None]
    session.write_chunks("/a", GRID[:100], batch)
    session.commit("second try")
    expected = [bytes([(50 + n) % 251]) * size for n in range(100)]
    assert values(repo.readonly_session("main"), GRID[:100]) == expected


def test_a_pack_that_fails_loses_nothing_that_waited() -> None:
    repo, storage = repository(pack_bytes=10_000)
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:8], equal(8))
    storage.inject(Fault.ERROR, verb="put", key="chunks/")
    with pytest.raises(StorageError):
        session.write_chunks("/a", GRID[8:16], equal(8, first=8))
    assert values(session, GRID[:16]) == [bytes([n]) * 1000 for n in range(16)]
    session.tree.set_chunk("/b", (0,), b"x" * 1000)
    session.commit("all")
    reader = repo.readonly_session("main")
    assert values(reader, GRID[:16]) == [bytes([n]) * 1000 for n in range(16)]
    assert reader.get_chunk("/b", (0,)) == b"x" * 1000


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("nth", [1, 3, 4])
def test_death_while_packs_are_written_leaves_the_branch_alone(fault: Fault, nth: int) -> None:
    repo, storage = repository(pack_bytes=30_000)
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    storage.inject(fault, verb="put", key="chunks/", nth=nth)
    with pytest.raises(CrashError):  # noqa: PT012 (at one of the two)
        session.write_chunks("/a", GRID[:100], equal(100))
        session.commit("dies")
    storage.revive()
    opened = icefloe.Repository.open(storage)
    assert opened.lookup_branch("main") == tip
    assert values(opened.readonly_session("main"), GRID[:100]) == [None] * 100
    again = opened.writable_session("main")
    again.write_chunks("/a", GRID[:100], equal(100))
    again.commit("lives")
    assert None not in values(opened.readonly_session("main"), GRID[:100])


def test_a_chunk_that_is_overwritten_while_its_pack_is_on_its_way_keeps_the_new_bytes() -> None:
    repo, storage = repository(pack_bytes=10_000)
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:9], equal(9))
    original = storage.inner.put
    changed = threading.Event()

    class Slow(FaultyStorage):
        def put(self, key: str, data: BytesLike, attributes: object = None) -> None:
            if key.startswith("chunks/") and not changed.is_set():
                changed.set()
                session.tree.set_chunk("/a", (0, 0), b"n" * 1500)
                session.tree.delete_chunk("/a", (0, 1))
                session.write_chunks("/a", GRID[2:4], equal(2, 700, first=90))
            original(key, data)

    session.tree.context.chunk_files.storage = Slow(storage)
    session.write_chunks("/a", GRID[9:12], equal(3, first=9))
    assert changed.is_set()
    expected = [b"n" * 1500, None, bytes([90]) * 700, bytes([91]) * 700]
    expected += [bytes([n]) * 1000 for n in range(4, 12)]
    assert values(session, GRID[:12]) == expected
    session.commit("all")
    assert values(icefloe.Repository.open(storage).readonly_session("main"), GRID[:12]) == expected


def test_a_commit_takes_along_what_another_thread_is_writing() -> None:
    repo, storage = repository(pack_bytes=10_000)
    session = repo.writable_session("main")
    entered, go_on = threading.Event(), threading.Event()
    original = storage.inner.put

    class Slow(FaultyStorage):
        def put(self, key: str, data: BytesLike, attributes: object = None) -> None:
            if key.startswith("chunks/") and not entered.is_set():
                entered.set()
                assert go_on.wait(20)
            original(key, data)

    session.tree.context.chunk_files.storage = Slow(storage)
    session.write_chunks("/b", np.arange(9)[:, None], equal(9))
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(session.tree.set_chunk, "/b", (9,), b"\x09" * 1000)
        assert entered.wait(20)
        session.commit("meanwhile")
        go_on.set()
        writer.result()
    reader = icefloe.Repository.open(storage).readonly_session("main")
    assert [reader.get_chunk("/b", (n,)) for n in range(10)] == [
        bytes([n]) * 1000 for n in range(10)
    ]
    assert {type(reader.tree.locate("/b", (n,))) for n in range(10)} == {NativeRef}


def test_many_threads_write_batches_while_others_read() -> None:
    repo, storage = repository(pack_bytes=20_000)
    session = repo.writable_session("main")
    session.write_chunks("/a", GRID[:2], equal(2))
    stop = threading.Event()

    def read() -> int:
        rounds = 0
        while not stop.is_set():
            assert values(session, GRID[:2]) == [bytes([n]) * 1000 for n in range(2)]
            rounds += 1
        return rounds

    def write(first: int) -> None:
        rows = slice(first, first + 7)
        session.write_chunks("/a", GRID[rows], equal(len(GRID[rows]), first=first))

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        list(pool.map(write, range(2, 400, 7)))
        stop.set()
        assert all(reader.result() for reader in readers)
    session.commit("all")
    expected = [bytes([n % 251]) * 1000 for n in range(400)]
    assert values(icefloe.Repository.open(storage).readonly_session("main"), GRID) == expected
    assert len(chunk_files(storage)) < 60


def test_writers_wait_for_a_slow_storage_and_memory_stays_bounded() -> None:
    repo, storage = repository(pack_bytes=20_000)
    session = repo.writable_session("main")
    original = storage.inner.put
    waiting: list[int] = []

    class Slow(FaultyStorage):
        def put(self, key: str, data: BytesLike, attributes: object = None) -> None:
            if key.startswith("chunks/"):
                time.sleep(0.02)
                with session.tree.lock:
                    edits = session.tree.changes.chunks.values()
                    waiting.append(sum(each.pending_bytes() for each in edits))
            original(key, data)

    session.tree.context.chunk_files.storage = Slow(storage)

    def write(first: int) -> None:
        session.write_chunks("/a", GRID[first : first + 5], equal(5, first=first))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(0, 400, 5)))
    assert len(waiting) >= 10
    # One pack on its way, one that fills, and a batch of each writer.
    assert max(waiting) <= 20_000 + 20_000 + 4 * 5_000
    session.commit("all")
    expected = [bytes([n % 251]) * 1000 for n in range(400)]
    assert values(icefloe.Repository.open(storage).readonly_session("main"), GRID) == expected


def test_a_fork_writes_what_waits_before_it_travels() -> None:
    repo, storage = repository()
    session = repo.writable_session("main")
    fork = session.fork()
    fork.write_chunks("/a", GRID[:5], equal(5))
    assert chunk_files(storage) == []
    travelled = pickle.loads(pickle.dumps(fork))
    assert chunk_files(storage) == [5000]
    session.write_chunks("/a", GRID[5:7], equal(2, first=5))
    session.merge(travelled)
    expected = [bytes([n]) * 1000 for n in range(7)]
    assert values(session, GRID[:7]) == expected
    session.commit("merged")
    assert values(repo.readonly_session("main"), GRID[:7]) == expected


def test_batches_on_an_object_store(s3_endpoint: S3Endpoint) -> None:
    storage = FaultyStorage(s3_endpoint.storage())
    packing = ChunkPackingConfig(max_chunk_bytes=2000, pack_bytes=100_000)
    reading = ChunkReadingConfig(max_gap_bytes=0, max_request_bytes=60_000)
    config = icefloe.RepositoryConfig(chunk_packing=packing, chunk_reading=reading)
    session = icefloe.Repository.create(storage, config).writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((SIDE, SIDE)))
    sizes = [1000] * 390 + [5000] * 9 + [10]
    data = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    session.write_chunks("/a", GRID, Segments.of(data))
    session.commit("everything")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    reader.verify_chunks = True
    storage.trace.clear()
    found = {
        row: bytes(part.segments.piece(at))
        for part in reader.read_chunks("/a", GRID)
        for at, row in enumerate(part.rows.tolist())
    }
    assert [found[row] for row in range(400)] == data
    requests = [key for verb, key in storage.trace if key.startswith("chunks/")]
    # Four packs in two requests each, but for the last, which is short, and nine files.
    assert len(requests) == 2 + 2 + 2 + 2 + 9
