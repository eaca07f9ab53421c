"""Chunk files of a garbage collection on executors: listed, subtracted and deleted there.

The protocol is the engine's (`engine/retention/collection.py`); this is another way to do what
`LocalFiles` does. Ids of files never come to the driver, so its memory depends on the number of
snapshots and manifests alone.

Spark stores the rows. If it loses some and lists again, nothing changes except that files are
missing which are deleted already: only files older than the beginning of the listing count, and
what marked manifests refer to is immutable.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from icefloe.engine.retention.candidate_files import (
    BATCH,
    FileTotals,
    delete_batches,
)
from icefloe.engine.retention.id_sets import id_bytes
from icefloe.engine.retention.marking import MarkedManifest, Marks, MemoryLimits
from icefloe.engine.retention.stored_objects import (
    KeyRange,
    key_maker,
    key_ranges,
    list_in_parts,
)
from icefloe.errors import SessionStateError
from icefloe.formats.port import ObjectKind
from icefloe.model.ids import NAME_MARK
from icefloe.spark.engine.runner import (
    collect_frame,
    parallelism,
    rows_of_frame,
    rows_of_items,
)
from icefloe.spark.engine.worker import pickled_context, unpickled_context
from icefloe.storage.clock import storage_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    import numpy as np
    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.engine.context import Context
    from icefloe.engine.retention.candidate_files import Fence

_FILES = "id binary, size bigint, written double"
_IDS = "id binary"
_DELETED = "files bigint"
_RANGES_PER_CORE = 4
_GROUPS_PER_CORE = 4
_MANIFESTS_AT_ONCE = 500
_MANIFEST_BYTES_AT_ONCE = 256 * 1024 * 1024
FILES_PER_ROUND = 5_000_000
"""How many files are deleted between two renewals of the lease: a matter of minutes."""


class SparkFileLister:
    """Lists chunk files on executors, each a range of keys. Close it when the work is done."""

    def __init__(
        self,
        spark: SparkSession,
        context: Context,
        limits: MemoryLimits,
        *,
        label: str,
        progress: bool | None = None,
    ) -> None:
        """Take the session, and the limits of each task."""
        self.spark = spark
        self.context = context
        self.limits = limits
        self.label = label
        self.progress = progress
        self.pickled = pickled_context(context)
        self._persisted: list[DataFrame] = []

    def list_files(self) -> SparkFiles:
        """List all of them, and keep the rows on the cluster."""
        storage = self.context.storage
        started = storage_now(storage)
        ranges = key_ranges(self.context.format.layout, ObjectKind.CHUNK_FILE, self._parts())
        frame = rows_of_items(self.spark, _list_range, ranges, self.pickled, _FILES)
        listed = SparkFiles(self, self.persist(frame), started, "list", len(ranges))
        _ = listed.totals()  # before references are read (G1)
        return listed

    def _parts(self) -> int:
        """Into how many ranges to divide the keys."""
        capabilities = self.context.storage.capabilities
        if capabilities.lists_in_pages:
            return _RANGES_PER_CORE * parallelism(self.spark)
        # Each task reads all names of a local folder; other stores send all objects each time.
        return parallelism(self.spark) if capabilities.reads_are_immediate else 1

    def persist(self, frame: DataFrame) -> DataFrame:
        """Keep the rows of a frame until `close`."""
        kept = frame.persist()
        self._persisted.append(kept)
        return kept

    def close(self) -> None:
        """Release what Spark keeps."""
        for frame in self._persisted:
            frame.unpersist()
        self._persisted.clear()

    def __enter__(self) -> SparkFileLister:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SparkFiles:
    """Chunk files as rows of a DataFrame."""

    def __init__(
        self, lister: SparkFileLister, frame: DataFrame, started: datetime, step: str, tasks: int
    ) -> None:
        """Take rows of files, and when the listing started by the storage's clock."""
        self._lister = lister
        self._frame = frame
        self._started = started
        self._step = step
        self._tasks = tasks

    def _part(self, frame: DataFrame, step: str, tasks: int = 1) -> SparkFiles:
        return SparkFiles(self._lister, frame, self._started, step, tasks)

    def _collect(self, frame: DataFrame, step: str) -> pa.Table:
        lister = self._lister
        return collect_frame(
            lister.spark,
            frame,
            label=f"{lister.label}: {step}",
            steps=self._tasks,
            progress_bar=lister.progress,
        )

    def totals(self) -> FileTotals:
        """How many they are."""
        return self._totals

    @cached_property
    def _totals(self) -> FileTotals:
        from pyspark.sql import functions as f

        names = f.when(f.col("id").startswith(f.lit(NAME_MARK)), 1).otherwise(0)
        sums = self._frame.agg(f.count("*"), f.sum("size"), f.sum(names))
        row = self._collect(sums, self._step).to_pylist()[0]
        return FileTotals(*(int(value or 0) for value in row.values()))

    def some_keys(self, count: int) -> list[str]:
        """Keys of some of them, in order."""
        ids = self._collect(self._frame.select("id").orderBy("id").limit(count), "keys")
        key_of = key_maker(self._lister.context.format.layout, ObjectKind.CHUNK_FILE)
        return [key_of(id_bytes(value)) for value in ids.column("id").to_pylist()]

    def older_than(self, moment: datetime) -> SparkFiles:
        """Those that were written before a moment."""
        from pyspark.sql import functions as f

        # Should Spark list again, then files that were written meanwhile are not among these.
        last = min(moment, self._started).timestamp()
        return self._part(self._frame.filter(f.col("written") < f.lit(last)), "choose by age")

    def written_since(self, moment: datetime) -> SparkFiles:
        """Those that were written at a moment or later."""
        from pyspark.sql import functions as f

        first = moment.timestamp()
        return self._part(self._frame.filter(f.col("written") >= f.lit(first)), "choose by age")

    def unreached(
        self, marks: Marks, manifests: npt.NDArray[np.bytes_] | None = None
    ) -> SparkFiles:
        """Those that no marked manifest refers to, which executors read."""
        if not self.totals().files:
            return self  # manifests are read only if a chunk file depends on them
        reached, groups = self._reached(marks, manifests)
        if reached is None:
            return self
        left = self._frame.join(reached, "id", "left_anti")
        return self._part(self._lister.persist(left), "compare with manifests", groups)

    def without_strangers(self, going: Marks, manifests: npt.NDArray[np.bytes_]) -> SparkFiles:
        """Those that icefloe named, and of the others those that some manifests refer to."""
        from pyspark.sql import functions as f

        is_name = f.col("id").startswith(f.lit(NAME_MARK))
        own = self._frame.filter(~is_name)
        reached, groups = self._reached(going, manifests)
        if reached is not None:
            own = own.unionByName(self._frame.filter(is_name).join(reached, "id", "left_semi"))
        return self._part(self._lister.persist(own), "spare other names", groups)

    def _reached(
        self, marks: Marks, manifests: npt.NDArray[np.bytes_] | None
    ) -> tuple[DataFrame | None, int]:
        """Ids of the files that manifests refer to, and how many tasks read those."""
        lister = self._lister
        at_least = _GROUPS_PER_CORE * parallelism(lister.spark)
        groups = _groups(list(marks.marked_manifests(manifests)), at_least)
        if not groups:
            return None, 1
        shared = _Reading(lister.pickled, lister.limits)
        return rows_of_items(lister.spark, _reached_files, groups, shared, _IDS), len(groups)

    def delete(self, others: Iterator[list[str]], fence: Fence) -> None:
        """Delete other objects here, and then these on executors."""
        from pyspark.sql import functions as f

        lister = self._lister
        delete_batches(lister.context.storage, others, lister.limits.requests, fence)
        rounds = -(-self.totals().files // FILES_PER_ROUND)
        for number in range(rounds):
            until = fence.check()
            mine = f.pmod(f.xxhash64("id"), f.lit(rounds)) == f.lit(number)
            shared = _Deleting(lister.pickled, until, lister.limits.requests)
            deleted = rows_of_frame(self._frame.filter(mine), _delete_files, shared, _DELETED)
            self._collect(deleted.agg(f.sum("files")), f"delete {number + 1} of {rounds}")


def _groups(manifests: list[MarkedManifest], at_least: int) -> list[list[MarkedManifest]]:
    """Manifests for one task each, of bounded size; about `at_least` tasks if they are large."""
    total = sum(each.size_bytes for each in manifests)
    most = min(_MANIFEST_BYTES_AT_ONCE, max(1 << 20, total // max(1, at_least)))
    groups: list[list[MarkedManifest]] = []
    held = 0
    for manifest in manifests:
        if not groups or held + manifest.size_bytes > most or len(groups[-1]) == _MANIFESTS_AT_ONCE:
            groups.append([])
            held = 0
        groups[-1].append(manifest)
        held += manifest.size_bytes
    return groups


# --- on executors


class _Reading(NamedTuple):
    context: bytes
    limits: MemoryLimits


class _Deleting(NamedTuple):
    context: bytes
    until: datetime
    """When the lease of the collection would lapse, by the storage's clock."""
    requests: int


def _list_range(within: KeyRange, shared: bytes) -> Iterator[pa.RecordBatch]:
    """The chunk files in a range of keys."""
    context: Context = unpickled_context(shared)
    layout = context.format.layout
    for part in list_in_parts(context.storage, layout, ObjectKind.CHUNK_FILE, within):
        yield pa.record_batch(
            {
                "id": _id_array(part.ids),
                "size": pa.array(part.sizes),
                "written": pa.array(part.times),
            }
        )


def _reached_files(
    manifests: Iterable[MarkedManifest], shared: _Reading
) -> Iterator[pa.RecordBatch]:
    """Ids of the chunk files that some manifests refer to."""
    marks = Marks(unpickled_context(shared.context), shared.limits)
    marks.add_manifests(manifests)
    yield pa.record_batch({"id": _id_array(marks.chunk_file_ids())})


def _id_array(ids: npt.NDArray[np.bytes_]) -> pa.Array:
    """Ids without trailing zeros, which count for nothing: equal ids have equal bytes."""
    return pa.array(ids.tolist(), type=pa.binary())


def _delete_files(batches: Iterable[pa.RecordBatch], shared: _Deleting) -> Iterator[pa.RecordBatch]:
    """Delete the files of one task; the rows tell how many."""
    context: Context = unpickled_context(shared.context)
    key_of = key_maker(context.format.layout, ObjectKind.CHUNK_FILE)
    fence = _Deadline(context, shared.until)
    deleted = 0
    for batch in batches:
        keys = [key_of(id_bytes(value)) for value in batch.column("id").to_pylist()]
        parts = (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))
        delete_batches(context.storage, parts, shared.requests, fence)
        deleted += len(keys)
    yield pa.record_batch({"files": pa.array([deleted], pa.int64())})


class _Deadline:
    """The fence of a task: a machine that was suspended must not continue to delete."""

    def __init__(self, context: Context, until: datetime) -> None:
        self._storage = context.storage
        self._until = until

    def check(self) -> datetime:
        if storage_now(self._storage) >= self._until:
            raise SessionStateError(
                "a task of the garbage collection was suspended for longer than its lease held, "
                "and was ended before it could do harm; run the collection again"
            )
        return self._until
