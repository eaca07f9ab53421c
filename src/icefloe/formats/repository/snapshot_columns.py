"""Snapshots of spec version 2: one MessagePack map of columns, compressed as a whole.

Reading one decodes no node: each is made from its row when it is first asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.formats.container import (
    bad_file,
    decode_msgpack,
    encode_msgpack,
)
from icefloe.formats.repository.columns import (
    ends_of,
    pack_list,
    unpack_boxes,
    unpack_column,
    unpack_integer,
)
from icefloe.formats.repository.manifest_columns import MAX_RANK
from icefloe.model.chunk_index import Box
from icefloe.model.ids import AttributesId, Identifier, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable
from icefloe.model.paths import ROOT
from icefloe.model.snapshot import AttributesFileInfo, Snapshot, SnapshotStub
from icefloe.model.zarr_document import parse_document

if TYPE_CHECKING:
    from icefloe.formats.repository.columns import Column

MAX_HISTORY = 16
"""Ancestors that a snapshot remembers; older ones are found through them (H-15)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_TIME = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

_Id = TypeVar("_Id", bound=Identifier)


class _Snapshot(msgspec.Struct, omit_defaults=True):
    """The map. Columns are as in `columns`; an absent one is all zeros."""

    id: bytes
    written: int
    """Times are microseconds since 1970, UTC."""
    started: int
    message: str
    parent: bytes | None = None
    metadata: dict[str, Any] = {}
    parents: int = 0
    """Number of ancestors."""
    history: list[tuple[bytes, int, str]] = []
    """Id, time and message of the nearest ancestors, newest first."""
    manifests: bytes = b""
    """Ids of the manifests, 12 bytes each."""
    manifest_sizes: Any = 0
    manifest_counts: Any = 0
    sets: list[str] = []
    """Names of the manifest sets."""
    manifest_sets: Any = 0
    """Number of the set that each manifest is in, counted from 1; 0 for none."""
    attributes: bytes = b""
    """Ids of the attribute files, 12 bytes each."""
    attributes_sizes: Any = 0
    paths: list[str] = []
    """Paths of the nodes, in ascending order."""
    nodes: bytes = b""
    """Ids of the nodes, 8 bytes each."""
    documents: bytes = b""
    """The zarr.json of the nodes, end to end."""
    document_sizes: Any = 0
    refs: Any = 0
    """Number of manifests that each node refers to; the next columns have a row for each."""
    ref_manifests: Any = 0
    """Number of the manifest in the list above."""
    ref_counts: Any = 0
    """Number of the node's references in it."""
    ref_ranks: Any = 0
    ref_lower: Any = 0
    """Lower corners of the extents, end to end."""
    ref_shapes: Any = 0
    outside: Any = 0
    """Nodes whose attributes are in attribute files; the next columns have a row for each."""
    outside_count: int = 0
    outside_files: Any = 0
    """Number of the attribute file in the list above."""
    outside_rows: Any = 0
    outside_positions: Any = 0
    """Where in the document the attributes belong."""


_decoder = msgspec.msgpack.Decoder(_Snapshot)


def microseconds(time: datetime) -> int:
    """A time as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def from_microseconds(value: int, key: str) -> datetime:
    """A time from microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=unpack_integer(value, key, limit=_LAST_TIME))


