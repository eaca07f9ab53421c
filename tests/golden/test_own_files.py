"""The golden files that `scripts/make_golden.py` wrote: read them, and write them again alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.formats.container import HEADER_SIZE, MAGIC, decompress
from icefloe.formats.port import NeedsMore
from icefloe.formats.registry import format_for
from icefloe.model.chunk_index import Box, ChunkIndex
from icefloe.model.manifest import Manifest, ManifestFileInfo
from icefloe.model.nodes import ManifestRef
from scripts import make_golden

if TYPE_CHECKING:
    from icefloe.model.chunk_refs import ChunkRef
    from icefloe.model.ids import NodeId
    from icefloe.model.snapshot import Snapshot

CODEC = format_for().codec
DATA = make_golden.DEFAULT_FOLDER
OLD = [pytest.param(layout, id=layout.name) for layout in make_golden.OLD_LAYOUTS]


def open_manifest(data: bytes) -> Manifest:
    index = CODEC.decode_manifest_index(data[:5], len(data), "golden")
    while isinstance(index, NeedsMore):
        index = CODEC.decode_manifest_index(data[: index.length], len(data), "golden")
    spans = index.block_spans.tolist()

    def load(number: int) -> Any:
        start, length = spans[number]
        return CODEC.decode_block(index, number, data[start : start + length], "golden")

    return Manifest(index, load)


def references(manifest: Manifest, node_id: NodeId, rank: int) -> dict[tuple[int, ...], ChunkRef]:
    chunks = manifest.array(node_id, rank)
    assert chunks is not None
    return dict(zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True))


def assert_same_snapshot(found: Snapshot, expected: Snapshot) -> None:
    for field in ("id", "parent_id", "written_at", "started_at", "message", "metadata"):
        assert getattr(found, field) == getattr(expected, field), field
    for field in ("total_parents", "history", "manifests", "attribute_files"):
        assert getattr(found, field) == getattr(expected, field), field
    assert list(found.nodes) == list(expected.nodes)
    assert list(found.nodes.node_ids()) == list(expected.nodes.node_ids())


@pytest.mark.parametrize("version", [1, 2])
def test_snapshot(version: int) -> None:
    data = (DATA / f"v{version}" / "snapshot").read_bytes()
    expected = make_golden.snapshot()
    assert_same_snapshot(CODEC.decode_snapshot(data, expected.id, "golden"), expected)
    assert CODEC.spec_version_of(data, "golden") == version


@pytest.mark.parametrize("version", [1, 2])
def test_manifest(version: int) -> None:
    manifest = open_manifest((DATA / f"v{version}" / "manifest").read_bytes())
    parts = make_golden.manifest_parts()
    assert manifest.num_refs == sum(len(chunks) for _, chunks in parts)
    for node_id, chunks in parts:
        expected = dict(zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True))
        assert references(manifest, node_id, chunks.index.rank) == expected
        for coords, ref in expected.items():
            assert manifest.find(node_id, coords) == ref


@pytest.mark.parametrize("version", [1, 2])
def test_attributes_and_log(version: int) -> None:  # R2-18, R2-19
    folder = DATA / f"v{version}"
    rows = CODEC.decode_attributes((folder / "attributes").read_bytes(), "golden")
    assert rows == make_golden.attribute_rows()
    log = CODEC.decode_transaction_log((folder / "transaction_log").read_bytes(), "golden")
    assert log == make_golden.transaction_log()


def unpacked(name: str, data: bytes) -> tuple[bytes, ...]:
    """A file without what may differ between versions of icefloe and of zstd."""
    assert data[: len(MAGIC)] == MAGIC
    kind, body = data[24:HEADER_SIZE], data[HEADER_SIZE:]
    if name != "v2/manifest":
        return kind, decompress(body, name)
    index_end = 4 + int.from_bytes(body[:4], "little")
    frames = [body[4:index_end]]
    index = CODEC.decode_manifest_index(data, len(data), name)
    assert not isinstance(index, NeedsMore)
    frames += [data[start : start + length] for start, length in index.block_spans.tolist()]
    # The index has the sizes of the compressed blocks, so of it only the rest is compared.
    return kind, *(decompress(frame, name) for frame in frames[1:])


@pytest.mark.parametrize(
    "name",
    [
        f"v{version}/{kind}"
        for version in (1, 2)
        for kind in ("snapshot", "manifest", "attributes", "transaction_log")
    ],
)
def test_writing_again_gives_the_same_bytes(name: str) -> None:  # R2-03, R2-12, R2-13
    written = make_golden.golden_files()[name]
    assert unpacked(name, written) == unpacked(name, (DATA / name).read_bytes())


# --- old layouts


@pytest.mark.parametrize("layout", OLD)
def test_old_snapshot(layout: make_golden.OldLayout) -> None:
    encoder = make_golden.OldEncoder(layout)
    data = (DATA / f"old-{layout.name}" / "snapshot").read_bytes()
    snapshot = CODEC.decode_snapshot(data, make_golden.SNAPSHOT_ID, "golden")
    assert CODEC.spec_version_of(data, "golden") == 0
    assert snapshot.message == make_golden.OLD_MESSAGE
    assert snapshot.parent_id == make_golden.FIRST_ID
    assert snapshot.metadata == {"by": "me"}
    assert snapshot.written_at == datetime(2024, 10, 13, 18, 53, 45, 442391, tzinfo=UTC)
    assert snapshot.started_at - snapshot.written_at <= timedelta(0)
    assert snapshot.total_parents == 1
    knows_size = layout.manifest_info_fields > 2
    knows_count = layout.manifest_info_fields == 4 or layout.manifest_fields == 2
    manifest = make_golden.MANIFESTS[0]
    assert snapshot.manifests == (
        ManifestFileInfo(manifest, 250 if knows_size else 0, 6 if knows_count else 0),
    )
    assert [node.path for node in snapshot.nodes] == ["/", "/grid", "/line"]
    root, grid, line = snapshot.nodes
    assert [node.id for node in snapshot.nodes] == [encoder.node(n) for n in (1, 2, 3)]
    assert root.document == b'{"zarr_format":3,"node_type":"group","attributes":{}}'
    # wire formats 4.2: the order of the members that the reference implementation wrote
    assert grid.document == (
        b'{"zarr_format":3,"node_type":"array","attributes":{"a":1,"b":[1.5,"x"]},"shape":[20,30],'
        b'"data_type":"float32","chunk_grid":{"name":"regular","configuration":{"chunk_shape":'
        b'[10,10]}},"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},'
        b'"fill_value":"NaN","codecs":[{"name":"bytes","configuration":{"endian":"little"}}],'
        b'"storage_transformers":[],"dimension_names":null}'
    )
    assert line.document == (
        b'{"zarr_format":3,"node_type":"array","shape":[3],"data_type":"int8","chunk_grid":'
        b'{"name":"regular","configuration":{"chunk_shape":[1]}},"chunk_key_encoding":{"name":'
        b'"default","configuration":{"separator":"/"}},"fill_value":8,"codecs":[{"name":"bytes"}],'
        b'"dimension_names":["x"]}'
    )
    assert grid.manifests == (ManifestRef(manifest, Box((0, 0), (2, 3)), 6),)
    assert line.manifests == (ManifestRef(manifest, Box((0,), (3,)), 3),)


@pytest.mark.parametrize("layout", OLD)
def test_old_manifest(layout: make_golden.OldLayout) -> None:
    encoder = make_golden.OldEncoder(layout)
    manifest = open_manifest((DATA / f"old-{layout.name}" / "manifest").read_bytes())
    grid, line = encoder.node(2), encoder.node(3)
    assert references(manifest, grid, 2) == encoder.expected_chunks()
    assert references(manifest, line, 1) == make_golden.OLD_LINE
    assert manifest.find(grid, (0, 2)) == make_golden.OLD_CHUNKS[0, 2]
    assert manifest.find(grid, (1, 2)) is None
    assert manifest.find(line, (0, 0)) is None


@pytest.mark.parametrize("layout", [p for p in OLD if p.values[0].log_fields])
def test_old_transaction_log(layout: make_golden.OldLayout) -> None:
    encoder = make_golden.OldEncoder(layout)
    data = (DATA / f"old-{layout.name}" / "transaction_log").read_bytes()
    log = CODEC.decode_transaction_log(data, "golden")
    assert log.new_groups == {encoder.node(1)}
    assert log.new_arrays == {encoder.node(2)}
    assert not log.updated_groups
    assert not log.updated_arrays
    assert log.updated_chunks == {encoder.node(3): ChunkIndex.from_tuples([(0,), (2,)], 1)}


def test_old_files_are_what_the_script_writes() -> None:
    written = make_golden.golden_files()
    on_disk = {str(p.relative_to(DATA)) for p in DATA.rglob("*") if p.is_file()}
    kept = {name for name in on_disk if name.startswith(make_golden.KEPT_FOLDERS)}
    assert on_disk - kept == set(written)
    for name in written:
        if name.startswith(("old-a", "old-b")):
            assert (DATA / name).read_bytes() == written[name]
