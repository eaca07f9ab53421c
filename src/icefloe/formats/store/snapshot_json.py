"""Snapshots of a store as JSON that is valid by the schema of spec 003 (R3-50 to R3-80).

Members that the schema does not know are ours: `zarr_metadata` of a node has its document where
that is not rebuilt exactly, `num_refs` of a manifest reference its count; `icefloe` lists files.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file
from icefloe.formats.nodes import MAX_HISTORY, check_paths, load_node, parse_document
from icefloe.formats.store import zarr_json
from icefloe.formats.store.object_ids import (
    ObjectId,
    from_numbers,
    node_id,
    node_number,
    numbers,
)
from icefloe.formats.store.text_files import decode, decode_json, encode, json_object, lines_object
from icefloe.model.chunk_index import Box
from icefloe.model.ids import AttributesId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ManifestFileInfo
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable
from icefloe.model.snapshot import AttributesFileInfo, FileSum, Snapshot, SnapshotStub

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icefloe.model.zarr_document import ArrayMetadata

Count = Annotated[int, msgspec.Meta(ge=0)]
Checksum = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""CRC-32C of a file; 0 for none."""
_MAX_COORDINATE = 2**63 - 2


class _Stub(msgspec.Struct):
    id: ObjectId
    message: str
    written_at: datetime


class _Node(msgspec.Struct, omit_defaults=True):
    id: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    path: str
    node_data: msgspec.Raw
    user_attributes: msgspec.Raw = msgspec.Raw(b"null")
    zarr_metadata: str | None = None
    attributes_position: Count | None = None


class _ManifestInfo(msgspec.Struct, omit_defaults=True):
    id: str
    size: Count
    refs: Count
    set: str = ""
    checksum: Checksum = 0


class _AttributesInfo(msgspec.Struct, omit_defaults=True):
    id: str
    size: Count
    checksum: Checksum = 0


class _FileSum(msgspec.Struct):
    size: Count
    checksum: Checksum


class _Extension(msgspec.Struct, omit_defaults=True):
    """What the schema of the spec has no field for."""

    manifests: list[_ManifestInfo] = []
    attribute_files: list[_AttributesInfo] = []
    properties: str | None = None
    """The properties as MessagePack in base 64, where JSON cannot hold them."""
    parent: _FileSum | None = None
    """The file of the parent."""


class _Snapshot(msgspec.Struct):
    metadata: _Stub
    nodes: dict[str, _Node]
    properties: dict[str, Any]
    short_term_history: list[_Stub]
    short_term_parents: Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
    started_at: datetime
    total_parents: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    icefloe: _Extension | None = None


class _ManifestRef(msgspec.Struct, omit_defaults=True):
    object_id: ObjectId
    extents: list[list[Count]]
    flags: Annotated[list[Any], msgspec.Meta(max_length=0)]
    num_refs: Count | None = None


class _ArrayData(msgspec.Struct):
    Array: tuple[msgspec.Raw, list[_ManifestRef]]


class _AttributesRef(msgspec.Struct):
    flags: Annotated[list[Any], msgspec.Meta(max_length=0)]
    location: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    object_id: ObjectId


class _UserAttributes(msgspec.Struct, forbid_unknown_fields=True):
    Inline: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    Ref: _AttributesRef | msgspec.UnsetType = msgspec.UNSET


# Not strict: in JSON Schema 1.0 is an integer, too.
_decoder = msgspec.json.Decoder(_Snapshot, strict=False)
_struct_decoder = msgspec.json.Decoder(dict[str, Any], strict=False)
_array_decoder = msgspec.json.Decoder(_ArrayData, strict=False)
_attributes_decoder = msgspec.json.Decoder(_UserAttributes | None, strict=False)


