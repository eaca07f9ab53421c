"""Parquet files in memory: writing row groups, reading single ones, and our notes in the footer.

Columns are exactly those of the schema. What icefloe adds is in the key-value metadata of the
footer. Under `icefloe` there is a MessagePack map, compressed and in base 64, as the footer holds
text. Under `icefloe.checksums` there are CRC-32s of the footer and of everything before it, because
Parquet has no checksum of footers, and one flipped bit can hide all other keys from a reader.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import zlib
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.formats.container import bad_file, compress, decompress, encode_msgpack
from icefloe.formats.dataset.arrow_schemas import SCHEMA_KEY, WIDE

NOTES_KEY = b"icefloe"
TAIL_SIZE = 8
"""Length of the footer and magic bytes, at the end of every file."""
_MAGIC = b"PAR1"
_MAX_FOOTER = 2**31
_CHECKSUMS_KEY = b"icefloe.checksums"
_BLANK = b"footer=00000000 rows=00000000"
_CHECKSUMS = re.compile(rb"footer=([0-9a-f]{8}) rows=([0-9a-f]{8})")
_DIGITS = 8
READ_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, OverflowError)
"""What Arrow raises for damaged files."""


class Footer(NamedTuple):
    """The footer of a file, once its checksum has been compared."""

    metadata: pq.FileMetaData
    notes: bytes | None
    """Our notes as MessagePack; None if another program wrote the file."""
    rows_checksum: int | None
    """CRC-32 of everything before the footer; None where it was not recorded."""


class ParquetWriter:
    """Writes one file to memory, a row group at a time."""

    def __init__(self, schema: pa.Schema, level: int, *, is_wide: bool, sorted_by: int = 0) -> None:
        """Take the schema, and how many of its first columns after the first one are sorted."""
        self._sink = io.BytesIO()
        self.spans: list[tuple[int, int]] = []
        """Start and length in bytes of each row group."""
        self.crcs: list[int] = []
        """CRC-32 of each row group."""
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=max(1, level),
            write_page_checksum=True,
            # Lists have items called `item`, as in the printed schema.
            use_compliant_nested_type=False,
            use_dictionary=[name for name in ("chunk_file", "array_id") if name in schema.names],
            write_statistics=True,
            sorting_columns=[pq.SortingColumn(place + 1) for place in range(sorted_by)] or None,
        )
        if is_wide:
            self._writer.add_key_value_metadata({SCHEMA_KEY: WIDE})

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group."""
        start = self._sink.tell()
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        end = self._sink.tell()
        self.spans.append((start, end - start))
        with self._sink.getbuffer() as view:
            self.crcs.append(zlib.crc32(view[start:end]))

    def close(self, notes: Any, *, packed: bytes | None = None) -> bytes:
        """Write the footer with our notes, a value or MessagePack already; returns the file."""
        body = encode_msgpack(notes) if packed is None else packed
        text = base64.b64encode(compress(body))
        self._writer.add_key_value_metadata({NOTES_KEY: text, _CHECKSUMS_KEY: _BLANK})
        self._writer.close()
        with self._sink.getbuffer() as view:
            _fill_in_checksums(view)
        return self._sink.getvalue()


def _fill_in_checksums(file: memoryview) -> None:
    """Write both checksums over the zeros that hold their place in a new file."""
    start = len(file) - footer_length(bytes(file[-TAIL_SIZE:]), "")
    place = start + bytes(file[start:]).rindex(_BLANK)
    rows = place + len(_BLANK) - _DIGITS
    file[rows : rows + _DIGITS] = b"%08x" % zlib.crc32(file[:start])
    footer = place + len(b"footer=")
    file[footer : footer + _DIGITS] = b"%08x" % zlib.crc32(file[start:])


def footer_length(tail: bytes, key: str) -> int:
    """Bytes at the end of a file that hold its footer, by the last eight of them."""
    if tail[-4:] != _MAGIC:
        raise bad_file(key, f"not a Parquet file, or cut off: it ends in {tail[-4:]!r}")
    length = int.from_bytes(tail[-8:-4], "little")
    if length > _MAX_FOOTER:
        raise bad_file(key, f"a footer of {length} bytes is not believable")
    return length + TAIL_SIZE


