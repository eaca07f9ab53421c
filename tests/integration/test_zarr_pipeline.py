"""The codec pipeline of our stores: used there and nowhere else, and exact where it is hard."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline
from zarr.storage import MemoryStore

import icefloe
from icefloe.engine.tree.working_tree import WorkingTree
from icefloe.errors import ReadOnlyStoreError
from icefloe.zarr_store import acceleration
from icefloe.zarr_store.pipeline import StorePipeline
from tests.builders import new_repository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def repository() -> icefloe.Repository:
    return new_repository()


@pytest.fixture
def session(repository: icefloe.Repository) -> icefloe.Session:
    return repository.writable_session("main")


@pytest.fixture
def bulk_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Which chunks are asked for at once."""
    calls: dict[str, list[Any]] = {"read": [], "written": []}
    read, write = WorkingTree.read_chunks, WorkingTree.write_chunks

    def reading(self: Any, path: Any, coords: Any, *buffers: Any, **more: Any) -> Any:
        calls["read"].append(len(coords))
        return read(self, path, coords, *buffers, **more)

    def writing(self: Any, path: Any, coords: Any, segments: Any) -> Any:
        calls["written"].append(len(coords))
        return write(self, path, coords, segments)

    monkeypatch.setattr(WorkingTree, "read_chunks", reading)
    monkeypatch.setattr(WorkingTree, "write_chunks", writing)
    return calls


def pipeline_of(array: zarr.Array[Any]) -> Any:
    return array._async_array.codec_pipeline


class OtherPipeline(BatchedCodecPipeline):
    """A pipeline that somebody configured."""


register_pipeline(OtherPipeline)
OTHER = f"{OtherPipeline.__module__}.{OtherPipeline.__qualname__}"


class TestChoice:
    def test_other_stores_have_the_pipeline_that_is_configured(
        self, session: icefloe.Session
    ) -> None:
        for store in (MemoryStore(),):
            array = zarr.create_array(store, name="a", shape=4, chunks=(2,), dtype="i4")
            assert type(pipeline_of(array)) is BatchedCodecPipeline
            old = zarr.create_array(
                store, name="b", shape=4, chunks=(2,), dtype="i4", zarr_format=2
            )
            assert type(pipeline_of(old)) is BatchedCodecPipeline
        with zarr.config.set({"codec_pipeline.path": OTHER}):
            array = zarr.create_array(MemoryStore(), name="a", shape=4, chunks=(2,), dtype="i4")
            assert type(pipeline_of(array)) is OtherPipeline
            ours = zarr.create_array(session.store, name="a", shape=4, chunks=(2,), dtype="i4")
            assert type(pipeline_of(ours)) is StorePipeline
            assert type(pipeline_of(ours).inner) is OtherPipeline
        assert zarr.config.get("codec_pipeline.path").endswith("BatchedCodecPipeline")

    def test_it_looks_like_the_one_inside(self, session: icefloe.Session) -> None:
        array = zarr.create_array(session.store, name="a", shape=4, chunks=(2,), dtype="i4")
        again = zarr.open_array(session.store, path="a")
        assert pipeline_of(array) == pipeline_of(again)
        pipeline = pipeline_of(array)
        assert list(pipeline) == list(pipeline.inner)
        assert pipeline.batch_size == pipeline.inner.batch_size
        assert pipeline.supports_partial_decode == pipeline.inner.supports_partial_decode
        with pytest.raises(AttributeError):
            _ = pipeline.no_such_thing

    def test_arrays_are_pickled(
        self, repository: icefloe.Repository, session: icefloe.Session
    ) -> None:
        array = zarr.create_array(session.store, name="a", shape=9, chunks=(2,), dtype="i4")
        array[...] = np.arange(9)
        session.commit("written")
        array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
        assert array[3] == 3
        again = pickle.loads(pickle.dumps(array))
        assert type(pipeline_of(again)) is StorePipeline
        np.testing.assert_array_equal(again[...], np.arange(9))


