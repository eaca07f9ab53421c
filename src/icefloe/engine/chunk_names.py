"""Says which chunk it is that cannot be read: array, place, snapshot and file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from icefloe.errors import DamagedChunkError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ChunkNames(NamedTuple):
    """The chunks that somebody asked for."""

    path: str
    coords: npt.NDArray[np.integer]
    snapshot_id: str

    def damaged(self, row: int, what: str, key: str) -> DamagedChunkError:
        """The error for one of them."""
        coords = tuple(self.coords[row].tolist())
        return named(DamagedChunkError(what, key), self.path, coords, self.snapshot_id)


def named(
    error: DamagedChunkError, path: str, coords: tuple[int, ...], snapshot_id: str
) -> DamagedChunkError:
    """The error for a chunk of a snapshot, of one that only says what is wrong with its file."""
    return DamagedChunkError(
        f"chunk {list(coords)} of {path} in snapshot {snapshot_id} is damaged: {error.message} "
        f"(chunk file {error.key}). Restore that file from a copy, or write the chunk again",
        error.key,
        path,
        coords,
        snapshot_id,
    )
