"""Writes the project's own golden files: `python scripts/make_golden.py [folder]`.

All values are fixed, so the files change only if a format does. Files of the spec versions 1 and 2
come from icefloe's codec. Files of the older layouts, which icefloe only reads, come from the
encoder below, written for this purpose after the description of those layouts.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from icefloe.formats.container import MAGIC, Compression, FileType
from icefloe.formats.port import numbered_id
from icefloe.formats.registry import format_for
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.chunk_refs import ChunkRef, InlineRef, NativeRef, VirtualRef
from icefloe.model.ids import AttributesId, ChunkFileId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.model.nodes import AttributesRef, ManifestRef, NodeTable, make_node
from icefloe.model.snapshot import AttributesFileInfo, Snapshot, SnapshotStub
from icefloe.model.transaction_log import Move, TransactionLog

DEFAULT_FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "data"
START = datetime(2026, 1, 31, 12, 30, 45, 123456, tzinfo=UTC)
SNAPSHOT_ID = SnapshotId(b"snapshot-two")
FIRST_ID = SnapshotId(b"snapshot-one")
MANIFESTS = (ManifestId(b"manifest-one"), ManifestId(b"manifest-two"))
ATTRIBUTES_ID = AttributesId(b"attributes-1")
FILES = tuple(ChunkFileId(b"chunk-file-%d" % number) for number in range(3))


def node_id(number: int) -> NodeId:
    return NodeId(b"node-%03d" % number)


def array_document(**changes: Any) -> dict[str, Any]:
    return {
        "shape": [20, 30],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10, 10]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"units": "K", "größe": 1.5},
        "dimension_names": ["y", None],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    } | changes


# --- values that every layout of ours can hold


def snapshot() -> Snapshot:
    group = b'{\n "attributes": {"z": 1, "a": [true, null, 1e3]},\n "zarr_format": 3,\n'
    group += b' "node_type": "group"\n}'
    cut = b'{"zarr_format": 3, "attributes": , "node_type": "group"}'
    position = cut.index(b', "node_type"')
    nodes = [
        make_node(node_id(1), "/", group),
        make_node(node_id(2), "/data", json.dumps(array_document()).encode()).evolve(
            manifests=(
                ManifestRef(MANIFESTS[0], Box((0, 0), (2, 2)), 4),
                ManifestRef(MANIFESTS[1], Box((0, 2), (2, 3)), 1),
            )
        ),
        make_node(
            node_id(3),
            "/data space/ünïcode",
            json.dumps(
                array_document(
                    shape=[],
                    data_type={"name": "numpy.datetime64", "configuration": {"unit": "ns"}},
                    chunk_grid={"name": "regular", "configuration": {"chunk_shape": []}},
                    chunk_key_encoding={"name": "v2", "configuration": {"separator": "."}},
                    fill_value="NaT",
                    dimension_names=None,
                )
            ).encode(),
        ).evolve(manifests=(ManifestRef(MANIFESTS[0], Box((), ()), 1),)),
        make_node(node_id(4), "/large", b'{"zarr_format":3,"node_type":"group"}').evolve(
            document=cut, attributes=AttributesRef(ATTRIBUTES_ID, 1, position)
        ),
    ]
    return Snapshot(
        id=SNAPSHOT_ID,
        parent_id=FIRST_ID,
        written_at=START + timedelta(seconds=2),
        started_at=START,
        message="a message: ✓",
        metadata={
            "author": "me",
            "numbers": [1, -2, 3.5, 2**63],
            "none": None,
            "nested": {"b": []},
        },
        total_parents=1,
        history=(SnapshotStub(FIRST_ID, START - timedelta(days=1), "Repository initialized"),),
        manifests=(ManifestFileInfo(MANIFESTS[0], 1234, 5), ManifestFileInfo(MANIFESTS[1], 99, 1)),
        attribute_files=(AttributesFileInfo(ATTRIBUTES_ID, 70_000),),
        nodes=NodeTable.of(nodes),
    )


def manifest_parts() -> list[tuple[NodeId, ArrayChunks]]:
    mixed: dict[tuple[int, ...], ChunkRef] = {
        (0, 0): NativeRef(FILES[0], 0, 100, 0xDEADBEEF),
        (0, 1): NativeRef(FILES[0], 100, 50, 7),
        (0, 2): VirtualRef("s3://bucket/a.nc", 4096, 1000, etag='"abc"'),
        (3, 0): VirtualRef("s3://bucket/b.nc", 0, 2**40, last_modified=1_700_000_000),
        (3, 4): InlineRef(b"inline bytes"),
        (7, 7): NativeRef(FILES[1], 2**33, 1),
    }
    columns = [(i, j) for i in range(5) for j in range(8)]
    virtual = [
        VirtualRef(f"gs://archive/year={1950 + i}/day_{j:03d}.nc", 512, 3000 + j)
        for i, j in columns
    ]
    return [
        (node_id(2), ArrayChunks.of(list(mixed), list(mixed.values()), 2)),
        (node_id(3), ArrayChunks.of([()], [InlineRef(b"\x01")], 0)),
        (node_id(5), ArrayChunks.of(columns, virtual, 2)),
        (
            node_id(6),
            ArrayChunks.of(
                [(number,) for number in range(20)],
                [NativeRef(FILES[2], 64 * number, 64) for number in range(20)],
                1,
            ),
        ),
    ]


def attribute_rows() -> list[bytes]:
    return [b'{ "b": 1, "a": 2.50 }', b'{"long":"' + b"x" * 300 + b'"}']


def transaction_log() -> TransactionLog:
    return TransactionLog(
        new_groups=frozenset({node_id(1)}),
        new_arrays=frozenset({node_id(2), node_id(3)}),
        deleted_groups=frozenset({node_id(10)}),
        deleted_arrays=frozenset({node_id(11), node_id(12)}),
        updated_groups=frozenset({node_id(13)}),
        updated_arrays=frozenset({node_id(14)}),
        updated_chunks={
            node_id(2): ChunkIndex.from_tuples([(0, 0), (0, 1), (1, 0), (1, 1)], 2),
            node_id(3): ChunkIndex.from_tuples([()], 0),
            node_id(14): ChunkIndex.from_tuples([(5,), (9,), (100,)], 1),
        },
        moves=(Move(node_id(13), "/old/name", "/new"),),
    )


# --- old layouts


class OldLayout(msgspec.Struct, frozen=True):
    """How one layout of the reference implementation's past differs from the others."""

    name: str
    header: bool
    """Whether files have the 39-byte header and are compressed."""
    snapshot_fields: int
    manifest_info_fields: int
    manifest_fields: int
    nested: bool = False
    """Chunks as a map of maps, with exact extents in the snapshot from the fourth field on."""
    number_ids: bool = False
    """Node ids are small integers."""
    binary_ids: bool = False
    """Ids are [bytes, []]."""
    log_fields: int = 0
    checksums: bool = False
    compressed_manifest: bool = False


