"""Gives new nodes the numbers that are their ids in generations whose ids have 4 bytes (H-20).

Sessions know new nodes by 8 random bytes, so that cooperating and competing writers never choose
the same. A commit numbers its new nodes by its base; after a rebase, again.

Nodes that come from another branch have been numbered there. They keep their ids, so that branches
can be merged again and again. In `dataset` another node may have the number by then: the node gets
a free one for the tables of this line of history, and its snapshots remember it.
"""

from __future__ import annotations

import os
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any

from icefloe.changes.change_set import ChangeSet
from icefloe.errors import InvalidInputError
from icefloe.formats.port import (
    MAX_NODE_NUMBER,
    NODE_NUMBERS,
    NodeNumbering,
    numbered_id,
    other_numbers,
    prefix_number,
)
from icefloe.model.ids import NodeId
from icefloe.model.record import Record
from icefloe.model.snapshot import INTERNAL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from icefloe.model.snapshot import Snapshot

NEXT_NODE = f"{INTERNAL_PREFIX}next_node"
"""The property of a snapshot with the first number that no node of its history had."""


class NodeOrigin(Enum):
    """Where the new nodes of a commit come from."""

    SESSION = "session"
    """They were created for this commit, and have no lasting id yet."""
    OTHER_BRANCH = "other branch"
    """They were committed on another branch, and keep the ids that they got there."""


class Numbered(Record, frozen=True, eq=False):
    """Changes whose new nodes have the ids that they keep for life."""

    changes: ChangeSet
    properties: dict[str, Any]
    """What the snapshot must remember."""
    others: dict[NodeId, int]
    """Nodes whose numbers are not those in front of their ids."""


def number_nodes(
    changes: ChangeSet, base: Snapshot, numbering: NodeNumbering | None, origin: NodeOrigin
) -> Numbered:
    """Number the new nodes of changes over a base."""
    if numbering is None:
        return Numbered(changes, {}, {})
    if numbering is NodeNumbering.RANDOM:
        return Numbered(_with_random_ids(changes, base, origin), {}, {})
    others = {
        node_id: number
        for node_id, number in other_numbers(base).items()
        if node_id not in changes.deleted
    }
    first = _next_number(base)
    if origin is NodeOrigin.OTHER_BRANCH:
        first = _give_numbers(changes.new, base, first, others)
    elif changes.new:
        ids = _sequential_ids(first)
        changes = changes.renumbered({each: next(ids) for each in changes.new})
        first += len(changes.new)
    properties: dict[str, Any] = {NEXT_NODE: first}
    if others:
        properties[NODE_NUMBERS] = {str(node_id): number for node_id, number in others.items()}
    return Numbered(changes, properties, others)


def _with_random_ids(changes: ChangeSet, base: Snapshot, origin: NodeOrigin) -> ChangeSet:
    taken = set(base.nodes.node_ids())
    own = set()
    if origin is NodeOrigin.OTHER_BRANCH:
        own = {each for each in changes.new if each[:4] == bytes(4) and each not in taken}
    new = [each for each in changes.new if each not in own]
    ids = _random_ids(taken | own)
    return changes.renumbered({each: next(ids) for each in new}) if new else changes


def _give_numbers(
    known: Iterable[NodeId], base: Snapshot, first: int, others: dict[NodeId, int]
) -> int:
    """Let nodes have their own numbers or, where those are taken, others from `first` on.

    Adds the latter to `others`; returns the number that is free after that.
    """
    taken = {others.get(each, prefix_number(each)) for each in base.nodes.node_ids()}
    homeless = []
    for node_id in known:
        number = prefix_number(node_id)
        if number in taken:
            homeless.append(node_id)
        taken.add(number)
        first = max(first, number + 1)
    for number, node_id in enumerate(homeless, first):
        _check_number(number)
        others[node_id] = number
    return first + len(homeless)


def _next_number(base: Snapshot) -> int:
    kept = base.metadata.get(NEXT_NODE)
    if type(kept) is int and 0 <= kept <= MAX_NODE_NUMBER + 1:
        return kept
    others = other_numbers(base)
    numbers = (others.get(each, prefix_number(each)) for each in base.nodes.node_ids())
    return max(numbers, default=-1) + 1


def _random_ids(taken: set[NodeId]) -> Iterator[NodeId]:
    while True:
        node_id = NodeId(bytes(4) + os.urandom(4))
        if node_id not in taken:
            taken.add(node_id)
            yield node_id


def _sequential_ids(first: int) -> Iterator[NodeId]:
    for number in count(first):
        _check_number(number)
        yield numbered_id(number, os.urandom(4))


def _check_number(number: int) -> None:
    if number > MAX_NODE_NUMBER:
        raise InvalidInputError(
            f"a dataset numbers at most {MAX_NODE_NUMBER + 1} nodes in all of its history; "
            "migrate it to the generation 'repository'"
        )
