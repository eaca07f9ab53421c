"""Every value comes back from its bytes, in every spec version."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.formats.columns import (
    pack_integers,
    pack_strings,
    unpack_integers,
    unpack_strings,
)
from icefloe.formats.port import NeedsMore
from icefloe.formats.registry import format_for
from icefloe.model import manifest as manifest_module
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.chunk_refs import (
    ChunkRef,
    ChunkRefs,
    InlineRef,
    Locations,
    NativeRef,
    StringColumn,
    VirtualRef,
)
from icefloe.model.ids import AttributesId, ChunkFileId, ManifestId, NodeId, SnapshotId
from icefloe.model.manifest import ArrayChunks, Manifest, ManifestBlock, ManifestFileInfo
from icefloe.model.nodes import AttributesRef, ManifestRef, Node, NodeTable, make_node
from icefloe.model.snapshot import AttributesFileInfo, FileSum, Snapshot, SnapshotStub
from icefloe.model.transaction_log import Move, TransactionLog

if TYPE_CHECKING:
    from icefloe.formats.port import Codec

CODECS = [format_for(spec_version=version).codec for version in (1, 2)]
READER = format_for().codec
both_versions = pytest.mark.parametrize("codec", CODECS, ids=["v1", "v2"])

# --- strategies

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
sizes = st.integers(0, 2**63 - 1)
# The format counts time from 1970.
times = st.integers(0, 2 * 10**17).map(
    lambda microseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
attributes = st.dictionaries(text, json_values, max_size=3)


def ids(kind: type) -> st.SearchStrategy[Any]:
    return st.binary(min_size=kind.SIZE, max_size=kind.SIZE).map(kind)  # type: ignore[attr-defined]


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int]:
    offset = draw(st.one_of(st.integers(0, 300), sizes))
    return offset, draw(st.integers(0, min(2**62, 2**63 - 1 - offset)))


@st.composite
def native_refs(draw: st.DrawFn, files: list[ChunkFileId]) -> NativeRef:
    offset, length = draw(spans())
    return NativeRef(draw(st.sampled_from(files)), offset, length, draw(st.integers(0, 2**32 - 1)))


@st.composite
def virtual_refs(draw: st.DrawFn, urls: list[str]) -> VirtualRef:
    offset, length = draw(spans())
    etag = draw(st.none() | text.filter(bool))
    modified = draw(st.none() | st.integers(1, 2**40))
    return VirtualRef(draw(st.sampled_from(urls)), offset, length, etag, modified)


@st.composite
def tables(draw: st.DrawFn) -> dict[tuple[int, ...], ChunkRef]:
    """References of one array: often dense, of one or of several kinds."""
    rank = draw(st.integers(0, 3))
    largest = draw(st.sampled_from([1, 2, 3, 2**15]))
    coords = draw(
        st.sets(
            st.tuples(*[st.integers(0, largest)] * rank),
            min_size=1,
            max_size=1 if rank == 0 else 8,
        )
    )
    files = draw(st.lists(ids(ChunkFileId), min_size=1, max_size=3))
    urls = draw(st.lists(text.map(lambda name: f"s3://bucket/{name}"), min_size=1, max_size=4))
    kinds = draw(st.sets(st.sampled_from("nvi"), min_size=1))
    choices: dict[str, st.SearchStrategy[Any]] = {
        "n": native_refs(files),
        "v": virtual_refs(urls),
        "i": st.builds(InlineRef, st.binary(max_size=20)),
    }
    ref = st.one_of([choices[kind] for kind in sorted(kinds)])
    return {place: draw(ref) for place in sorted(coords)}


manifests = st.dictionaries(ids(NodeId), tables(), min_size=1, max_size=3)


def array_document(draw: st.DrawFn, rank: int) -> dict[str, Any]:
    shape = draw(st.lists(st.integers(0, 1000), min_size=rank, max_size=rank))
    chunks = draw(st.lists(st.integers(1, 100), min_size=rank, max_size=rank))
    data_type, fill_value = draw(
        st.sampled_from(
            [
                ("bool", True),
                ("int8", -1),
                ("uint64", 2**64 - 1),
                ("int64", -(2**63)),
                ("float16", "NaN"),
                ("float32", 1e300),
                ("float64", "-Infinity"),
                ("float32", "0x7fc00001"),
                ("complex64", ["NaN", 1.5]),
                ("complex128", [0.0, "Infinity"]),
                ("string", "text"),
                ("bytes", [1, 2, 255]),
                ("bytes", "AAEC"),
                ("r16", [0, 1]),
                ("variable_length_bytes", ""),
                ({"name": "numpy.datetime64", "configuration": {"unit": "s"}}, "NaT"),
                ({"name": "numpy.timedelta64", "configuration": {"unit": "s"}}, 5),
                ({"name": "fixed_length_utf32", "configuration": {"length_bytes": 4}}, ""),
                ({"name": "struct", "configuration": {"fields": []}}, "AAAA"),
                ("float64", None),
            ]
        )
    )
    grid: dict[str, Any] = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    if rank and draw(st.booleans()):
        edges = [max(1, extent) for extent in shape]
        grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": edges}}
    document = {
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": grid,
        "chunk_key_encoding": draw(
            st.sampled_from(
                [
                    {"name": "default", "configuration": {"separator": "/"}},
                    {"name": "default", "configuration": {"separator": "."}},
                    {"name": "default"},
                    {"name": "v2", "configuration": {"separator": "."}},
                    {"name": "v2"},
                ]
            )
        ),
        "fill_value": fill_value,
        "codecs": [
            {"name": "bytes"},
            {"name": "zstd", "configuration": draw(attributes)},
            "crc32c",
        ],
        "zarr_format": 3,
        "node_type": "array",
        "an unknown member": {"must_understand": False},
    }
    if draw(st.booleans()):
        document["attributes"] = draw(attributes) | {"huge": 2**70}
    if draw(st.booleans()):
        document["dimension_names"] = draw(st.lists(st.none() | text, min_size=rank, max_size=rank))
    if draw(st.booleans()):
        document["storage_transformers"] = []
    return document


@st.composite
def nodes(
    draw: st.DrawFn, listed: list[ManifestFileInfo], files: list[AttributesFileInfo], path: str
) -> Node:
    indent = draw(st.sampled_from([None, 2]))
    node_id = draw(ids(NodeId))
    if path == "/" or draw(st.booleans()):
        document: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
        document |= {"attributes": draw(attributes)}
        node = make_node(node_id, path, json.dumps(document, indent=indent).encode())
    else:
        rank = draw(st.integers(0, 3))
        text_form = json.dumps(array_document(draw, rank), indent=indent, ensure_ascii=False)
        node = make_node(node_id, path, text_form.encode())
        chosen = draw(st.lists(st.sampled_from(listed), unique=True)) if listed else []
        refs = []
        for info in chosen:
            lower = draw(st.lists(st.integers(0, 2**20), min_size=rank, max_size=rank))
            shape = draw(st.lists(st.integers(1, 2**20), min_size=rank, max_size=rank))
            upper = tuple(low + extent for low, extent in zip(lower, shape, strict=True))
            refs.append(ManifestRef(info.id, Box(tuple(lower), upper), draw(st.integers(1, 2**40))))
        node = node.evolve(manifests=tuple(refs))
    if files and draw(st.booleans()):  # type: ignore[arg-type]
        cut = node.document
        whole = b'"attributes": {}'
        if whole in cut:
            position = cut.index(whole) + len(whole) - 2
            node = node.evolve(
                document=cut[:position] + cut[position + 2 :],
                attributes=AttributesRef(
                    draw(st.sampled_from(files)).id, draw(st.integers(0, 2**32 - 1)), position
                ),
            )
    return node


segments = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=6
).filter(lambda segment: segment not in {".", ".."})
paths = st.lists(segments, max_size=3).map(lambda parts: "/" + "/".join(parts))


checksums = st.just(0) | st.integers(0, 2**32 - 1)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    listed = [
        ManifestFileInfo(manifest_id, draw(sizes), draw(sizes), "", draw(checksums))
        for manifest_id in draw(st.lists(ids(ManifestId), unique=True, max_size=4))
    ]
    files = [
        AttributesFileInfo(file_id, draw(sizes), draw(checksums))
        for file_id in draw(st.lists(ids(AttributesId), unique=True, max_size=2))
    ]
    snapshot_id, *ancestors = draw(st.lists(ids(SnapshotId), unique=True, min_size=1, max_size=5))
    history = tuple(SnapshotStub(ancestor, draw(times), draw(text)) for ancestor in ancestors)
    table = [draw(nodes(listed, files, path)) for path in draw(st.sets(paths, max_size=6))]
    return Snapshot(
        id=snapshot_id,
        parent_id=history[0].id if history else None,
        written_at=draw(times),
        started_at=draw(times),
        message=draw(text),
        metadata=draw(attributes),
        total_parents=draw(st.integers(0, 2**32 - 1)),
        history=history,
        manifests=tuple(listed),
        attribute_files=tuple(files),
        nodes=NodeTable.of(table),
        log_file=draw(st.none() | st.builds(FileSum, sizes, checksums)),
        parent_file=draw(st.none() | st.builds(FileSum, sizes, checksums)),
    )


@st.composite
def logs(draw: st.DrawFn) -> TransactionLog:
    chosen = draw(st.lists(ids(NodeId), unique=True, max_size=12))
    groups: list[frozenset[NodeId]] = [frozenset() for _ in range(6)]
    for node_id in chosen:
        number = draw(st.integers(0, 5))
        groups[number] |= {node_id}
    updated = draw(st.dictionaries(ids(NodeId), tables(), max_size=3))
    moves = draw(st.lists(st.builds(Move, ids(NodeId), paths, paths), max_size=3))
    return TransactionLog(  # type: ignore[misc]
        *groups,  # type: ignore[arg-type]
        updated_chunks={
            node_id: ChunkIndex.from_tuples(list(table), len(next(iter(table))))
            for node_id, table in updated.items()
        },
        moves=tuple(moves),
        repaired_for=draw(st.none() | ids(SnapshotId)),
    )


# --- round trips


def open_manifest(data: bytes) -> Manifest:
    answer = READER.decode_manifest_index(data[:10], len(data), "key")
    # A reader that sees too little is told how much it must see.
    while isinstance(answer, NeedsMore):
        assert answer.length <= len(data)
        answer = READER.decode_manifest_index(data[: answer.length], len(data), "key")
    index = answer
    spans = index.block_spans.tolist()

    def load(number: int) -> ManifestBlock:
        start, length = spans[number]
        return READER.decode_block(index, number, data[start : start + length], "key")

    return Manifest(index, load)


@both_versions
@pytest.mark.parametrize("block_rows", [2, 65_536])
@given(model=manifests)
def test_manifests(
    codec: Codec, block_rows: int, model: dict[NodeId, dict[tuple[int, ...], ChunkRef]]
) -> None:
    parts = [
        (node_id, ArrayChunks.of(list(table), list(table.values()), len(next(iter(table)))))
        for node_id, table in model.items()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "MAX_BLOCK_ROWS", block_rows)
        data = codec.encode_manifest(parts).data
    manifest = open_manifest(data)
    assert manifest.num_refs == sum(map(len, model.values()))
    assert set(manifest.index.arrays) == set(model)
    for node_id, table in model.items():
        chunks = manifest.array(node_id)
        assert chunks is not None
        assert dict(zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True)) == table
        for coords, ref in table.items():
            assert manifest.find(node_id, coords) == ref


def random_columns(seed: int, count: int) -> ArrayChunks:
    """Many references, in the patterns that make a column narrow or wide."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice([1, 2, 3] if rng.random() < 0.5 else [int(rng.integers(1, 4))], count)
    runs = np.sort(rng.integers(0, 5, count)) if rng.random() < 0.5 else rng.integers(0, 5, count)
    lengths = rng.integers(1, 2 ** int(rng.integers(1, 40)), count).astype(np.uint64)
    offsets = rng.integers(0, 2 ** int(rng.integers(1, 60)), count).astype(np.uint64)
    if rng.random() < 0.5:
        offsets = np.cumsum(lengths) - lengths
    inline = rng.bytes(4 * count + 4)
    is_inline = kinds == 3
    lengths[is_inline] = 3
    offsets[is_inline] = rng.integers(0, 3 * count, is_inline.sum())
    urls = [f"s3://bucket/{'x' * int(rng.integers(0, 3))}{number}.nc" for number in range(5)]
    etags = [None, "tag", "other", None, "long" * 9] if rng.random() < 0.5 else [None] * 5
    refs = ChunkRefs(
        kinds.astype(np.uint8),
        np.where(is_inline, 0, runs).astype(np.uint32),
        offsets,
        lengths,
        np.where(kinds == 1, rng.integers(0, 2**32, count), 0).astype(np.uint32),
        rng.integers(0, 256, (5, 12)).astype(np.uint8),
        Locations.of([(url, etag, None) for url, etag in zip(urls, etags, strict=True)]),
        inline,
    )
    positions = np.sort(rng.choice(3 * count, count, replace=False)).astype(np.uint64)
    box = Box((7,), (7 + 3 * count,))
    if rng.random() < 0.5:
        return ArrayChunks(ChunkIndex(Box((7,), (7 + count,)), None), refs)
    return ArrayChunks(ChunkIndex(box, positions), refs)


