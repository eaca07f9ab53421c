"""Jobs, tables and xarray give the same numbers, of the same types, for packed arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.spark import map_blocks, reduce, table
from tests.builders import read_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

STORED = np.array([[-1, -2, 1, 2], [3, -128, 127, 0]], dtype="i1")


@pytest.fixture
def repo(tmp_path: Path) -> icefloe.Repository:
    repo = icefloe.Repository.create(str(tmp_path / "packed"))
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="w", zarr_format=3)

    def create(name: Any, values: Any, dims: Any = ("y", "x"), **attributes: Any) -> None:
        chunks = (1, 2)[: values.ndim]
        array = root.create_array(name, data=values, chunks=chunks, dimension_names=dims)
        array.attrs.update(attributes)

    create("plain", STORED, _Unsigned="true")
    create("packed", STORED, _Unsigned="true", _FillValue=-128, scale_factor=0.5, units="K")
    create("short", STORED.astype("i2"), scale_factor=0.1)
    create("groups", np.array([-1, 1, -1, -2], "i1"), ("x",), _Unsigned="true", _FillValue=-2)
    create("when", np.arange(8, dtype="i4").reshape(2, 4), units="days since 2000-01-01")
    create("x", np.arange(4.0), ("x",))
    create("y", np.arange(2.0), ("y",))
    session.commit("packed arrays")
    return repo


def seen(repo: icefloe.Repository, group: str | None = None) -> xr.Dataset:
    return read_dataset(repo, group, chunks=None).load()


@pytest.mark.parametrize("name", ["plain", "packed", "short"])
@pytest.mark.parametrize("how", ["mean", "max"])
def test_reductions_and_sql_are_those_of_xarray(
    spark: SparkSession, repo: icefloe.Repository, name: str, how: str
) -> None:
    data = seen(repo)
    reduce(spark, repo, name, how, f"out/{name}")
    found = seen(repo, "out")[name]
    expected = getattr(data[name], how)()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-12)
    table(spark, repo, variables=[name]).createOrReplaceTempView("cells")
    function = "avg" if how == "mean" else how
    by_sql = spark.sql(f"SELECT {function}({name}) AS v FROM cells").first().v
    assert by_sql == pytest.approx(expected.item(), rel=1e-12)


def test_blocks_are_those_of_xarray(spark: SparkSession, repo: icefloe.Repository) -> None:
    data = seen(repo)

    def same(block: Any) -> Any:
        return block.copy()

    for name in ("plain", "packed", "short", "when"):
        map_blocks(spark, repo, same, name, f"blocks/{name}", blocks="xarray", task_bytes=2)
        found = seen(repo, "blocks")[name]
        assert found.dtype == data[name].dtype, name
        xr.testing.assert_identical(found, data[name])


def test_types_of_columns_are_those_of_xarray(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    data = seen(repo)
    frame = table(spark, repo, variables=["plain", "packed", "short"])
    kinds = dict(frame.dtypes)
    # Spark has no unsigned numbers.
    assert (kinds["plain"], kinds["packed"], kinds["short"]) == ("smallint", "double", "double")
    rows = frame.orderBy("y", "x").toArrow().to_pandas()
    for name in ("plain", "packed", "short"):
        np.testing.assert_array_equal(
            rows[name].to_numpy(dtype="f8", na_value=np.nan), data[name].values.reshape(-1)
        )


def test_groups_are_labelled_as_xarray_decodes_them(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    data = seen(repo)
    reduce(spark, repo, "packed", "mean", "grouped/packed", by="groups")
    found = seen(repo, "grouped")
    expected = data.packed.groupby(data.groups).mean()
    assert found.groups.values.tolist() == expected.groups.values.tolist() == [1, 255]
    np.testing.assert_array_equal(found.packed.values, expected.values)


def test_times_stay_times_where_they_are_reduced(
    spark: SparkSession, repo: icefloe.Repository
) -> None:
    data = seen(repo)
    reduce(spark, repo, "when", "max", "times/when", dims="x")
    np.testing.assert_array_equal(seen(repo, "times").when.values, data.when.max("x").values)
    # A number of times is none.
    reduce(spark, repo, "when", "count", "counts/when", dims="x")
    assert seen(repo, "counts").when.values.tolist() == [4, 4]
