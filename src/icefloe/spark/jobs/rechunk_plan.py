"""How to rechunk within a memory budget: which regions to copy, in one stage or in two. Pure."""

from __future__ import annotations

from itertools import product
from math import ceil, lcm, prod
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_AMPLIFICATION = 8.0
"""Above this many bytes read per byte of the array, an intermediate copy is cheaper."""
REGION_SHARE = 3
"""A task holds one region, and about as much again in chunks that it decodes and encodes."""
_SPARE_AMPLIFICATION = 4.0
_MAX_SIZES = 12
_MAX_CHOICES = 20_000


class Stage(Record, frozen=True):
    """One pass over the array: regions of a shape are read from chunks and written as chunks."""

    source_chunks: tuple[int, ...]
    target_chunks: tuple[int, ...]
    region_shape: tuple[int, ...]
    """What one step copies; whole target chunks."""
    amplification: float
    """Bytes decoded per byte of the array."""


class RechunkPlan(Record, frozen=True):
    """The passes, of which the last one writes the result."""

    stages: tuple[Stage, ...]
    region_bytes: int
    """Of the largest region that a task holds."""


def plan_rechunk(
    shape: Sequence[int],
    source_chunks: Sequence[int],
    target_chunks: Sequence[int],
    item_bytes: int,
    memory_bytes: int,
    slots: int = 1,
) -> RechunkPlan:
    """Choose the regions; raises InvalidInputError if one chunk alone does not fit.

    Args:
        shape: Of the array.
        source_chunks: What it is read by: chunks, or shards.
        target_chunks: What it is written by.
        item_bytes: Of one element.
        memory_bytes: What a task may use.
        slots: How many tasks run at a time: smaller regions keep them busy.
    """
    shape = tuple(max(1, extent) for extent in shape)
    source = clipped(source_chunks, shape)
    target = clipped(target_chunks, shape)
    budget = memory_bytes // REGION_SHARE // item_bytes
    for name, chunks in (("chunk of the array", source), ("new chunk", target)):
        if prod(chunks) > budget:
            raise InvalidInputError(
                f"one {name} has {prod(chunks) * item_bytes} bytes; a task needs {REGION_SHARE} "
                f"times as much, and has memory_bytes={memory_bytes}"
            )
    direct = _best_stage(shape, source, target, budget, slots)
    stages: tuple[Stage, ...] = (direct,)
    if direct.amplification > MAX_AMPLIFICATION:
        between = _intermediate(shape, source, target, budget)
        two = (
            _best_stage(shape, source, between, budget, slots),
            _best_stage(shape, between, target, budget, slots),
        )
        # Writing the copy and reading it again is worth one pass more.
        if two[0].amplification + two[1].amplification + 1 < direct.amplification:
            stages = two
    largest = max(prod(stage.region_shape) for stage in stages)
    return RechunkPlan(stages, largest * item_bytes)


