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


class Official(NamedTuple):
    """What the better version of the official package needs, each number for itself."""

    requests: int
    rounds: int


OFFICIAL = {
    "create one at a new location": Official(4, 3),
    "write the dataset and commit": Official(61, 33),
    "open, session, `open_zarr`, first variable": Official(15, 7),
    "all ten variables": Official(45, 19),
    "new session, change one chunk, commit": Official(14, 8),
    "commit that rebases over one commit": Official(13, 12),
    "history of 32": Official(1, 1),
    "list 21 branches": Official(1, 1),
    "create a tag": Official(3, 3),
    "garbage collection, nothing to delete": Official(101, 15),
}
"""Versions 1.1.21 and 2.3.0 through a proxy that adds 0.3 s to each request; rounds are the time
divided by that, rounded down."""

REASONS = {
    "create one at a new location": "icefloe probes whether the server honours conditional writes, "
    "without which commits get lost: more requests, beside the others",
    "commit that rebases over one commit": "in `repository` and `icechunk`, manifests and the log "
    "are written while icefloe looks whether the branch has moved, and written again if it has: "
    "more requests, fewer round trips",
    "history of 32": "only the generation `icechunk` has a list of all snapshots; in the others "
    "each snapshot is a file, which names its nearest ancestors",
    "list 21 branches": "in `store`, the size of a reference does not show whether its branch was "
    "deleted, so icefloe reads the references of branches that have moved",
    "create a tag": "except in `icechunk`, where one file lists references and snapshots, a "
    "garbage collection may be about to delete the snapshot: a pin is stored before announcements "
    "of collections are read, the snapshot is looked up after that, the tag is created only if "
    "the snapshot exists, and then the pin must still be there; the official package does not "
    "check",
    "garbage collection, nothing to delete": "in `repository` and `store`, icefloe reads each "
    "branch by a listing and by the number of its newest entry, because listings may be out of "
    "date: more requests, fewer round trips",
}
"""Why an operation needs more than the official package, in some generation."""


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
