"""Computes statistics of chunks on the cluster and keeps them in the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.spark.engine.job import Job, JobOptions, JobPlan, JobReport
from icefloe.spark.engine.runner import run_tasks
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.engine.written_statistics import unbound_output
from icefloe.tables.chunk_summaries import Summaries
from icefloe.tables.columns import read_variables
from icefloe.tables.statistics import read_entries
from icefloe.tables.summarizing import has_numbers
from icefloe.tables.wanted_statistics import chunk_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.engine.tasks import Output
    from icefloe.tables.columns import Variable


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
    used; run this again to renew them. Jobs that write chunks can make them on the way, see their
    `statistics`.

    Args:
        spark: Any Spark session.
        repository: A repository, or its URL.
        group: The group of the arrays.
        variables: Which arrays; by default all that have more than one chunk.
        options: What all jobs can be told; see `JobOptions`.
    """
    job = Job(spark, repository, "compute_statistics", JobOptions(**options))
    found = read_variables(job.session, group)
    todo = {}
    for name in _chosen(found, variables):
        coords = _stale(job.session, found[name])
        if len(coords):
            todo[found[name].path] = coords
    sizes = {v.path: int(np.prod(v.units)) * v.itemsize for v in found.values()}
    items = [(path, part) for path, each in todo.items() for part in _parts(each, sizes[path], job)]
    chunks = sum(map(len, todo.values()))
    num_bytes = sum(len(coords) * sizes[path] for path, coords in todo.items())
    plan = JobPlan("compute_statistics", tuple(todo), len(items), chunks, num_bytes, len(todo))
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    base = job.repository.readonly_session(snapshot_id=job.session.snapshot_id)
    results = run_tasks(
        spark,
        _summaries,
        items,
        shared=SessionSpec.of(base),
        label=job.label,
        progress_bar=job.options.progress,
    )
    job.statistics.take_from(results)
    return job.commit(plan)


def _chosen(found: Mapping[str, Variable], names: Sequence[str] | None) -> list[str]:
    """The arrays to look at: those named, or all that have more than one chunk."""
    if names is None:
        return [name for name, v in found.items() if chunk_count(v) > 1 and has_numbers(v.decoding)]
    for name in names:
        if name not in found or not has_numbers(found[name].decoding):
            numbers = sorted(n for n, v in found.items() if has_numbers(v.decoding))
            raise InvalidInputError(
                f"no statistics of {name!r}: the group has these arrays of numbers: "
                f"{', '.join(numbers) or 'none'}"
            )
    return list(names)


def _stale(session: Session, variable: Variable) -> Any:
    """Chunks of an array without statistics that are true of them."""
    coords = session.tree.chunk_coords(variable.path).astype(np.int64)
    entries = read_entries(session, variable)
    return coords if entries is None else coords[~entries[1][tuple(coords.T)]]


def _parts(coords: Any, chunk_bytes: int, job: Job) -> Iterator[Any]:
    count = max(1, job.task_bytes(len(coords) * chunk_bytes) // chunk_bytes)
    for start in range(0, len(coords), count):
        yield coords[start : start + count]


def _summaries(item: tuple[str, Any], shared: SessionSpec) -> Iterator[Output]:
    path, coords = item
    summaries = Summaries(shared.open(), [path])
    summaries.add_chunks(path, coords)
    yield unbound_output(summaries, path)
