"""Zarr's own store suite on IcefloeStore.

The suite uses keys such as `foo` with any bytes as values. A session has only arrays and groups,
so a key is a document or a chunk of an array, and a document is valid JSON (api-facts 24, 25).
Where a key of the suite can be a chunk's, the array that has such chunks is made first and the
suite's own test runs; the others are overridden by the same test with keys and documents that can
exist. Each override says which.
"""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator, sync
from zarr.testing.store import StoreTests
from zarr.testing.utils import assert_bytes_equal

import icefloe
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.zarr_store.store import IcefloeStore
from tests import documents

if TYPE_CHECKING:
    from pathlib import Path

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


def array_document(rank: int, encoding: str = "default", separator: str = "/") -> bytes:
    return documents.array_document([2000] * rank, [1] * rank, encoding, separator)


# The array of each chunk key that the suite uses: path, document, coordinates.
CHUNK_KEYS = {
    "c/0": ("/", array_document(1), (0,)),
    **{f"c/{i}/{j}": ("/", array_document(2), (i, j)) for i in range(2) for j in range(3)},
    **{str(i): ("/", array_document(1, "v2", "."), (i,)) for i in range(10)},
    "cc/0": ("/cc", array_document(1, "v2", "/"), (0,)),
    "foo/c/0.0": ("/foo/c", array_document(2, "v2", "."), (0, 0)),
    "foo/0/0": ("/foo", array_document(2, "v2", "/"), (0, 0)),
}


def make_array_of(store: icefloe.IcefloeStore, key: str) -> tuple[Any, ...]:
    path, document, coords = CHUNK_KEYS[key]
    store.session.tree.set_document(path, document)
    return path, coords


