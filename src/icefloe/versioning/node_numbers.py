"""Gives new nodes the numbers that are their ids in generations whose ids have 4 bytes (H-20).

Sessions know new nodes by 8 random bytes, so that cooperating and competing writers never choose
the same. A commit numbers its new nodes by the base that it is laid over; on another base, anew.
"""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any

from icefloe.errors import InvalidInputError
from icefloe.formats.port import MAX_NODE_NUMBER, NodeNumbering, numbered_id, prefix_number
from icefloe.model.ids import NodeId
from icefloe.model.snapshot import INTERNAL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.changes.change_set import ChangeSet
    from icefloe.model.snapshot import Snapshot

_SMALL = 2**16

NEXT_NODE = f"{INTERNAL_PREFIX}next_node"
"""The property of a snapshot that says which number no node of its history had."""


def number_nodes(
    changes: ChangeSet, base: Snapshot, numbering: NodeNumbering | None
) -> tuple[ChangeSet, dict[str, Any]]:
    """The changes with numbered nodes, and the properties that the new snapshot needs.

    Nodes that come from another branch keep their ids if these are free here, so that the branches
    can be merged again.
    """
    if numbering is None:
        return changes, {}
    if numbering is NodeNumbering.RANDOM:
        taken = set(base.nodes.node_ids())
        kept = {each for each in changes.new if each[:4] == bytes(4) and each not in taken}
        ids: Iterator[NodeId] = _random_ids(taken | kept)
        properties: dict[str, Any] = {}
    else:
        first = _next_number(base)
        numbers_taken = {prefix_number(each) for each in base.nodes.node_ids()}
        kept = _with_free_numbers(changes.new, numbers_taken)
        first = max([first, *(prefix_number(each) + 1 for each in kept)])
        ids = _sequential_ids(first)
        properties = {NEXT_NODE: first + len(changes.new) - len(kept)}
    new = [each for each in changes.new if each not in kept]
    numbers = dict(zip(new, ids, strict=False))
    return (changes.renumbered(numbers) if numbers else changes), properties


def _with_free_numbers(new: Iterable[NodeId], taken: set[int]) -> set[NodeId]:
    """New nodes whose number is small and free: those have been numbered before."""
    kept = set()
    for node_id in new:
        number = prefix_number(node_id)
        if number < _SMALL and number not in taken:
            taken.add(number)
            kept.add(node_id)
    return kept


def _next_number(base: Snapshot) -> int:
    kept = base.metadata.get(NEXT_NODE)
    if type(kept) is int and 0 <= kept <= MAX_NODE_NUMBER + 1:
        return kept
    return max((prefix_number(each) for each in base.nodes.node_ids()), default=-1) + 1


def _random_ids(taken: set[NodeId]) -> Iterator[NodeId]:
    while True:
        node_id = NodeId(bytes(4) + os.urandom(4))
        if node_id not in taken:
            taken.add(node_id)
            yield node_id


def _sequential_ids(first: int) -> Iterator[NodeId]:
    for number in count(first):
        if number > MAX_NODE_NUMBER:
            raise InvalidInputError(
                f"a dataset numbers at most {MAX_NODE_NUMBER + 1} nodes in all of its history; "
                "migrate it to the generation 'repository'"
            )
        yield numbered_id(number, os.urandom(4))