class TestAcceleration:
    """Zarr is changed by the first store, not by an import, and can be changed back."""

    @pytest.fixture(autouse=True)
    def leave_it_on(self) -> Iterator[None]:
        yield
        acceleration.enable()

    def pipeline(self, session: Any, name: Any) -> Any:
        array = zarr.create_array(session.store, name=name, shape=4, chunks=(2,), dtype="i4")
        return type(pipeline_of(array))

    def run(self, code: Any, **environment: Any) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    def test_the_first_store_turns_it_on_and_an_import_does_not(self) -> None:
        code = (
            "import zarr.core.array as zarr_array\n"
            "plain = zarr_array.create_codec_pipeline\n"
            "import icefloe, icefloe.zarr_store.store, icefloe.xarray, icefloe.dask\n"
            "s = icefloe.Repository.create(icefloe.in_memory_storage()).writable_session('main')\n"
            "print(zarr_array.create_codec_pipeline is plain)\n"
            "s.store\n"
            "print(zarr_array.create_codec_pipeline is plain)\n"
        )
        assert self.run(code) == ["True", "False"]

    def test_a_store_that_is_unpickled_turns_it_on(self, tmp_path: Path) -> None:
        repository = icefloe.Repository.create(tmp_path / "repo")
        (tmp_path / "pickle").write_bytes(pickle.dumps(repository.readonly_session("main").store))
        code = (
            "import pathlib, pickle\n"
            f"pickle.loads(pathlib.Path({str(tmp_path / 'pickle')!r}).read_bytes())\n"
            "from icefloe.zarr_store import acceleration\n"
            "print(acceleration.is_enabled())\n"
        )
        assert self.run(code) == ["True"]

    @pytest.mark.parametrize(("setting", "expected"), [("0", "False"), ("1", "True")])
    def test_the_environment_decides(self, setting: str, expected: str) -> None:
        code = (
            "import icefloe\n"
            "from icefloe.zarr_store import acceleration\n"
            "icefloe.Repository.create(icefloe.in_memory_storage()).readonly_session('main').store\n"
            "print(acceleration.is_enabled())\n"
        )
        assert self.run(code, ICEFLOE_ZARR_PIPELINE=setting) == [expected]

    def test_it_is_turned_off_and_on_again(self, session: icefloe.Session) -> None:
        assert self.pipeline(session, "on") is StorePipeline
        wrapper = zarr.core.array.create_codec_pipeline
        acceleration.disable()
        acceleration.disable()
        assert self.pipeline(session, "off") is BatchedCodecPipeline  # no store turns it on again
        assert zarr.core.array.create_codec_pipeline is wrapper.__wrapped__  # type: ignore[attr-defined]
        assert acceleration.enable()
        assert acceleration.enable()
        assert self.pipeline(session, "again") is StorePipeline
        assert zarr.core.array.create_codec_pipeline.__wrapped__ is wrapper.__wrapped__  # type: ignore[attr-defined]

    def test_a_wrapper_of_another_library_is_respected(
        self, session: icefloe.Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acceleration.disable()
        calls = []

        def wrapped(make: Any) -> Any:
            @functools.wraps(make)
            def create_codec_pipeline(*args: Any, **kwargs: Any) -> Any:
                calls.append(make)
                return make(*args, **kwargs)

            return create_codec_pipeline

        theirs = wrapped(zarr.core.array.create_codec_pipeline)
        monkeypatch.setattr(zarr.core.array, "create_codec_pipeline", theirs)
        acceleration.enable()
        assert self.pipeline(session, "inside") is StorePipeline
        assert len(calls) == 1
        # And around ours: it cannot be taken out, so it does nothing.
        around = wrapped(zarr.core.array.create_codec_pipeline)
        monkeypatch.setattr(zarr.core.array, "create_codec_pipeline", around)
        acceleration.enable()
        assert zarr.core.array.create_codec_pipeline is around
        acceleration.disable()
        assert zarr.core.array.create_codec_pipeline is around
        assert self.pipeline(session, "around") is BatchedCodecPipeline

    def test_a_zarr_that_makes_pipelines_otherwise_works_without(
        self,
        session: icefloe.Session,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with monkeypatch.context() as patch:
            patch.delattr(zarr.core.array, "create_codec_pipeline")
            assert not acceleration.enable()
            assert "read and written one by one" in caplog.text
            acceleration.disable()


class TestBatches:
    def test_a_box_is_read_and_written_at_once(
        self, session: icefloe.Session, bulk_calls: dict[str, Any]
    ) -> None:
        data = np.arange(1.0, 401.0).reshape(20, 20)
        array = zarr.create_array(
            session.store, name="a", shape=(20, 20), chunks=(2, 2), dtype="f8"
        )
        array[...] = data
        assert bulk_calls == {"read": [], "written": [100]}
        np.testing.assert_array_equal(array[...], data)
        np.testing.assert_array_equal(array[3:17:2, 4], data[3:17:2, 4])
        assert bulk_calls["read"] == [100, 7]
        array[1:5, 1:5] = 0
        assert bulk_calls["written"] == [100, 8]  # one of the nine is empty now

    def test_scattered_chunks_are_read_and_written_at_once(
        self, session: icefloe.Session, bulk_calls: dict[str, Any]
    ) -> None:
        data = np.arange(1.0, 101.0)
        array = zarr.create_array(session.store, name="a", shape=100, chunks=(2,), dtype="f8")
        array[...] = data
        np.testing.assert_array_equal(array.vindex[[1, 50, 99]], data[[1, 50, 99]])
        np.testing.assert_array_equal(array[::9], data[::9])
        assert bulk_calls["read"] == [3, 12]
        array.oindex[[1, 50, 99]] = 7
        data[[1, 50, 99]] = 7
        assert bulk_calls["written"] == [50, 3]
        np.testing.assert_array_equal(array[...], data)

    def test_an_array_that_grew_keeps_what_was_there(self, session: icefloe.Session) -> None:
        array = zarr.create_array(
            session.store, name="a", shape=10, chunks=(4,), dtype="f8", compressors=ZstdCodec()
        )
        array[...] = np.arange(10.0)
        other = zarr.open_array(session.store, path="a")
        other.resize(12)
        other[10:] = [10, 11]
        array.resize(12)
        array[8:10] = [80, 90]  # all of the last chunk once, but not now
        expected = np.array([*range(8), 80, 90, 10, 11], dtype="f8")
        np.testing.assert_array_equal(array[...], expected)

    @pytest.mark.parametrize("chunks", [(2, 2), (5, 6)])
    @pytest.mark.parametrize("dtype", ["i4", "bool"])
    @pytest.mark.parametrize("codecs", [None, "auto"])
    def test_masked_values_are_values(
        self, session: icefloe.Session, chunks: tuple[int, ...], dtype: str, codecs: str | None
    ) -> None:
        data = np.arange(30).reshape(5, 6).astype(dtype)
        array = zarr.create_array(
            session.store,
            name="a",
            shape=(5, 6),
            chunks=chunks,
            dtype=dtype,
            compressors=codecs,  # type: ignore[arg-type]
        )
        array[...] = np.ma.masked_where(data < 9, data)
        np.testing.assert_array_equal(array[...], data)

    def test_a_read_only_store_refuses(
        self, repository: icefloe.Repository, session: icefloe.Session
    ) -> None:
        zarr.create_array(session.store, name="a", shape=4, chunks=(2,), dtype="i4")
        session.commit("empty")
        store = repository.readonly_session("main").store
        array = zarr.open_array(store, path="a", mode="r")
        with pytest.raises(ReadOnlyStoreError):
            array[...] = 1

    @pytest.mark.parametrize(
        "encoding",
        [
            {"name": "default", "separator": "."},
            {"name": "v2", "separator": "."},
            {"name": "v2", "separator": "/"},
        ],
    )
    @pytest.mark.parametrize("path", ["a", "c/0/c", "12"])
    def test_all_names_of_chunks(
        self,
        session: icefloe.Session,
        bulk_calls: dict[str, Any],
        encoding: dict[str, str],
        path: str,
    ) -> None:
        data = np.arange(1, 25, dtype="i4").reshape(4, 6)
        array = zarr.create_array(
            session.store,
            name=path,
            shape=(4, 6),
            chunks=(1, 2),
            dtype="i4",
            chunk_key_encoding=encoding,  # type: ignore[arg-type]
        )
        array[...] = data
        np.testing.assert_array_equal(array[1:, 1:], data[1:, 1:])
        assert bulk_calls == {"read": [9], "written": [12]}

    def test_missing_chunks_are_reported_as_zarr_is_told(self, session: icefloe.Session) -> None:
        array = zarr.create_array(session.store, name="a", shape=8, chunks=(2,), dtype="i4")
        array[2:4] = 1
        if "read_missing_chunks" not in zarr.config.get("array"):
            assert array[...].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
            return
        with zarr.config.set({"array.read_missing_chunks": False}):
            strict = zarr.open_array(session.store, path="a")
            assert strict[2:4].tolist() == [1, 1]
            with pytest.raises(Exception, match="3 chunk"):
                strict[...]
