"""What IcefloeStore does with keys, values and ranges (api-facts 18 and 24 to 35)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype

import icefloe
from icefloe.errors import (
    AlreadyExistsError,
    IcefloeError,
    InvalidInputError,
    InvalidTypeError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreKeyNotFoundError,
)
from icefloe.storage.forwarding import ForwardingStorage
from tests import documents
from tests.builders import new_repository

if TYPE_CHECKING:
    from pathlib import Path

PROTOTYPE = default_buffer_prototype()
GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {"title": "\xc3\xa9"}}'


def buffer(data: bytes) -> cpu.Buffer:
    return cpu.Buffer.from_bytes(data)


def array_document(
    shape: tuple[int, ...] = (4, 4), chunks: tuple[int, ...] = (2, 2), **options: str
) -> bytes:
    return documents.array_document(shape, chunks, **options)


@pytest.fixture
def repository() -> icefloe.Repository:
    return new_repository()


@pytest.fixture
def store(repository: icefloe.Repository) -> icefloe.IcefloeStore:
    return repository.writable_session("main").store


async def value(store: Any, key: Any, byte_range: Any = None) -> Any:
    result = await store.get(key, PROTOTYPE, byte_range)
    return None if result is None else result.to_bytes()


async def test_documents_come_back_byte_for_byte(store: icefloe.IcefloeStore) -> None:
    odd = b' {"node_type" :\n"group","zarr_format":3, "attributes":{"z":1,"a":[1.50,"\\u00e9"]} }\n'
    await store.set("zarr.json", buffer(odd))
    assert await value(store, "zarr.json") == odd
    assert await store.getsize("zarr.json") == len(odd)
    store.session.commit("as it was")
    assert await value(store, "zarr.json") == odd


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"hello",
        b"[]",
        b"{}",
        b'{"node_type": "table"}',
        b'{"node_type": "array"}',
        b'{"node_type": "group"',
        array_document(chunks=(2,)),
        array_document(shape=(-1, 4)),
        array_document(encoding="other"),
        array_document(separator="-"),
        array_document(chunks=(0, 2)),
        b"[" * 100_000,
    ],
)
async def test_bad_documents_are_refused(store: icefloe.IcefloeStore, document: bytes) -> None:
    with pytest.raises(InvalidInputError, match="bad metadata"):
        await store.set("a/zarr.json", buffer(document))
    assert not await store.exists("a/zarr.json")


@pytest.mark.parametrize("attribute", [float("nan"), float("-inf"), "\ud942", 10**40, 2.0**1000])
def test_attributes_that_python_writes_and_zarr_reads(
    repository: icefloe.Repository, attribute: Any
) -> None:
    session = repository.writable_session("main")
    zarr.create_group(session.store, attributes={"odd": attribute})
    zarr.create_array(session.store, name="a", shape=1, dtype="i4", attributes={"odd": attribute})
    session.commit("odd")
    store = repository.readonly_session("main").store
    for node in (zarr.open_group(store, mode="r"), zarr.open_array(store, path="a", mode="r")):
        assert repr(node.attrs["odd"]) == repr(attribute)


async def test_a_node_does_not_change_its_kind(store: icefloe.IcefloeStore) -> None:
    await store.set("g/zarr.json", buffer(GROUP))
    with pytest.raises(AlreadyExistsError, match="node already exists"):
        await store.set("g/zarr.json", buffer(array_document()))
    await store.delete("g/zarr.json")
    await store.set("g/zarr.json", buffer(array_document()))
    with pytest.raises(AlreadyExistsError, match="node already exists"):
        await store.set("g/zarr.json", buffer(GROUP))


@pytest.mark.parametrize("path", ["a/../b", "./a", "a\0b"])
async def test_paths_that_no_node_can_have(store: icefloe.IcefloeStore, path: str) -> None:
    with pytest.raises(InvalidInputError):
        await store.set(f"{path}/zarr.json", buffer(GROUP))
    assert list(store.list()) == []


async def test_parents_are_neither_required_nor_implied(store: icefloe.IcefloeStore) -> None:
    await store.set("p/q/zarr.json", buffer(GROUP))
    assert list(store.list_dir("")) == []
    assert list(store.list_dir("p")) == []
    assert list(store.list_dir("p/q")) == ["zarr.json"]
    assert list(store.list()) == ["p/q/zarr.json"]
    # But something is there, so that nobody creates a node over it unknowingly.
    assert not await store.is_empty("p")


async def test_missing_things(store: icefloe.IcefloeStore) -> None:
    await store.set("a/zarr.json", buffer(array_document()))
    await store.set("g/zarr.json", buffer(GROUP))
    assert await value(store, "no/zarr.json") is None
    assert await value(store, "a/c/0/0") is None
    for key in ("no/c/0/0", "g/c/0/0"):
        with pytest.raises(NodeNotFoundError):
            await store.get(key, PROTOTYPE)
        assert not await store.exists(key)
        with pytest.raises(KeyError):
            await store.set(key, buffer(b"x"))
        with pytest.raises(KeyError):
            await store.delete(key)
    for key in ("no/zarr.json", "no/c/0/0", "a/c/0/0", "a/.zarray"):
        with pytest.raises(StoreKeyNotFoundError) as caught:
            await store.getsize(key)
        assert isinstance(caught.value, KeyError)
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.key == key


async def test_names_of_zarr_2(store: icefloe.IcefloeStore) -> None:
    for key in (".zgroup", "a/.zarray", "a/.zattrs", ".zmetadata"):
        assert await value(store, key) is None
        assert not await store.exists(key)
        await store.delete(key)
        with pytest.raises(InvalidInputError, match="Zarr 2"):
            await store.set(key, buffer(b"{}"))
    with pytest.raises(IcefloeError, match="Zarr 2"):
        zarr.create_group(store, zarr_format=2)


@pytest.mark.parametrize("key", ["foo", "foo/bar", "a/c/0.0", "a/c/0/0/"])
async def test_other_keys_are_errors_everywhere(store: icefloe.IcefloeStore, key: str) -> None:
    await store.set("a/zarr.json", buffer(array_document()))
    for call in (
        store.get(key, PROTOTYPE),
        store.exists(key),
        store.getsize(key),
        store.set(key, buffer(b"x")),
        store.set_if_not_exists(key, buffer(b"x")),
        store.delete(key),
    ):
        with pytest.raises(IcefloeError, match="invalid zarr key format"):
            await call


async def test_chunk_index_outside_of_the_grid(store: icefloe.IcefloeStore) -> None:
    await store.set("a/zarr.json", buffer(array_document()))
    for key in ("a/c/2/0", "a/c/0/2", "a/c/0", "a/c/0/0/0", "a/c", "a/c/18446744073709551616/0"):
        assert await value(store, key) is None
        assert not await store.exists(key)
        with pytest.raises(IcefloeError, match="invalid chunk index"):
            await store.set(key, buffer(b"x"))
        # Zarr's own suite deletes such keys.
        await store.delete(key)


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (None, slice(None)),
        (RangeByteRequest(1, 3), slice(1, 3)),
        (RangeByteRequest(0, 1000), slice(0, None)),
        (RangeByteRequest(5, 5), slice(5, 5)),
        (RangeByteRequest(5, 3), slice(5, 5)),
        (RangeByteRequest(999, 1000), slice(0, 0)),
        (OffsetByteRequest(4), slice(4, None)),
        (OffsetByteRequest(999), slice(0, 0)),
        (SuffixByteRequest(4), slice(-4, None)),
        (SuffixByteRequest(999), slice(None)),
        (SuffixByteRequest(0), slice(0, 0)),
    ],
)
async def test_byte_ranges_of_documents_and_chunks(
    store: icefloe.IcefloeStore, request_: Any, part: Any
) -> None:
    big, small = bytes(range(200)) * 4, bytes(range(200))
    await store.set("a/zarr.json", buffer(array_document()))
    await store.set("a/c/0/0", buffer(big))
    await store.set("a/c/0/1", buffer(small))
    document = array_document()
    for key, whole in (("a/c/0/0", big), ("a/c/0/1", small), ("a/zarr.json", document)):
        assert await value(store, key, request_) == whole[part]
        assert store.get_sync(key, byte_range=request_).to_bytes() == whole[part]
    got = await store.get_partial_values(
        PROTOTYPE, ((key, request_) for key in ("a/zarr.json", "a/c/0/0", "a/c/1/1"))
    )
    assert [None if b is None else b.to_bytes() for b in got] == [document[part], big[part], None]


@pytest.mark.parametrize(
    "byte_range", [(0, 2), 7, "1-2", RangeByteRequest(-1, 2), OffsetByteRequest(-3)]
)
async def test_wrong_byte_ranges(store: icefloe.IcefloeStore, byte_range: Any) -> None:
    await store.set("zarr.json", buffer(GROUP))
    with pytest.raises(ValueError, match="Unexpected byte_range, got"):
        await store.get("zarr.json", PROTOTYPE, byte_range)


async def test_values_must_be_buffers(store: icefloe.IcefloeStore) -> None:
    message = "`value` must be a Buffer instance. Got an instance of <class 'int'> instead."
    await store.set("zarr.json", buffer(GROUP))
    with pytest.raises(TypeError, match=message):
        await store.set("zarr.json", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=message):
        store.set_sync("zarr.json", 5)  # type: ignore[arg-type]
    # Not looked at when the key has a value already.
    await store.set_if_not_exists("zarr.json", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=message):
        await store.set_if_not_exists("g/zarr.json", 5)  # type: ignore[arg-type]


async def test_a_chunk_does_not_change_with_the_array_it_was_written_from(
    store: icefloe.IcefloeStore,
) -> None:
    await store.set("a/zarr.json", buffer(array_document()))
    for size, key in ((100, "a/c/0/0"), (5000, "a/c/0/1")):
        memory = np.ones(size, dtype=np.uint8)
        await store.set(key, cpu.Buffer(memory))
        memory[:] = 9
        assert await value(store, key) == bytes([1]) * size


async def test_empty_chunks_are_not_absent_ones(store: icefloe.IcefloeStore) -> None:  # H-50
    await store.set("a/zarr.json", buffer(array_document()))
    await store.set("a/c/0/0", buffer(b""))
    store.session.commit("one empty chunk")
    assert await value(store, "a/c/0/0") == b""
    assert await store.exists("a/c/0/0")
    assert await store.getsize("a/c/0/0") == 0
    assert not await store.exists("a/c/0/1")


async def make_tree(store: Any) -> None:
    """A group with arrays of every chunk key encoding; one lies in another."""
    await store.set("zarr.json", buffer(GROUP))
    await store.set("foo/zarr.json", buffer(array_document()))
    await store.set("foo-bar/zarr.json", buffer(GROUP))
    await store.set("foo/in/zarr.json", buffer(array_document((), ())))
    await store.set("v/zarr.json", buffer(array_document(encoding="v2", separator="/")))
    await store.set("d/zarr.json", buffer(array_document(separator=".")))
    await store.set("w/zarr.json", buffer(array_document(encoding="v2", separator=".")))
    for key in ("foo/c/0/1", "foo/c/1/0", "foo/c/1/1", "foo/in/c", "v/0/1", "d/c.0.1", "w/0.1"):
        await store.set(key, buffer(key.encode()))


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("", ["d", "foo", "foo-bar", "v", "w", "zarr.json"]),
        ("/", ["d", "foo", "foo-bar", "v", "w", "zarr.json"]),
        ("foo", ["c", "in", "zarr.json"]),
        ("foo/", ["c", "in", "zarr.json"]),
        ("/foo", ["c", "in", "zarr.json"]),
        ("foo/c", ["0", "1"]),
        ("foo/c/", ["0", "1"]),
        ("foo/c/0", ["1"]),
        ("foo/c/1", ["0", "1"]),
        ("foo/c/1/1", []),
        ("foo/c/7", []),
        ("foo/c/x", []),
        ("foo/in", ["c", "zarr.json"]),
        ("foo/in/c", []),
        ("v", ["0", "zarr.json"]),
        ("v/0", ["1"]),
        ("d", ["c.0.1", "zarr.json"]),
        ("w", ["0.1", "zarr.json"]),
        ("foo-bar", ["zarr.json"]),
        ("fo", []),
        ("missing", []),
        ("foo/zarr.json", []),
    ],
)
async def test_list_dir(store: icefloe.IcefloeStore, folder: str, names: list[Any]) -> None:
    await make_tree(store)
    assert sorted(store.list_dir(folder)) == names
    store.session.commit("the same from storage")
    assert sorted(store.list_dir(folder)) == names


async def test_an_array_always_lists_the_folder_of_its_chunks(store: icefloe.IcefloeStore) -> None:
    await store.set("a/zarr.json", buffer(array_document()))
    await store.set("z/zarr.json", buffer(array_document((0, 3), (1, 3))))
    assert sorted(store.list_dir("a")) == sorted(store.list_dir("z")) == ["c", "zarr.json"]
    assert list(store.list_dir("a/c")) == []


async def test_list_prefix(store: icefloe.IcefloeStore) -> None:
    await make_tree(store)
    inside = [
        "foo/c/0/1",
        "foo/c/1/0",
        "foo/c/1/1",
        "foo/in/c",
        "foo/in/zarr.json",
        "foo/zarr.json",
    ]
    for prefix in ("foo", "foo/"):
        assert sorted(store.list_prefix(prefix)) == inside
    everything = sorted(store.list())
    assert sorted(store.list_prefix("")) == sorted(store.list_prefix("/")) == everything
    assert len(everything) == 14
    assert [await store.exists(key) for key in everything] == [True] * 14


@pytest.mark.parametrize("prefix", ["fo", "missing", "foo/c", "foo/c/0", "foo/zarr.json", "a//b"])
async def test_bad_prefixes_are_refused_at_the_call(
    store: icefloe.IcefloeStore, prefix: str
) -> None:
    await make_tree(store)
    with pytest.raises(IcefloeError, match="bad key prefix"):
        store.list_prefix(prefix)


async def test_listings_work_in_loops_of_both_kinds(store: icefloe.IcefloeStore) -> None:
    await make_tree(store)
    for make in (store.list, lambda: store.list_prefix("foo"), lambda: store.list_dir("foo")):
        keys = list(make())
        assert [key async for key in make()] == keys
        listing = make()
        assert next(listing) == keys[0]
        assert await anext(listing) == keys[1]
        assert list(listing) == keys[2:]
        with pytest.raises(StopIteration):
            next(listing)
        with pytest.raises(StopAsyncIteration):
            await anext(listing)


async def test_a_listing_survives_deletes(store: icefloe.IcefloeStore) -> None:
    await make_tree(store)
    listing = store.list()
    first = next(listing)
    await store.delete_dir("foo")
    assert not any(key.startswith("foo/") for key in listing)
    assert first == "zarr.json"


async def test_sizes(store: icefloe.IcefloeStore) -> None:
    await make_tree(store)
    chunks = {"foo/c/0/1": 9, "foo/c/1/0": 9, "foo/c/1/1": 9, "foo/in/c": 8}
    foo = len(array_document()) + len(array_document((), ())) + sum(chunks.values())
    for _ in range(2):
        for key, size in chunks.items():
            assert await store.getsize(key) == size
        assert await store.getsize_prefix("foo") == await store.getsize_prefix("/foo/") == foo
        assert await store.getsize_prefix("foo/c") == 27
        assert await store.getsize_prefix("foo/c/1") == 18
        assert await store.getsize_prefix("foo/c/7") == 0
        everything = [await store.getsize(key) for key in store.list()]
        assert await store.getsize_prefix("") == sum(everything)
        with pytest.raises(IcefloeError, match="bad key prefix"):
            await store.getsize_prefix("fo")
        if not store.session.read_only:
            store.session.commit("the same from storage")


@pytest.mark.parametrize(
    ("folder", "gone"),
    [
        (
            "foo",
            [
                "foo/c/0/1",
                "foo/c/1/0",
                "foo/c/1/1",
                "foo/in/c",
                "foo/in/zarr.json",
                "foo/zarr.json",
            ],
        ),
        (
            "foo/",
            [
                "foo/c/0/1",
                "foo/c/1/0",
                "foo/c/1/1",
                "foo/in/c",
                "foo/in/zarr.json",
                "foo/zarr.json",
            ],
        ),
        ("foo/c", ["foo/c/0/1", "foo/c/1/0", "foo/c/1/1"]),
        ("foo/c/", ["foo/c/0/1", "foo/c/1/0", "foo/c/1/1"]),
        ("foo/c/1", ["foo/c/1/0", "foo/c/1/1"]),
        ("foo/in", ["foo/in/c", "foo/in/zarr.json"]),
        ("v/0", ["v/0/1"]),
        ("fo", []),
        ("missing/too", []),
        ("foo/c/7", []),
    ],
)
@pytest.mark.parametrize("committed", [False, True])
async def test_delete_dir(
    repository: icefloe.Repository,
    store: icefloe.IcefloeStore,
    folder: str,
    gone: list[Any],
    committed: bool,
) -> None:
    await make_tree(store)
    before = sorted(store.list())
    if committed:
        store.session.commit("delete what is in storage")
        store = repository.writable_session("main").store
    await store.delete_dir(folder)
    assert sorted(store.list()) == [key for key in before if key not in gone]
    if gone:
        store.session.commit("without it")
        assert sorted(store.list()) == [key for key in before if key not in gone]


async def test_chunks_that_a_resize_keeps_are_not_listed_until_they_are_back(
    store: icefloe.IcefloeStore,
) -> None:
    await store.set("a/zarr.json", buffer(array_document()))
    for key in ("a/c/0/0", "a/c/1/1"):
        await store.set(key, buffer(b"1234"))
    await store.set("a/zarr.json", buffer(array_document((2, 4))))
    assert sorted(store.list()) == ["a/c/0/0", "a/zarr.json"]
    assert list(store.list_dir("a/c")) == ["0"]
    assert await store.getsize_prefix("a/c") == 4
    assert not await store.exists("a/c/1/1")
    assert await value(store, "a/c/1/1") is None
    await store.set("a/zarr.json", buffer(array_document()))
    assert await value(store, "a/c/1/1") == b"1234"
    assert sorted(store.list()) == ["a/c/0/0", "a/c/1/1", "a/zarr.json"]


async def test_deleting_a_document_deletes_all_below(store: icefloe.IcefloeStore) -> None:
    await make_tree(store)
    await store.delete("foo/zarr.json")
    assert not any(key.startswith("foo/") for key in store.list())
    await store.delete("zarr.json")
    assert list(store.list()) == []


@pytest.mark.parametrize("clear", ["clear", "sync_clear", "delete_dir"])
async def test_clearing(store: icefloe.IcefloeStore, clear: str) -> None:
    await make_tree(store)
    if clear == "clear":
        await store.clear()
    elif clear == "sync_clear":
        store.sync_clear()
    else:
        await store.delete_dir("")
    assert list(store.list()) == []
    assert await store.is_empty("")
    assert await store.is_empty("/")
    assert await store.getsize_prefix("") == 0
    assert not store.session.has_uncommitted_changes


async def test_is_empty(store: icefloe.IcefloeStore) -> None:
    await make_tree(store)
    for folder in ("", "foo", "foo/c", "foo/c/1", "foo-bar", "v/0"):
        assert not await store.is_empty(folder)
    for folder in ("fo", "foo/c/7", "missing", "foo/c/1/1", "d/c"):
        assert await store.is_empty(folder)


async def test_stores_of_one_session_are_views_of_one_state(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    store, other = session.store, session.store
    assert store is not other
    assert store == other
    assert store != repository.writable_session("main").store
    assert store != "a store"
    await store.set("zarr.json", buffer(GROUP))
    assert await other.exists("zarr.json")
    array = zarr.create_array(store, name="a", shape=3, dtype="i4")
    array[:] = 5
    snapshot_id = other.session.commit("through a store")
    assert session.snapshot_id == snapshot_id
    assert session.read_only
    assert array[:].tolist() == [5, 5, 5]


async def test_discarding_changes_shows_in_arrays_that_are_open(
    repository: icefloe.Repository,
) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=3, dtype="i4", fill_value=7)
    session.commit("an array")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array[:] = 5
    session.discard_changes()
    assert array[:].tolist() == [7, 7, 7]


async def test_writing_through_a_read_only_session(
    repository: icefloe.Repository, store: icefloe.IcefloeStore
) -> None:
    await make_tree(store)
    store.session.commit("something to read")
    reader = repository.readonly_session("main").store
    assert reader.read_only
    writer = reader.with_read_only(read_only=False)
    assert not writer.read_only
    for closed in (reader, writer, store):
        for call in (
            closed.set("foo/zarr.json", buffer(GROUP)),
            closed.set_if_not_exists("n/zarr.json", buffer(GROUP)),
            closed.delete("foo/zarr.json"),
            closed.delete_dir("foo"),
            closed.clear(),
        ):
            with pytest.raises(ReadOnlyError, match="read-only store"):
                await call
        with pytest.raises(ReadOnlyError, match="read-only store"):
            closed.set_sync("foo/zarr.json", buffer(GROUP))
        with pytest.raises(ReadOnlyError, match="read-only store"):
            closed.delete_sync("foo/zarr.json")
        with pytest.raises(ReadOnlyError, match="read-only store"):
            closed.sync_clear()
    assert len(list(reader.list())) == 14


async def test_closed_stores_still_work(store: icefloe.IcefloeStore) -> None:
    closed = store.with_read_only()
    assert not closed._is_open
    await closed.set("zarr.json", buffer(GROUP))
    assert await value(closed, "zarr.json") == GROUP
    store.close()
    assert await value(store, "zarr.json") == GROUP
    assert list(closed.list()) == ["zarr.json"]


async def test_partial_writes_are_not_supported(store: icefloe.IcefloeStore) -> None:
    assert not store.supports_partial_writes
    with pytest.raises(NotImplementedError):
        await store.set_partial_values([("zarr.json", 0, b"x")])


def test_stores_of_one_session_are_equal_whatever_is_written(store: icefloe.IcefloeStore) -> None:
    other, another = store.session.store, icefloe.Repository.create(icefloe.in_memory_storage())
    assert other == store
    store.session.tree.set_document("/", GROUP)
    assert other == store
    assert another.writable_session("main").store != store


def test_a_store_is_not_hashable_like_those_of_zarr(store: icefloe.IcefloeStore) -> None:
    for each in (store, zarr.storage.MemoryStore()):
        with pytest.raises(TypeError, match="unhashable"):
            hash(each)


async def test_virtual_references(store: icefloe.IcefloeStore, tmp_path: Path) -> None:
    config = icefloe.RepositoryConfig.default()
    prefix = f"file://{tmp_path}/"
    (tmp_path / "data.bin").write_bytes(bytes(range(100)))
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(tmp_path)))
    )
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(), config, authorize_virtual_chunk_access={prefix: None}
    )
    store = repository.writable_session("main").store
    await store.set("a/zarr.json", buffer(array_document()))
    store.set_virtual_ref("a/c/0/0", prefix + "data.bin", offset=10, length=5)
    await store.set_virtual_ref_async("a/c/0/1", prefix + "data.bin", offset=20, length=5)
    specs = [
        icefloe.VirtualChunkSpec([1, 0], prefix + "data.bin", 30, 5),
        icefloe.VirtualChunkSpec([1, 1], "s3://elsewhere/data.bin", 30, 5),
    ]
    assert store.set_virtual_refs("/a", specs[:1]) is None
    assert await store.set_virtual_refs_async("a", specs) == [(1, 1)]
    assert store.set_virtual_refs("a", specs, validate_containers=False) is None
    assert await value(store, "a/c/0/0") == bytes(range(10, 15))
    assert await value(store, "a/c/0/1", SuffixByteRequest(2)) == bytes([23, 24])
    assert store.get_sync("a/c/1/0").to_bytes() == bytes(range(30, 35))
    with pytest.raises(IcefloeError, match="invalid chunk location"):
        store.set_virtual_ref("a/c/0/0", "s3://elsewhere/x", offset=0, length=1)
    for key in ("a/zarr.json", ".zgroup", "foo"):
        with pytest.raises(IcefloeError, match="invalid zarr key format"):
            store.set_virtual_ref(key, prefix + "data.bin", offset=0, length=1)
    with pytest.raises(IcefloeError, match="invalid chunk index"):
        store.set_virtual_ref("a/c/9/9", prefix + "data.bin", offset=0, length=1)
    with pytest.raises(KeyError):
        store.set_virtual_ref("no/c/0", prefix + "data.bin", offset=0, length=1)


@pytest.mark.parametrize("checksum", [5, 5.5, b"etag", ["etag"], True], ids=repr)
async def test_checksums_of_virtual_references_are_texts_or_times(checksum: Any) -> None:
    store = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session("main").store
    await store.set("a/zarr.json", buffer(array_document()))
    with pytest.raises(InvalidTypeError, match=r"is an etag \(str\) or a last-modified time"):
        store.set_virtual_ref("a/c/0/0", "s3://b/x", offset=0, length=1, checksum=checksum)
    spec = icefloe.VirtualChunkSpec([0, 0], "s3://b/x", 0, 1, etag_checksum=checksum)
    with pytest.raises(InvalidInputError, match="etag"):
        store.set_virtual_refs("a", [spec], validate_containers=False)
    with pytest.raises(InvalidTypeError, match="is a URL, found int"):
        store.set_virtual_ref("a/c/0/0", 5, offset=0, length=1)  # type: ignore[arg-type]


def test_one_store_in_many_event_loops(store: icefloe.IcefloeStore) -> None:
    async def write_and_read(number: Any) -> Any:
        await store.set(f"a{number}/zarr.json", buffer(array_document()))
        for i in range(2):
            for j in range(2):
                await store.set(f"a{number}/c/{i}/{j}", buffer(bytes([number, i, j]) * 300))
        return [await value(store, f"a{number}/c/{i}/{j}") for i in range(2) for j in range(2)]

    for number in range(5):
        values = asyncio.run(write_and_read(number))
        assert values == [bytes([number, i, j]) * 300 for i in range(2) for j in range(2)]
    assert len(list(store.list())) == 25


class Distant(ForwardingStorage):
    """A storage that is not immediate, and tells in which threads it was read."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.threads: list[Any] = []

    @property
    def capabilities(self) -> Any:
        return msgspec.structs.replace(self._inner.capabilities, reads_are_immediate=False)

    def _run(self, verb: Any, key: Any, act: Any) -> Any:
        if verb == "get":
            self.threads.append((key.partition("/")[0], threading.get_ident()))
        return act()


