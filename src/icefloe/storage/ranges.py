"""Which byte ranges of one object to fetch together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

_WORTHWHILE_GAP = 1024 * 1024
"""Reading this many unneeded bytes costs less than another request."""


class Span(NamedTuple):
    """Bytes to fetch with one request, and the requested ranges that are in them."""

    start: int
    length: int
    members: list[int]


def coalesce(
    ranges: Sequence[tuple[int, int]], *, gap: int = _WORTHWHILE_GAP, max_bytes: int | None = None
) -> list[Span]:
    """Merge `(start, length)` ranges that are near each other.

    Args:
        ranges: The ranges to read, in any order; they may overlap or be empty.
        gap: How far apart two ranges may be to be fetched together.
        max_bytes: Do not let a span grow beyond this by merging.
    """
    spans: list[Span] = []
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, length = ranges[index]
        if spans:
            last = spans[-1]
            end = max(last.start + last.length, start + length)
            fits = max_bytes is None or end - last.start <= max_bytes
            if start - (last.start + last.length) <= gap and fits:
                last.members.append(index)
                spans[-1] = Span(last.start, end - last.start, last.members)
                continue
        spans.append(Span(start, length, [index]))
    return spans


class SpanColumns(NamedTuple):
    """Bytes to fetch at once, as columns; span `i` has the members `bounds[i]` to `bounds[i + 1]`.

    Members are ordered by object and start.
    """

    order: npt.NDArray[np.intp]
    """For each member, the index of its range."""
    bounds: npt.NDArray[np.intp]
    objects: npt.NDArray[np.integer]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    within: npt.NDArray[np.int64]
    """For each member, where it begins in its span."""

    def __len__(self) -> int:
        return len(self.starts)


def coalesce_columns(
    objects: npt.NDArray[np.integer],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    *,
    gap: int,
    max_bytes: int,
) -> SpanColumns:
    """Merge ranges of numbered objects that are near each other, with no object per range.

    Args:
        objects: The number of each range's object.
        starts: Where each range begins; in any order.
        lengths: Number of bytes of each; overlaps are fine.
        gap: How far apart two ranges may be to be fetched together.
        max_bytes: Where a span grows beyond this, another one begins. A single range is never cut.
    """
    order = _order(objects, starts)
    objects, starts = objects[order], starts[order]
    ends = starts + lengths[order]
    is_first = np.ones(len(starts), dtype=np.bool_)
    is_first[1:] = (objects[1:] != objects[:-1]) | (starts[1:] - ends[:-1] > gap)
    run = np.maximum.accumulate(np.where(is_first, np.arange(len(starts)), 0))
    filled = (ends - starts[run] - 1) // max_bytes
    is_first[1:] |= filled[1:] != filled[:-1]
    firsts = np.flatnonzero(is_first)
    counts = np.diff(firsts, append=len(starts))
    span_starts = starts[firsts]
    span_ends = np.maximum.reduceat(ends, firsts) if len(firsts) else ends
    return SpanColumns(
        order=order,
        bounds=np.append(firsts, len(starts)),
        objects=objects[firsts],
        starts=span_starts,
        lengths=span_ends - span_starts,
        within=starts - np.repeat(span_starts, counts),
    )


def _order(objects: npt.NDArray[np.integer], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """By object and start; that they are so already is common, and quicker to see than to do."""
    same = objects[1:] == objects[:-1]
    if ((objects[1:] > objects[:-1]) | (same & (starts[1:] >= starts[:-1]))).all():
        return np.arange(len(starts))
    return np.lexsort((starts, objects))


def divide(start: int, length: int, part_bytes: int) -> list[tuple[int, int]]:
    """Cut a long range into parts that are fetched at the same time."""
    if length < 2 * part_bytes:
        return [(start, length)]
    end = start + length
    return [(first, min(part_bytes, end - first)) for first in range(start, end, part_bytes)]


def pick(data: bytes, span: Span, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield `(index, bytes)` of each member of a fetched span."""
    for index in span.members:
        start, length = ranges[index]
        yield index, data[start - span.start : start - span.start + length]
