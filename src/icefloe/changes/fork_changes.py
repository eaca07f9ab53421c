"""The own changes of a fork, and nodes and chunks that several forks changed. No I/O here.

A fork of a session with uncommitted changes begins with a copy of them. Merged back as a whole,
these would undo what the session and other forks did since; so only the difference is merged, as in
a merge of branches whose common ancestor is the state that was forked. A change that leads back to
that state is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.compare import compare_chunks, disputed
from icefloe.changes.documents import merge_documents, same_document
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.ids import NodeId
from icefloe.model.nodes import Node, make_node
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping


_T = TypeVar("_T")


class Inherited(Record, frozen=True, eq=False):
    """The uncommitted changes that a fork began with."""

    changes: ChangeSet
    """With the clears of arrays made explicit."""
    origin: str
    """Names the moment: only who has these changes can merge the fork."""


class ChangesSince(Record, frozen=True, eq=False):
    """The difference between two change sets over one base."""

    changes: ChangeSet
    """To be absorbed; it cannot be looked into by path."""
    altered: dict[NodeId, Node]
    """Nodes that were new before, with another document or path."""
    removed: frozenset[NodeId]
    """Nodes that were new before and are gone."""
    moved_back: frozenset[NodeId]
    """Nodes of the base that have their old path again."""
    unwritten: dict[NodeId, ChunkIndex]
    """Chunks that were written before and deleted since, and that the base does not have."""


def changes_since(
    earlier: ChangeSet, later: ChangeSet, cleared: Collection[NodeId] = ()
) -> ChangesSince:
    """The changes of `later` on top of `earlier`.

    Args:
        earlier: Changes without clears, pending chunks and linked manifests.
        later: Changes without clears and pending chunks, some time after.
        cleared: Arrays all chunks of which were deleted at some time.
    """
    twin = ChangeSet(later.base)
    twin.new = {key: node for key, node in later.new.items() if key not in earlier.new}
    twin.documents = _other(earlier.documents, later.documents)
    twin.deleted = {key: n for key, n in later.deleted.items() if key not in earlier.deleted}
    twin.places = _other(earlier.places, later.places)
    unwritten = dict(_unwritten(earlier, later, cleared))
    twin.chunks = dict(_edits(earlier, later, unwritten))
    twin.linked = {key: list(tiles) for key, tiles in later.linked.items()}
    return ChangesSince(
        changes=twin,
        altered={
            key: node
            for key, node in later.new.items()
            if (old := earlier.new.get(key)) is not None
            and (old.path != node.path or old.document != node.document)
        },
        removed=frozenset(earlier.new.keys() - later.new.keys()),
        moved_back=frozenset(earlier.places.keys() - later.places.keys() - later.deleted.keys()),
        unwritten=unwritten,
    )


def absorb_since(merged: ChangeSet, since: ChangesSince, earlier: ChangeSet) -> list[str]:
    """Add a difference to changes that `earlier` is part of; later ones win.

    Returns contradictions in the documents of new nodes, for people.
    """
    contradictions: list[str] = []
    for key, node in since.altered.items():
        mine, old = merged.new.get(key), earlier.new[key]
        if mine is None:
            continue  # deleted meanwhile
        document, conflicts = merge_documents(old.document, mine.document, node.document)
        contradictions += [f"{node.path}: {conflict.key}" for conflict in conflicts]
        path = mine.path if node.path == old.path else node.path
        merged.new[key] = make_node(key, path, document)
    for key in since.removed:
        for table in (merged.new, merged.chunks, merged.linked):
            table.pop(key, None)
    for key in since.moved_back:
        merged.places.pop(key, None)
    # Chunks of what was deleted meanwhile go with it.
    for table in (since.changes.chunks, since.changes.linked):
        for key in [key for key in table if not _has(merged, since.changes, key)]:
            del table[key]
    merged.absorb(since.changes)
    _forget(merged, since.unwritten)
    return contradictions


def _forget(merged: ChangeSet, unwritten: Mapping[NodeId, ChunkIndex]) -> None:
    """Leave no edit of chunks that were never committed: to delete them changes nothing."""
    for key, index in unwritten.items():
        edits = merged.chunks.get(key)
        if edits is not None:
            edits.discard(index)
            if edits.is_empty:
                del merged.chunks[key]


def _has(merged: ChangeSet, since: ChangeSet, key: NodeId) -> bool:
    return key in merged.new or key in since.new or merged.base.by_id(key) is not None


def _other(earlier: Mapping[NodeId, object], later: Mapping[NodeId, _T]) -> dict[NodeId, _T]:
    return {key: value for key, value in later.items() if earlier.get(key) != value}


def _unwritten(
    earlier: ChangeSet, later: ChangeSet, cleared: Collection[NodeId]
) -> Iterator[tuple[NodeId, ChunkIndex]]:
    """Chunks that only `earlier` has written, of arrays that were cleared since."""
    for key, old in earlier.chunks.items():
        edits = later.chunks.get(key)
        # Of a new array, clearing it leaves no edits.
        is_cleared = key in cleared if edits is not None else key in earlier.new.keys() & later.new
        written = old.apply(None) if is_cleared else None
        if written is None:
            continue
        coords = written.index.coords()
        # Edits that were made explicit name all chunks of the base.
        touched = None if edits is None else edits.touched(None)
        if touched is not None:
            coords = coords[touched.find_many(coords) < 0]
        if len(coords):
            yield key, ChunkIndex.from_coords(coords)[0]


def _edits(
    earlier: ChangeSet, later: ChangeSet, unwritten: Mapping[NodeId, ChunkIndex]
) -> Iterator[tuple[NodeId, ChunkEdits]]:
    for key in [*later.chunks, *(unwritten.keys() - later.chunks.keys())]:
        edits = later.chunks.get(key) or ChunkEdits(earlier.chunks[key].rank)
        added = _edits_since(earlier.chunks.get(key), edits)
        if key in unwritten:
            added.delete_many(unwritten[key])
        if not added.is_empty:
            yield key, added


def _edits_since(old: ChunkEdits | None, new: ChunkEdits) -> ChunkEdits:
    before = None if old is None else old.touched(None)
    if old is None or before is None:
        return new.copy()
    touched = new.touched(None)
    if touched is None:
        return ChunkEdits(new.rank)
    changed = compare_chunks(old.apply(None), new.apply(None))
    coords = touched.coords()
    differs = before.find_many(coords) < 0
    if changed is not None:
        differs |= changed.find_many(coords) >= 0
    if not differs.any():
        return ChunkEdits(new.rank)
    return new.within(ChunkIndex.from_coords(coords[differs])[0])


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
