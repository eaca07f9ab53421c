"""Where the values of a region come from: arrays of repositories and of other Zarr stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from icefloe.arrays.grid import ChunkGrid, Region, shape_of, shifted, split
from icefloe.model.record import Record
from icefloe.spark.engine.worker import SessionSpec, unpickled

if TYPE_CHECKING:
    import numpy.typing as npt


class RepositoryArray(Record, frozen=True):
    """An array of a committed snapshot.

    Attributes:
        session: Where it is.
        path: Its path.
        offset: Where regions that are asked for begin in it.
        steps: Its grid; given with `step_bytes`, few chunks are decoded at a time.
        step_bytes: How many bytes of chunks may be decoded at a time.
    """

    session: SessionSpec
    path: str
    offset: tuple[int, ...] = ()
    steps: ChunkGrid | None = None
    step_bytes: int = 0

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """The values of a region."""
        session = self.session.open()
        place = _placed(region, self.offset)
        if self.steps is None:
            return session.read_region(self.path, place)
        grid = self.steps
        dtype = zarr.open_array(session.store, path=self.path.lstrip("/"), mode="r").dtype
        values = np.empty(shape_of(place), dtype)
        origin = [-part.start for part in place]
        for box in split(grid.covering(place), self.step_bytes // grid.chunk_bytes):
            part = grid.region(box, place)
            values[shifted(part, origin)] = session.read_region(self.path, part)
        return values


class ZarrArray(Record, frozen=True):
    """An array of any Zarr store that can be pickled."""

    store: bytes
    path: str
    offset: tuple[int, ...] = ()

    def __call__(self, region: Region) -> npt.NDArray[Any]:
        """The values of a region."""
        array = zarr.open_array(unpickled(self.store), path=self.path, mode="r")
        return np.asarray(array[_placed(region, self.offset)])


def _placed(region: Region, offset: tuple[int, ...]) -> Region:
    return shifted(region, offset) if offset else region
