"""Copies the chunks again that have changed since they were copied from another repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.arrays.grid import Region, Target, whole
from icefloe.model import paths
from icefloe.model.nodes import ArrayNode
from icefloe.spark.engine.job import Job, JobOptions, JobReport
from icefloe.spark.jobs.array_changes import (
    ArrayChanges,
    EarlierResult,
    ResultBoxes,
    earlier_shape,
    reshaped_document,
)
from icefloe.spark.jobs.copy import Destination, GroupSource, check_names
from icefloe.spark.jobs.fill import BLOCK_BYTES, Filling, fill
from icefloe.tables import zarr_arrays as arrays
from icefloe.tables.statistics import wanted_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import zarr
    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.zarr_store.session_port import SessionPort


def update_copied(
    spark: SparkSession,
    repository: Repository,
    origin: Repository,
    source: SessionPort,
    *,
    last: EarlierResult,
    options: JobOptions,
    group: str = "/",
    variables: Sequence[str] | str | None = None,
    chunks: Mapping[str, int] | None = None,
    statistics: bool | Sequence[str] = False,
) -> JobReport:
    """Copy the chunks of arrays again that have changed since the last copy of them.

    An array that has changed in another way than by growing and new chunks is replaced, and so is
    a copy that somebody has changed. The result is the same as if everything were copied.

    Args:
        spark: Any Spark session.
        repository: The repository that has the copies.
        origin: The repository that is copied from.
        source: The session of it to copy.
        last: The commit that has the last copies, and the snapshot of `origin` that they are of.
        options: Options that all jobs share.
        group: The group that has the copies; as for `copy`, like the others.
        variables: The arrays to copy.
        chunks: New chunk sizes, by dimension.
        statistics: Whether to keep chunk statistics.

    Returns:
        The report of the job.
    """
    job = Job(spark, repository, "copy", options)
    job.add_input(source)
    opened = GroupSource.of(source)
    names = [variables] if isinstance(variables, str) else variables
    check_names(names, opened.names)
    update = _CopyUpdate(
        job,
        Destination(
            group=paths.canonical(group),
            chunks=dict(chunks or {}),
            append_dim=None,
            region=None,
            overwrite=True,
        ),
        of_source=ArrayChanges(origin, last.inputs, source),
        of_copies=ArrayChanges(repository, last.snapshot_id, job.base()),
    )
    arrays.describe_group(job.session, paths.canonical(group), dict(opened.group.attrs))
    targets: list[Target] = []
    functions: dict[str, Callable[[Region], Any]] = {}
    copied = opened.names if names is None else names
    for name in copied:
        array = opened.array(name)
        for target in update.targets(name, array):
            targets.append(target)
            functions[target.grid.path] = opened.reader(name, (0,) * array.ndim)
    chosen = wanted_arrays(
        job.session, statistics, [update.destination.path(name) for name in copied], group
    )
    summarized = tuple(path for path in chosen if path in functions)
    return fill(job, targets, Filling(functions, BLOCK_BYTES, statistics=summarized))


class _CopyUpdate:
    """Decides what of each array is copied again."""

    def __init__(
        self,
        job: Job,
        destination: Destination,
        *,
        of_source: ArrayChanges,
        of_copies: ArrayChanges,
    ) -> None:
        self._job = job
        self.destination = destination
        self._of_source = of_source
        self._of_copies = of_copies

    def targets(self, name: str, array: zarr.Array[Any]) -> list[Target]:
        """Make the copy of an array as long as that is; return what to fill of it."""
        boxes = self._changed_boxes(name, array)
        if boxes is None:
            replaced = self.destination.prepare(self._job, name, array, whole(array.shape))
            return [] if replaced is None else [replaced]
        grid = self._job.grid(self.destination.path(name))
        return [Target(grid, region) for region in boxes.regions(grid)]

    def _changed_boxes(self, name: str, array: zarr.Array[Any]) -> ResultBoxes | None:
        """What must be copied again; None if the array must be replaced."""
        path = self.destination.path(name)
        change = self._of_source.of(paths.canonical(name))
        copies = self._of_copies
        old = earlier_shape(copies.before, copies.after, path)
        now = copies.after.get_node(path)
        if (
            change is None
            or copies.touches(path)
            or not isinstance(now, ArrayNode)
            or not change.was == old == now.array.shape
        ):
            return None
        scratch = self._job.repository.writable_session(self._job.options.branch)
        arrays.create(scratch, path, self.destination.described(array, array.shape), overwrite=True)
        described = reshaped_document(copies.after, scratch, path)
        if described is None:
            return None
        if array.shape != change.was:
            self._job.session.tree.set_document(path, described)
        boxes = ResultBoxes(array.shape)
        ends = enumerate(zip(change.lower.T, change.upper.T, strict=True))
        boxes.add(len(change.lower), dict(ends))
        return boxes
