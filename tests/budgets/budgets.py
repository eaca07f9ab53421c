"""What each operation may ask of an object store, on each generation."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from icefloe.testing.requests import RequestCounts

FILE = Path(__file__).with_name("budgets.csv")


class Budget(NamedTuple):
    """Exact numbers of requests and rounds, and limits of bytes: compression varies with ids."""

    requests: int
    rounds: int
    kib_read: int
    kib_written: int

    @classmethod
    def of(cls, counts: RequestCounts, before: Budget | None) -> Budget:
        """The budget of what was counted; limits that still fit stay as they were `before`."""
        read = _limit(counts.bytes_read, None if before is None else before.kib_read)
        written = _limit(counts.bytes_written, None if before is None else before.kib_written)
        return cls(counts.requests, counts.rounds, read, written)


Budgets: TypeAlias = dict[tuple[str, str], Budget]
"""By operation and generation."""


def _limit(nbytes: int, before: int | None) -> int:
    """A tenth more than what was counted, in KiB."""
    limit = -(-nbytes * 11 // 10240)
    return before if before is not None and nbytes <= before * 1024 <= 1.5 * nbytes else limit


def read_budgets() -> Budgets:
    """The budgets that hold."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return {
            (row["operation"], row["generation"]): Budget(
                *(int(row[name]) for name in Budget._fields)
            )
            for row in csv.DictReader(file)
        }
