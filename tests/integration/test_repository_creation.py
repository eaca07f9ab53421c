"""Repositories come into being, once, and are found again."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import icefloe
from icefloe import (
    AlreadyExistsError,
    InvalidInputError,
    Repository,
    RepositoryConfig,
    RepositoryNotFoundError,
)
from icefloe.engine import initialize
from icefloe.testing.faults import CrashError, Fault, FaultyStorage
from tests.documents import commit_attribute

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from icefloe.storage.port import Storage

FIRST = "1CECHNKREP0F1RSTCMT0"


def keys(storage: Storage) -> list[str]:
    return [info.key for info in storage.list()]


def test_a_new_repository_has_one_snapshot_and_one_branch() -> None:  # R1-10, api-facts 6, R1-39
    storage = icefloe.in_memory_storage()
    assert not Repository.exists(storage)
    repository = Repository.create(storage)
    assert Repository.exists(storage)
    assert repository.list_branches() == {"main"}
    assert repository.list_tags() == set()
    assert repository.lookup_branch("main") == FIRST
    (first,) = repository.ancestry(branch="main")
    assert first.id == FIRST
    assert first.parent_id is None
    assert first.message == "Repository initialized"
    assert first.metadata == {"__root": True}
    assert first.manifests == []
    assert keys(storage) == ["refs/branch.main/ZZZZZZZZ.json", f"snapshots/{FIRST}"]
    content = storage.get("refs/branch.main/ZZZZZZZZ.json")
    assert b"".join(content.split()) == b'{"snapshot":"%b"}' % FIRST.encode()


def test_a_place_holds_one_repository() -> None:  # api-facts 8
    storage = icefloe.in_memory_storage()
    Repository.create(storage)
    before = keys(storage)
    with pytest.raises(AlreadyExistsError, match="clean prefixes"):
        Repository.create(storage)
    assert keys(storage) == before


def test_a_place_with_other_objects_is_refused_unless_asked_for() -> None:
    storage = icefloe.in_memory_storage()
    storage.put("other/object", b"x")
    with pytest.raises(AlreadyExistsError, match=r"clean prefixes.*other/object"):
        Repository.create(storage)
    with pytest.raises(AlreadyExistsError, match="clean prefixes"):
        Repository.open_or_create(storage)
    assert keys(storage) == ["other/object"]
    assert Repository.create(storage, check_clean_root=False).lookup_branch("main") == FIRST


@pytest.mark.parametrize("spec_version", [1, 2])
def test_the_spec_version_is_chosen_at_creation_and_found_again(spec_version: int) -> None:
    storage = icefloe.in_memory_storage()
    assert Repository.fetch_spec_version(storage) is None
    created = Repository.create(storage, spec_version=spec_version)
    commit_attribute(created, 1)
    opened = Repository.open(storage)
    assert created.spec_version == opened.spec_version == spec_version
    assert opened.generation == "repository"
    assert Repository.fetch_spec_version(storage) == spec_version
    assert next(opened.ancestry(branch="main")).message == "value 1"


def test_unknown_formats_are_refused_before_anything_is_written() -> None:
    storage = icefloe.in_memory_storage()
    with pytest.raises(InvalidInputError, match="spec versions"):
        Repository.create(storage, spec_version=9)
    with pytest.raises(InvalidInputError, match="generations"):
        Repository.create(storage, generation="nonsense")
    assert keys(storage) == []


def test_nothing_is_opened_where_nothing_is(tmp_path: Path) -> None:  # api-facts 8
    with pytest.raises(RepositoryNotFoundError, match="doesn't exist") as caught:
        Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "absent")))
    assert caught.value.location.endswith("absent")
    assert Repository.fetch_config(icefloe.in_memory_storage()) is None
    assert not (tmp_path / "absent").exists(), "looking for a repository creates nothing"


def test_storage_is_given_by_url_or_path(tmp_path: Path) -> None:
    place = tmp_path / "repository"
    created = Repository.create(str(place))
    tip = commit_attribute(created, 1)
    for name in (place, str(place), place.as_uri()):
        assert Repository.exists(name)
        assert Repository.open(name).lookup_branch("main") == tip
        assert Repository.open_or_create(name).lookup_branch("main") == tip
    named = Repository.create("memory://a-name-of-this-test")
    tip = commit_attribute(named, 1)
    assert Repository.open("memory://a-name-of-this-test").lookup_branch("main") == tip


def test_two_repositories_on_one_memory_storage_share_data() -> None:  # api-facts 23
    storage = icefloe.in_memory_storage()
    one = Repository.create(storage)
    two = Repository.open(storage)
    assert two.lookup_branch("main") == FIRST
    assert two.lookup_branch("main") != (tip := commit_attribute(one, 1))
    assert two.lookup_branch("main") == tip


@pytest.mark.parametrize("with_config", [False, True])
def test_one_of_many_threads_creates(with_config: bool) -> None:  # R3-92, R1-39
    config = RepositoryConfig(inline_chunk_threshold_bytes=7) if with_config else None
    for _ in range(20):
        storage = icefloe.in_memory_storage()
        barrier = threading.Barrier(8)

        def create(
            _: int, storage: Storage = storage, barrier: threading.Barrier = barrier
        ) -> Repository | None:
            barrier.wait()
            try:
                return Repository.create(storage, config)
            except AlreadyExistsError:
                return None

        with ThreadPoolExecutor(8) as racers:
            won = [made for made in racers.map(create, range(8)) if made is not None]
        assert len(won) == 1
        assert Repository.open(storage).lookup_branch("main") == FIRST


def test_all_of_many_threads_open_or_create() -> None:
    for _ in range(20):
        storage = icefloe.in_memory_storage()
        barrier = threading.Barrier(8)

        def open_or_create(
            _: int, storage: Storage = storage, barrier: threading.Barrier = barrier
        ) -> str:
            barrier.wait()
            return Repository.open_or_create(storage).lookup_branch("main")

        with ThreadPoolExecutor(8) as racers:
            assert set(racers.map(open_or_create, range(8))) == {FIRST}


def _create_in_process(path: str, start: float, answers: multiprocessing.Queue[str]) -> None:
    import time

    while time.time() < start:
        pass
    try:
        Repository.create(path)
        answers.put("created")
    except AlreadyExistsError:
        answers.put("refused")


def test_one_of_many_processes_creates(tmp_path: Path) -> None:  # R3-92, T-INIT
    import time

    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    start = time.time() + 2
    racers = [
        context.Process(target=_create_in_process, args=(str(tmp_path / "r"), start, answers))
        for _ in range(4)
    ]
    for racer in racers:
        racer.start()
    found = sorted(answers.get(timeout=60) for _ in racers)
    for racer in racers:
        racer.join()
    assert found == ["created", "refused", "refused", "refused"]


def crash_before_publishing(storage: FaultyStorage) -> None:
    storage.inject(Fault.CRASH_BEFORE, key="refs/branch.main", verb="create")
    with pytest.raises(CrashError):
        Repository.create(storage)
    storage.revive()


def test_a_creator_that_died_is_waited_for_and_then_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    crash_before_publishing(storage)
    assert not Repository.exists(storage)
    with pytest.raises(AlreadyExistsError, match="another client is creating"):
        Repository.create(storage)
    abandoned: timedelta = initialize.ABANDONED_AFTER / 1_000_000
    monkeypatch.setattr(initialize, "ABANDONED_AFTER", abandoned)
    repository = Repository.create(storage)
    assert repository.lookup_branch("main") == FIRST
    assert commit_attribute(repository, 1)


def test_who_opens_or_creates_waits_for_another_creator() -> None:
    storage = FaultyStorage(icefloe.in_memory_storage())
    crash_before_publishing(storage)
    storage.trace.clear()
    with ThreadPoolExecutor(1) as other:
        opened = other.submit(Repository.open_or_create, storage)
        while ("create", f"snapshots/{FIRST}") not in storage.trace:
            assert not opened.done()
        storage.create("refs/branch.main/ZZZZZZZZ.json", b'{"snapshot":"%b"}' % FIRST.encode())
        assert opened.result(60).lookup_branch("main") == FIRST


def test_a_repository_travels_by_pickle(tmp_path: Path) -> None:
    repository = Repository.create(
        tmp_path, RepositoryConfig(inline_chunk_threshold_bytes=3), {"s3://bucket/": None}
    )
    repository.set_default_commit_metadata({"author": "me"})
    arrived: Repository = pickle.loads(pickle.dumps(repository))
    assert arrived.config == repository.config
    assert arrived.default_commit_metadata() == {"author": "me"}
    assert arrived.authorized_virtual_container_prefixes == {"s3://bucket/"}
    tip = commit_attribute(arrived, 1)
    assert repository.lookup_branch("main") == tip
    assert repository.lookup_snapshot(tip).metadata == {"author": "me"}


def test_a_repository_in_memory_can_be_pickled_within_its_process() -> None:  # api-facts 23
    repository = Repository.create(icefloe.in_memory_storage())
    tip = commit_attribute(repository, 1)
    assert pickle.loads(pickle.dumps(repository)).lookup_branch("main") == tip