@both_versions
@given(
    seeds=st.lists(st.tuples(st.integers(0, 2**32), st.integers(1, 200)), min_size=1, max_size=3),
    block_rows=st.sampled_from([50, 65_536]),
)
def test_manifests_of_many_references(
    codec: Codec, seeds: list[tuple[int, int]], block_rows: int
) -> None:
    parts = [
        (NodeId(bytes([number]) * 8), random_columns(*seed)) for number, seed in enumerate(seeds)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_module, "MAX_BLOCK_ROWS", block_rows)
        data = codec.encode_manifest(parts).data
    manifest = open_manifest(data)
    for node_id, expected in parts:
        chunks = manifest.array(node_id)
        assert chunks is not None
        assert np.array_equal(chunks.index.coords(), expected.index.coords())
        assert chunks.refs.tolist() == expected.refs.tolist()


@both_versions
@given(snapshot=snapshots())
def test_snapshots(codec: Codec, snapshot: Snapshot) -> None:
    data = codec.encode_snapshot(snapshot).data
    found = READER.decode_snapshot(data, snapshot.id, "key")
    for field in snapshot.__struct_fields__:
        if field != "nodes":
            assert getattr(found, field) == getattr(snapshot, field), field
    assert list(found.nodes.paths) == list(snapshot.nodes.paths)
    assert list(found.nodes.node_ids()) == list(snapshot.nodes.node_ids())
    for node in snapshot.nodes:
        assert found.nodes.get(node.path) == node
        assert found.nodes.by_id(node.id) is not None
    assert READER.spec_version_of(data, "key") == codec.spec_version


