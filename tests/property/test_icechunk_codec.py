"""Files of official Icechunk, both versions: values come back, and bad bytes are FormatErrors."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.icechunk.codec import IcechunkCodec
from icefloe.formats.icechunk.container import FlatFileType, make_file, open_file
from icefloe.formats.port import NeedsMore
from icefloe.model.chunk_refs import (
    ChunkKind,
    ChunkRef,
    ChunkRefs,
    Locations,
    NativeRef,
    VirtualRef,
)
from icefloe.model.ids import ChunkFileId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayChunks, Manifest, ManifestIndex
from icefloe.model.nodes import NodeTable, make_node
from icefloe.model.snapshot import Snapshot
from icefloe.model.transaction_log import Move, TransactionLog
from tests.flatbuffers_verifier import LOG, MANIFEST, SNAPSHOT, verify_file
from tests.property.test_codecs import logs, manifests, random_columns, snapshots

READER = IcechunkCodec(2)
VERSIONS = (1, 2)
both_versions = pytest.mark.parametrize("version", VERSIONS)
GROUP = b'{"zarr_format":3,"node_type":"group"}'


def as_kept(ref: ChunkRef) -> ChunkRef:
    """A reference as this format can hold it."""
    if isinstance(ref, NativeRef):
        return NativeRef(ref.file, min(ref.offset, 2**62), max(ref.length, 1))
    if isinstance(ref, VirtualRef):
        modified = None if ref.last_modified is None else ref.last_modified % 2**32 or None
        length = max(ref.length, 1)
        offset = min(ref.offset, 2**62)
        return msgspec.structs.replace(ref, offset=offset, length=length, last_modified=modified)
    return type(ref)(ref.data or b"\0")


def open_manifest(data: bytes) -> Manifest:
    answer = READER.decode_manifest_index(data[:10], len(data), "key")
    assert answer == NeedsMore(len(data))
    index = READER.decode_manifest_index(data, len(data), "key")
    assert isinstance(index, ManifestIndex)
    return Manifest(index, lambda number: READER.decode_block(index, number, b"", "key"))


@both_versions
@given(model=manifests)
def test_manifests(version: int, model: dict[NodeId, dict[tuple[int, ...], ChunkRef]]) -> None:
    model = {
        node_id: {place: as_kept(ref) for place, ref in table.items()}
        for node_id, table in model.items()
    }
    parts = [
        (node_id, ArrayChunks.of(list(table), list(table.values()), len(next(iter(table)))))
        for node_id, table in model.items()
    ]
    manifest_id = ManifestId.random()
    data = IcechunkCodec(version).encode_manifest(parts, manifest_id=manifest_id).data
    assert verify_file(data, MANIFEST, version)[0] == manifest_id
    manifest = open_manifest(data)
    assert set(manifest.index.arrays) == set(model)
    for node_id, table in model.items():
        chunks = manifest.array(node_id)
        assert chunks is not None
        assert dict(zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True)) == table
        for coords, ref in table.items():
            assert manifest.find(node_id, coords) == ref


@both_versions
@given(st.lists(st.tuples(st.integers(0, 2**32), st.integers(1, 200)), min_size=1, max_size=3))
def test_manifests_of_many_references(version: int, seeds: list[tuple[int, int]]) -> None:
    parts = [
        (NodeId(bytes([number]) * 8), random_columns(*seed)) for number, seed in enumerate(seeds)
    ]
    data = IcechunkCodec(version).encode_manifest(parts).data
    verify_file(data, MANIFEST, version)
    manifest = open_manifest(data)
    for node_id, expected in parts:
        chunks = manifest.array(node_id)
        assert chunks is not None
        assert np.array_equal(chunks.index.coords(), expected.index.coords())
        assert chunks.refs.tolist() == [as_kept(ref) for ref in expected.refs.tolist()]


def without_files(snapshot: Snapshot) -> Snapshot:
    """A snapshot as this format can hold it."""
    infos = tuple(
        msgspec.structs.replace(info, checksum=0, num_chunk_refs=info.num_chunk_refs % 2**32)
        for info in sorted(snapshot.manifests, key=lambda info: info.id)
    )
    counts = {info.id: info.num_chunk_refs for info in infos}
    nodes = []
    for node in snapshot.nodes:
        if node.attributes is not None:
            at = node.attributes.position
            node = node.evolve(  # noqa: PLW2901
                document=node.document[:at] + b"{}" + node.document[at:], attributes=None
            )
        if node.is_array:
            refs = [
                msgspec.structs.replace(ref, num_refs=counts[ref.manifest_id])
                for ref in node.manifests
            ]
            node = node.evolve(manifests=tuple(refs))  # noqa: PLW2901
        nodes.append(node)
    return msgspec.structs.replace(
        snapshot,
        started_at=snapshot.written_at,
        history=(),
        total_parents=int(snapshot.parent_id is not None),
        manifests=infos,
        attribute_files=(),
        nodes=NodeTable.of(nodes),
        log_file=None,
        parent_file=None,
    )


def has_nul_in_a_key(value: object) -> bool:
    """Whether a map in a value has a key with NUL, which ends the keys of FlexBuffers."""
    if isinstance(value, dict):
        return any("\0" in key or has_nul_in_a_key(each) for key, each in value.items())
    return isinstance(value, list) and any(map(has_nul_in_a_key, value))


@both_versions
@given(snapshot=snapshots().map(without_files))
def test_snapshots(version: int, snapshot: Snapshot) -> None:
    if version == 2 and any(map(has_nul_in_a_key, snapshot.metadata.values())):
        with pytest.raises(InvalidInputError, match="a key is text without NUL"):
            IcechunkCodec(version).encode_snapshot(snapshot)
        return
    data = IcechunkCodec(version).encode_snapshot(snapshot).data
    verify_file(data, SNAPSHOT, version)
    found = READER.decode_snapshot(data, snapshot.id, "key")
    # Parents of version 2 are in the file of the references.
    expected = {} if version == 1 else {"parent_id": None, "total_parents": 0}
    for field in snapshot.__struct_fields__:
        if field != "nodes":
            value = expected.get(field, getattr(snapshot, field))
            assert getattr(found, field) == value, field
    assert list(found.nodes) == list(snapshot.nodes)
    assert READER.spec_version_of(data, "key") == version


@both_versions
@given(log=logs())
def test_transaction_logs(version: int, log: TransactionLog) -> None:
    log = msgspec.structs.replace(log, moves=(), repaired_for=None)
    snapshot = snapshot_of({})
    data = IcechunkCodec(version).encode_transaction_log(log, snapshot).data
    assert verify_file(data, LOG, version)[0] == snapshot.id
    assert READER.decode_transaction_log(data, "key") == log


def snapshot_of(nodes: dict[str, NodeId]) -> Snapshot:
    table = NodeTable.of([make_node(each, path, GROUP) for path, each in nodes.items()])
    now = READER.decode_snapshot(FIRST, SnapshotId(b"s" * 12), "key").written_at
    return Snapshot(SnapshotId(b"s" * 12), None, now, now, "", {}, 0, (), (), (), table)


# The epoch, so that a snapshot can be made without a clock.
def _first() -> bytes:
    from datetime import UTC, datetime

    now = datetime(1970, 1, 1, tzinfo=UTC)
    nodes = NodeTable.of([])
    snapshot = Snapshot(SnapshotId(b"s" * 12), None, now, now, "", {}, 0, (), (), (), nodes)
    return IcechunkCodec(2).encode_snapshot(snapshot).data


FIRST = _first()


def test_the_move_of_a_group_names_all_that_moved_along() -> None:
    ids = {path: NodeId(bytes([n]) * 8) for n, path in enumerate(("/b", "/b/x", "/b/x/y", "/b-c"))}
    moves = (
        Move(ids["/b"], "/a", "/b"),
        Move(ids["/b/x/y"], "/elsewhere", "/b/x/y"),
        Move(ids["/b-c"], "/c", "/b-c"),
    )
    log = TransactionLog(moves=moves)
    data = IcechunkCodec(2).encode_transaction_log(log, snapshot_of(ids)).data
    written = [(move[0], move[1]) for move in verify_file(data, LOG, 2)[8]]
    assert written == [
        (b"/a", b"/b"),
        (b"/a/x", b"/b/x"),
        (b"/elsewhere", b"/b/x/y"),
        (b"/c", b"/b-c"),
    ]
    assert READER.decode_transaction_log(data, "key").moves == moves


def test_version_1_has_no_moves() -> None:
    ids = {"/b": NodeId(b"12345678")}
    log = TransactionLog(moves=(Move(ids["/b"], "/a", "/b"),))
    with pytest.raises(InvalidInputError, match=r"version 1 .* cannot record that nodes moved"):
        IcechunkCodec(1).encode_transaction_log(log, snapshot_of(ids))


# --- what cannot be written


def one_ref(**changes: Any) -> ArrayChunks:
    values: dict[str, Any] = {
        "kinds": np.array([ChunkKind.NATIVE], dtype=np.uint8),
        "sources": np.zeros(1, dtype=np.uint32),
        "offsets": np.zeros(1, dtype=np.uint64),
        "lengths": np.ones(1, dtype=np.uint64),
        "checksums": np.zeros(1, dtype=np.uint32),
        "files": np.zeros((1, ChunkFileId.SIZE), dtype=np.uint8),
        "locations": Locations.of([("s3://b/a", None, None)]),
        "inline": b"",
    }
    refs = ChunkRefs(**{**values, **changes})
    return ArrayChunks.from_columns(np.array([[1, 2]], dtype=np.uint64), refs)


def far_away() -> ArrayChunks:
    chunks = one_ref()
    return ArrayChunks.from_columns(np.array([[2**32]], dtype=np.uint64), chunks.refs)


VIRTUAL = np.array([ChunkKind.VIRTUAL], dtype=np.uint8)


@both_versions
@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (one_ref(lengths=np.zeros(1, dtype=np.uint64)), "no bytes"),
        (one_ref(files=np.zeros((1, 16), dtype=np.uint8)), "12 bytes .* found ids of 16"),
        (one_ref(kinds=np.zeros(1, dtype=np.uint8)), "native, virtual and inline"),
        (far_away(), "coordinates up to 4294967295"),
        (
            one_ref(kinds=VIRTUAL, locations=Locations.of([("s3://b/a", None, 2**32)])),
            "from 1970 to 2106",
        ),
    ],
)
def test_what_the_format_cannot_hold_is_refused(
    version: int, chunks: ArrayChunks, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        IcechunkCodec(version).encode_manifest([(NodeId(b"12345678"), chunks)])


@both_versions
def test_a_manifest_without_references_is_refused(version: int) -> None:
    with pytest.raises(InvalidInputError, match="at least one reference"):
        IcechunkCodec(version).encode_manifest([])


# --- compressed locations


def test_locations_that_are_compressed_one_by_one_are_read() -> None:
    import zstandard

    from icefloe.formats.icechunk.builder import OFFSET, Builder

    urls = [f"s3://bucket/a/long/prefix/file-{n // 3}.nc" for n in range(30)]
    samples: list[Any] = [url.encode() * 4 for url in urls] * 20
    dictionary = zstandard.train_dictionary(512, samples)
    compressor = zstandard.ZstdCompressor(dict_data=dictionary, write_content_size=True)
    frames = [compressor.compress(url.encode()) for url in urls]
    builder = Builder()
    root = builder.tables(1, {0: "V12", 1: OFFSET, 2: OFFSET})
    vector = builder.offsets([1])
    root.point(1, vector.vectors)
    array = builder.tables(1, {0: "V8", 1: OFFSET})
    vector.point(array.positions)
    refs = builder.offsets([len(urls) + 1])
    array.point(1, refs.vectors)
    compressed = builder.tables(len(urls), {0: OFFSET, 3: "<u8", 8: OFFSET})
    plain = builder.tables(1, {0: OFFSET, 3: "<u8", 5: OFFSET})
    refs.point(np.append(compressed.positions, plain.positions))
    coords = builder.vectors([1] * (len(urls) + 1), np.arange(len(urls) + 1, dtype="<u4"))
    compressed.point(0, coords[:-1])
    plain.point(0, coords[-1:])
    compressed.put(3, 5)
    plain.put(3, 6)
    compressed.point(8, builder.blobs(frames))
    plain.point(5, builder.texts(["s3://other/place"]))
    root.point(2, builder.blobs([dictionary.as_bytes()]))
    body = builder.finish(root.start)
    data = make_file(2, FlatFileType.MANIFEST, body, 3).data
    manifest = open_manifest(data)
    found = manifest.array(NodeId(bytes(8)))
    assert found is not None
    assert [ref.location for ref in found.refs.tolist()] == [*urls, "s3://other/place"]
    # Neighbours that share a location share its entry.
    assert len(found.refs.locations) == 11
    for damaged in _mutations(body, 300):
        _survives(lambda d=damaged: open_manifest(make_file(2, FlatFileType.MANIFEST, d, 3).data))


# --- bad bytes


def _mutations(body: bytes, count: int) -> list[bytes]:
    """Bodies with other bytes here and there, cut off, or with parts of them elsewhere."""
    rng = random.Random(17)
    mutated = []
    for _ in range(count):
        data = bytearray(body)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(data))
            choice = rng.randrange(4)
            if choice == 0:
                data[at] = rng.randrange(256)
            elif choice == 1:
                word = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, len(body), rng.randrange(2**32)])
                data[at : at + 4] = word.to_bytes(4, "little")
            elif choice == 2:
                del data[at:]
                data = data or bytearray(b"\0")
            else:
                source = rng.randrange(len(data))
                data[at : at + 8] = data[source : source + 8]
        mutated.append(bytes(data))
    return mutated


def _survives(read: Any) -> None:
    """Reading succeeds or raises FormatError, and everything that comes back can be used."""
    try:
        value = read()
        if isinstance(value, Manifest):
            for node_id in value.index.arrays:
                chunks = value.array(node_id)
                assert chunks is not None
                chunks.refs.tolist()
        elif isinstance(value, Snapshot):
            list(value.nodes)
    except FormatError:
        pass


def _body(data: bytes, file_type: FlatFileType) -> bytes:
    return open_file(data, file_type, "key").body


@both_versions
def test_damaged_manifests_are_format_errors(version: int) -> None:
    parts = [(NodeId(bytes([n]) * 8), random_columns(n, 70)) for n in range(6)]
    file = IcechunkCodec(version).encode_manifest(parts).data
    body = _body(file, FlatFileType.MANIFEST)
    for damaged in _mutations(body, 400):
        data = make_file(version, FlatFileType.MANIFEST, damaged, 1).data
        _survives(lambda d=data: open_manifest(d))


@both_versions
def test_damaged_snapshots_and_logs_are_format_errors(version: int) -> None:
    codec = IcechunkCodec(version)
    nodes = {f"/g{n}": NodeId(bytes([n]) * 8) for n in range(20)}
    snapshot = msgspec.structs.replace(snapshot_of(nodes), metadata={"a": [1, "b"], "n": None})
    updated = {NodeId(bytes([n]) * 8): random_columns(n, 20).index for n in range(3)}
    log = TransactionLog(new_groups=frozenset(nodes.values()), updated_chunks=updated)
    if version == 2:
        log = msgspec.structs.replace(log, moves=(Move(nodes["/g1"], "/x", "/g1"),))
    for damaged in _mutations(
        _body(codec.encode_snapshot(snapshot).data, FlatFileType.SNAPSHOT), 400
    ):
        data = make_file(version, FlatFileType.SNAPSHOT, damaged, 1).data
        _survives(lambda d=data: READER.decode_snapshot(d, snapshot.id, "key"))
    written = codec.encode_transaction_log(log, snapshot).data
    for damaged in _mutations(_body(written, FlatFileType.TRANSACTION_LOG), 400):
        data = make_file(version, FlatFileType.TRANSACTION_LOG, damaged, 1).data
        _survives(lambda d=data: READER.decode_transaction_log(d, "key"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (FIRST[:20], "truncated"),
        (b"x" + FIRST[1:], "magic bytes"),
        (FIRST[:36] + b"\x03" + FIRST[37:], "spec version 3 is unknown"),
        (FIRST[:37] + b"\x02" + FIRST[38:], r"expected a snapshot file \(type 1\), found type 2"),
        (FIRST[:38] + b"\x00" + FIRST[39:], "compression 0 is unknown"),
        (FIRST[:-1], "cut off|damaged"),
        (FIRST + b"\0", "damaged|more bytes"),
    ],
)
def test_bad_containers_are_format_errors(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        READER.decode_snapshot(data, SnapshotId(b"s" * 12), "key")


def test_a_shared_vector_cannot_multiply() -> None:
    """A small file whose arrays all share one list of references must not take gigabytes."""
    from icefloe.formats.icechunk.builder import OFFSET, Builder

    builder = Builder()
    root = builder.tables(1, {0: "V12", 1: OFFSET})
    vector = builder.offsets([50_000])
    root.point(1, vector.vectors)
    array = builder.tables(1, {0: "V8", 1: OFFSET})
    vector.point(np.repeat(array.positions, 50_000))
    refs = builder.offsets([50_000])
    array.point(1, refs.vectors)
    one = builder.tables(1, {0: OFFSET, 1: OFFSET})
    refs.point(np.repeat(one.positions, 50_000))
    one.point(0, builder.vectors([0], np.zeros(0, dtype="<u4")))
    one.point(1, builder.blobs([b"x"]))
    data = make_file(2, FlatFileType.MANIFEST, builder.finish(root.start), 3).data
    with pytest.raises(FormatError, match="shared"):
        open_manifest(data)


def test_metadata_whose_keys_version_2_cannot_keep_is_refused() -> None:
    snapshot = msgspec.structs.replace(snapshot_of({}), metadata={"a": [{"\0": 1}]})
    assert IcechunkCodec(1).encode_snapshot(snapshot).data
    with pytest.raises(InvalidInputError, match="a key is text without NUL"):
        IcechunkCodec(2).encode_snapshot(snapshot)
