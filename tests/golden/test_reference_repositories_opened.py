"""The two reference repositories through the public API: what a user of theirs must find.

They are not part of the project. They are read where they lie beside it, if they do. The facts
are those of section 7.1 of the study of their formats.
"""

from __future__ import annotations

import http.client
import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig, VirtualChunkContainer
from icefloe.errors import AlreadyExistsError, RefNotFoundError, VirtualChunkError
from tests.builders import read_array

if TYPE_CHECKING:
    from icefloe.session import Session
    from icefloe.storage.local import LocalStorage
    from tests.endpoints.fixtures import S3Endpoint

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
FOLDERS = {"bare": "gen3-bare-msgpack", "header39": "gen3-header39"}
BUCKET = "testbucket"
VIRTUAL_KEYS = {"bare": "path/to/python/chunk-1", "header39": "can_read_old/chunk-1"}
BIG, SMALL = "group1/big_chunks", "group1/small_chunks"
INNER = "group2/group3/group4/group5/inner"
MAIN = ["set virtual chunk", "fill data", "empty structure", "Repository initialized"]
MY_BRANCH = ["some more structure", "delete a chunk", *MAIN]

pytestmark = pytest.mark.skipif(
    not GOLDEN.is_dir(), reason=f"the reference repositories are not at {GOLDEN}"
)


