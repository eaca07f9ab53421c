"""The summary of a job in its commit: a property, and columns of the table `snapshots`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SUMMARY = "icefloe.job"
"""The property of a commit that holds the summary of its job."""


class JobSummary(Record, frozen=True, omit_defaults=True):
    """Who made a commit, of what, and at which cost.

    >>> one = JobSummary(job="ingest", files=2, rows=None, seconds=1.5)
    >>> JobSummary.of({SUMMARY: one.to_data()}) == one
    True
    """

    job: str = ""
    """The kind of job: `ingest`, `map_blocks`, …"""
    application_id: str | None = None
    application_name: str | None = None
    user: str | None = None
    spark_version: str | None = None
    icefloe_version: str | None = None
    input_snapshots: tuple[str, ...] = ()
    """Snapshots that the job has read, of this repository and of others."""
    files: int | None = None
    """Files that were ingested."""
    chunks: int = 0
    """Chunks that tasks have written, or read if they write none."""
    bytes_read: int = 0
    bytes_written: int = 0
    rows: int | None = None
    """Rows of a DataFrame that were written."""
    tasks: int = 0
    seconds: float = 0.0
    """From the start of the job to its commit."""
    task_seconds: float = 0.0
    """Running time of all tasks together."""

    def to_data(self) -> dict[str, Any]:
        """Plain values, without those that are not known."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> JobSummary | None:
        """The summary among the properties of a commit; None if there is none that is valid."""
        if SUMMARY not in properties:
            return None
        try:
            return msgspec.convert(properties[SUMMARY], cls, strict=False)
        except msgspec.ValidationError:
            return None  # somebody else's property of that name


def joined_summary(summaries: Iterable[JobSummary | None]) -> JobSummary | None:
    """One summary of several commits that become one; None if none of them has one.

    >>> rounds = [JobSummary("ingest", files=2, tasks=3), None, JobSummary("ingest", files=1)]
    >>> both = joined_summary(rounds)
    >>> both.job, both.files, both.tasks
    ('ingest', 3, 3)
    """
    known = [summary for summary in summaries if summary is not None]
    if not known:
        return None

    columns = [msgspec.structs.asdict(each) for each in known]

    def total(name: str) -> Any:
        values = [row[name] for row in columns if row[name] is not None]
        return sum(values) if values else None

    sums = ("files", "chunks", "bytes_read", "bytes_written", "rows", "tasks")
    return msgspec.structs.replace(
        known[-1],
        job=", ".join(dict.fromkeys(each.job for each in known)),
        input_snapshots=tuple(dict.fromkeys(each for one in known for each in one.input_snapshots)),
        seconds=sum(each.seconds for each in known),
        task_seconds=sum(each.task_seconds for each in known),
        **{name: total(name) for name in sums},
    )
