"""Bin packing: few manifests, well filled."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def pack_by_size(items: Iterable[T], bin_size: int, size: Callable[[T], int]) -> list[list[T]]:
    """Bins of at most `bin_size`, by best fit of the largest first (R4-66, R4-70).

    That needs at most 11/9 of the smallest possible number of bins, and one more.
    """
    bins: list[list[T]] = []
    # Bins by the room that they have left, so that the tightest that fits is found by bisection.
    room: list[tuple[int, int]] = []
    for item in sorted(items, key=size, reverse=True):
        needed = size(item)
        place = bisect_left(room, (needed, -1))
        if place == len(room):
            bins.append([item])
            insort(room, (bin_size - needed, len(bins) - 1))
        else:
            left, number = room.pop(place)
            bins[number].append(item)
            insort(room, (left - needed, number))
    return bins


def pack_by_number(items: Iterable[T], per_bin: int, size: Callable[[T], int]) -> list[list[T]]:
    """Bins of `per_bin` items, large ones with small ones; the last may have fewer (R4-71..73)."""
    ordered = sorted(items, key=size, reverse=True)
    bins = []
    while ordered:
        large = ordered[: (per_bin + 1) // 2]
        rest = ordered[len(large) :]
        small_count = min(per_bin - len(large), len(rest))
        small = rest[len(rest) - small_count :]
        bins.append(large + small)
        ordered = rest[: len(rest) - small_count]
    return bins
