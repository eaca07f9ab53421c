"""Arrays and groups of a snapshot, and the sorted table that holds them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import msgspec

from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model.ids import NodeId
from icefloe.model.node_columns import AttributesRef, ManifestRef, NodeColumns
from icefloe.model.paths import child_prefix
from icefloe.model.record import Record
from icefloe.model.zarr_document import ArrayMetadata, parse_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from icefloe.model.ids import AttributesId, ManifestId


__all__ = [
    "ArrayNode",
    "AttributesRef",
    "GroupNode",
    "ManifestRef",
    "Node",
    "NodeTable",
    "expect_array",
    "make_node",
    "make_stored_node",
]


class _Stored(Record, frozen=True, kw_only=True):
    """The common fields of arrays and groups."""

    id: NodeId
    path: str
    document: bytes
    """The zarr.json, verbatim; without the bytes of its attributes if `attributes` is set."""
    attributes: AttributesRef | None = None

    @property
    def outline(self) -> bytes:
        """The document as valid JSON, with empty attributes if these are in a file of their own.

        Enough for every other part of the metadata, without reading anything.
        """
        return _outline(self.document, self.attributes)

    def evolve(self, **changes: Any) -> Self:
        """Copy the node with some fields changed."""
        return msgspec.structs.replace(self, **changes)


class ArrayNode(_Stored, frozen=True, kw_only=True):
    """An array of a snapshot, and the manifests that hold its chunk references."""

    is_array: ClassVar[Literal[True]] = True
    array: ArrayMetadata
    """Derived from the document."""
    manifests: tuple[ManifestRef, ...] = ()

    @property
    def num_refs(self) -> int:
        """Number of initialised chunks."""
        return sum(ref.num_refs for ref in self.manifests)


class GroupNode(_Stored, frozen=True, kw_only=True):
    """A group of a snapshot."""

    is_array: ClassVar[Literal[False]] = False
    manifests: ClassVar[tuple[ManifestRef, ...]] = ()
    """A group has no chunks."""


Node = ArrayNode | GroupNode
"""A node of the hierarchy. `match`, `isinstance` or `is_array` tell the two apart."""

NodeMaker = Callable[[NodeId, str, bytes, tuple[ManifestRef, ...], AttributesRef | None], Node]
"""Makes a node of its id, path, document, manifests and attributes."""


def expect_array(
    node: Node | None, path: str, others: Callable[[], Iterable[str]] = tuple
) -> ArrayNode:
    """Return the node if it is an array; raise NodeNotFoundError for a group or no node.

    Args:
        node: What is at the path.
        path: The path that was asked for.
        others: The paths there are, for the message.
    """
    if node is None or not node.is_array:
        from icefloe.model.spelling import suggestion

        what = "does not exist" if node is None else "is a group"
        hint = suggestion(path, others()) if node is None else ""
        raise NodeNotFoundError(f"node not found: {path} {what}; expected an array{hint}", path)
    return node


def expect_node(node: Node | None, path: str, others: Callable[[], Iterable[str]]) -> Node:
    """Return the node at a path; raise NodeNotFoundError with names like it if there is none."""
    if node is None:
        from icefloe.model.spelling import suggestion

        near = suggestion(path, others())
        raise NodeNotFoundError(f"there is no array or group at {path}{near}", path)
    return node


def make_node(node_id: NodeId, path: str, document: bytes) -> Node:
    """Make a new node of its document; raises InvalidInputError if that is not valid."""
    array = parse_document(document, path)
    if array is None:
        return GroupNode(id=node_id, path=path, document=document)
    return ArrayNode(id=node_id, path=path, document=document, array=array)


def make_stored_node(
    node_id: NodeId,
    path: str,
    document: bytes,
    manifests: tuple[ManifestRef, ...],
    attributes: AttributesRef | None,
) -> Node:
    """Make a node as a snapshot has it; raises InvalidInputError if its parts contradict."""
    array = parse_document(_outline(document, attributes), path)
    if array is None:
        if manifests:
            raise InvalidInputError(f"the group {path} refers to chunks")
        return GroupNode(id=node_id, path=path, document=document, attributes=attributes)
    if any(ref.extents.rank != array.rank for ref in manifests):
        raise InvalidInputError(f"extents of {path} have another rank than the array")
    return ArrayNode(
        id=node_id,
        path=path,
        document=document,
        array=array,
        manifests=manifests,
        attributes=attributes,
    )


def _outline(document: bytes, attributes: AttributesRef | None) -> bytes:
    """Put empty attributes where those are missing that are in a file (H-07)."""
    if attributes is None:
        return document
    return document[: attributes.position] + b"{}" + document[attributes.position :]


class NodeTable:
    """The nodes of a snapshot, sorted by path; each is decoded when it is first asked for."""

    __slots__ = ("_by_id", "_columns", "_load", "_loaded", "_make", "_node_ids", "paths")

    def __init__(
        self,
        paths: Sequence[str],
        node_ids: Sequence[NodeId],
        load: Callable[[int], Node],
    ) -> None:
        """Take ascending paths, the ids of their nodes, and how to decode the node of a row."""
        self.paths = paths
        self._node_ids: Sequence[NodeId] | None = node_ids
        self._load = load
        self._make: NodeMaker = make_stored_node
        self._loaded: dict[int, Node] = {}
        self._by_id: Mapping[bytes, int] | None = None
        self._columns: NodeColumns | None = None

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> NodeTable:
        """A table of nodes that exist already."""
        ordered = sorted(nodes, key=lambda node: node.path)
        return cls([n.path for n in ordered], [n.id for n in ordered], ordered.__getitem__)

    @classmethod
    def from_columns(
        cls, columns: NodeColumns, make: NodeMaker, loaded: dict[int, Node] | None = None
    ) -> NodeTable:
        """A table of columns, how a node is made of its parts, and nodes that exist already."""

        def load(row: int) -> Node:
            return make(
                columns.id_at(row),
                columns.paths[row],
                columns.document_at(row),
                columns.refs.at(row),
                columns.attributes.get(row),
            )

        table = cls(columns.paths, (), load)
        table._node_ids = None
        table._columns = columns
        table._make = make
        table._loaded = loaded or {}
        return table

    def columns(self) -> NodeColumns:
        """All nodes as columns; quick where the table came from columns."""
        if self._columns is None:
            self._columns = NodeColumns.of(list(self))
        return self._columns

    def renamed(
        self,
        manifests: Mapping[ManifestId, ManifestId],
        attributes: Mapping[AttributesId, AttributesId] = MappingProxyType({}),
    ) -> NodeTable:
        """The same nodes, but that they refer to files that took the place of others."""
        if not manifests and not attributes:
            return self
        old = self.columns()
        columns = old._replace(
            refs=old.refs.renamed(manifests),
            attributes={
                row: msgspec.structs.replace(ref, file=attributes.get(ref.file, ref.file))
                for row, ref in old.attributes.items()
            },
        )
        loaded = {
            row: node
            for row, node in self._loaded.copy().items()
            if not any(ref.manifest_id in manifests for ref in node.manifests)
            and (node.attributes is None or node.attributes.file not in attributes)
        }
        return NodeTable.from_columns(columns, self._make, loaded)

    def spliced(self, edits: Mapping[str, Node | None]) -> NodeTable:
        """A table with other nodes, or none, at some paths. Costs little for all other nodes."""
        if not edits:
            return self
        if not len(self.paths):
            return NodeTable.of([node for node in edits.values() if node is not None])
        columns, order, new = self.columns().spliced(edits)
        # What was decoded once need not be again. A copy: other threads may load more meanwhile.
        known = self._loaded.copy()
        known.update(enumerate(new, len(self.paths)))
        loaded = {row: known[old] for row, old in enumerate(order) if old in known}
        return NodeTable.from_columns(columns, self._make, loaded)

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Node]:
        return (self._at(row) for row in range(len(self.paths)))

    def _at(self, row: int) -> Node:
        node = self._loaded.get(row)
        if node is None:
            node = self._loaded[row] = self._load(row)
        return node

    def get(self, path: str) -> Node | None:
        """The node at a path."""
        row = bisect_left(self.paths, path)
        if row < len(self.paths) and self.paths[row] == path:
            return self._at(row)
        return None

    def by_id(self, node_id: NodeId) -> Node | None:
        """The node with an id."""
        if self._by_id is None:
            self._by_id = self._rows_by_id()
        row = self._by_id.get(node_id)
        return None if row is None else self._at(row)

    def array_by_id(self, node_id: NodeId) -> ArrayNode | None:
        """The array with an id; None if no array has it."""
        node = self.by_id(node_id)
        return node if node is not None and node.is_array else None

    def _rows_by_id(self) -> Mapping[bytes, int]:
        if self._node_ids is not None:
            return {node_id: row for row, node_id in enumerate(self._node_ids)}
        ids, size = self.columns().ids, NodeId.SIZE
        return {ids[row * size : (row + 1) * size]: row for row in range(len(self.paths))}

    def node_ids(self) -> Sequence[NodeId]:
        """Ids of all nodes, by path."""
        if self._node_ids is None:
            self._node_ids = list(map(self.columns().id_at, range(len(self.paths))))
        return self._node_ids

    def users_of(self, manifest_id: ManifestId) -> list[NodeId]:
        """Ids of the arrays that refer to a manifest."""
        columns = self.columns()
        return list(map(columns.id_at, columns.refs.users_of(manifest_id)))

    def within(self, path: str) -> Iterator[Node]:
        """The node at a path, if any, and all below it."""
        node = self.get(path)
        if node is not None:
            yield node
        yield from self.below(path)

    def below(self, path: str) -> Iterator[Node]:
        """All descendants of a path, in order."""
        return (self._at(row) for row in self._rows_below(path))

    def paths_below(self, path: str) -> Sequence[str]:
        """Paths of all descendants, in order."""
        rows = self._rows_below(path)
        return self.paths[rows.start : rows.stop]

    def _rows_below(self, path: str) -> range:
        prefix = child_prefix(path)
        first = bisect_left(self.paths, prefix)
        if prefix == "/":
            # The root itself sorts first among the paths that start with a slash.
            first += first < len(self.paths) and self.paths[first] == "/"
            return range(first, len(self.paths))
        # '0' follows '/' in Unicode, so this bounds everything that starts with the prefix.
        return range(first, bisect_left(self.paths, prefix[:-1] + "0", lo=first))
