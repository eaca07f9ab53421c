"""Writes spec version 1: bodies row by row, in the structs of spec 001.

What those structs have no field for is under the name `icefloe` in their maps of flags, where a
plain reader of spec 001 passes it by; see `row_reader` for the other direction.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.container import encode_msgpack
from icefloe.formats.nodes import parse_document
from icefloe.formats.repository.zarr_structs import array_struct, storable
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs
from icefloe.model.ids import encode_base32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icefloe.model.ids import NodeId
    from icefloe.model.manifest import ArrayChunks
    from icefloe.model.nodes import Node
    from icefloe.model.snapshot import Snapshot, SnapshotStub
    from icefloe.model.transaction_log import TransactionLog

EXTENSION = "icefloe"
FORMAT_VERSION = 0
"""R2-33: the version within the structs; the header has the one that counts."""
MAX_HISTORY = 1000
"""H-15: ancestors that a snapshot remembers."""


def encode_time(time: datetime) -> str:
    """RFC 3339 in UTC, with 6 digits of a second or none."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


# --- snapshots


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Body of a snapshot file: eleven fields (R1-28)."""
    nodes = list(snapshot.nodes)
    history = snapshot.history[:MAX_HISTORY]
    if snapshot.parent_id is not None and not (history and history[0].id == snapshot.parent_id):
        raise InvalidInputError("the history of a snapshot starts with its parent")
    extension = {
        "documents": [node.document for node in nodes],
        "manifests": [[info.size_bytes, info.num_chunk_refs] for info in snapshot.manifests],
        "sets": [info.set_name for info in snapshot.manifests],
        "attribute_files": [info.size_bytes for info in snapshot.attribute_files],
        "counts": [[ref.num_refs for ref in node.manifests] for node in nodes],
        "positions": {
            node.path: node.attributes.position for node in nodes if node.attributes is not None
        },
    }
    extension |= _file_sums(snapshot)
    fields = [
        FORMAT_VERSION,
        {EXTENSION: extension},
        [[str(info.id), FORMAT_VERSION] for info in snapshot.manifests],
        [[str(info.id), FORMAT_VERSION] for info in snapshot.attribute_files],
        snapshot.total_parents,
        len(history),
        [_stub(stub) for stub in history],
        _stub(snapshot.stub()),
        encode_time(snapshot.started_at),
        snapshot.metadata,
        {node.path: _node(node) for node in nodes},
    ]
    return encode_msgpack(fields)


def _file_sums(snapshot: Snapshot) -> dict[str, Any]:
    """CRC-32C of the files that a snapshot refers to, where they are known."""
    sums: dict[str, Any] = {
        "manifest_checksums": [info.checksum for info in snapshot.manifests],
        "attribute_checksums": [info.checksum for info in snapshot.attribute_files],
    }
    sums = {name: column for name, column in sums.items() if any(column)}
    for name, file in (("log", snapshot.log_file), ("parent", snapshot.parent_file)):
        if file is not None:
            sums[name] = [file.size_bytes, file.checksum]
    return sums


def _stub(stub: SnapshotStub) -> list[Any]:
    return [str(stub.id), encode_time(stub.written_at), stub.message]


def _node(node: Node) -> list[Any]:
    """The four fields of NodeSnapshot (R2-25)."""
    whole = node.document
    attributes: dict[str, Any] | None = None
    if node.attributes is not None:
        at = node.attributes.position
        whole = whole[:at] + b"{}" + whole[at:]
        attributes = {"Ref": [str(node.attributes.file), node.attributes.row]}
    document = parse_document(whole)
    if attributes is None and document.get("attributes") is not None:
        attributes = {"Inline": storable(document["attributes"])}
    data: Any = "Group"
    if node.is_array:
        refs = [
            [str(ref.manifest_id), [ref.extents.lower, ref.extents.upper]] for ref in node.manifests
        ]
        data = {"Array": [array_struct(document, node.array), refs]}
    return [str(node.id), node.path, attributes, data]


# --- manifests


def encode_manifest(parts: Sequence[tuple[NodeId, ArrayChunks]]) -> bytes:
    """Body of a manifest file: three fields (R1-36)."""
    ordered = sorted(parts, key=lambda part: part[0])
    if not sum(len(chunks) for _, chunks in ordered):
        raise InvalidInputError("a manifest has at least one reference; leave out empty ones")
    by_key: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    for node_id, chunks in ordered:
        node = str(node_id)
        for coords, payload in zip(chunks.index.tuples(), _payloads(chunks.refs), strict=True):
            by_key[node, coords] = payload
    extension = _manifest_extension([chunks.refs for _, chunks in ordered])
    flags = {EXTENSION: extension} if extension else {}
    return encode_msgpack([FORMAT_VERSION, flags, by_key])


def _payloads(refs: ChunkRefs) -> Iterator[dict[str, Any]]:
    columns = (refs.kinds, refs.sources, refs.offsets, refs.lengths)
    files = [row.tobytes() for row in refs.files]
    names: dict[int, str] = {}
    for kind, source, offset, length in zip(*(c.tolist() for c in columns), strict=True):
        if kind == ChunkKind.NATIVE:
            name = names.get(source)
            if name is None:
                name = names[source] = encode_base32(files[source])
            yield {"Ref": [name, offset, length]}
        elif kind == ChunkKind.VIRTUAL:
            yield {"Virtual": [{"Absolute": refs.locations.urls[source]}, offset, length]}
        elif kind == ChunkKind.INLINE:
            yield {"Inline": refs.inline[offset : offset + length]}
        else:
            raise InvalidInputError("a manifest holds native, virtual and inline references only")


def _manifest_extension(tables: Iterable[ChunkRefs]) -> dict[str, Any]:
    """What the payloads have no field for, by row of the map."""
    extension: dict[str, Any] = {}
    checksums, sources = [], []
    start = 0
    for refs in tables:
        checksums.append(refs.checksums)
        if refs.locations.etags.data or refs.locations.modified.any():
            for row in np.flatnonzero(refs.kinds == ChunkKind.VIRTUAL).tolist():
                source = int(refs.sources[row])
                etag = refs.locations.etags[source] or None
                modified = int(refs.locations.modified[source]) or None
                if etag is not None or modified is not None:
                    sources.append([start + row, etag, modified])
        start += len(refs)
    if any(column.any() for column in checksums):
        extension["checksums"] = np.concatenate(checksums).astype("<u4").tobytes()
    if sources:
        extension["sources"] = sources
    return extension


# --- attribute files and transaction logs


def encode_attributes(rows: Sequence[bytes]) -> bytes:
    """Body of an attribute file: the attributes of each row as a map (R1-33).

    One more element after the maps holds the JSON itself, verbatim.
    """
    maps = [storable(parse_document(row)) for row in rows]
    return encode_msgpack([*maps, list(rows)])


def encode_transaction_log(log: TransactionLog) -> bytes:
    """Body of a transaction log: eight fields, and a ninth for moves and repairs (H-32).

    As the reference implementation did, new nodes count among those with updated attributes.
    """
    new = log.new_groups | log.new_arrays
    fields: list[Any] = [
        FORMAT_VERSION,
        _ids(log.new_groups),
        _ids(log.new_arrays),
        _ids(log.deleted_groups),
        _ids(log.deleted_arrays),
        _ids(new | log.updated_groups | log.updated_arrays),
        _ids(log.updated_arrays),
        {
            str(node_id): log.updated_chunks[node_id].tuples()
            for node_id in sorted(log.updated_chunks)
        },
    ]
    extension: dict[str, Any] = {}
    if log.moves:
        extension["moves"] = [[str(m.node_id), m.source, m.target] for m in log.moves]
    if log.repaired_for is not None:
        extension["repaired_for"] = str(log.repaired_for)
    if extension:
        fields.append({EXTENSION: extension})
    return encode_msgpack(fields)


def _ids(ids: Iterable[NodeId]) -> list[str]:
    return [str(node_id) for node_id in sorted(ids)]
