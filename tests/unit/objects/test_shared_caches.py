"""Caches of a process: shared where they may be, and only there."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

import icefloe
from icefloe import Repository, local_filesystem_storage, s3_storage
from icefloe.errors import FormatError
from icefloe.model.chunk_refs import ChunkRefs, NativeRef, VirtualRef
from icefloe.model.ids import AttributesId, ChunkFileId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayChunks, LazyBlock, Manifest, ManifestIndex, lay_out
from icefloe.objects import shared_caches
from icefloe.objects.cache import ByteCache
from icefloe.objects.shared_caches import CacheBudget, Caches, caches_for, forget_shared
from icefloe.storage.concurrency import in_threads
from icefloe.storage.forwarding import ForwardingStorage
from icefloe.storage.memory import MemoryStorage
from icefloe.storage.port import Sharable
from tests.documents import array, group, set_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from icefloe.storage.port import Storage

BUDGET = CacheBudget(1000, 1000, 1000)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    forget_shared()
    yield
    forget_shared()


def written(storage: Storage) -> Repository:
    repository = Repository.create(storage)
    session = repository.writable_session("main")
    session.tree.set_document("/", group())
    session.tree.set_document("/a", array((4,)))
    set_chunks(session, "/a", [0, 1], b"bytes")
    session.commit("chunks")
    return repository


def read(repository: Repository) -> bytes | None:
    return repository.readonly_session("main").get_chunk("/a", (0,))


def test_repositories_at_one_place_share_what_was_decoded(tmp_path: Path) -> None:
    written(local_filesystem_storage(tmp_path))
    forget_shared()
    assert read(Repository.open(local_filesystem_storage(tmp_path))) == b"bytes"
    shutil.rmtree(tmp_path / "manifests")

    assert read(Repository.open(local_filesystem_storage(tmp_path))) == b"bytes"
    forget_shared()
    with pytest.raises(FormatError, match="is missing"):
        read(Repository.open(local_filesystem_storage(tmp_path)))


def test_another_place_has_the_same_ids_and_shares_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    written(local_filesystem_storage(one))
    shutil.copytree(one, two)
    shutil.rmtree(two / "manifests")

    assert read(Repository.open(local_filesystem_storage(one))) == b"bytes"
    with pytest.raises(FormatError, match="is missing"):
        read(Repository.open(local_filesystem_storage(two)))


def test_a_place_that_is_created_again_has_its_own_first_snapshot(tmp_path: Path) -> None:
    def first(repository: Repository) -> icefloe.SnapshotInfo:
        return list(repository.ancestry(branch="main"))[-1]

    storage = local_filesystem_storage(tmp_path / "place")
    before = first(Repository.create(storage))
    shutil.rmtree(tmp_path / "place")
    created = first(Repository.create(local_filesystem_storage(tmp_path / "place")))
    opened = first(Repository.open(local_filesystem_storage(tmp_path / "place")))

    assert before.id == created.id == opened.id
    assert opened.written_at == created.written_at > before.written_at


def test_memory_and_storages_around_others_share_nothing(tmp_path: Path) -> None:
    local = local_filesystem_storage(tmp_path)
    for storage in (MemoryStorage.named("same"), ForwardingStorage(local)):
        one, _ = caches_for(storage, BUDGET, "repository")
        two, _ = caches_for(storage, BUDGET, "repository")
        assert one is not two
    shared, scope = caches_for(local, BUDGET, "repository")
    assert caches_for(local, BUDGET, "repository") == (shared, scope)
    assert caches_for(local, BUDGET, "store")[1] != scope


def key_of(storage: Storage) -> object:
    assert isinstance(storage, Sharable)
    return storage.sharing_key()


def bucket(secret: str | None = None, prefix: str = "p", bucket: str = "b") -> Storage:
    if secret is None:
        return s3_storage(bucket=bucket, prefix=prefix, region="us-east-1", from_env=True)
    return s3_storage(
        bucket=bucket,
        prefix=prefix,
        region="us-east-1",
        access_key_id="key",
        secret_access_key=secret,
    )


def test_only_equal_credentials_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of(bucket("one")) == key_of(bucket("one"))
    assert key_of(bucket("one")) != key_of(bucket("two"))
    assert key_of(bucket("one")) != key_of(bucket("one", prefix="q"))
    assert key_of(bucket("one")) != key_of(bucket("one", bucket="c"))
    anonymous = s3_storage(bucket="b", prefix="p", region="us-east-1", anonymous=True)
    assert len({key_of(bucket("one")), key_of(anonymous), key_of(bucket())}) == 3
    assert "one" not in repr(key_of(bucket("one")))

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    first = key_of(bucket())
    assert key_of(bucket()) == first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    assert key_of(bucket()) != first


def test_the_user_of_the_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = local_filesystem_storage(tmp_path)
    mine = key_of(storage)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert key_of(storage) != mine


def attributes_id(number: int) -> AttributesId:
    return AttributesId(number.to_bytes(AttributesId.SIZE, "big"))


def test_all_repositories_together_keep_to_the_budget(tmp_path: Path) -> None:
    storages = [local_filesystem_storage(tmp_path / str(number)) for number in range(5)]
    pools = {id(caches_for(storage, BUDGET, "repository")[0]) for storage in storages}
    assert len(pools) == 1
    for storage in storages:
        pool, scope = caches_for(storage, BUDGET, "repository")
        for number in range(10):
            pool.attributes.put((scope, attributes_id(number)), [b"x" * 90], 90)
            assert pool.attributes.nbytes <= BUDGET.attributes
    assert len(pool.attributes) == 1000 // 90


def test_another_budget_is_another_pool(tmp_path: Path) -> None:
    storage = local_filesystem_storage(tmp_path)
    pool, scope = caches_for(storage, BUDGET, "repository")
    pool.attributes.put((scope, attributes_id(1)), [b"x"], 1)
    none, scope = caches_for(storage, CacheBudget(0, 0, 0), "repository")
    none.attributes.put((scope, attributes_id(1)), [b"x"], 1)
    assert len(none.attributes) == 0
    assert len(pool.attributes) == 1


def test_pools_that_nobody_uses_do_not_pile_up(tmp_path: Path) -> None:
    storage = local_filesystem_storage(tmp_path)
    kept, _ = caches_for(storage, BUDGET, "repository")
    for size in range(20):
        caches_for(storage, CacheBudget(size, size, size), "repository")
    assert len(shared_caches._recent) <= 4
    assert caches_for(storage, BUDGET, "repository")[0] is kept


def test_threads_share_a_cache() -> None:
    cache: ByteCache[int, bytes] = ByteCache(1000)

    def work(start: int) -> None:
        for number in range(start, start + 2000):
            cache.put(number % 97, b"x" * (number % 50), number % 50)
            cache.get((number * 7) % 97)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.nbytes <= 1000
    assert cache.nbytes == sum(nbytes for _, nbytes in cache._entries.values())


def lazy_index(decode: Callable[[], ChunkRefs], source_bytes: int) -> ManifestIndex:
    """The index of a large official manifest, which is decoded when it is needed."""
    table = ArrayChunks.from_sorted(np.arange(5000)[:, None], decode())
    index, _ = lay_out([(NodeId(bytes(8)), table)])
    block = LazyBlock(None, 5000, lambda _: decode(), source_bytes)
    return msgspec.structs.replace(
        index, block_rows=np.array([0, 5000], dtype=np.int64), resident=(block,)
    )


def test_references_that_are_decoded_later_count_in_the_cache() -> None:
    refs = ChunkRefs.of([VirtualRef("s3://bucket/" + "x" * 500, row, 1) for row in range(5000)])
    caches = Caches(CacheBudget(manifests=2 * (refs.nbytes + 50_000)))
    index = lazy_index(lambda: refs, 1000)
    for number in range(1, 4):
        other = lazy_index(lambda: refs, 30_000)
        caches.keep_index(("scope", ManifestId(bytes([number]) * 12)), other)
    key = ("scope", ManifestId(bytes(12)))
    caches.keep_index(key, index)
    assert len(caches.indexes) == 4
    Manifest(index, index.resident.__getitem__).load_all()
    assert caches.indexes.nbytes <= caches.indexes.max_bytes
    assert caches.indexes.get(key) is index
    assert len(caches.indexes) < 4, "others made room"
    assert caches.indexes.nbytes >= index.nbytes


def test_threads_that_need_all_references_decode_them_once() -> None:
    refs = ChunkRefs.of([NativeRef(ChunkFileId(bytes(12)), row, 1) for row in range(5000)])
    calls: list[int] = []
    begun = threading.Barrier(4)

    def decode() -> ChunkRefs:
        calls.append(1)
        if len(calls) > 1:
            threading.Event().wait(0.2)
        return refs

    caches = Caches(CacheBudget())
    index = lazy_index(decode, 1000)
    caches.keep_index(("scope", ManifestId(bytes(12))), index)

    def read(_: int) -> int:
        begun.wait()
        return len(index.resident[0].refs)

    assert in_threads(read, range(4)) == [5000] * 4
    assert len(calls) == 2, "to make the index, and by one of the threads"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_a_cache_is_in_use_leaves_it_usable() -> None:
    cache: ByteCache[int, bytes] = ByteCache(100)
    cache.put(1, b"kept", 4)
    with cache._lock, shared_caches._lock:  # as another thread would hold them
        child = os.fork()
        if child == 0:
            try:
                cache.put(2, b"more", 4)
                forget_shared()
                os._exit(0 if cache.get(1) == b"kept" and cache.nbytes == 8 else 1)
            finally:
                os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


class Slow(ForwardingStorage):
    """Answers the first request for a key with what was there, when a second one comes."""

    key = ""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.asked = threading.Event()
        self.asked_again = threading.Event()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().get(key, start, length)
        if key == self.key:
            is_first = not self.asked.is_set()
            (self.asked if is_first else self.asked_again).set()
            if is_first:
                self.asked_again.wait(10)
        return data


def test_who_reads_again_does_not_get_what_another_thread_began_to_read() -> None:
    """Expiry in version 1 of the official format gives a snapshot another parent."""
    storage = MemoryStorage()
    writer = Repository.create(storage, generation="icechunk", spec_version=1)
    ids = [writer.lookup_branch("main")]
    for number in range(2):
        session = writer.writable_session("main")
        session.tree.set_document(f"/{number}", group())
        ids.append(session.commit(str(number)))
    slow = Slow(storage)
    files = Repository.open(slow)._context.files
    first, _, newest = map(SnapshotId.parse, ids)
    files.read_snapshot(newest)  # the file that `open` has read
    files.forget()
    slow.key = files.format.layout.snapshot(newest)
    early = threading.Thread(target=files.read_snapshot, args=(newest,))
    early.start()
    assert slow.asked.wait(10)
    writer.expire_snapshots(writer.lookup_snapshot(ids[2]).written_at)
    assert files.read_snapshot(newest, reread=True).parent_id == first
    early.join()
