"""Computes the blocks of a result again whose inputs have changed since it was computed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.arrays.grid import Region, Target, num_elements
from icefloe.cf.decoding import coding_of
from icefloe.model import paths
from icefloe.model.nodes import ArrayNode
from icefloe.spark.engine.job import Job, JobOptions, JobPlan, JobReport
from icefloe.spark.engine.worker import SessionSpec
from icefloe.spark.jobs.fill import BLOCK_BYTES, Filling, fill
from icefloe.spark.jobs.inputs import InputArray, copy_coordinates, find_coordinate
from icefloe.spark.jobs.map_blocks import PlacedFunction, block_function, result_array
from icefloe.tables import zarr_arrays as arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from icefloe.engine.info import Diff
    from icefloe.model.chunk_index import ChunkIndex
    from icefloe.repository import Repository
    from icefloe.session import Session
    from icefloe.spark.jobs.map_blocks import BlockFunction, BlockType
    from icefloe.zarr_store.session_port import SessionPort


def update_mapped(
    spark: SparkSession,
    repository: Repository,
    function: Callable[..., Any],
    inputs: str | Sequence[str],
    output: str,
    *,
    since: str,
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
        since: The snapshot that has the result of these inputs.
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
    base = repository.readonly_session(snapshot_id=job.session.snapshot_id)
    job.add_input(base.snapshot_id)
    spec = SessionSpec.of(base)
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    calculation = block_function(
        base,
        function,
        [InputArray.of(base, name, spec) for name in names],
        dims=dims,
        overlap=overlap,
        boundary="none",
        blocks=blocks,
    )
    path = paths.canonical(output)
    region = changed_region(repository, since, base, calculation, path)
    if region is None:
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
    described = scratch.tree.document(path) or b"{}"
    if _without_shape(described) != _without_shape(base.tree.document(path)):
        return None  # the result would have other chunks, another type or other attributes
    if not num_elements(region):
        nothing = JobPlan("map_blocks", (path,), tasks=0, chunks=0, num_bytes=0, manifests=0)
        return JobReport(nothing)
    job.session.tree.set_document(path, described)
    copy_coordinates(base, job.session, calculation.inputs, calculation.dims, path)
    targets = [Target(job.grid(path), region)]
    summarized = job.with_statistics(statistics, targets)
    result = arrays.open_array(job.session, path)
    coding = coding_of(result.dtype, dict(result.attrs))
    placed = PlacedFunction(calculation, (0,) * len(calculation.shape), coding)
    return fill(job, targets, Filling({path: placed}, BLOCK_BYTES, statistics=summarized))


def changed_region(
    repository: Repository,
    since: str,
    base: Session,
    calculation: BlockFunction,
    output: str,
) -> Region | None:
    """The smallest region of whole chunks of a result outside of which nothing has changed.

    Returns None if something else has changed than chunks and lengths of the inputs.
    """
    before = repository.readonly_session(snapshot_id=since)
    diff = repository.diff(from_snapshot_id=since, to_snapshot_id=base.snapshot_id)
    written = diff.chunk_indexes()
    known = {each.path for each in calculation.inputs} | {output}
    if known & _rearranged(diff) or output in written:
        return None
    # An ingest makes all arrays of its group longer that have the dimension, this result too.
    old = _earlier_shape(before, base, output)
    if (
        old is None
        or len(old) != len(calculation.shape)
        or np.any(np.array(old) > calculation.shape)
    ):
        return None
    box = _Box(calculation.shape)
    for axis, (earlier, now) in enumerate(zip(old, calculation.shape, strict=True)):
        if now > earlier:
            box.add(axis, earlier, now)
    for each in calculation.inputs:
        was = _earlier_shape(before, base, each.path)
        if was is None or not _is_aligned(each, was, old, calculation):
            return None
        if calculation.blocks == "xarray" and not _labels_are_kept(before, base, each):
            return None
        index = written.get(each.path)
        if (
            index is not None
            and len(index)
            and not _add_chunks(box, base, each, index, calculation)
        ):
            return None
    return box.region(calculation, _written_chunks(base, output))


class _Box:
    """A bounding box along the axes of a result; an axis that nobody named is whole."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = shape
        self._low = list(shape)
        self._high = [0] * len(shape)
        self._is_empty = True

    def add(self, axis: int, low: int, high: int) -> None:
        """Include a slab: part of one axis, and all of the others."""
        self.add_box({axis: (low, high)})

    def add_box(self, parts: Mapping[int, tuple[int, int]]) -> None:
        """Include a box."""
        self._is_empty = False
        for axis, extent in enumerate(self._shape):
            low, high = parts.get(axis, (0, extent))
            self._low[axis] = min(self._low[axis], low)
            self._high[axis] = max(self._high[axis], high)

    def region(self, calculation: BlockFunction, chunks: Sequence[int]) -> Region:
        """The box with what overlaps reach, as whole chunks."""
        if self._is_empty:
            return tuple(slice(0, 0) for _ in self._shape)
        parts = []
        for axis, name in enumerate(calculation.dims):
            side = calculation.sides.get(name)
            low = max(0, self._low[axis] - (0 if side is None else side.after))
            high = self._high[axis] + (0 if side is None else side.before)
            size, extent = chunks[axis], self._shape[axis]
            parts.append(slice(low // size * size, min(extent, -(-high // size) * size)))
        return tuple(parts)


def _rearranged(diff: Diff) -> set[str]:
    moved = {path for move in diff.moved_nodes for path in move}
    return moved | diff.new_arrays | diff.deleted_arrays


def _without_shape(document: bytes | None) -> Any:
    plain = json.loads(document or b"{}")
    return {name: value for name, value in plain.items() if name != "shape"}


def _earlier_shape(before: SessionPort, after: SessionPort, path: str) -> tuple[int, ...] | None:
    """The shape of an array before; None if it has changed in another way than by growing."""
    was, now = before.get_node(path), after.get_node(path)
    if not isinstance(was, ArrayNode) or not isinstance(now, ArrayNode) or was.id != now.id:
        return None
    if _without_shape(before.tree.document(path)) != _without_shape(after.tree.document(path)):
        return None
    pairs = zip(was.array.shape, now.array.shape, strict=True)
    return was.array.shape if all(one <= other for one, other in pairs) else None


def _is_aligned(
    each: InputArray, was: Sequence[int], old: Sequence[int], calculation: BlockFunction
) -> bool:
    """Whether an input lies along the result as it did: nothing was repeated that now is not."""
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


def _add_chunks(
    box: _Box, base: SessionPort, each: InputArray, index: ChunkIndex, calculation: BlockFunction
) -> bool:
    """Include what depends on chunks of an input; returns False if that is not known."""
    node = base.get_node(each.path)
    sizes = node.array.chunk_shape if isinstance(node, ArrayNode) else None
    if sizes is None:
        return False
    coords = index.coords()
    parts: dict[int, tuple[int, int]] = {}
    for at, name in enumerate(each.dims):
        axis = calculation.dims.index(name)
        if each.shape[at] == 1 < calculation.shape[axis]:
            continue  # repeated along it
        low = int(coords[:, at].min()) * sizes[at]
        high = (int(coords[:, at].max()) + 1) * sizes[at]
        parts[axis] = (min(low, each.shape[at]), min(high, each.shape[at]))
    box.add_box(parts)
    return True


def _written_chunks(base: SessionPort, path: str) -> tuple[int, ...]:
    """The size of what a task writes of an array: its shards, or its chunks."""
    array = arrays.open_array(base, path)
    return tuple(array.shards or array.chunks)
