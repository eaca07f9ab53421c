"""Computes statistics of chunks on the cluster and keeps them in the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from icefloe.model.record import Record
from icefloe.spark.failures import doing
from icefloe.spark.job import Job, JobOptions, JobPlan, JobReport
from icefloe.spark.runner import run_tasks
from icefloe.spark.tables.columns import Variable, read_variables
from icefloe.spark.tables.decoding import AS_CF
from icefloe.spark.tables.statistics import Entries, read_entries, summarize, write_entries
from icefloe.spark.tasks import Output
from icefloe.spark.worker import SessionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from icefloe.versioning.repository import Repository
    from icefloe.versioning.session import Session

_NUMBERS = ("low", "high", "missing")


def compute_statistics(
    spark: SparkSession,
    repository: Repository | str,
    *,
    group: str = "/",
    variables: Sequence[str] | None = None,
    **options: Any,
) -> JobReport:
    """Find smallest and largest value and missing ones of each chunk, and commit them.

    Conditions (`where`) then leave out chunks that cannot have a wanted cell. Chunks whose
    statistics are up to date are not read again. Statistics of chunks that change later are not
    used; run this again to renew them.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        group: The group of the arrays.
        variables: Which arrays; by default all that have more than one chunk.
        options: What all jobs can be told; see `JobOptions`.
    """
    job = Job(spark, repository, "compute_statistics", JobOptions(**options))
    found = read_variables(job.session, group, AS_CF)
    names = variables if variables is not None else list(found)
    todo = {v.path: (v, coords) for n in names if len(coords := _stale(job.session, v := found[n]))}
    items = [
        (path, part)
        for path, (variable, coords) in todo.items()
        for part in _parts(variable, coords, job)
    ]
    chunks = sum(len(coords) for _, coords in todo.values())
    num_bytes = sum(len(c) * _chunk_bytes(v) for v, c in todo.values())
    plan = JobPlan("compute_statistics", tuple(todo), len(items), chunks, num_bytes, len(todo))
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    base = job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
    shared = _Shared(SessionSpec.of(base), {path: v for path, (v, _) in todo.items()})
    results = run_tasks(
        spark, _summaries, items, shared=shared, label=job.label, progress_bar=job.options.progress
    )
    rows: dict[str, list[pa.Table]] = {}
    for _, path, table in results.outputs():
        rows.setdefault(path, []).append(table)
    for path, tables in rows.items():
        write_entries(job.session, todo[path][0], entries_of(pa.concat_tables(tables)))
    return job.commit(plan)


def _stale(session: Session, variable: Variable) -> Any:
    """Chunks of an array without statistics that are true of them."""
    stored = variable.decoding.dtype
    numeric = stored != "string" and np.dtype(stored).kind in "biuf"
    coords = session.chunk_coords(variable.path).astype(np.int64)
    if not numeric or len(coords) < 2:
        return coords[:0]
    entries = read_entries(session, variable)
    if entries is None:
        return coords
    return coords[~entries[1][tuple(coords.T)]]


def _chunk_bytes(variable: Variable) -> int:
    return int(np.prod(variable.units)) * variable.itemsize


def _parts(variable: Variable, coords: Any, job: Job) -> Iterator[Any]:
    total = len(coords) * _chunk_bytes(variable)
    count = max(1, job.task_bytes(total) // _chunk_bytes(variable))
    for start in range(0, len(coords), count):
        yield coords[start : start + count]


class _Shared(Record, frozen=True, eq=False):
    session: SessionSpec
    variables: dict[str, Variable]


def _summaries(item: tuple[str, Any], shared: _Shared) -> Iterator[Output]:
    path, coords = item
    variable = shared.variables[path]
    session = shared.session.open()
    numbers = np.full((len(coords), 3), np.nan)
    for row, place in enumerate(coords.tolist()):
        region = tuple(
            slice(p * unit, min((p + 1) * unit, size))
            for p, unit, size in zip(place, variable.units, variable.shape, strict=True)
        )
        with doing(array=path, region=region):
            found = summarize(session.read_region(path, region), variable.decoding)
        assert found is not None, "only arrays of numbers are asked about"
        numbers[row] = found
    yield Output(path, table_of(Entries(coords, numbers)), len(coords))


def keep_written(session: Session, group: str, tables: dict[str, list[pa.Table]]) -> None:
    """Keep statistics that tasks made while they wrote chunks, which the session has by now."""
    variables = {v.path: v for v in read_variables(session, group, AS_CF).values()}
    for path, parts in tables.items():
        write_entries(session, variables[path], entries_of(pa.concat_tables(parts)))


def table_of(entries: Entries) -> pa.Table:
    """Entries on their way to the driver."""
    columns = {f"c{axis}": entries.coords[:, axis] for axis in range(entries.coords.shape[1])}
    columns |= {name: entries.numbers[:, at] for at, name in enumerate(_NUMBERS)}
    return pa.table(columns)


def entries_of(table: pa.Table) -> Entries:
    """What `table_of` was given."""
    rank = table.num_columns - len(_NUMBERS)
    coords = np.stack([table.column(f"c{axis}").to_numpy() for axis in range(rank)], axis=1)
    numbers = np.stack([table.column(name).to_numpy() for name in _NUMBERS], axis=1)
    return Entries(coords.astype(np.int64), numbers)
