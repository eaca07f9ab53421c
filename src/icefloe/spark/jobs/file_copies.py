"""Copies of compactions, migrations and virtual chunks on executors.

What is copied, and what the references say afterwards, is decided by `icefloe.upkeep`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from icefloe.errors import StorageError
from icefloe.model.ids import ChunkFileId
from icefloe.spark.engine.runner import parallelism, run_tasks
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.spark.engine.worker import pickled_context, unpickled_context
from icefloe.spark.jobs.fill import outputs_of
from icefloe.storage.concurrency import in_threads
from icefloe.storage.copying import CopyMethod, copy_object
from icefloe.storage.presence import is_there
from icefloe.upkeep.compaction import write_pack
from icefloe.upkeep.materialize import copy_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from icefloe.engine.context import Context
    from icefloe.model.chunk_refs import ChunkRefs
    from icefloe.spark.engine.worker import SessionSpec
    from icefloe.storage.port import Storage
    from icefloe.upkeep.compaction import PackPart
    from icefloe.upkeep.materialize import VirtualBatch

_FILES_PER_TASK = 2000
_COPIES_AT_ONCE = 16


class SparkPackWriter:
    """Writes the packs of a compaction, each in a task."""

    def __init__(self, spark: SparkSession, context: Context, *, progress: bool | None) -> None:
        """Take the session and the repository."""
        self._spark = spark
        self._pickled = pickled_context(context)
        self._progress = progress

    def write_all(
        self, packs: Iterator[list[PackPart]]
    ) -> Iterator[tuple[list[PackPart], ChunkFileId]]:
        """Write packs; yields each with the id of the new chunk file."""
        waiting = list(packs)
        results = run_tasks(
            self._spark,
            _write_pack,
            [[part.refs.compact() for part in pack] for pack in waiting],
            shared=self._pickled,
            label="rewrite_data_files",
            progress_bar=self._progress,
        )
        for number, _, table in results.outputs():
            yield waiting[number], ChunkFileId(table.column("file").to_pylist()[0])


class SparkFileCopier:
    """Copies the chunk files of a migration, many in a task."""

    def __init__(
        self, spark: SparkSession, source: Storage, target: Storage, *, progress: bool | None
    ) -> None:
        """Take the session and both storages."""
        self._spark = spark
        self._storages = (source, target)
        self._progress = progress

    def __call__(self, keys: list[tuple[str, str]]) -> Iterator[CopyMethod]:
        """Copy files, given by their keys in source and target; yields how each was copied."""
        each = max(1, min(_FILES_PER_TASK, len(keys) // (4 * parallelism(self._spark))))
        results = run_tasks(
            self._spark,
            _copy_files,
            [keys[start : start + each] for start in range(0, len(keys), each)],
            shared=self._storages,
            label="migrate: chunk files",
            progress_bar=self._progress,
        )
        for _, _, table in results.outputs():
            for method, count in zip(*table.to_pydict().values(), strict=True):
                yield from [CopyMethod(method)] * count


# --- on executors


def _write_pack(parts: Sequence[ChunkRefs], shared: bytes) -> Iterator[TaskOutput]:
    context: Context = unpickled_context(shared)
    file_id = write_pack(context, parts)
    context.storage.sync()  # before the driver publishes what refers to it (invariant 3)
    size = sum(int(refs.lengths.sum()) for refs in parts)
    table = pa.table({"file": pa.array([bytes(file_id)], pa.binary())})
    yield TaskOutput(
        name="pack", table=table, chunks=sum(map(len, parts)), bytes_read=size, bytes_written=size
    )


def _copy_files(
    keys: list[tuple[str, str]], shared: tuple[Storage, Storage]
) -> Iterator[TaskOutput]:
    source, target = shared

    def copy_once(pair: tuple[str, str]) -> CopyMethod:
        try:
            return copy_object(source, pair[0], target, pair[1])
        except StorageError:
            # An attempt of this task before may have linked it, and then died.
            if is_there(target, pair[1]):
                return CopyMethod.LINKED
            raise

    methods = in_threads(copy_once, keys, _COPIES_AT_ONCE)
    target.sync()
    counts = {method: methods.count(method) for method in CopyMethod}
    table = pa.table({"method": [str(each) for each in counts], "files": list(counts.values())})
    yield TaskOutput("copies", table)


def copy_virtual(batch: VirtualBatch, shared: SessionSpec) -> Iterator[TaskOutput]:
    """Copy virtual chunks into a part of a session."""
    part = shared.open_part()
    copy_batch(part.tree, batch)
    yield from outputs_of(part, batch.size_bytes)
