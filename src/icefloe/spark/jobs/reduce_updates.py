"""Computes the blocks of a reduction again whose inputs have changed since it was computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.errors import InvalidInputError, NodeNotFoundError
from icefloe.model import paths
from icefloe.spark.engine.job import Job, JobOptions, JobReport, grid_of
from icefloe.spark.jobs.array_changes import (
    EarlierResult,
    ResultBoxes,
    changes_since,
    reshaped_document,
)
from icefloe.spark.jobs.fill import BLOCK_BYTES
from icefloe.spark.jobs.groupby import Groups, find_groups
from icefloe.spark.jobs.inputs import InputArray, copy_coordinates
from icefloe.spark.jobs.reduce import aggregation_of, reduction_of, result_array, run_reduction
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.jobs.array_changes import ArrayChange
    from icefloe.spark.jobs.reduce import Reduction


def update_reduced(
    spark: SparkSession,
    repository: Repository,
    array: str,
    how: str,
    output: str,
    *,
    last: EarlierResult,
    options: JobOptions,
    dims: str | Sequence[str] | None = None,
    by: Any = None,
    skipna: bool | None = None,
    q: float | Sequence[float] | None = None,
    ddof: int = 0,
    keep_attrs: bool = True,
    chunks: Any = None,
) -> JobReport | None:
    """Compute the blocks of a result of `reduce` again whose inputs have changed.

    The array may have grown, and some of its chunks may have changed. The result is the same as
    if all of it were computed.

    Args:
        spark: Any Spark session.
        repository: The repository.
        array: Path of the array; as for `reduce`, like the others.
        how: How to aggregate.
        output: Path of the result.
        last: The last result of these arguments.
        options: Options that all jobs share.
        dims: Dimensions to reduce.
        by: Groups.
        skipna: Whether missing values are skipped.
        q: Quantiles.
        ddof: Delta degrees of freedom.
        keep_attrs: Whether the result has the attributes of the array.
        chunks: Chunks of the result.

    Returns:
        The report of the job; None if more than blocks has changed, so that all of it must be
        computed.
    """
    job = Job(spark, repository, "reduce", options)
    base = job.input_session()
    reduction = reduction_of(
        base,
        array,
        aggregation_of(how, skipna=skipna, q=q, ddof=ddof),
        dims=dims,
        by=by,
        several_quantiles=q is not None and np.ndim(q) == 1,
        block_bytes=BLOCK_BYTES,
    )
    path = paths.canonical(output)
    boxes = changed_boxes(repository, last, base, reduction, path, by)
    if boxes is None:
        return None
    scratch = repository.writable_session(options.branch)
    arrays.create(
        scratch, path, result_array(reduction, chunks, keep_attrs=keep_attrs), overwrite=True
    )
    described = reshaped_document(base, scratch, path)
    if described is None:
        return None  # the result would have other chunks, another type or other attributes
    regions = boxes.regions(grid_of(scratch, path))
    if arrays.open_array(base, path).shape != reduction.shape:
        job.session.tree.set_document(path, described)
    copy_coordinates(base, job.session, [reduction.array], reduction.kept, path, replace=True)
    if not regions and not job.session.has_uncommitted_changes:
        return JobReport(job.plan([], 0))
    arrays.write_coordinates(
        job.session, paths.parent(path) or paths.ROOT, reduction.labels, overwrite=True
    )
    return run_reduction(job, reduction, path, regions)


def changed_boxes(
    repository: Repository,
    last: EarlierResult,
    base: Session,
    reduction: Reduction,
    output: str,
    by: Any,
) -> ResultBoxes | None:
    """The boxes of a result outside of which nothing has changed.

    Returns None if something else has changed than chunks and the length of the array, and groups
    behind those that there were.
    """
    found = changes_since(repository, last, base, output, reduction.shape)
    if found is None:
        return None
    changes, old = found
    change = changes.of(reduction.array.path)
    if change is None:
        return None
    if reduction.groups is not None:
        try:
            earlier = find_groups(
                by, InputArray.of(changes.before, reduction.array.path), changes.before
            )
        except (InvalidInputError, NodeNotFoundError):
            return None
        if not _continues(reduction.groups, earlier):
            return None
    boxes = ResultBoxes(reduction.shape)
    boxes.add_growth(old)
    _add(boxes, change, reduction)
    return boxes


def _continues(groups: Groups, earlier: Groups) -> bool:
    """Whether elements are in the groups in which they were; new groups follow those."""
    labels, codes = groups.labels[: earlier.count], groups.codes
    old = codes[tuple(slice(0, extent) for extent in earlier.codes.shape)]
    return (
        (groups.name, groups.dims) == (earlier.name, earlier.dims)
        and labels.dtype == earlier.labels.dtype
        and np.array_equal(labels, earlier.labels)
        and np.array_equal(old, earlier.codes)
    )


def _add(boxes: ResultBoxes, change: ArrayChange, reduction: Reduction) -> None:
    """Include what depends on the changed part of the array: kept dimensions, and groups."""
    at = {name: axis for axis, name in enumerate(reduction.array.dims)}
    ends_of = {
        axis: (change.lower[:, at[name]], change.upper[:, at[name]])
        for axis, name in enumerate(reduction.dims)
        if name in reduction.kept
    }
    if reduction.groups is None:
        boxes.add(len(change.lower), ends_of)
        return
    axes = [at[name] for name in reduction.groups.dims]
    group_axis = reduction.dims.index(reduction.groups.name)
    ends = np.concatenate([change.lower[:, axes], change.upper[:, axes]], axis=1)
    different, which, counts = np.unique(ends, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    members_of = np.split(order, counts.cumsum())[:-1]  # behind the last one, nothing is left
    for row, members in zip(different.tolist(), members_of, strict=True):
        lower, upper = row[: len(axes)], row[len(axes) :]
        part = reduction.groups.codes[tuple(map(slice, lower, upper))]
        parts = {axis: (low[members], high[members]) for axis, (low, high) in ends_of.items()}
        for code in np.unique(part[part >= 0]).tolist():
            boxes.add(len(members), {**parts, group_axis: (code, code + 1)})
