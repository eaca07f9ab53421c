"""The nodes of a snapshot as columns, which are read and edited without an object for each node."""

from __future__ import annotations

import operator
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icefloe.model.chunk_index import Box
from icefloe.model.ids import AttributesId, ManifestId, NodeId
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from icefloe.model.nodes import Node

    Column = list[int] | npt.NDArray[np.integer]

_ID = NodeId.SIZE


class ManifestRef(Record, frozen=True, gc=False):
    """Where some of an array's chunk references are."""

    manifest_id: ManifestId
    extents: Box
    """Bounding box of the array's chunks in that manifest (R4-02)."""
    num_refs: int
    """Number of the array's references in that manifest (R4-77)."""


class AttributesRef(Record, frozen=True):
    """The file with the attributes of a document that was too large for the snapshot (H-07).

    The snapshot keeps the document without the attributes' bytes; they belong at `position`.
    """

    file: AttributesId
    row: int
    position: int


class RefColumns(NamedTuple):
    """The manifest references of all nodes, end to end."""

    ends: Column
    """Where the references of each node end."""
    manifests: Sequence[ManifestId]
    """The manifests that there are references to, each once."""
    numbers: Column
    """Which of the manifests each reference is to."""
    counts: Column
    corners: Column
    """Where the extents of each reference end in the next two."""
    lower: Column
    shapes: Column

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> RefColumns:
        """The references of nodes that exist already."""
        refs = [ref for node in nodes for ref in node.manifests]
        places: dict[ManifestId, int] = {}
        numbers = [places.setdefault(ref.manifest_id, len(places)) for ref in refs]
        return cls(
            list(accumulate([len(node.manifests) for node in nodes])),
            tuple(places),
            numbers,
            [ref.num_refs for ref in refs],
            list(accumulate([ref.extents.rank for ref in refs])),
            [low for ref in refs for low in ref.extents.lower],
            [extent for ref in refs for extent in ref.extents.shape],
        )

    def at(self, row: int) -> tuple[ManifestRef, ...]:
        """The references of the node of a row."""
        start = int(self.ends[row - 1]) if row else 0
        return tuple(map(self._ref, range(start, int(self.ends[row]))))

    def _ref(self, at: int) -> ManifestRef:
        start = int(self.corners[at - 1]) if at else 0
        stop = int(self.corners[at])
        lower = tuple(map(int, self.lower[start:stop]))
        shape = map(int, self.shapes[start:stop])
        box = Box(lower, tuple(map(operator.add, lower, shape)))
        return ManifestRef(self.manifests[int(self.numbers[at])], box, int(self.counts[at]))

    def used_manifests(self) -> set[ManifestId]:
        """The manifests that some node refers to."""
        is_used = _flags(_int64(self.numbers), len(self.manifests))
        return {self.manifests[number] for number in np.flatnonzero(is_used).tolist()}

    def users_of(self, manifest_id: ManifestId) -> list[int]:
        """Rows of the nodes that refer to a manifest."""
        if manifest_id not in self.manifests:
            return []
        at = np.flatnonzero(np.asarray(self.numbers) == self.manifests.index(manifest_id))
        rows = np.searchsorted(_int64(self.ends), at, side="right")
        return list(dict.fromkeys(rows.tolist()))

    def all_alone(self, rows: Sequence[int]) -> bool:
        """Whether each of some nodes has exactly one reference."""
        return bool((_lengths(self.ends)[list(rows)] == 1).all())

    def counts_of(self, rows: Sequence[int]) -> list[int]:
        """Number of chunks behind the first reference of each of some nodes, which all have one."""
        starts = (_int64(self.ends) - _lengths(self.ends))[list(rows)]
        counts: list[int] = _int64(self.counts)[starts].tolist()
        return counts

    def renamed(self, manifests: Mapping[ManifestId, ManifestId]) -> RefColumns:
        """The same references to manifests that were replaced."""
        return self._replace(manifests=tuple([manifests.get(m, m) for m in self.manifests]))

    def spliced(self, added: RefColumns, order: npt.NDArray[np.int64]) -> RefColumns:
        """The references of the rows `order`, where those of `added` come after these."""
        places = {manifest_id: number for number, manifest_id in enumerate(self.manifests)}
        renumbered = [places.setdefault(m, len(places)) for m in added.manifests]
        new_numbers = np.array(renumbered, dtype=np.int64)[_int64(added.numbers)]
        lengths = np.append(_lengths(self.ends), _lengths(added.ends))
        chosen = _ragged(lengths, order)
        ranks = np.append(_lengths(self.corners), _lengths(added.corners))
        corners = _ragged(ranks, chosen)
        numbers = np.append(_int64(self.numbers), new_numbers)[chosen]
        # Only what is still used, or the list would grow from commit to commit.
        is_used = _flags(numbers, len(places))
        numbers = (np.cumsum(is_used) - 1)[numbers]
        manifests = tuple(places)
        return RefColumns(
            ends=np.cumsum(lengths[order]),
            manifests=tuple([manifests[number] for number in np.flatnonzero(is_used).tolist()]),
            numbers=numbers,
            counts=np.append(_int64(self.counts), _int64(added.counts))[chosen],
            corners=np.cumsum(ranks[chosen]),
            lower=np.append(_int64(self.lower), _int64(added.lower))[corners],
            shapes=np.append(_int64(self.shapes), _int64(added.shapes))[corners],
        )