@both_versions
@given(log=logs())
def test_transaction_logs(codec: Codec, log: TransactionLog) -> None:
    data = codec.encode_transaction_log(log).data
    assert READER.decode_transaction_log(data, "key") == log


@both_versions
@given(rows=st.lists(st.tuples(attributes, st.sampled_from([None, 1])), max_size=4))
def test_attribute_files(codec: Codec, rows: list[tuple[dict[str, Any], int | None]]) -> None:
    documents = [json.dumps(value, indent=indent).encode() for value, indent in rows]
    data = codec.encode_attributes(documents).data
    assert READER.decode_attributes(data, "key") == documents


# --- columns

INTEGERS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60),
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.integers(0, 2**40), max_size=60).map(sorted),
    st.builds(
        lambda first, step, count: [first + step * number for number in range(count)],
        st.integers(0, 2**40),
        st.integers(-5, 2**20),
        st.integers(0, 100),
    ),
)


@given(INTEGERS)
def test_integers(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    found = unpack_integers(pack_integers(column), len(values), "key", limit=None)
    assert found.view(np.int64).tolist() == values


@given(
    st.one_of(
        st.lists(text, max_size=40),
        st.lists(st.integers(0, 10**6).map("s3://bucket/file_{:06d}.nc".format), max_size=40),
        st.lists(st.integers(0, 10**6).map("file_{}".format), max_size=40),
    )
)
def test_strings(values: list[str]) -> None:
    found = unpack_strings(pack_strings(StringColumn.of(values)), len(values), "key")
    assert found.tolist() == values
