"""Answers of the store that get lost: a commit ends as it did, and nothing happens twice (H-49)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest
import zarr

import icefloe
from icefloe import ConflictDetector, ConflictError, Repository
from icefloe.errors import AlreadyExistsError, CommitStateUnknownError
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.settings import (
    StorageRetriesSettings,
    StorageSettings,
)
from icefloe.testing.faults import Fault, FaultyStorage
from icefloe.testing.requests import FarStorage
from tests.endpoints.fault_proxy import IMPATIENT, FaultProxy, Trouble, troubled
from tests.formats import GENERATIONS, PUBLISHING, chosen, folder, how, keeps_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.session import Session
    from icefloe.storage.port import Storage
    from tests.endpoints.fixtures import S3Endpoint

T = TypeVar("T")
COMMITS = 15

FIRST, SECOND, THIRD = "ZZZZZZZZ.json", "ZZZZZZZY.json", "ZZZZZZZX.json"
# Each stands for a way in which the client can be misled; the storage suite has them all.
TROUBLES = [
    Trouble.DROP_AFTER,
    Trouble.ERROR_500_AFTER,
    Trouble.CONFLICT_409,
    Trouble.TIMEOUT_AFTER,
    Trouble.TWICE,
]


def messages(storage: Storage, branch: str = "main") -> list[str]:
    return [info.message for info in Repository.open(storage).ancestry(branch=branch)]


@pytest.fixture
def proxy(s3_endpoint: S3Endpoint) -> Iterator[FaultProxy]:
    with troubled(s3_endpoint.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def storage(s3_endpoint: S3Endpoint, proxy: FaultProxy) -> Storage:
    return s3_endpoint.storage(endpoint_url=proxy.url).with_settings(IMPATIENT)


@pytest.mark.endpoint
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_references_on_s3_are_settled(
    storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    proxy.plan(trouble, method="PUT", path=f"refs/branch.main/{FIRST}")
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    proxy.plan(trouble, method="PUT", path=f"refs/branch.main/{SECOND}")
    snapshot_id = session.commit("only once")
    assert repo.lookup_branch("main") == snapshot_id
    assert messages(storage) == ["only once", "Repository initialized"]

    proxy.plan(trouble, method="PUT", path=f"refs/branch.dev/{FIRST}")
    repo.create_branch("dev", snapshot_id)
    proxy.plan(trouble, method="PUT", path="refs/tag.v1/ref.json")
    repo.create_tag("v1", snapshot_id)
    proxy.plan(trouble, method="PUT", path=f"refs/branch.dev/{SECOND}")
    repo.reset_branch("dev", "main~1")
    assert messages(storage, "dev") == ["Repository initialized"]
    assert proxy.struck == 5


@pytest.mark.endpoint
@pytest.mark.parametrize("trouble", [Trouble.DROP_AFTER, Trouble.CONFLICT_409])
def test_a_rival_who_was_first_is_not_overlooked(
    storage: Storage, proxy: FaultProxy, trouble: Trouble
) -> None:
    repo = Repository.create(storage)
    sessions = [repo.writable_session("main") for _ in range(2)]
    for session in sessions:
        zarr.create_group(session.store)
    theirs = sessions[0].commit("theirs")
    proxy.plan(trouble, method="PUT", path=f"refs/branch.main/{SECOND}")
    with pytest.raises(ConflictError) as caught:
        sessions[1].commit("ours")
    assert caught.value.actual_parent == theirs
    assert messages(storage) == ["theirs", "Repository initialized"]


STORMY = [
    Trouble.DROP_BEFORE,
    Trouble.DROP_AFTER,
    Trouble.ERROR_500_BEFORE,
    Trouble.ERROR_500_AFTER,
    Trouble.ERROR_503_BEFORE,
    Trouble.ERROR_503_AFTER,
    Trouble.THROTTLED,
    Trouble.TWICE,
]
"""What can happen to requests of any kind and does not take long."""
PERSISTENT = StorageSettings(retries=StorageRetriesSettings(max_tries=15, initial_backoff_ms=20))


@pytest.mark.endpoint
def test_writers_get_through_a_storm(storage: Storage, proxy: FaultProxy) -> None:
    """Three in ten requests fail, are lost, throttled or doubled: all commits land, and once."""
    storage = storage.with_settings(PERSISTENT)
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    session.commit("start")

    def write(writer: int) -> None:
        own = Repository.open(storage)
        for number in range(COMMITS):
            session = own.writable_session("main")
            zarr.create_group(session.store, path=f"{writer}-{number}")
            session.commit(f"{writer}-{number}", rebase_with=ConflictDetector())

    before = len(proxy.requests)
    write(0)
    in_calm = (len(proxy.requests) - before) / COMMITS
    proxy.storm(STORMY, share=0.3, seed=1)
    before = len(proxy.requests)
    write(1)
    assert len(proxy.requests) - before < 2 * in_calm * COMMITS
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, (2, 3)))
    proxy.calm()
    made = sorted(f"{writer}-{number}" for writer in range(4) for number in range(COMMITS))
    assert sorted(messages(storage)[:-2]) == made
    assert sorted(zarr.open_group(repo.readonly_session("main").store, mode="r")) == made
    assert repo.verify(deep=True).is_clean


@pytest.fixture(params=[*GENERATIONS, "far away"])
def faulty(request: pytest.FixtureRequest) -> Iterator[FaultyStorage]:
    if request.param == "far away":  # where requests are sent together
        yield FaultyStorage(FarStorage(icefloe.in_memory_storage()))
        return
    with chosen(request.param):
        yield faulty_storage()


def faulty_storage() -> FaultyStorage:
    return FaultyStorage(icefloe.in_memory_storage())


def make_array(repo: Repository) -> None:
    """A commit with what sessions that only write chunks need."""
    with repo.transaction("main", message="array") as store:
        zarr.create_array(store, name="a", shape=(2,), chunks=(1,), dtype="u1")


def write_groups(session: Session) -> None:
    zarr.open_group(session.store, mode="a").create_group("g", attributes={"by": "us"})


def write_chunks(session: Session) -> None:
    zarr.open_array(session.store, path="a")[:] = 1


def write_both(session: Session) -> None:
    write_groups(session)
    write_chunks(session)


def write_attributes(session: Session) -> None:
    zarr.open_array(session.store, path="a").attrs["by"] = "us"


WORK = [write_groups, write_chunks, write_both, write_attributes]
OURS = icefloe.BasicConflictSolver(on_chunk_conflict=icefloe.VersionSelection.UseOurs)
AGAIN: list[Callable[[Session], object]] = [
    lambda session: session.commit("again"),
    lambda session: session.commit("again", rebase_with=icefloe.ConflictDetector()),
    lambda session: session.commit("again", rebase_with=OURS),
    lambda session: session.commit("again", rebase_with=icefloe.MergeSolver()),
    lambda session: session.rebase(icefloe.ConflictDetector()),
    lambda session: session.amend("again"),
]
"""What a user may try who does not know how a commit ended."""


def lose_the_answer(faulty: FaultyStorage, repo: Repository) -> None:
    faulty.inject(Fault.LOST_ANSWER, verb=PUBLISHING[repo.generation], key=folder("refs"))


def session_with(storage: Storage, work: Callable[[Session], None]) -> tuple[Repository, Session]:
    """A repository with an array, and a session that is about to commit something."""
    repo = Repository.create(storage, **how())
    make_array(repo)
    session = repo.writable_session("main")
    work(session)
    return repo, session


def unsure_session(
    faulty: FaultyStorage, work: Callable[[Session], None]
) -> tuple[Repository, Session, CommitStateUnknownError]:
    """The same after a commit that landed, of which nobody told."""
    repo, session = session_with(faulty, work)
    lose_the_answer(faulty, repo)
    with pytest.raises(CommitStateUnknownError) as caught:
        session.commit("perhaps")
    return repo, session, caught.value


@pytest.mark.parametrize("work", WORK)
def test_a_commit_whose_fate_is_unknown_says_so_and_stays(
    faulty: FaultyStorage, work: Callable[[Session], None]
) -> None:
    repo, session, unknown = unsure_session(faulty, work)
    key = {"dataset": "state.json", "icechunk": "repo"}.get(repo.generation, THIRD)
    assert key in unknown.key
    assert unknown.snapshot_id == repo.lookup_branch("main")
    assert [verb for verb, _ in faulty.trace if verb == "delete_many"] == []
    # To commit again is to meet one's own commit: it is refused, not applied twice.
    for again in AGAIN:
        with pytest.raises(ConflictError, match=f"has landed: .*{unknown.snapshot_id}") as met:
            again(session)
        assert met.value.actual_parent == unknown.snapshot_id
        assert not session.read_only
        assert session.has_uncommitted_changes
    assert messages(faulty) == ["perhaps", "array", "Repository initialized"]


@pytest.mark.parametrize("work", WORK)
def test_it_is_found_below_what_others_committed_since(
    faulty: FaultyStorage, work: Callable[[Session], None]
) -> None:
    repo, session, _ = unsure_session(faulty, work)
    for number in range(2):
        with repo.transaction("main", message="theirs") as store:
            zarr.create_group(store, path=f"theirs{number}")
    for again in AGAIN:
        with pytest.raises(ConflictError, match="has landed"):
            again(session)
    assert messages(faulty)[:3] == ["theirs", "theirs", "perhaps"]


def test_an_amendment_whose_fate_is_unknown_is_not_repeated(faulty: FaultyStorage) -> None:
    repo, session = session_with(faulty, write_groups)
    lose_the_answer(faulty, repo)
    with pytest.raises(CommitStateUnknownError):
        session.amend("perhaps")
    for again in AGAIN:
        with pytest.raises(ConflictError, match="has landed"):
            again(session)
    assert messages(faulty) == ["perhaps", "Repository initialized"]


def test_who_discards_what_landed_goes_on_from_there(faulty: FaultyStorage) -> None:
    repo, session, _ = unsure_session(faulty, write_groups)
    session.discard_changes()
    session.rebase(icefloe.ConflictDetector())
    assert session.snapshot_id == repo.lookup_branch("main")
    write_chunks(session)
    session.commit("more")
    assert messages(faulty)[:2] == ["more", "perhaps"]


def test_a_branch_that_was_reset_does_not_tell_what_landed(faulty: FaultyStorage) -> None:
    repo, session, _ = unsure_session(faulty, write_groups)
    repo.reset_branch("main", "main~2")
    with pytest.raises(ConflictError, match="no longer tells"):
        session.commit("again", rebase_with=OURS)
    assert messages(faulty) == ["Repository initialized"]


class InterruptedStorage(ForwardingStorage):
    """Does a conditional write and is then interrupted from the keyboard, if told to."""

    armed = False

    def _run(self, verb: str, key: str, act: Callable[[], T]) -> T:
        result = act()
        if self.armed and verb in {"create", "replace"} and key.startswith(folder("refs")):
            self.armed = False
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_commit_that_was_interrupted_is_not_repeated(generation: str) -> None:
    with chosen(generation):
        storage = InterruptedStorage(icefloe.in_memory_storage())
        repo = Repository.create(storage, **how())
        session = repo.writable_session("main")
        zarr.create_group(session.store)
        storage.armed = True
        with pytest.raises(KeyboardInterrupt):
            session.commit("perhaps")
        with pytest.raises(ConflictError, match="has landed"):
            session.commit("again", rebase_with=OURS)
        assert messages(storage) == ["perhaps", "Repository initialized"]


class LateStorage(ForwardingStorage):
    """A network that holds a conditional write back, and delivers it before the next one or never.

    Whoever sent it learns nothing.
    """

    delivers = True
    holding = False

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._held: Callable[[], object] | None = None

    def _run(self, verb: str, key: str, act: Callable[[], T]) -> T:
        if verb not in {"create", "replace"} or not key.startswith(folder("refs")):
            return act()
        if self.holding:
            self.holding, self._held = False, act
            raise CommitStateUnknownError("held back", key)
        held, self._held = self._held, None
        if held is not None and self.delivers:
            held()
        return act()


@pytest.fixture(params=GENERATIONS)
def late(request: pytest.FixtureRequest) -> Iterator[LateStorage]:
    with chosen(request.param):
        yield LateStorage(icefloe.in_memory_storage())


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("solver", [None, icefloe.ConflictDetector(), OURS, icefloe.MergeSolver()])
def test_a_commit_that_lands_while_it_is_repeated_is_found(
    late: LateStorage, work: Callable[[Session], None], solver: icefloe.ConflictSolver | None
) -> None:
    _, session = session_with(late, work)
    late.holding = True
    with pytest.raises(CommitStateUnknownError):
        session.commit("perhaps")
    assert messages(late) == ["array", "Repository initialized"]
    with pytest.raises(ConflictError):
        session.commit("again", rebase_with=solver)
    assert messages(late) == ["perhaps", "array", "Repository initialized"]


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("moves", [False, True], ids=["branch stays", "branch moves"])
def test_a_commit_that_never_landed_is_repeated(
    late: LateStorage, work: Callable[[Session], None], moves: bool
) -> None:
    repo, session = session_with(late, work)
    late.holding, late.delivers = True, False
    with pytest.raises(CommitStateUnknownError):
        session.commit("perhaps")
    if moves:
        with repo.transaction("main", message="theirs") as store:
            zarr.create_group(store, path="theirs")
    done = session.commit("again", rebase_with=icefloe.ConflictDetector())
    assert repo.lookup_branch("main") == done
    assert messages(late)[: 1 + moves] == ["again", "theirs"][: 1 + moves]
    assert "perhaps" not in messages(late)


def test_a_commit_that_failed_can_be_repeated(faulty: FaultyStorage) -> None:
    repo = Repository.create(faulty, **how())
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    written = ["snapshots", "refs"] + ["transactions"] * keeps_logs()
    for name in written:
        verb = PUBLISHING[repo.generation] if name == "refs" else "put"
        faulty.inject(Fault.ERROR, verb=verb, key=folder(name))
        with pytest.raises(icefloe.errors.StorageError):
            session.commit("not yet")
        assert messages(faulty) == ["Repository initialized"]
        assert session.has_uncommitted_changes
    session.commit("now")
    assert messages(faulty) == ["now", "Repository initialized"]


def test_a_chunk_that_could_not_be_written_is_not_in_the_commit(faulty: FaultyStorage) -> None:
    at_once = icefloe.RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        chunk_packing=icefloe.ChunkPackingConfig(max_chunk_bytes=0),
    )
    repo = Repository.create(faulty, at_once, **how())
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, shape=(8,), chunks=(4,), dtype="u1", fill_value=7, compressors=None
    )
    array[:4] = 1
    faulty.inject(Fault.ERROR, verb="put", key=folder("chunks"))
    with pytest.raises(icefloe.errors.StorageError):
        array[4:] = 1
    session.commit("what could be written")
    shown = zarr.open_array(repo.readonly_session("main").store, mode="r")
    assert shown[:].tolist() == [1, 1, 1, 1, 7, 7, 7, 7]


def test_a_tag_whose_fate_is_unknown_is_not_moved(faulty: FaultyStorage) -> None:
    repo = Repository.create(faulty, **how())
    verb = PUBLISHING[repo.generation]
    faulty.inject(Fault.LOST_ANSWER, verb=verb, key=folder("refs"))
    with pytest.raises(CommitStateUnknownError):
        repo.create_tag("v1", repo.lookup_branch("main"))
    assert repo.list_tags() == {"v1"}
    with pytest.raises(AlreadyExistsError):
        repo.create_tag("v1", repo.lookup_branch("main"))