class NodeColumns(NamedTuple):
    """All nodes of a snapshot, in order of their paths."""

    paths: Sequence[str]
    ids: bytes
    """End to end."""
    documents: bytes | memoryview
    """End to end."""
    document_ends: Column
    refs: RefColumns
    attributes: Mapping[int, AttributesRef]
    """By the row of the node."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> NodeColumns:
        """Columns of nodes that exist already, in order of their paths."""
        return cls(
            [node.path for node in nodes],
            b"".join([node.id for node in nodes]),
            b"".join([node.document for node in nodes]),
            list(accumulate([len(node.document) for node in nodes])),
            RefColumns.of(nodes),
            {row: node.attributes for row, node in enumerate(nodes) if node.attributes},
        )

    def id_at(self, row: int) -> NodeId:
        """The id of the node of a row."""
        return NodeId(self.ids[row * _ID : (row + 1) * _ID])

    def document_at(self, row: int) -> bytes:
        """The document of the node of a row."""
        return bytes(self.documents[self._document_start(row) : self._document_start(row + 1)])

    def _document_start(self, row: int) -> int:
        return int(self.document_ends[row - 1]) if row else 0

    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Number of bytes of each document."""
        return _lengths(self.document_ends)

    def spliced(
        self, edits: Mapping[str, Node | None]
    ) -> tuple[NodeColumns, list[int], list[Node]]:
        """Columns with other nodes, or none, at some paths; the rest is copied as it is.

        Also returns for each row which one of this table it was or, counted on from there, which
        one of the new nodes; and these.
        """
        paths: list[str] = []
        ids: list[bytes] = []
        documents: list[bytes | memoryview] = []
        rows: list[int] = []
        new: list[Node] = []
        for start, stop, node in _runs(self.paths, edits):
            paths += self.paths[start:stop]
            ids.append(self.ids[start * _ID : stop * _ID])
            documents.append(
                self.documents[self._document_start(start) : self._document_start(stop)]
            )
            rows += range(start, stop)
            if node is not None:
                paths.append(node.path)
                ids.append(node.id)
                documents.append(node.document)
                rows.append(len(self.paths) + len(new))
                new.append(node)
        order = np.array(rows, dtype=np.int64)
        added = NodeColumns.of(new)
        sizes = np.append(self.document_lengths(), added.document_lengths())
        columns = NodeColumns(
            paths=paths,
            ids=b"".join(ids),
            documents=b"".join(documents),
            document_ends=np.cumsum(sizes[order]),
            refs=self.refs.spliced(added.refs, order),
            attributes=self._spliced_attributes(added, rows),
        )
        return columns, rows, new

    def _spliced_attributes(self, added: NodeColumns, rows: list[int]) -> dict[int, AttributesRef]:
        if not self.attributes and not added.attributes:
            return {}
        shift = len(self.paths)
        refs = {**self.attributes, **{shift + row: ref for row, ref in added.attributes.items()}}
        return {row: refs[old] for row, old in enumerate(rows) if old in refs}


class _Run(NamedTuple):
    """Rows that stay, and the new node after them."""

    start: int
    stop: int
    node: Node | None


def _runs(paths: Sequence[str], edits: Mapping[str, Node | None]) -> list[_Run]:
    runs = []
    at = 0
    for path in sorted(edits):
        place = bisect_left(paths, path, lo=at)
        runs.append(_Run(at, place, edits[path]))
        at = place + (place < len(paths) and paths[place] == path)
    return [*runs, _Run(at, len(paths), None)]


def _int64(column: Column) -> npt.NDArray[np.int64]:
    return np.asarray(column, dtype=np.int64)


def _flags(numbers: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    """Which of `count` things are among some numbers (np.unique loads much at its first use)."""
    flags = np.zeros(count, dtype=np.bool_)
    flags[numbers] = True
    return flags


def _lengths(ends: Column) -> npt.NDArray[np.int64]:
    """Lengths of parts of which it is known where they end."""
    return np.diff(_int64(ends), prepend=np.int64(0))


def _ragged(lengths: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the items of chosen parts are, if the parts are contiguous."""
    starts = np.cumsum(lengths) - lengths
    taken = lengths[chosen]
    ends = np.cumsum(taken)
    total = int(ends[-1]) if len(ends) else 0
    items: npt.NDArray[np.int64] = np.repeat(starts[chosen] - (ends - taken), taken)
    items += np.arange(total)
    return items
