"""Reductions on a real Spark, compared with xarray on the whole array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark import reduce
from icefloe.xarray import to_icefloe
from tests.builders import read_dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = np.datetime64("2020-11-20", "ns") + np.arange(90) * np.timedelta64(30, "h")


@pytest.fixture(scope="module")
def data() -> xr.Dataset:
    rng = np.random.default_rng(7)
    values = rng.normal(280, 9, (90, 6, 8)).astype("f4")
    values[rng.random(values.shape) < 0.2] = np.nan
    values[:, 0, 0] = np.nan
    regions = rng.integers(0, 3, (6, 8))
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), values, {"units": "K"}),
            "regions": (("lat", "lon"), regions.astype("i4")),
        },
        coords={"time": TIMES, "lat": np.linspace(50, 45, 6), "lon": np.arange(8.0)},
    )


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory, data: xr.Dataset) -> icefloe.Repository:
    place = str(tmp_path_factory.mktemp("reduce"))
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(f"{place}/repo"))
    session = repo.writable_session("main")
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -9999}
    encoding = {"t": {"chunks": (20, 3, 4), **packed}}
    to_icefloe(data, session, mode="a", encoding=encoding)
    session.commit("inputs")
    return repo


@pytest.fixture(scope="module")
def seen(repo: icefloe.Repository) -> xr.Dataset:
    """The data as xarray reads it back."""
    return read_dataset(repo, chunks=None).load()


def result(
    spark: SparkSession, repo: icefloe.Repository, how: str, name: str, **given: Any
) -> tuple[Any, ...]:
    report = reduce(spark, repo, "t", how, f"{name}/t", **given)
    found = read_dataset(repo, name, chunks=None).load()
    return found.t, report


@pytest.mark.parametrize("how", ["sum", "mean", "min", "max", "count", "std", "first", "last"])
def test_over_time(
    spark: SparkSession, repo: icefloe.Repository, seen: xr.Dataset, how: str
) -> None:
    found, _ = result(spark, repo, how, f"over/{how}", dims="time", task_bytes=2000)
    if how in ("first", "last"):
        one = xr.DataArray(np.zeros(90), dims="time", name="one")
        expected = getattr(seen.t.groupby(one), how)().squeeze("one", drop=True)
    else:
        expected = getattr(seen.t, how)("time")
    xr.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found.dtype == expected.dtype
    assert found.attrs == {"units": "K"}
    assert list(found.coords) == ["lat", "lon"]


@pytest.mark.parametrize("by", ["time.month", "time.season", "time.hour"])
def test_by_calendar(
    spark: SparkSession, repo: icefloe.Repository, seen: xr.Dataset, by: str
) -> None:
    found, report = result(spark, repo, "mean", by.replace(".", "_"), by=by, task_bytes=3000)
    xr.testing.assert_allclose(found, seen.t.groupby(by).mean(), rtol=1e-5)
    assert report.plan.tasks > 1


def test_by_regions_of_another_array(
    spark: SparkSession, repo: icefloe.Repository, seen: xr.Dataset
) -> None:
    found, _ = result(spark, repo, "max", "regional", by="regions")
    expected = seen.t.groupby(seen.regions).max()
    xr.testing.assert_allclose(found.transpose(*expected.dims), expected)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_quantiles(spark: SparkSession, repo: icefloe.Repository, seen: xr.Dataset) -> None:
    found, _ = result(spark, repo, "quantile", "quantiles", dims="time", q=[0.1, 0.5])
    expected = seen.t.quantile([0.1, 0.5], "time")
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-5)
    assert found.dims == expected.dims
    np.testing.assert_array_equal(found["quantile"], [0.1, 0.5])


def test_everything_to_one_number_and_missing_values_that_count(
    spark: SparkSession, repo: icefloe.Repository, seen: xr.Dataset
) -> None:
    found, _ = result(spark, repo, "mean", "one", task_bytes=1000)
    assert found.dims == ()
    np.testing.assert_allclose(found, seen.t.mean(), rtol=1e-5)
    found, _ = result(spark, repo, "sum", "strict", dims=["lat", "lon"], skipna=False)
    xr.testing.assert_allclose(found, seen.t.sum(["lat", "lon"], skipna=False))


def test_a_large_result_is_written_by_tasks(
    spark: SparkSession, repo: icefloe.Repository, seen: xr.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icefloe.spark.jobs.reduce.MAX_DRIVER_BYTES", 0)
    for number, size in enumerate((1, 10**9)):
        found, report = result(
            spark, repo, "std", f"large{number}", by="time.month", task_bytes=500,
            block_bytes=size,
        )  # fmt: skip
        xr.testing.assert_allclose(found, seen.t.groupby("time.month").std(), rtol=1e-4)
        assert report.plan.tasks == 4


def test_small_blocks_give_the_same(
    spark: SparkSession, repo: icefloe.Repository, seen: xr.Dataset
) -> None:
    found, _ = result(spark, repo, "last", "blocks", by="time.month", block_bytes=1)
    xr.testing.assert_allclose(found, seen.t.groupby("time.month").last())


def test_nonsense_is_refused(spark: SparkSession, repo: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match="one of sum"):
        reduce(spark, repo, "t", "median", "out")
    with pytest.raises(InvalidInputError, match="grouped by"):
        reduce(spark, repo, "t", "mean", "out", by="time.moon")
    with pytest.raises(InvalidInputError, match="not"):
        reduce(spark, repo, "t", "mean", "out", dims="depth")
