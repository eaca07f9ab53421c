"""What only newer versions of zarr have: rectilinear grids and the synchronous pipeline.

`make test-newest` runs these tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr

from tests.builders import committed_store, new_repository

if TYPE_CHECKING:
    from pathlib import Path

HAS_RECTILINEAR_GRIDS = "rectilinear_chunks" in zarr.config.get("array")
HAS_SYNCHRONOUS_PIPELINE = hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline")
RANDOM = np.random.default_rng(7)


@pytest.fixture(params=["memory", "local"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return new_repository(tmp_path if request.param == "local" else None)


def assert_same(left: Any, right: Any) -> None:
    np.testing.assert_array_equal(left, right, strict=True)


@pytest.mark.skipif(not HAS_RECTILINEAR_GRIDS, reason="this zarr has no rectilinear grids")
def test_rectilinear_grids(repository: Any) -> None:
    data = np.arange(1, 101, dtype="i4").reshape(10, 10)
    session = repository.writable_session("main")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = zarr.create_array(
            session.store,
            name="a",
            shape=(10, 10),
            chunks=[[1, 2, 3, 4], [5, 5]],  # type: ignore[arg-type]
            dtype="i4",
        )
        array[...] = data
        assert array.nchunks_initialized == 8
        store = committed_store(session, repository)
        again = zarr.open_array(store, path="a", mode="r")
        assert_same(again[...], data)
        assert len([key for key in store.list() if "/c/" in key]) == 8
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="a")
        array.resize((5, 10))
        assert_same(array[...], data[:5])
        assert array.nchunks_initialized == 6
        array.resize((12, 10))
        assert_same(array[:5], data[:5])
        array[...] = 1
        again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
        assert_same(again[...], np.ones((12, 10), dtype="i4"))


@pytest.mark.skipif(not HAS_SYNCHRONOUS_PIPELINE, reason="this zarr has no synchronous pipeline")
@pytest.mark.parametrize("shards", [None, (20, 20)])
def test_the_synchronous_pipeline(repository: Any, shards: Any) -> None:
    data = RANDOM.integers(0, 1000, (50, 40)).astype("i4")
    path = "zarr.core.codec_pipeline.FusedCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": path}):
        session = repository.writable_session("main")
        array = zarr.create_array(
            session.store, name="a", shape=data.shape, chunks=(10, 5), shards=shards, dtype="i4"
        )
        array[...] = data
        array[3:17, 11:] = data[3:17, 11:] = 0
        again = zarr.open_array(committed_store(session, repository), path="a", mode="r")
        assert_same(again[...], data)
        assert_same(again[12:31, 7:9], data[12:31, 7:9])
