"""Reads every layout that is row by row: spec version 1, and MessagePack of the reference's past.

The layouts are not labelled; they differ in the number of fields, in how ids are written and in
how deep the map of chunks is. Files of that time carry known errors, which are passed over here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.formats.container import HEADER_SIZE, bad_file, body_of, decode_msgpack, decompress
from icefloe.formats.nodes import MAX_CHECKSUM, MAX_RANK, check_paths, load_node
from icefloe.formats.repository.rows import EXTENSION
from icefloe.formats.repository.zarr_structs import rebuild_array, rebuild_group
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.chunk_refs import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.model.ids import (
    AttributesId,
    ChunkFileId,
    Identifier,
    ManifestId,
    NodeId,
    SnapshotId,
)
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo, ManifestIndex, lay_out
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable
from icefloe.model.snapshot import AttributesFileInfo, FileSum, Snapshot, SnapshotStub
from icefloe.model.transaction_log import Move, TransactionLog
from icefloe.model.zarr_document import parse_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from icefloe.formats.container import Header

_Id = TypeVar("_Id", bound=Identifier)
_T = TypeVar("_T")

_decoder = msgspec.msgpack.Decoder(Any)
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_COORDINATE = 2**63 - 2


class _Reader:
    """Takes values out of decoded MessagePack; whatever is not as expected is a FormatError."""

    def __init__(self, key: str) -> None:
        self.key = key

    def bad(self, what: str, value: Any) -> Exception:
        return bad_file(self.key, f"expected {what}, found {str(value)[:60]!r}")

    def fields(self, value: Any, counts: tuple[int, ...], what: str) -> list[Any]:
        if type(value) not in {list, tuple} or len(value) not in counts:
            expected = " or ".join(map(str, counts))
            raise self.bad(f"{what} of {expected} fields", value)
        return list(value)

    def items(self, value: Any, what: str) -> list[Any]:
        if type(value) is not list:
            raise self.bad(f"a list of {what}", value)
        return value

    def mapping(self, value: Any, what: str) -> dict[Any, Any]:
        if type(value) is not dict:
            raise self.bad(f"a map of {what}", value)
        return value

    def text(self, value: Any, what: str) -> str:
        if type(value) is not str:
            raise self.bad(what, value)
        return value

    def octets(self, value: Any, what: str) -> bytes:
        if type(value) is not bytes:
            raise self.bad(what, value)
        return value

    def number(self, value: Any, what: str, limit: int = 2**63 - 1) -> int:
        if type(value) is not int or not 0 <= value <= limit:
            raise self.bad(f"{what} from 0 to {limit}", value)
        return value

    def time(self, value: Any) -> datetime:
        try:
            time = datetime.fromisoformat(self.text(value, "a time"))
        except ValueError:
            raise self.bad("a time as in RFC 3339", value) from None
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)

    def id(self, value: Any, kind: type[_Id]) -> _Id:
        """An id as text, as [bytes, []], or (nodes of the oldest files) as a number."""
        try:
            if type(value) is str:
                return kind.parse(value)
            if type(value) is int and kind is NodeId:
                return kind(value.to_bytes(NodeId.SIZE, "big"))
            if type(value) in {list, tuple} and len(value) == 2 and type(value[0]) is bytes:
                return kind(value[0])
        except (InvalidInputError, OverflowError):
            pass
        raise self.bad(f"a {kind.__name__}", value)

    def coords(self, value: Any) -> tuple[int, ...]:
        if type(value) not in {list, tuple} or len(value) > MAX_RANK:
            raise self.bad("chunk coordinates", value)
        return tuple(self.number(item, "a coordinate", _MAX_COORDINATE) for item in value)

    def extension(self, flags: Any) -> dict[str, Any]:
        extension = self.mapping(flags, "flags").get(EXTENSION, {})
        return self.mapping(extension, "extensions")

    def column(self, extension: dict[str, Any], name: str, count: int) -> list[Any] | None:
        """A list of the extension that has a value for each row."""
        column = extension.get(name)
        if column is not None and len(self.items(column, name)) != count:
            raise self.bad(f"{count} {name}", column)
        return column

    def checksums(self, extension: dict[str, Any], name: str, count: int) -> list[int]:
        """A list of the extension that has a checksum for each row; 0 for none."""
        column = self.column(extension, name, count) or [0] * count
        return [self.number(value, "a checksum", MAX_CHECKSUM) for value in column]

    def file_sum(self, extension: dict[str, Any], name: str) -> FileSum | None:
        """Size and checksum of a file, if the extension has them."""
        if name not in extension:
            return None
        size, checksum = self.fields(extension[name], (2,), "size and checksum of a file")
        return FileSum(self.number(size, "a size"), self.number(checksum, "a sum", MAX_CHECKSUM))


def _body(data: bytes, header: Header | None, key: str) -> Any:
    if header is not None:
        body = body_of(data, header, key)
    elif data[:4] == _ZSTD_MAGIC:
        body = decompress(data, key)
    else:
        body = data
    value: object = decode_msgpack(_decoder, body, key)
    if header is None and type(value) is not list:
        raise bad_file(
            key, f"neither a header nor MessagePack of old: the file starts with {data[:12]!r}"
        )
    return value


# --- snapshots


def decode_snapshot(
    data: bytes, header: Header | None, snapshot_id: SnapshotId, key: str
) -> Snapshot:
    """Read a snapshot file of any row layout."""
    read = _Reader(key)
    fields = read.fields(_body(data, header, key), (8, 9, 11), "a snapshot")
    if len(fields) == 8:
        return _decode_parent_snapshot(fields, snapshot_id, read)
    extension: dict[str, Any] = {}
    if len(fields) == 11:
        extension = read.extension(fields[1])
        fields = fields[2:]
    manifests, files, total, _, stubs, own, started, metadata, nodes = fields
    # The first snapshot of old repositories has another id inside than in its name, and later
    # snapshots name the one inside: only file names can be trusted.
    stub = _stub(own, read)
    history = tuple(_stub(item, read) for item in read.items(stubs, "ancestors"))
    if header is not None and header.size == HEADER_SIZE and stub.id != snapshot_id:
        raise bad_file(key, f"expected snapshot {snapshot_id}, found {stub.id} under its name")
    if any(ancestor.id == snapshot_id for ancestor in history):
        raise bad_file(key, "the snapshot is among its own ancestors")
    infos = _manifests(manifests, extension, read)
    attribute_files = _attribute_files(files, extension, read)
    return Snapshot(
        id=snapshot_id,
        parent_id=history[0].id if history else None,
        written_at=stub.written_at,
        started_at=read.time(started),
        message=stub.message,
        metadata=_metadata(metadata, read),
        total_parents=read.number(total, "a number of ancestors"),
        history=history,
        manifests=infos,
        attribute_files=attribute_files,
        nodes=_nodes(nodes, extension, infos, attribute_files, read),
        log_file=read.file_sum(extension, "log"),
        parent_file=read.file_sum(extension, "parent"),
    )


def _decode_parent_snapshot(fields: list[Any], snapshot_id: SnapshotId, read: _Reader) -> Snapshot:
    """The latest layout: it names the parent, and nothing of older ancestors."""
    _, parent, flushed, message, metadata, manifests, files, nodes = fields
    infos = _manifests(manifests, {}, read)
    attribute_files = _attribute_files(files, {}, read)
    parent_id = None if parent is None else read.id(parent, SnapshotId)
    if parent_id == snapshot_id:
        raise bad_file(read.key, "the snapshot is its own parent")
    return Snapshot(
        id=snapshot_id,
        parent_id=parent_id,
        written_at=read.time(flushed),
        started_at=read.time(flushed),
        message=read.text(message, "a message"),
        metadata=_metadata(metadata, read),
        total_parents=0 if parent is None else 1,
        history=(),
        manifests=infos,
        attribute_files=attribute_files,
        nodes=_nodes(nodes, {}, infos, attribute_files, read),
    )


def _metadata(value: Any, read: _Reader) -> dict[str, Any]:
    metadata = read.mapping(value, "properties")
    for name in metadata:
        read.text(name, "the name of a property")
    return metadata


def _stub(value: Any, read: _Reader) -> SnapshotStub:
    snapshot_id, written_at, message = read.fields(value, (3,), "snapshot metadata")
    return SnapshotStub(
        read.id(snapshot_id, SnapshotId), read.time(written_at), read.text(message, "a message")
    )


def _manifests(
    value: Any, extension: dict[str, Any], read: _Reader
) -> tuple[ManifestFileInfo, ...]:
    """Manifest files: [id, version], with size and then rows added, and finally [id, size, rows].

    Sizes and counts that are not there are 0.
    """
    listed = read.items(value, "manifest files")
    facts = read.column(extension, "manifests", len(listed))
    sets = read.column(extension, "sets", len(listed)) or [""] * len(listed)
    sums = read.checksums(extension, "manifest_checksums", len(listed))
    infos = []
    for at, item in enumerate(listed):
        fields = read.fields(item, (2, 3, 4), "a manifest file")
        numbers = [read.number(number, "a size") for number in fields[1:]]
        size = count = 0
        if facts is not None:
            size, count = (
                read.number(number, "a size")
                for number in read.fields(facts[at], (2,), "facts of a manifest")
            )
        elif len(numbers) == 3:
            _, size, count = numbers
        elif len(numbers) == 2 and numbers[0] > 1:
            # No version was ever above 1, and no file is as short as that.
            size, count = numbers
        elif len(numbers) == 2:
            size = numbers[1]
        name = read.text(sets[at], "the name of a manifest set")
        infos.append(
            ManifestFileInfo(
                id=read.id(fields[0], ManifestId),
                size_bytes=size,
                num_chunk_refs=count,
                set_name=name,
                checksum=sums[at],
            )
        )
    return tuple(infos)


def _attribute_files(
    value: Any, extension: dict[str, Any], read: _Reader
) -> tuple[AttributesFileInfo, ...]:
    listed = read.items(value, "attribute files")
    sizes = read.column(extension, "attribute_files", len(listed)) or [0] * len(listed)
    sums = read.checksums(extension, "attribute_checksums", len(listed))
    infos = []
    for item, size, checksum in zip(listed, sizes, sums, strict=True):
        fields = read.fields(item, (1, 2), "an attribute file")
        file_id = read.id(fields[0], AttributesId)
        infos.append(AttributesFileInfo(file_id, read.number(size, "a size"), checksum))
    return tuple(infos)


def _nodes(
    value: Any,
    extension: dict[str, Any],
    manifests: tuple[ManifestFileInfo, ...],
    files: tuple[AttributesFileInfo, ...],
    read: _Reader,
) -> NodeTable:
    table = read.mapping(value, "nodes")
    paths = sorted(read.text(path, "a path") for path in table)
    check_paths(paths, read.key)
    rows = [read.fields(table[path], (4,), "a node") for path in paths]
    ids = [read.id(row[0], NodeId) for row in rows]
    for path, row in zip(paths, rows, strict=True):
        if row[1] != path:
            raise bad_file(read.key, f"the node under {path!r} says that it is at {row[1]!r}")
    loader = _NodeLoader(
        read=read,
        paths=paths,
        ids=ids,
        rows=rows,
        documents=read.column(extension, "documents", len(paths)),
        counts=read.column(extension, "counts", len(paths)),
        positions=read.mapping(extension.get("positions", {}), "positions"),
        manifests={info.id for info in manifests},
        files={info.id for info in files},
    )
    return NodeTable(paths, ids, loader.load)


class _NodeLoader:
    """Makes one node of its four fields and of what the extension says."""

    def __init__(
        self,
        read: _Reader,
        paths: list[str],
        ids: list[NodeId],
        rows: list[list[Any]],
        documents: list[Any] | None,
        counts: list[Any] | None,
        positions: dict[str, Any],
        manifests: set[ManifestId],
        files: set[AttributesId],
    ) -> None:
        self._read = read
        self._paths = paths
        self._ids = ids
        self._rows = rows
        self._documents = documents
        self._counts = counts
        self._positions = positions
        self._manifests = manifests
        self._files = files

    def load(self, row: int) -> Node:
        read, path = self._read, self._paths[row]
        _, _, user_attributes, data = self._rows[row]
        inline, outside = self._attributes(user_attributes)
        if self._documents is not None:
            document = read.octets(self._documents[row], "a document")
            position = 0
            if outside is not None:
                position = read.number(self._positions.get(path), "a position", len(document))
        else:
            document, position = self._rebuild(data, inline if outside is None else b"")
        attributes = None
        if outside is not None:
            attributes = AttributesRef(outside[0], outside[1], position)
        refs = () if data == "Group" else self._refs(row, data, document)
        return load_node(self._ids[row], path, document, refs, attributes, key=read.key)

    def _attributes(self, value: Any) -> tuple[bytes | None, tuple[AttributesId, int] | None]:
        """Attributes as JSON, or where they are."""
        if value is None:
            return None, None
        read = self._read
        ((variant, content),) = _only_entry(value, read)
        if variant == "Inline":
            return _json(read.mapping(content, "attributes"), read), None
        if variant == "Ref":
            file, location = read.fields(content, (2,), "an attribute reference")
            file_id = read.id(file, AttributesId)
            if file_id not in self._files:
                raise read.bad("an attribute file that the snapshot lists", file)
            return None, (file_id, read.number(location, "a location", 2**32 - 1))
        raise read.bad("'Inline' or 'Ref' attributes", variant)

    def _rebuild(self, data: Any, attributes: bytes | None) -> tuple[bytes, int]:
        read = self._read
        if data == "Group":
            return rebuild_group(attributes)
        metadata, _ = self._array(data)
        try:
            return rebuild_array(read.fields(metadata, (8,), "array metadata"), attributes)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise read.bad(f"array metadata ({error})", metadata) from None

    def _array(self, data: Any) -> tuple[Any, list[Any]]:
        read = self._read
        ((variant, content),) = _only_entry(data, read)
        if variant != "Array":
            raise read.bad("'Group' or an 'Array'", variant)
        metadata, refs = read.fields(content, (2,), "an array")
        return metadata, read.items(refs, "manifest references")

    def _refs(self, row: int, data: Any, document: bytes) -> tuple[ManifestRef, ...]:
        read = self._read
        _, listed = self._array(data)
        counts = None
        if self._counts is not None:
            counts = read.items(self._counts[row], "counts")
            if len(counts) != len(listed):
                raise read.bad(f"{len(listed)} counts", counts)
        refs = []
        for at, item in enumerate(listed):
            object_id, extents = read.fields(item, (2,), "a manifest reference")
            manifest_id = read.id(object_id, ManifestId)
            if manifest_id not in self._manifests:
                if counts is not None:
                    raise read.bad("a manifest that the snapshot lists", object_id)
                # An old writer forgot to drop the references of an array whose chunks are all gone.
                continue
            box = self._extents(extents, row, document)
            count = box.size if counts is None else read.number(counts[at], "a count")
            if count:
                refs.append(ManifestRef(manifest_id, box, count))
        return tuple(refs)

    def _extents(self, value: Any, row: int, document: bytes) -> Box:
        """The box of a reference; the whole grid where an old writer left it out."""
        read = self._read
        corners = read.items(value, "extents")
        if corners:
            lower, upper = (read.coords(c) for c in read.fields(corners, (2,), "extents"))
            if len(lower) != len(upper) or any(a >= b for a, b in zip(lower, upper, strict=True)):
                raise read.bad("extents from a lower to an upper corner", corners)
            return Box(lower, upper)
        try:
            array = parse_document(document, self._paths[row])
        except InvalidInputError as error:
            raise bad_file(read.key, str(error)) from None
        grid = () if array is None or array.grid_shape is None else array.grid_shape
        return Box((0,) * len(grid), grid)


def _only_entry(value: Any, read: _Reader) -> list[tuple[Any, Any]]:
    entries = list(read.mapping(value, "one variant").items())
    if len(entries) != 1:
        raise read.bad("exactly one variant", value)
    return entries


def _json(value: Any, read: _Reader) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise read.bad(f"what JSON can hold ({error})", value) from None


# --- manifests


def decode_manifest(data: bytes, header: Header | None, key: str) -> ManifestIndex:
    """Read a whole manifest file of any row layout; its blocks stay in memory."""
    read = _Reader(key)
    fields = read.fields(_body(data, header, key), (2, 3, 4), "a manifest")
    extension = read.extension(fields[1]) if len(fields) == 3 else {}
    entries = list(_entries(read.mapping(fields[-1], "chunks"), read))
    _apply_extension(entries, extension, read)
    # By rank too: chunks of one array were once copied under the id of another one.
    parts: dict[tuple[NodeId, int], list[tuple[tuple[int, ...], ChunkRef]]] = {}
    for node_id, coords, ref in entries:
        parts.setdefault((node_id, len(coords)), []).append((coords, ref))
    columns = []
    for (node_id, rank), rows in sorted(parts.items(), key=lambda part: part[0]):
        columns.append((node_id, _columns(rows, rank, read)))
    index, blocks = lay_out(columns)
    return msgspec.structs.replace(index, resident=tuple(blocks))


def _columns(rows: list[tuple[tuple[int, ...], ChunkRef]], rank: int, read: _Reader) -> ArrayChunks:
    if len({coords for coords, _ in rows}) != len(rows):
        raise bad_file(read.key, "a chunk is listed twice")
    try:
        return ArrayChunks.of([coords for coords, _ in rows], [ref for _, ref in rows], rank)
    except InvalidInputError as error:
        raise bad_file(read.key, str(error)) from None


def _entries(
    chunks: dict[Any, Any], read: _Reader
) -> Iterator[tuple[NodeId, tuple[int, ...], ChunkRef]]:
    """The entries of a flat map by (node, coordinates), or of nested maps."""
    for key, value in chunks.items():
        if type(key) is tuple and len(key) == 2 and type(key[0]) is not bytes:
            yield read.id(key[0], NodeId), read.coords(key[1]), _payload(value, read)
        else:
            node_id = read.id(key, NodeId)
            for coords, payload in read.mapping(value, "chunks").items():
                yield node_id, read.coords(coords), _payload(payload, read)


def _payload(value: Any, read: _Reader) -> ChunkRef:
    ((variant, content),) = _only_entry(value, read)
    if variant == "Inline":
        return InlineRef(read.octets(content, "inline bytes"))
    if variant == "Ref":
        file, *span = read.fields(content, (3,), "a chunk reference")
        offset, length = _span(span, read)
        return NativeRef(read.id(file, ChunkFileId), offset, length)
    if variant != "Virtual":
        raise read.bad("'Inline', 'Virtual' or 'Ref'", variant)
    location, *rest = read.fields(content, (3, 4), "a virtual reference")
    offset, length = _span(rest[:2], read)
    if type(location) is dict:
        ((_, location),) = _only_entry(location, read)
    etag, modified = _checksum(rest[2] if len(rest) == 3 else None, read)
    return VirtualRef(
        location=read.text(location, "a location"),
        offset=offset,
        length=length,
        etag=etag,
        last_modified=modified,
    )


def _span(span: list[Any], read: _Reader) -> tuple[int, int]:
    offset, length = (read.number(number, "an offset or length") for number in span)
    read.number(offset + length, "the end of a chunk")
    return offset, length


def _checksum(value: Any, read: _Reader) -> tuple[str | None, int | None]:
    if value is None:
        return None, None
    ((variant, content),) = _only_entry(value, read)
    if variant == "ETag":
        return read.text(content, "an etag"), None
    if variant == "LastModified":
        return None, read.number(content, "a time")
    raise read.bad("'ETag' or 'LastModified'", variant)


def _apply_extension(
    entries: list[tuple[NodeId, tuple[int, ...], ChunkRef]],
    extension: dict[str, Any],
    read: _Reader,
) -> None:
    if "checksums" in extension:
        packed = read.octets(extension["checksums"], "checksums")
        if len(packed) != 4 * len(entries):
            raise read.bad(f"{len(entries)} checksums", len(packed) // 4)
        for row, checksum in enumerate(np.frombuffer(packed, dtype="<u4").tolist()):
            node_id, coords, ref = entries[row]
            if checksum and isinstance(ref, NativeRef):
                replaced = msgspec.structs.replace(ref, checksum=checksum)
                entries[row] = (node_id, coords, replaced)
    for source in read.items(extension.get("sources", []), "sources"):
        row, etag, modified = read.fields(source, (3,), "a source")
        node_id, coords, ref = entries[read.number(row, "a row", len(entries) - 1)]
        if not isinstance(ref, VirtualRef):
            raise read.bad("a virtual reference", ref)
        entries[row] = (
            node_id,
            coords,
            msgspec.structs.replace(
                ref,
                etag=_optional(etag, lambda value: read.text(value, "an etag")),
                last_modified=_optional(modified, lambda value: read.number(value, "a time")),
            ),
        )


def _optional(value: Any, read: Callable[[Any], _T]) -> _T | None:
    return None if value is None else read(value)


# --- attribute files and transaction logs


def decode_attributes(data: bytes, header: Header, key: str) -> list[bytes]:
    """Read an attribute file: maps, and after them their JSON if it is there."""
    read = _Reader(key)
    rows = read.items(_body(data, header, key), "attributes")
    if rows and type(rows[-1]) is list:
        verbatim = [read.octets(row, "attributes in JSON") for row in rows[-1]]
        if len(verbatim) != len(rows) - 1:
            raise read.bad(f"{len(rows) - 1} rows of JSON", len(verbatim))
        return verbatim
    return [_json(read.mapping(row, "attributes"), read) for row in rows]


def decode_transaction_log(data: bytes, header: Header | None, key: str) -> TransactionLog:
    """Read a transaction log of any row layout."""
    read = _Reader(key)
    fields = read.fields(_body(data, header, key), (7, 8, 9), "a transaction log")
    extension = read.extension(fields.pop()) if len(fields) == 9 else {}
    repaired = extension.get("repaired_for")
    if len(fields) == 8:
        read.number(fields.pop(0), "a version")
    *sets, chunks = fields
    new_groups, new_arrays, deleted_groups, deleted_arrays, attributes, metadata = (
        frozenset(read.id(item, NodeId) for item in read.items(ids, "node ids")) for ids in sets
    )
    # Creating a node was logged as updating its attributes. Of a node with new attributes only,
    # the log does not tell whether it is an array; ours count those among updated metadata.
    new = new_groups | new_arrays
    return TransactionLog(
        new_groups=new_groups,
        new_arrays=new_arrays,
        deleted_groups=deleted_groups,
        deleted_arrays=deleted_arrays,
        updated_groups=attributes - new - metadata,
        updated_arrays=metadata - new,
        updated_chunks=dict(_updated_chunks(chunks, read)),
        moves=tuple(_moves(extension, read)),
        repaired_for=None if repaired is None else read.id(repaired, SnapshotId),
    )


def _updated_chunks(value: Any, read: _Reader) -> Iterator[tuple[NodeId, ChunkIndex]]:
    for node, listed in read.mapping(value, "updated chunks").items():
        coords = [read.coords(item) for item in read.items(listed, "chunk coordinates")]
        if not coords:
            continue
        # Old logs inherit the errors of old manifests: the highest rank is the array's own.
        rank = max(map(len, coords))
        try:
            index = ChunkIndex.from_tuples([c for c in coords if len(c) == rank], rank)
        except InvalidInputError as error:
            raise bad_file(read.key, str(error)) from None
        yield read.id(node, NodeId), index


def _moves(extension: dict[str, Any], read: _Reader) -> Iterable[Move]:
    for item in read.items(extension.get("moves", []), "moves"):
        node, source, target = read.fields(item, (3,), "a move")
        yield Move(read.id(node, NodeId), read.text(source, "a path"), read.text(target, "a path"))