# --- writing


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot file."""
    history = snapshot.history[:MAX_HISTORY]
    if snapshot.parent_id is not None and not (history and history[0].id == snapshot.parent_id):
        raise InvalidInputError("the history of a snapshot starts with its parent")
    parent = snapshot.parent_file
    nodes = ((encode(node.path), encode(_node(node))) for node in snapshot.nodes)
    extension = _Extension(
        manifests=[_manifest_info(info) for info in snapshot.manifests],
        attribute_files=[
            _AttributesInfo(str(info.id), info.size_bytes, info.checksum)
            for info in snapshot.attribute_files
        ],
        properties=_beyond_json(snapshot.metadata),
        parent=None if parent is None else _FileSum(parent.size_bytes, parent.checksum),
    )
    return json_object(
        {
            "metadata": encode(_stub(snapshot.stub())),
            "started_at": encode(snapshot.started_at.astimezone(UTC)),
            "properties": encode(zarr_json.json_safe(snapshot.metadata)),
            "total_parents": encode(snapshot.total_parents),
            "short_term_parents": encode(len(history)),
            "short_term_history": encode([_stub(stub) for stub in history]),
            "nodes": lines_object([b"%b:%b" % node for node in nodes]),
            "icefloe": encode(extension),
        }
    )


def _stub(stub: SnapshotStub) -> _Stub:
    return _Stub(numbers(stub.id), stub.message, stub.written_at.astimezone(UTC))


def _manifest_info(info: ManifestFileInfo) -> _ManifestInfo:
    return _ManifestInfo(
        id=str(info.id),
        size=info.size_bytes,
        refs=info.num_chunk_refs,
        set=info.set_name,
        checksum=info.checksum,
    )


def _beyond_json(metadata: dict[str, Any]) -> str | None:
    if msgspec.json.decode(encode(zarr_json.json_safe(metadata))) == metadata:
        return None
    return base64.b64encode(msgspec.msgpack.encode(metadata)).decode("ascii")


def _node(node: Node) -> _Node:
    ref = node.attributes
    array = node.array if node.is_array else None
    if ref is None:
        struct, attributes, verbatim = _parts(node.document, array)
        position = None
    else:
        at = ref.position
        struct, _, _ = _parts(node.outline, array)
        attributes = encode({"Ref": _AttributesRef([], ref.row, numbers(ref.file))})
        verbatim, position = node.document.decode("utf-8", "surrogateescape"), at
    data = b'"Group"'
    if struct is not None:
        refs = encode([_manifest_ref(item) for item in node.manifests])
        data = b'{"Array":[%b,%b]}' % (struct, refs)
    return _Node(
        id=node_number(node.id),
        path=node.path,
        node_data=msgspec.Raw(data),
        user_attributes=msgspec.Raw(attributes),
        zarr_metadata=verbatim,
        attributes_position=position,
    )


@lru_cache(maxsize=4096)
def _parts(document: bytes, array: ArrayMetadata | None) -> tuple[bytes | None, bytes, str | None]:
    """Struct and attributes of a document as JSON, and itself if they do not give it back.

    Most nodes are the same from commit to commit.
    """
    parsed = parse_document(document)
    given = parsed.get("attributes")
    attributes = zarr_json.json_safe(given) if isinstance(given, dict) else None
    struct = None if array is None else zarr_json.array_struct(parsed, array)
    try:
        rebuilt = (
            zarr_json.group_document(attributes)
            if struct is None
            else zarr_json.array_document(struct, attributes)
        )
    except (TypeError, ValueError, KeyError):
        rebuilt = b""
    return (
        None if struct is None else encode(struct),
        encode(None if attributes is None else {"Inline": attributes}),
        None if rebuilt == document else document.decode("utf-8"),
    )


def _manifest_ref(ref: ManifestRef) -> _ManifestRef:
    extents = [list(ref.extents.lower), list(ref.extents.upper)]
    return _ManifestRef(
        object_id=numbers(ref.manifest_id), extents=extents, flags=[], num_refs=ref.num_refs
    )


# --- reading

_NO_METADATA = (
    *(TypeError, ValueError, KeyError, AttributeError),
    *(RecursionError, msgspec.DecodeError),
)


def decode_snapshot(data: bytes, snapshot_id: SnapshotId, key: str) -> Snapshot:
    """Read a snapshot file that was found under the name of `snapshot_id`."""
    record = decode(_decoder, data, key)
    own = from_numbers(SnapshotId, record.metadata.id)
    if own != snapshot_id:
        raise bad_file(key, f"expected snapshot {snapshot_id}, found {own} under its name")
    if record.short_term_parents != len(record.short_term_history):
        raise bad_file(
            key,
            f"short_term_parents is the length of the history ({len(record.short_term_history)}), "
            f"found {record.short_term_parents}",
        )
    history = tuple(_read_stub(stub) for stub in record.short_term_history)
    if any(stub.id == snapshot_id for stub in history):
        raise bad_file(key, "the snapshot is among its own ancestors")
    extension = record.icefloe
    nodes = _NodeLoader(record.nodes, extension is not None, key)
    return Snapshot(
        id=snapshot_id,
        parent_id=history[0].id if history else None,
        written_at=_utc(record.metadata.written_at),
        started_at=_utc(record.started_at),
        message=record.metadata.message,
        metadata=_properties(record, key),
        total_parents=max(record.total_parents, len(history)),
        history=history,
        manifests=nodes.manifests() if extension is None else _manifests(extension, key),
        attribute_files=(
            nodes.attribute_files() if extension is None else _attribute_files(extension, key)
        ),
        nodes=NodeTable(nodes.paths, nodes.ids, nodes.load),
        parent_file=_parent_file(extension),
    )


def _parent_file(extension: _Extension | None) -> FileSum | None:
    found = None if extension is None else extension.parent
    return None if found is None else FileSum(found.size, found.checksum)


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _read_stub(stub: _Stub) -> SnapshotStub:
    return SnapshotStub(from_numbers(SnapshotId, stub.id), _utc(stub.written_at), stub.message)


def _properties(found: _Snapshot, key: str) -> dict[str, Any]:
    packed = None if found.icefloe is None else found.icefloe.properties
    if packed is None:
        return found.properties
    try:
        octets = base64.b64decode(packed, validate=True)
        return msgspec.msgpack.decode(octets, type=dict[str, Any])
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise bad_file(key, f"the properties are damaged: {error}") from None


def _manifests(extension: _Extension, key: str) -> tuple[ManifestFileInfo, ...]:
    try:
        return tuple(
            ManifestFileInfo(
                id=ManifestId.parse(info.id),
                size_bytes=info.size,
                num_chunk_refs=info.refs,
                set_name=info.set,
                checksum=info.checksum,
            )
            for info in extension.manifests
        )
    except InvalidInputError as error:
        raise bad_file(key, str(error)) from None


def _attribute_files(extension: _Extension, key: str) -> tuple[AttributesFileInfo, ...]:
    try:
        return tuple(
            AttributesFileInfo(AttributesId.parse(info.id), info.size, info.checksum)
            for info in extension.attribute_files
        )
    except InvalidInputError as error:
        raise bad_file(key, str(error)) from None


@lru_cache(maxsize=4096)
def _rebuilt(struct: bytes | None, attributes: bytes) -> tuple[bytes, int]:
    """A document from its parts, and where the attributes are missing that a file holds.

    Many arrays are alike, and most nodes are the same from commit to commit.
    """
    given = _attributes_decoder.decode(attributes)
    is_cut = given is not None and given.Ref is not msgspec.UNSET
    inline: Any = None if given is None else {} if is_cut else given.Inline
    document = (
        zarr_json.group_document(inline)
        if struct is None
        else zarr_json.array_document(_struct_decoder.decode(struct), inline)
    )
    if not is_cut:
        return document, 0
    mark = b'\n  "attributes": '
    position = document.index(mark + b"{}") + len(mark)
    return document[:position] + document[position + 2 :], position


class _NodeLoader:
    """Makes nodes of their JSON when they are first asked for."""

    def __init__(self, nodes: dict[str, _Node], is_ours: bool, key: str) -> None:  # noqa: FBT001
        self.paths = sorted(nodes)
        check_paths(self.paths, key)
        self._nodes = [nodes[path] for path in self.paths]
        self.ids: Sequence[NodeId] = [node_id(node.id) for node in self._nodes]
        self._is_ours = is_ours
        self._key = key
        for path, node in zip(self.paths, self._nodes, strict=True):
            if node.path != path:  # R3-52
                raise bad_file(key, f"the node under {path!r} says that it is at {node.path!r}")
        if len(set(self.ids)) != len(self.ids):
            raise bad_file(key, "two nodes have one id")

    def load(self, row: int) -> Node:
        """The node of a row."""
        node, path = self._nodes[row], self.paths[row]
        struct, refs = self._array(node)
        _, outside = self._attributes(node)
        if node.zarr_metadata is not None:
            document = node.zarr_metadata.encode("utf-8")
            position = node.attributes_position or 0
        else:
            document, position = self._rebuild(struct, node)
        attributes = None
        if outside is not None:
            if position > len(document):
                raise bad_file(self._key, f"the attributes of {path} would stand after its end")
            file = from_numbers(AttributesId, outside.object_id)
            attributes = AttributesRef(file, outside.location, position)
        made = load_node(self.ids[row], path, document, (), attributes, key=self._key)
        if not made.is_array:
            return made
        return made.evolve(manifests=self._refs(refs, made.array))

    def manifests(self) -> tuple[ManifestFileInfo, ...]:
        """What the nodes refer to, for files that do not list it; sizes are unknown."""
        manifest_ids = {
            from_numbers(ManifestId, ref.object_id)
            for node in self._nodes
            for ref in self._array(node)[1]
        }
        return tuple(ManifestFileInfo(each, 0, 0) for each in sorted(manifest_ids))

    def attribute_files(self) -> tuple[AttributesFileInfo, ...]:
        """The same for attribute files."""
        refs = [self._attributes(node)[1] for node in self._nodes]
        found = {from_numbers(AttributesId, ref.object_id) for ref in refs if ref is not None}
        return tuple(AttributesFileInfo(each) for each in sorted(found))

    def _array(self, node: _Node) -> tuple[msgspec.Raw | None, list[_ManifestRef]]:
        if bytes(node.node_data) == b'"Group"':
            return None, []
        return decode_json(_array_decoder, node.node_data, self._key).Array

    def _attributes(self, node: _Node) -> tuple[dict[str, Any] | None, _AttributesRef | None]:
        attributes = decode_json(_attributes_decoder, node.user_attributes, self._key)
        if attributes is None:
            return None, None
        match attributes.Inline, attributes.Ref:
            case dict() as inline, msgspec.UNSET:
                return inline, None
            case msgspec.UNSET, _AttributesRef() as ref:
                return None, ref
        raise bad_file(self._key, "attributes are either 'Inline' or 'Ref'")

    def _rebuild(self, struct: msgspec.Raw | None, node: _Node) -> tuple[bytes, int]:
        try:
            return _rebuilt(None if struct is None else bytes(struct), bytes(node.user_attributes))
        except _NO_METADATA as error:
            raise bad_file(self._key, f"not the metadata of an array: {error}") from None

    def _refs(self, refs: list[_ManifestRef], array: ArrayMetadata) -> tuple[ManifestRef, ...]:
        made = []
        for ref in refs:
            box = _extents(ref.extents, array)
            if ref.num_refs is None and self._is_ours:
                raise bad_file(self._key, "a manifest reference lacks 'num_refs'")
            count = box.size if ref.num_refs is None else ref.num_refs
            if count:
                made.append(ManifestRef(from_numbers(ManifestId, ref.object_id), box, count))
        return tuple(made)


def _extents(extents: list[list[int]], array: ArrayMetadata) -> Box:
    """The box between two corners; what says something else means the whole grid (H-18)."""
    if len(extents) == 2 and len(extents[0]) == len(extents[1]) == array.rank:
        box = Box(tuple(extents[0]), tuple(extents[1]))
        in_order = all(low < high for low, high in zip(box.lower, box.upper, strict=True))
        if in_order and max(box.upper, default=0) <= _MAX_COORDINATE + 1:
            return box
    grid = array.grid_shape or (0,) * array.rank
    return Box((0,) * array.rank, grid)
