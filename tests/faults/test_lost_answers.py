"""Answers of the store that get lost: a commit ends as it did, and nothing happens twice (H-49)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zarr

import icefloe
from icefloe import ConflictError, Repository
from icefloe.errors import AlreadyExistsError, CommitStateUnknownError
from icefloe.storage.settings import StorageSettings, StorageTimeoutSettings
from icefloe.testing.faults import Fault, FaultyStorage
from tests.endpoints.fault_proxy import FaultProxy, Trouble, fault_proxy
from tests.formats import GENERATIONS, PUBLISHING, chosen, folder, how, keeps_logs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.storage.port import Storage
    from tests.endpoints.fixtures import S3Endpoint

FIRST, SECOND = "ZZZZZZZZ.json", "ZZZZZZZY.json"
# Each stands for a way in which the client can be misled; the storage suite has them all.
TROUBLES = [
    Trouble.DROP_AFTER,
    Trouble.ERROR_500_AFTER,
    Trouble.CONFLICT_409,
    Trouble.TIMEOUT_AFTER,
    Trouble.TWICE,
]
IMPATIENT = StorageSettings(timeouts=StorageTimeoutSettings(operation_attempt_timeout_ms=1000))


def messages(storage: Storage, branch: str = "main") -> list[str]:
    return [info.message for info in Repository.open(storage).ancestry(branch=branch)]


@pytest.fixture
def proxy(s3_endpoint: S3Endpoint) -> Iterator[FaultProxy]:
    with fault_proxy(s3_endpoint.endpoint_url) as proxy:
        yield proxy
        assert proxy.struck, "the trouble that this test is about never happened"


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


@pytest.fixture(params=GENERATIONS)
def faulty(request: pytest.FixtureRequest) -> Iterator[FaultyStorage]:
    with chosen(request.param):
        yield faulty_storage()


def faulty_storage() -> FaultyStorage:
    return FaultyStorage(icefloe.in_memory_storage())


def test_a_commit_whose_fate_is_unknown_says_so_and_stays(faulty: FaultyStorage) -> None:
    repo = Repository.create(faulty, **how())
    session = repo.writable_session("main")
    # Equal groups of two writers are one where nodes get their ids late; equal arrays are not.
    root = zarr.create_group(session.store, attributes={"by": "us"})
    root.create_array("a", shape=(2,), chunks=(1,), dtype="u1")[:] = 1
    verb = PUBLISHING[repo.generation]
    faulty.inject(Fault.LOST_ANSWER, verb=verb, key=folder("refs"))
    with pytest.raises(CommitStateUnknownError) as caught:
        session.commit("perhaps")
    assert ("state.json" if repo.generation == "dataset" else SECOND) in caught.value.key
    assert messages(faulty) == ["perhaps", "Repository initialized"]
    assert [verb for verb, _ in faulty.trace if verb == "delete_many"] == []
    # To commit again is to meet one's own commit: it is refused, not applied twice.
    with pytest.raises(ConflictError):
        session.commit("again")
    with pytest.raises(ConflictError):
        session.commit("again", rebase_with=icefloe.ConflictDetector())
    assert messages(faulty) == ["perhaps", "Repository initialized"]


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
