"""Groups in a merge: those that both sides create, or that one side deletes and the other fills.

Most groups are created in passing, on the way to the first array below them; the root is, in every
repository. Whoever creates a group that exists already has what they wanted: the two become one
group, if no attribute is lost by it. And as a folder in git, a group exists as long as something is
in it: without one, the nodes that the other side put below it would not be listed. No I/O here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from icefloe.changes.documents import ATTRIBUTES, merge_documents, parsed, same_document
from icefloe.errors import AlreadyExistsError
from icefloe.model import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.documents import DocumentConflict
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import Node, NodeTable
    from icefloe.model.transaction_log import TransactionLog

BARE_GROUP = b'{"zarr_format": 3, "node_type": "group"}'
"""The document of a group that says nothing more."""
_SAYS_NOTHING: dict[str, tuple[Any, ...]] = {
    ATTRIBUTES: ({}, None),
    "consolidated_metadata": (None,),
}
"""Keys of a group's document, with values that mean the same as no such key."""


def common_document(ours: bytes, theirs: bytes) -> bytes | None:
    """The document of a group that both sides created; None if they differ.

    Documents that say the same are equal however they are spelled, and one that says nothing but
    that there is a group gives way to the other.
    """
    if _is_bare(ours) or same_document(_plain(ours), _plain(theirs)):
        return theirs
    return ours if _is_bare(theirs) else None


def merged_document(ours: bytes, theirs: bytes) -> tuple[bytes, list[DocumentConflict]]:
    """The merged document of a group that both sides created, and its contradictions.

    There it has what they say; and their very bytes, if we have nothing to add.
    """
    merged, conflicts = merge_documents(BARE_GROUP, ours, theirs)
    return (theirs if same_document(merged, theirs) else merged), conflicts


def share_new_groups(
    ours: ChangeSet,
    theirs: TransactionLog,
    head: NodeTable,
    document_of: Callable[[Node], bytes],
) -> None:
    """Make groups that both sides created at the same paths one group, in place.

    Those with different documents are left; to share them is up to a solver. `document_of` reads
    documents whose attributes are not at hand.
    """
    for node_id, node in list(ours.new.items()):
        other = head.get(node.path)
        if other is None or other.id not in theirs.new_groups or node.is_array:
            continue
        if other.id == node_id or other.id in ours.deleted or other.id in ours.places:
            continue
        common = common_document(document_of(node), document_of(other))
        if common is not None:
            share(ours, node_id, other, common, is_theirs=common == document_of(other))


def share(
    ours: ChangeSet, node_id: NodeId, other: Node, document: bytes, *, is_theirs: bool
) -> None:
    """Let a group that we created be another one, with a document that both get.

    The changes are of no use until they are laid over the nodes that have the other one.
    """
    del ours.new[node_id]
    if not is_theirs:
        ours.documents[other.id] = document


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
    """Keep groups that one of several sessions that work together filled, in place.

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


def _plain(document: bytes) -> bytes:
    """The document without what says nothing."""
    content = parsed(document).items()
    kept = {key: value for key, value in content if value not in _SAYS_NOTHING.get(key, ())}
    return json.dumps(kept).encode()


def _is_bare(document: bytes) -> bool:
    return same_document(_plain(document), BARE_GROUP)