OLD_LAYOUTS = (
    OldLayout("a", False, 11, 2, 3, number_ids=True),
    OldLayout("b", False, 11, 2, 3),
    OldLayout("c", False, 11, 2, 3, log_fields=8, checksums=True),
    OldLayout("d", False, 11, 3, 3, log_fields=8, checksums=True),
    OldLayout("e", False, 11, 3, 3, log_fields=8, checksums=True, compressed_manifest=True),
    OldLayout("f", True, 9, 3, 3, log_fields=8, checksums=True),
    OldLayout("g", True, 9, 3, 3, True, binary_ids=True, log_fields=8, checksums=True),
    OldLayout("h", True, 9, 4, 4, True, binary_ids=True, log_fields=8, checksums=True),
    OldLayout("i", True, 8, 4, 4, True, binary_ids=True, log_fields=8, checksums=True),
    OldLayout("j", True, 8, 3, 2, True, binary_ids=True, log_fields=7, checksums=True),
)
OLD_CHUNKS: dict[tuple[int, ...], ChunkRef] = {
    (0, 0): InlineRef(b"abc"),
    (0, 2): NativeRef(FILES[0], 0, 100),
    (1, 1): VirtualRef("s3://bucket/chunk", 10, 20),
}
OLD_LINE: dict[tuple[int, ...], ChunkRef] = {(number,): InlineRef(b"T") for number in range(3)}
OLD_MESSAGE = "written long ago"


def _old_frame(body: bytes) -> bytes:
    """A zstd frame as of old: it states neither the size of its content nor a checksum."""
    return zstandard.ZstdCompressor(level=1, write_content_size=False).compress(body)


