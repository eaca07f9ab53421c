"""New arrays from others, block by block, compared with numpy and xarray on the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.spark import map_blocks
from icefloe.xarray import to_icefloe
from tests.builders import read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TIMES = np.datetime64("2021-01-01", "ns") + np.arange(6) * np.timedelta64(1, "D")


@pytest.fixture(scope="module")
def data() -> xr.Dataset:
    rng = np.random.default_rng(5)
    values = rng.normal(280, 5, (6, 7, 9)).astype("f4")
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), values, {"units": "K"}),
            "height": (("lat", "lon"), rng.normal(size=(7, 9))),
            "factor": (("time",), rng.normal(size=6)),
        },
        coords={"time": TIMES, "lat": np.arange(7.0), "lon": np.arange(9.0)},
    )


@pytest.fixture
def repo(tmp_path: Path, data: xr.Dataset) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    to_icefloe(data, session, mode="a", encoding={"t": {"chunks": (2, 3, 4)}})
    session.commit("inputs")
    return repo


def shown(repo: icefloe.Repository) -> xr.Dataset:
    return read_dataset(repo, chunks=None).load()


def test_several_inputs_are_aligned_by_dimension_names(
    spark: SparkSession, repo: icefloe.Repository, data: xr.Dataset
) -> None:
    report = map_blocks(
        spark,
        repo,
        lambda t, height, factor: t * factor + height,
        ["t", "height", "factor"],
        "out",
        attributes={"units": "1"},
        task_bytes=100,
    )
    found = shown(repo)
    expected = data.t * data.factor + data.height
    np.testing.assert_allclose(found.out.values, expected.values, rtol=1e-6)
    assert found.out.dims == ("time", "lat", "lon")
    assert found.out.attrs == {"units": "1"}
    assert found.out.dtype == "f8"
    assert report.plan.tasks > 3
    xr.testing.assert_identical(found.drop_vars("out"), data)


def test_xarray_blocks_have_coordinates_and_results_too(
    spark: SparkSession, repo: icefloe.Repository, data: xr.Dataset
) -> None:
    def warmer(t: Any) -> Any:
        with xr.set_options(keep_attrs=True):
            return (t - 273.15) * t.time.dt.day.astype("f4")

    map_blocks(spark, repo, warmer, "t", "derived/out", blocks="xarray", task_bytes=100)
    found = read_dataset(repo, "derived", chunks=None).load()
    expected = ((data.t - 273.15) * data.time.dt.day.astype("f4")).rename("out")
    xr.testing.assert_allclose(found.out, expected)
    assert found.out.attrs == {"units": "K"}


@pytest.mark.parametrize(
    ("boundary", "mode"),
    [("nearest", "edge"), ("reflect", "reflect"), ("periodic", "wrap"), (0.0, "constant")],
)
def test_overlaps_reach_into_neighbours(
    spark: SparkSession,
    repo: icefloe.Repository,
    data: xr.Dataset,
    boundary: float | str,
    mode: Any,
) -> None:
    def smooth(block: Any) -> Any:
        return (block + np.roll(block, 1, axis=2) + np.roll(block, -2, axis=2)) / 3

    map_blocks(
        spark, repo, smooth, "t", "out", overlap={"lon": (1, 2)}, boundary=boundary, dtype="f4"
    )
    padded = np.pad(data.t.values, ((0, 0), (0, 0), (1, 2)), mode=mode)
    expected = smooth(padded)[:, :, 1:-2]
    np.testing.assert_allclose(shown(repo).out.values, expected, rtol=1e-6)


def test_without_a_boundary_blocks_are_smaller_at_the_ends(
    spark: SparkSession, repo: icefloe.Repository, data: xr.Dataset
) -> None:
    def largest(block: Any) -> Any:
        padded = np.pad(block, ((0, 0), (1, 1), (0, 0)), constant_values=-np.inf)
        return np.maximum(np.maximum(padded[:, :-2], padded[:, 2:]), block)

    map_blocks(spark, repo, largest, "t", "out", overlap={"lat": 1})
    np.testing.assert_array_equal(shown(repo).out.values, largest(data.t.values))


def test_results_are_appended_or_go_to_a_region(
    spark: SparkSession, repo: icefloe.Repository, data: xr.Dataset
) -> None:
    map_blocks(spark, repo, np.negative, "t", "log/out")
    map_blocks(spark, repo, np.abs, "t", "log/out", append_dim="time")
    map_blocks(spark, repo, np.sqrt, "t", "log/out", region={"time": slice(1, 7)})
    found = repo.readonly_session("main").read_region("/log/out")
    t = data.t.values
    np.testing.assert_array_equal(found, np.concatenate([-t[:1], np.sqrt(t), t[1:]]))
    with pytest.raises(InvalidInputError, match="takes"):
        map_blocks(spark, repo, np.abs, "t", "log/out", region={"time": slice(0, 2)})


def test_arrays_that_do_not_fit_are_refused(spark: SparkSession, repo: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match="also have"):
        map_blocks(spark, repo, np.add, ["t", "height"], "out", dims=("time",))
    with pytest.raises(InvalidInputError, match="boundary"):
        map_blocks(spark, repo, np.abs, "t", "out", boundary="odd")


def test_mistakes_of_a_caller_are_told(spark: SparkSession, repo: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match="returned NoneType for the first block"):
        map_blocks(spark, repo, lambda _: None, "t", "nothing")
    with pytest.raises(NodeNotFoundError, match=r"tt does not exist; .* did you mean '/t'\?"):
        map_blocks(spark, repo, np.abs, "tt", "nothing")
