"""Which snapshot a reader means: by branch, tag, id or time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.model import MAIN
from icefloe.model.bounded_text import whole_number
from icefloe.model.moments import parse_moment
from icefloe.model.record import Record

if TYPE_CHECKING:
    from icefloe.repository import Repository
    from icefloe.session import Session


class SnapshotSelector(Record, frozen=True):
    """Selects a snapshot in at most one way; the tip of the branch `main` by default."""

    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    as_of: str | None = None
    """A time on a branch: milliseconds since 1970, or ISO 8601."""

    def session(self, repository: Repository) -> Session:
        """A read-only session on the snapshot."""
        named = [v for v in (self.branch, self.tag, self.snapshot_id) if v is not None]
        if len(named) > 1 or (self.as_of is not None and (self.tag or self.snapshot_id)):
            raise InvalidInputError(
                "name one version: branch, tag or snapshot-id; as-of-timestamp goes with a branch"
            )
        if self.tag is not None:
            return repository.readonly_session(tag=self.tag)
        if self.snapshot_id is not None:
            return repository.readonly_session(snapshot_id=self.snapshot_id)
        as_of = None if self.as_of is None else parse_timestamp(self.as_of)
        return repository.readonly_session(self.branch or MAIN, as_of=as_of)


def parse_timestamp(text: str) -> datetime:
    """A time in milliseconds since 1970, as Iceberg writes it, or in ISO 8601."""
    milliseconds = whole_number(text.strip())
    if milliseconds is None or len(text.strip()) <= len("20260131"):
        return parse_moment(text)
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidInputError(
            f"expected milliseconds since 1970 that are a moment of the years 1 to 9999, "
            f"found {text!r}"
        ) from None
