"""The uncommitted changes of a session: which nodes and chunks differ from the base snapshot.

Changes refer to nodes by id, so that they can be laid over another base when a branch has moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from icefloe.errors import AlreadyExistsError, InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.model.ids import NodeId
from icefloe.model.nodes import ArrayNode, GroupNode, Node, NodeTable, make_node

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, KeysView, Mapping, Sequence

    from icefloe.changes.chunk_edits import ChunkEdits
    from icefloe.changes.linked import LinkedTile
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.transaction_log import Move, TransactionLog


_T = TypeVar("_T")
_NOT_EDITED: Any = object()


def with_document(node: Node, document: bytes) -> Node:
    """Replace the document of a node, which must stay an array or a group.

    Raises AlreadyExistsError if it would not, InvalidInputError for an invalid document or
    another number of dimensions.
    """
    match node, make_node(node.id, node.path, document):
        case GroupNode(), GroupNode() as group:
            return group
        case ArrayNode(array=old), ArrayNode(array=new) as array:
            if new.rank != old.rank:
                raise InvalidInputError(
                    f"bad metadata for {node.path}: an array keeps its number of dimensions "
                    f"({old.rank}), found {new.rank}; delete and create it instead"
                )
            return array.evolve(manifests=node.manifests)
    kind = "an array" if node.is_array else "a group"
    raise AlreadyExistsError(f"node already exists: {node.path} is {kind}; delete it first")


class ChangeSet:
    """Edits of nodes and chunks over a base; not thread-safe."""

    __slots__ = ("_overlay", "base", "chunks", "deleted", "documents", "linked", "new", "places")

    def __init__(self, base: NodeTable) -> None:
        """No changes over the nodes of a snapshot."""
        self.base = base
        self.new: dict[NodeId, Node] = {}
        """Nodes that this session created, at their present path."""
        self.documents: dict[NodeId, bytes] = {}
        """New documents of nodes of the base."""
        self.deleted: dict[NodeId, Node] = {}
        """Nodes of the base that are gone."""
        self.places: dict[NodeId, str] = {}
        """Present paths of nodes of the base that were moved."""
        self.chunks: dict[NodeId, ChunkEdits] = {}
        self.linked: dict[NodeId, list[LinkedTile]] = {}
        """Tiles of arrays whose references are in manifests already; edits come on top."""
        self._overlay: dict[str, Node | None] = {}

    def __getstate__(self) -> tuple[object, ...]:
        # A pickle has the id of the base; the reader restores the base with `rebase`.
        edits = {node_id: e for node_id, e in self.chunks.items() if not e.is_empty}
        return (self.new, self.documents, self.deleted, self.places, edits, self.linked)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        (self.new, self.documents, self.deleted, self.places, self.chunks, self.linked) = state  # type: ignore[assignment]
        self._overlay = {}
        self.base = NodeTable.of([])

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs from the base."""
        return not (
            self.new
            or self.documents
            or self.deleted
            or self.places
            or self.linked
            or any(not edits.is_empty for edits in self.chunks.values())
        )

    def copy(self) -> ChangeSet:
        """An independent copy over the same base."""
        twin = ChangeSet(self.base)
        twin.new = dict(self.new)
        twin.documents = dict(self.documents)
        twin.deleted = dict(self.deleted)
        twin.places = dict(self.places)
        twin.chunks = {node_id: edits.copy() for node_id, edits in self.chunks.items()}
        twin.linked = {node_id: list(tiles) for node_id, tiles in self.linked.items()}
        twin._overlay = dict(self._overlay)
        return twin

    # --- the tree as the session sees it

    def get(self, path: str) -> Node | None:
        """The node at a path. Its document is the session's own if that was changed."""
        # One look: threads that read take no lock, and entries may vanish between two.
        node = self._overlay.get(path, _NOT_EDITED)
        return self.base.get(path) if node is _NOT_EDITED else node

    def by_id(self, node_id: NodeId) -> Node | None:
        """The node with an id, if it is there."""
        if not self._overlay:
            return self.base.by_id(node_id)
        if node_id in self.new:
            return self.new[node_id]
        node = None if node_id in self.deleted else self.base.by_id(node_id)
        return None if node is None else self.get(self.places.get(node_id, node.path))

    def array_by_id(self, node_id: NodeId) -> ArrayNode | None:
        """The array with an id, if it is there."""
        node = self.by_id(node_id)
        return node if node is not None and node.is_array else None

    def paths_below(self, path: str) -> Sequence[str]:
        """Sorted paths of all nodes below a path."""
        base = self.base.paths_below(path)
        prefix = paths.child_prefix(path)
        over = {p: n for p, n in self._overlay.items() if p.startswith(prefix) and p != path}
        if not over:
            return base
        merged = {p for p in base if p not in over}
        merged.update(p for p, node in over.items() if node is not None)
        return sorted(merged)

    def within(self, path: str) -> Iterator[Node]:
        """The node at a path, if any, and all below it."""
        for place in (path, *self.paths_below(path)):
            node = self.get(place)
            if node is not None:
                yield node

    def all_nodes(self) -> list[Node]:
        """All nodes, sorted by path."""
        return list(self.within(paths.ROOT))

    def edited_nodes(self) -> dict[str, Node | None]:
        """The nodes at all paths that differ from the base; None where there is none."""
        return dict(self._overlay)

    # --- edits

    def set_document(self, path: str, document: bytes) -> None:
        """Create a node or replace its document.

        Raises InvalidInputError for a path that no reader would accept (R2-35).
        """
        node = self.get(path)
        if node is None:
            paths.check_canonical(path)
            created = make_node(NodeId.random(), path, document)
            self.new[created.id] = self._overlay[path] = created
            return
        changed = with_document(node, document)
        if node.id in self.new:
            self.new[node.id] = changed
        else:
            self.documents[node.id] = document
        self._overlay[path] = changed

    def delete(self, path: str) -> None:
        """Delete a node and all below it; nothing happens if there is none."""
        for node in list(self.within(path)):
            self._overlay[node.path] = None
            self.chunks.pop(node.id, None)
            self.linked.pop(node.id, None)
            self.documents.pop(node.id, None)
            if self.new.pop(node.id, None) is None:
                original = self.base.by_id(node.id)
                self.deleted[node.id] = original if original is not None else node
                self.places.pop(node.id, None)
                self._forget_place(node.path)
            elif self.base.get(node.path) is None:
                del self._overlay[node.path]

    def move(self, source: str, target: str) -> None:
        """Give a node, and all below it, another path."""
        node = self.get(source)
        if node is None:
            raise NodeNotFoundError(f"cannot move {source}: there is no node", source)
        if paths.ROOT in {source, target} or paths.is_within(target, source):
            raise InvalidInputError(f"cannot move {source} to {target}")
        if self.get(target) is not None or self.paths_below(target):
            raise AlreadyExistsError(f"cannot move {source} to {target}: the target exists")
        self._check_parent(source, target)
        moved = list(self.within(source))
        # A new dictionary that takes its place at once: readers see all nodes here or all there.
        overlay = dict(self._overlay)
        for old in moved:
            overlay[old.path] = None
            if self.base.get(old.path) is None:
                del overlay[old.path]
        for old in moved:
            path = target + old.path[len(source) :]
            placed = overlay[path] = old.evolve(path=path)
            original = self.base.by_id(old.id)
            if original is None:
                self.new[old.id] = placed
            elif original.path == path:
                del self.places[old.id]
            else:
                self.places[old.id] = path
        self._overlay = overlay

    def edits(self, node: ArrayNode) -> ChunkEdits:
        """The chunk edits of an array, to read or to add to."""
        from icefloe.changes.chunk_edits import ChunkEdits

        edits = self.chunks.get(node.id)
        if edits is None:
            edits = self.chunks[node.id] = ChunkEdits(node.array.rank)
        return edits

    def clear_chunks(self, node: ArrayNode) -> None:
        """Delete all chunks of an array."""
        self.linked.pop(node.id, None)
        if node.id in self.new:
            self.chunks.pop(node.id, None)
        elif node.manifests or node.id in self.chunks:
            self.edits(node).clear()

    def make_clears_explicit(self, chunks_of: Callable[[ArrayNode], ArrayChunks | None]) -> None:
        """Let "all chunks are deleted" mean those of the base; `chunks_of` reads them."""
        for node_id, edits in self.chunks.items():
            if edits.cleared:
                node = self.base.array_by_id(node_id)
                edits.make_explicit(None if node is None else chunks_of(node))

    def discard(self, path: str) -> None:
        """Forget the changes of all nodes at a path and below it, but for moves.

        New groups stay if a node was moved into them. Deleted nodes stay deleted if their path, or
        that of a group that they were in, has another node because of a move, or none.
        """
        parent = paths.parent(path)
        group = None if parent is None else self.get(parent)
        if parent is not None and group is None:
            return  # what was there is gone with what it was in
        taken = set(self.places.values())
        needed = {above for place in taken for above in paths.above(place)}
        taken.update(node.path for node in self.new.values() if node.path in needed)
        made = [
            each.id
            for each in self.new.values()
            if paths.is_within(each.path, path) and each.path not in needed
        ]
        moved = [key for key, place in self.places.items() if paths.is_within(place, path)]
        is_below_array = group is not None and group.is_array
        known = [
            each.id
            for place in (path, *self.base.paths_below(path))
            if (each := self.base.get(place)) is not None
            and each.id not in self.places
            and (each.id not in self.deleted or not (is_below_array or self._is_shut(each, taken)))
        ]
        for node_id in (*made, *moved, *known):
            for changes in (self.new, self.documents, self.deleted, self.chunks, self.linked):
                changes.pop(node_id, None)
        self.rebase(self.base)

    def _is_shut(self, node: Node, taken: Collection[str]) -> bool:
        """Whether other nodes were put at or above the path of a deleted node, or moved away."""
        if node.path in taken:
            return True
        for place in paths.above(node.path):
            group = self.base.get(place)
            if place in taken or (group is not None and group.id in self.places):
                return True
        return False

    def absorb(self, other: ChangeSet) -> None:
        """Add the changes of a cooperating session over the same base; later ones win.

        Raises AlreadyExistsError if both put different nodes at one path; then these changes are
        of no use any more.
        """
        from icefloe.changes.chunk_edits import ChunkEdits

        self.deleted.update(other.deleted)
        # What one session changed and another deleted is gone.
        gone = self.deleted.keys()
        self.documents = _without(gone, {**self.documents, **other.documents})
        self.places = _without(gone, {**self.places, **other.places})
        self.rebase(self.base)
        known_as = {node.id: self._adopt(node) for node in other.new.values()}
        for node_id, edits in other.chunks.items():
            mine = self.chunks.setdefault(known_as.get(node_id, node_id), ChunkEdits(edits.rank))
            mine.absorb(edits)
        self.chunks = _without(gone, self.chunks)
        for node_id, tiles in other.linked.items():
            if known_as.get(node_id, node_id) != node_id:
                # Their manifests name the node by the id that it had there.
                raise AlreadyExistsError(
                    f"cannot merge: a session linked manifests of {other.new[node_id].path}, which "
                    "another one created too; create nodes before you fork"
                )
            self.linked.setdefault(node_id, []).extend(tiles)
        self.linked = _without(gone, self.linked)

    def _adopt(self, node: Node) -> NodeId:
        """Add a node that another session created; returns the id that it has here."""
        from icefloe.changes.documents import same_document
        from icefloe.changes.groups import merged_document

        mine = self.get(node.path)
        if mine is None or mine.id == node.id:
            self.new[node.id] = self._overlay[node.path] = node
            return node.id
        same_group = not mine.is_array and not node.is_array
        if mine.id not in self.new or not (
            same_group or same_document(mine.document, node.document)
        ):
            raise AlreadyExistsError(
                f"cannot merge: sessions created different nodes at {node.path}; "
                "create nodes before you fork, so that the forks share them"
            )
        document = node.document
        if same_group:
            # Attributes of both stay; where they contradict each other, later ones win.
            document, _ = merged_document(mine.document, document)
        self.new[mine.id] = self._overlay[node.path] = make_node(mine.id, node.path, document)
        return mine.id

    def rebase(self, base: NodeTable) -> None:
        """Lay the changes over the nodes of another snapshot.

        Raises AlreadyExistsError if two nodes would have one path.
        """
        overlay: dict[str, Node | None] = {}
        placed: list[Node] = []
        for node_id in dict.fromkeys((*self.deleted, *self.places, *self.documents)):
            node = base.by_id(node_id)
            if node is None:
                continue
            path = self.places.get(node_id, node.path)
            if node_id in self.deleted or path != node.path:
                overlay[node.path] = None
            if node_id not in self.deleted:
                placed.append(self._with_changes(node, path))
        for node in (*placed, *self.new.values()):
            other = overlay[node.path] if node.path in overlay else base.get(node.path)
            if other is not None and other.id != node.id:
                raise AlreadyExistsError(f"two different nodes would be at {node.path}")
            overlay[node.path] = node
        self.base = base
        self._overlay = overlay
        # Where the base has a node already, there is no move.
        self.places = {
            node_id: path
            for node_id, path in self.places.items()
            if (node := base.by_id(node_id)) is None or node.path != path
        }

    def renumbered(self, numbers: Mapping[NodeId, NodeId]) -> ChangeSet:
        """A copy in which some of the new nodes have other ids."""
        twin = self.copy()
        twin.new = {
            numbers.get(node_id, node_id): node.evolve(id=numbers.get(node_id, node_id))
            for node_id, node in self.new.items()
        }
        twin.chunks = {numbers.get(node_id, node_id): e for node_id, e in twin.chunks.items()}
        twin.rebase(self.base)
        return twin

    def _with_changes(self, node: Node, path: str) -> Node:
        document = self.documents.get(node.id)
        if document is None:
            return node.evolve(path=path)
        changed = make_node(node.id, path, document)
        return changed.evolve(manifests=node.manifests) if changed.is_array else changed

    def net_moves(self) -> Iterator[Move]:
        """Moves since the base, without those implied by the move of a parent."""
        from icefloe.model.transaction_log import Move

        for node_id, target in self.places.items():
            original = self.base.by_id(node_id)
            if original is None:
                continue
            old_parent = self.base.get(paths.parent(original.path) or paths.ROOT)
            carried = self.places.get(old_parent.id) if old_parent is not None else None
            if carried is None or f"{carried}/{paths.name(original.path)}" != target:
                yield Move(node_id, original.path, target)

    def _check_parent(self, source: str, target: str) -> None:
        parent = paths.parent(target)
        node = None if parent is None else self.get(parent)
        if node is None or node.is_array:
            raise InvalidInputError(
                f"cannot move {source} to {target}: {parent} is not an existing group"
            )

    def _forget_place(self, path: str) -> None:
        """A deleted node that had been moved leaves no trace at its later path."""
        if self.base.get(path) is None:
            self._overlay.pop(path, None)

    # --- what a commit says about itself

    def log(self, touched: Mapping[NodeId, ChunkIndex]) -> TransactionLog:
        """The transaction log, given which chunks were set or deleted in each array."""
        from icefloe.model.transaction_log import TransactionLog

        arrays = {node_id for node_id, node in self.new.items() if node.is_array}
        # What others deleted too, before these changes were laid over theirs, is not ours to tell.
        deleted = [node for node_id in self.deleted if (node := self.base.by_id(node_id))]
        deleted_arrays = {node.id for node in deleted if node.is_array}
        updated_arrays = {
            node_id
            for node_id in self.documents
            if (node := self.base.by_id(node_id)) is not None and node.is_array
        }
        return TransactionLog(
            new_groups=frozenset(self.new.keys() - arrays),
            new_arrays=frozenset(arrays),
            deleted_groups=frozenset({node.id for node in deleted} - deleted_arrays),
            deleted_arrays=frozenset(deleted_arrays),
            updated_groups=frozenset(self.documents.keys() - updated_arrays),
            updated_arrays=frozenset(updated_arrays),
            updated_chunks=dict(touched),
            moves=tuple(self.net_moves()),
        )


def _without(gone: KeysView[NodeId], changed: dict[NodeId, _T]) -> dict[NodeId, _T]:
    return {node_id: value for node_id, value in changed.items() if node_id not in gone}
