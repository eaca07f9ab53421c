"""Finds nodes and chunks that several forks changed, to merge or report them. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.changes.compare import disputed
from icefloe.changes.documents import merge_documents, same_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from icefloe.changes.change_set import ChangeSet
    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.model.ids import NodeId
    from icefloe.model.nodes import Node


def same_chunks(
    ours: ChangeSet,
    later: ChangeSet,
    written: Mapping[NodeId, ChunkEdits] | None = None,
    named: ChangeSet | None = None,
) -> list[str]:
    """Chunks that both wrote, for people; the later one is going to win.

    Args:
        ours: The changes so far.
        later: Those that come on top.
        written: Our edits to compare with; all by default.
        named: Where the nodes of `later` are looked up, if not there.
    """
    edited = ours.chunks if written is None else written
    return [
        f"{node.path} {common.tolist()[:5]}{' …' if len(common) > 5 else ''}"
        for node_id, edits in later.chunks.items()
        if (mine := edited.get(_known_as(ours, later, node_id))) is not None
        and (node := (named or later).by_id(node_id)) is not None
        and len(common := disputed(mine, edits))
    ]


def merge_metadata(
    ours: ChangeSet, later: ChangeSet, document_of: Callable[[Node], bytes]
) -> list[str]:
    """Let later documents have what ours changed in them too, key by key, in place.

    Returns what both changed otherwise, for people: the later one is going to win, and deletes
    over all else.
    """
    return [
        *_documents(ours, later, document_of),
        *(
            f"{ours.places[node_id]} is {place} in another one"
            for node_id, place in later.places.items()
            if ours.places.get(node_id, place) != place
        ),
        *_deleted(ours, later),
        *_deleted(later, ours),
    ]


def _documents(
    ours: ChangeSet, later: ChangeSet, document_of: Callable[[Node], bytes]
) -> Iterator[str]:
    for node_id in later.documents:
        mine, node = ours.documents.get(node_id), ours.base.by_id(node_id)
        if mine is None or node is None or mine == later.documents[node_id]:
            continue
        merged, conflicts = merge_documents(document_of(node), mine, later.documents[node_id])
        if not same_document(merged, later.documents[node_id]):
            later.documents[node_id] = merged
        for conflict in conflicts:
            yield f"{node.path}: {conflict.key}"


def _deleted(deleting: ChangeSet, other: ChangeSet) -> Iterator[str]:
    changed = {
        *other.documents,
        *other.places,
        *other.linked,
        *(node_id for node_id, edits in other.chunks.items() if not edits.is_empty),
    }
    for node_id, node in deleting.deleted.items():
        if node_id in changed:
            yield f"{node.path} was deleted by one and changed by another, and is gone"


def _known_as(ours: ChangeSet, later: ChangeSet, node_id: NodeId) -> NodeId:
    """The id that a node gets here if another session created it, too."""
    created = later.new.get(node_id)
    known = None if created is None else ours.get(created.path)
    return node_id if known is None else known.id
