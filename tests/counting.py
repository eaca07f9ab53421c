"""How much the tests went through: they count it here, and the run prints the sums."""

from __future__ import annotations

from collections import Counter

KILLED = "killed processes"
FAULTS = "requests that failed on the way"
RACES = "processes that raced"
FILES = "mutations of files"
CELLS = "cells compared"

_counts: Counter[str] = Counter()


def count(what: str, number: int = 1) -> None:
    """Add to what the running test went through."""
    _counts[what] += number


def take() -> dict[str, int]:
    """What was counted since the last call."""
    taken = dict(_counts)
    _counts.clear()
    return taken
