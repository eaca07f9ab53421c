"""The generations `store` and `dataset` on an object store: commits, races, refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import icefloe
from icefloe import ConflictDetector, Repository
from icefloe.errors import UnsafeStorageError
from icefloe.storage import probe
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.port import Capabilities, ObjectVersion
from icefloe.testing.generations import make, picture

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import BytesLike
    from tests.endpoints.fixtures import S3Endpoint


@pytest.mark.endpoint
@pytest.mark.parametrize("generation", ["store", "dataset"])
def test_threads_commit_to_one_branch(s3_endpoint: S3Endpoint, generation: str) -> None:
    # R0-15, R3-05, R3-18
    storage = s3_endpoint.storage()
    repo = make(storage, {"generation": generation})
    expected = icefloe.in_memory_storage()
    make(expected, {"generation": generation})
    assert picture(storage) == picture(expected)

    def write(number: int) -> str:
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (number,), b"%d!" % number)
        return session.commit(f"{number}", rebase_with=ConflictDetector())

    with ThreadPoolExecutor(4) as threads:
        ids = set(threads.map(write, range(4)))
    infos = list(Repository.open(storage).ancestry(branch="main"))
    assert {info.id for info in infos[:4]} == ids
    reader = Repository.open(storage).readonly_session("main")
    assert [reader.get_chunk("/b", (n,)) for n in range(4)] == [b"0!", b"1!", b"2!", b"3!"]


class Careless(ForwardingStorage):
    """A store that ignores the condition of a swap, as some do."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(needs_probe=True)

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        del expected
        self.inner.put(key, data)
        return self.inner.get_with_version(key)[1]


@pytest.mark.parametrize("generation", ["store", "dataset"])
def test_a_store_that_swaps_carelessly_is_refused(generation: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(probe._passed_replace, "locations", set())
    storage = Careless(icefloe.in_memory_storage())
    if generation == "store":
        Repository.create(storage, generation=generation)
        return
    with pytest.raises(UnsafeStorageError, match="If-Match"):
        Repository.create(storage, generation=generation)


class WithoutSwaps(ForwardingStorage):
    """A store that can only create files that do not exist."""

    def replace(self, key: str, data: BytesLike, expected: ObjectVersion | None) -> ObjectVersion:
        raise AssertionError(f"swapped {key} for {len(data)} bytes: {expected}")


def test_a_store_only_creates_references(tmp_path: Path) -> None:  # R3-38
    for storage in (icefloe.in_memory_storage(), icefloe.local_filesystem_storage(tmp_path / "r")):
        repo = make(WithoutSwaps(storage), {"generation": "store"})
        session = repo.writable_session("main")
        session.tree.set_chunk("/b", (0,), b"new")
        tip = session.commit("one chunk")
        repo.create_branch("other", tip)
        repo.create_tag("v1", tip)
        repo.reset_branch("main", repo.lookup_snapshot(tip).parent_id)
        repo.delete_branch("other")
        assert repo.list_branches() == {"main"}
        assert Repository.open(storage).lookup_tag("v1") == tip
