"""Does the log of a commit tell what changed from its parent to it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.model import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.transaction_log import TransactionLog


def untold(log: TransactionLog, truth: TransactionLog) -> Iterator[str]:
    """What a log does not tell, or tells wrongly.

    It may tell more than can be seen: chunks and documents that were set to what they were.
    """
    for name in ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays"):
        told, real = getattr(log, name), getattr(truth, name)
        if told != real:
            yield f"{name}: it tells of {len(told)}, and there are {len(real)}"
    for name in ("updated_groups", "updated_arrays"):
        lost = getattr(truth, name) - getattr(log, name)
        if lost:
            yield f"{name}: {len(lost)} are not in it"
    for node_id, index in truth.updated_chunks.items():
        mine = log.updated_chunks.get(node_id)
        told = 0 if mine is None else len(index.intersection(mine))
        if told < len(index):
            yield f"{len(index) - told} changed chunks of node {node_id} are not in it"
    sources = [move.source for move in log.moves]
    for move in truth.moves:
        if not any(paths.is_within(move.source, source) for source in sources):
            yield f"the move of {move.source} to {move.target} is not in it"
