"""What 2.x of the official package added, used as its users would."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from obstore.store import HTTPStore, LocalStore, MemoryStore, S3Store

import icefloe
import icefloe.credentials
from icefloe import Repository, RepositoryConfig, SessionMode, SpecVersion
from icefloe.storage.access.url import storage_from_url
from icefloe.storage.local import LocalStorage
from tests.builders import new_repository, read_array
from tests.endpoints.fixtures import fresh_prefix

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.session import Session
    from tests.endpoints.fixtures import S3Endpoint


def two_writers(repository: Repository, *, same: bool) -> Session:
    """A session whose branch moved on: with the same chunk, or with another one."""
    with repository.transaction("main", message="an array") as store:
        zarr.create_array(store, name="a", data=np.zeros(4), chunks=(2,))
    ours, theirs = repository.writable_session("main"), repository.writable_session("main")
    zarr.open_array(ours.store, path="a")[0] = 1
    zarr.open_array(theirs.store, path="a")[0 if same else 3] = 2
    theirs.commit("theirs")
    return ours


# --- the solver of the configuration


@pytest.mark.parametrize(("policy", "expected"), [("ours", [1, 0, 0, 0]), ("theirs", [2, 0, 0, 0])])
def test_a_commit_is_rebased_as_the_configuration_says(
    policy: Any, expected: list[float], tmp_path: Path
) -> None:
    repository = new_repository(tmp_path / "r", RepositoryConfig(rebase_with=policy))
    two_writers(repository, same=True).commit("ours")
    assert read_array(repository, branch="main").tolist() == expected
    reopened = Repository.open(tmp_path / "r")
    assert reopened.config.rebase_with == policy  # it is stored with the repository


def test_the_configured_solver_only_detects() -> None:
    repository = new_repository(config=RepositoryConfig(rebase_with="detect"))
    with pytest.raises(icefloe.RebaseFailedError):
        two_writers(repository, same=True).commit("ours")
    other = new_repository(config=RepositoryConfig(rebase_with="merge"))
    two_writers(other, same=False).commit("ours")
    assert read_array(other, branch="main").tolist() == [1, 0, 0, 2]


def test_a_solver_that_is_passed_goes_before_the_configured_one() -> None:
    repository = new_repository(config=RepositoryConfig(rebase_with="ours"))
    with pytest.raises(icefloe.RebaseFailedError):
        two_writers(repository, same=True).commit("ours", rebase_with=icefloe.ConflictDetector())


def test_only_known_solvers_are_configured() -> None:
    unknown: Any = "os.system"
    with pytest.raises(icefloe.InvalidInputError, match="rebase_with"):
        RepositoryConfig(rebase_with=unknown)


# --- the graph of one history


def test_the_graph_of_one_branch_tag_or_snapshot() -> None:
    repository = new_repository()
    first = repository.lookup_branch("main")
    repository.create_tag("start", first)
    repository.create_branch("other", first)
    for branch in ("main", "other"):
        with repository.transaction(branch, message=f"on {branch}") as store:
            zarr.create_group(store, path=branch)

    def messages(**version: str) -> list[str]:
        return [row.message for row in repository.ancestry_graph(**version).rows]  # type: ignore[arg-type]

    assert messages(branch="other") == ["on other", "Repository initialized"]
    assert messages(tag="start") == ["Repository initialized"]
    assert messages(snapshot_id=repository.lookup_branch("main"))[0] == "on main"
    assert len(messages()) == 3
    with pytest.raises(icefloe.InvalidInputError, match="Must provide one of"):
        repository.ancestry_graph(branch="main", tag="start")


def test_a_plain_graph_has_no_colours() -> None:
    repository = new_repository()
    assert "#1f77b4" in repository.ancestry_graph().to_svg()
    assert "#" not in repository.ancestry_graph(plain=True).to_svg()


# --- small things


def test_modes_and_versions_are_enumerations() -> None:
    repository = Repository.create(
        icefloe.in_memory_storage(), spec_version=SpecVersion.v1, generation="icechunk"
    )
    assert repository.spec_version == SpecVersion.v1 < SpecVersion.current()
    assert repository.writable_session("main").mode is SessionMode.writable
    assert repository.readonly_session("main").mode == "readonly"
    assert icefloe.ChunkType["native"] is icefloe.ChunkType.NATIVE


async def test_the_log_of_updates_is_read_without_blocking() -> None:
    repository = Repository.create(icefloe.in_memory_storage(), generation="icechunk")
    repository.create_tag("v1", repository.lookup_branch("main"))
    kinds = [update.kind async for update in repository.ops_log_async()]
    assert kinds == [update.kind for update in repository.ops_log()]
    assert len(kinds) == 2


def test_limits_of_a_collection_have_the_official_names() -> None:
    repository = new_repository()
    done = repository.garbage_collect(
        timedelta(days=1), max_concurrent_deletes=2, max_concurrent_listings=3
    )
    assert done.chunks_deleted == 0


def test_open_or_create_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(icefloe.AlreadyExistsError, match="clean"):
        Repository.open_or_create(tmp_path)
    assert Repository.open_or_create(tmp_path, check_clean_root=False).list_branches() == {"main"}


def test_containers_without_secrets_are_authorised_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"\x07\x08")
    prefix = f"{(tmp_path / 'data').as_uri()}/"
    config = RepositoryConfig.default()
    store = icefloe.local_filesystem_store(str(tmp_path / "data"))
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
    access = icefloe.credentials.LocalFileSystemAccess()
    repository = Repository.create(
        tmp_path / "repo", config, authorize_virtual_chunk_access={prefix: access}
    )
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(2,), chunks=(2,), dtype="u1", compressors=None
    )
    session.store.set_virtual_ref("a/c/0", f"{prefix}a.bin", offset=0, length=2)
    assert array[:].tolist() == [7, 8]
    assert icefloe.containers_credentials({prefix: access}) == {prefix: None}


# --- stores of obstore


def test_a_repository_in_a_store_of_obstore(s3_endpoint: S3Endpoint) -> None:
    prefix = fresh_prefix()
    store = S3Store(
        s3_endpoint.bucket,
        prefix=prefix,
        region=s3_endpoint.region,
        endpoint=s3_endpoint.endpoint_url,
        access_key_id=s3_endpoint.access_key_id,
        secret_access_key=s3_endpoint.secret_access_key,
        client_options={"allow_http": True},
    )
    repository = Repository.create(store)
    with repository.transaction("main", message="an array") as zarr_store:
        zarr.create_array(zarr_store, name="a", data=np.arange(4))
    assert s3_endpoint.secret_access_key not in repr(repository.storage)
    again = Repository.open(s3_endpoint.storage(prefix))
    assert read_array(again, branch="main").tolist() == [0, 1, 2, 3]


def test_local_and_other_stores_of_obstore(tmp_path: Path) -> None:
    repository = Repository.create(LocalStore(tmp_path / "r", mkdir=True))
    assert repository.storage == LocalStorage(tmp_path / "r")
    storage = icefloe.Repository.open(tmp_path / "r").storage
    assert storage == repository.storage
    with pytest.raises(icefloe.InvalidInputError, match="use in_memory_storage"):
        Repository.create(MemoryStore())
    allowed: Any = {"allow_http": True}
    assert storage_from_url(
        HTTPStore("http://127.0.0.1:9/r/", client_options=allowed)
    ).location == ("http://127.0.0.1:9/r")
    with pytest.raises(icefloe.InvalidInputError, match="pass allow_http=True"):
        Repository.open(HTTPStore("http://127.0.0.1:9/r/"))
