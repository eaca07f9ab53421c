"""What an ingest did: which files were new, replaced, unchanged or broken."""

from __future__ import annotations

from icefloe.ingest.differences import Difference, report
from icefloe.model.record import Record
from icefloe.spark.engine.job import JobReport

_SHOWN = 10


class BrokenFile(Record, frozen=True):
    """A file that could not be read, and why."""

    url: str
    reason: str
    action: str
    """`skipped` or `quarantined`."""


class IngestReport(Record, frozen=True, eq=False):
    """What became of the files."""

    mode: str
    new: tuple[str, ...]
    """Files that were ingested for the first time."""
    replaced: tuple[str, ...]
    """Files that had changed since they were ingested."""
    unchanged: tuple[str, ...]
    broken: tuple[BrokenFile, ...]
    variables: tuple[str, ...]
    """Variables that are referenced or copied."""
    stored_variables: tuple[str, ...]
    """Coordinates and other small variables."""
    remarks: tuple[Difference, ...]
    """What was not the same in all files and did not matter."""
    job: JobReport
    seconds: float

    @property
    def snapshot_id(self) -> str | None:
        """The commit; None if nothing changed."""
        return self.job.snapshot_id

    def __str__(self) -> str:
        counts = (
            f"{self.mode}: {len(self.new)} new, {len(self.replaced)} replaced, "
            f"{len(self.unchanged)} unchanged, {len(self.broken)} broken files"
        )
        what = (
            f"  {self.job.chunks:,} chunks of {', '.join(self.variables) or 'nothing'}; stored: "
            f"{', '.join(self.stored_variables) or 'nothing'}"
        )
        lines = [counts, what]
        lines += [f"  {each.action} {each.url}: {each.reason}" for each in self.broken[:_SHOWN]]
        if len(self.broken) > _SHOWN:
            lines.append(f"  and {len(self.broken) - _SHOWN} more broken files")
        if self.remarks:
            lines.append(report(self.remarks))
        done = self.snapshot_id
        lines.append(f"  {f'committed as {done}' if done else 'nothing was committed'}")
        return "\n".join(lines)