class OldEncoder:
    """Writes files as the reference implementation did while they were MessagePack."""

    def __init__(self, layout: OldLayout) -> None:
        self.layout = layout

    def node(self, number: int) -> NodeId:
        return NodeId(number.to_bytes(8, "big")) if self.layout.number_ids else node_id(number)

    def _id(self, identifier: bytes) -> Any:
        if self.layout.number_ids and isinstance(identifier, NodeId):
            return int.from_bytes(identifier, "big")
        if self.layout.binary_ids:
            return (bytes(identifier), ())
        return str(identifier)

    def _file(self, kind: FileType, value: Any, *, compressed: bool = False) -> bytes:
        body = msgspec.msgpack.encode(value)
        if self.layout.header:
            client = b"ic-0.1.0-alpha.9".ljust(24)
            return MAGIC + client + bytes((1, kind, Compression.ZSTD)) + _old_frame(body)
        return _old_frame(body) if compressed else body

    def snapshot(self) -> bytes:
        layout = self.layout
        extents = (
            [(0, 0), (2, 3)]
            if layout.manifest_info_fields == 4 or layout.manifest_fields == 2
            else []
        )
        refs = [[self._id(MANIFESTS[0]), extents]]
        attributes = {"Inline": {"a": 1, "b": [1.5, "x"]}}
        nan = msgspec.Raw(b"\xca" + struct.pack(">f", float("nan")))
        array = [
            (20, 30),
            "float32",
            (10, 10),
            "Slash",
            {"Float32": nan},
            [("bytes", {"endian": "little"})],
            [],
            None,
        ]
        line = [(3,), "int8", (1,), "Slash", {"Int8": 8}, [("bytes", None)], None, ["x"]]
        line_extents = [(0,), (3,)] if extents else []
        nodes = {
            "/": [self._id(self.node(1)), "/", {"Inline": {}}, "Group"],
            "/grid": [self._id(self.node(2)), "/grid", attributes, {"Array": [array, refs]}],
            "/line": [
                self._id(self.node(3)),
                "/line",
                None,
                {"Array": [line, [[self._id(MANIFESTS[0]), line_extents]]]},
            ],
        }
        info = {
            2: [self._id(MANIFESTS[0]), 0],
            3: [self._id(MANIFESTS[0]), int(layout.header), 250],
            4: [self._id(MANIFESTS[0]), 1, 250, 6],
        }[layout.manifest_info_fields]
        if layout.manifest_fields == 2:
            info = [self._id(MANIFESTS[0]), 250, 6]
        written = (
            "2024-10-13T18:53:45.442391Z" if not layout.header else "2024-10-13T18:53:45.442391364Z"
        )
        if layout.snapshot_fields == 8:
            fields: list[Any] = [
                self._id(SNAPSHOT_ID),
                self._id(FIRST_ID),
                written,
                OLD_MESSAGE,
                {"by": "me"},
                [info],
                [],
                nodes,
            ]
        else:
            stub = [self._id(SNAPSHOT_ID), written, OLD_MESSAGE]
            parent = [self._id(FIRST_ID), "2024-10-13T18:53:45Z", "Repository initialized"]
            fields = [
                [info],
                [],
                1,
                1,
                [parent],
                stub,
                "2024-10-13T18:53:45.442390Z",
                {"by": "me"},
                nodes,
            ]
            if layout.snapshot_fields == 11:
                fields = [0, {}, *fields]
        return self._file(FileType.SNAPSHOT, fields)

    def manifest(self) -> bytes:
        layout = self.layout
        grid = {coords: self._payload(ref) for coords, ref in OLD_CHUNKS.items()}
        line = {coords: self._payload(ref) for coords, ref in OLD_LINE.items()}
        # Chunks of one array under the id of another, as an error of the time left them.
        strays = {} if layout.nested else {(0,): {"Inline": b"stray"}}
        chunks: dict[Any, Any]
        if layout.nested:
            chunks = {self._id(self.node(2)): grid, self._id(self.node(3)): line}
        else:
            chunks = {
                (self._id(self.node(2)), coords): ref for coords, ref in (strays | grid).items()
            }
            chunks |= {(self._id(self.node(3)), coords): ref for coords, ref in line.items()}
        version = int(layout.header)
        fields: list[Any] = [version, {}, chunks]
        if layout.manifest_fields == 4:
            fields = [version, {}, self._id(MANIFESTS[0]), chunks]
        elif layout.manifest_fields == 2:
            fields = [self._id(MANIFESTS[0]), chunks]
        return self._file(FileType.MANIFEST, fields, compressed=layout.compressed_manifest)

    def _payload(self, ref: ChunkRef) -> dict[str, Any]:
        match ref:
            case InlineRef():
                return {"Inline": ref.data}
            case NativeRef():
                return {"Ref": [self._id(ref.file), ref.offset, ref.length]}
            case VirtualRef() if self.layout.checksums:
                checksum = {"LastModified": 4294111232}
                return {"Virtual": [ref.location, ref.offset, ref.length, checksum]}
            case _:
                return {"Virtual": [{"Absolute": ref.location}, ref.offset, ref.length]}

    def log(self) -> bytes | None:
        if not self.layout.log_fields:
            return None
        new, group = self._id(self.node(2)), self._id(self.node(1))
        sets: list[Any] = [[group], [new], [], [], [new, group], []]
        fields = [*sets, {self._id(self.node(3)): [[2], [0]]}]
        if self.layout.log_fields == 8:
            fields = [int(self.layout.header), *fields]
        return self._file(FileType.TRANSACTION_LOG, fields)

    # what a reader should find

    def expected_chunks(self) -> dict[tuple[int, ...], ChunkRef]:
        if not self.layout.checksums:
            return OLD_CHUNKS
        checked = VirtualRef("s3://bucket/chunk", 10, 20, last_modified=4294111232)
        return OLD_CHUNKS | {(1, 1): checked}