# --- encoding


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Body of a snapshot file."""
    sets = sorted({info.set_name for info in snapshot.manifests if info.set_name})
    packed = _Snapshot(
        id=bytes(snapshot.id),
        written=microseconds(snapshot.written_at),
        started=microseconds(snapshot.started_at),
        message=snapshot.message,
        parent=None if snapshot.parent_id is None else bytes(snapshot.parent_id),
        metadata=snapshot.metadata,
        parents=snapshot.total_parents,
        history=[
            (bytes(stub.id), microseconds(stub.written_at), stub.message)
            for stub in snapshot.history[:MAX_HISTORY]
        ],
        manifests=b"".join([info.id for info in snapshot.manifests]),
        manifest_sizes=pack_list([info.size_bytes for info in snapshot.manifests]),
        manifest_counts=pack_list([info.num_chunk_refs for info in snapshot.manifests]),
        sets=sets,
        manifest_sets=pack_list(
            [sets.index(info.set_name) + 1 if info.set_name else 0 for info in snapshot.manifests]
        ),
        attributes=b"".join([info.id for info in snapshot.attribute_files]),
        attributes_sizes=pack_list([info.size_bytes for info in snapshot.attribute_files]),
        paths=list(snapshot.nodes.paths),
        nodes=b"".join(snapshot.nodes.node_ids()),
    )
    if packed.paths:
        _pack_nodes(packed, snapshot)
    return encode_msgpack(packed)


def _pack_nodes(packed: _Snapshot, snapshot: Snapshot) -> None:
    nodes = list(snapshot.nodes)
    packed.documents = b"".join([node.document for node in nodes])
    packed.document_sizes = pack_list([len(node.document) for node in nodes])
    numbers = {info.id: number for number, info in enumerate(snapshot.manifests)}
    refs = [ref for node in nodes for ref in node.manifests]
    if refs:
        packed.refs = pack_list([len(node.manifests) for node in nodes])
        packed.ref_manifests = pack_list([_number(numbers, ref.manifest_id) for ref in refs])
        packed.ref_counts = pack_list([ref.num_refs for ref in refs])
        packed.ref_ranks = pack_list([ref.extents.rank for ref in refs])
        packed.ref_lower = pack_list([low for ref in refs for low in ref.extents.lower])
        packed.ref_shapes = pack_list([extent for ref in refs for extent in ref.extents.shape])
    outside = [(row, node.attributes) for row, node in enumerate(nodes) if node.attributes]
    if outside:
        files = {info.id: number for number, info in enumerate(snapshot.attribute_files)}
        packed.outside_count = len(outside)
        packed.outside = pack_list([row for row, _ in outside])
        packed.outside_files = pack_list([_number(files, ref.file) for _, ref in outside])
        packed.outside_rows = pack_list([ref.row for _, ref in outside])
        packed.outside_positions = pack_list([ref.position for _, ref in outside])


def _number(numbers: dict[_Id, int], identifier: _Id) -> int:
    number = numbers.get(identifier)
    if number is None:
        # R1-29, R1-30: the snapshot lists every file that its nodes point to.
        raise InvalidInputError(
            f"a node refers to {identifier!r}, which the snapshot does not list"
        )
    return number


# --- decoding


class _Ids(Sequence[_Id]):
    """Ids in one buffer; each is made when it is asked for."""

    __slots__ = ("_data", "_kind")

    def __init__(self, data: bytes, kind: type[_Id]) -> None:
        self._data = data
        self._kind = kind

    def __len__(self) -> int:
        return len(self._data) // self._kind.SIZE

    def __iter__(self) -> Iterator[_Id]:
        kind, data, size = self._kind, self._data, self._kind.SIZE
        return (kind(data[at : at + size]) for at in range(0, len(data), size))

    @overload
    def __getitem__(self, row: int) -> _Id: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[_Id]: ...
    def __getitem__(self, row: int | slice) -> _Id | Sequence[_Id]:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        size = self._kind.SIZE
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._kind(self._data[row * size : (row + 1) * size])


def _unpack_ids(data: bytes, kind: type[_Id], key: str) -> _Ids[_Id]:
    if len(data) % kind.SIZE:
        raise bad_file(key, f"{len(data)} bytes cannot be a column of {kind.__name__}s")
    return _Ids(data, kind)


def _unpack_id(data: bytes, kind: type[_Id], key: str) -> _Id:
    if len(data) != kind.SIZE:
        raise bad_file(key, f"a {kind.__name__} has {kind.SIZE} bytes, found {len(data)}")
    return kind(data)


def decode_snapshot(body: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
    """Read the body of a snapshot file."""
    packed = decode_msgpack(_decoder, body, key)
    if packed.id != snapshot_id:
        found = _unpack_id(packed.id, SnapshotId, key)
        raise bad_file(key, f"expected snapshot {snapshot_id}, found {found} under its name")
    manifests = _unpack_manifests(packed, key)
    files = _unpack_files(packed, key)
    parent = None if packed.parent is None else _unpack_id(packed.parent, SnapshotId, key)
    history = tuple(
        SnapshotStub(_unpack_id(data, SnapshotId, key), from_microseconds(time, key), message)
        for data, time, message in packed.history
    )
    if parent == snapshot_id or any(stub.id == snapshot_id for stub in history):
        raise bad_file(key, "the snapshot is among its own ancestors")
    if history and history[0].id != parent:
        raise bad_file(key, "the history does not start with the parent")
    return Snapshot(
        id=snapshot_id,
        parent_id=parent,
        written_at=from_microseconds(packed.written, key),
        started_at=from_microseconds(packed.started, key),
        message=packed.message,
        metadata=packed.metadata,
        total_parents=unpack_integer(packed.parents, key),
        history=history,
        manifests=manifests,
        attribute_files=files,
        nodes=_unpack_nodes(packed, manifests, files, key),
    )


def _unpack_manifests(packed: _Snapshot, key: str) -> tuple[ManifestFileInfo, ...]:
    ids = _unpack_ids(packed.manifests, ManifestId, key)
    if not ids:
        return ()
    sizes = unpack_column(packed.manifest_sizes, len(ids), key)
    counts = unpack_column(packed.manifest_counts, len(ids), key)
    numbers = unpack_column(packed.manifest_sets, len(ids), key, limit=len(packed.sets))
    sets = ["", *packed.sets]
    names = [sets[int(number)] for number in numbers]
    return tuple(map(ManifestFileInfo, ids, map(int, sizes), map(int, counts), names))


def _unpack_files(packed: _Snapshot, key: str) -> tuple[AttributesFileInfo, ...]:
    ids = _unpack_ids(packed.attributes, AttributesId, key)
    sizes = unpack_column(packed.attributes_sizes, len(ids), key)
    return tuple(map(AttributesFileInfo, ids, map(int, sizes)))


_NOT_CANONICAL = ("//", "/./", "/../", "/\0", "/.\0", "/..\0")


def check_paths(paths: list[str], key: str) -> None:
    """Paths ascend, so that they can be searched, and are canonical (R2-35)."""
    if not all(map(operator.lt, paths, paths[1:])):
        raise bad_file(key, "the paths of the nodes are not in order")
    below_root = paths[1:] if paths[:1] == [ROOT] else paths
    joined = "\0" + "\0".join(below_root) + "\0"
    count = len(below_root)
    if count and (
        joined.count("\0/") != count
        or joined.count("\0") != count + 1
        or any(part in joined for part in _NOT_CANONICAL)
    ):
        raise bad_file(key, "a node has a path that is not canonical")


class _Nodes:
    """The columns of the nodes, and how one node is made of them."""

    __slots__ = (
        "attributes",
        "corners",
        "counts",
        "documents",
        "ends",
        "ids",
        "key",
        "lower",
        "manifests",
        "numbers",
        "paths",
        "refs",
        "shapes",
    )

    paths: list[str]
    ids: _Ids[NodeId]
    key: str
    documents: bytes
    ends: Column
    """Where each document ends."""
    refs: Column | None
    """Where the manifest references of each node end; None if there are none."""
    manifests: tuple[ManifestFileInfo, ...]
    numbers: Column
    counts: Column
    corners: Column
    """Where the extents of each reference end."""
    lower: Column
    shapes: Column
    attributes: dict[int, AttributesRef]

    def load(self, row: int) -> Node:
        """Make the node of a row."""
        start = int(self.ends[row - 1]) if row else 0
        document = self.documents[start : int(self.ends[row])]
        attributes = self.attributes.get(row)
        return load_node(
            self.ids[row], self.paths[row], document, self._refs(row), attributes, self.key
        )

    def _refs(self, row: int) -> tuple[ManifestRef, ...]:
        if self.refs is None:
            return ()
        start = int(self.refs[row - 1]) if row else 0
        return tuple(self._ref(at) for at in range(start, int(self.refs[row])))

    def _ref(self, at: int) -> ManifestRef:
        start = int(self.corners[at - 1]) if at else 0
        stop = int(self.corners[at])
        lower = list(map(int, self.lower[start:stop]))
        shape = map(int, self.shapes[start:stop])
        box = Box(tuple(lower), tuple(map(operator.add, lower, shape)))
        return ManifestRef(self.manifests[int(self.numbers[at])].id, box, int(self.counts[at]))


def load_node(
    node_id: NodeId,
    path: str,
    document: bytes,
    manifests: tuple[ManifestRef, ...],
    attributes: AttributesRef | None,
    key: str,
) -> Node:
    """A node of a snapshot, its document parsed; raises FormatError if that is not valid."""
    whole = document
    if attributes is not None:
        # H-07: the document lacks its attributes, which nothing here needs.
        at = attributes.position
        whole = document[:at] + b"{}" + document[at:]
    try:
        array = parse_document(whole, path)
    except InvalidInputError as error:
        raise bad_file(key, str(error)) from None
    if array is None and manifests:
        raise bad_file(key, f"the group {path} refers to chunks")
    if array is not None and any(ref.extents.rank != array.rank for ref in manifests):
        raise bad_file(key, f"extents of {path} have another rank than the array")
    return Node(node_id, path, document, array, manifests, attributes)


def _unpack_nodes(
    packed: _Snapshot,
    manifests: tuple[ManifestFileInfo, ...],
    files: tuple[AttributesFileInfo, ...],
    key: str,
) -> NodeTable:
    count = len(packed.paths)
    ids = _unpack_ids(packed.nodes, NodeId, key)
    if len(ids) != count:
        raise bad_file(key, f"there are {count} paths, but {len(ids)} node ids")
    check_paths(packed.paths, key)
    nodes = _Nodes()
    nodes.paths, nodes.ids, nodes.key = packed.paths, ids, key
    nodes.documents, nodes.manifests = packed.documents, manifests
    limit = len(packed.documents)
    nodes.ends = ends_of(unpack_column(packed.document_sizes, count, key, limit=limit))
    if (int(nodes.ends[-1]) if count else 0) != limit:
        raise bad_file(key, "the documents are not as long as their sizes say")
    _unpack_refs(packed, nodes, key)
    nodes.attributes = _unpack_outside(packed, files, count, key)
    return NodeTable(packed.paths, ids, nodes.load)


def _unpack_refs(packed: _Snapshot, nodes: _Nodes, key: str) -> None:
    nodes.refs = None
    if packed.refs == 0:
        return
    manifests = len(nodes.manifests)
    refs = unpack_column(packed.refs, len(nodes.paths), key, limit=max(manifests, 1))
    nodes.refs = ends_of(refs)
    total = int(nodes.refs[-1]) if len(refs) else 0
    nodes.numbers = unpack_column(packed.ref_manifests, total, key, limit=manifests - 1)
    nodes.counts = unpack_column(packed.ref_counts, total, key)
    ranks = unpack_column(packed.ref_ranks, total, key, limit=MAX_RANK)
    nodes.corners = ends_of(ranks)
    nodes.lower, nodes.shapes = unpack_boxes(packed.ref_lower, packed.ref_shapes, ranks, key)


def _unpack_outside(
    packed: _Snapshot, files: tuple[AttributesFileInfo, ...], count: int, key: str
) -> dict[int, AttributesRef]:
    if packed.outside_count == 0:
        return {}
    rows = unpack_integer(packed.outside_count, key, limit=count)
    nodes = unpack_column(packed.outside, rows, key, limit=count - 1)
    numbers = unpack_column(packed.outside_files, rows, key, limit=len(files) - 1)
    places = unpack_column(packed.outside_rows, rows, key, limit=2**32 - 1)
    positions = unpack_column(packed.outside_positions, rows, key, limit=len(packed.documents))
    return {
        int(node): AttributesRef(files[int(number)].id, int(place), int(position))
        for node, number, place, position in zip(nodes, numbers, places, positions, strict=True)
    }
