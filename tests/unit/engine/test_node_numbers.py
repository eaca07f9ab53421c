"""Numbers of nodes: new ones get the next, known ones keep theirs or are given another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.changes.change_set import ChangeSet
from icefloe.engine.commit.node_numbers import NEXT_NODE, NodeOrigin, number_nodes
from icefloe.errors import InvalidInputError
from icefloe.formats.port import (
    MAX_NODE_NUMBER,
    NODE_NUMBERS,
    NodeNumbering,
    numbered_id,
    prefix_number,
)
from icefloe.model.ids import NodeId, SnapshotId
from icefloe.model.nodes import NodeTable, make_node
from icefloe.model.snapshot import Snapshot
from tests.documents import group

if TYPE_CHECKING:
    from collections.abc import Sequence


def snapshot(ids: Sequence[NodeId], **metadata: Any) -> Snapshot:
    now = datetime.now(UTC)
    nodes = [make_node(node_id, f"/n{place}", group()) for place, node_id in enumerate(ids)]
    names = {"next": NEXT_NODE, "others": NODE_NUMBERS}
    return Snapshot(
        SnapshotId.random(),
        None,
        now,
        now,
        "",
        {names[name]: value for name, value in metadata.items()},
        0,
        (),
        (),
        (),
        NodeTable.of(nodes),
    )


def changes(base: Snapshot, *new: NodeId) -> ChangeSet:
    made = ChangeSet(base.nodes)
    made.new = {
        node_id: make_node(node_id, f"/new{place}", group()) for place, node_id in enumerate(new)
    }
    made.rebase(base.nodes)
    return made


def some(number: int) -> NodeId:
    return numbered_id(number, NodeId.random()[:4])


def test_new_nodes_get_the_next_numbers() -> None:
    base = snapshot([some(0), some(1)], next=7)
    # A random id may look like one with a number.
    found = number_nodes(
        changes(base, NodeId.random(), some(1)), base, NodeNumbering.SEQUENTIAL, NodeOrigin.SESSION
    )
    assert [prefix_number(each) for each in found.changes.new] == [7, 8]
    assert found.properties == {NEXT_NODE: 9}


def test_known_nodes_keep_their_ids_and_get_a_free_number() -> None:
    taken, free, far, twin = some(1), some(5), some(2**20), some(5)
    base = snapshot([some(0), some(1)])
    found = number_nodes(
        changes(base, taken, free, far, twin),
        base,
        NodeNumbering.SEQUENTIAL,
        NodeOrigin.OTHER_BRANCH,
    )
    assert list(found.changes.new) == [taken, free, far, twin]
    assert found.others == {taken: 2**20 + 1, twin: 2**20 + 2}
    assert found.properties == {
        NEXT_NODE: 2**20 + 3,
        NODE_NUMBERS: {str(taken): 2**20 + 1, str(twin): 2**20 + 2},
    }


def test_a_number_that_was_given_is_kept_and_taken() -> None:
    given = some(0)
    base = snapshot([some(0), given], others={str(given): 4})
    mine = some(4)
    found = number_nodes(
        changes(base, mine), base, NodeNumbering.SEQUENTIAL, NodeOrigin.OTHER_BRANCH
    )
    assert found.others == {given: 4, mine: 5}
    without = changes(base)
    without.deleted = {given: base.nodes.by_id(given)}
    found = number_nodes(without, base, NodeNumbering.SEQUENTIAL, NodeOrigin.SESSION)
    assert found.properties == {NEXT_NODE: 5}


def test_random_numbers_are_kept_unless_taken() -> None:
    taken, free = numbered_id(0, b"abcd"), numbered_id(0, b"efgh")
    base = snapshot([taken])
    found = number_nodes(
        changes(base, taken, free), base, NodeNumbering.RANDOM, NodeOrigin.OTHER_BRANCH
    )
    other, kept = sorted(found.changes.new, key=lambda each: each == free)
    assert kept == free
    assert other not in {taken, free}
    assert other[:4] == bytes(4)


@pytest.mark.parametrize("origin", list(NodeOrigin))
def test_numbers_come_to_an_end(origin: NodeOrigin) -> None:
    base = snapshot([some(0)], next=MAX_NODE_NUMBER + 1)
    with pytest.raises(InvalidInputError, match="migrate it"):
        number_nodes(changes(base, some(0)), base, NodeNumbering.SEQUENTIAL, origin)
