"""A virtual chunk reference as users give it."""

from __future__ import annotations

from datetime import datetime

from icefloe.errors import InvalidTypeError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.model.record import Record


class VirtualChunkSpec(Record, frozen=True):
    """Which chunk is which range of which object."""

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
    """A reference from what users give: an etag, or the time of the last change."""
    if isinstance(checksum, datetime):
        if checksum.tzinfo is None:
            raise InvalidTypeError(
                "a last-modified checksum needs a timezone, found a naive datetime"
            )
        return VirtualRef(location, offset, length, None, int(checksum.timestamp()))
    return VirtualRef(location, offset, length, checksum)
