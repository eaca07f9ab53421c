"""Runs plain functions over work items on a Spark cluster, in one stage.

Works with classic sessions and with Spark Connect: DataFrames and Arrow only, no RDDs, no JVM.
The stage that writes is the result stage: Spark runs it once, and each result comes from exactly
one successful attempt of its item. Objects that other attempts wrote are garbage.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import uuid
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from icefloe.progress import start_progress
from icefloe.spark.engine import failures, tasks
from icefloe.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from icefloe.progress import Progress
    from icefloe.spark.engine.failures import Failure
    from icefloe.spark.engine.tasks import RowWork, Work

logger = logging.getLogger(__name__)

MAX_CLOSURE_BYTES = 8 * 1024 * 1024
"""Items larger than this, pickled, are sent as rows instead of with the code."""
_POLL_SECONDS = 0.2
_pickling = threading.Lock()
"""Guards cloudpickle's list of modules to pickle by value, which is global."""
_DEFAULT_MAX_FAILURES = 4


class Totals(NamedTuple):
    """Sums over all tasks of a job."""

    chunks: int
    bytes_read: int
    bytes_written: int
    task_seconds: float


class Results:
    """The rows that tasks returned, and the failures among them."""

    def __init__(self, rows: pa.Table, items: int, seconds: float) -> None:
        """Wrap the result rows of `items` work items."""
        self._rows = rows
        self.items = items
        self.seconds = seconds
        self.failures: list[Failure] = failures.any_of(rows.column("error").to_pylist())

    def outputs(self) -> Iterator[tuple[int, str, pa.Table]]:
        """Yield item number, name and table of each output that has a table, in any order."""
        numbers = self._rows.column("task").to_pylist()
        names = self._rows.column("name").to_pylist()
        for number, name, payload in zip(numbers, names, self._rows.column("payload"), strict=True):
            buffer = payload.as_buffer()
            if buffer is not None and buffer.size:
                yield number, name, tasks.unpack(buffer)

    def of(self, predicate: Callable[[str], bool]) -> Results:
        """Select outputs by their names."""
        import pyarrow as pa

        chosen = [predicate(name) for name in self._rows.column("name").to_pylist()]
        rows = self._rows.filter(pa.array(chosen, pa.bool_()))
        return Results(rows, self.items, self.seconds)

    def without(self, prefix: str) -> Results:
        """Drop the outputs whose names start with a prefix."""
        return self.of(lambda name: not name.startswith(prefix))

    def finished(self) -> set[int]:
        """Return the numbers of the items that have a result."""
        return set(self._rows.column("task").to_pylist())

    @property
    def totals(self) -> Totals:
        """Sums over all tasks."""

        def total(name: str) -> Any:
            return sum(self._rows.column(name).to_pylist())

        return Totals(
            chunks=total("chunks"),
            bytes_read=total("bytes_read"),
            bytes_written=total("bytes_written"),
            task_seconds=total("seconds"),
        )


def run_tasks(
    spark: SparkSession,
    work: Work,
    items: Sequence[Any],
    *,
    shared: Any = None,
    label: str = "icefloe",
    about: str = "",
    progress_bar: bool | None = None,
    raise_failures: bool = True,
) -> Results:
    """Call `work(item, shared)` for each item in a Spark task of its own; collect the outputs.

    Ctrl-C cancels the job on the cluster too.

    Args:
        spark: Any Spark session.
        work: A function that yields `tasks.TaskOutput`; importable on the executors, or a closure.
        items: Small values that can be pickled: they say what to do, and do not hold the data.
        shared: A value for all items; unpickled once per worker process.
        label: The name of the job in the progress bar, the Spark UI and errors.
        about: What else the Spark UI says of the job: what it works on.
        progress_bar: Whether to show a bar; by default in terminals and notebooks.
        raise_failures: Raise TaskFailedError if an item failed; else failures are in the result.
    """
    started = time.monotonic()
    if not items:
        return Results(tasks.SCHEMA.empty_table(), 0, 0.0)
    frame = _frame(spark, work, items, shared)
    with start_progress(label, len(items), show=progress_bar) as shown:
        description = _description(label, about, len(items))
        rows = _Action(
            spark=spark,
            frame=frame,
            label=label,
            description=description,
            count=len(items),
            shown=shown,
        ).run()
        results = Results(rows, len(items), time.monotonic() - started)
        missing = len(items) - len(results.finished())
        if missing:
            none = RuntimeError(f"{missing} of {len(items)} items have no result")
            raise failures.lost(label, none)
        if results.failures and raise_failures:
            shown.update(len(items) - len(results.failures))
            raise failures.failed(label, results.failures, len(items))
    logger.info("%s: %d items in %.1f s", label, len(items), results.seconds)
    return results


