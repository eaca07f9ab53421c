"""Torn, empty and missing objects: a clear error that names them, never an older state (T-TORN)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zarr

import icefloe
from icefloe import Repository, RepositoryConfig
from icefloe.errors import FormatError, IcefloeError, StorageError
from tests import counting
from tests.builders import arrays_of_two_kinds
from tests.faults.pictures import copy_objects, picture

if TYPE_CHECKING:
    from icefloe.storage.port import Storage

NEWEST = "refs/branch.main/ZZZZZZZX.json"


@pytest.fixture(scope="module", params=[2, 1])
def prepared(request: pytest.FixtureRequest) -> Storage:
    storage = icefloe.in_memory_storage()
    config = RepositoryConfig(inline_chunk_threshold_bytes=4, inline_attributes_threshold_bytes=200)
    repo = Repository.create(storage, config, spec_version=request.param)
    with repo.transaction("main", message="one") as store:
        arrays_of_two_kinds(store, chunks=2)
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.create_tag("v1", repo.lookup_branch("main"))
    with repo.transaction("main", message="two") as store:
        root = zarr.open_group(store, mode="r+")
        root["native"][:8] = 2
        root.attrs["long"] = "x" * 300
    return storage


@pytest.fixture
def storage(prepared: Storage) -> Storage:
    storage = icefloe.in_memory_storage()
    copy_objects(prepared, storage)
    return storage


def picture_or_error(storage: Storage) -> dict[str, Any] | IcefloeError:
    try:
        return picture(storage)
    except IcefloeError as error:
        return error


def test_a_torn_newest_reference_is_an_error_at_each_length(storage: Storage) -> None:
    whole = storage.get(NEWEST)
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [b"\0" * len(whole), b" " * len(whole), b"{}", b'{"snapshot":1}', b"\xff\xfe"]
    for data in damaged:
        storage.put(NEWEST, data)
        with pytest.raises(FormatError) as caught:
            Repository.open(storage)
        assert caught.value.key == NEWEST
        assert NEWEST in str(caught.value)
    storage.put(NEWEST, whole)
    assert Repository.open(storage).readonly_session("main").get_node("/") is not None


def test_a_torn_reference_is_an_error_for_those_who_have_the_repository_open(
    storage: Storage,
) -> None:
    repo = Repository.open(storage)
    session = repo.writable_session("main")
    zarr.open_group(session.store).attrs["a"] = 1
    storage.put("refs/branch.main/ZZZZZZZW.json", b"")
    for use in (
        lambda: repo.lookup_branch("main"),
        lambda: repo.readonly_session("main"),
        lambda: repo.writable_session("main"),
        lambda: session.commit("over a torn reference"),
        lambda: repo.reset_branch("main", "v1"),
    ):
        with pytest.raises(FormatError, match=r"refs/branch\.main/ZZZZZZZW\.json"):
            use()
    # What does not need the torn reference still works.
    assert repo.readonly_session(tag="v1").get_node("/native") is not None
    with repo.transaction("dev", message="elsewhere") as store:
        zarr.open_group(store).attrs["b"] = 1


@pytest.mark.parametrize("key", ["refs/branch.dev/ZZZZZZZZ.json", "refs/tag.v1/ref.json"])
def test_another_torn_reference_does_not_touch_main(storage: Storage, key: str) -> None:
    storage.put(key, b"")
    repo = Repository.open(storage)
    look = repo.lookup_branch if "branch" in key else repo.lookup_tag
    with pytest.raises(FormatError, match=key.replace(".", r"\.")):
        look("dev" if "branch" in key else "v1")
    with repo.transaction("main", message="three") as store:
        zarr.open_group(store).attrs["b"] = 1
    assert len(list(Repository.open(storage).ancestry(branch="main"))) == 4


def test_any_damaged_object_is_reported_or_does_no_harm(storage: Storage) -> None:
    """Reading everything either gives all as it was, or an error of ours that names the object."""
    expected = picture(storage)
    reported = set()
    for info in list(storage.list()):
        whole = storage.get(info.key)
        for data in (b"", whole[: len(whole) // 2], whole[:-1], b"\0" * len(whole)):
            storage.put(info.key, data)
            counting.count(counting.FILES)
            found = picture_or_error(storage)
            if isinstance(found, IcefloeError):
                assert isinstance(found, (FormatError, StorageError)), (info.key, found)
                assert info.key.rpartition("/")[2] in str(found), (info.key, found)
                reported.add(info.key.partition("/")[0])
            elif not info.key.startswith("chunks/"):
                # Chunks may be any bytes: that they are wrong shows only in their number.
                assert found == expected, info.key
        storage.put(info.key, whole)
    assert reported >= {"refs", "snapshots", "manifests", "attributes", "chunks"}


def test_any_missing_object_is_reported(storage: Storage) -> None:
    expected = picture(storage)
    for info in list(storage.list()):
        whole = storage.get(info.key)
        storage.delete_many([info.key])
        counting.count(counting.FILES)
        found = picture_or_error(storage)
        # Without a reference the repository is as before it came; a log is not read here.
        if not info.key.startswith(("transactions/", "refs/", "config/", "maintenance/")):
            assert isinstance(found, IcefloeError), info.key
            assert info.key.rpartition("/")[2] in str(found), (info.key, found)
        storage.put(info.key, whole)
    assert picture(storage) == expected
