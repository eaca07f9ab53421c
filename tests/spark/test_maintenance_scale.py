"""A million chunk files: the driver of maintenance jobs holds none of their ids."""

from __future__ import annotations

import os
import tracemalloc
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
import zarr

import icefloe
import icefloe.spark as floe
from icefloe.engine.retention.marking import Marks
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.ids import ChunkFileId, ManifestId, SnapshotId
from icefloe.model.manifest import ArrayChunks, ManifestFileInfo
from icefloe.spark.jobs import orphan_files
from tests.profiles import IS_DEEP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

FILES = int(os.environ.get("ICEFLOE_TEST_FILES", "1000000"))


def write_files(place: Path, ids: np.ndarray) -> None:
    """Write chunk files of one byte, a day old: links to one file, which are quick to make."""
    folder = place / "chunks"
    folder.mkdir(exist_ok=True)
    one = place / "one"
    one.write_bytes(b"1")
    os.utime(one, (one.stat().st_mtime - 86_400,) * 2)
    source = one
    for number, data in enumerate(ids):
        if number % 30_000 == 0:  # filesystems bound the number of links
            source = place / f"one-{number}"
            source.write_bytes(b"1")
            os.utime(source, (one.stat().st_mtime,) * 2)
        os.link(source, folder / str(ChunkFileId(data.tobytes())))
    for source in place.glob("one*"):
        source.unlink()


def refer_to(repo: icefloe.Repository, ids: np.ndarray) -> None:
    """Commit an array whose chunks are files."""
    count = len(ids)
    refs = ChunkRefs(
        kinds=np.full(count, ChunkKind.NATIVE, dtype=np.uint8),
        sources=np.arange(count, dtype=np.uint32),
        offsets=np.zeros(count, dtype=np.uint64),
        lengths=np.ones(count, dtype=np.uint64),
        checksums=np.zeros(count, dtype=np.uint32),
        files=ids,
        locations=Locations.none(),
        inline=b"",
    )
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(count,), chunks=(1,), dtype="u1")
    coords = np.arange(count, dtype=np.int64).reshape(-1, 1)
    session.tree.set_chunk_refs("/a", ArrayChunks.from_columns(coords, refs), None)
    session.commit("many")


@pytest.mark.skipif(not IS_DEEP, reason="makes a million files: done by `make test-deep`")
@pytest.mark.timeout(3600)
def test_a_million_files_are_not_held_by_the_driver(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ids = np.random.default_rng(1).integers(0, 256, (FILES, 12), dtype=np.uint8)
    live = FILES // 2
    repo = icefloe.Repository.create(str(tmp_path / "repo"))
    write_files(tmp_path / "repo", ids)
    refer_to(repo, ids[:live])
    del ids
    peaks = {}
    for name in ("dry run", "collection", "verification"):
        tracemalloc.start()
        if name == "verification":
            assert floe.verify(spark, repo).count() == 0
        else:
            is_dry = name == "dry run"
            done = floe.remove_orphan_files(spark, repo, timedelta(hours=1), dry_run=is_dry)
            assert done.first()["chunks_deleted"] == FILES - live
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        record_property(f"driver's MiB, {name} of {FILES} files", peaks[name] / 2**20)
    assert sum(1 for _ in (tmp_path / "repo" / "chunks").iterdir()) == live
    # Their ids, sizes and times as columns would be 28 bytes each.
    assert peaks["dry run"] < 14 * FILES
    assert peaks["collection"] < 14 * FILES


def test_the_driver_holds_some_hundred_bytes_for_each_manifest() -> None:
    """What is left of its memory: with 10^8 chunks in 10^5 manifests, some 50 MB."""
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.readonly_session("main")
    count = 10_000
    infos = tuple(
        ManifestFileInfo(ManifestId.random(), 1_000_000 + number, 1000, checksum=2**31 + number)
        for number in range(count)
    )
    base = session.tree.context.files.read_snapshot(SnapshotId.from_text(session.snapshot_id))
    marks = Marks(session.tree.context)
    snapshots = [msgspec.structs.replace(base, id=SnapshotId.random()) for _ in range(count)]
    tracemalloc.start()
    for snapshot in snapshots:
        marks.add_snapshot(snapshot)
    of_snapshots = tracemalloc.get_traced_memory()[0]
    marks.add_snapshot(msgspec.structs.replace(base, manifests=infos))
    groups = orphan_files._groups(list(marks.marked_manifests()), 8)
    of_manifests = tracemalloc.get_traced_memory()[0] - of_snapshots
    tracemalloc.stop()
    assert sum(map(len, groups)) == count
    assert of_snapshots < 400 * count
    assert of_manifests < 500 * count
