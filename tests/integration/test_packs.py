"""Small chunks are written together, as one chunk file, with neighbours side by side."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.config import ChunkPackingConfig
from icefloe.errors import StorageError
from icefloe.model.chunk_refs import InlineRef, NativeRef
from icefloe.testing.faults import Fault, FaultyStorage
from tests.documents import array, group
from tests.formats import PUBLISHING, folder, how

if TYPE_CHECKING:
    from icefloe.storage.port import BytesLike

pytestmark = pytest.mark.usefixtures("each_generation")

INLINE, PACKED, ALONE = b"i" * 100, b"p" * 1000, b"a" * 5000


def repository(pack_bytes: int = 50_000) -> tuple[icefloe.Repository, FaultyStorage]:
    storage = FaultyStorage(icefloe.in_memory_storage())
    packing = ChunkPackingConfig(max_chunk_bytes=2000, pack_bytes=pack_bytes)
    repo = icefloe.Repository.create(
        storage, icefloe.RepositoryConfig(chunk_packing=packing), **how()
    )
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    for path in ("/a", "/b"):
        session.tree.set_document(path, array((400,)))
    session.commit("arrays")
    return repo, storage


def chunk_files(storage: FaultyStorage) -> dict[str, int]:
    return {info.key: info.size for info in storage.list(folder("chunks"))}


def test_chunks_go_where_their_size_says() -> None:  # R0-62, R2-36
    repo, storage = repository()
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (0,), INLINE)
    session.tree.set_chunk("/a", (1,), PACKED)
    session.tree.set_chunk("/a", (2,), ALONE)
    assert list(chunk_files(storage).values()) == [len(ALONE)], "the large one is written at once"
    kinds = [session.chunk_type("/a", (n,)).name for n in range(4)]
    assert kinds == ["INLINE", "NATIVE", "NATIVE", "UNINITIALIZED"]
    session.commit("three")
    assert sorted(chunk_files(storage).values()) == [len(PACKED), len(ALONE)]
    reader = icefloe.Repository.open(storage).readonly_session("main")
    assert [reader.get_chunk("/a", (n,)) for n in range(3)] == [INLINE, PACKED, ALONE]


def test_chunks_of_several_arrays_share_a_file_in_the_order_of_the_grid() -> None:  # R0-09
    repo, storage = repository()
    session = repo.writable_session("main")
    for place in reversed(range(10)):
        for path in ("/b", "/a"):
            session.tree.set_chunk(path, (place,), bytes([place]) * 1000)
    session.commit("shuffled")
    assert list(chunk_files(storage).values()) == [20_000]
    reader = repo.readonly_session("main")
    for path in ("/a", "/b"):
        refs = [reader.tree.locate(path, (place,)) for place in range(10)]
        offsets = [ref.offset for ref in refs if isinstance(ref, NativeRef)]
        assert offsets == list(range(offsets[0], offsets[0] + 10_000, 1000))


def test_what_was_overwritten_costs_nothing() -> None:
    repo, storage = repository()
    session = repo.writable_session("main")
    for round_ in range(200):
        session.tree.set_chunk("/a", (0,), bytes([round_]) * 1000)
    session.tree.set_chunk("/a", (1,), PACKED)
    session.tree.delete_chunk("/a", (1,))
    session.commit("one left")
    assert list(chunk_files(storage).values()) == [1000]
    assert repo.readonly_session("main").get_chunk("/a", (0,)) == bytes([199]) * 1000


def test_a_full_pack_is_written_before_the_commit() -> None:
    repo, storage = repository(pack_bytes=10_000)
    session = repo.writable_session("main")
    for place in range(25):
        session.tree.set_chunk("/a", (place,), bytes([place]) * 1000)
    assert sorted(chunk_files(storage).values()) == [10_000, 10_000]
    assert [session.get_chunk("/a", (n,)) for n in range(25)] == [
        bytes([n]) * 1000 for n in range(25)
    ]
    session.commit("twenty-five")
    assert sorted(chunk_files(storage).values()) == [5_000, 10_000, 10_000]


def test_pending_chunks_read_back_whole_and_in_parts() -> None:
    repo, _ = repository()
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (3,), bytes(range(200)) * 5)
    assert session.get_chunk("/a", (3,)) == bytes(range(200)) * 5
    assert session.tree.chunk_size("/a", (3,)) == 1000
    assert session.tree.chunk_coords("/a").tolist() == [[3]]
    assert session.status().updated_chunks == {"/a": [[3]]}


def test_a_fork_writes_its_pack_before_it_travels() -> None:
    repo, storage = repository()
    session = repo.writable_session("main")
    fork = session.fork()
    fork.tree.set_chunk("/a", (0,), PACKED)
    assert chunk_files(storage) == {}
    travelled = pickle.loads(pickle.dumps(fork))
    assert list(chunk_files(storage).values()) == [1000]
    session.merge(travelled)
    session.commit("merged")
    assert repo.readonly_session("main").get_chunk("/a", (0,)) == PACKED


def test_discarded_and_deleted_chunks_are_not_written() -> None:
    repo, storage = repository()
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (0,), PACKED)
    session.discard_changes()
    session.tree.set_chunk("/b", (0,), PACKED)
    session.tree.delete_node("/b")
    session.tree.set_document("/", group(x=1))
    session.commit("nothing")
    assert chunk_files(storage) == {}


def test_a_pack_that_cannot_be_written_is_tried_again() -> None:
    repo, storage = repository()
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (0,), PACKED)
    storage.inject(Fault.ERROR, verb="put", key=folder("chunks"))
    with pytest.raises(StorageError):
        session.commit("fails")
    assert session.get_chunk("/a", (0,)) == PACKED
    session.commit("works")
    assert repo.readonly_session("main").get_chunk("/a", (0,)) == PACKED


def test_death_between_pack_and_commit_leaves_the_branch_alone() -> None:
    repo, storage = repository()
    tip = repo.lookup_branch("main")
    session = repo.writable_session("main")
    session.tree.set_chunk("/a", (0,), PACKED)
    storage.inject(Fault.ERROR, verb=PUBLISHING[repo.generation], key=folder("refs"), times=100)
    with pytest.raises(StorageError):
        session.commit("dies")
    storage.revive()
    assert icefloe.Repository.open(storage).lookup_branch("main") == tip


def test_packing_can_be_turned_off() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    config = icefloe.RepositoryConfig(chunk_packing=ChunkPackingConfig(max_chunk_bytes=0))
    session = icefloe.Repository.create(storage, config, **how()).writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array())
    session.tree.set_chunk("/a", (0,), PACKED)
    assert list(chunk_files(storage).values()) == [1000]


def test_many_threads_fill_packs_while_others_read() -> None:
    repo, storage = repository(pack_bytes=20_000)
    session = repo.writable_session("main")
    stop = threading.Event()

    def read() -> set[bytes | None]:
        seen = set()
        while not stop.is_set():
            seen.add(session.get_chunk("/a", (7,)))
        return seen

    session.tree.set_chunk("/a", (7,), b"\x07" * 1000)
    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        list(
            pool.map(
                lambda n: session.tree.set_chunk("/a", (n,), bytes([n % 251]) * 1000), range(8, 400)
            )
        )
        stop.set()
        assert {value for reader in readers for value in reader.result()} <= {b"\x07" * 1000}
    session.commit("all")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    assert all(reader.get_chunk("/a", (n,)) == bytes([n % 251]) * 1000 for n in range(7, 400))
    assert len(chunk_files(storage)) < 60


def test_event_loops_fill_packs() -> None:
    repo, storage = repository(pack_bytes=10_000)
    session = repo.writable_session("main")

    async def write() -> None:
        await asyncio.gather(
            *(session.tree.set_chunk_async("/a", (n,), bytes([n]) * 1000) for n in range(100))
        )

    asyncio.run(write())
    session.commit("all")
    assert sum(chunk_files(storage).values()) >= 100_000
    reader = repo.readonly_session("main")
    assert all(reader.get_chunk("/a", (n,)) == bytes([n]) * 1000 for n in range(100))


def test_many_tasks_wait_for_a_slow_storage_and_memory_stays_bounded() -> None:
    repo, storage = repository(pack_bytes=10_000)
    session = repo.writable_session("main")
    waiting: list[int] = []

    class Slow(FaultyStorage):
        def put(self, key: str, data: BytesLike, attributes: object = None) -> None:
            time.sleep(0.02)
            with session.tree.lock:
                edits = session.tree.changes.chunks.values()
                waiting.append(sum(each.pending_bytes() for each in edits))
            storage.put(key, data)

    session.tree.context.chunk_files.storage = Slow(storage)

    async def write() -> None:
        await asyncio.gather(
            *(session.tree.set_chunk_async("/a", (n,), bytes([n % 251]) * 1000) for n in range(400))
        )

    asyncio.run(write())
    # One pack on its way, and one that fills.
    assert max(waiting) <= 21_000
    session.commit("all")
    reader = repo.readonly_session("main")
    assert all(reader.get_chunk("/a", (n,)) == bytes([n % 251]) * 1000 for n in range(400))


steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "delete", "commit", "fork", "clear", "refresh"]),
        st.sampled_from(["/a", "/b"]),
        st.integers(0, 5),
        st.sampled_from([10, 600, 1500, 3000]),
    ),
    max_size=25,
)


@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(steps)
def test_packs_agree_with_a_dictionary(script: list[tuple[str, str, int, int]]) -> None:
    repo, storage = repository(pack_bytes=4_000)
    session = repo.writable_session("main")
    model: dict[tuple[str, int], bytes] = {}
    for number, (verb, path, place, size) in enumerate(script):
        data = bytes([number]) * size
        match verb:
            case "set":
                session.tree.set_chunk(path, (place,), data)
                model[path, place] = data
            case "delete":
                session.tree.delete_chunk(path, (place,))
                model.pop((path, place), None)
            case "clear":
                session.tree.clear_chunks(path)
                model = {key: value for key, value in model.items() if key[0] != path}
            case "fork" if not session.has_uncommitted_changes:
                fork = session.fork()
                fork.tree.set_chunk(path, (place,), data)
                session.merge(pickle.loads(pickle.dumps(fork)))
                model[path, place] = data
            case "commit" if session.has_uncommitted_changes:
                session.commit("step")
                session = repo.writable_session("main")
            case _:
                repo = icefloe.Repository.open(storage) if session.read_only else repo
        for key in [(path, place), *model]:
            assert session.get_chunk(key[0], (key[1],)) == model.get(key)
    if session.has_uncommitted_changes:
        session.commit("last")
    reader = icefloe.Repository.open(storage).readonly_session("main")
    for path in ("/a", "/b"):
        for place in range(6):
            assert reader.get_chunk(path, (place,)) == model.get((path, place))
            ref = reader.tree.locate(path, (place,))
            assert not isinstance(ref, InlineRef) or len(ref.data) <= 512
