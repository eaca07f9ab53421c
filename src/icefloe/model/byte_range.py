"""Parts of an object, before its size is known."""

from __future__ import annotations

from icefloe.model.record import Record


class ByteRange(Record, frozen=True):
    """A part of an object; what is past its end is cut off.

    A negative start counts from the end; no length means up to the end.
    """

    start: int = 0
    length: int | None = None

    def resolve(self, size: int) -> tuple[int, int]:
        """Start and length within an object of `size` bytes."""
        start = max(0, size + self.start) if self.start < 0 else min(self.start, size)
        available = size - start
        return start, available if self.length is None else min(self.length, available)


WHOLE = ByteRange()
