"""Manifests that are fetched in the background when a session starts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest

import icefloe
from icefloe.config import ManifestConfig, ManifestPreload, ManifestSet
from icefloe.model.chunk_refs import VirtualRef
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.faults import Fault, FaultyStorage
from tests.documents import array, group, set_chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from icefloe.storage.port import Storage

Result = TypeVar("Result")


def stored(config: icefloe.RepositoryConfig | None = None) -> FaultyStorage:
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, config)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/g", group())
    for path, size in {"/g/time": 4, "/g/data": 9_000}.items():
        session.tree.set_document(path, array((size,)))
        set_chunks(session, path, range(3))
    session.commit("data")
    return storage


def wait_for_preloads() -> None:
    for thread in threading.enumerate():
        if thread.name == "icefloe-preload":
            thread.join(30)


def manifest_reads(storage: FaultyStorage) -> int:
    return sum("manifests/" in str(op) for op in storage.trace)


class Waiting(ForwardingStorage):
    """Answers no read of a manifest before it is released."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.asked = threading.Event()
        self.released = threading.Event()
        self.reads: list[str] = []

    def _run(self, verb: str, key: str, act: Callable[[], Result]) -> Result:
        if key.startswith("manifests/") and verb.startswith("get"):
            self.reads.append(threading.current_thread().name)
            self.asked.set()
            assert self.released.wait(30), "nobody releases a thread that starts the session"
        return act()


@pytest.mark.parametrize("is_writable", [False, True])
def test_sessions_start_while_manifests_are_fetched(is_writable: bool) -> None:
    # R4-17, R4-38, R4-41
    storage = Waiting(stored().inner)
    repo = icefloe.Repository.open(storage)
    assert not storage.asked.is_set()
    session = repo.writable_session("main") if is_writable else repo.readonly_session("main")
    assert storage.asked.wait(30), "nothing is fetched though nobody reads"
    assert session.get_node("/g/time") is not None
    storage.released.set()
    wait_for_preloads()
    assert set(storage.reads) == {"icefloe-preload"}
    fetched = len(storage.reads)
    assert session.get_chunk("/g/time", (0,)) == b"\x01"
    assert len(storage.reads) == fetched, "a coordinate is at hand, with all of its references"
    assert session.get_chunk("/g/data", (0,)) == b"\x01"
    assert len(storage.reads) > fetched  # R4-40: only one manifest was wanted


def test_all_references_of_a_manifest_are_fetched() -> None:  # R4-17, R4-39
    count = 50_000
    manifest = ManifestConfig(sets=[ManifestSet(name="default")])
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, icefloe.RepositoryConfig(manifest=manifest))
    session = repo.writable_session("main")
    session.tree.set_document("/time", array((count,)))
    offsets = np.random.default_rng(1).integers(0, 2**60, count, dtype=np.uint64)
    session.set_virtual_refs(
        "/time",
        shape=(count,),
        locations=["s3://bucket/file.nc"],
        location_codes=np.zeros(count, dtype=np.int64),
        offsets=offsets,
        lengths=1,
        validate_containers=False,
    )
    session.commit("more bytes than are read at once to open a manifest")
    session = icefloe.Repository.open(storage).readonly_session("main")
    wait_for_preloads()
    storage.trace.clear()
    for place in (0, count // 2, count - 1):
        ref = session.tree.locate("/time", (place,))
        assert isinstance(ref, VirtualRef)
        assert ref.offset == offsets[place]
    assert manifest_reads(storage) == 0


def test_a_second_session_of_a_snapshot_fetches_nothing() -> None:
    storage = stored()
    repo = icefloe.Repository.open(storage)
    repo.readonly_session("main")
    wait_for_preloads()
    storage.trace.clear()
    repo.readonly_session("main")
    wait_for_preloads()
    assert manifest_reads(storage) == 0


def test_pieces_of_split_coordinates_are_fetched_the_smallest_first() -> None:  # R4-14, R4-40
    each = ManifestSet(name="default", split_size=4)
    preload = ManifestPreload(max_manifests=2, max_manifest_size=3)
    manifest = ManifestConfig(sets=[each], rules=[], preload=preload)
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, icefloe.RepositoryConfig(manifest=manifest))
    session = repo.writable_session("main")
    session.tree.set_document("/time", array((100,)))
    set_chunks(session, "/time", [*range(4), 4, 5, 6, 50])
    session.commit("time")
    node = session.get_node("/time")
    assert node is not None
    assert [ref.num_refs for ref in node.manifests] == [4, 3, 1]
    storage.trace.clear()
    session = icefloe.Repository.open(storage).readonly_session("main")
    wait_for_preloads()
    read = {key for _, key in storage.trace if "manifests/" in key}
    assert read == {f"manifests/{ref.manifest_id}" for ref in node.manifests[1:]}


def test_nothing_is_fetched_where_nothing_is_wanted() -> None:  # H-41
    preload = ManifestPreload(max_manifests=0)
    config = icefloe.RepositoryConfig(manifest=ManifestConfig(preload=preload))
    storage = stored(config)
    storage.trace.clear()
    repo = icefloe.Repository.open(storage)
    repo.readonly_session("main")
    wait_for_preloads()
    assert manifest_reads(storage) == 0


def test_a_preload_that_fails_is_not_noticed() -> None:  # H-41
    storage = stored()
    repo = icefloe.Repository.open(storage)
    storage.inject(Fault.ERROR, verb="get", key="manifests/", times=100)
    session = repo.readonly_session("main")
    wait_for_preloads()
    assert session.snapshot_id == repo.lookup_branch("main")


def test_forks_in_other_processes_do_not_preload() -> None:
    import pickle

    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage)
    session = repo.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/time", array((4,)))
    set_chunks(session, "/time", range(3))
    session.commit("data")
    fork = repo.writable_session("main").fork()
    before = {thread.ident for thread in threading.enumerate()}
    pickle.loads(pickle.dumps(fork))
    started = [t for t in threading.enumerate() if t.ident not in before]
    assert not [t for t in started if t.name == "icefloe-preload"]
