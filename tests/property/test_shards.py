"""Parts of shards against numpy: indexes at both ends, missing chunks, all kinds of chunks.

The size up to which a shard is read as a whole is drawn, so that small examples go both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import google_crc32c
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

import icefloe
from icefloe.arrays.layout import layout_of
from icefloe.config import ChunkPackingConfig
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import DamagedChunkError, FormatError
from icefloe.storage.forwarding import ForwardingStorage
from tests.property.region_arrays import assert_same, selections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.session import Session
    from icefloe.storage.port import Storage

# Zarr warns of data types that its specification does not have yet.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")

INNER = [
    [BytesCodec()],
    [BytesCodec(endian="big"), ZstdCodec(level=1)],
    [BytesCodec(), Crc32cCodec()],
    [BytesCodec(), GzipCodec(level=1)],
]
INDEX = [[BytesCodec()], [BytesCodec(), Crc32cCodec()], [BytesCodec(endian="big"), Crc32cCodec()]]


def new_repository(kind: str) -> icefloe.Repository:
    sizes = {
        "inline": (1 << 20, ChunkPackingConfig()),
        "packed": (0, ChunkPackingConfig()),
        "alone": (0, ChunkPackingConfig(max_chunk_bytes=0)),
    }
    inline, packing = sizes[kind]
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=inline, chunk_packing=packing)
    return icefloe.Repository.create(icefloe.in_memory_storage(), config)


def read_whole_up_to(nbytes: int) -> Any:
    return patch.object(WorkingTree, "gap_bytes", nbytes)


@st.composite
def sharded(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    inner = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    outer = tuple(size * draw(st.integers(1, 3)) for size in inner)
    codecs: list[Any] = list(draw(st.sampled_from(INNER)))
    if rank > 1 and draw(st.booleans()):
        codecs.insert(0, TransposeCodec(order=tuple(draw(st.permutations(range(rank))))))
    return {
        "shape": tuple(draw(st.integers(1, 11)) for _ in range(rank)),
        "chunks": outer,
        "dtype": draw(st.sampled_from(["u1", "<i4", ">f4", "<f8", "<M8[s]", "S3"])),
        "serializer": ShardingCodec(
            chunk_shape=inner,
            codecs=codecs,
            index_codecs=draw(st.sampled_from(INDEX)),
            index_location=draw(st.sampled_from(["start", "end"])),
        ),
        "config": {"write_empty_chunks": draw(st.booleans())},
    }


def filled(data: st.DataObject, array: zarr.Array[Any]) -> np.ndarray:
    """Write some parts; others stay as they are, so that shards and chunks are missing."""
    model = np.full(array.shape, array.fill_value, dtype=array.dtype)
    for _ in range(data.draw(st.integers(0, 3))):
        selection = data.draw(selections(array.shape, backwards=False))
        seed = data.draw(st.integers(0, 1000))
        drawn = np.random.default_rng(seed).integers(0, 100, model[selection].shape)
        model[selection] = drawn.astype(str).astype("S3") if array.dtype.kind == "S" else drawn
        array[selection] = model[selection]
    return model


@given(st.data())
def test_parts_of_shards_are_what_numpy_says(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["inline", "packed", "alone"]))
    repository = new_repository(kind)
    session = repository.writable_session("main")
    given_array = data.draw(sharded())
    array = zarr.create_array(session.store, name="a", compressors=None, **given_array)
    assert layout_of(session.tree, "/a").shards is not None
    model = filled(data, array)
    if data.draw(st.booleans()):
        session.commit("written")
        session = repository.readonly_session("main")
    session.verify_chunks = data.draw(st.booleans())
    with read_whole_up_to(data.draw(st.sampled_from([-1, 100, 1 << 20]))):
        check(data, session, model)


def check(data: st.DataObject, session: Session, model: np.ndarray) -> None:
    array = zarr.open_array(session.store, path="a", mode="r")
    assert_same(session.read_region("a"), model)
    assert_same(array[...], model)
    for _ in range(3):
        selection = data.draw(selections(model.shape))
        assert_same(session.read_region("a", selection), model[selection])
        selection = data.draw(selections(model.shape, backwards=False))
        assert_same(array[selection], model[selection])
    place = tuple(data.draw(st.integers(0, size - 1)) for size in model.shape)
    assert_same(session.read_region("a", place), model[place])
    some = sorted({data.draw(st.integers(0, size - 1)) for size in model.shape[:1] * 2})
    rest = (slice(None),) * (model.ndim - 1)
    assert_same(array.oindex[(some, *rest)], model[(some, *rest)])  # type: ignore[arg-type]


# --- what is read


class Watched(ForwardingStorage):
    """Remembers which bytes of chunk files were read."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.ranges: list[tuple[int, int]] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = super().get(key, start, length)
        if key.startswith("chunks/"):
            self.ranges.append((start, len(data)))
        return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if key.startswith("chunks/"):
            self.ranges += ranges
        return super().get_ranges(key, ranges)


