"""A distributed write as one transaction: tasks write chunks, the driver links them and commits.

What holds, cited by tests:

J1  Tasks publish nothing. They write objects with random names and return references.
J2  Only rows of successful attempts are used, and each planned chunk is returned exactly once;
    otherwise nothing is committed.
J3  The driver commits once. A driver that dies before leaves the branch as it was.
J4  A transaction that was committed before (same application, same or later version) is not
    done again.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.grid import ChunkGrid, suitable_task_bytes
from icefloe.config.settings import Settings
from icefloe.engine.commit.linked_tiles import can_link
from icefloe.errors import ConflictError, InvalidInputError, NodeNotFoundError, TaskFailedError
from icefloe.model import paths
from icefloe.model.nodes import expect_array
from icefloe.model.record import Record
from icefloe.packing.splits import possible_split
from icefloe.repository import Repository
from icefloe.spark.engine import linking
from icefloe.spark.engine.chunk_tables import WrittenChunks, from_table, joined
from icefloe.spark.engine.runner import Results, parallelism, run_tasks
from icefloe.spark.engine.statistics_outputs import take_statistics
from icefloe.spark.engine.transactions import Ledger, Transaction, find_transaction
from icefloe.spark.engine.worker import SessionSpec
from icefloe.tables.statistics import wanted_arrays
from icefloe.tables.summarize import WrittenStatistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from pyspark.sql import SparkSession

    from icefloe.arrays.grid import Piece, Target
    from icefloe.model.chunk_index import Box
    from icefloe.packing.tiles import Tiling
    from icefloe.session import Session
    from icefloe.spark.engine.tasks import Work
    from icefloe.tables.statistics import Wanted

logger = logging.getLogger(__name__)

LINK_ABOVE_CHUNKS = 500_000
"""With more chunks than this, executors write the manifests."""
_MAX_COMMIT_TRIES = 100


class JobOptions(Record, frozen=True):
    """What every job can be told.

    Attributes:
        branch: Where the commit goes.
        message: Of the commit.
        metadata: Of the commit.
        rebase: Whether a branch that moved meanwhile is no reason to fail, as long as the
            changes are disjoint.
        dry_run: Print the plan and do nothing.
        txn_app_id: With `txn_version`, names the job: done once, it is not done again.
        txn_version: Grows from one run of the application to the next.
        task_bytes: Bytes of array per task; by default from the size of the job and the cluster.
        progress: Whether to show a progress bar; by default in terminals and notebooks.
    """

    branch: str = "main"
    message: str | None = None
    metadata: dict[str, Any] | None = None
    rebase: bool = True
    dry_run: bool = False
    txn_app_id: str | None = None
    txn_version: int | None = None
    task_bytes: int | None = None
    progress: bool | None = None

    def check(self) -> None:
        """Raise InvalidInputError if the options contradict each other."""
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise InvalidInputError("give both txn_app_id and txn_version, or neither")

    @property
    def transaction(self) -> Transaction | None:
        """What names the job, if anything does."""
        return Transaction.of(self.txn_app_id, self.txn_version)


class JobPlan(Record, frozen=True):
    """What a job is going to do."""

    label: str
    arrays: tuple[str, ...]
    tasks: int
    chunks: int
    num_bytes: int
    """Bytes of array, in memory, that are written."""
    manifests: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        per_task = self.num_bytes / max(1, self.tasks)
        lines = [
            f"{self.label}: {', '.join(self.arrays)}",
            f"  tasks      {self.tasks:,} of about {_readable(per_task)}",
            f"  chunks     {self.chunks:,}",
            f"  bytes      {_readable(self.num_bytes)} before compression",
            f"  manifests  {self.manifests:,}",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(lines)


class JobReport(Record, frozen=True):
    """What a job did."""

    plan: JobPlan
    snapshot_id: str | None = None
    """The commit; None if nothing was committed."""
    repeated: bool = False
    """Whether the transaction had been committed before, so that nothing was done."""
    chunks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    task_seconds: float = 0.0
    """Of all tasks together."""

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return f"{self.plan}\n  nothing was committed"
        if self.repeated:
            return f"{self.plan.label}: done before, in {self.snapshot_id}"
        # Tasks of a reduction only read; the driver writes the small result.
        moved = f"{_readable(self.bytes_written)} written"
        if not self.bytes_written:
            moved = f"{_readable(self.bytes_read)} read"
        return (
            f"{self.plan.label}: {self.chunks:,} chunks, {moved} "
            f"in {self.seconds:.1f} s by {self.plan.tasks} tasks; committed as {self.snapshot_id}"
        )


def _readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def opened(repository: Repository | str) -> Repository:
    """A repository that was given as such or by its URL."""
    return repository if isinstance(repository, Repository) else Repository.open(repository)


class Job:
    """One transaction that tasks of Spark fill."""

    def __init__(
        self, spark: SparkSession, repository: Repository | str, label: str, options: JobOptions
    ) -> None:
        """Open a writable session on the branch."""
        options.check()
        self.spark = spark
        self.repository = opened(repository)
        self.label = label
        self.options = options
        self.session: Session = self.repository.writable_session(options.branch)
        self._started = time.monotonic()
        self.statistics = WrittenStatistics(self.session)
        self._results: list[Results] = []

    # --- planning

    def grid(self, path: str) -> ChunkGrid:
        """The grid of an array as the session sees it."""
        return grid_of(self.session, path)

    def task_bytes(self, total_bytes: int) -> int:
        """Bytes of array for each task."""
        given = self.options.task_bytes
        if given is not None:
            return max(1, given)
        return suitable_task_bytes(total_bytes, parallelism(self.spark))

    def plan(
        self,
        targets: Sequence[Target],
        tasks: int,
        notes: Sequence[str] = (),
        statistics: Sequence[str] = (),
    ) -> JobPlan:
        """Describe what will be written."""
        if statistics:
            notes = (*notes, f"statistics {', '.join(statistics)}")
        return JobPlan(
            self.label,
            tuple(target.grid.path for target in targets),
            tasks,
            sum(target.box.size for target in targets),
            sum(target.num_bytes for target in targets),
            sum(target.num_tiles for target in targets),
            tuple(notes),
        )

    def with_statistics(
        self, given: Wanted, targets: Sequence[Target], group: str = paths.ROOT
    ) -> tuple[str, ...]:
        """Paths of the arrays of which tasks are to make statistics; see `wanted_arrays`."""
        written = (target.grid.path for target in targets)
        return wanted_arrays(self.session, given, written, group)

    def is_settled(self, plan: JobPlan) -> JobReport | None:
        """The report of a job that ends here: a dry run, or one that was done before (J4)."""
        if self.options.dry_run:
            sys.stdout.write(f"{plan}\n")
            return JobReport(plan)
        found = self.done_before()
        return None if found is None else JobReport(plan, found, repeated=True)

    def done_before(self) -> str | None:
        """The commit that did the transaction of this job before, if there is one (J4)."""
        wanted = self.options.transaction
        if wanted is None:
            return None
        return find_transaction(self.repository, self.options.branch, wanted)

    # --- doing

    def run(
        self,
        work: Work,
        items: Sequence[Any],
        shared: Any,
        expected: Sequence[Sequence[Piece]] | None = None,
        *,
        linked: bool | None = None,
    ) -> Results:
        """Run tasks whose outputs are references of chunks, and take these over.

        Args:
            work: The function; its outputs are named by array paths.
            items: What each task does.
            shared: What all tasks get.
            expected: The chunks that each task must return (J2); None if that is not known.
            linked: Whether executors write the manifests too; by default for many chunks.
        """
        if expected is not None and _num_chunks(expected) > LINK_ABOVE_CHUNKS:
            linked = True if linked is None else linked
        tilings = self._tilings() if linked else {}
        if tilings:
            return self._run_linked(work, items, shared, expected, tilings)
        results = self._tasks(work, items, shared)
        self.take_over(results, expected)
        return results

    def _run_linked(
        self,
        work: Work,
        items: Sequence[Any],
        shared: Any,
        expected: Sequence[Sequence[Piece]] | None,
        tilings: dict[str, Tiling],
    ) -> Results:
        """Like `run`, but executors write the manifests of arrays that have several."""
        spec = SessionSpec.of(self.session)
        spilled = self._tasks(linking.Spilling(work, spec, tilings), items, shared)
        results = take_statistics(spilled, self.statistics)
        others = results.of(lambda path: path not in tilings)
        absorb(self.session, others, None)
        if expected is not None and results.totals.chunks != _num_chunks(expected):
            raise TaskFailedError(
                f"tasks were to write {_num_chunks(expected)} chunks and wrote "
                f"{results.totals.chunks}; nothing was committed"
            )
        self.count(results)
        settings = Settings.from_config(self.session.config)
        todo = linking.tile_tasks(self.session, settings, results, tilings)
        # A manifest takes a fraction of a second: some of them share a task.
        each = max(1, len(todo) // (4 * parallelism(self.spark)))
        groups = [todo[start : start + each] for start in range(0, len(todo), each)]
        written = self._tasks(linking.write_tile_manifests, groups, spec, ": manifests")
        found = linking.absorb_tiles(self.session, written)
        linking.check_counts(results, tilings, found)
        return results

    def _tilings(self) -> dict[str, Tiling]:
        """How arrays are cut whose manifests may be several, and can be written by tasks."""
        settings = Settings.from_config(self.session.config)
        found = {}
        for path in self.session.tree.node_paths(paths.ROOT):
            node = self.session.get_node(path)
            if node is not None and node.is_array:
                split = possible_split(node, settings)
                if split is not None and can_link(self.session.tree, path):
                    found[path] = split.tiling
        return found

    def _tasks(self, work: Work, items: Sequence[Any], shared: Any, more: str = "") -> Results:
        return run_tasks(
            self.spark,
            work,
            items,
            shared=shared,
            label=f"{self.label}{more}",
            progress_bar=self.options.progress,
        )

    def take_over(
        self, results: Results, expected: Sequence[Sequence[Piece]] | None = None
    ) -> None:
        """Let the session refer to the chunks that tasks wrote."""
        absorb(self.session, take_statistics(results, self.statistics), expected)
        self.count(results)

    def count(self, results: Results) -> None:
        """Let the report tell of tasks that were run for this job."""
        self._results.append(results)

    def commit(self, plan: JobPlan) -> JobReport:
        """Publish all of it."""
        options = self.options
        metadata = dict(options.metadata or {})
        if options.transaction is not None:
            metadata |= options.transaction.properties
        snapshot_id, repeated = self._publish(options.message or self.label, metadata)
        totals = [results.totals for results in self._results]
        return JobReport(
            plan,
            snapshot_id,
            repeated,
            sum(total.chunks for total in totals),
            sum(total.bytes_read for total in totals),
            sum(total.bytes_written for total in totals),
            time.monotonic() - self._started,
            sum(total.task_seconds for total in totals),
        )

    def _publish(self, message: str, metadata: dict[str, Any]) -> tuple[str | None, bool]:
        if not self.session.has_uncommitted_changes and not self.statistics:
            return None, False
        ledger = Ledger(self.session, self.options.transaction)
        for attempt in range(_MAX_COMMIT_TRIES):
            ledger.write()
            self.statistics.write()
            try:
                return self.session.commit(message, metadata), False
            except ConflictError:
                if not self.options.rebase or attempt + 1 == _MAX_COMMIT_TRIES:
                    raise
            # Whoever moved the branch may have been another run of this very job.
            found = self.done_before()
            if found is not None:
                return found, True
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
            ledger.withdraw()
            self.statistics.withdraw()
            self.session.rebase(ledger)
        raise AssertionError("the last try raises")


def grid_of(session: Session, path: str) -> ChunkGrid:
    """The grid of an array; raises InvalidInputError for one without a regular grid."""
    node = expect_array(session.get_node(paths.canonical(path)), path)
    array = node.array
    if array.chunk_shape is None:
        raise InvalidInputError(f"{path} has chunks of different shapes; expected a regular grid")
    import zarr

    item_bytes = zarr.open_array(session.store, path=node.path.lstrip("/"), mode="r").dtype.itemsize
    split = possible_split(node, Settings.from_config(session.config))
    tile_shape = (None,) * array.rank if split is None else split.tiling.shape
    return ChunkGrid(node.path, array.shape, array.chunk_shape, max(1, item_bytes), tile_shape)


# --- taking over what tasks wrote


def absorb(
    session: Session, results: Results, expected: Sequence[Sequence[Piece]] | None = None
) -> None:
    """Let a session refer to the chunks that tasks wrote.

    Raises TaskFailedError if two tasks wrote one chunk, or if `expected` says others.
    """
    found: dict[str, list[tuple[int, WrittenChunks]]] = {}
    for task, path, table in results.outputs():
        node = session.get_node(path)
        if node is None or not node.is_array:
            raise NodeNotFoundError(f"a task wrote to {path}, which is no array", path)
        found.setdefault(path, []).append((task, from_table(table, node.array.rank)))
    if expected is not None:
        _check_expected(found, expected)
    for path, parts in found.items():
        written = joined(path, [part for _, part in parts])
        session.tree.set_chunk_refs(path, written.chunks, written.deleted)


def _check_expected(
    found: Mapping[str, Sequence[tuple[int, WrittenChunks]]],
    expected: Sequence[Sequence[Piece]],
) -> None:
    """Each planned chunk was returned, by the task that it was planned for, and no other (J2)."""
    wanted: dict[tuple[int, str], list[Box]] = {}
    for task, pieces in enumerate(expected):
        for piece in pieces:
            wanted.setdefault((task, piece.array), []).append(piece.box)
    returned: dict[tuple[int, str], list[WrittenChunks]] = {}
    for path, parts in found.items():
        for task, written in parts:
            returned.setdefault((task, path), []).append(written)
    for key in wanted.keys() | returned.keys():
        boxes, parts_of = wanted.get(key, []), returned.get(key, [])
        if not _same_chunks(boxes, parts_of):
            planned = sum(box.size for box in boxes)
            got = sum(part.num_chunks for part in parts_of)
            raise TaskFailedError(
                f"task {key[0]} was to write {planned} chunks of {key[1]} and returned {got} "
                "references, or references of other chunks; nothing was committed"
            )


def _num_chunks(expected: Sequence[Sequence[Piece]]) -> int:
    return sum(piece.box.size for pieces in expected for piece in pieces)


def _same_chunks(boxes: Sequence[Box], parts: Sequence[WrittenChunks]) -> bool:
    if len(boxes) == 1 and len(parts) == 1:
        box, chunks = boxes[0], parts[0].chunks
        if parts[0].deleted is None and chunks is not None and chunks.index.is_dense:
            return chunks.index.box == box
    if not boxes or not parts:
        return not boxes and not parts
    rank = boxes[0].rank
    planned = np.concatenate([_coords_of(box) for box in boxes])
    got = np.concatenate([part.coords(rank) for part in parts])
    return planned.shape == got.shape and np.array_equal(_sorted(planned), _sorted(got))


def _coords_of(box: Box) -> npt.NDArray[np.int64]:
    return box.delinearize(np.arange(box.size, dtype=np.uint64)).astype(np.int64)


def _sorted(coords: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if coords.shape[1] == 0:
        return coords
    return coords[np.lexsort(coords.T[::-1])]
