"""The official formats on object stores beside S3: conditions by etag and generation, races."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import zarr

from icefloe import ConflictDetector, Repository, RepositoryConfig
from icefloe.errors import AlreadyExistsError, ConflictError
from tests.flatbuffers_verifier import REPO, verify_file

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

pytestmark = pytest.mark.endpoint
BOTH = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture(params=["gcs", "azure"])
def storage(request: pytest.FixtureRequest) -> Storage:
    endpoint = request.getfixturevalue(f"{request.param}_endpoint")
    found: Storage = endpoint.storage()
    return found


def make(storage: Storage, version: int) -> Repository:
    repo = Repository.create(storage, generation="icechunk", spec_version=version)
    with repo.transaction("main", message="an array") as store:
        zarr.create_array(store, name="a", shape=(8,), chunks=(1,), dtype="u1")
    return repo


def fill(repo: Repository, place: int, value: int = 1) -> str:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[place] = value
    return session.commit(f"{place}", rebase_with=ConflictDetector())


@BOTH
def test_commits_and_references_that_race_are_all_there(storage: Storage, version: int) -> None:
    make(storage, version)
    repos = [Repository.open(storage) for _ in range(4)]
    first = repos[0].lookup_branch("main")

    def work(number: int) -> None:
        repo = repos[number % 4]
        if number < 4:
            fill(repo, number, number + 1)
        elif number < 6:
            repo.create_tag(f"tag {number}", first)
        else:
            repo.create_branch(f"branch-{number}", first)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    repo = Repository.open(storage)
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[:].tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    assert len(list(repo.ancestry(branch="main"))) == 6
    assert repo.list_tags() == {"tag 4", "tag 5"}
    assert repo.list_branches() == {"main", "branch-6", "branch-7"}
    if version == 2:
        kinds = [type(update.kind).__name__ for update in repo.ops_log()]
        assert sorted(kinds[:8]) == ["BranchCreated"] * 2 + ["NewCommit"] * 4 + ["TagCreated"] * 2
        verify_file(storage.get("repo"), REPO, 2)
    assert repo.verify(deep=True).is_clean


@BOTH
def test_who_comes_second_has_a_conflict(storage: Storage, version: int) -> None:
    one, other = make(storage, version), Repository.open(storage)
    tip = one.lookup_branch("main")
    mine, theirs = one.writable_session("main"), other.writable_session("main")
    for session in (mine, theirs):
        zarr.open_array(session.store, path="a")[0] = 1
    moved = theirs.commit("first")
    with pytest.raises(ConflictError):
        mine.commit("second")
    with pytest.raises(ConflictError):
        one.reset_branch("main", tip, from_snapshot_id=tip)
    one.create_branch("dev", tip)
    with pytest.raises(AlreadyExistsError):
        other.create_branch("dev", moved)
    one.create_tag("v1", tip)
    with pytest.raises(AlreadyExistsError):
        other.create_tag("v1", moved)
    # The key of a reference or of `repo`, with a version that is not the newest.
    key = "repo" if version == 2 else "refs/branch.main/ref.json"
    data, stale = storage.get_with_version(key)
    fill(other, 1)
    with pytest.raises(ConflictError):
        storage.replace(key, data, stale)
    assert other.lookup_branch("main") != moved


@BOTH
def test_expiry_collection_and_configuration(storage: Storage, version: int) -> None:
    repo = make(storage, version)
    for place in range(4):
        fill(repo, place)
    repo.create_tag("gone", "main~1")
    repo.delete_tag("gone")
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.delete_branch("dev")
    Repository.open(storage, RepositoryConfig(inline_chunk_threshold_bytes=3)).save_config()
    again = Repository.open(storage)
    assert again.config.inline_chunk_threshold_bytes == 3
    assert (again.list_tags(), again.list_branches()) == (set(), {"main"})
    again.expire_snapshots(keep_last=2)
    summary = again.garbage_collect(datetime.now(UTC) + timedelta(minutes=1))
    assert summary.snapshots_deleted == 3
    fresh = Repository.open(storage)
    assert [info.message for info in fresh.ancestry(branch="main")][:2] == ["3", "2"]
    assert fresh.verify(deep=True).is_clean
    fill(fresh, 5)