async def test_a_manifest_is_not_fetched_by_the_event_loop() -> None:
    inner = icefloe.in_memory_storage()
    writer = icefloe.Repository.create(inner).writable_session("main")
    await writer.store.set("a/zarr.json", buffer(array_document()))
    await writer.store.set("a/c/0/0", buffer(b"abcd"))
    writer.commit("one chunk")
    distant = Distant(inner)
    session = icefloe.Repository.open(distant).readonly_session("main")
    distant.threads.clear()

    assert await value(session.store, "a/c/0/0") == b"abcd"
    assert await session.store.exists("a/c/0/0")
    assert not await session.store.exists("a/c/1/1")

    fetched = [thread for folder, thread in distant.threads if folder == "manifests"]
    assert len(fetched) == 1  # and once only
    assert threading.get_ident() not in fetched


async def test_edits_are_found_without_a_manifest() -> None:
    inner = icefloe.in_memory_storage()
    writer = icefloe.Repository.create(inner).writable_session("main")
    await writer.store.set("a/zarr.json", buffer(array_document()))
    await writer.store.set("a/c/0/0", buffer(b"abcd"))
    writer.commit("one chunk")
    distant = Distant(inner)
    store = icefloe.Repository.open(distant).writable_session("main").store
    await store.set("a/c/0/0", buffer(b"efgh"))
    assert await value(store, "a/c/0/0") == b"efgh"
    assert not [folder for folder, _ in distant.threads if folder == "manifests"]