@pytest.fixture(params=list(FOLDERS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def repo(name: str) -> Repository:
    return Repository.open(icefloe.local_filesystem_storage(str(GOLDEN / FOLDERS[name])))


def at(repo: Repository, message: str) -> Session:
    """The snapshot of my-branch that has a message."""
    (found,) = [i.id for i in repo.ancestry(branch="my-branch") if i.message == message]
    return repo.readonly_session(snapshot_id=found)


def values(session: Session, path: str) -> np.ndarray:
    return read_array(session, path)


def test_references(repo: Repository) -> None:
    assert repo.list_branches() == {"main", "my-branch"}
    assert repo.list_tags() == {"it works!", "it also works!"}
    history = [info.id for info in repo.ancestry(branch="my-branch")]
    assert repo.lookup_tag("it also works!") == repo.lookup_branch("my-branch") == history[0]
    assert repo.lookup_tag("it works!") == history[1]
    assert repo.lookup_branch("main") == history[2]
    with pytest.raises(RefNotFoundError, match="ref not found"):
        repo.lookup_tag("deleted")


def test_histories(repo: Repository) -> None:
    for branch, messages in (("main", MAIN), ("my-branch", MY_BRANCH)):
        history = list(repo.ancestry(branch=branch))
        assert [info.message for info in history] == messages
        for info, parent in itertools.pairwise(history):
            assert info.parent_id == parent.id
            assert info.written_at > parent.written_at
        assert history[-1].parent_id is None
    assert [i.message for i in repo.ancestry(tag="it works!")] == MY_BRANCH[1:]
    assert repo.readonly_session("my-branch~2").snapshot_id == repo.lookup_branch("main")


def test_nodes_and_attributes(repo: Repository) -> None:
    on_main = {"group1", BIG, SMALL}
    groups = {"group2", "group2/group3", "group2/group3/group4", "group2/group3/group4/group5"}
    for branch, expected in (("main", on_main), ("my-branch", on_main | groups | {INNER})):
        session = repo.readonly_session(branch)
        root = zarr.open_group(session.store, mode="r")
        assert dict(root.attrs) == {}
        members = dict(root.members(max_depth=None))
        assert members.keys() == expected
        for node in members.values():
            kind = "array" if isinstance(node, zarr.Array) else "group"
            assert dict(node.attrs) == {
                "this": f"is a nice {kind}",
                "icechunk": 1,
                "size": 42.0,
            }
            assert isinstance(node.attrs["size"], float)
            assert isinstance(node.attrs["icechunk"], int)


def test_arrays(repo: Repository, name: str) -> None:
    root = zarr.open_group(repo.readonly_session("my-branch").store, mode="r")
    for path in (BIG, INNER):
        array = root[path]
        assert (array.shape, array.chunks, array.dtype) == ((10, 10), (5, 5), np.float32)
        assert np.isnan(array.fill_value)
    small = root[SMALL]
    assert (small.shape, small.chunks, small.dtype, small.fill_value) == ((5,), (1,), np.int8, 8)
    for path in (BIG, SMALL, INNER):
        document: Any = root[path].metadata.to_dict()
        codecs = [codec["name"] for codec in document["codecs"]]
        assert codecs == (["bytes"] if name == "bare" else ["bytes", "zstd"])
        assert root[path].metadata.dimension_names is None
        assert document["chunk_key_encoding"]["configuration"]["separator"] == "/"


def test_values(repo: Repository) -> None:
    np.testing.assert_array_equal(values(at(repo, "fill data"), BIG), np.full((10, 10), 42.0))
    empty = at(repo, "empty structure")
    assert np.isnan(values(empty, BIG)).all()
    assert values(empty, SMALL).tolist() == [8] * 5
    assert values(repo.readonly_session("main"), SMALL).tolist() == [84] * 5
    for session in (
        repo.readonly_session("my-branch"),
        repo.readonly_session(tag="it works!"),
        repo.readonly_session(tag="it also works!"),
    ):
        assert values(session, SMALL).tolist() == [84, 84, 84, 84, 8]
    assert np.isnan(values(repo.readonly_session("my-branch"), INNER)).all()


def test_chunk_kinds(repo: Repository) -> None:
    kind = icefloe.ChunkType
    filled, main = at(repo, "fill data"), repo.readonly_session("main")
    for coords in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert at(repo, "empty structure").chunk_type(BIG, coords) == kind.UNINITIALIZED
        assert filled.chunk_type(BIG, coords) == kind.NATIVE
        assert main.chunk_type(BIG, coords) == (kind.NATIVE if any(coords) else kind.VIRTUAL)
    my_branch = repo.readonly_session("my-branch")
    for number in range(5):
        assert main.chunk_type(SMALL, (number,)) == kind.INLINE
        expected = kind.INLINE if number < 4 else kind.UNINITIALIZED
        assert my_branch.chunk_type(SMALL, (number,)) == expected


def test_listing(repo: Repository) -> None:
    store = repo.readonly_session("my-branch").store
    assert set(store.list_dir("")) == {"group1", "group2", "zarr.json"}
    assert set(store.list_dir("group1")) == {"big_chunks", "small_chunks", "zarr.json"}
    assert set(store.list_dir("group2")) == {"group3", "zarr.json"}
    assert set(store.list_dir("group2/group3")) == {"group4", "zarr.json"}
    assert set(store.list_dir("group2/group3/group4/group5")) == {"inner", "zarr.json"}
    assert set(store.list_dir(INNER)) == {"c", "zarr.json"}
    assert set(store.list_dir(f"{SMALL}/c")) == {"0", "1", "2", "3"}


def test_differences(repo: Repository) -> None:
    diff = repo.diff(from_snapshot_id=at(repo, "empty structure").snapshot_id, to_branch="main")
    assert diff.updated_chunks == {
        f"/{BIG}": [[0, 0], [0, 1], [1, 0], [1, 1]],
        f"/{SMALL}": [[0], [1], [2], [3], [4]],
    }
    assert not (diff.new_groups | diff.new_arrays | diff.deleted_groups | diff.deleted_arrays)
    assert not (diff.updated_groups | diff.updated_arrays)
    later = repo.diff(from_branch="main", to_branch="my-branch")
    assert later.new_arrays == {f"/{INNER}"}
    assert len(later.new_groups) == 4
    assert later.updated_chunks == {f"/{SMALL}": [[4]]}


def test_configuration() -> None:
    storage = icefloe.local_filesystem_storage(str(GOLDEN / FOLDERS["header39"]))
    assert Repository.open(storage).config.inline_chunk_threshold_bytes == 12
    bare = icefloe.local_filesystem_storage(str(GOLDEN / FOLDERS["bare"]))
    assert Repository.fetch_config(bare) is None


def test_opening_and_reading_writes_nothing(name: str, tmp_path: Path) -> None:
    copied(name, tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    repo = Repository.open(icefloe.local_filesystem_storage(str(tmp_path / "copy")))
    values(repo.readonly_session("my-branch"), SMALL)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def copied(name: str, tmp_path: Path) -> LocalStorage:
    shutil.copytree(GOLDEN / FOLDERS[name], tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return icefloe.local_filesystem_storage(str(tmp_path / "copy"))


# --- going on


def test_a_commit_on_top_can_be_read_with_all_before_it(name: str, tmp_path: Path) -> None:
    storage = copied(name, tmp_path)
    repo = Repository.open(storage)
    session = repo.writable_session("my-branch")
    root = zarr.open_group(session.store, mode="r+")
    root[SMALL][3:] = 7
    root[BIG][5:, 5:] = 1.5
    root[INNER][:5, :5] = 2.5
    root["group2"].attrs["new"] = "attribute"
    root.create_array("fresh", shape=(4,), chunks=(2,), dtype="i4")[:] = range(4)
    session.move("/group2/group3", "/group1/moved")
    session.commit("ours", {"by": "icefloe"})
    repo.create_tag("ours", repo.lookup_branch("my-branch"))
    repo.create_branch("another", "main~1")

    again = Repository.open(storage)
    assert [info.message for info in again.ancestry(branch="my-branch")] == ["ours", *MY_BRANCH]
    assert [info.message for info in again.ancestry(branch="another")] == MAIN[1:]
    shown = again.readonly_session(tag="ours")
    assert values(shown, SMALL).tolist() == [84, 84, 84, 7, 7]
    assert values(shown, "fresh").tolist() == [0, 1, 2, 3]
    big = zarr.open_array(shown.store, path=BIG, mode="r")
    assert (big[5:, 5:] == 1.5).all()
    assert (big[:5, 5:] == 42).all()
    inner = values(shown, "group1/moved/group4/group5/inner")
    assert (inner[:5, :5] == 2.5).all()
    assert np.isnan(inner[5:]).all()
    assert zarr.open_group(shown.store, path="group2", mode="r").attrs["new"] == "attribute"
    assert shown.chunk_type(BIG, (0, 0)) == icefloe.ChunkType.VIRTUAL
    # What was there before is as it was.
    assert values(again.readonly_session(tag="it works!"), SMALL).tolist() == [84, 84, 84, 84, 8]
    diff = again.diff(from_tag="it also works!", to_tag="ours")
    assert diff.new_arrays == {"/fresh"}
    assert diff.moved_nodes[0][1].startswith("/group1/moved")
    assert diff.updated_chunks[f"/{SMALL}"] == [[3], [4]]


def test_old_references_stay_what_they_are(name: str, tmp_path: Path) -> None:
    repo = Repository.open(copied(name, tmp_path))
    tip = repo.lookup_branch("main")
    with pytest.raises(AlreadyExistsError):
        repo.create_tag("it works!", tip)
    with pytest.raises(AlreadyExistsError):
        repo.create_branch("my-branch", tip)
    repo.reset_branch("main", "main~1")
    assert [info.message for info in repo.ancestry(branch="main")] == MAIN[1:]
    repo.delete_branch("my-branch")
    assert repo.list_branches() == {"main"}
    repo.create_branch("my-branch", tip)
    assert [info.message for info in repo.ancestry(branch="my-branch")] == MAIN


# --- virtual chunks


def put_object(endpoint: S3Endpoint, key: str, data: bytes) -> None:
    create_bucket(endpoint.endpoint_url, BUCKET)
    folder, _, file = key.rpartition("/")
    replace(endpoint, bucket=BUCKET).storage(folder).put(file, data)


def create_bucket(endpoint_url: str, bucket: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(endpoint_url).netloc, timeout=30)
    connection.request("PUT", f"/{bucket}", headers={"Content-Length": "0"})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status in (200, 409)


def opened_with_access(name: str, endpoint: S3Endpoint) -> Repository:
    store = icefloe.s3_store(
        region=endpoint.region,
        endpoint_url=endpoint.endpoint_url,
        allow_http=True,
        force_path_style=True,
        s3_compatible=True,
    )
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(f"s3://{BUCKET}/", store))
    credentials = icefloe.s3_credentials(
        access_key_id=endpoint.access_key_id, secret_access_key=endpoint.secret_access_key
    )
    return Repository.open(
        icefloe.local_filesystem_storage(str(GOLDEN / FOLDERS[name])),
        config,
        icefloe.containers_credentials({f"s3://{BUCKET}/": credentials}),
    )


def neighbour(repo: Repository) -> bytes:
    """The bytes of chunk (0, 1), which the virtual object has too."""
    data = repo.readonly_session("main").get_chunk(f"/{BIG}", (0, 1))
    assert data is not None
    return data


@pytest.mark.endpoint
def test_the_virtual_chunk_is_read_where_it_is_allowed(name: str, s3_endpoint: S3Endpoint) -> None:
    repo = opened_with_access(name, s3_endpoint)
    data = neighbour(repo)
    # The writer of header39 gave a length of 100 to an object of 19 bytes.
    assert len(data) == (100 if name == "bare" else 19)
    put_object(s3_endpoint, VIRTUAL_KEYS[name], data)
    session = repo.readonly_session("main")
    assert session.all_virtual_chunk_locations() == [f"s3://{BUCKET}/{VIRTUAL_KEYS[name]}"]
    assert session.get_chunk(f"/{BIG}", (0, 0)) == data
    np.testing.assert_array_equal(values(session, BIG), np.full((10, 10), 42.0))


@pytest.mark.endpoint
def test_a_short_object_without_a_checksum_is_refused(s3_endpoint: S3Endpoint) -> None:
    repo = opened_with_access("bare", s3_endpoint)
    put_object(s3_endpoint, VIRTUAL_KEYS["bare"], neighbour(repo)[:19])
    with pytest.raises(VirtualChunkError, match="expected 100 bytes"):
        values(repo.readonly_session("main"), BIG)


def test_the_virtual_chunk_is_not_read_without_leave(repo: Repository) -> None:
    with pytest.raises(VirtualChunkError, match="VirtualChunkContainer"):
        values(repo.readonly_session("main"), BIG)
