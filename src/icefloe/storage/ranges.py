"""Which byte ranges of one object to fetch together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WORTHWHILE_GAP = 1024 * 1024
"""Reading so many bytes for nothing costs less than another request."""


class Span(NamedTuple):
    """Bytes to fetch at once, and which of the wanted ranges lie in them."""

    start: int
    length: int
    members: list[int]


def coalesce(
    ranges: Sequence[tuple[int, int]], *, gap: int = _WORTHWHILE_GAP, max_bytes: int | None = None
) -> list[Span]:
    """Merge `(start, length)` ranges that are near each other.

    Args:
        ranges: What is wanted, in any order; overlaps and empty ranges are fine.
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
