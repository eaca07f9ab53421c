"""Some of many wanted chunks, with their references as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from icefloe.model.chunk_refs import ChunkRefs


class Located(NamedTuple):
    """References that were found in one place: row `i` is the wanted chunk `rows[i]`."""

    rows: npt.NDArray[np.intp]
    """Positions among the chunks that were asked for."""
    refs: ChunkRefs
