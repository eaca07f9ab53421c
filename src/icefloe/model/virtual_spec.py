"""A virtual chunk reference as users give it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from icefloe.errors import InvalidTypeError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


class VirtualChunkSpec(Record, frozen=True):
    """A virtual chunk: its index, and a range of an object."""

    index: list[int]
    location: str
    offset: int
    length: int
    etag_checksum: str | None = None
    last_updated_at_checksum: datetime | None = None

    def to_ref(self) -> VirtualRef:
        """The reference without its index."""
        return virtual_ref(
            self.location,
            self.offset,
            self.length,
            self.etag_checksum or self.last_updated_at_checksum,
        )


def virtual_ref(
    location: str, offset: int, length: int, checksum: str | datetime | None = None
) -> VirtualRef:
    """Make a reference of a user's arguments; the checksum is an etag or a last-modified time.

    Raises InvalidTypeError for a location or a checksum of another type.
    """
    if not isinstance(location, str):
        raise InvalidTypeError(
            f"the location of a virtual chunk is a URL, found {type(location).__name__}"
        )
    if isinstance(checksum, datetime):
        if checksum.tzinfo is None:
            raise InvalidTypeError(
                "a last-modified checksum needs a timezone, found a naive datetime"
            )
        return VirtualRef(
            location=location,
            offset=offset,
            length=length,
            etag=None,
            last_modified=int(checksum.timestamp()),
        )
    check_etags([checksum])
    return VirtualRef(location=location, offset=offset, length=length, etag=checksum)


def check_etags(etags: Iterable[object]) -> None:
    """Raise InvalidTypeError unless all etags are strings or None."""
    for etag in etags:
        if etag is not None and not isinstance(etag, str):
            raise InvalidTypeError(
                "the checksum of a virtual chunk is an etag (str) or a last-modified time "
                f"(datetime), found {type(etag).__name__}"
            )
