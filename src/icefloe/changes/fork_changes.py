"""What a fork of a session with uncommitted changes did itself. No I/O here.

A fork begins with a copy of the session's changes. Merged back as a whole, these would undo what
the session and other forks did since; so only the difference is merged, as in a merge of branches
whose common ancestor is the state that was forked. A change that leads back to that state is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from icefloe.changes.change_set import ChangeSet
from icefloe.changes.chunk_edits import ChunkEdits
from icefloe.changes.compare import compare_chunks
from icefloe.changes.documents import merge_documents
from icefloe.model.chunk_index import ChunkIndex
from icefloe.model.ids import NodeId
from icefloe.model.nodes import Node, make_node
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


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


def changes_since(
    earlier: ChangeSet, later: ChangeSet, cleared: Collection[NodeId] = ()
) -> ChangesSince:
    """What `later` has done on top of `earlier`.

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
    twin.chunks = dict(_edits(earlier, later, cleared))
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
    return contradictions


def _has(merged: ChangeSet, since: ChangeSet, key: NodeId) -> bool:
    return key in merged.new or key in since.new or merged.base.by_id(key) is not None


def _other(earlier: Mapping[NodeId, object], later: Mapping[NodeId, _T]) -> dict[NodeId, _T]:
    return {key: value for key, value in later.items() if earlier.get(key) != value}


def _edits(
    earlier: ChangeSet, later: ChangeSet, cleared: Collection[NodeId]
) -> Iterator[tuple[NodeId, ChunkEdits]]:
    for key, edits in later.chunks.items():
        added = _edits_since(earlier.chunks.get(key), edits, is_cleared=key in cleared)
        if not added.is_empty:
            yield key, added
    for key, old in earlier.chunks.items():
        # Of a new array, clearing it leaves no edits.
        if key not in later.chunks and key in earlier.new and key in later.new:
            yield key, _edits_since(old, ChunkEdits(old.rank), is_cleared=True)


def _edits_since(old: ChunkEdits | None, new: ChunkEdits, *, is_cleared: bool) -> ChunkEdits:
    before = None if old is None else old.touched(None)
    if old is None or before is None:
        return new.copy()
    touched = new.touched(None)
    added = ChunkEdits(new.rank)
    if touched is not None:
        changed = compare_chunks(old.apply(None), new.apply(None))
        coords = touched.coords()
        differs = before.find_many(coords) < 0
        if changed is not None:
            differs |= changed.find_many(coords) >= 0
        if differs.any():
            added = new.within(ChunkIndex.from_coords(coords[differs])[0])
    written = old.apply(None)
    if is_cleared and written is not None:
        coords = written.index.coords()
        if touched is not None:
            coords = coords[touched.find_many(coords) < 0]
        if len(coords):
            added.delete_many(ChunkIndex.from_coords(coords)[0])
    return added
