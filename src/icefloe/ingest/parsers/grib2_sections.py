"""Walks through the sections of GRIB 2 messages, so that a damaged file is not given to a library.

The libraries that decode them believe the lengths that a file states, and may never end.
"""

from __future__ import annotations

from icefloe.errors import InvalidInputError

_MAGIC, _END = b"GRIB", b"7777"
_INDICATOR_BYTES = 16
_SECTION_HEAD_BYTES = 5
_LEAST_BYTES = {1: 21, 2: 5, 3: 14, 4: 9, 5: 11, 6: 6, 7: 5}
"""Of each section: its head, and what all of its kinds have."""
_GRID, _PRODUCT, _DATA = 3, 4, 7
_BEFORE = {1: {0}, 2: {1, 7}, 3: {1, 2, 7}, 4: {3, 7}, 5: {4}, 6: {5}, 7: {6}}
"""Which section each one may follow; from local use, grid or product on they may be repeated."""


def check_messages(data: bytes, url: str) -> None:
    """Raise InvalidInputError unless all messages of a file are whole, section by section."""
    start = data.find(_MAGIC)
    while start >= 0:
        end = _check_message(data, start, url)
        start = data.find(_MAGIC, end)


def _check_message(data: bytes, start: int, url: str) -> int:
    """Check one message; returns where it ends."""
    if len(data) < start + _INDICATOR_BYTES:
        raise _damaged(url, start, "the file ends in the middle of it")
    edition = data[start + 7]
    if edition != 2:
        raise _damaged(url, start, f"it has edition {edition}, and the first one has edition 2")
    length = int.from_bytes(data[start + 8 : start + _INDICATOR_BYTES])
    end = start + length
    if end > len(data):
        raise _damaged(
            url, start, f"it should have {length} bytes, and the file has {len(data) - start} more"
        )
    position, before = start + _INDICATOR_BYTES, 0
    while position < end - len(_END):
        size, number = int.from_bytes(data[position : position + 4]), data[position + 4]
        if number not in _BEFORE or before not in _BEFORE[number]:
            raise _damaged(url, start, f"section {number} follows section {before}")
        if size < _LEAST_BYTES[number] or position + size > end - len(_END):
            raise _damaged(url, start, f"section {number} cannot have {size} bytes")
        position, before = position + size, number
    if before != _DATA or data[end - len(_END) : end] != _END:
        raise _damaged(url, start, "it does not end with its data")
    return end


def _damaged(url: str, start: int, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{url} cannot be read as GRIB: the message at byte {start} is damaged: {what}"
    )
