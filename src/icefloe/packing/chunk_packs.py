"""Which chunks share a chunk file: neighbours, up to the size of a pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def cut_packs(lengths: npt.NDArray[np.int64], pack_bytes: int) -> npt.NDArray[np.int64]:
    """The number of the pack that each chunk goes to, for chunks that are written in this order.

    A pack ends before the chunk with which it would be larger than `pack_bytes`; only a single
    chunk may be larger than that.
    """
    ends = np.cumsum(lengths)
    starts = [0]
    while starts[-1] < len(ends):
        first = starts[-1]
        limit = int(ends[first] - lengths[first]) + pack_bytes
        fitting = int(np.searchsorted(ends, limit, side="right"))
        starts.append(max(fitting, first + 1))
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))