def read_footer(suffix: bytes, key: str) -> Footer:
    """Read the footer that is all of some bytes; raises FormatError if it is damaged."""
    rows_checksum = _check_footer(suffix, key)
    try:
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + suffix))
    except READ_ERRORS as error:
        raise bad_file(key, f"the footer is damaged: {error}") from None
    notes = _read_notes(metadata, key)
    if notes is None and rows_checksum is not None:
        raise bad_file(key, "icefloe wrote this file, but its notes are gone from the footer")
    return Footer(metadata, notes, rows_checksum)


def _check_footer(suffix: bytes, key: str) -> int | None:
    """Compare a footer with its checksum, which is found without parsing the footer.

    Returns the checksum of the rows; None for files of other programs and of icefloe before it
    wrote checksums.
    """
    place = suffix.rfind(_CHECKSUMS_KEY)  # keys are after the statistics of the columns
    if place < 0:
        return None
    match = _CHECKSUMS.search(suffix, place)
    blank = b"" if match is None else _zeros_for(suffix, match)
    if match is None or zlib.crc32(blank) != int(match[1], 16):
        raise bad_file(
            key,
            "the checksum of the footer does not match: the file is damaged, or another program "
            "changed it; restore it from a copy",
        )
    return int(match[2], 16)


def _zeros_for(suffix: bytes, match: re.Match[bytes]) -> bytes:
    """A footer as it was when its checksum was computed."""
    return suffix[: match.start(1)] + bytes([ord("0")]) * _DIGITS + suffix[match.end(1) :]


def read_whole_footer(data: bytes, key: str) -> Footer:
    """Read the footer of a file that is at hand, and compare the checksum of its rows."""
    needed = footer_length(data[-TAIL_SIZE:], key)
    if needed > len(data):
        raise bad_file(key, f"the footer would have {needed} of {len(data)} bytes")
    footer = read_footer(data[-needed:], key)
    if footer.rows_checksum not in (None, zlib.crc32(memoryview(data)[:-needed])):
        raise bad_file(
            key,
            "the checksum of the rows does not match: the file is damaged, or another program "
            "changed its rows and left the rest; restore it from a copy",
        )
    return footer


def has_wide_schema(data: bytes, key: str) -> bool:
    """Whether a file says that it has wider integers than spec 000 gives it."""
    metadata = read_whole_footer(data, key).metadata.metadata or {}
    return bool(metadata.get(SCHEMA_KEY) == WIDE)


def _read_notes(metadata: pq.FileMetaData, key: str) -> bytes | None:
    text = (metadata.metadata or {}).get(NOTES_KEY)
    if text is None:
        return None
    try:
        return decompress(base64.b64decode(text, validate=True), key)
    except (binascii.Error, ValueError) as error:
        raise bad_file(key, f"icefloe's notes in the footer are damaged: {error}") from None


def read_table(data: bytes, key: str) -> pa.Table:
    """Read a whole file."""
    try:
        return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(
            use_threads=False
        )
    except READ_ERRORS as error:
        raise bad_file(key, f"not a Parquet file as expected: {error}") from None


def read_row_group(
    footer: pq.FileMetaData, size: int, span: tuple[int, int], number: int, data: bytes, key: str
) -> pa.Table:
    """Read one row group of which `data` are the bytes at `span`; nothing else is needed."""
    part = _Part(size, span[0], data)
    try:
        file = pq.ParquetFile(
            part, metadata=footer, page_checksum_verification=True, pre_buffer=False
        )
        return file.read_row_group(number, use_threads=False)
    except READ_ERRORS as error:
        raise bad_file(key, f"row group {number} is damaged: {error}") from None


class _Part(io.RawIOBase):
    """A file of which only one range is at hand."""

    def __init__(self, size: int, start: int, data: bytes) -> None:
        super().__init__()
        self._size, self._start, self._data = size, start, data
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        first = self._place - self._start
        if first < 0 or size < 0:
            raise OSError(f"bytes at {self._place} are not in the row group")
        found = self._data[first : first + size]
        self._place += len(found)
        return found