def one_shard(index_location: str = "end", kind: str = "alone") -> icefloe.Repository:
    """One shard of 64 chunks of 4 KiB each, of which one is missing."""
    repository = new_repository(kind)
    with repository.transaction("main", message="one shard") as store:
        array = zarr.create_array(
            store,
            name="a",
            shape=(64 * 1024,),
            chunks=(1024,),
            shards={"shape": (64 * 1024,), "index_location": index_location},  # type: ignore[arg-type]
            dtype="<i4",
            fill_value=7,
            compressors=None,
        )
        values = np.arange(64 * 1024)
        values[3 * 1024 : 4 * 1024] = 7
        array[:] = values
    return repository


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("through_zarr", [True, False])
def test_only_what_is_needed_is_read(index_location: str, *, through_zarr: bool) -> None:
    storage = Watched(one_shard(index_location).storage)
    session = icefloe.Repository.open(storage).readonly_session("main")

    def read(selection: slice | int) -> Any:
        storage.ranges.clear()
        if through_zarr:
            return zarr.open_array(session.store, path="a", mode="r")[selection]
        return session.read_region("a", selection)

    index = 64 * 16 + 4
    assert read(5000) == 5000
    assert [length for _, length in storage.ranges] == [index, 4096]
    assert read(slice(3000, 5000)).tolist() == [*range(3000, 3072), *[7] * 1024, *range(4096, 5000)]
    assert sum(length for _, length in storage.ranges) == index + 2 * 4096
    assert read(slice(3 * 1024, 4 * 1024)).tolist() == [7] * 1024
    assert sum(length for _, length in storage.ranges) == index
    # Far from each other: two requests. More than half of the chunks: the shard as a whole.
    assert read(slice(0, None, 60 * 1024)).tolist() == [0, 60 * 1024]
    assert [length for _, length in storage.ranges] == [index, 4096, 4096]
    read(slice(0, 40 * 1024))
    assert [length for _, length in storage.ranges] == [63 * 4096 + index]


def test_whole_shards_are_compared_with_their_checksums() -> None:
    repository = one_shard()
    storage = repository.storage
    (key,) = [info.key for info in storage.list("chunks/")]
    whole = storage.get(key)
    storage.put(key, whole[:100] + b"?" + whole[101:])
    session = repository.readonly_session("main")
    assert session.read_region("a", 5000) == 5000
    session.verify_chunks = True
    for selection in (5000, slice(5000, 9000), slice(None)):
        with pytest.raises(DamagedChunkError, match=r"chunk \[0\] of /a in snapshot"):
            session.read_region("a", selection)


def damaged_index(whole: bytes) -> dict[str, bytes]:
    entries = np.frombuffer(whole[-1028:-4], "<u8").copy()
    far = entries.copy()
    far[2 * 4] = len(whole)  # the chunk of element 5000 would begin after the end
    with_far = far.tobytes() + google_crc32c.value(far.tobytes()).to_bytes(4, "little")
    return {
        "checksum": whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:],
        "outside": whole[:-1028] + with_far,
    }


