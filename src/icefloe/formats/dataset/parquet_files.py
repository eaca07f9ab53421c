"""Parquet files in memory: writing row groups, reading single ones, and our notes in the footer.

Columns are exactly those of the schema. What icefloe adds stands in the footer's key-value metadata
under the key `icefloe`: a MessagePack map, compressed and in base 64, as the footer holds text.
"""

from __future__ import annotations

import base64
import binascii
import io
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from icefloe.formats.container import bad_file, compress, decode_msgpack, decompress, encode_msgpack
from icefloe.formats.dataset.arrow_schemas import SCHEMA_KEY, WIDE

if TYPE_CHECKING:
    import msgspec

_T = TypeVar("_T")

NOTES_KEY = b"icefloe"
TAIL_SIZE = 8
"""Length of the footer and magic bytes, at the end of every file."""
_MAGIC = b"PAR1"
_MAX_FOOTER = 2**31


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
        self._writer.add_key_value_metadata({NOTES_KEY: text})
        self._writer.close()
        return self._sink.getvalue()


def footer_length(tail: bytes, key: str) -> int:
    """Bytes at the end of a file that hold its footer, by the last eight of them."""
    if tail[-4:] != _MAGIC:
        raise bad_file(key, f"not a Parquet file, or cut off: it ends in {tail[-4:]!r}")
    length = int.from_bytes(tail[-8:-4], "little")
    if length > _MAX_FOOTER:
        raise bad_file(key, f"a footer of {length} bytes is not believable")
    return length + TAIL_SIZE


def read_footer(suffix: bytes, key: str) -> pq.FileMetaData:
    """Parse the footer at the end of some bytes."""
    try:
        return pq.read_metadata(pa.BufferReader(_MAGIC + suffix))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise bad_file(key, f"the footer is damaged: {error}") from None


def read_notes(footer: pq.FileMetaData, key: str) -> bytes | None:
    """Our notes as MessagePack; None if another program wrote the file."""
    text = (footer.metadata or {}).get(NOTES_KEY)
    if text is None:
        return None
    try:
        return decompress(base64.b64decode(text, validate=True), key)
    except (binascii.Error, ValueError) as error:
        raise bad_file(key, f"icefloe's notes in the footer are damaged: {error}") from None


def decode_notes(decoder: msgspec.msgpack.Decoder[_T], notes: bytes, key: str) -> _T:
    """Decode our notes."""
    return decode_msgpack(decoder, notes, key)


def read_table(data: bytes, key: str) -> pa.Table:
    """Read a whole file."""
    try:
        return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(
            use_threads=False
        )
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
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
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
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
