"""What the demo does, chapter by chapter. The report shows the bodies of these functions."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import xarray as xr

import icefloe
import icefloe.spark
from icefloe.spark import GapFree, HasUnits, InRange, ingest, validate
from icefloe.xarray import to_icefloe

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import SparkSession

    from icefloe.spark import IngestReport, JobReport, ValidationReport

MEANS_BY_YEAR = """
    SELECT scenario, int(left(time, 4)) AS year,
           sum(air_temperature * cos(radians(latitude))) / sum(cos(radians(latitude))) AS mean
    FROM scenarios
    GROUP BY scenario, year
"""


def opened(repo: icefloe.Repository, group: str, **version: Any) -> xr.Dataset:
    """Open a group of any version with xarray; the newest commit of `main` by default."""
    store = repo.readonly_session(**(version or {"branch": "main"})).store
    return xr.open_zarr(store, group=group, consolidated=False, chunks=None)


def create_repository(files: Path, place: Path) -> icefloe.Repository:
    prefix = files.as_uri() + "/"
    config = icefloe.RepositoryConfig()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(files)))
    )
    repo = icefloe.Repository.create(place, config, authorize_virtual_chunk_access={prefix: None})
    return repo


def first_delivery(
    spark: SparkSession, repo: icefloe.Repository, files: Path
) -> tuple[IngestReport, IngestReport, IngestReport]:
    sst = ingest(
        spark,
        repo,
        f"{files}/sst/*.nc",
        group="/sst",
        on_broken="quarantine",
        message="Sea surface temperature, first delivery",
    )
    scenarios = ingest(
        spark,
        repo,
        f"{files}/scenarios/*.nc",
        group="/scenarios",
        file_coordinates={"scenario": r"/(A1B|E1)_\w+\.nc"},  # a dimension from the file names
        message="Emission scenarios, 1860 to 2099",
    )
    index = ingest(
        spark, repo, f"{files}/index/*.nc", group="/index", message="Southern Oscillation Index"
    )
    repo.create_tag("first-delivery", repo.lookup_branch("main"))
    return sst, scenarios, index


def second_delivery(
    spark: SparkSession, repo: icefloe.Repository, files: Path
) -> tuple[IngestReport, IngestReport]:
    sst = ingest(
        spark,
        repo,
        f"{files}/sst/*.nc",
        group="/sst",
        on_broken="quarantine",
        message="Sea surface temperature, second delivery",
    )
    again = ingest(spark, repo, f"{files}/sst/*.nc", group="/sst")  # nothing is new: no commit
    return sst, again


def before_and_after(repo: icefloe.Repository) -> tuple[xr.DataArray, xr.DataArray]:
    before = opened(repo, "sst", tag="first-delivery").surface_temperature
    after = opened(repo, "sst").surface_temperature
    return before, after


def warming(spark: SparkSession, repo: icefloe.Repository) -> pd.DataFrame:
    icefloe.spark.register(
        spark, repo, "scenarios", group="/scenarios", variables=["air_temperature"]
    )
    rows = icefloe.spark.sql(spark, MEANS_BY_YEAR).toPandas()
    by_year = rows.pivot_table(index="year", columns="scenario", values="mean") - 273.15
    return by_year


def climatology(spark: SparkSession, repo: icefloe.Repository) -> tuple[JobReport, JobReport]:
    mean = icefloe.spark.reduce(
        spark,
        repo,
        "/sst/surface_temperature",
        "mean",
        "/climatology/surface_temperature",
        by="time.month",
        message="Monthly climatology",
    )
    monthly = opened(repo, "climatology").surface_temperature.load()

    def anomaly(block: xr.DataArray) -> xr.DataArray:
        return block - monthly.sel(month=block["time"].dt.month).values

    anomalies = icefloe.spark.map_blocks(
        spark,
        repo,
        anomaly,
        "/sst/surface_temperature",
        "/sst/anomaly",
        blocks="xarray",
        attributes={"units": "K", "long_name": "anomaly of the sea surface temperature"},
        message="Anomalies",
    )
    return mean, anomalies


def nino34(repo: icefloe.Repository) -> xr.DataArray:
    anomaly = opened(repo, "sst").anomaly.sel(longitude=slice(190, 240))
    area = xr.ufuncs.cos(xr.ufuncs.deg2rad(anomaly.latitude))
    index = anomaly.weighted(area).mean(["latitude", "longitude"])
    return index


def mistake_on_a_branch(spark: SparkSession, repo: icefloe.Repository, files: Path) -> str:
    for person in ("ana", "ben"):
        repo.create_branch(person, repo.lookup_branch("main"))

    # Ana, on her laptop, wants degrees Celsius. She gets the sign wrong.
    sst = opened(repo, "sst", branch="ana").surface_temperature
    session = repo.writable_session("ana")
    celsius = (sst + 273.15).assign_attrs(units="degree_C", long_name="sea surface temperature")
    to_icefloe(celsius.to_dataset(name="celsius"), session, group="sst", mode="a")
    mistake = session.commit("Degrees Celsius")

    # Ben, on the cluster, brings in an ocean model at the same time.
    ingest(
        spark,
        repo,
        f"{files}/ocean/*.nc",
        group="/ocean",
        branch="ben",
        file_order={"time_counter": "name"},  # its time coordinate is 0 in every file
        message="NEMO, January to March 2015",
    )
    return mistake


def expectation(spark: SparkSession, repo: icefloe.Repository) -> ValidationReport:
    checked = validate(
        spark,
        repo,
        [
            InRange("/sst/celsius", low=-2, high=40),
            HasUnits("/sst/celsius", units="degree_C"),
            GapFree("/sst/time", step="1M"),
        ],
        version="ana",
    )
    return checked


def mend_and_merge(repo: icefloe.Repository, mistake: str) -> str:
    repo.revert(mistake, branch="ana", message="Roll back: the sign was wrong")
    sst = opened(repo, "sst", branch="ana").surface_temperature
    session = repo.writable_session("ana")
    celsius = (sst - 273.15).assign_attrs(units="degree_C", long_name="sea surface temperature")
    to_icefloe(celsius.to_dataset(name="celsius"), session, group="sst", mode="a")
    session.commit("Degrees Celsius")

    repo.merge("ana", "main", message="Merge Ana's degrees Celsius", fast_forward=False)
    merged = repo.merge("ben", "main", message="Merge Ben's ocean model")
    return merged


def rechunk(spark: SparkSession, repo: icefloe.Repository) -> JobReport:
    report = icefloe.spark.rechunk(
        spark,
        repo,
        "/scenarios/air_temperature",
        {"scenario": -1, "time": -1, "latitude": 8, "longitude": 8},
        message="Chunks for time series",
    )
    return report


def milliseconds(repo: icefloe.Repository, *region: slice | int) -> float:
    """How long a new session takes to read a region of the scenarios: the median of five."""
    times = []
    for _ in range(5):
        session = repo.readonly_session("main")
        started = time.perf_counter()
        session.read_region("/scenarios/air_temperature", region)
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)