# --- the other generations


def numbered(node_id: NodeId, generation: str) -> NodeId:
    """A node id of this script as one that a generation with numbers would give."""
    number = int(node_id[-3:])
    if generation == "dataset":
        return numbered_id(number, b"node")
    return NodeId(number.to_bytes(NodeId.SIZE, "big"))


def snapshot_in(generation: str) -> Snapshot:
    made = snapshot()
    nodes = [node.evolve(id=numbered(node.id, generation)) for node in made.nodes]
    return msgspec.structs.replace(made, nodes=NodeTable.of(nodes))


def manifest_parts_in(generation: str) -> list[tuple[NodeId, ArrayChunks]]:
    return [(numbered(node_id, generation), chunks) for node_id, chunks in manifest_parts()]


def generation_files(generation: str) -> dict[str, bytes]:
    codec = format_for(generation).codec
    extension = {"store": "json", "dataset": "parquet"}[generation]
    return {
        f"{generation}/snapshot.{extension}": codec.encode_snapshot(snapshot_in(generation)).data,
        f"{generation}/manifest.{extension}": codec.encode_manifest(
            manifest_parts_in(generation)
        ).data,
        f"{generation}/attributes.{extension}": codec.encode_attributes(attribute_rows()).data,
    }


def snapshot_with_strings() -> bytes:
    """A snapshot of a store as icefloe wrote it before H-16 was answered by raw bits."""
    body = generation_files("store")["store/snapshot.json"].rpartition(b',\n"checksum"')[0]
    body = body.replace(b'{"RawBits":[0,0,192,127]}', b'{"Float32":"NaN"}')
    return body + b',\n"checksum":"crc32:%08x"}\n' % zlib.crc32(body)


KEPT_FOLDERS = ("dataset-without-checksums",)
"""Golden files that an earlier version of icefloe wrote: they are read, and not written again."""


def golden_files() -> dict[str, bytes]:
    """All golden files by name."""
    files = {}
    for version in (1, 2):
        codec = format_for(spec_version=version).codec
        files[f"v{version}/snapshot"] = codec.encode_snapshot(snapshot()).data
        files[f"v{version}/manifest"] = codec.encode_manifest(manifest_parts()).data
        files[f"v{version}/attributes"] = codec.encode_attributes(attribute_rows()).data
        files[f"v{version}/transaction_log"] = codec.encode_transaction_log(transaction_log()).data
    for generation in ("store", "dataset"):
        files |= generation_files(generation)
    files["store/snapshot-with-strings.json"] = snapshot_with_strings()
    for layout in OLD_LAYOUTS:
        encoder = OldEncoder(layout)
        files[f"old-{layout.name}/snapshot"] = encoder.snapshot()
        files[f"old-{layout.name}/manifest"] = encoder.manifest()
        log = encoder.log()
        if log is not None:
            files[f"old-{layout.name}/transaction_log"] = log
    return files


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    for name, data in golden_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
