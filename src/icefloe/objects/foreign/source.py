"""Ranges of virtual sources, and the checks before their bytes are trusted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import msgspec

from icefloe.config.locations import Location
from icefloe.errors import VirtualChunkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

_logger = logging.getLogger(__name__)


class VirtualRange(msgspec.Struct, frozen=True):
    """A range of one object, with what its writer knew of that object."""

    location: Location
    start: int
    length: int
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970."""

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self.start + self.length

    @property
    def has_checksum(self) -> bool:
        """Whether a change of the object would be noticed."""
        return self.etag is not None or self.last_modified is not None

    def verify_unchanged(self, etag: str | None, last_modified: datetime | None) -> None:
        """Raise VirtualChunkError unless the object is still what its writer saw.

        Args:
            etag: The object's, as its store returns it with the bytes; None if it does not.
            last_modified: The same of the time of its last change.
        """
        if self.etag is not None and (etag is None or not same_etag(etag, self.etag)):
            raise self._changed(f"expected the etag {self.etag}, found {etag}")
        if self.last_modified is not None:
            # References keep whole seconds, and so do web servers.
            found = None if last_modified is None else int(last_modified.timestamp())
            if found is None or found > self.last_modified:
                raise self._changed(
                    f"expected a last change at {self.last_modified} seconds since 1970 or before, "
                    f"found {found}"
                )

    def completed(self, data: bytes) -> bytes:
        """The bytes, if they are all there.

        A shorter object is taken if a checksum proves that it is the one that its writer saw: then
        the expected length was wrong, and this is the complete object.
        """
        if len(data) == self.length:
            return data
        if len(data) < self.length and data and self.has_checksum:
            _logger.info(
                "%s ends %s bytes before the chunk that refers to it does",
                self.location,
                self.length - len(data),
            )
            return data
        raise self.too_short(f"{len(data)} of them")

    def too_short(self, found: str) -> VirtualChunkError:
        """The error for an object that ends too soon."""
        return VirtualChunkError(
            f"not enough data for a virtual chunk: expected {self.length} bytes from byte "
            f"{self.start} of {self.location}, found {found}"
        )

    def missing(self) -> VirtualChunkError:
        """The error for an object that is not there."""
        return VirtualChunkError(
            f"the file of a virtual chunk is missing: {self.location} does not exist"
        )

    def unreadable(self, reason: str) -> VirtualChunkError:
        """The error for everything else."""
        return VirtualChunkError(f"cannot read the virtual chunk in {self.location}: {reason}")

    def _changed(self, reason: str) -> VirtualChunkError:
        return VirtualChunkError(
            f"the file of a virtual chunk has changed since the reference to it was written: "
            f"{self.location}: {reason}. Write the references again"
        )


class SourceStatus(msgspec.Struct, frozen=True):
    """The status of an object: size, etag and time of the last change."""

    size: int | None
    """Number of bytes; None if the server does not tell."""
    etag: str | None = None
    last_modified: int | None = None
    """Seconds since 1970."""


class ListedSource(msgspec.Struct, frozen=True):
    """One object of a listing."""

    location: Location
    status: SourceStatus


class VirtualSource(Protocol):
    """Reads ranges below one container."""

    def status(self, location: Location) -> SourceStatus | None:
        """The status of an object; None if it does not exist. Raises VirtualChunkError."""

    def list(self, folder: Location) -> Iterator[ListedSource]:
        """All objects below a folder, in no promised order. Raises VirtualChunkError."""

    def read(self, byte_range: VirtualRange) -> bytes:
        """The bytes of a range. Raises VirtualChunkError."""

    async def read_async(self, byte_range: VirtualRange) -> bytes:
        """Like `read`, without blocking the event loop for long."""


def unlistable(folder: Location, reason: str) -> VirtualChunkError:
    """The error for a folder whose objects cannot be listed."""
    return VirtualChunkError(f"cannot list what is below {folder}: {reason}")


def same_etag(one: str, other: str) -> bool:
    """Whether two etags are the same, however they are written."""
    return _bare(one) == _bare(other)


def _bare(etag: str) -> str:
    """An etag without what some write around it and others do not."""
    return etag.removeprefix("W/").strip('"')
