"""Copies from repositories, Zarr stores and xarray datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.spark import copy
from tests.builders import read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

HOURS = np.datetime64("2020-01-01", "ns") + np.arange(12) * np.timedelta64(6, "h")


def dataset() -> xr.Dataset:
    values = np.random.default_rng(3).normal(size=(12, 5, 6)).astype("f4")
    values[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values, {"units": "K"}),
            "mask": (("lat", "lon"), values[1] > 0),
        },
        coords={"time": HOURS, "lat": np.arange(5.0), "lon": np.arange(6.0)},
        attrs={"title": "test"},
    )


def make(tmp_path: Path, name: str) -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / name)))


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    return make(tmp_path, "repo")


def shown(repo: icefloe.Repository, group: str | None = None) -> xr.Dataset:
    return read_dataset(repo, group, chunks=None)


@pytest.fixture
def zarr_store(tmp_path: Path) -> str:
    path = str(tmp_path / "source.zarr")
    encoding = {"t2m": {"chunks": (2, 5, 3)}}
    dataset().to_zarr(path, encoding=encoding, consolidated=False, zarr_format=3)
    return path


def test_a_zarr_store_and_then_another_repository(
    spark: SparkSession, repo: icefloe.Repository, zarr_store: str, tmp_path: Path
) -> None:
    copy(spark, repo, zarr_store, group="era", task_bytes=300)
    xr.testing.assert_identical(shown(repo, "era").load(), dataset())
    second = make(tmp_path, "second")
    source = repo.readonly_session("main")
    part = {"time": slice("2020-01-02", "2020-01-02")}
    copy(spark, second, source, variables=["era/t2m"], isel={"lat": slice(1, 4)})
    found = zarr.open_array(second.readonly_session("main").store, path="era/t2m", mode="r")
    np.testing.assert_array_equal(found[:], dataset().t2m.values[:, 1:4])
    copy(spark, second, zarr.open_group(zarr_store, mode="r"), group="day", sel=part)
    xr.testing.assert_equal(shown(second, "day").load(), dataset().sel(part))


def test_appending_and_regions(
    spark: SparkSession, repo: icefloe.Repository, zarr_store: str
) -> None:
    copy(spark, repo, zarr_store, isel={"time": slice(0, 5)}, chunks={"time": 4})
    copy(spark, repo, zarr_store, isel={"time": slice(5, 12)}, append_dim="time", task_bytes=100)
    xr.testing.assert_equal(shown(repo).load(), dataset())
    assert zarr.open_array(repo.readonly_session("main").store, path="t2m").chunks == (4, 5, 3)
    copy(
        spark, repo, zarr_store, variables=["t2m"], isel={"time": slice(0, 2)},
        region={"time": slice(3, 5)},
    )  # fmt: skip
    np.testing.assert_array_equal(shown(repo).t2m.values[3:5], dataset().t2m.values[:2])
    with pytest.raises(InvalidInputError, match="takes"):
        copy(spark, repo, zarr_store, variables=["t2m"], region={"time": slice(3, 5)})


def test_an_xarray_dataset_from_files(
    spark: SparkSession, repo: icefloe.Repository, tmp_path: Path
) -> None:
    path = tmp_path / "data.nc"
    packed = {"t2m": {"dtype": "i2", "scale_factor": 0.001, "_FillValue": -32768}}
    dataset().to_netcdf(path, encoding=packed, engine="h5netcdf")
    with xr.open_dataset(path, engine="h5netcdf") as opened:
        report = copy(spark, repo, opened, chunks={"time": 5, "lat": 2}, task_bytes=300)
        expected = opened.load()
    assert report.plan.tasks > 1
    xr.testing.assert_equal(shown(repo).load(), expected)
    stored = zarr.open_array(repo.readonly_session("main").store, path="t2m", mode="r")
    assert stored.dtype == "i2"
    assert stored.chunks == (5, 2, 6)
    with xr.open_dataset(path, engine="h5netcdf", chunks={}) as opened:
        later = opened.assign_coords(time=opened.time + np.timedelta64(3, "D"))
        copy(spark, repo, later.drop_vars("mask"), append_dim="time")
        assert shown(repo).sizes["time"] == 24
        np.testing.assert_array_equal(shown(repo).t2m.values[12:], opened.t2m.values)
    xr.testing.assert_equal(shown(repo).isel(time=slice(12)).load(), expected)
    assert shown(repo).time.values[-1] == HOURS[-1] + np.timedelta64(3, "D")


def test_a_writable_session_is_no_source(spark: SparkSession, repo: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match="read-only"):
        copy(spark, repo, repo.writable_session("main"))


def test_selections_that_mean_nothing_are_refused(
    spark: SparkSession, repo: icefloe.Repository, zarr_store: str
) -> None:
    before = repo.lookup_branch("main")
    for source in (zarr_store, dataset()):
        for wrong, reason in (
            ({"isel": {"tme": slice(0, 3)}}, "isel names 'tme', but the dimensions are lat, lon"),
            ({"sel": {"time": "2020-01-02"}}, "sel of 'time' is a slice"),
            ({"variables": ["t3m"]}, "no variable 't3m'; it has lat, lon, mask, t2m"),
            ({"variables": "mask", "isel": {"level": slice(3)}}, "isel names 'level'"),
        ):
            with pytest.raises(InvalidInputError, match=reason):
                copy(spark, repo, source, **wrong)
    with pytest.raises(InvalidInputError, match="no array 'lev/time'; it has lat"):
        copy(spark, repo, zarr_store, variables=["lev/time"])
    assert repo.lookup_branch("main") == before
