"""The job that computes chunk statistics on the cluster and commits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.spark.engine.job import Job, JobOptions, JobPlan, JobReport, job_options
from icefloe.spark.engine.signatures import with_keywords_of
from icefloe.spark.engine.statistics_outputs import take_statistics, unbound_output
from icefloe.spark.engine.worker import SessionSpec
from icefloe.tables.schema import read_variables
from icefloe.tables.statistics import chunk_count, has_numbers, read_entries
from icefloe.tables.summarize import Summaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Unpack

    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.spark.engine.job import JobKeywords
    from icefloe.spark.engine.tasks import TaskOutput
    from icefloe.tables.schema import Variable
    from icefloe.zarr_store.session_port import SessionPort


@with_keywords_of(JobOptions)
def compute_statistics(
    spark: SparkSession,
    repository: Repository | str,
    *,
    group: str = "/",
    variables: Sequence[str] | None = None,
    options: JobOptions | None = None,
    **keywords: Unpack[JobKeywords],
) -> JobReport:
    """Compute the minimum, maximum and number of missing values of each chunk, and commit them.

    Conditions (`where`) then skip chunks that cannot have a matching cell. Chunks whose statistics
    are up to date are not read again. Statistics of chunks that change later are stale and not
    used: run this again to update them. Jobs that write chunks can also compute statistics, see
    their argument `statistics`.

    Args:
        spark: The session, classic or Connect.
        repository: A repository, or its URL.
        group: The group of the arrays.
        variables: The arrays; by default all arrays of numbers with more than one chunk.
        options: Options that all jobs share.
        keywords: The same options as keyword arguments; see `JobOptions`.

    Returns:
        A report with the id of the new snapshot.

    Raises:
        InvalidInputError: A variable is not an array of numbers of the group.

    Example:
        >>> report = icefloe.spark.compute_statistics(spark, repo)
        >>> few = icefloe.tables.scan(repo, where="t2m > 300").num_chunks
        >>> few < icefloe.tables.scan(repo).num_chunks
        True
    """
    job = Job(spark, repository, "compute_statistics", job_options(options, keywords))
    known = read_variables(job.session, group)
    todo = {}
    for name in _chosen(known, variables):
        coords = _stale(job.session, known[name])
        if len(coords):
            todo[known[name].path] = coords
    sizes = {v.path: int(np.prod(v.units)) * v.itemsize for v in known.values()}
    items = [(path, part) for path, each in todo.items() for part in _parts(each, sizes[path], job)]
    chunks = sum(map(len, todo.values()))
    num_bytes = sum(len(coords) * sizes[path] for path, coords in todo.items())
    plan = JobPlan(
        label="compute_statistics",
        arrays=tuple(todo),
        tasks=len(items),
        chunks=chunks,
        num_bytes=num_bytes,
        manifests=len(todo),
    )
    settled = job.is_settled(plan)
    if settled is not None:
        return settled
    base = job.base()
    results = job.run_tasks(_summaries, items, SessionSpec.of(base), job.label)
    job.count(results)
    take_statistics(results, job.statistics)
    return job.commit(plan)


def _chosen(known: Mapping[str, Variable], names: Sequence[str] | None) -> list[str]:
    """The arrays to summarize: those named, or all that have more than one chunk."""
    if names is None:
        return [name for name, v in known.items() if chunk_count(v) > 1 and has_numbers(v.decoding)]
    for name in names:
        if name not in known or not has_numbers(known[name].decoding):
            numbers = sorted(n for n, v in known.items() if has_numbers(v.decoding))
            raise InvalidInputError(
                f"no statistics of {name!r}: the group has these arrays of numbers: "
                f"{', '.join(numbers) or 'none'}"
            )
    return list(names)


def _stale(session: SessionPort, variable: Variable) -> Any:
    """The chunks of an array whose statistics are missing or stale."""
    coords = session.tree.chunk_coords(variable.path).astype(np.int64)
    entries = read_entries(session, variable)
    return coords if entries is None else coords[~entries[1][tuple(coords.T)]]


def _parts(coords: Any, chunk_bytes: int, job: Job) -> Iterator[Any]:
    count = max(1, job.task_bytes(len(coords) * chunk_bytes) // chunk_bytes)
    for start in range(0, len(coords), count):
        yield coords[start : start + count]


def _summaries(item: tuple[str, Any], shared: SessionSpec) -> Iterator[TaskOutput]:
    path, coords = item
    summaries = Summaries(shared.open(), [path])
    summaries.add_chunks(path, coords)
    yield unbound_output(summaries, path)
