"""Gives new nodes the numbers that are their ids in generations whose ids have 4 bytes (H-20).

Sessions know nodes by 8 random bytes, so that cooperating and competing writers never choose the
same. A commit numbers its new nodes by the base that it is laid over; on another base, anew.
"""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.formats.port import MAX_NODE_NUMBER, NodeNumbering
from icefloe.model.ids import NodeId
from icefloe.model.snapshot import INTERNAL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.changes.change_set import ChangeSet
    from icefloe.model.snapshot import Snapshot

NEXT_NODE = f"{INTERNAL_PREFIX}next_node"
"""The property of a snapshot that says which number no node of its history had."""


def number_nodes(
    changes: ChangeSet, base: Snapshot, numbering: NodeNumbering | None
) -> tuple[ChangeSet, dict[str, Any]]:
    """The changes with numbered nodes, and the properties that the new snapshot needs.

    Nodes that have a number which is free over this base keep it.
    """
    if numbering is None:
        return changes, {}
    taken = set(base.nodes.node_ids())
    first = _next_number(base)
    unnumbered = [node_id for node_id in changes.new if _is_unfit(node_id, taken)]
    taken.update(changes.new.keys() - set(unnumbered))
    candidates = _random() if numbering is NodeNumbering.RANDOM else count(first)
    numbers: dict[NodeId, NodeId] = {}
    for node_id in unnumbered:
        number = _draw(candidates, taken)
        taken.add(number)
        numbers[node_id] = number
    properties: dict[str, Any] = {}
    if numbering is NodeNumbering.SEQUENTIAL:
        highest = max((int.from_bytes(node_id, "big") for node_id in taken), default=-1)
        properties[NEXT_NODE] = max(first, highest + 1)
    return (changes.renumbered(numbers) if numbers else changes), properties


def _is_unfit(node_id: NodeId, taken: set[NodeId]) -> bool:
    return node_id in taken or int.from_bytes(node_id, "big") > MAX_NODE_NUMBER


def _next_number(base: Snapshot) -> int:
    kept = base.metadata.get(NEXT_NODE)
    if type(kept) is int and 0 <= kept <= MAX_NODE_NUMBER:
        return kept
    numbers = (int.from_bytes(node_id, "big") for node_id in base.nodes.node_ids())
    return max(numbers, default=-1) + 1


def _random() -> Iterator[int]:
    while True:
        yield random.SystemRandom().randint(0, MAX_NODE_NUMBER)


def _draw(candidates: Iterator[int], taken: set[NodeId]) -> NodeId:
    for number in candidates:
        if number > MAX_NODE_NUMBER:
            break
        node_id = NodeId(number.to_bytes(NodeId.SIZE, "big"))
        if node_id not in taken:
            return node_id
    raise InvalidInputError(
        f"a repository of this generation numbers at most {MAX_NODE_NUMBER + 1} nodes in all of "
        "its history; migrate it to the generation 'repository'"
    )