@pytest.mark.parametrize("damage", ["checksum", "outside"])
@pytest.mark.parametrize("near", [-1, 1 << 30])
@pytest.mark.parametrize("selection", [5000, slice(5000, 9000)])
def test_a_damaged_index_is_an_error(damage: str, near: int, selection: Any) -> None:
    repository = one_shard()
    (key,) = [info.key for info in repository.storage.list("chunks/")]
    repository.storage.put(key, damaged_index(repository.storage.get(key))[damage])
    session = repository.readonly_session("main")
    with read_whole_up_to(near), pytest.raises(FormatError, match=r"chunk \[0\] of /a"):
        session.read_region("a", selection)


def test_shards_shorter_than_an_index_are_an_error() -> None:
    repository = new_repository("alone")
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8,), chunks=(1,), shards=(8,), dtype="u1")
    session.tree.set_chunk("/a", (0,), b"short")
    for near in (-1, 100):
        for selection in (3, slice(3, 5)):
            with read_whole_up_to(near), pytest.raises(FormatError, match=r"chunk \[0\] of /a"):
                session.read_region("a", selection)


# --- other places and other codecs


@pytest.mark.parametrize("near", [-1, 1 << 30])
def test_virtual_shards(tmp_path: Any, near: int) -> None:
    model = np.arange(64, dtype="<i4")
    plain = zarr.create_array(
        tmp_path / "plain.zarr", shape=(64,), chunks=(4,), shards=(32,), dtype="<i4"
    )
    plain[:] = model
    place = (tmp_path / "plain.zarr").as_uri() + "/"
    store = icefloe.local_filesystem_store(str(tmp_path / "plain.zarr"))
    container = icefloe.VirtualChunkContainer(place, store)
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(container)
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(), config, authorize_virtual_chunk_access={place: None}
    )
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(64,), chunks=(4,), shards=(32,), dtype="<i4")
    for number in range(2):
        file = tmp_path / "plain.zarr" / "c" / str(number)
        session.store.set_virtual_ref(
            f"a/c/{number}", file.as_uri(), offset=0, length=file.stat().st_size
        )
    with read_whole_up_to(near):
        assert session.read_region("a", slice(3, 50, 5)).tolist() == list(range(3, 50, 5))
        assert session.read_region("a", 41) == 41
        assert (session.read_region("a") == model).all()


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@pytest.mark.parametrize("case", ["nested", "transposed", "compressed", "index", "text"])
def test_what_is_not_understood_is_left_to_zarr(case: str) -> None:
    repository = new_repository("alone")
    session = repository.writable_session("main")
    inner: Any = [BytesCodec()]
    more: dict[str, Any] = {"dtype": "<i4", "compressors": None}
    index: Any = [BytesCodec(), Crc32cCodec()]
    if case == "nested":
        inner = [ShardingCodec(chunk_shape=(1, 2))]
    elif case == "transposed":
        more["filters"] = [TransposeCodec(order=(1, 0))]
    elif case == "compressed":
        more["compressors"] = [ZstdCodec()]
    elif case == "index":
        index = [TransposeCodec(order=(2, 0, 1)), BytesCodec()]
    elif case == "text":
        more["dtype"] = str
        inner = None
    sharding = {"chunk_shape": (2, 2), "index_codecs": index}
    if inner is not None:
        sharding["codecs"] = inner
        array = zarr.create_array(
            session.store,
            name="a",
            shape=(7, 8),
            chunks=(4, 4),
            serializer=ShardingCodec(**sharding),
            **more,
        )
    else:
        array = zarr.create_array(
            session.store, name="a", shape=(7, 8), chunks=(2, 2), shards=(4, 4), dtype=str
        )
    model = np.arange(56).reshape(7, 8).astype(object if case == "text" else "<i4")
    if case == "text":
        model = model.astype(str).astype(object)
    array[:] = model
    assert layout_of(session.tree, "/a").shards is None
    assert (session.read_region("a", (slice(1, 6), 3)) == model[1:6, 3]).all()
    assert (array[2:, ::3] == model[2:, ::3]).all()