def collect_rows(
    spark: SparkSession,
    frame: DataFrame,
    count: int,
    *,
    label: str = "icefloe",
    about: str = "",
    progress_bar: bool | None = None,
) -> Results:
    """Collect a DataFrame of `count` partitions whose rows have the schema `tasks.SCHEMA`."""
    started = time.monotonic()
    with start_progress(label, count, show=progress_bar) as shown:
        rows = _Action(
            spark=spark,
            frame=frame,
            label=label,
            description=_description(label, about, count),
            count=count,
            shown=shown,
        ).run()
        results = Results(rows, count, time.monotonic() - started)
        if results.failures:
            shown.update(max(0, count - len(results.failures)))
            raise failures.failed(label, results.failures, count)
    return results


def _description(label: str, about: str, count: int) -> str:
    """What the Spark UI says of a job."""
    return f"icefloe {label}{f': {about}' if about else ''} ({count:,} tasks)"


def collect_frame(
    spark: SparkSession,
    frame: DataFrame,
    *,
    label: str,
    steps: int = 1,
    progress_bar: bool | None = None,
) -> pa.Table:
    """Collect a small DataFrame, with a progress bar of `steps` tasks; Ctrl-C cancels the job."""
    with start_progress(label, steps, show=progress_bar) as shown:
        return _Action(
            spark=spark,
            frame=frame,
            label=label,
            description=_description(label, "", steps),
            count=steps,
            shown=shown,
        ).run()


def rows_of_items(
    spark: SparkSession, work: RowWork, items: Sequence[Any], shared: Any, schema: str
) -> DataFrame:
    """The rows that `work(item, shared)` makes of each item, in a task of its own; not run yet.

    The rows stay on the cluster. Spark may run the function again whenever it needs them.
    """
    return _frame(spark, work, items, shared, schema=schema)


def rows_of_frame(frame: DataFrame, work: RowWork, shared: Any, schema: str) -> DataFrame:
    """The rows that `work(batches, shared)` makes of the rows of each task; not run yet."""
    function, common = pickled_values([work, shared])
    return frame.mapInArrow(_row_body(function, common), schema)


def rows_of_groups(
    frame: DataFrame, key: Column, work: RowWork, shared: Any, schema: str
) -> DataFrame:
    """The rows that `work(table, shared)` makes of all rows with one key; not run yet."""
    function, common = pickled_values([work, shared])
    return frame.groupBy(key.alias("group_key")).applyInArrow(_group_body(function, common), schema)


def _frame(
    spark: SparkSession,
    work: Work | RowWork,
    items: Sequence[Any],
    shared: Any,
    schema: str | None = None,
) -> DataFrame:
    """The outputs of tasks, or the rows that they make if there is a schema."""
    pickled = pickled_values(items)
    function, common = pickled_values([work, shared])
    attempts = None if schema is not None else max_failures(spark)
    count = len(items)
    if sum(map(len, pickled)) <= MAX_CLOSURE_BYTES:
        rows = spark.range(0, count, 1, count)
        return rows.mapInArrow(_body(attempts, function, common, pickled), schema or tasks.DDL)
    import pyarrow as pa

    table = pa.table({"id": pa.array(range(count), pa.int64()), "item": pa.array(pickled)})
    rows = spark.createDataFrame(table).repartitionByRange(count, "id")
    return rows.mapInArrow(_body(attempts, function, common, None), schema or tasks.DDL)


def pickled_values(values: Iterable[Any]) -> list[bytes]:
    """Pickle values, with the code of functions that executors cannot import.

    Those are defined in `__main__`, which cloudpickle handles, or in modules that exist
    only in this process: made at run time, without a spec and a file.
    """
    from pyspark import cloudpickle

    library: Any = cloudpickle
    made_here = [
        module
        for name, module in list(sys.modules.items())
        if type(module) is ModuleType
        and name == module.__name__ != "__main__"  # some are there under several names
        and module.__spec__ is None
        and not hasattr(module, "__file__")
    ]
    with _pickling:
        for module in made_here:
            library.register_pickle_by_value(module)
        try:
            return [library.dumps(value) for value in values]
        finally:
            for module in made_here:
                library.unregister_pickle_by_value(module)


def _row_body(work: bytes, shared: bytes) -> Callable[[Any], Any]:
    """Make the function that Spark calls for rows that tasks of icefloe made."""

    def body(batches: Any) -> Any:
        from pyspark import TaskContext

        from icefloe.spark.engine.tasks import stream_rows

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        yield from stream_rows(task, batches, work, shared)

    return body


def _group_body(work: bytes, shared: bytes) -> Callable[[Any], Any]:
    """Make the function that Spark calls for all rows of a group."""

    def body(table: Any) -> Any:
        import pyarrow as pa
        from pyspark import TaskContext

        from icefloe.spark.engine.tasks import stream_rows

        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return pa.Table.from_batches(list(stream_rows(task, table, work, shared)))

    return body


