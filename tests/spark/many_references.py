"""Many virtual references through Spark: what a job that reads huge indexes does.

Run as a program, it shows that ten million of them need little memory in the driver:

    python -m tests.spark.many_references 10000000 /some/folder
"""

from __future__ import annotations

import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import icefloe
from icefloe.model.chunk_refs import ChunkKind, ChunkRefs, Locations
from icefloe.model.manifest import ArrayChunks
from icefloe.spark import NewArray, local_session
from icefloe.spark.engine.chunk_tables import WrittenChunks, to_table
from icefloe.spark.engine.job import Job, JobOptions
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 200_000
COLUMNS = 100
FILES = 50


def virtual_references(start: Any, stop: Any) -> Any:
    """References of rows of chunks, into some files."""
    count = (stop - start) * COLUMNS
    coords = np.indices((stop - start, COLUMNS)).reshape(2, -1).T + np.array([start, 0])
    numbers = np.arange(count, dtype=np.uint64) + np.uint64(start * COLUMNS)
    refs = ChunkRefs(
        np.full(count, ChunkKind.VIRTUAL, dtype=np.uint8),
        (numbers % np.uint64(FILES)).astype(np.uint32),
        numbers * np.uint64(1000),
        np.full(count, 1000, dtype=np.uint64),
        np.zeros(count, dtype=np.uint32),
        np.empty((0, 12), dtype=np.uint8),
        Locations.of([(f"s3://bucket/file-{n}.nc", None, 1_600_000_000) for n in range(FILES)]),
        b"",
    )
    return ArrayChunks.from_columns(coords, refs)


def index_rows(rows: Any, shared: Any) -> Iterator[Any]:
    """A work function: what is in some rows of the array."""
    written = WrittenChunks(virtual_references(*rows), None)
    yield TaskOutput("/a", to_table(written), written.num_chunks)


def link_references(spark: Any, repo: Any, count: Any, **options: Any) -> Any:
    """Commit so many references; returns the report of the job."""
    rows = count // COLUMNS
    job = Job(spark, repo, "link", JobOptions(**options))
    arrays.create(job.session, "/a", NewArray((rows, COLUMNS), "f4", (1, 1)))
    step = max(1, min(STEP, count // 4) // COLUMNS)
    items = [(start, min(rows, start + step)) for start in range(0, rows, step)]
    job.run(index_rows, items, None, linked=True)
    return job.commit(job.plan([], len(items)))


def main() -> None:
    count, folder = int(sys.argv[1]), sys.argv[2]
    spark = local_session(2, memory="512m")
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(folder))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    report = link_references(spark, repo, count)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session = repo.readonly_session("main")
    node = session.get_node("/a")
    assert node is not None
    assert node.num_refs == count
    last = (count // COLUMNS - 1, COLUMNS - 1)
    ref = session.tree.locate("/a", last)
    print(report)
    print(f"{count:,} references in {len(node.manifests)} manifests, {seconds:.1f} s")
    print(f"driver: {peak / 1024:.0f} MiB at most, {(peak - before) / 1024:.0f} MiB for the job")
    print(f"the last one: {ref}")
    spark.stop()


if __name__ == "__main__":
    main()
