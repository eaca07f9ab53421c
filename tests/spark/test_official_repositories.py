"""Jobs and SQL on a repository of the official package, whose results that package reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.spark import map_blocks, reduce, register, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
VALUES = np.random.default_rng(3).random((12, 8)).astype("f4")


def test_spark_on_a_repository_of_the_official_package(spark: SparkSession, tmp_path: Path) -> None:
    # F8-15
    path = str(tmp_path / "official")
    official = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = official.writable_session("main")
    data = xr.Dataset(
        {"t2m": (("time", "lat"), VALUES)},
        coords={"time": np.arange(12), "lat": np.linspace(-70, 70, 8)},
    )
    data.to_zarr(session.store, encoding={"t2m": {"chunks": (3, 4)}}, consolidated=False)
    session.commit("by the official package")

    repo = icefloe.Repository.open(path)
    register(spark, path, "official_weather", variables=["t2m"])
    (largest,) = spark.sql("select max(t2m) from official_weather where lat > 0").first()
    assert largest == VALUES[:, 4:].max()
    spark.catalog.dropTempView("official_weather")

    map_blocks(spark, repo, np.negative, "t2m", "negative")
    reduce(spark, repo, "t2m", "max", "highest/t2m", dims="time")

    def zeros(region: Any) -> Any:
        return np.zeros([part.stop - part.start for part in region], dtype="f4")

    write(spark, repo, {"t2m": zeros}, region=(slice(0, 3),))

    reader = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    store = reader.readonly_session("main").store
    found = xr.open_zarr(store, consolidated=False).load()
    np.testing.assert_array_equal(found.negative, -VALUES)
    np.testing.assert_array_equal(found.t2m[3:], VALUES[3:])
    assert not found.t2m[:3].any()
    highest = xr.open_zarr(store, group="highest", consolidated=False).load()
    np.testing.assert_array_equal(highest.t2m, VALUES.max(axis=0))
    assert [info.message for info in reader.ancestry(branch="main")][-2:] == [
        "by the official package",
        "Repository initialized",
    ]
