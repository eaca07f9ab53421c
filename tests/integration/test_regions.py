"""Regions of arrays: what goes in comes out, errors name the chunk, threads are obeyed."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs
import zstandard
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import MemoryStore

import icefloe
from icefloe.arrays import transfer
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import (
    FormatError,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
)
from tests.builders import new_repository

if TYPE_CHECKING:
    from pathlib import Path

HAS_RECTILINEAR_GRIDS = "rectilinear_chunks" in zarr.config.get("array")
RANDOM = np.random.default_rng(7)


@pytest.fixture(params=["memory", "local"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> icefloe.Repository:
    return new_repository(tmp_path if request.param == "local" else None)


@pytest.fixture
def session(repository: icefloe.Repository) -> icefloe.Session:
    return repository.writable_session("main")


def same(left: Any, right: Any) -> None:
    np.testing.assert_array_equal(left, right, strict=True)


def make(session: icefloe.Session, data: np.ndarray, chunks: Any, **more: Any) -> zarr.Array[Any]:
    array = zarr.create_array(
        session.store, name="a", shape=data.shape, chunks=chunks, dtype=data.dtype, **more
    )
    array[...] = data
    return array


class TestReading:
    def test_a_box_over_many_slabs_and_threads(
        self,
        repository: icefloe.Repository,
        session: icefloe.Session,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(transfer, "_SLAB_BYTES", 1000)
        data = RANDOM.integers(0, 9, (61, 47)).astype("f4")
        make(session, data, (5, 4))
        session.commit("written")
        for threads in (1, 3):
            config = icefloe.RepositoryConfig(codec_threads=threads)
            reopened = repository.reopen(config).readonly_session("main")
            same(reopened.read_region("a"), data)
            same(
                reopened.read_region("a", (slice(3, 50, 2), slice(40, 5, -3))),
                data[3:50:2, 40:5:-3],
            )

    def test_what_is_not_committed_is_read(self, session: icefloe.Session) -> None:
        data = np.arange(100, dtype="i8")
        make(session, data, (7,))
        session.write_region("a", slice(10, 20), 0)
        data[10:20] = 0
        same(session.read_region("a"), data)

    def test_an_out_array_of_any_layout(self, session: icefloe.Session) -> None:
        data = RANDOM.random((8, 9))
        make(session, data, (3, 4))
        out = np.zeros((9, 20))[:, ::2].T[:8]
        assert session.read_region("a", (slice(None), slice(None)), out=out[:, :9]).base is not None
        same(np.ascontiguousarray(out[:, :9]), data)

    @pytest.mark.parametrize(
        ("out", "says"),
        [
            (np.zeros(3), r"shape \(4,\), found \(3,\)"),
            (np.broadcast_to(np.zeros(1), 4), "writable"),
            ([0, 0, 0, 0], "list"),
            (np.zeros(4, bool), "float64, it is bool"),
        ],
    )
    def test_an_out_array_that_does_not_fit_is_refused(
        self, session: icefloe.Session, out: list[int] | np.ndarray, says: str
    ) -> None:
        make(session, np.zeros(4), (2,))
        with pytest.raises(InvalidInputError, match=says):
            session.read_region("a", ..., out)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("selection", "says"),
        [
            ((..., ...), "one ellipsis"),
            ((0, 0, 0), "too many indices"),
            (5, "index 5 is outside of axis 0"),
            ((0, -4), "index -4 is outside of axis 1"),
            ([1, 2], "integers, slices and an ellipsis"),
            (True, "integers, slices and an ellipsis"),
            (1.5, "integers, slices and an ellipsis"),
            (slice(0, 2, 0), "bad slice"),
        ],
    )
    def test_a_selection_that_makes_no_sense_is_refused(
        self, session: icefloe.Session, selection: Any, says: str
    ) -> None:
        make(session, np.zeros((5, 3)), (2, 2))
        with pytest.raises(InvalidInputError, match=says):
            session.read_region("a", selection)

    def test_groups_and_absent_nodes_have_no_regions(self, session: icefloe.Session) -> None:
        zarr.create_group(session.store, path="g")
        with pytest.raises(NodeNotFoundError, match="is a group"):
            session.read_region("g")
        with pytest.raises(NodeNotFoundError, match="does not exist"):
            session.write_region("h", ..., 1)

    async def test_in_an_event_loop(self, session: icefloe.Session) -> None:
        data = np.arange(6).astype(str).astype(np.dtypes.StringDType())
        await asyncio.to_thread(make, session, data, (4,))
        same(session.read_region("a"), data)  # codecs of Zarr, while another loop runs here
        same(await session.read_region_async("a", slice(2, 5)), data[2:5])
        await session.write_region_async("a", 0, "x")
        assert session.read_region("a", 0) == "x"

    @pytest.mark.skipif(not HAS_RECTILINEAR_GRIDS, reason="this zarr has no rectilinear grids")
    def test_a_rectilinear_grid(self, session: icefloe.Session) -> None:
        data = RANDOM.integers(0, 9, (10, 10)).astype("i4")
        with zarr.config.set({"array.rectilinear_chunks": True}):
            array = make(session, data, [[1, 2, 3, 4], [5, 5]])
            same(session.read_region("a", (slice(2, 9, 2), slice(3, 8))), data[2:9:2, 3:8])
            session.write_region("a", (slice(1, 5), slice(4, 6)), 7)
            data[1:5, 4:6] = 7
            same(array[...], data)


class TestWriting:
    def test_chunks_with_the_fill_value_only_are_deleted_unless_kept(
        self, session: icefloe.Session
    ) -> None:
        make(session, np.ones(9), (3,))
        session.write_region("a", slice(0, 3), 0)
        assert session.tree.chunk_coords("/a").ravel().tolist() == [1, 2]
        session.write_region("a", slice(3, 6), 0, write_empty_chunks=True)
        assert session.tree.chunk_coords("/a").ravel().tolist() == [1, 2]
        with zarr.config.set({"array.write_empty_chunks": True}):
            session.write_region("a", slice(0, 3), 0)
        assert session.tree.chunk_coords("/a").ravel().tolist() == [0, 1, 2]
        same(session.read_region("a"), np.array([0.0] * 6 + [1.0] * 3))

    def test_negative_zero_is_not_zero_and_nan_is_nan(self, session: icefloe.Session) -> None:
        make(session, np.ones(4), (2,))
        session.write_region("a", slice(0, 2), -0.0)
        assert len(session.tree.chunk_coords("/a")) == 2
        assert np.signbit(session.read_region("a", 0))
        zarr.create_array(
            session.store, name="n", shape=4, chunks=(2,), dtype="f4", fill_value=np.nan
        )
        session.write_region("n", ..., [np.nan, np.nan, 1, 2])
        assert session.tree.chunk_coords("/n").ravel().tolist() == [1]

    def test_values_that_do_not_fit_are_refused(self, session: icefloe.Session) -> None:
        make(session, np.ones((4, 3)), (2, 2))
        with pytest.raises(InvalidInputError, match=r"shape \(2,\) do not fit"):
            session.write_region("a", ..., [1, 2])
        same(session.read_region("a"), np.ones((4, 3)))

    def test_a_read_only_session_refuses(
        self, repository: icefloe.Repository, session: icefloe.Session
    ) -> None:
        make(session, np.ones(4), (2,))
        session.commit("written")
        with pytest.raises(ReadOnlyError):
            repository.readonly_session("main").write_region("a", 0, 1)

    def test_forks_write_regions_and_are_merged(
        self, repository: icefloe.Repository, session: icefloe.Session
    ) -> None:
        make(session, np.zeros(100), (5,))
        session.commit("empty")
        session = repository.writable_session("main")
        forks = [session.fork() for _ in range(4)]
        for number, fork in enumerate(forks):
            fork.write_region("a", slice(number * 25, number * 25 + 25), number)
        session.merge(*(pickle.loads(pickle.dumps(fork)) for fork in forks))
        session.commit("by four")
        read = pickle.loads(pickle.dumps(repository.readonly_session("main"))).read_region("a")
        same(read, np.repeat(np.arange(4.0), 25))

    def test_threads_write_regions_of_one_session(self, session: icefloe.Session) -> None:
        make(session, np.zeros(4000), (5,))

        def write(number: Any) -> None:
            session.write_region("a", slice(number * 500, number * 500 + 500), number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        same(session.read_region("a"), np.repeat(np.arange(8.0), 500))

    @pytest.mark.parametrize("compressors", ["auto", None])
    @pytest.mark.parametrize("rows", [2, 1], ids=["in files", "in packs"])
    def test_big_chunks_in_threads(
        self,
        repository: icefloe.Repository,
        session: icefloe.Session,
        compressors: str | None,
        rows: int,
    ) -> None:
        data = RANDOM.integers(0, 4, (24, 1 << 16)).astype("f8")
        array = zarr.create_array(
            session.store,
            name="a",
            shape=data.shape,
            chunks=(rows, 1 << 16),
            dtype="f8",
            compressors=compressors,  # type: ignore[arg-type]
        )
        session.write_region("a", ..., data)
        array[4:6] = data[4:6] = 0  # a hole
        session.commit("written")
        read = repository.readonly_session("main")
        through_zarr = zarr.open_array(read.store, path="a", mode="r")
        for chosen in (..., slice(3, 20), np.s_[1::3, 100:5000:7]):
            same(read.read_region("a", chosen), data[chosen])
            same(through_zarr[chosen], data[chosen])


class TestErrors:
    @pytest.mark.parametrize(
        ("codecs", "data"),
        [
            ((), b"too short"),
            ((ZstdCodec(),), b"no frame"),
            ((Crc32cCodec(),), bytes(28)),
            ((GzipCodec(),), b"no gzip"),
            ((BloscCodec(typesize=8),), b"no blosc at all, is it"),
        ],
    )
    @pytest.mark.parametrize("through_zarr", [True, False])
    def test_a_chunk_that_cannot_be_decoded_is_named(
        self, session: icefloe.Session, codecs: tuple[Any, ...], data: bytes, through_zarr: bool
    ) -> None:
        array = make(session, np.arange(1.0, 10.0).reshape(3, 3), (1, 3), compressors=codecs)
        session.tree.set_chunk("/a", (1, 0), data)
        with pytest.raises(FormatError, match=r"chunk \[1, 0\] of /a cannot be decoded"):
            array[...] if through_zarr else session.read_region("a")
        with pytest.raises(FormatError, match=r"chunk \[1, 0\] of /a cannot be decoded"):
            array[1] if through_zarr else session.read_region("a", 1)
        same(session.read_region("a", 2), np.array([7.0, 8.0, 9.0]))

    @pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
    @pytest.mark.parametrize("kind", ["text", "filter", "shards"])
    def test_chunks_that_zarr_decodes_are_named_too(
        self, session: icefloe.Session, kind: str
    ) -> None:
        more: dict[str, Any]
        if kind == "text":
            data, more = np.array([["a"], ["b"], ["c"]], np.dtypes.StringDType()), {}
        elif kind == "filter":
            data = np.arange(1, 4).reshape(3, 1)
            more = {"filters": [zarr.codecs.numcodecs.Delta(dtype="i8")]}
        else:
            data, more = np.arange(1, 4).reshape(3, 1), {"shards": (1, 1)}
        array = make(session, data, (1, 1), **more)
        session.tree.set_chunk("/a", (1, 0), b"no such thing")
        for read in (lambda: array[...], lambda: array[1:, 0], lambda: array.vindex[[1], [0]]):
            with pytest.raises(FormatError, match=r"chunk \[1, 0\] of /a cannot be decoded"):
                read()
        same(array[0], data[0])

    def test_frames_without_a_length_and_several_frames(self, session: icefloe.Session) -> None:
        data = np.arange(1.0, 9.0)
        array = make(session, data, (4,), compressors=[ZstdCodec()])
        silent = zstandard.ZstdCompressor(write_content_size=False)
        session.tree.set_chunk("/a", (0,), silent.compress(data[:4].tobytes()))
        frames = [zstandard.compress(data[i : i + 2].tobytes()) for i in (4, 6)]
        session.tree.set_chunk("/a", (1,), b"".join(frames))
        same(array[...], data)
        same(array[4:], data[4:])
        same(array[:4], data[:4])
        same(session.read_region("a"), data)

    def test_frames_of_another_length_are_refused(self, session: icefloe.Session) -> None:
        array = make(session, np.arange(1.0, 9.0), (4,), compressors=[ZstdCodec()])
        session.tree.set_chunk("/a", (0,), zstandard.compress(bytes(24)))
        for read in (lambda: array[...], lambda: array[0], lambda: session.read_region("a")):
            with pytest.raises(FormatError, match=r"chunk \[0\] of /a"):
                read()

    def test_the_number_of_threads_is_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(InvalidInputError, match="codec_threads"):
            icefloe.RepositoryConfig(codec_threads=0)
        monkeypatch.setenv("ICEFLOE_THREADS", "3")
        assert icefloe.RepositoryConfig().effective().codec_threads == 3
        assert icefloe.RepositoryConfig(codec_threads=5).effective().codec_threads == 5
        monkeypatch.setenv("ICEFLOE_THREADS", "none")
        with pytest.raises(InvalidInputError, match="ICEFLOE_THREADS"):
            icefloe.RepositoryConfig().effective()


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize(
    "names",
    [
        ("Shuffle", "Zlib"),
        ("Shuffle", "Zlib", "Fletcher32"),
        ("Fletcher32",),
        ("Zstd",),
        ("BZ2",),
        ("Blosc",),
        ("LZ4", "CRC32"),
    ],
)
@pytest.mark.parametrize("dtype", ["<f8", ">i4"])
def test_codecs_of_numcodecs_take_whole_batches(
    session: icefloe.Session, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], dtype: str
) -> None:
    module = zarr.codecs.numcodecs
    codecs = [getattr(module, name)() for name in names]
    data = RANDOM.integers(0, 9, (30, 40)).astype(dtype)
    data[:7] = 0
    endian = "big" if dtype[0] == ">" else "little"
    options: dict[str, Any] = {"compressors": codecs, "serializer": BytesCodec(endian=endian)}
    array = make(session, data, (7, 11), **options)
    plain = MemoryStore()
    zarr.create_array(
        plain,
        name="a",
        shape=data.shape,
        chunks=(7, 11),
        dtype=data.dtype,
        **options,
    )[...] = data
    for key, value in plain._store_dict.items():
        if "/c/" in key:
            place = tuple(map(int, key.split("/")[2:]))
            assert session.get_chunk("/a", place) == value.to_bytes()
    assert session.chunk_count("/a") == len(plain._store_dict) - 2

    calls = []
    original = WorkingTree.read_chunks

    def reading(self: Any, path: Any, coords: Any, *buffers: Any, **more: Any) -> Any:
        calls.append(len(coords))
        return original(self, path, coords, *buffers, **more)

    monkeypatch.setattr(WorkingTree, "read_chunks", reading)
    same(array[...], data)
    same(array[3:20, ::3], data[3:20, ::3])
    native = data.astype(data.dtype.newbyteorder("="))
    same(session.read_region("a", (slice(None, None, -2), 5)), native[::-2, 5])
    assert calls == [20, 12, 5]
    session.tree.set_chunk("/a", (2, 1), b"no such thing")
    with pytest.raises(FormatError, match=r"chunk \[2, 1\] of /a cannot be decoded"):
        array[...]


def test_codecs_inside_of_shards(session: icefloe.Session) -> None:
    data = RANDOM.integers(0, 9, (12, 12)).astype("i2")
    inner = [BytesCodec(endian="big"), ZstdCodec()]
    codec = ShardingCodec(chunk_shape=(2, 3), codecs=inner, index_location="start")  # type: ignore[arg-type]
    array = make(session, data, (4, 6), serializer=codec, compressors=None)
    same(session.read_region("a", (slice(3, 9), 5)), data[3:9, 5])
    session.write_region("a", (slice(1, 11, 3), slice(2, 8)), 0)
    data[1:11:3, 2:8] = 0
    same(array[...], data)
