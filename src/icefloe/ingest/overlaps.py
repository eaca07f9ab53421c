"""Parts that several files have: which overlap, and whether they say the same. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from icefloe.ingest.plan import StoredValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.ingest.policies import Policies


def overlapping_pairs(boxes: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs of boxes that share elements."""
    for number in range(boxes.shape[1]):
        distinct = np.unique(boxes[:, number], axis=0)
        if (distinct[1:, 0] < distinct[:-1, 1]).any():
            break
    else:
        return []
    pairs = []
    order = np.argsort(boxes[:, 0, 0], kind="stable")
    starts = boxes[order, 0, 0]
    for at, row in enumerate(order.tolist()):
        box = boxes[row]
        near = order[at + 1 : int(np.searchsorted(starts, box[0, 1]))]
        lower = np.maximum(boxes[near, :, 0], box[:, 0])
        upper = np.minimum(boxes[near, :, 1], box[:, 1])
        pairs += [(row, other) for other in near[(lower < upper).all(axis=1)].tolist()]
    return pairs


class JoinedValues:
    """Values of several files as one block, if they fill it, and files that contradict others."""

    def __init__(
        self, parts: Sequence[StoredValues], dtype: np.dtype[Any], policies: Policies
    ) -> None:
        """Join values; of a part that several have, the first is kept if duplicates fail."""
        starts = np.array([part.start for part in parts], dtype=np.int64)
        stops = starts + np.array([part.values.shape for part in parts], dtype=np.int64)
        lower, upper = starts.min(axis=0), stops.max(axis=0)
        values = np.zeros(upper - lower, dtype)
        owners = np.full(upper - lower, -1, dtype=np.int32)
        self.clashes: list[tuple[int, int]] = []
        for row, part in enumerate(parts):
            place = tuple(map(slice, (starts[row] - lower).tolist(), (stops[row] - lower).tolist()))
            taken = owners[place] >= 0
            if taken.any() and policies.duplicates == "fail":
                if not policies.are_equal(values[place][taken], part.values[taken]):
                    self.clashes.append((int(owners[place][taken].flat[0]), row))
                    continue
                values[place][~taken] = part.values[~taken]
            else:
                values[place] = part.values
            owners[place] = row
        is_filled = bool((owners >= 0).all())
        self.parts = [StoredValues(tuple(lower.tolist()), values)] if is_filled else list(parts)
