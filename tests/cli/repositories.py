"""A small repository with two branches, a tag and a merge, for tests of the command line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import zarr

from icefloe import Repository

if TYPE_CHECKING:
    from pathlib import Path


def weather_repository(folder: Path, pause: float = 0.0) -> Repository:
    """Four commits on main, one of them tagged, one of `fix` and one of `draft`, merged.

    With a `pause` in seconds between operations, their order is that of their times: those of files
    are a few milliseconds coarse.
    """
    repository = Repository.create(folder)
    with repository.transaction("main", message="Set up the grid") as store:
        root = zarr.create_group(store, attributes={"title": "Weather"})
        for name, values in (("time", 6), ("lat", 4)):
            axis = root.create_array(
                name, shape=(values,), chunks=(values,), dtype="f8", dimension_names=(name,)
            )
            axis[:] = np.arange(values) * 10.0
        surface = root.create_group("surface")
        surface.create_array(
            "t2m",
            shape=(6, 4),
            chunks=(2, 4),
            dtype="f4",
            fill_value=0,
            dimension_names=("time", "lat"),
            attributes={"units": "K"},
        )
        root.create_array(
            "wind", shape=(6, 4), chunks=(3, 2), dtype="i2", dimension_names=("time", "lat")
        )
    with repository.transaction("main", message="Write January", metadata={"run": 1}) as store:
        zarr.open_array(store, path="surface/t2m")[:2] = 280
        zarr.open_array(store, path="wind")[:] = np.arange(24).reshape(6, 4)
    time.sleep(pause)
    repository.create_tag("v1", repository.lookup_branch("main"))
    time.sleep(pause)
    repository.create_branch("fix", repository.lookup_branch("main"))
    time.sleep(pause)
    with repository.transaction("fix", message="Correct the calibration") as store:
        zarr.open_array(store, path="surface/t2m")[:2] = 281
    time.sleep(pause)
    with repository.transaction("main", message="Write February") as store:
        zarr.open_array(store, path="surface/t2m")[2:4] = 282
    time.sleep(pause)
    repository.merge("fix", "main", message="Merge the calibration")
    time.sleep(pause)
    repository.create_branch("draft", repository.lookup_branch("main"))
    time.sleep(pause)
    with repository.transaction("draft", message="Write March\n\nPreliminary.") as store:
        zarr.open_array(store, path="surface/t2m")[4:] = 283
    return repository