def clipped(chunks: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Chunks that are not longer than the array."""
    return tuple(max(1, min(size, extent)) for size, extent in zip(chunks, shape, strict=True))


def _intermediate(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], budget: int
) -> tuple[int, ...]:
    """Chunks that regions of both passes share: what a read gives and what a write needs."""
    reads = _grown(shape, source, target, budget)
    writes = _grown(shape, target, source, budget)
    return tuple(map(min, reads, writes))


def _grown(
    shape: tuple[int, ...], chunks: tuple[int, ...], other: tuple[int, ...], budget: int
) -> tuple[int, ...]:
    """A region of whole chunks, as long as the budget allows where the other chunks are longer."""
    region = list(chunks)
    order = sorted(range(len(shape)), key=lambda axis: chunks[axis] / other[axis])
    for axis in order:
        others = prod(region) // region[axis]
        most = max(1, budget // others // chunks[axis]) * chunks[axis]
        region[axis] = min(shape[axis], max(region[axis], most))
    return tuple(region)


def _best_stage(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    target: tuple[int, ...],
    budget: int,
    slots: int,
) -> Stage:
    """Regions of whole target chunks that are copied soonest.

    The work is what is read and what is written, spread over as many tasks as there are regions.
    Reading a chunk a few times is fine where that lets more tasks work.
    """
    sizes = [_sizes(*axis) for axis in zip(shape, source, target, strict=True)]
    while prod(map(len, sizes)) > _MAX_CHOICES and max(map(len, sizes)) > 2:
        longest = max(range(len(sizes)), key=lambda axis: len(sizes[axis]))
        tried = sizes[longest]
        sizes[longest] = [*tried[:-1:2], tried[-1]]
    ratios = [
        {size: axis_amplification(shape[axis], source[axis], size) for size in sizes[axis]}
        for axis in range(len(shape))
    ]
    choices = []
    for region in product(*sizes):
        if prod(region) <= budget:
            reads = prod(ratio[size] for ratio, size in zip(ratios, region, strict=True))
            choices.append((round(reads, 9), -prod(region), region))
    least = min(choices)[0]
    allowed = [choice for choice in choices if choice[0] <= max(least, _SPARE_AMPLIFICATION)]

    def cost(choice: tuple[float, int, tuple[int, ...]]) -> tuple[float, float, int]:
        reads, elements, region = choice
        count = prod(-(-extent // size) for extent, size in zip(shape, region, strict=True))
        return (reads + 1) / min(slots, count), reads, elements

    reads, _, region = min(allowed, key=cost)
    return Stage(source, target, region, reads)


def _sizes(extent: int, source: int, target: int) -> list[int]:
    """Lengths worth trying along one dimension: doublings, whole source chunks, all of it."""
    sizes = {min(extent, target)}
    size = target
    while size < extent:
        size *= 2
        sizes.add(min(extent, size))
    common = lcm(source, target)
    for times in (1, 2, 4):
        sizes.add(min(extent, common * times))
    sizes.add(min(extent, ceil(source / target) * target))
    found = sorted(sizes)
    if len(found) > _MAX_SIZES:
        step = len(found) / _MAX_SIZES
        found = sorted({found[int(number * step)] for number in range(_MAX_SIZES)} | {found[-1]})
    return found


def axis_amplification(extent: int, source: int, size: int) -> float:
    """Elements decoded along one dimension for each of its elements, by steps of `size`."""
    steps = ceil(extent / size)
    if steps > 4096:  # the middle repeats: its average says it all
        period = lcm(source, size)
        return _touched(min(extent, period * 4), source, size)
    return _touched(extent, source, size)


def _touched(extent: int, source: int, size: int) -> float:
    total = 0
    for start in range(0, extent, size):
        stop = min(extent, start + size)
        low, high = start // source * source, min(extent, ceil(stop / source) * source)
        total += high - low
    return total / extent


def resolve_chunks(
    given: object, shape: Sequence[int], old: Sequence[int], dims: Sequence[str | None]
) -> tuple[int, ...]:
    """Chunks as users give them: for all dimensions in order, or by name; -1 is all of one.

    Dimensions that a mapping does not name keep their chunks.
    """
    if isinstance(given, int):
        sizes: list[object] = [given] * len(shape)
    elif isinstance(given, dict):
        sizes = _by_name(given, old, dims)
    elif isinstance(given, tuple | list):
        sizes = list(given)
    else:
        raise InvalidInputError(f"chunks are numbers, in order or by dimension; found {given!r}")
    if len(sizes) != len(shape):
        raise InvalidInputError(f"chunks for {len(shape)} dimensions, found {sizes}")
    resolved = []
    for size, extent in zip(sizes, shape, strict=True):
        if not isinstance(size, int) or (size < 1 and size != -1):
            raise InvalidInputError(f"a chunk has at least 1 element along each dimension: {given}")
        resolved.append(max(1, extent) if size == -1 else min(size, max(1, extent)))
    return tuple(resolved)


def _by_name(
    given: Mapping[object, object], old: Sequence[int], dims: Sequence[str | None]
) -> list[object]:
    unknown = [name for name in given if name not in dims]
    if unknown:
        raise InvalidInputError(f"no dimension is called {unknown[0]!r}; found {list(dims)}")
    return [given.get(name, size) for name, size in zip(dims, old, strict=True)]
