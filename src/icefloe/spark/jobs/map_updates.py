"""Computes the blocks of a result again whose inputs have changed since it was computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.grid import Target
from icefloe.cf.decoding import coding_of
from icefloe.model import paths
from icefloe.spark.engine.job import Job, JobOptions, JobReport, grid_of
from icefloe.spark.jobs.array_changes import (
    EarlierResult,
    ResultBoxes,
    changes_since,
    reshaped_document,
)
from icefloe.spark.jobs.fill import BLOCK_BYTES, Filling, fill
from icefloe.spark.jobs.inputs import InputArray, copy_coordinates, find_coordinate
from icefloe.spark.jobs.map_blocks import PlacedFunction, block_function, result_array
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.jobs.array_changes import ArrayChange
    from icefloe.spark.jobs.map_blocks import BlockFunction, BlockType
    from icefloe.zarr_store.session_port import SessionPort


def update_mapped(
    spark: SparkSession,
    repository: Repository,
    function: Callable[..., Any],
    inputs: str | Sequence[str],
    output: str,
    *,
    last: EarlierResult,
    options: JobOptions,
    blocks: BlockType = "numpy",
    dims: Sequence[str] | None = None,
    dtype: Any = None,
    chunks: Any = None,
    attributes: Mapping[str, Any] | None = None,
    overlap: Mapping[str, int | tuple[int, int]] | None = None,
    statistics: bool = False,
) -> JobReport | None:
    """Compute the blocks of a result of `map_blocks` again whose inputs have changed.

    Inputs may have grown, and some of their chunks may have changed. The result is the same as if
    all of it were computed.

    Args:
        spark: Any Spark session.
        repository: The repository.
        function: As for `map_blocks`, like the others.
        inputs: Paths of the input arrays.
        output: Path of the result.
        last: The last result of these arguments.
        options: Options that all jobs share.
        blocks: What the function gets.
        dims: Dimensions of the result.
        dtype: Data type of the result.
        chunks: Chunks of the result.
        attributes: Attributes of the result.
        overlap: How many elements of its neighbours a block includes.
        statistics: Whether to keep chunk statistics.

    Returns:
        The report of the job; None if more than blocks has changed, so that all of it must be
        computed.
    """
    job = Job(spark, repository, "map_blocks", options)
    base = job.input_session()
    calculation = block_function(
        base,
        function,
        inputs,
        dims=dims,
        overlap=overlap,
        boundary="none",
        blocks=blocks,
    )
    path = paths.canonical(output)
    boxes = changed_boxes(repository, last, base, calculation, path)
    if boxes is None:
        return None
    new = result_array(
        base,
        calculation,
        dtype=dtype,
        chunks=chunks,
        shards=None,
        fill_value=None,
        attributes=attributes,
    )
    scratch = repository.writable_session(options.branch)
    arrays.create(scratch, path, new, overwrite=True)
    described = reshaped_document(base, scratch, path)
    if described is None:
        return None  # the result would have other chunks, another type or other attributes
    regions = boxes.regions(grid_of(scratch, path))
    if arrays.open_array(base, path).shape != calculation.shape:
        job.session.tree.set_document(path, described)
    copy_coordinates(base, job.session, calculation.inputs, calculation.dims, path, replace=True)
    if not regions and not job.session.has_uncommitted_changes:
        return JobReport(job.plan([], 0))
    targets = [Target(job.grid(path), region) for region in regions]
    summarized = job.with_statistics(statistics, targets)
    result = arrays.open_array(job.session, path)
    coding = coding_of(result.dtype, dict(result.attrs))
    placed = PlacedFunction(calculation, (0,) * len(calculation.shape), coding)
    return fill(job, targets, Filling({path: placed}, BLOCK_BYTES, statistics=summarized))


def changed_boxes(
    repository: Repository,
    last: EarlierResult,
    base: Session,
    calculation: BlockFunction,
    output: str,
) -> ResultBoxes | None:
    """The boxes of a result outside of which nothing has changed.

    Returns None if something else has changed than chunks and lengths of the inputs.
    """
    found = changes_since(repository, last, base, output, calculation.shape)
    if found is None:
        return None
    changes, old = found
    boxes = ResultBoxes(calculation.shape)
    boxes.add_growth(old)
    for each in calculation.inputs:
        change = changes.of(each.path)
        if change is None or not _is_aligned(each, change.was, old, calculation):
            return None
        if calculation.blocks == "xarray" and not _labels_are_kept(changes.before, base, each):
            return None
        _add(boxes, change, each, calculation)
    return boxes


def _is_aligned(
    each: InputArray, was: Sequence[int], old: Sequence[int], calculation: BlockFunction
) -> bool:
    """Whether an input is aligned with the result as before: no dimension is newly repeated."""
    for name, earlier, extent in zip(each.dims, was, each.shape, strict=True):
        of_result = old[calculation.dims.index(name)]
        if earlier not in (1, of_result) or (earlier == 1 < of_result and extent > 1):
            return False
    return True


def _labels_are_kept(before: SessionPort, after: SessionPort, each: InputArray) -> bool:
    """Whether the coordinates of an input begin with those that it had."""
    for name in each.dims:
        was, now = (find_coordinate(one, each.path, name) for one in (before, after))
        if was is None and now is None:
            continue
        if was is None or now is None or dict(was.attrs) != dict(now.attrs):
            return False
        first = np.asarray(now[: was.shape[0]])
        values = np.asarray(was[...])
        is_equal = np.array_equal(first, values, equal_nan=values.dtype.kind == "f")
        if first.dtype != values.dtype or not is_equal:
            return False
    return True


def _add(
    boxes: ResultBoxes, change: ArrayChange, each: InputArray, calculation: BlockFunction
) -> None:
    """Include what depends on the changed part of an input, with what overlaps reach."""
    parts = {}
    for at, name in enumerate(each.dims):
        axis = calculation.dims.index(name)
        if each.shape[at] == 1 < calculation.shape[axis]:
            continue  # repeated along it
        side = calculation.sides.get(name)
        low = change.lower[:, at] - (0 if side is None else side.after)
        high = change.upper[:, at] + (0 if side is None else side.before)
        parts[axis] = (low, high)
    boxes.add(len(change.lower), parts)
