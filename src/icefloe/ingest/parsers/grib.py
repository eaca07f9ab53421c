"""GRIB: finds the fields of all messages; `grib_fields` reads them by eccodes, as cfgrib does.

Each message of edition 2 is checked section by section first: the libraries that decode them
believe the lengths that a file states, and may never end on a damaged one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError
from icefloe.ingest.parsers.grib_fields import GribField, parse_fields, walk_messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.ingest.authorized import AuthorizedStore
    from icefloe.ingest.parsed import ParsedFile

_EDITION_AT = 7
_MAGIC, _END = b"GRIB", b"7777"
_INDICATOR_BYTES = 16
_LEAST_BYTES = {1: 21, 2: 5, 3: 14, 4: 9, 5: 11, 6: 6, 7: 5}
"""Of each section: its head, and what all of its kinds have."""
_DATA = 7
_BEFORE = {1: {0}, 2: {1, 7}, 3: {1, 2, 7}, 4: {3, 7}, 5: {4}, 6: {5}, 7: {6}}
"""Which section each one may follow; from local use, grid or product on they may be repeated."""


def parse_grib(url: str, store: AuthorizedStore) -> ParsedFile:
    """Read a whole file: GRIB has no index of its messages."""
    data = store.read(url)
    edition = data[_EDITION_AT : _EDITION_AT + 1]
    if edition not in (b"\x01", b"\x02"):
        found_edition = edition[0] if edition else "?"
        raise InvalidInputError(
            f"{url} is GRIB edition {found_edition}; editions 1 and 2 can be referenced"
        )
    fields = walk_messages(data, url) if edition == b"\x01" else _checked_fields(data, url)
    return parse_fields(url, store.status(url), fields)


# --- sections of messages


def _checked_fields(data: bytes, url: str) -> Iterator[GribField]:
    """The fields of a file, all of whose messages are whole, section by section."""
    messages = []
    start = data.find(_MAGIC)
    while start >= 0:
        end, count = _check_message(data, start, url)
        messages.append((start, end, count))
        start = data.find(_MAGIC, end)
    for begin, end, count in messages:
        for number in range(count):
            yield GribField(begin, data[begin:end], number)


def _check_message(data: bytes, start: int, url: str) -> tuple[int, int]:
    """Check one message; returns where it ends, and how many fields it has."""
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
    position, before, fields = start + _INDICATOR_BYTES, 0, 0
    while position < end - len(_END):
        size, number = int.from_bytes(data[position : position + 4]), data[position + 4]
        if number not in _BEFORE or before not in _BEFORE[number]:
            raise _damaged(url, start, f"section {number} follows section {before}")
        if size < _LEAST_BYTES[number] or position + size > end - len(_END):
            raise _damaged(url, start, f"section {number} cannot have {size} bytes")
        position, before = position + size, number
        fields += number == _DATA
    if before != _DATA or data[end - len(_END) : end] != _END:
        raise _damaged(url, start, "it does not end with its data")
    return end, fields


def _damaged(url: str, start: int, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{url} cannot be read as GRIB: the message at byte {start} is damaged: {what}"
    )