async def test_a_folder_of_chunks_is_deleted_at_once(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    await session.store.set("a/zarr.json", buffer(array_document((8, 4))))
    for row in range(4):
        for column in range(2):
            await session.store.set(f"a/c/{row}/{column}", buffer(b"abcd"))
    session.commit("chunks")
    session = repository.writable_session("main")
    await session.store.set("a/c/1/1", buffer(b"x" * 4))
    await session.store.set("a/c/2/0", buffer(b"y" * 4000))  # waits for its pack
    await session.store.set("a/c/1/0", buffer(b"z" * 4000))

    await session.store.delete_dir("a/c/1")

    left = [(0, 0), (0, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert [tuple(row) for row in session.tree.chunk_coords("/a").tolist()] == left
    assert await value(session.store, "a/c/2/0") == b"y" * 4000
    session.commit("fewer")
    again = repository.readonly_session("main")
    assert [tuple(row) for row in again.tree.chunk_coords("/a").tolist()] == left


async def test_partial_values_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    config = icefloe.RepositoryConfig(get_partial_values_concurrency=3)
    storage = icefloe.in_memory_storage()
    store = icefloe.Repository.create(storage, config=config).writable_session("main").store
    await store.set("a/zarr.json", buffer(array_document((20, 2))))
    running = most = 0
    real = store.get

    async def get(key: Any, prototype: Any, byte_range: Any = None) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        result = await real(key, prototype, byte_range)
        running -= 1
        return result

    for row in range(10):
        await store.set(f"a/c/{row}/0", buffer(bytes([row] * 4)))
    monkeypatch.setattr(store, "get", get)
    found = await store.get_partial_values(PROTOTYPE, [(f"a/c/{row}/0", None) for row in range(10)])
    assert [each.to_bytes() for each in found] == [bytes([row] * 4) for row in range(10)]
    assert most == 3
