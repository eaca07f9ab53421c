"""Goals: the ratio in time that icefloe should reach; the first pattern that fits counts."""

from __future__ import annotations

from fnmatch import fnmatch

GOALS = {
    # In the official format: at most its time, and half of it where a batch is taken whole.
    "official-decode-*": 0.5,
    "official-encode-*": 0.5,
    "official-*": 1.0,
    "refs-commit-list": 0.3,
    "refs-commit-native": 1.0,
    "refs-commit-*": 0.1,
    "refs-read-chunk-*": 0.1,
    "refs-read-coordinate-*": 1.0,
    "refs-change-chunk-*": 0.05,
    "small-arrays-change": 1.0,
    "small-arrays-*": 0.2,
    "small-write-*": 0.05,
    "small-read-*": 0.08,
    "small-random-*": 0.3,
    "*-64k-*": 0.3,
    "large-*": 0.7,
    "tables-sum": 4.0,
    "fill-*": 1.25,
    "distance-*": 1.0,
    "growth-*": 1.0,
    "import*": 1.0,
    "cold-open": 1.0,
    "ingest-*": 1.0,
    "rechunk-*": 1.0,
}


def goal_of(case: str) -> float | None:
    """The greatest ratio that is good enough, or None where there is no goal."""
    return next((goal for pattern, goal in GOALS.items() if fnmatch(case, pattern)), None)
