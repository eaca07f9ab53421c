"""Of clients that create the same thing at the same moment, exactly one is told that it did.

All of them want the same: one name for one snapshot. What they write means the same, so what is
found afterwards must still tell who wrote it.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe import Repository
from icefloe.engine.initialize import write_first_snapshot
from icefloe.errors import AlreadyExistsError, CommitStateUnknownError, RefNotFoundError
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.testing.clock import ClockedStorage
from tests.concurrency.writers import run_together
from tests.endpoints.fault_proxy import Trouble, fault_proxy
from tests.formats import GENERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    from icefloe.storage.port import Storage

RACERS = 4
ROUNDS = 10
ENDPOINTS = ["s3_endpoint", "gcs_endpoint", "azure_endpoint"]
LOST = [Trouble.DROP_AFTER, Trouble.ERROR_503_AFTER, Trouble.CONFLICT_409, Trouble.TWICE]


def claims(storage: Storage, rounds: int, barrier: Barrier) -> list[list[bool]]:
    """Whether this process was told that it created the tag, and the branch, of each round."""
    repo = Repository.open(storage)
    first = repo.lookup_branch("main")
    won = []
    for number in range(rounds):
        barrier.wait(60)
        tag = did(repo.create_tag, f"tag-{number}", first)
        barrier.wait(60)
        branch = did(repo.create_branch, f"branch-{number}", first)
        barrier.wait(60)
        deleted = did(repo.delete_branch, f"branch-{number}")
        barrier.wait(60)
        again = did(repo.create_branch, f"branch-{number}", first)
        won.append([tag, branch, deleted, again])
    return won


def did(act: Callable[..., Any], *arguments: Any) -> bool:
    try:
        act(*arguments)
    except (AlreadyExistsError, RefNotFoundError, icefloe.ConflictError):
        return False
    return True


def require_one_winner(outcomes: list[list[list[bool]]]) -> None:
    for number, tellings in enumerate(zip(*outcomes, strict=True)):
        counts = [sum(column) for column in zip(*tellings, strict=True)]
        assert counts == [1, 1, 1, 1], f"round {number}: {counts} were told that they did it"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_one_process_creates_on_local_files(tmp_path: Path, generation: str) -> None:
    # R1-24, R3-48
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    Repository.create(storage, generation=generation)
    require_one_winner(run_together(claims, [(storage, ROUNDS)] * RACERS))


@pytest.mark.endpoint
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_one_process_creates_on_object_stores(
    endpoint: str, generation: str, request: pytest.FixtureRequest
) -> None:
    # R1-24, R3-48
    storage = request.getfixturevalue(endpoint).storage()
    Repository.create(storage, generation=generation)
    require_one_winner(run_together(claims, [(storage, 2)] * RACERS))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_one_thread_creates_in_memory(generation: str) -> None:
    # R1-24, R3-48
    storage = icefloe.in_memory_storage()
    Repository.create(storage, generation=generation)
    barrier: Any = threading.Barrier(RACERS)
    with ThreadPoolExecutor(RACERS) as threads:
        racing = [threads.submit(claims, storage, ROUNDS, barrier) for _ in range(RACERS)]
        require_one_winner([each.result() for each in racing])


@pytest.mark.endpoint
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("trouble", LOST, ids=lambda trouble: trouble.name)
def test_a_lost_answer_makes_nobody_a_creator_who_was_not(
    endpoint: str, generation: str, trouble: Trouble, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(endpoint)
    direct = server.storage()
    repo = Repository.create(direct, generation=generation)
    first = repo.lookup_branch("main")
    key = {
        "repository": "refs/tag.{}/ref.json",
        "store": "r/{}.json",
        "dataset": "state.json",
        "icechunk": "repo",
    }[generation]
    prefix = direct.location.partition("?")[0].partition(server_bucket(server))[2].strip("/")
    with fault_proxy(server.endpoint_url) as proxy:
        behind = Repository.open(server.storage(prefix, proxy.url))
        # Ours is there, and only the answer was lost.
        proxy.plan(trouble, method="PUT", path=key.format("ours"))
        behind.create_tag("ours", first)
        assert proxy.struck == 1

        # Theirs was there first, with the same target; our answer is lost, too.
        proxy.plan(trouble, method="PUT", path=key.format("theirs"))
        proxy.before_next("PUT", key.format("theirs"), lambda: repo.create_tag("theirs", first))
        with pytest.raises((AlreadyExistsError, CommitStateUnknownError)):
            behind.create_tag("theirs", first)
        assert proxy.struck == 2
    assert repo.list_tags() == {"ours", "theirs"}


def server_bucket(server: Any) -> str:
    return getattr(server, "bucket", None) or server.container


class Together(ForwardingStorage):
    """Lets all racers publish at the same moment: each waits before its first conditional write
    of a reference until all others are about to write theirs."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._barrier = threading.Barrier(RACERS)
        self._waited: set[int] = set()

    def _run(self, verb: str, key: str, act: Callable[[], Any]) -> Any:
        is_reference = key.startswith(("refs/", "r/", "state.json"))
        if verb in ("create", "replace") and is_reference:
            me = threading.get_ident()
            if me not in self._waited:
                self._waited.add(me)
                self._barrier.wait(60)
        return act()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_one_of_many_finishes_a_repository_that_somebody_began(generation: str) -> None:
    # R3-92
    for _ in range(ROUNDS):
        long_ago = datetime.now(UTC) - timedelta(minutes=5)
        storage = ClockedStorage(icefloe.in_memory_storage(), long_ago)
        begun = Repository.create(storage, generation=generation)
        storage.delete_many([info.key for info in storage.list()])
        write_first_snapshot(begun._context)
        together = Together(storage)

        def create(_: int, storage: Storage = together) -> bool:
            return did(lambda: Repository.create(storage, generation=generation))

        with ThreadPoolExecutor(RACERS) as threads:
            assert sum(threads.map(create, range(RACERS))) == 1
