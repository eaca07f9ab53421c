"""Snapshots of spec version 2: one MessagePack map of columns, compressed as a whole.

Reading one decodes no node: each is made from its row when it is first asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.columns import (
    ends_of,
    pack_integers,
    pack_list,
    unpack_boxes,
    unpack_column,
    unpack_integer,
)
from icefloe.formats.container import (
    bad_file,
    decode_msgpack,
    encode_msgpack,
)
from icefloe.formats.nodes import MAX_CHECKSUM, MAX_HISTORY, MAX_RANK, check_paths, load_node
from icefloe.model.ids import AttributesId, Identifier, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.node_columns import AttributesRef, NodeColumns, RefColumns
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import AttributesFileInfo, FileSum, Snapshot, SnapshotStub

if TYPE_CHECKING:
    from icefloe.model.node_columns import Column

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
    manifest_checksums: Any = 0
    """CRC-32C of each file; 0 for none."""
    sets: list[str] = []
    """Names of the manifest sets."""
    manifest_sets: Any = 0
    """Number of the set that each manifest is in, counted from 1; 0 for none."""
    attributes: bytes = b""
    """Ids of the attribute files, 12 bytes each."""
    attributes_sizes: Any = 0
    attributes_checksums: Any = 0
    """CRC-32C of each file; 0 for none."""
    log_file: tuple[int, int] | None = None
    """Size and CRC-32C of the transaction log."""
    parent_file: tuple[int, int] | None = None
    """Size and CRC-32C of the snapshot file of the parent."""
    paths: list[str] = []
    """Paths of the nodes, in ascending order."""
    nodes: bytes = b""
    """Ids of the nodes, 8 bytes each."""
    documents: bytes | memoryview = b""
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


class _StoredSnapshot(_Snapshot):
    """The same as it is read: the documents, most of the bytes, are not copied."""

    documents: memoryview = memoryview(b"")


_decoder = msgspec.msgpack.Decoder(_StoredSnapshot)


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
        manifest_checksums=_pack_checksums(snapshot.manifests),
        sets=sets,
        manifest_sets=pack_list(
            [sets.index(info.set_name) + 1 if info.set_name else 0 for info in snapshot.manifests]
        ),
        attributes=b"".join([info.id for info in snapshot.attribute_files]),
        attributes_sizes=pack_list([info.size_bytes for info in snapshot.attribute_files]),
        attributes_checksums=_pack_checksums(snapshot.attribute_files),
        log_file=_pack_sum(snapshot.log_file),
        parent_file=_pack_sum(snapshot.parent_file),
        paths=list(snapshot.nodes.paths),
        nodes=snapshot.nodes.columns().ids,
    )
    if packed.paths:
        _pack_nodes(packed, snapshot)
    return encode_msgpack(packed)


def _pack_nodes(packed: _Snapshot, snapshot: Snapshot) -> None:
    nodes = snapshot.nodes.columns()
    packed.documents = nodes.documents
    packed.document_sizes = _pack_lengths(nodes.document_ends)
    refs = nodes.refs
    if len(refs.numbers):
        numbers = {info.id: number for number, info in enumerate(snapshot.manifests)}
        listed = np.array([_number(numbers, m) for m in refs.manifests], dtype=np.int64)
        packed.refs = _pack_lengths(refs.ends)
        packed.ref_manifests = _pack(listed[refs.numbers])
        packed.ref_counts = _pack(refs.counts)
        packed.ref_ranks = _pack_lengths(refs.corners)
        packed.ref_lower = _pack(refs.lower)
        packed.ref_shapes = _pack(refs.shapes)
    outside = sorted(nodes.attributes.items())
    if outside:
        files = {info.id: number for number, info in enumerate(snapshot.attribute_files)}
        packed.outside_count = len(outside)
        packed.outside = pack_list([row for row, _ in outside])
        packed.outside_files = pack_list([_number(files, ref.file) for _, ref in outside])
        packed.outside_rows = pack_list([ref.row for _, ref in outside])
        packed.outside_positions = pack_list([ref.position for _, ref in outside])


def _pack(values: Column) -> Any:
    return pack_list(values) if isinstance(values, list) else pack_integers(values)


def _pack_lengths(ends: Column) -> Any:
    """Pack the lengths of parts of which it is known where they end."""
    if isinstance(ends, list):
        return pack_list(list(map(operator.sub, ends, [0, *ends])))
    return pack_integers(np.diff(ends, prepend=ends.dtype.type(0)))


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
        log_file=_unpack_sum(packed.log_file, key),
        parent_file=_unpack_sum(packed.parent_file, key),
    )


def _pack_checksums(infos: tuple[ManifestFileInfo, ...] | tuple[AttributesFileInfo, ...]) -> Any:
    checksums = [info.checksum for info in infos]
    return pack_list(checksums) if any(checksums) else 0


def _pack_sum(file: FileSum | None) -> tuple[int, int] | None:
    return None if file is None else (file.size_bytes, file.checksum)


def _unpack_sum(packed: tuple[int, int] | None, key: str) -> FileSum | None:
    if packed is None:
        return None
    size, checksum = packed
    return FileSum(unpack_integer(size, key), unpack_integer(checksum, key, limit=MAX_CHECKSUM))


def _unpack_manifests(packed: _Snapshot, key: str) -> tuple[ManifestFileInfo, ...]:
    ids = _unpack_ids(packed.manifests, ManifestId, key)
    if not ids:
        return ()
    sizes = unpack_column(packed.manifest_sizes, len(ids), key)
    counts = unpack_column(packed.manifest_counts, len(ids), key)
    numbers = unpack_column(packed.manifest_sets, len(ids), key, limit=len(packed.sets))
    sets = ["", *packed.sets]
    names = [sets[int(number)] for number in numbers]
    checksums = unpack_column(packed.manifest_checksums, len(ids), key, limit=MAX_CHECKSUM)
    return tuple(
        map(ManifestFileInfo, ids, map(int, sizes), map(int, counts), names, map(int, checksums))
    )


def _unpack_files(packed: _Snapshot, key: str) -> tuple[AttributesFileInfo, ...]:
    ids = _unpack_ids(packed.attributes, AttributesId, key)
    if not ids:
        return ()
    sizes = unpack_column(packed.attributes_sizes, len(ids), key)
    checksums = unpack_column(packed.attributes_checksums, len(ids), key, limit=MAX_CHECKSUM)
    return tuple(map(AttributesFileInfo, ids, map(int, sizes), map(int, checksums)))


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
    limit = len(packed.documents)
    ends = ends_of(unpack_column(packed.document_sizes, count, key, limit=limit))
    if (int(ends[-1]) if count else 0) != limit:
        raise bad_file(key, "the documents are not as long as their sizes say")
    columns = NodeColumns(
        paths=packed.paths,
        ids=packed.nodes,
        documents=packed.documents,
        document_ends=ends,
        refs=_unpack_refs(packed, manifests, key),
        attributes=_unpack_outside(packed, files, count, key),
    )
    return NodeTable.from_columns(columns, partial(load_node, key=key))


def _unpack_refs(
    packed: _Snapshot, manifests: tuple[ManifestFileInfo, ...], key: str
) -> RefColumns:
    count = len(packed.paths)
    ids = tuple([info.id for info in manifests])
    if packed.refs == 0:
        return RefColumns(
            ends=[0] * count, manifests=ids, numbers=[], counts=[], corners=[], lower=[], shapes=[]
        )
    refs = unpack_column(packed.refs, count, key, limit=max(len(ids), 1))
    ends = ends_of(refs)
    total = int(ends[-1]) if count else 0
    ranks = unpack_column(packed.ref_ranks, total, key, limit=MAX_RANK)
    return RefColumns(
        ends,
        ids,
        unpack_column(packed.ref_manifests, total, key, limit=len(ids) - 1),
        unpack_column(packed.ref_counts, total, key),
        ends_of(ranks),
        *unpack_boxes(packed.ref_lower, packed.ref_shapes, ranks, key),
    )


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
