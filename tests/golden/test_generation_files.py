"""Golden files of the generations `store` and `dataset`: read them, and write them again alike."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from icefloe.formats.port import NeedsMore
from icefloe.formats.registry import format_for
from icefloe.model.manifest import Manifest
from scripts import make_golden

FILES = {"store": "json", "dataset": "parquet", "dataset-without-checksums": "parquet"}


def golden(folder: str, name: str) -> bytes:
    return (make_golden.DEFAULT_FOLDER / folder / f"{name}.{FILES[folder]}").read_bytes()


@pytest.mark.parametrize("folder", FILES)
def test_files_are_read(folder: str) -> None:
    generation = folder.partition("-")[0]
    codec = format_for(generation).codec
    expected = make_golden.snapshot_in(generation)
    found = codec.decode_snapshot(golden(folder, "snapshot"), expected.id, "golden")
    for field in ("id", "parent_id", "written_at", "started_at", "message", "metadata"):
        assert getattr(found, field) == getattr(expected, field), field
    for field in ("total_parents", "history", "manifests", "attribute_files"):
        assert getattr(found, field) == getattr(expected, field), field
    assert list(found.nodes) == list(expected.nodes)
    assert codec.decode_attributes(golden(folder, "attributes"), "golden") == (
        make_golden.attribute_rows()
    )
    data = golden(folder, "manifest")
    index = codec.decode_manifest_index(data, len(data), "golden")
    assert not isinstance(index, NeedsMore)
    spans = index.block_spans.tolist()
    manifest = Manifest(
        index,
        lambda n: codec.decode_block(index, n, data[spans[n][0] : sum(spans[n])], "golden"),
    )
    for node_id, chunks in make_golden.manifest_parts_in(generation):
        for coords, ref in zip(chunks.index.tuples(), chunks.refs.tolist(), strict=True):
            assert manifest.find(node_id, coords) == ref


def test_fill_values_that_are_strings_are_read() -> None:  # H-16
    """What icefloe wrote before, which the schema of spec 003 refuses."""
    data = (make_golden.DEFAULT_FOLDER / "store" / "snapshot-with-strings.json").read_bytes()
    assert data == make_golden.snapshot_with_strings()
    assert b'"fill_value":{"Float32":"NaN"}' in data
    expected = make_golden.snapshot_in("store")
    found = format_for("store").codec.decode_snapshot(data, expected.id, "golden")
    assert list(found.nodes) == list(expected.nodes)


def test_json_is_written_alike() -> None:
    for name, data in make_golden.generation_files("store").items():
        assert data == (make_golden.DEFAULT_FOLDER / name).read_bytes()


def test_tables_have_checksums_by_now() -> None:
    for name in ("snapshot", "manifest", "attributes"):
        assert b"icefloe.checksums" in golden("dataset", name)
        assert b"icefloe.checksums" not in golden("dataset-without-checksums", name)


def test_tables_are_written_alike() -> None:
    """Bytes of Parquet depend on the version of Arrow; schema, rows and row groups do not."""
    for name, data in make_golden.generation_files("dataset").items():
        old = pq.ParquetFile(make_golden.DEFAULT_FOLDER / name)
        new = pq.ParquetFile(io.BytesIO(data))
        assert new.schema_arrow.equals(old.schema_arrow, check_metadata=True)
        assert new.read().replace_schema_metadata(None) == old.read().replace_schema_metadata(None)
        assert new.num_row_groups == old.num_row_groups
