"""Any zarr array works through the store: data types, grids, codecs, sizes, threads, loops."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import cpu, default_buffer_prototype

import icefloe
from tests.builders import committed_store, new_repository

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


@pytest.fixture(params=["memory", "local"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    return new_repository(tmp_path if request.param == "local" else None)


def assert_same(left: Any, right: Any) -> None:
    np.testing.assert_array_equal(left, right, strict=True)


RANDOM = np.random.default_rng(7)
DATA = {
    **{
        name: RANDOM.integers(0, 100, (5, 7)).astype(name)
        for name in (
            "bool",
            "i1",
            "i2",
            "i4",
            "i8",
            "u1",
            "u2",
            "u4",
            "u8",
            "f2",
            "f4",
            "f8",
            "c8",
            "c16",
        )
    },
    "nan": np.array([[np.nan, np.inf, -np.inf, -0.0]]),
    "datetime64[ns]": np.array([["2020-01-01", "NaT", "2262-04-11"]], dtype="M8[ns]"),
    "datetime64[D]": np.arange("2020-01", "2020-02", dtype="M8[D]").reshape(1, 31),
    "timedelta64[s]": np.array([[1, 2, -3]], dtype="m8[s]"),
    "fixed strings": np.array([["a", "é", "日本語"]], dtype="U3"),
    "bytes": np.array([[b"a", b"bc", b"\x00d"]], dtype="S2"),
    "raw": np.array([[b"ab", b"cd"]], dtype="V2"),
    "structured": np.array(
        [[(1, 2.5, b"x"), (3, 4.5, b"y")]], dtype=[("a", "i4"), ("b", "f8"), ("c", "S1")]
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data_types(repository: icefloe.Repository, name: str) -> None:
    data = DATA[name]
    session = repository.writable_session("main")
    chunks = tuple(max(1, -(-n // 2)) for n in data.shape)
    array = zarr.create_array(
        session.store, name="a", shape=data.shape, chunks=chunks, dtype=data.dtype
    )
    array[...] = data
    assert_same(array[...], data)
    again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
    assert again.dtype == data.dtype
    assert_same(again[...], data)
    assert_same(again[:, 1:2], data[:, 1:2])


def test_strings_of_any_length(repository: icefloe.Repository) -> None:
    data = np.array(["", "é" * 1000, "x", "日本"] * 10, dtype=object).reshape(4, 10)
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=data.shape, chunks=(2, 5), dtype=str)
    array[...] = data
    again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
    assert again[...].tolist() == data.tolist()


@pytest.mark.parametrize(
    "encoding",
    [
        {"name": "default", "separator": "/"},
        {"name": "default", "separator": "."},
        {"name": "v2", "separator": "/"},
        {"name": "v2", "separator": "."},
    ],
    ids=lambda e: f"{e['name']}{e['separator']}",
)
@pytest.mark.parametrize("shape", [(), (5,), (5, 7), (3, 4, 5)])
@pytest.mark.parametrize("path", ["", "a", "c", "g/c/0"])
def test_chunk_key_encodings(
    repository: icefloe.Repository, encoding: dict[str, str], shape: tuple[Any, ...], path: str
) -> None:
    data = np.arange(1, np.prod(shape, dtype=int) + 1, dtype="i8").reshape(shape)
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name=path or None,
        shape=shape,
        chunks=tuple(2 for _ in shape) if shape else "auto",
        dtype="i8",
        chunk_key_encoding=encoding,  # type: ignore[arg-type]
    )
    array[...] = data
    assert array.nchunks_initialized == array.nchunks
    store = committed_store(session, repository)
    again = zarr.open_array(store, path=path, mode="r")
    assert_same(again[...], data)
    assert again.nchunks_initialized == again.nchunks
    assert again.nbytes_stored() == store._sync(store.getsize_prefix(path))
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path=path)
    if shape:
        array.resize(tuple(1 for _ in shape))
        assert array.nchunks_initialized == 1
        assert array[...].ravel().tolist() == [1]


def test_default_and_v2_keys_side_by_side(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    for number, name in enumerate(("default", "v2")):
        for separator, suffix in (("/", "slash"), (".", "dot")):
            array = root.create_array(
                f"{name}_{suffix}",
                shape=(4,),
                chunks=(2,),
                dtype="i4",
                chunk_key_encoding={"name": name, "separator": separator},
            )
            array[:] = number
    again = zarr.open_group(committed_store(session, repository), mode="r")
    assert {name: array[:].tolist() for name, array in again.arrays()} == {
        "default_slash": [0] * 4,
        "default_dot": [0] * 4,
        "v2_slash": [1] * 4,
        "v2_dot": [1] * 4,
    }


def test_sharding(repository: icefloe.Repository) -> None:
    data = RANDOM.integers(0, 1000, (40, 60)).astype("i4")
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=data.shape, shards=(20, 20), chunks=(5, 10), dtype="i4"
    )
    array[...] = data
    array[7:9, 33:50] = data[7:9, 33:50] = -1
    assert array.nchunks_initialized == 48
    store = committed_store(session, repository)
    # Shards are what the store has.
    assert len([key for key in store.list() if "/c/" in key]) == 6
    again = zarr.open_array(store, path="a", mode="r")
    for part in (np.s_[...], np.s_[3, :], np.s_[19:22, 58:], np.s_[::7, ::11]):
        assert_same(again[part], data[part])


def test_nested_sharding_with_an_index_at_the_start(repository: icefloe.Repository) -> None:
    data = RANDOM.integers(0, 1000, (32, 32)).astype("u2")
    inner = ShardingCodec(chunk_shape=(4, 4), index_location="start")
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=data.shape,
        chunks=(16, 16),
        dtype="u2",
        serializer=ShardingCodec(chunk_shape=(8, 8), codecs=[inner]),
        compressors=None,
    )
    array[...] = data
    again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
    assert_same(again[...], data)
    assert_same(again[5:9, 30:], data[5:9, 30:])


def test_partial_reads_of_a_shard_read_parts_of_its_file(tmp_path: Path) -> None:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    data = RANDOM.integers(0, 2**31, (300, 300))
    array = zarr.create_array(
        session.store, name="a", shape=(300, 300), shards=(300, 300), chunks=(10, 10),
        dtype="i8", compressors=None,
    )  # fmt: skip
    array[...] = data
    store = committed_store(session, repository)
    read = []

    class Watching(type(store)):  # type: ignore[misc]
        async def get(self, key: Any, prototype: Any, byte_range: Any = None) -> Any:
            result = await super().get(key, prototype, byte_range)
            read.append(0 if result is None else len(result))
            return result

        @property
        def _supports_sync_io(self) -> Any:
            return False

    watched = Watching(store.session)
    assert_same(
        zarr.open_array(watched, path="a", mode="r")[150:155, 150:155], data[150:155, 150:155]
    )
    assert 0 < sum(read) < 50_000


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0)])
def test_zero_size_arrays(repository: icefloe.Repository, shape: tuple[int, ...]) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=shape, dtype="f8")
    assert array[...].shape == shape
    array[...] = np.empty(shape)
    again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
    assert again.shape == shape
    assert again[...].shape == shape
    assert again.nchunks_initialized == 0
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="b", shape=shape, chunks=tuple(2 for _ in shape), dtype="f8"
    )
    array.resize(tuple(3 for _ in shape))
    array[...] = 4
    again = zarr.open_array(committed_store(session, repository), path="b", mode="r")
    assert_same(again[...], np.full(tuple(3 for _ in shape), 4.0))


def test_scalar_arrays(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("written", shape=(), dtype="i8", fill_value=1)[...] = 42
    root.create_array("untouched", shape=(), dtype="i8", fill_value=7)
    store = committed_store(session, repository)
    again = zarr.open_group(store, mode="r")
    assert again["written"][()] == 42
    assert again["untouched"][()] == 7
    assert sorted(store.list()) == [
        "untouched/zarr.json", "written/c", "written/zarr.json", "zarr.json",
    ]  # fmt: skip


def test_resizing(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(10, 10), chunks=(3, 3), dtype="i4", fill_value=-1
    )
    array[...] = 5
    session.commit("full")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array.resize((4, 10))
    array.resize((10, 12))
    expected = np.full((10, 12), -1, dtype="i4")
    # Rows 4 and 5 are in a chunk that stays, as in every store.
    expected[:6, :10] = 5
    assert_same(array[...], expected)
    store = committed_store(session, repository)
    again = zarr.open_array(store, path="a", mode="r")
    assert_same(again[...], expected)
    assert len([key for key in store.list() if "/c/" in key]) == 8
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array.append(np.full((2, 12), 9, dtype="i4"))
    assert array.shape == (12, 12)
    assert array[11, 3] == 9


def test_overwriting_and_deleting_nodes(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("x", shape=(4,), chunks=(2,), dtype="i4")[:] = 1
    root.create_group("g").create_array("y", shape=(4,), dtype="i4")[:] = 1
    session.commit("first")
    session = repository.writable_session("main")
    root = zarr.open_group(session.store)
    with pytest.raises(zarr.errors.ContainsArrayError):
        root.create_array("x", shape=(4,), dtype="i4")
    array = root.create_array("x", shape=(2, 2), dtype="f4", overwrite=True)
    assert_same(array[...], np.zeros((2, 2), dtype="f4"))
    root.create_group("g", overwrite=True)
    assert list(root["g"]) == []  # type: ignore[arg-type]
    # Another kind of node at the same path.
    root.create_array("g", shape=(1,), dtype="i1", overwrite=True)
    del root["x"]
    assert sorted(root) == ["g"]
    root.create_group("x")
    again = zarr.open_group(committed_store(session, repository), mode="r")
    assert isinstance(again["g"], zarr.Array)
    assert isinstance(again["x"], zarr.Group)
    first = list(repository.ancestry(branch="main"))[1].id
    before = zarr.open_group(repository.readonly_session(snapshot_id=first).store, mode="r")
    assert_same(before["x"][...], np.ones(4, dtype="i4"))
    assert_same(before["g/y"][...], np.ones(4, dtype="i4"))


def test_groups_members_and_attributes(
    repository: icefloe.Repository,
) -> None:  # R0-01, R3-02, R1-02
    session = repository.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "é", "list": [1, None, 2.5]})
    deep = root.create_group("a/b/c", attributes={"deep": True})
    deep.create_array("x", shape=(2,), dtype="i4", dimension_names=["t"], attributes={"units": "K"})
    deep.attrs["more"] = {"nested": [1, 2]}
    root.attrs.update({"title": "new"})
    store = committed_store(session, repository)
    again = zarr.open_group(store, mode="r")
    assert dict(again.attrs) == {"title": "new", "list": [1, None, 2.5]}
    paths = [path for path, _ in again.members(max_depth=None)]
    assert sorted(paths) == ["a", "a/b", "a/b/c", "a/b/c/x"]
    assert dict(again["a/b/c"].attrs) == {"deep": True, "more": {"nested": [1, 2]}}
    assert again["a/b/c/x"].metadata.dimension_names == ("t",)
    assert again["a/b/c/x"].attrs["units"] == "K"


def test_consolidated_metadata_is_refused_and_not_needed(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("x", shape=(2,), dtype="i4")
    with pytest.raises(TypeError, match="consolidated metadata"):
        zarr.consolidate_metadata(session.store)
    assert sorted(zarr.open_group(session.store, mode="r")) == ["x"]
    with pytest.raises(ValueError, match="onsolidated"):
        zarr.open_consolidated(session.store)


def test_copying_between_stores(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    source = zarr.create_array({}, shape=(10, 10), chunks=(3, 4), dtype="f4")
    source[...] = np.arange(100).reshape(10, 10)
    zarr.from_array(session.store, data=source, name="a")
    again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
    assert_same(again[...], source[...])
    back = zarr.from_array({}, data=again)
    assert_same(back[...], source[...])


def test_create_hierarchy(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    nodes = {
        "": zarr.core.group.GroupMetadata(zarr_format=3),
        "g": zarr.core.group.GroupMetadata(zarr_format=3, attributes={"a": 1}),
    }
    created = dict(zarr.create_hierarchy(store=session.store, nodes=nodes))  # type: ignore[arg-type]
    assert sorted(created) == ["", "g"]
    assert dict(zarr.open_group(session.store, path="g", mode="r").attrs) == {"a": 1}


def test_writing_fill_values_deletes_chunks(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(4,), chunks=(2,), dtype="i4", fill_value=9
    )
    array[:] = 1
    session.commit("two chunks")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array[:2] = 9
    assert array.nchunks_initialized == 1
    again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
    assert again.nchunks_initialized == 1
    assert again[:].tolist() == [9, 9, 1, 1]


def test_codecs_and_filters(repository: icefloe.Repository) -> None:
    data = RANDOM.normal(size=(20, 30))
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=data.shape,
        chunks=(7, 11),
        dtype="f8",
        serializer=BytesCodec(endian="big"),
        compressors=[ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
        filters=[zarr.codecs.TransposeCodec(order=(1, 0))],
    )
    array[...] = data
    again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
    assert_same(again[...], data)


def test_many_threads_share_a_store(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    size = 24
    array = zarr.create_array(
        session.store, name="a", shape=(size, 200), chunks=(1, 100), dtype="i4", compressors=None
    )
    start = threading.Barrier(size)

    def work(row: Any) -> Any:
        start.wait()
        own = zarr.open_array(session.store, path="a")
        own[row] = row
        zarr.create_array(session.store, name=f"own/{row}", shape=(1,), dtype="i4")[:] = row
        assert (own[row] == row).all()
        return int(array[row].sum())

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(work, range(size))) == [row * 200 for row in range(size)]
    store = committed_store(session, repository)
    again = zarr.open_array(store, path="a", mode="r")
    assert_same(again[:, 0], np.arange(size, dtype="i4"))
    assert [zarr.open_array(store, path=f"own/{n}", mode="r")[0] for n in range(size)] == list(
        range(size)
    )


def test_many_threads_with_an_event_loop_each(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    threads, chunks = 100, 5
    zarr.create_array(session.store, name="a", shape=(threads, chunks), chunks=(1, 1), dtype="u1")
    store = session.store
    prototype = default_buffer_prototype()

    async def work(row: Any) -> Any:
        await asyncio.gather(
            *(
                store.set(f"a/c/{row}/{i}", cpu.Buffer.from_bytes(bytes([row, i]) * 400))
                for i in range(chunks)
            )
        )
        return await asyncio.gather(
            *(store.get(f"a/c/{row}/{i}", prototype) for i in range(chunks))
        )

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda row: asyncio.run(work(row)), range(threads)))
    for row, values in enumerate(results):
        assert [v.to_bytes() for v in values] == [bytes([row, i]) * 400 for i in range(chunks)]
    assert len(list(committed_store(session, repository).list_prefix("a"))) == 1 + threads * chunks


async def test_synchronous_calls_inside_a_running_loop(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("x", shape=(4,), chunks=(1,), dtype="i4")[:] = 3
    session.commit("inside a loop")
    store = repository.readonly_session("main").store
    assert zarr.open_group(store, mode="r")["x"][:].tolist() == [3, 3, 3, 3]
    assert store.get_sync("x/zarr.json") is not None
    assert "x/c/0" in list(store.list())
    array = await zarr.api.asynchronous.open_array(store=store, path="x", mode="r")
    assert (await array.getitem(slice(None))).tolist() == [3, 3, 3, 3]


def test_a_stale_array_is_not_read_as_fill_values(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(4,), dtype="i4")
    array[:] = 1
    session.store.sync_clear()
    with pytest.raises(icefloe.NodeNotFoundError):
        array[:]
    with pytest.raises(icefloe.NodeNotFoundError):
        array[:] = 2


def test_writing_to_a_committed_session_is_refused(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(4,), dtype="i4")
    array[:] = 1
    session.commit("done")
    assert array[:].tolist() == [1, 1, 1, 1]
    with pytest.raises(icefloe.ReadOnlyError, match="read-only store"):
        array[:] = 2
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_array(session.store, path="a", mode="r+")


def test_wrapped_stores(repository: icefloe.Repository) -> None:
    from zarr.storage import LoggingStore

    session = repository.writable_session("main")
    wrapped = LoggingStore(session.store, log_level="WARNING")
    zarr.create_array(wrapped, name="a", shape=(4,), chunks=(2,), dtype="i4")[:] = 8
    assert zarr.open_array(session.store, path="a", mode="r")[:].tolist() == [8, 8, 8, 8]
    assert wrapped.counter["set"] + wrapped.counter["set_sync"] >= 3
