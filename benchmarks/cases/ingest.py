"""Many NetCDF files into one group, as copies and by reference: Spark against dask.

icefloe ingests through Spark. With the official package, users open the files with xarray on dask
(copies) or with VirtualiZarr on dask (references), and write with its own functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.case import Case, Setting
from benchmarks.cases.manifests import create, reopen, source_of
from benchmarks.cases.spark_jobs import with_spark

if TYPE_CHECKING:
    from pathlib import Path

STEPS, LATITUDES, LONGITUDES = 24, 180, 360
CHUNKS = {"time": 120, "lat": 90, "lon": 180}


def files_written(setting: Setting) -> None:
    """Hourly temperature in files of a day, compressed as archives are."""
    import netCDF4
    import numpy as np

    folder = source_of(setting)
    random = np.random.default_rng(1)
    field = 285 + random.normal(0, 2, (STEPS, LATITUDES, LONGITUDES)).round(2).astype("f4")
    for number in range(setting["files"]):
        with netCDF4.Dataset(folder / f"{number:05d}.nc", "w") as data:
            for name, size in (("time", None), ("lat", LATITUDES), ("lon", LONGITUDES)):
                data.createDimension(name, size)
            time = data.createVariable("time", "f8", ("time",))
            time.units = "hours since 2020-01-01"
            time[:] = np.arange(STEPS) + STEPS * number
            data.createVariable("lat", "f8", ("lat",))[:] = np.linspace(-89.5, 89.5, LATITUDES)
            data.createVariable("lon", "f8", ("lon",))[:] = np.arange(LONGITUDES)
            data.createVariable("t2m", "f4", ("time", "lat", "lon"), zlib=True, complevel=1)[:] = (
                field + number
            )


def ingest(state: tuple[Setting, Any], _: int) -> None:
    setting, spark = state
    folder = source_of(setting)
    create(setting)
    repository = reopen(setting)
    if setting.peer.distribution == "icefloe":
        by_spark(spark, repository, folder, setting["mode"])
    elif setting["mode"] == "copy":
        by_dask(repository, folder)
    else:
        by_reference(repository, folder)


def by_spark(spark: Any, repository: Any, folder: Path, mode: Any) -> None:
    from icefloe.spark import ingest

    chunks = CHUNKS if mode == "copy" else None
    ingest(spark, repository, f"{folder}/*.nc", mode=mode, chunks=chunks, progress=False)


def by_dask(repository: Any, folder: Path) -> None:
    import dask
    import xarray as xr

    files = sorted(map(str, folder.glob("*.nc")))
    opened = xr.open_mfdataset(
        files,
        engine="h5netcdf",
        chunks={},
        data_vars="minimal",
        coords="minimal",
        compat="override",
    )
    data = opened.chunk(CHUNKS)
    for variable in data.variables.values():
        variable.encoding.clear()
    session = repository.writable_session("main")
    with dask.config.set(scheduler="threads", num_workers=2):
        # Its own `to_icechunk` does not work with the newest xarray.
        data.to_zarr(session.store, zarr_format=3, consolidated=False)
    session.commit("copied")


def by_reference(repository: Any, folder: Path) -> None:
    import dask
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser

    files = [file.as_uri() for file in sorted(folder.glob("*.nc"))]
    with dask.config.set(scheduler="processes", num_workers=2):
        data = open_virtual_mfdataset(
            files,
            registry=ObjectStoreRegistry({"file://": LocalStore()}),
            parser=HDFParser(),
            parallel="dask",
            combine="by_coords",
            data_vars="minimal",
            coords="minimal",
            compat="override",
        )
    session = repository.writable_session("main")
    data.vz.to_icechunk(session.store)
    session.commit("referenced")


def with_driver(setting: Setting) -> int:
    """Plan a few files first: modules and buffers of every ingest do not count."""
    plan_and_record(64, 0)
    return int(setting["files"])


def plan_and_record(files: int, _: int) -> None:
    """All that a driver does for an ingest, with headers as executors send them."""
    from benchmarks.ingest_scale import measure

    measure(files)


DRIVER = [
    Case(
        name=f"driver-{size}",
        title="the driver of an ingest of {files:,} files",
        peers=("icefloe",),
        run=plan_and_record,
        start=with_driver,
        parameters={"files": files},
        quick={"files": 200},
    )
    for size, files in (("2e4", 20_000), ("6e4", 60_000))
]
CASES = [
    *DRIVER,
    *(
        Case(
            name=f"ingest-{mode}",
            title=f"{title}: {{files:,}} NetCDF files (Spark, dask)",
            peers=("icefloe", "icefloe-nosync", "icechunk"),
            run=ingest,
            start=with_spark,
            prepare=files_written,
            parameters={"files": files, "mode": mode},
            quick={"files": 6},
            in_processes=True,
        )
        for mode, title, files in (
            ("copy", "ingest as copies", 120),
            ("virtual", "ingest by reference", 365),
        )
    ),
]