class IcefloeStoreTests(StoreTests[IcefloeStore, cpu.Buffer]):
    store_cls = IcefloeStore
    buffer_cls = cpu.Buffer

    async def set(self, store: Any, key: Any, value: Any) -> None:
        if key in CHUNK_KEYS:
            store.session.tree.set_chunk(*make_array_of(store, key), value.to_bytes())
        elif store.session.get_node("/") is None:
            assert key == "zarr.json"
            store.session.tree.set_document("/", value.to_bytes())

    async def get(self, store: Any, key: Any) -> Any:
        if key.endswith("zarr.json"):
            path = "/" + key.removesuffix("zarr.json").strip("/")
            return self.buffer_cls.from_bytes(store.session.tree.document(path))
        path, _, coords = CHUNK_KEYS[key]
        return self.buffer_cls.from_bytes(store.session.get_chunk(path, coords))

    @pytest.fixture
    def repository(self) -> None:
        raise NotImplementedError

    @pytest.fixture
    def store_kwargs(self, repository: icefloe.Repository) -> dict[str, Any]:
        return {"session": repository.writable_session("main")}

    # Stores are made open; this is how one gets another (api-facts 35).
    @pytest.fixture
    async def store_not_open(self, store_kwargs: dict[str, Any]) -> icefloe.IcefloeStore:
        return IcefloeStore(**store_kwargs).with_read_only(read_only=False)

    def test_store_repr(self, store: icefloe.IcefloeStore) -> None:
        assert repr(store).startswith("IcefloeStore(")
        assert str(store) == "<IcefloeStore>"

    def test_store_supports_writes(self, store: icefloe.IcefloeStore) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: icefloe.IcefloeStore) -> None:
        assert store.supports_listing

    def test_store_does_not_support_consolidated_metadata(
        self, store: icefloe.IcefloeStore
    ) -> None:
        assert not store.supports_consolidated_metadata

    # The suite pickles a writable store; ours refuses, for what a copy wrote would be lost. Stores
    # of read-only sessions and of forks travel (api-facts 19).
    async def test_serializable_store(  # type: ignore[override]
        self, store: icefloe.IcefloeStore, repository: icefloe.Repository
    ) -> None:
        with pytest.raises(ValueError, match="fork"):
            pickle.dumps(store)
        for session in (
            repository.readonly_session("main"),
            repository.writable_session("main").fork(),
        ):
            if not repository.storage.capabilities.survives_pickle:
                continue
            original = session.store
            copy = pickle.loads(pickle.dumps(original))
            assert isinstance(copy, IcefloeStore)
            assert copy.read_only == original.read_only
            assert copy.session.snapshot_id == original.session.snapshot_id
            if not copy.read_only:
                await copy.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
                assert await copy.exists("zarr.json")
                assert not await original.exists("zarr.json")

    # Only the keys differ from the suite: `foo` there.
    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        store = await self.store_cls.open(**open_kwargs, read_only=True)
        value = self.buffer_cls.from_bytes(GROUP)
        refusal = "store was opened in read-only mode and does not support writing"
        with pytest.raises(ValueError, match=refusal):
            await store.set("foo/zarr.json", value)
        writer = store.with_read_only(read_only=False)
        assert not writer._is_open
        assert not writer.read_only
        await writer.set("foo/zarr.json", value)
        await writer.delete("foo/zarr.json")
        assert store.read_only
        for reader in (store, store.with_read_only(read_only=True)):
            assert reader.read_only
            with pytest.raises(ValueError, match=refusal):
                await reader.set("foo/zarr.json", value)
            with pytest.raises(ValueError, match=refusal):
                await reader.delete("foo/zarr.json")

    # The suite writes chunks through the store without making their array.
    async def test_getsize_prefix(self, store: icefloe.IcefloeStore) -> None:
        for key in ("c/0/0", "cc/0"):
            make_array_of(store, key)
        await super().test_getsize_prefix(store)

    @pytest.mark.parametrize("key", ["c/0", "foo/c/0.0", "foo/0/0"])
    @pytest.mark.parametrize("data", [b"\x01\x02\x03\x04", b""])
    async def test_set(self, store: icefloe.IcefloeStore, key: str, data: bytes) -> None:
        make_array_of(store, key)
        await super().test_set(store, key, data)

    # The suite's test_set with a key of a document and a valid one.
    @pytest.mark.parametrize("key", ["zarr.json", "foo/zarr.json"])
    @pytest.mark.parametrize("data", [GROUP, array_document(1), array_document(0, "v2", ".")])
    async def test_set_document(self, store: icefloe.IcefloeStore, key: str, data: bytes) -> None:
        await store.set(key, self.buffer_cls.from_bytes(data))
        assert (await self.get(store, key)).to_bytes() == data

    async def test_set_not_open(self, store_not_open: icefloe.IcefloeStore) -> None:
        make_array_of(store_not_open, "c/0")
        await super().test_set_not_open(store_not_open)

    # The suite's keys, with a valid document under `zarr.json`.
    async def test_set_many(self, store: icefloe.IcefloeStore) -> None:
        keys = ["c/0", "foo/c/0.0", "foo/0/0"]
        values = {key: self.buffer_cls.from_bytes(key.encode()) for key in keys}
        for key in keys:
            make_array_of(store, key)
        values["zarr.json"] = self.buffer_cls.from_bytes(array_document(1))
        await store._set_many(values.items())
        for key, value in values.items():
            assert (await self.get(store, key)).to_bytes() == value.to_bytes()

    # The suite stores the key's name as the document `zarr.json`.
    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("zarr.json", RangeByteRequest(0, 2))],
            [("c/0", RangeByteRequest(0, 2)), ("zarr.json", None)],
            [
                ("c/0/0", RangeByteRequest(0, 2)),
                ("c/0/1", SuffixByteRequest(2)),
                ("c/0/2", OffsetByteRequest(2)),
            ],
        ],
    )
    async def test_get_partial_values(
        self, store: icefloe.IcefloeStore, key_ranges: list[Any]
    ) -> None:
        if key_ranges and key_ranges[0][0] == "zarr.json":
            store.session.tree.set_document("/", GROUP)
        await super().test_get_partial_values(store, key_ranges)

    # `foo` is no key; and the suite's document is not valid.
    async def test_exists(self, store: icefloe.IcefloeStore) -> None:
        with pytest.raises(InvalidInputError, match="invalid zarr key format"):
            await store.exists("foo")
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")
        assert not await store.exists("foo/.zarray")
        await store.set("foo/zarr.json", self.buffer_cls.from_bytes(array_document(1)))
        assert await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")
        await store.set("foo/c/0", self.buffer_cls.from_bytes(b""))
        assert await store.exists("foo/c/0")

    # The same with a valid document.
    async def test_delete(self, store: icefloe.IcefloeStore) -> None:
        await store.set("foo/zarr.json", self.buffer_cls.from_bytes(GROUP))
        assert await store.exists("foo/zarr.json")
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    # The same with valid documents.
    async def test_delete_dir(self, store: icefloe.IcefloeStore) -> None:
        await store.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
        await store.set("foo-bar/zarr.json", self.buffer_cls.from_bytes(GROUP))
        await store.set("foo/zarr.json", self.buffer_cls.from_bytes(array_document(1)))
        await store.set("foo/c/0", self.buffer_cls.from_bytes(b"chunk"))
        await store.delete_dir("foo")
        assert await store.exists("zarr.json")
        assert await store.exists("foo-bar/zarr.json")
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")

    # The suite's `nonexistent_key` cannot exist.
    async def test_delete_nonexistent_key_does_not_raise(self, store: icefloe.IcefloeStore) -> None:
        await store.delete("nonexistent/zarr.json")
        await store.delete("nonexistent/.zarray")
        make_array_of(store, "c/0")
        await store.delete("c/0")

    # The suite's `foo/bar` cannot exist.
    async def test_is_empty(self, store: icefloe.IcefloeStore) -> None:
        assert await store.is_empty("")
        store.session.tree.set_document("/foo/bar", GROUP)
        assert not await store.is_empty("")
        assert await store.is_empty("fo")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")

    # The suite's `key` cannot exist.
    async def test_clear(self, store: icefloe.IcefloeStore) -> None:
        store.session.tree.set_document("/key", GROUP)
        await store.clear()
        assert await store.is_empty("")

    # The same with a valid document.
    async def test_list(self, store: icefloe.IcefloeStore) -> None:
        assert await _collect_aiterator(store.list()) == ()
        values = {"foo/zarr.json": array_document(1), **{f"foo/c/{i}": b"" for i in range(10)}}
        for key, value in values.items():
            await store.set(key, self.buffer_cls.from_bytes(value))
        observed = await _collect_aiterator(store.list())
        assert sorted(observed) == sorted(values)

    # The same with valid documents.
    async def test_list_prefix(self, store: icefloe.IcefloeStore) -> None:
        prefixes = ("", "a/", "a/b/", "a/b/c/")
        keys = [prefix + "zarr.json" for prefix in prefixes]
        await store._set_many((key, self.buffer_cls.from_bytes(GROUP)) for key in keys)
        for prefix in prefixes:
            observed = await _collect_aiterator(store.list_prefix(prefix))
            assert sorted(observed) == sorted(key for key in keys if key.startswith(prefix))

    # The same with valid documents.
    async def test_list_empty_path(self, store: icefloe.IcefloeStore) -> None:
        document = self.buffer_cls.from_bytes(array_document(1))
        for key in ("foo/bar/zarr.json", "foo/baz/zarr.json"):
            await store.set(key, document)
        for key in ("foo/bar/c/1", "foo/baz/c/0"):
            await store.set(key, self.buffer_cls.from_bytes(b""))
        expected = ["foo/bar/c/1", "foo/bar/zarr.json", "foo/baz/c/0", "foo/baz/zarr.json"]
        assert sorted(await _collect_aiterator(store.list())) == expected
        assert sorted(await _collect_aiterator(store.list_prefix(""))) == expected
        assert sorted(await _collect_aiterator(store.list_prefix("foo/bar/"))) == expected[:2]

    # The same with keys that can exist.
    async def test_list_dir(self, store: icefloe.IcefloeStore) -> None:
        values = {
            "foo/zarr.json": array_document(1),
            "foo/c/1": b"\x01",
            "foo/bar/zarr.json": GROUP,
            "foo/bar/second_child/zarr.json": GROUP,
        }
        expected = {"foo": ["bar", "c", "zarr.json"], "foo/bar": ["second_child", "zarr.json"]}
        for root in ("", "foo", "foo/bar"):
            assert await _collect_aiterator(store.list_dir(root)) == ()
        for key, value in values.items():
            await store.set(key, self.buffer_cls.from_bytes(value))
        for root, names in expected.items():
            assert sorted(await _collect_aiterator(store.list_dir(root))) == names
            assert sorted(await _collect_aiterator(store.list_dir(root + "/"))) == names

    # The suite's `k` and `k2` cannot exist.
    async def test_set_if_not_exists(self, store: icefloe.IcefloeStore) -> None:
        store.session.tree.set_document("/", array_document(1))
        for new in ("c/0", "foo/zarr.json"):
            first, second = (b"0000", b"1111") if new == "c/0" else (GROUP, array_document(1))
            for value in (first, second):
                await store.set_if_not_exists(new, self.buffer_cls.from_bytes(value))
                result = await store.get(new, default_buffer_prototype())
                assert result.to_bytes() == first

    # Below: the suite's keys cannot exist or its documents are not valid (zarr before 3.2).
    async def test_get_bytes(self, store: icefloe.IcefloeStore) -> None:
        await store.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
        if hasattr(store, "_get_bytes"):
            prototype = default_buffer_prototype()
            assert await store._get_bytes("zarr.json", prototype=prototype) == GROUP
            with pytest.raises(FileNotFoundError):
                await store._get_bytes("foo/zarr.json", prototype=prototype)

    def test_get_bytes_sync(self, store: icefloe.IcefloeStore) -> None:
        sync(store.set("zarr.json", self.buffer_cls.from_bytes(GROUP)))
        if hasattr(store, "_get_bytes_sync"):
            prototype = default_buffer_prototype()
            assert store._get_bytes_sync("zarr.json", prototype=prototype) == GROUP

    async def test_get_json(self, store: icefloe.IcefloeStore) -> None:
        await store.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
        if hasattr(store, "_get_json"):
            prototype = default_buffer_prototype()
            assert await store._get_json("zarr.json", prototype=prototype) == json.loads(GROUP)

    def test_get_json_sync(self, store: icefloe.IcefloeStore) -> None:
        sync(store.set("zarr.json", self.buffer_cls.from_bytes(GROUP)))
        if hasattr(store, "_get_json_sync"):
            prototype = default_buffer_prototype()
            assert store._get_json_sync("zarr.json", prototype=prototype) == json.loads(GROUP)

    # The synchronous methods: the suite's keys cannot exist.
    def test_get_sync(self, store: icefloe.IcefloeStore) -> None:
        value = self.buffer_cls.from_bytes(b"\x01\x02\x03\x04")
        sync(self.set(store, "c/0", value))
        assert_bytes_equal(store.get_sync("c/0"), value)
        assert json.loads(store.get_sync("zarr.json").to_bytes())["node_type"] == "array"

    def test_get_sync_missing(self, store: icefloe.IcefloeStore) -> None:
        assert store.get_sync("foo/zarr.json") is None
        assert store.get_sync(".zgroup") is None
        make_array_of(store, "c/0")
        assert store.get_sync("c/0") is None
        with pytest.raises(NodeNotFoundError):
            store.get_sync("foo/c/0")

    def test_set_sync(self, store: icefloe.IcefloeStore) -> None:
        make_array_of(store, "c/0")
        value = self.buffer_cls.from_bytes(b"\x01\x02\x03\x04")
        store.set_sync("c/0", value)
        store.set_sync("foo/zarr.json", self.buffer_cls.from_bytes(GROUP))
        assert_bytes_equal(sync(self.get(store, "c/0")), value)
        assert store.session.tree.document("/foo") == GROUP

    def test_delete_sync(self, store: icefloe.IcefloeStore) -> None:
        value = self.buffer_cls.from_bytes(b"\x01\x02\x03\x04")
        sync(self.set(store, "c/0", value))
        store.delete_sync("c/0")
        assert store.get_sync("c/0") is None
        store.delete_sync("zarr.json")
        assert store.get_sync("zarr.json") is None

    def test_delete_sync_missing(self, store: icefloe.IcefloeStore) -> None:
        store.delete_sync("nonexistent/zarr.json")
        make_array_of(store, "c/0")
        store.delete_sync("c/0")

    @pytest.mark.parametrize("direction", ["set_async_get_sync", "set_sync_get_async"])
    async def test_sync_async_set_get_parity(
        self, store: icefloe.IcefloeStore, direction: str
    ) -> None:
        make_array_of(store, "c/0")
        value = self.buffer_cls.from_bytes(b"\x01\x02\x03\x04")
        if direction == "set_async_get_sync":
            await store.set("c/0", value)
            result = store.get_sync("c/0")
        else:
            store.set_sync("c/0", value)
            result = await store.get("c/0", prototype=default_buffer_prototype())
        assert_bytes_equal(result, value)

    async def test_delete_sync_visible_to_async_get(self, store: icefloe.IcefloeStore) -> None:
        await self.set(store, "c/0", self.buffer_cls.from_bytes(b"\x01\x02\x03\x04"))
        store.delete_sync("c/0")
        assert await store.get("c/0", prototype=default_buffer_prototype()) is None

    @pytest.mark.parametrize(
        ("byte_range", "expected"),
        [
            (None, b"\x01\x02\x03\x04"),
            (RangeByteRequest(1, 4), b"\x02\x03\x04"),
            (RangeByteRequest(2, 2), b""),
            (OffsetByteRequest(1), b"\x02\x03\x04"),
            (OffsetByteRequest(9), b""),
            (SuffixByteRequest(1), b"\x04"),
            (SuffixByteRequest(0), b""),
            (SuffixByteRequest(9), b"\x01\x02\x03\x04"),
            (RangeByteRequest(10, 20), b""),
        ],
    )
    async def test_get_sync_byte_range_parity(
        self, store: icefloe.IcefloeStore, byte_range: Any, expected: bytes
    ) -> None:
        value = self.buffer_cls.from_bytes(b"\x01\x02\x03\x04")
        await self.set(store, "c/0", value)
        sync_result = store.get_sync("c/0", byte_range=byte_range)
        async_result = await store.get("c/0", default_buffer_prototype(), byte_range)
        assert sync_result.to_bytes() == async_result.to_bytes() == expected


class TestMemory(IcefloeStoreTests):
    @pytest.fixture
    def repository(self) -> icefloe.Repository:
        return icefloe.Repository.create(icefloe.in_memory_storage())


class TestLocal(IcefloeStoreTests):
    @pytest.fixture
    def repository(self, tmp_path: Path) -> icefloe.Repository:
        # No chunk is inline here, all are in files of their own.
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
        storage = icefloe.local_filesystem_storage(str(tmp_path))
        return icefloe.Repository.create(storage, config)


class TestStoreGeneration(IcefloeStoreTests):
    @pytest.fixture
    def repository(self) -> icefloe.Repository:
        return icefloe.Repository.create(icefloe.in_memory_storage(), generation="store")


class TestDatasetGeneration(IcefloeStoreTests):
    @pytest.fixture
    def repository(self) -> icefloe.Repository:
        return icefloe.Repository.create(icefloe.in_memory_storage(), generation="dataset")


class TestIcechunkGeneration(IcefloeStoreTests):
    @pytest.fixture(params=[1, 2])
    def repository(self, request: pytest.FixtureRequest) -> icefloe.Repository:
        return icefloe.Repository.create(
            icefloe.in_memory_storage(), generation="icechunk", spec_version=request.param
        )
