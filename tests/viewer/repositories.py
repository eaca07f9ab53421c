"""A repository with a field that is worth looking at, for tests of the viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import zarr

from icefloe import Repository

if TYPE_CHECKING:
    from pathlib import Path

    from icefloe.storage.port import Storage

TIMES, LATITUDES, LONGITUDES = 12, 72, 144


def field(time: int) -> np.ndarray:
    """Stored temperatures: warm at the equator, with a wave that moves; the corner is missing."""
    lat = np.linspace(90, -90, LATITUDES)[:, None]
    lon = np.linspace(0, 2 * np.pi, LONGITUDES)[None, :]
    values = 3000 - 40 * np.abs(lat) + 300 * np.sin(3 * lon + time / 2) * np.cos(np.radians(lat))
    values[:6, :12] = -999
    return values.astype("i2")


def climate_repository(place: Path | Storage) -> Repository:
    """Eight months of a field on main, a correction on a branch, merged, and two more months."""
    repository = Repository.create(place)
    with repository.transaction("main", message="Set up the grid") as store:
        root = zarr.create_group(store, attributes={"title": "A model of the climate"})
        surface = root.create_group("surface", attributes={"level": "2 m"})
        surface.create_array(
            "t2m",
            shape=(TIMES, LATITUDES, LONGITUDES),
            chunks=(2, 24, 48),
            dtype="i2",
            fill_value=-999,
            dimension_names=("time", "lat", "lon"),
            attributes={"units": "K", "scale_factor": 0.1, "_FillValue": -999},
        )
        root.create_array("time", shape=(TIMES,), chunks=(TIMES,), dtype="f8",
                          dimension_names=("time",))[:] = np.arange(TIMES)  # fmt: skip
        root.create_array("name", shape=(2,), dtype="str")[:] = ["model", "run"]
        root.create_array("number", shape=(), dtype="i4")[...] = 7
    for start in range(0, 8, 2):
        with repository.transaction(
            "main", message=f"Write months {start + 1} and {start + 2}"
        ) as s:
            t2m = zarr.open_array(s, path="surface/t2m")
            t2m[start : start + 2] = np.stack([field(start), field(start + 1)])
    repository.create_tag("v1", repository.lookup_branch("main"))
    repository.create_branch("fix", repository.lookup_branch("main"))
    with repository.transaction("fix", message="Correct a region") as store:
        t2m = zarr.open_array(store, path="surface/t2m")
        t2m[0, 24:48, 48:96] = t2m[0, 24:48, 48:96] + 50
    with repository.transaction("main", message="Describe the model") as store:
        zarr.open_group(store).attrs["model"] = "IC-1"
    repository.merge("fix", "main", message="Merge the correction")
    return repository
