"""Many NetCDF files into one group: Spark by reference and as copies, against dask.

`python -m benchmarks.ingest [--files 60] [--peer .venv-bench/bin/python]` prints seconds and MB/s.
The peer is `xarray.open_mfdataset` with dask, written by the official package; its Python needs
`icechunk`, `dask` and `h5netcdf`. Where it is missing, dask writes through icefloe only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS, LATITUDES, LONGITUDES = 24, 180, 360
CHUNKS = {"time": 120, "lat": 90, "lon": 180}

DASK_CODE = """
import sys, time, warnings
warnings.simplefilter("ignore")
import xarray as xr
engine, folder, target, package = sys.argv[1:5]
import glob
if package == "icechunk":
    import icechunk as versioned
    from icechunk.xarray import to_icechunk as write
else:
    import icefloe as versioned
    from icefloe.xarray import to_icefloe as write
import dask
started = time.perf_counter()
files = sorted(glob.glob(folder + "/*.nc"))
data = xr.open_mfdataset(files, engine=engine, chunks={}, data_vars="minimal", coords="minimal",
    compat="override", parallel=False).chunk({"time": 120, "lat": 90, "lon": 180})
for variable in data.variables.values():
    variable.encoding.clear()
repo = versioned.Repository.create(versioned.local_filesystem_storage(target))
session = repo.writable_session("main")
with dask.config.set(scheduler="threads", num_workers=2):
    write(data, session)
session.commit("copy")
print(time.perf_counter() - started)
"""


def make_files(folder: Path, count: int) -> int:
    """Write files; returns the bytes of their values."""
    import netCDF4
    import numpy as np

    random = np.random.default_rng(1)
    field = 285 + random.normal(0, 2, (STEPS, LATITUDES, LONGITUDES)).round(2).astype("f4")
    for number in range(count):
        with netCDF4.Dataset(folder / f"{number:05d}.nc", "w") as data:
            for name, size in (("time", None), ("lat", LATITUDES), ("lon", LONGITUDES)):
                data.createDimension(name, size)
            time_variable = data.createVariable("time", "f8", ("time",))
            time_variable.units = "hours since 2020-01-01"
            time_variable[:] = np.arange(STEPS) + STEPS * number
            data.createVariable("lat", "f8", ("lat",))[:] = np.linspace(-89.5, 89.5, LATITUDES)
            data.createVariable("lon", "f8", ("lon",))[:] = np.arange(LONGITUDES)
            data.createVariable("t2m", "f4", ("time", "lat", "lon"), zlib=True, complevel=1)[:] = (
                field + number
            )
    return count * field.nbytes


def by_spark(spark: Any, folder: Path, target: Path, mode: Any) -> float:
    import icefloe
    from icefloe.spark import ingest

    prefix = f"{folder.as_uri()}/"
    config = icefloe.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(str(folder)))
    )
    access = {prefix: None}
    repo = icefloe.Repository.create(str(target), config, authorize_virtual_chunk_access=access)
    started = time.perf_counter()
    chunks = CHUNKS if mode == "copy" else None
    ingest(spark, repo, f"{folder}/*.nc", mode=mode, chunks=chunks, progress=False)
    return time.perf_counter() - started


def by_dask(python: str, folder: Path, target: Path, package: str) -> float | str:
    engine = "netcdf4" if package == "icefloe" else "h5netcdf"
    command = [python, "-c", DASK_CODE, engine, str(folder), str(target), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:90] if done.stderr.strip() else "failed"
    return float(done.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--peer", default=".venv-bench/bin/python")
    arguments = parser.parse_args()
    from icefloe.spark import local_session

    spark = local_session(2)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        folder = root / "files"
        folder.mkdir()
        warm = root / "warm"
        warm.mkdir()
        make_files(warm, 4)
        total = make_files(folder, arguments.files)
        by_spark(spark, warm, root / "warm-repo", "virtual")  # workers import their libraries
        results: dict[str, float | str] = {
            "spark, virtual": by_spark(spark, folder, root / "virtual", "virtual"),
            "spark, copy": by_spark(spark, folder, root / "copy", "copy"),
            "dask, icefloe": by_dask(sys.executable, folder, root / "dask", "icefloe"),
        }
        if Path(arguments.peer).exists():
            results["dask, icechunk"] = by_dask(arguments.peer, folder, root / "peer", "icechunk")
    spark.stop()
    print(f"{arguments.files} files, {total / 1e6:.0f} MB of values")
    for label, seconds in results.items():
        if isinstance(seconds, str):
            print(f"  {label:16} not measured: {seconds}")
        else:
            print(f"  {label:16} {seconds:7.2f} s  {total / 1e6 / seconds:8.0f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
