"""Validates a version of a repository on a cluster: are the arrays as expected?

Metadata is checked by the driver. Tasks check cells, block by block, each block read once for all
expectations of its array; and whole coordinates. Chunks whose statistics tell enough are not read,
nor chunks that two versions to be compared share.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from icefloe.arrays.grid import suitable_task_bytes
from icefloe.model import MAIN
from icefloe.model.record import Record
from icefloe.spark.engine.runner import parallelism, run_tasks
from icefloe.spark.engine.tasks import TaskOutput
from icefloe.spark.jobs.fill import BLOCK_BYTES
from icefloe.spark.publishing.cell_checks import CellUnit, Findings, merged
from icefloe.spark.publishing.check_plan import CheckPlan
from icefloe.spark.publishing.validation_report import ValidationReport
from icefloe.tables.table_scan import open_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.spark.publishing.cell_checks import AnyUnit
    from icefloe.spark.publishing.check_plan import CheckPiece
    from icefloe.spark.publishing.expectations import Expectation

    Functions = Mapping[str, Callable[..., Any]]


def validate(
    spark: SparkSession,
    repository: Repository | str,
    expectations: Sequence[Expectation],
    *,
    version: str = MAIN,
    functions: Functions | None = None,
    block_bytes: int = BLOCK_BYTES,
    task_bytes: int | None = None,
    progress: bool | None = None,
) -> ValidationReport:
    """Check on the cluster whether the arrays of a version meet expectations; changes nothing.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        expectations: What is expected: `InRange`, `MissingAtMost`, `Monotonic`, `GapFree`,
            `NoDuplicates`, `HasUnits`, `HasAttributes`, `EqualTo`, `BlockCheck`.
        version: A branch, a tag or a snapshot id.
        functions: The functions of `BlockCheck`, by name.
        block_bytes: The size of the blocks that a task holds at a time.
        task_bytes: Bytes of array per task; chosen from the size of job and cluster by default.
        progress: Whether to show a progress bar; by default in terminals and notebooks.

    Returns:
        The report, with the failing cells of each expectation that is not met.

    Raises:
        InvalidInputError: An expectation does not make sense for an array.
        TaskFailedError: A chunk cannot be read, or a function failed.

    >>> import icefloe
    >>> import numpy as np
    >>> from icefloe.spark import InRange, NewArray, local_session, validate, write
    >>> spark = local_session()
    >>> repo = icefloe.Repository.create("validated")
    >>> new = NewArray(shape=(4,), dtype="f8", chunks=(2,), dims=("x",))
    >>> _ = write(spark, repo, {"t": lambda region: np.r_[region[0]]}, create={"t": new})
    >>> report = validate(spark, repo, [InRange("t", low=0, high=2)])
    >>> print(report.failures[0].detail)
    1 of 4 values is outside of 0 to 2: 3
    """
    started = time.monotonic()
    opened = open_repository(repository)
    session = opened.readonly_session(snapshot_id=version)
    plan = CheckPlan(opened, session, dict(functions or {}))
    for expectation in expectations:
        plan.add(expectation)
    plan.finish()
    size = sum(unit.grid.box_bytes(box) for unit, box in plan.boxes())
    if task_bytes is None:
        task_bytes = suitable_task_bytes(size, parallelism(spark))
    items = plan.tasks(max(1, task_bytes))
    results = run_tasks(
        spark,
        _check_pieces,
        items,
        shared=_Work(plan.units, block_bytes),
        label=f"validate {version}",
        about=opened.storage.location,
        progress_bar=progress,
    )
    parts: dict[int, list[Findings]] = {number: [part] for number, part in plan.known.items()}
    for _, name, table in results.outputs():
        part = msgspec.msgpack.decode(table.column("findings")[0].as_py(), type=Findings)
        parts.setdefault(int(name), []).append(part)
    for number, check in enumerate(plan.checks):
        if check.result is None:
            plan.checks[number] = check.judged(session, merged(parts.get(number, ())))
    totals = results.totals
    return ValidationReport(
        location=opened.storage.location,
        version=version,
        snapshot_id=session.snapshot_id,
        results=tuple(check.result for check in plan.checks if check.result is not None),
        chunks_read=totals.chunks,
        chunks_skipped=plan.chunks_skipped,
        bytes_read=totals.bytes_read,
        tasks=len(items),
        seconds=time.monotonic() - started,
    )


class _Work(Record, frozen=True, eq=False):
    """What all tasks share."""

    units: list[Any]
    block_bytes: int


def _check_pieces(pieces: list[CheckPiece], work: _Work) -> Iterator[TaskOutput]:
    """Check some pieces; on executors."""
    for piece in pieces:
        unit: AnyUnit = work.units[piece.unit]
        chunks = bytes_read = 0
        if isinstance(unit, CellUnit):
            chunks, bytes_read = piece.box.size, unit.grid.box_bytes(piece.box)
        for number, findings in unit.findings(piece.box, work.block_bytes):
            packed = msgspec.msgpack.encode(findings)
            table = pa.table({"findings": pa.array([packed], pa.binary())})
            yield TaskOutput(str(number), table, chunks=chunks, bytes_read=bytes_read)
            chunks = bytes_read = 0
