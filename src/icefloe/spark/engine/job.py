"""A distributed write as one transaction: tasks write chunks, the driver commits references.

Invariants, cited by tests:

J1  Tasks publish nothing. They write objects with random names and return references.
J2  Only rows of successful attempts are used, and each planned chunk is returned exactly once;
    otherwise nothing is committed.
J3  The driver commits once. A driver that dies before that leaves the branch unchanged.
J4  A transaction that is already committed (same application, same or later version) is not
    repeated.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import numpy as np

from icefloe.arrays.grid import ChunkGrid, suitable_task_bytes
from icefloe.engine.commit.linked_tiles import can_link
from icefloe.errors import ConflictError, InvalidInputError, NodeNotFoundError, TaskFailedError
from icefloe.html_tables import Report, readable_size
from icefloe.model import MAIN, paths
from icefloe.model.nodes import expect_array
from icefloe.model.record import Record
from icefloe.packing.splits import possible_split
from icefloe.spark.engine import linking
from icefloe.spark.engine.application import Application
from icefloe.spark.engine.chunk_tables import WrittenChunks, from_table, joined
from icefloe.spark.engine.events import JobEvent, announce
from icefloe.spark.engine.runner import Results, Totals, collect_rows, parallelism, run_tasks
from icefloe.spark.engine.statistics_outputs import take_statistics
from icefloe.spark.engine.transactions import Ledger, Transaction, find_transaction
from icefloe.spark.engine.worker import SessionSpec
from icefloe.tables.job_summary import SUMMARY, JobSummary
from icefloe.tables.statistics import wanted_arrays
from icefloe.tables.summarize import WrittenStatistics
from icefloe.tables.table_scan import open_repository
from icefloe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    import numpy.typing as npt
    from pyspark.sql import DataFrame, SparkSession

    from icefloe.arrays.grid import Piece, Target
    from icefloe.model.chunk_index import Box
    from icefloe.packing.tiles import Tiling
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.engine.tasks import Work
    from icefloe.tables.statistics import StatisticsChoice
    from icefloe.zarr_store.session_port import SessionPort

logger = logging.getLogger(__name__)

LINK_ABOVE_CHUNKS = 500_000
"""With more chunks than this, executors write the manifests."""
_MAX_COMMIT_TRIES = 100


class JobKeywords(TypedDict, total=False):
    """The fields of `JobOptions` as keyword arguments of a job."""

    branch: str
    message: str | None
    metadata: dict[str, Any] | None
    rebase: bool
    dry_run: bool
    txn_app_id: str | None
    txn_version: int | None
    task_bytes: int | None
    progress: bool | None


class JobOptions(Record, frozen=True):
    """Options that all jobs share.

    Jobs take them as keyword arguments, or as one value that several jobs can share; a keyword
    argument overrides the value.

    >>> nightly = JobOptions(branch="staging", txn_app_id="nightly", txn_version=1)
    >>> nightly.merged(txn_version=2).txn_version
    2

    Attributes:
        branch: The branch to commit to.
        message: The commit message; the name of the job by default.
        metadata: Properties of the commit.
        rebase: If the branch has moved and the changes are disjoint, commit on top of it; if
            False, fail.
        dry_run: Print the plan and do nothing.
        txn_app_id: With `txn_version`, identifies a transaction that is committed only once: a job
            that repeats it, or an earlier version of it, does nothing.
        txn_version: A number that increases from one run of the application to the next.
        task_bytes: Bytes of array per task; chosen from the size of job and cluster by default.
        progress: Whether to show a progress bar; by default in terminals and notebooks.
    """

    branch: str = MAIN
    message: str | None = None
    metadata: dict[str, Any] | None = None
    rebase: bool = True
    dry_run: bool = False
    txn_app_id: str | None = None
    txn_version: int | None = None
    task_bytes: int | None = None
    progress: bool | None = None

    def merged(self, **keywords: Unpack[JobKeywords]) -> JobOptions:
        """Return the options with some of them replaced."""
        return msgspec.structs.replace(self, **keywords)

    def check(self) -> None:
        """Raise InvalidInputError if the options contradict each other."""
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise InvalidInputError("give both txn_app_id and txn_version, or neither")

    @property
    def transaction(self) -> Transaction | None:
        """The transaction that the options name, if any."""
        return Transaction.of(self.txn_app_id, self.txn_version)


def job_options(options: JobOptions | None, keywords: JobKeywords) -> JobOptions:
    """Combine the two forms in which a job takes its options."""
    return (options or JobOptions()).merged(**keywords)


class JobPlan(Report, frozen=True):
    """The plan of a job; `dry_run` prints it."""

    label: str
    arrays: tuple[str, ...]
    tasks: int
    chunks: int
    num_bytes: int
    """Size of the written arrays in memory."""
    manifests: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        per_task = self.num_bytes / max(1, self.tasks)
        lines = [
            f"{self.label}: {', '.join(self.arrays)}",
            f"  tasks      {self.tasks:,} of about {readable_size(per_task)}",
            f"  chunks     {self.chunks:,}",
            f"  bytes      {readable_size(self.num_bytes)} before compression",
            f"  manifests  {self.manifests:,}",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(lines)


class JobReport(Report, frozen=True):
    """The result of a job, with its commit.

    >>> plan = JobPlan("write", ("/t",), tasks=2, chunks=8, num_bytes=4096, manifests=1)
    >>> print(JobReport(plan, "1CECHNKREP0F1RSTCMT0", chunks=8, bytes_written=2048, seconds=1.5))
    write: 8 chunks, 2.0 KiB written in 1.5 s by 2 tasks; committed as 1CECHNKREP0F1RSTCMT0
    """

    plan: JobPlan
    snapshot_id: str | None = None
    """The commit; None if nothing was committed."""
    repeated: bool = False
    """Whether the transaction was already committed, so that nothing was done."""
    chunks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    task_seconds: float = 0.0
    """Running time of all tasks together."""

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return f"{self.plan}\n  nothing was committed"
        if self.repeated:
            return f"{self.plan.label}: done before, in {self.snapshot_id}"
        # The tasks of a reduction may only read, and the driver write the small result.
        moved = f"{readable_size(self.bytes_written)} written"
        if not self.bytes_written:
            moved = f"{readable_size(self.bytes_read)} read"
        tasks = "1 task" if self.plan.tasks == 1 else f"{self.plan.tasks:,} tasks"
        return (
            f"{self.plan.label}: {self.chunks:,} chunks, {moved} "
            f"in {self.seconds:.1f} s by {tasks}; committed as {self.snapshot_id}"
        )


class Job:
    """One transaction whose chunks are written by tasks on Spark."""

    def __init__(
        self,
        spark: SparkSession,
        repository: Repository | str,
        label: str,
        options: JobOptions,
        session: Session | None = None,
    ) -> None:
        """Open a writable session on the branch, or take one that was opened there before."""
        options.check()
        self.spark = spark
        self.repository = open_repository(repository)
        self.label = label
        self.options = options
        self.session: Session = session or self.repository.writable_session(options.branch)
        self._started = time.monotonic()
        self.statistics = WrittenStatistics(self.session)
        self._results: list[Results] = []
        self._tasks_run = 0
        self._inputs: dict[str, str] = {}
        self.files: int | None = None
        """Files that were ingested, for the summary."""
        self.rows: int | None = None
        """Rows of a DataFrame that were written, for the summary."""

    @property
    def about(self) -> str:
        """What the job works on, for the Spark UI."""
        return f"{self.options.branch} of {self.repository.storage.location}"

    def add_input(self, source: SessionPort) -> None:
        """Note a snapshot that the job reads, for the summary of its commit."""
        self._inputs[source.snapshot_id] = source.tree.context.storage.location

    def base(self) -> Session:
        """Open the snapshot that the job starts from, for reading."""
        return self.repository.readonly_session(snapshot_id=self.session.snapshot_id)

    def input_session(self, source: Session | None = None) -> Session:
        """Return the session to read inputs from, and note its snapshot; by default, the base."""
        session = source or self.base()
        self.add_input(session)
        return session

    # --- planning

    def grid(self, path: str) -> ChunkGrid:
        """Return the chunk grid of an array of the session."""
        return grid_of(self.session, path)

    def task_bytes(self, total_bytes: int) -> int:
        """Bytes of array for each task."""
        if self.options.task_bytes is not None:
            return max(1, self.options.task_bytes)
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
            label=self.label,
            arrays=tuple(dict.fromkeys(target.grid.path for target in targets)),
            tasks=tasks,
            chunks=sum(target.box.size for target in targets),
            num_bytes=sum(target.num_bytes for target in targets),
            manifests=sum(target.num_tiles for target in targets),
            notes=tuple(notes),
        )

    def with_statistics(
        self, statistics: StatisticsChoice, targets: Sequence[Target], group: str = paths.ROOT
    ) -> tuple[str, ...]:
        """Return the paths of the arrays that get chunk statistics; see `wanted_arrays`."""
        written = dict.fromkeys(target.grid.path for target in targets)
        return wanted_arrays(self.session, statistics, written, group)

    def is_settled(self, plan: JobPlan) -> JobReport | None:
        """Return the report of a job that ends here: a dry run, or a repeated one (J4)."""
        if self.options.dry_run:
            sys.stdout.write(f"{plan}\n")
            return JobReport(plan)
        commit = self.done_before()
        return None if commit is None else JobReport(plan, commit, repeated=True)

    def done_before(self) -> str | None:
        """Return the commit that already has the transaction of this job, if any (J4)."""
        transaction = self.options.transaction
        if transaction is None:
            return None
        return find_transaction(self.repository, self.options.branch, transaction)

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
        """Run tasks that return references of chunks, and add the references to the session.

        Args:
            work: The function of a task; its outputs are named after the paths of arrays.
            items: One item for each task.
            shared: A value for all tasks.
            expected: The chunks that each task must return (J2), if that is known.
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
        """Run tasks, and let executors write the manifests of arrays that have several."""
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
        todo = linking.tile_tasks(self.session.tree, results, tilings)
        # Writing a manifest takes a fraction of a second: several of them share a task.
        each = max(1, len(todo) // (4 * parallelism(self.spark)))
        groups = [todo[start : start + each] for start in range(0, len(todo), each)]
        written = self._tasks(linking.write_tile_manifests, groups, spec, ": manifests")
        linked_chunks = linking.absorb_tiles(self.session.tree, written)
        linking.check_counts(results, tilings, linked_chunks)
        return results

    def _tilings(self) -> dict[str, Tiling]:
        """Return the manifest tilings of the arrays whose manifests tasks can write."""
        settings = self.session.tree.settings
        tilings = {}
        for path in self.session.tree.node_paths(paths.ROOT):
            node = self.session.get_node(path)
            if node is not None and node.is_array:
                split = possible_split(node, settings)
                if split is not None and can_link(self.session.tree, path):
                    tilings[path] = split.tiling
        return tilings

    def _tasks(self, work: Work, items: Sequence[Any], shared: Any, more: str = "") -> Results:
        return self.run_tasks(work, items, shared, f"{self.label}{more}")

    def run_tasks(self, work: Work, items: Sequence[Any], shared: Any, label: str) -> Results:
        """Run tasks of this job whose outputs are not references of chunks."""
        results = run_tasks(
            self.spark,
            work,
            items,
            shared=shared,
            label=label,
            about=self.about,
            progress_bar=self.options.progress,
        )
        self._tasks_run += results.items
        return results

    def collect(self, frame: DataFrame, count: int) -> Results:
        """Collect a DataFrame of `count` partitions whose rows are results of tasks."""
        results = collect_rows(
            self.spark,
            frame,
            count,
            label=self.label,
            about=self.about,
            progress_bar=self.options.progress,
        )
        self._tasks_run += count
        return results

    def take_over(
        self, results: Results, expected: Sequence[Sequence[Piece]] | None = None
    ) -> None:
        """Add the references that tasks returned to the session."""
        absorb(self.session, take_statistics(results, self.statistics), expected)
        self.count(results)

    def count(self, results: Results) -> None:
        """Include the results of tasks in the report of this job."""
        self._results.append(results)

    def commit(self, plan: JobPlan) -> JobReport:
        """Publish everything in one commit (J3)."""
        options = self.options
        totals = self._totals()
        summary = self._summary(totals)
        metadata = {SUMMARY: summary.to_data(), **(options.metadata or {})}
        if options.transaction is not None:
            metadata |= options.transaction.properties
        parent = self.session.snapshot_id
        snapshot_id, repeated = self._publish(options.message or self.label, metadata)
        if snapshot_id is not None and not repeated:
            announce(
                JobEvent(
                    location=self.repository.storage.location,
                    branch=options.branch,
                    snapshot_id=snapshot_id,
                    parent_id=parent,
                    arrays=plan.arrays,
                    summary=summary,
                    input_locations=tuple(self._inputs.values()),
                )
            )
        return JobReport(
            plan=plan,
            snapshot_id=snapshot_id,
            repeated=repeated,
            chunks=totals.chunks,
            bytes_read=totals.bytes_read,
            bytes_written=totals.bytes_written,
            seconds=time.monotonic() - self._started,
            task_seconds=totals.task_seconds,
        )

    def _totals(self) -> Totals:
        """Sums over all tasks that were counted."""
        totals = [results.totals for results in self._results]
        return Totals(
            chunks=sum(each.chunks for each in totals),
            bytes_read=sum(each.bytes_read for each in totals),
            bytes_written=sum(each.bytes_written for each in totals),
            task_seconds=sum(each.task_seconds for each in totals),
        )

    def _summary(self, totals: Totals) -> JobSummary:
        """What the commit says of this job."""
        application = Application.of(self.spark)
        base = self.session.snapshot_id
        return JobSummary(
            job=self.label,
            application_id=application.id,
            application_name=application.name,
            user=application.user,
            spark_version=application.version,
            icefloe_version=__version__,
            input_snapshots=tuple(self._inputs) or (base,),
            files=self.files,
            chunks=totals.chunks,
            bytes_read=totals.bytes_read,
            bytes_written=totals.bytes_written,
            rows=self.rows,
            tasks=self._tasks_run,
            seconds=round(time.monotonic() - self._started, 3),
            task_seconds=round(totals.task_seconds, 3),
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
            # Another run of this very job may have moved the branch.
            commit = self.done_before()
            if commit is not None:
                return commit, True
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
            ledger.withdraw()
            self.statistics.withdraw()
            self.session.rebase(ledger)
        raise AssertionError("the last try raises")


def grid_of(session: Session, path: str) -> ChunkGrid:
    """Return the chunk grid of an array; raise InvalidInputError if it is not a regular one."""
    node = expect_array(session.get_node(paths.canonical(path)), path)
    array = node.array
    if array.chunk_shape is None:
        raise InvalidInputError(f"{path} has chunks of different shapes; expected a regular grid")
    import zarr

    item_bytes = zarr.open_array(session.store, path=node.path.lstrip("/"), mode="r").dtype.itemsize
    split = possible_split(node, session.tree.settings)
    tile_shape = (None,) * array.rank if split is None else split.tiling.shape
    return ChunkGrid(
        path=node.path,
        shape=array.shape,
        chunk_shape=array.chunk_shape,
        item_bytes=max(1, item_bytes),
        tile_shape=tile_shape,
    )


# --- references that tasks returned


def absorb(
    session: SessionPort, results: Results, expected: Sequence[Sequence[Piece]] | None = None
) -> None:
    """Add the references that tasks returned to a session.

    Raises TaskFailedError if two tasks wrote the same chunk, or if the chunks are not `expected`.
    """
    written_by_path: dict[str, list[tuple[int, WrittenChunks]]] = {}
    for task, path, table in results.outputs():
        node = session.get_node(path)
        if node is None or not node.is_array:
            raise NodeNotFoundError(f"a task wrote to {path}, which is no array", path)
        written_by_path.setdefault(path, []).append((task, from_table(table, node.array.rank)))
    if expected is not None:
        _check_expected(written_by_path, expected)
    for path, parts in written_by_path.items():
        written = joined(path, [part for _, part in parts])
        session.tree.set_chunk_refs(path, written.chunks, written.deleted)


def _check_expected(
    written_by_path: Mapping[str, Sequence[tuple[int, WrittenChunks]]],
    expected: Sequence[Sequence[Piece]],
) -> None:
    """Check that each task returned exactly the chunks that were planned for it (J2)."""
    planned_boxes: dict[tuple[int, str], list[Box]] = {}
    for task, pieces in enumerate(expected):
        for piece in pieces:
            planned_boxes.setdefault((task, piece.array), []).append(piece.box)
    returned: dict[tuple[int, str], list[WrittenChunks]] = {}
    for path, parts in written_by_path.items():
        for task, written in parts:
            returned.setdefault((task, path), []).append(written)
    for key in planned_boxes.keys() | returned.keys():
        boxes, parts_of = planned_boxes.get(key, []), returned.get(key, [])
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
