"""Archives as they are found, brought into one group by Spark; values are those of xarray."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xarray as xr

from icefloe.errors import InconsistentFilesError, InvalidInputError
from icefloe.spark import ingest
from icefloe.virtual import ingested_files
from tests.spark.test_ingest import data, found_in, repo
from tests.virtual.files import by_xarray, cmip_file, month_file, nemo_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    import icefloe

__all__ = ["data", "repo"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]


@pytest.mark.parametrize("mode", ["virtual", "copy"])
def test_cmip_layout_with_large_auxiliary_coordinates(
    spark: SparkSession, repo: icefloe.Repository, data: Path, mode: Any
) -> None:
    # Names and patterns to load leave out the bounds and areas, as if these were large.
    files = [
        cmip_file(data / f"{name}_{start}.nc", name, range(start, start + 3))
        for name in ("tas", "pr")
        for start in (0, 3)
    ]
    ingest(spark, repo, f"{data}/", mode=mode, loadable_variables=["height"])
    expected = by_xarray(files, compat="no_conflicts")
    xr.testing.assert_equal(found_in(repo), expected)
    cmip_file(data / "tas_6.nc", "tas", range(6, 9), lat=(-60.0, 0.0, 60.0))
    cmip_file(data / "pr_6.nc", "pr", range(6, 9), bounds_shift=1.0)
    with pytest.raises(InconsistentFilesError, match="time_bnds: values"):
        ingest(spark, repo, f"{data}/", mode=mode, loadable_variables=["height"])


@pytest.mark.parametrize("mode", ["virtual", "copy"])
def test_files_that_follow_each_other_keep_their_places(
    spark: SparkSession, repo: icefloe.Repository, data: Path, mode: Any
) -> None:
    order: Any = {"time_counter": r"(\d+)\.nc"}
    files = [nemo_file(data / f"n{month}.nc", month, steps=month) for month in (9, 10)]
    ingest(spark, repo, f"{data}/", mode=mode, file_order=order)
    files.append(nemo_file(data / "n1.nc", 1))
    nemo_file(data / "n9.nc", 19, steps=9)  # corrected
    os.utime(data / "n9.nc", (1_900_000_000, 1_900_000_000))
    done = ingest(spark, repo, f"{data}/", mode=mode, file_order=order)
    assert (len(done.new), len(done.replaced), len(done.unchanged)) == (1, 1, 1)
    parts = [xr.load_dataset(file, engine="netcdf4") for file in files]
    expected = xr.concat(parts, "time_counter", data_vars="minimal", coords="minimal")
    xr.testing.assert_equal(found_in(repo).drop_attrs(), expected.drop_attrs())
    places = ingested_files(repo.readonly_session("main"))["ordered"]
    assert [tuple(place["time_counter"])[:2] for place in places[-2:]] == [(19, 20), (0, 9)]
    nemo_file(data / "n9.nc", 19, steps=8)
    with pytest.raises(InconsistentFilesError, match="8 instead of 9"):
        ingest(spark, repo, f"{data}/", mode=mode, file_order=order)


def test_flipped_packed_and_overlapping_files_become_one_copy(
    spark: SparkSession, repo: icefloe.Repository, data: Path
) -> None:
    falling, rising = (60.0, 50.0, 40.0), (40.0, 50.0, 60.0)
    first = month_file(data / "1.nc", 1, days=4, lat=falling)
    settings: dict[str, Any] = {"first_day": 2, "attributes": {"scale_factor": 0.5}, "seed": 7}
    second = month_file(data / "2.nc", 1, days=4, lat=rising, **settings)
    options: dict[str, Any] = {"mode": "copy", "chunks": {"time": 3, "lat": 2}}
    for hint, more in (
        ("flipped='reverse'", {}),
        ("decode=True", {"flipped": "reverse"}),
        ("duplicates='first'", {"flipped": "reverse", "decode": True}),
    ):
        options |= more
        with pytest.raises(InconsistentFilesError) as refused:
            ingest(spark, repo, f"{data}/", **options)
        assert hint in str(refused.value)
        assert "mode='copy'" not in str(refused.value)  # it is copied already
    os.utime(first, (1_000_000_000, 1_000_000_000))
    ingest(spark, repo, f"{data}/", duplicates="newest", **options)
    third = month_file(data / "3.nc", 1, days=3, first_day=5, lat=rising, seed=8)
    done = ingest(spark, repo, f"{data}/", duplicates="newest", **options)
    assert len(done.new) == 1
    found = found_in(repo)
    assert found.lat.values.tolist() == list(falling)
    for file, days in ((first, slice(0, 2)), (second, slice(0, 3)), (third, slice(0, 3))):
        with xr.open_dataset(file, engine="netcdf4") as part:
            own = part.t2m.isel(time=days)
            np.testing.assert_allclose(
                found.t2m.sel(time=own.time, lat=own.lat).values, own.values, rtol=1e-6
            )


def test_policies_are_checked(spark: SparkSession, repo: icefloe.Repository, data: Path) -> None:
    month_file(data / "1.nc", 1)
    with pytest.raises(InvalidInputError, match="flipped='reverse' needs mode='copy'"):
        ingest(spark, repo, f"{data}/", flipped="reverse")
