"""Arrays and groups of a snapshot, and the sorted table that holds them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.model.chunk_index import Box
from icefloe.model.ids import AttributesId, ManifestId, NodeId
from icefloe.model.paths import child_prefix
from icefloe.model.record import Record
from icefloe.model.zarr_document import ArrayMetadata, parse_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class ManifestRef(Record, frozen=True, gc=False):
    """Where some of an array's chunk references are."""

    manifest_id: ManifestId
    extents: Box
    """Bounding box of the array's chunks in that manifest (R4-02)."""
    num_refs: int
    """Number of the array's references in that manifest (R4-77)."""


class AttributesRef(Record, frozen=True):
    """Where the attributes of a document are that was too large to stand in the snapshot (H-07).

    The snapshot keeps the document without the attributes' bytes; they belong at `position`.
    """

    file: AttributesId
    row: int
    position: int


class Node(Record, frozen=True):
    """An array or a group."""

    id: NodeId
    path: str
    document: bytes
    """The zarr.json, verbatim; without its attributes' bytes if `attributes` is set."""
    array: ArrayMetadata | None
    """Derived from the document; None for a group."""
    manifests: tuple[ManifestRef, ...] = ()
    attributes: AttributesRef | None = None

    @property
    def is_array(self) -> bool:
        """Whether this is an array."""
        return self.array is not None

    @property
    def num_refs(self) -> int:
        """Number of initialised chunks."""
        return sum(ref.num_refs for ref in self.manifests)

    def evolve(self, **changes: Any) -> Node:
        """A copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)


def make_node(node_id: NodeId, path: str, document: bytes) -> Node:
    """A node from its document; raises InvalidInputError if that is not valid."""
    return Node(node_id, path, document, parse_document(document, path))


class NodeTable:
    """The nodes of a snapshot, sorted by path; each is decoded when it is first asked for."""

    __slots__ = ("_by_id", "_load", "_loaded", "_node_ids", "paths")

    def __init__(
        self,
        paths: Sequence[str],
        node_ids: Sequence[NodeId],
        load: Callable[[int], Node],
    ) -> None:
        """Take ascending paths, the ids of their nodes, and how to decode the node of a row."""
        self.paths = paths
        self._node_ids = node_ids
        self._load = load
        self._loaded: dict[int, Node] = {}
        self._by_id: dict[NodeId, int] | None = None

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> NodeTable:
        """A table of nodes that exist already."""
        ordered = sorted(nodes, key=lambda node: node.path)
        return cls([n.path for n in ordered], [n.id for n in ordered], ordered.__getitem__)

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
            self._by_id = {node_id: row for row, node_id in enumerate(self._node_ids)}
        row = self._by_id.get(node_id)
        return None if row is None else self._at(row)

    def node_ids(self) -> Sequence[NodeId]:
        """Ids of all nodes, by path."""
        return self._node_ids

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
