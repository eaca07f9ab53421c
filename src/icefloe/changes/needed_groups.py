"""Groups that one side deletes while the other puts nodes into them: they stay. No I/O here.

As a folder in git, such a group is there as long as something is in it; a node below no group
would be hidden from all who list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.changes.shared_groups import BARE_GROUP
from icefloe.errors import AlreadyExistsError
from icefloe.model import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.changes.change_set import ChangeSet
    from icefloe.model.nodes import NodeTable


def spare_groups(ours: ChangeSet, head: NodeTable) -> None:
    """Do not delete groups into which others put nodes, in place; unless we put others there."""
    taken = {*(node.path for node in ours.new.values()), *ours.places.values()}
    for node_id in list(ours.deleted):
        group = head.by_id(node_id)
        if group is None or group.is_array or group.path in taken:
            continue
        newcomers = (node.id for node in head.below(group.path))
        if any(each not in ours.deleted and each not in ours.places for each in newcomers):
            del ours.deleted[node_id]


def lost_groups(ours: ChangeSet, head: NodeTable) -> list[str]:
    """Groups into which we put nodes and that others deleted, the outer ones first."""
    found: set[str] = set()
    for node in ours.new.values():
        found.update(_lost_above(node.path, ours, head))
    return sorted(found)


def _lost_above(path: str, ours: ChangeSet, head: NodeTable) -> Iterator[str]:
    parent = paths.parent(path)
    while parent is not None:
        group = ours.get(parent)
        if group is None or group.is_array or head.get(parent) or head.by_id(group.id):
            return
        if group.id not in ours.new and group.id not in ours.places:
            yield parent
        parent = paths.parent(parent)


def fill_groups(merged: ChangeSet) -> None:
    """The same for sessions that work together: groups that one of them filled stay.

    Raises AlreadyExistsError if one put an array where another put nodes below a group.
    """
    for node in list(merged.new.values()):
        parent = paths.parent(node.path)
        above = None if parent is None else merged.get(parent)
        if above is not None and above.is_array:
            raise AlreadyExistsError(
                f"cannot merge: a session replaced the group {parent} by an array, and another one "
                f"created {node.path} below it; create and delete nodes before you fork"
            )
        while parent is not None and merged.get(parent) is None:
            group = merged.base.get(parent)
            if group is None or group.is_array:
                break
            if merged.deleted.pop(group.id, None) is None:
                merged.set_document(parent, BARE_GROUP)  # it was moved
            else:
                merged.rebase(merged.base)
            parent = paths.parent(parent)


def make_groups(ours: ChangeSet, lost: list[str]) -> None:
    """Create such groups again, without attributes, over the nodes of others."""
    for path in lost:
        if ours.get(path) is None:
            ours.set_document(path, BARE_GROUP)
