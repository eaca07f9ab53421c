"""Snapshots of both versions: nodes, manifests and metadata as columns."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.columns import MAX_VALUE
from icefloe.formats.container import decode_msgpack, encode_msgpack
from icefloe.formats.icechunk import flexbuffers
from icefloe.formats.icechunk.builder import OFFSET, Builder
from icefloe.formats.icechunk.tables import Body, distinct
from icefloe.formats.nodes import MAX_RANK, check_paths, load_node
from icefloe.formats.snapshot_columns import from_microseconds, microseconds
from icefloe.model.ids import ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.node_columns import NodeColumns, RefColumns
from icefloe.model.nodes import NodeTable
from icefloe.model.snapshot import Snapshot
from icefloe.model.zarr_document import parse_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from icefloe.formats.icechunk.builder import TableRecords
    from icefloe.formats.icechunk.tables import Positions, Tables
    from icefloe.model.zarr_document import ArrayMetadata

_ARRAY, _GROUP = 1, 2
"""Numbers of the union of kinds of nodes."""
_MANIFEST_FILE = np.dtype(
    {"names": ["id", "size", "count"], "formats": ["V12", "<u8", "<u4"],
     "offsets": [0, 16, 24], "itemsize": 32}
)  # fmt: skip
_RANGE = np.dtype([("from", "<u4"), ("to", "<u4")])
_DIMENSION = np.dtype([("length", "<u8"), ("chunk", "<u8")])
MAX_CHUNKS = 2**32 - 1
"""The most chunks along a dimension."""

_metadata_decoder = msgspec.msgpack.Decoder()


# --- decoding


def decode_snapshot(data: bytes, version: int, snapshot_id: SnapshotId, key: str) -> Snapshot:
    """Read the body of a snapshot file; what only `repo` knows of it is left out."""
    body = Body(data, key)
    root = body.root()
    found = SnapshotId(root.ids(0, SnapshotId.SIZE, "the id").tobytes())
    if found != snapshot_id:
        raise body.bad(f"expected snapshot {snapshot_id}, found {found} under its name")
    parent = None
    if root.has(1).all():
        parent = SnapshotId(root.ids(1, SnapshotId.SIZE, "the parent").tobytes())
        if parent == snapshot_id:
            raise body.bad("the snapshot is its own parent")
    written_at = from_microseconds(int(root.numbers(3, "<u8")[0]), key)
    manifests = _decode_manifests(root, body)
    return Snapshot(
        id=snapshot_id,
        parent_id=parent,
        written_at=written_at,
        started_at=written_at,
        message=root.slices(4, "the message").texts()[0],
        metadata=decode_metadata(root, 5, version, key),
        total_parents=int(parent is not None),
        history=(),
        manifests=manifests,
        attribute_files=(),
        nodes=_decode_nodes(root, manifests, body),
    )


def decode_metadata(root: Tables, slot: int, version: int, key: str) -> dict[str, Any]:
    """Read the properties that a table has in a slot; none if the slot is absent."""
    items = root.vectors(slot, 4).tables()
    names = items.slices(0, "the name of a property").texts()
    values = items.slices(1, "the value of a property").tolist()
    if version == 1:
        return {
            name: decode_msgpack(_metadata_decoder, value, key)
            for name, value in zip(names, values, strict=True)
        }
    return dict(zip(names, map(flexbuffers.decode, values, repeat(key)), strict=True))


def _decode_manifests(root: Tables, body: Body) -> tuple[ManifestFileInfo, ...]:
    if root.has(7).all():
        tables = root.vectors(7, 4).tables()
        ids = tables.ids(0, ManifestId.SIZE, "the id of a manifest").tobytes()
        sizes, counts = tables.numbers(1, "<u8"), tables.numbers(2, "<u4")
    else:
        items = root.vectors(6, _MANIFEST_FILE.itemsize, "the list of manifests")
        structs = items.values(_MANIFEST_FILE)
        ids = np.ascontiguousarray(structs["id"]).tobytes()
        sizes, counts = structs["size"], structs["count"]
    if len(sizes) and int(sizes.max()) > MAX_VALUE:
        raise body.bad(f"a manifest has {int(sizes.max())} bytes")
    # A manifest may be listed twice.
    listed = {manifest_id: row for row, manifest_id in enumerate(ManifestId.of_column(ids))}
    rows = list(listed.values())
    return tuple(map(ManifestFileInfo, listed, sizes[rows].tolist(), counts[rows].tolist()))


def _decode_nodes(root: Tables, manifests: tuple[ManifestFileInfo, ...], body: Body) -> NodeTable:
    nodes = root.vectors(2, 4, "the list of nodes").tables()
    ids = nodes.ids(0, NodeId.SIZE, "the id of a node").tobytes()
    paths = nodes.slices(1, "the path of a node").texts()
    check_paths(paths, body.key)
    documents, ends = nodes.slices(2, "the document of a node").joined()
    kinds = nodes.numbers(3, "u1")
    if len(kinds) and not ((kinds == _ARRAY) | (kinds == _GROUP)).all():
        raise body.bad("a node is neither an array nor a group")
    rows = np.flatnonzero(kinds == _ARRAY)
    arrays = nodes.take(rows).tables(4, "the data of an array")
    columns = NodeColumns(
        paths=paths,
        ids=ids,
        documents=documents,
        document_ends=ends,
        refs=_decode_refs(arrays, rows, len(paths), manifests, body),
        attributes={},
    )
    return NodeTable.from_columns(columns, partial(load_node, key=body.key))


def _decode_refs(
    arrays: Tables,
    rows: npt.NDArray[np.intp],
    count: int,
    manifests: tuple[ManifestFileInfo, ...],
    body: Body,
) -> RefColumns:
    """Which manifests the arrays refer to, and for which chunks."""
    ids = tuple([info.id for info in manifests])
    vectors = arrays.vectors(2, 4, "the manifests of an array")
    refs = vectors.tables()
    extents = refs.vectors(1, _RANGE.itemsize, "the extents of a manifest")
    ranges = extents.values(_RANGE)
    lower, upper = ranges["from"].astype(np.int64), ranges["to"].astype(np.int64)
    ranks = extents.counts
    if len(ranks) and int(ranks.max()) > MAX_RANK:
        raise body.bad(f"extents have {int(ranks.max())} dimensions, more than {MAX_RANK}")
    lengths = np.zeros(count, dtype=np.int64)
    lengths[rows] = vectors.counts
    # Extents in which no chunk can be say nothing; neither does the manifest.
    owners = np.repeat(np.arange(len(ranks)), ranks)
    is_empty = np.zeros(len(ranks), dtype=np.bool_)
    is_empty[owners[upper <= lower]] = True
    if is_empty.any():
        kept = ~is_empty[owners]
        lower, upper = lower[kept], upper[kept]
        nodes = np.repeat(np.arange(count), lengths)
        lengths = np.bincount(nodes[~is_empty], minlength=count)
        refs, ranks = refs.take(np.flatnonzero(~is_empty)), ranks[~is_empty]
    _check_boxes(upper - lower, ranks, body)
    numbers = _numbers(refs, ids, body)
    counts = np.array([info.num_chunk_refs for info in manifests] or [0], dtype=np.int64)
    return RefColumns(
        ends=np.cumsum(lengths),
        manifests=ids,
        numbers=numbers,
        counts=counts[numbers],
        corners=np.cumsum(ranks),
        lower=lower,
        shapes=upper - lower,
    )


def _check_boxes(shapes: Positions, ranks: Positions, body: Body) -> None:
    if len(shapes) == 0:
        return
    if int(shapes.max()) ** int(ranks.max()) <= MAX_VALUE:
        return
    end = 0
    for rank in ranks.tolist():
        start, end = end, end + rank
        if prod(shapes[start:end].tolist()) > MAX_VALUE:
            raise body.bad("extents span more than 2**63 chunks")


def _numbers(refs: Tables, ids: Sequence[ManifestId], body: Body) -> Positions:
    """Which of the listed manifests each reference is to."""
    data = refs.ids(0, ManifestId.SIZE, "the id of a manifest").tobytes()
    places = {manifest_id: number for number, manifest_id in enumerate(ids)}
    width = ManifestId.SIZE
    try:
        numbers = [
            places[data[at : at + width]]  # type: ignore[index]
            for at in range(0, len(data), width)
        ]
    except KeyError as error:
        raise body.bad(
            f"an array refers to manifest {ManifestId(error.args[0])}, which is not listed"
        ) from None
    return np.array(numbers, dtype=np.int64)


# --- encoding


def encode_snapshot(snapshot: Snapshot, version: int) -> bytes:
    """Body of a snapshot file."""
    if snapshot.attribute_files:
        raise InvalidInputError("this format has no attribute files: attributes stay in documents")
    builder = Builder()
    fields: dict[int, str] = {0: "V12", 2: OFFSET, 3: "<u8", 4: OFFSET, 5: OFFSET, 6: OFFSET}
    if version == 1 and snapshot.parent_id is not None:
        fields[1] = "V12"
    if version > 1:
        fields[7] = OFFSET
    root = builder.tables(1, fields)
    root.put(0, snapshot.id)
    if 1 in fields:
        assert snapshot.parent_id is not None
        root.put(1, snapshot.parent_id)
    root.put(3, microseconds(snapshot.written_at))
    root.point(4, builder.texts([snapshot.message]))
    _encode_manifests(builder, root, snapshot, version)
    encode_metadata(builder, root, 5, snapshot.metadata, version)
    _NodesEncoder(builder, snapshot, version).encode(root)
    return builder.finish(root.start)


def encode_metadata(
    builder: Builder, parent: TableRecords, slot: int, metadata: Mapping[str, Any], version: int
) -> None:
    """Add properties to a body; those of version 1 are MessagePack, later ones FlexBuffers."""
    encode = encode_msgpack if version == 1 else flexbuffers.encode
    items = sorted((name.encode(), encode(value)) for name, value in metadata.items())
    vector = builder.offsets([len(items)])
    parent.point(slot, vector.vectors)
    tables = builder.tables(len(items), {0: OFFSET, 1: OFFSET})
    vector.point(tables.positions)
    tables.point(0, builder.blobs([name for name, _ in items]))
    tables.point(1, builder.blobs([value for _, value in items]))


def _encode_manifests(
    builder: Builder, root: TableRecords, snapshot: Snapshot, version: int
) -> None:
    infos = sorted(snapshot.manifests, key=lambda info: info.id)
    structs = np.zeros(len(infos), dtype=_MANIFEST_FILE)
    structs["id"] = np.frombuffer(b"".join([info.id for info in infos]), dtype="V12")
    structs["size"] = [info.size_bytes for info in infos]
    structs["count"] = [info.num_chunk_refs for info in infos]
    if version == 1:
        root.point(6, builder.vectors([len(infos)], structs))
        return
    root.point(6, builder.vectors([0], structs[:0]))
    vector = builder.offsets([len(infos)])
    root.point(7, vector.vectors)
    tables = builder.tables(len(infos), {0: "V12", 1: "<u8", 2: "<u4"})
    vector.point(tables.positions)
    tables.put(0, structs["id"])
    tables.put(1, structs["size"])
    tables.put(2, structs["count"])


class _NodesEncoder:
    """Writes the nodes of a snapshot."""

    def __init__(self, builder: Builder, snapshot: Snapshot, version: int) -> None:
        self._builder = builder
        self._version = version
        self._columns = snapshot.nodes.columns()
        self._listed = {info.id for info in snapshot.manifests}
        columns = self._columns
        self._arrays = [
            _parsed(columns.document_at(row), path) for row, path in enumerate(columns.paths)
        ]

    def encode(self, root: TableRecords) -> None:
        """Add the nodes, their documents and what is known of arrays."""
        builder, columns = self._builder, self._columns
        count = len(columns.paths)
        vector = builder.offsets([count])
        root.point(2, vector.vectors)
        nodes = builder.tables(count, {0: "V8", 1: OFFSET, 2: OFFSET, 3: "u1", 4: OFFSET})
        vector.point(nodes.positions)
        nodes.put(0, np.frombuffer(columns.ids, dtype="V8"))
        is_array = np.array([array is not None for array in self._arrays], dtype=np.bool_)
        nodes.put(3, np.where(is_array, _ARRAY, _GROUP))
        nodes.point(1, builder.texts(columns.paths))
        nodes.point(2, builder.slices(columns.documents, np.asarray(columns.document_ends)))
        if not is_array.all():
            # All groups share one empty table.
            group = builder.tables(1, {})
            nodes.point(4, group.start, np.flatnonzero(~is_array))
        self._encode_arrays(nodes, np.flatnonzero(is_array))

    def _encode_arrays(self, nodes: TableRecords, rows: npt.NDArray[np.intp]) -> None:
        if len(rows) == 0:
            return
        builder = self._builder
        arrays = [self._arrays[row] for row in rows.tolist()]
        unnamed = np.array([array.dimension_names is None for array in arrays], dtype=np.bool_)
        fields: dict[int, str] = {0: OFFSET, 1: OFFSET, 2: OFFSET}
        if self._version > 1:
            fields[3] = OFFSET
        tables = builder.tables(len(rows), fields, absent={1: unnamed})
        nodes.point(4, tables.positions, rows)
        self._encode_shapes(tables, arrays)
        self._encode_names(tables, arrays, np.flatnonzero(~unnamed))
        self._encode_refs(tables, rows)

    def _encode_shapes(self, tables: TableRecords, arrays: Sequence[ArrayMetadata]) -> None:
        builder = self._builder
        ranks = np.array([array.rank for array in arrays], dtype=np.int64)
        lengths = np.array([n for array in arrays for n in array.shape], dtype=np.uint64)
        chunks = np.array([n for array in arrays for n in array.grid_shape or ()], dtype=np.uint64)
        if len(chunks) and int(chunks.max()) > MAX_CHUNKS:
            raise InvalidInputError(
                f"an array has {int(chunks.max())} chunks along a dimension, but this format has "
                f"at most {MAX_CHUNKS}; use larger chunks"
            )
        if self._version == 1:
            structs = np.zeros(len(lengths), dtype=_DIMENSION)
            structs["length"] = lengths
            structs["chunk"] = [
                n for array in arrays for n in array.chunk_shape or _typical_chunk(array)
            ]
            tables.point(0, builder.vectors(ranks, structs))
            return
        # One empty vector for all: readers look at the other slot.
        tables.point(0, builder.vectors([0], np.zeros(0, dtype=_DIMENSION))[0])
        vectors = builder.offsets(ranks)
        tables.point(3, vectors.vectors)
        dimensions = builder.tables(len(lengths), {0: "<u8", 1: "<u4"})
        vectors.point(dimensions.positions)
        dimensions.put(0, lengths)
        dimensions.put(1, chunks)

    def _encode_names(
        self, tables: TableRecords, arrays: Sequence[ArrayMetadata], rows: npt.NDArray[np.intp]
    ) -> None:
        builder = self._builder
        if len(rows) == 0:
            return
        named = [arrays[row].dimension_names or () for row in rows.tolist()]
        vectors = builder.offsets([len(names) for names in named])
        tables.point(1, vectors.vectors, rows)
        # Most arrays have the same names, and equal ones are written once.
        flat = [name for names in named for name in names]
        places = {name: number for number, name in enumerate(dict.fromkeys(flat))}
        missing = np.array([name is None for name in places], dtype=np.bool_)
        names = builder.tables(len(places), {0: OFFSET}, absent={0: missing})
        names.point(0, builder.texts([name or "" for name in places]))
        vectors.point(names.positions[[places[name] for name in flat]])

    def _encode_refs(self, tables: TableRecords, rows: npt.NDArray[np.intp]) -> None:
        builder, refs = self._builder, self._columns.refs
        ends = np.asarray(refs.ends, dtype=np.int64)
        counts = np.diff(ends, prepend=np.int64(0))
        if int(counts[rows].sum()) != (int(ends[-1]) if len(ends) else 0):
            raise InvalidInputError("a group refers to chunks")
        vectors = builder.offsets(counts[rows])
        tables.point(2, vectors.vectors)
        numbers = np.asarray(refs.numbers, dtype=np.int64)
        self._check_listed(numbers)
        table = builder.tables(len(numbers), {0: "V12", 1: OFFSET})
        vectors.point(table.positions)
        ids = np.frombuffer(b"".join(refs.manifests), dtype="V12")
        table.put(0, ids[numbers] if len(numbers) else ids[:0])
        lower = np.asarray(refs.lower, dtype=np.int64)
        upper = lower + np.asarray(refs.shapes, dtype=np.int64)
        if len(upper) and int(upper.max()) > MAX_CHUNKS:
            raise InvalidInputError(
                f"a chunk has the coordinate {int(upper.max()) - 1}, but this format has only "
                f"coordinates below {MAX_CHUNKS}; use larger chunks"
            )
        ranges = np.zeros(len(lower), dtype=_RANGE)
        ranges["from"], ranges["to"] = lower, upper
        corners = np.asarray(refs.corners, dtype=np.int64)
        table.point(1, builder.vectors(np.diff(corners, prepend=np.int64(0)), ranges))

    def _check_listed(self, numbers: Positions) -> None:
        manifests = self._columns.refs.manifests
        for number in distinct(numbers).tolist():
            if manifests[number] not in self._listed:
                # R1-29: the snapshot lists every file that its nodes point to.
                raise InvalidInputError(
                    f"a node refers to {manifests[number]!r}, which the snapshot does not list"
                )


def _parsed(document: bytes, path: str) -> ArrayMetadata | None:
    array = parse_document(document, path)
    if array is not None and array.grid_shape is None:
        raise InvalidInputError(
            f"{path} has a chunk grid of a kind that icefloe does not know, so the number of its "
            "chunks cannot be written down as this format wants it"
        )
    return array


def _typical_chunk(array: ArrayMetadata) -> tuple[int, ...]:
    """The size of chunks that differ, as version 1 wants one number: readers ask the document."""
    assert array.grid_shape is not None
    pairs = zip(array.shape, array.grid_shape, strict=True)
    return tuple(-(-extent // count) if count else 0 for extent, count in pairs)