def _body(
    attempts: int | None, work: bytes, shared: bytes, items: list[bytes] | None
) -> Callable[[Any], Any]:
    """Make the function that Spark calls; without `attempts`, rows stay on the cluster.

    It is a closure, which Spark pickles with its code: it runs on an executor without icefloe
    too, and says what is missing there.
    """
    version = __version__

    def body(batches: Any) -> Any:
        try:
            import icefloe
        except ImportError:
            import sys

            raise RuntimeError(
                f"icefloe is not installed in the Python of this executor ({sys.executable}, "
                f"version {sys.version.split()[0]}); install icefloe {version} there, or set "
                "PYSPARK_PYTHON to a Python that has it"
            ) from None
        if icefloe.__version__ != version:
            raise RuntimeError(
                f"this executor has icefloe {icefloe.__version__} and the driver {version}; "
                "install the same version on both"
            )
        from pyspark import TaskContext

        from icefloe.spark.engine.tasks import run_items, stream_items

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            pickled = (
                batch.column(1).to_pylist() if items is None else map(items.__getitem__, numbers)
            )
            todo = zip(numbers, pickled, strict=True)
            if attempts is None:
                yield from stream_items(todo, work, shared)
            else:
                yield from run_items(todo, work, shared, may_retry=attempt + 1 < attempts)

    return body


def is_connect(spark: SparkSession) -> bool:
    """Whether a session uses Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def max_failures(spark: SparkSession) -> int:
    """How often Spark tries a task; its default if the cluster does not say."""
    master = spark_setting(spark, "spark.master") or ""
    local = re.fullmatch(r"local(?:\[[^,\]]*(?:,\s*(\d+))?\])?", master)
    if local is not None:
        return int(local.group(1) or 1)
    value = spark_setting(spark, "spark.task.maxFailures")
    return int(value) if value and value.isdigit() else _DEFAULT_MAX_FAILURES


def parallelism(spark: SparkSession) -> int:
    """How many tasks the cluster runs at a time; a guess if it does not say."""
    if not is_connect(spark):
        return max(1, int(spark.sparkContext.defaultParallelism))
    value = spark_setting(spark, "spark.default.parallelism")
    if value and value.isdigit():
        return max(1, int(value))
    master = spark_setting(spark, "spark.master") or ""
    local = re.match(r"local\[(\d+)", master)
    return int(local.group(1)) if local else 8


def spark_setting(spark: SparkSession, key: str) -> str | None:
    """A setting of the application; None if it is not set, or the cluster does not say."""
    if not is_connect(spark):
        value: str | None = spark.sparkContext.getConf().get(key)
        return value
    try:
        return spark.conf.get(key, None)
    except Exception:  # noqa: BLE001 (servers refuse in many ways)
        return None


class _Action:
    """A Spark action in a thread of its own, so that the calling thread can watch and cancel it."""

    def __init__(
        self,
        spark: SparkSession,
        frame: DataFrame,
        label: str,
        description: str,
        count: int,
        shown: Progress,
    ) -> None:
        self._spark = spark
        self._frame = frame
        self._label = label
        self._description = description
        self._count = count
        self._shown = shown
        self._tag = f"icefloe-{uuid.uuid4().hex}"
        self._connect = is_connect(spark)
        self._rows: pa.Table | None = None
        self._error: BaseException | None = None
        self._handler: Any = self._connect_progress

    def run(self) -> pa.Table:
        thread = self._thread()
        if self._connect:
            self._spark.registerProgressHandler(self._handler)
        try:
            thread.start()
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                self._poll()
        except BaseException:
            self._cancel()
            thread.join()
            raise
        finally:
            if self._connect:
                self._spark.removeProgressHandler(self._handler)
        if self._error is not None:
            raise failures.lost(self._label, self._error) from self._error
        self._shown.update(self._count)
        assert self._rows is not None
        return self._rows

    def _thread(self) -> threading.Thread:
        if self._connect:
            return threading.Thread(target=self._act, daemon=True)
        from pyspark import InheritableThread

        # It inherits the local properties of this thread, such as the scheduler pool.
        thread: threading.Thread = InheritableThread(target=self._act, session=self._spark)
        thread.daemon = True
        return thread

    def _act(self) -> None:
        try:
            if self._connect:
                self._spark.addTag(self._tag)
            else:
                context = self._spark.sparkContext
                context.setJobGroup(self._tag, self._description)
                context.addJobTag(self._tag)
            self._rows = self._frame.toArrow()
        except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
            self._error = error

    def _cancel(self) -> None:
        logger.warning("%s: cancelled", self._label)
        if self._connect:
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def _poll(self) -> None:
        if self._connect or not self._shown.is_shown:
            return
        tracker = self._spark.sparkContext.statusTracker()
        done = 0
        for job in tracker.getJobIdsForGroup(self._tag):
            info = tracker.getJobInfo(job)
            stages = [] if info is None else info.stageIds
            # The last stage does the work; an earlier one only distributes the items.
            for stage in map(tracker.getStageInfo, sorted(stages)[-1:]):
                done += 0 if stage is None else stage.numCompletedTasks
        self._shown.update(done)

    def _connect_progress(self, stages: Any, *_: Any, **__: Any) -> None:
        finished = sum(stage.num_completed_tasks for stage in stages or ())
        self._shown.update(min(finished, self._count))
