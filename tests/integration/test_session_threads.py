"""One session, many threads and event loops."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import zarr

import icefloe
from icefloe import ReadOnlyError, Repository
from tests.documents import array, chunks_of, group, make_tree, set_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.session import Session


@pytest.fixture(autouse=True)
def _switch_threads_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(icefloe.in_memory_storage())
    make_tree(made)
    return made


def read_while(session: Session, until: threading.Event, path: str = "/b") -> set[bytes | None]:
    """Everything that a chunk was seen to be."""
    seen = {session.get_chunk(path, (0,))}
    while not until.is_set():
        seen.add(session.get_chunk(path, (0,)))
    return seen


def test_threads_write_one_array(repository: Repository) -> None:
    session = repository.writable_session("main")
    session.tree.set_document("/n", array((400,)))

    def write(worker: int) -> None:
        for place in range(worker, 400, 8):
            session.tree.set_chunk("/n", (place,), b"%d" % place)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    session.commit("all")
    found = chunks_of(repository.readonly_session("main"), "/n")
    assert found == {place: b"%d" % place for place in range(400)}


def test_threads_with_event_loops_of_their_own(repository: Repository) -> None:  # api-facts 2
    session = repository.writable_session("main")
    session.tree.set_document("/n", array((64,)))
    store = session.store

    def write(place: int) -> bytes:
        async def there_and_back() -> bytes:
            prototype = zarr.core.buffer.default_buffer_prototype()
            await store.set(f"n/c/{place}", prototype.buffer.from_bytes(b"%d" % place))
            found = await store.get(f"n/c/{place}", prototype)
            assert found is not None
            return found.to_bytes()

        return asyncio.run(there_and_back())

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(write, range(64))) == [b"%d" % place for place in range(64)]


def test_a_reader_never_misses_a_chunk_while_the_session_is_committed() -> None:
    """The chunk is first in the changes and then in a manifest; there is no moment in between."""
    for _ in range(30):
        repository = Repository.create(icefloe.in_memory_storage())
        session = repository.writable_session("main")
        session.tree.set_document("/b", array())
        set_chunks(session, "/b", range(3), b"x")
        done = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read_while, session, done) for _ in range(2)]
            session.commit("while others read")
            done.set()
            assert [reader.result() for reader in readers] == [{b"x"}] * 2


def test_a_reader_sees_bulk_edits_whole(repository: Repository) -> None:
    session = repository.writable_session("main")
    table = session.tree.chunk_table("/b")
    assert table is not None
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read_while, session, done)
        for _ in range(100):
            session.tree.set_chunk("/b", (0,), b"new")
            session.tree.set_chunk_refs("/b", table)
        done.set()
        assert reader.result() <= {b"\x01", b"new"}


def test_who_writes_during_a_commit_is_in_it_or_told(repository: Repository) -> None:
    for _ in range(20):
        session = repository.writable_session("main")
        session.tree.set_document("/n", array((50,)))
        written: list[int] = []
        started = threading.Event()

        def write(
            session: Session = session,
            written: list[int] = written,
            started: threading.Event = started,
        ) -> None:
            for place in range(50):
                try:
                    session.tree.set_chunk("/n", (place,), b"x")
                except ReadOnlyError:
                    return
                written.append(place)
                started.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            assert started.wait(60)
            session.commit("n")
            writing.result()
        assert sorted(chunks_of(repository.readonly_session("main"), "/n")) == written
        clean = repository.writable_session("main")
        clean.tree.delete_node("/n")
        clean.commit("again")


def test_a_chunk_is_not_recorded_in_an_array_that_shrank_meanwhile(repository: Repository) -> None:
    """Writing the bytes takes a while; what they are for is checked again afterwards."""
    session = repository.writable_session("main")
    chunk_files = session.tree.context.chunk_files
    original = chunk_files.write

    def write(data: bytes) -> object:
        session.tree.set_document("/b", array((2,)))
        return original(data)

    chunk_files.write = write  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(icefloe.InvalidInputError, match="invalid chunk index"):
            session.tree.set_chunk("/b", (5,), b"x")
    finally:
        chunk_files.write = original  # type: ignore[method-assign]


def test_one_of_many_threads_commits_a_session(repository: Repository) -> None:
    session = repository.writable_session("main")
    session.tree.set_document("/n", group())

    def commit(_: int) -> str | None:
        try:
            return session.commit("one of us")
        except ReadOnlyError:
            return None

    with ThreadPoolExecutor(4) as pool:
        won = [tip for tip in pool.map(commit, range(4)) if tip is not None]
    assert won == [repository.lookup_branch("main")]


def test_threads_commit_to_one_branch_until_all_are_in(repository: Repository) -> None:
    def commit(worker: int) -> list[str]:
        made = []
        for turn in range(5):
            session = repository.writable_session("main")
            session.tree.set_document(f"/w{worker}_{turn}", group())
            made.append(session.commit("x", rebase_with=icefloe.ConflictDetector()))
        return made

    with ThreadPoolExecutor(4) as pool:
        made = list(itertools.chain.from_iterable(pool.map(commit, range(4))))
    history = [info.id for info in repository.ancestry(branch="main")]
    assert len(made) == 20
    assert set(history[:20]) == set(made)
    assert len(history) == 22
