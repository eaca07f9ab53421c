"""Manifests that are fetched in the background when a session starts."""

from __future__ import annotations

import threading
import time

import icefloe
from icefloe.config import ManifestConfig, ManifestPreload
from icefloe.testing.faults import Fault, FaultyStorage
from icefloe.versioning.preload import start_preload
from tests.documents import array, group, set_chunks


def stored(config: icefloe.RepositoryConfig | None = None) -> FaultyStorage:
    storage = FaultyStorage(icefloe.in_memory_storage())
    repo = icefloe.Repository.create(storage, config)
    session = repo.writable_session("main")
    session.set_document("/", group())
    session.set_document("/g", group())
    for path, size in {"/g/time": 4, "/g/data": 9_000}.items():
        session.set_document(path, array((size,)))
        set_chunks(session, path, range(3))
    session.commit("data")
    return storage


def wait_for_preloads() -> None:
    for thread in threading.enumerate():
        if thread.name == "icefloe-preload":
            thread.join(30)


def manifest_reads(storage: FaultyStorage) -> int:
    return sum("manifests/" in str(op) for op in storage.trace)


def test_coordinates_are_at_hand_when_they_are_asked_for() -> None:  # R4-17, R4-41
    storage = stored()
    session = icefloe.Repository.open(storage).readonly_session("main")
    wait_for_preloads()
    assert manifest_reads(storage) >= 1
    storage.trace.clear()
    assert session.get_chunk("/g/time", (0,)) == b"\x01"
    assert manifest_reads(storage) == 0
    assert session.get_chunk("/g/data", (0,)) == b"\x01"
    assert manifest_reads(storage) == 1  # R4-40: only one was wanted


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
    session.set_document("/", group())
    session.set_document("/time", array((4,)))
    set_chunks(session, "/time", range(3))
    session.commit("data")
    fork = repo.writable_session("main").fork()
    before = {thread.ident for thread in threading.enumerate()}
    pickle.loads(pickle.dumps(fork))
    started = [t for t in threading.enumerate() if t.ident not in before]
    assert not [t for t in started if t.name == "icefloe-preload"]


def test_it_does_not_keep_the_session_waiting() -> None:
    storage = stored()
    repo = icefloe.Repository.open(storage)
    repo.readonly_session("main")
    wait_for_preloads()
    context = repo._context
    release = threading.Event()
    original = context.files.manifest

    def slow(*args: object) -> object:
        release.wait(30)
        return original(*args)  # type: ignore[arg-type]

    context.files.manifest = slow  # type: ignore[method-assign,assignment]
    snapshot = context.files.read_snapshot(
        context.history.refs.tip("main").snapshot_id  # type: ignore[union-attr,arg-type]
    )
    thread = start_preload(context, snapshot)
    assert thread is not None
    time.sleep(0.05)
    assert thread.is_alive()
    release.set()
    thread.join(30)
    assert not thread.is_alive()
