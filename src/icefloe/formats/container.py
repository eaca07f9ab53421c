"""The container of metadata files: a header, then a body that may be compressed (spec 002).

Nothing here trusts its input: every length is checked before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import threading
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeVar

import msgspec

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.port import DEFAULT_LEVEL, EncodedFile
from icefloe.model.record import Record

if TYPE_CHECKING:
    import zstandard

MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")  # spec 002: "ICE", an ice cube, "CHUNK"
HEADER_SIZE: Final = 27
WIDE_HEADER_SIZE: Final = 39
"""Headers that the reference implementation wrote: 24 bytes of client string instead of 12."""
CLIENT_SIZE = 12
CLIENT = "ifl-0.1.0"
"""Who wrote a file (H-29): `ifl-` and the version of this package, at most 12 bytes."""

COLUMNS_VERSION = 2
ROWS_VERSION = 1

MAX_BODY_BYTES = 128 * 1024 * 1024
"""Any body may be as large as this when decompressed."""
MAX_EXPANSION = 256
"""A larger body may be at most this many times as large as its compressed form."""
MAX_LARGE_BODY_BYTES = 1024 * 1024 * 1024
"""No body may be larger than this."""
_MAX_WINDOW_BYTES = 64 * 1024 * 1024
_GUESS_BYTES = 65_536
_GUESS_RATIO = 16
"""How large a body is taken to be at first whose frame does not say: official manifests have 9."""
_PIECE = 32 * 1024

_T = TypeVar("_T")


class FileType(IntEnum):
    """Header byte 25. The numbers are part of the format."""

    SNAPSHOT = 1
    MANIFEST = 2
    ATTRIBUTES = 3
    TRANSACTION_LOG = 4

    @property
    def label(self) -> str:
        """Name in object metadata and messages."""
        return self.name.lower().replace("_", "-")


class Compression(IntEnum):
    """Header byte 26. The numbers are part of the format."""

    NONE = 0
    ZSTD = 1


class Header(Record, frozen=True):
    """The header of a metadata file."""

    size: Literal[27, 39]
    client: str
    spec_version: int
    compression: Compression


def bad_file(key: str, reason: str) -> FormatError:
    """The error for a damaged or invalid file."""
    return FormatError(f"{key or 'a metadata file'}: {reason}", key)


@cache
def make_header(spec_version: int, file_type: FileType, compression: Compression) -> bytes:
    """The 27 bytes that a file starts with."""
    # spec 002: bytes 12-23, padded with spaces on the right.
    client = CLIENT.encode("utf-8")[:CLIENT_SIZE].ljust(CLIENT_SIZE)
    return MAGIC + client + bytes((spec_version, file_type, compression))


@cache
def object_attributes(
    spec_version: int, file_type: FileType, compression: Compression
) -> dict[str, str]:
    """The header's information as object metadata (R2-14, H-31); nothing reads it back.

    Names have underscores because Azure allows no hyphens.
    """
    return {
        "ic_spec_ver": str(spec_version),
        "ic_client": CLIENT[:CLIENT_SIZE],
        "ic_file_type": file_type.label,
        "ic_comp_alg": compression.name.lower(),
    }


def make_file(spec_version: int, file_type: FileType, body: bytes, level: int) -> EncodedFile:
    """A header, and the body behind it, compressed."""
    kind = (spec_version, file_type, Compression.ZSTD)
    return EncodedFile(make_header(*kind) + compress(body, level), object_attributes(*kind))


def read_header(data: bytes, file_type: FileType, key: str) -> Header | None:
    """Read the header of a file that should be of some type; None if it has none at all.

    Files without a header are MessagePack of the oldest layouts, or not ours.
    """
    if data[: len(MAGIC)] != MAGIC:
        if len(data) < len(MAGIC) and MAGIC.startswith(data):
            _truncated(key, len(data))
        return None
    # H-29: byte 24 is a version in the short header, but text in the long one.
    if len(data) < HEADER_SIZE:
        _truncated(key, len(data))
    if data[24] in {ROWS_VERSION, COLUMNS_VERSION}:
        return _header(data, HEADER_SIZE, file_type, key)
    if len(data) >= WIDE_HEADER_SIZE and data[36] in {1, 2} and 1 <= data[37] <= 6:
        return _header(data, WIDE_HEADER_SIZE, file_type, key)
    if data[24] == 0:
        raise bad_file(key, "spec version 0 is reserved (header byte 24); the file is damaged")
    raise bad_file(
        key,
        f"spec version {data[24]} is unknown (header byte 24): expected {ROWS_VERSION} or "
        f"{COLUMNS_VERSION}; the file is damaged or needs a newer icefloe",
    )


def _header(data: bytes, size: Literal[27, 39], file_type: FileType, key: str) -> Header:
    spec_version, found_type, compression = data[size - 3 : size]
    if found_type != file_type:
        known = {member.value: member.label for member in FileType}
        raise bad_file(
            key,
            f"expected a {file_type.label} file (type {int(file_type)}), found type {found_type} "
            f"({known.get(found_type, 'unknown')})",
        )
    if compression not in {Compression.NONE, Compression.ZSTD}:
        raise bad_file(key, f"compression {compression} is unknown: expected 0 (none) or 1 (zstd)")
    client = data[len(MAGIC) : size - 3].decode("utf-8", errors="replace").rstrip(" ")
    return Header(
        size=size, client=client, spec_version=spec_version, compression=Compression(compression)
    )


def _truncated(key: str, length: int) -> NoReturn:
    raise bad_file(key, f"truncated: {length} bytes are less than a header")


def body_of(data: bytes, header: Header | None, key: str) -> bytes:
    """The decompressed body behind a header."""
    if header is None:
        raise bad_file(key, "the file does not start with the magic bytes")
    body = data[header.size :]
    if header.compression == Compression.ZSTD:
        body = decompress(body, key)
    if body[4:8] == b"Ichk":
        raise bad_file(
            key,
            "a FlatBuffers file of a newer official Icechunk, which icefloe cannot read yet",
        )
    return body


class _Contexts(threading.local):
    """Compression contexts: costly to make, and not safe to share between threads."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        """By level."""

    decompressor: zstandard.ZstdDecompressor | None = None


_contexts = _Contexts()


def compress(
    body: bytes, level: int = DEFAULT_LEVEL, *, largest: int = MAX_LARGE_BODY_BYTES
) -> bytes:
    """One zstd frame that states its content's size and checksum."""
    compressor = _contexts.compressors.get(level)
    if compressor is None:
        import zstandard

        compressor = _contexts.compressors[level] = zstandard.ZstdCompressor(
            level=level, write_checksum=True, write_content_size=True
        )
    frame = compressor.compress(body) if len(body) <= _PIECE else _in_pieces(compressor, body)
    limit = body_limit(len(frame), largest)
    if len(body) > limit:
        # A reader would have to take it for a decompression bomb.
        raise InvalidInputError(
            f"a metadata file of {len(body)} bytes that compresses to {len(frame)} cannot be "
            f"written: no reader would take more than {limit} bytes"
        )
    return frame


def _in_pieces(compressor: zstandard.ZstdCompressor, body: bytes) -> bytes:
    """Compress so that no zstd block spans columns of different nature, which would share a code.

    Saves up to a tenth of a manifest.
    """
    import zstandard

    stream = compressor.compressobj(size=len(body))
    view = memoryview(body)
    parts = []
    for start in range(0, len(body), _PIECE):
        parts.append(stream.compress(view[start : start + _PIECE]))
        parts.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    parts.append(stream.flush())
    return b"".join(parts)


def body_limit(compressed_size: int, largest: int = MAX_LARGE_BODY_BYTES) -> int:
    """How large a body may be when decompressed."""
    return max(MAX_BODY_BYTES, min(MAX_EXPANSION * compressed_size, largest))


def decompress(
    frame: bytes | memoryview, key: str, *, largest: int = MAX_LARGE_BODY_BYTES
) -> bytes:
    """Decompress exactly one zstd frame that fills `frame`, within the limits."""
    import zstandard

    decompressor = _contexts.decompressor
    if decompressor is None:
        decompressor = _contexts.decompressor = zstandard.ZstdDecompressor(
            max_window_size=_MAX_WINDOW_BYTES
        )
    limit = body_limit(len(frame), largest)
    try:
        # The size that the frame declares comes first: python-zstandard allocates it blindly.
        size = zstandard.frame_content_size(frame)
        if size > limit:
            raise _too_large(key, size, limit)
        if size < 0:
            return _decompress_undeclared(decompressor, frame, limit, key)
        body = decompressor.decompress(frame, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise bad_file(key, f"the zstd frame is damaged or cut off: {error}") from None
    if len(body) != size:
        raise bad_file(key, f"the zstd frame declares {size} bytes and holds {len(body)}")
    return body


def _decompress_undeclared(
    decompressor: zstandard.ZstdDecompressor, frame: bytes | memoryview, limit: int, key: str
) -> bytes:
    """Decompress a frame that does not declare its size, as some writers leave them."""
    import zstandard

    with contextlib.suppress(zstandard.ZstdError, MemoryError):
        # In one go, if that is enough; what is not written to is not taken from the system.
        enough = min(limit, max(_GUESS_BYTES, _GUESS_RATIO * len(frame)))
        if _frame_length(frame) == len(frame):
            return decompressor.decompress(frame, max_output_size=enough)
    # A block of 4 bytes may expand to 128 KiB, so each step adds at most 16 MiB.
    step = 512
    stream = decompressor.decompressobj()
    parts = []
    total = position = 0
    while not stream.eof:
        if position >= len(frame):
            raise bad_file(key, "the zstd frame is cut off")
        part = stream.decompress(frame[position : position + step])
        position += step
        total += len(part)
        if total > limit:
            raise _too_large(key, total, limit)
        parts.append(part)
    if stream.unused_data or position < len(frame):
        raise bad_file(key, "more bytes follow the zstd frame")
    return b"".join(parts)


def _frame_length(frame: bytes | memoryview) -> int:
    """Where a zstd frame ends, by the headers of its blocks; 0 if it has no end."""
    import zstandard

    position = zstandard.frame_header_size(frame)
    is_last = False
    while not is_last:
        header = int.from_bytes(frame[position : position + 3], "little")
        if position + 3 > len(frame):
            return 0
        is_last = bool(header & 1)
        is_repeated = header >> 1 & 3 == 1
        position += 3 + (1 if is_repeated else header >> 3)
    return position + (4 if zstandard.get_frame_parameters(frame).has_checksum else 0)


def _too_large(key: str, size: int, limit: int) -> FormatError:
    return bad_file(
        key, f"decompresses to {size} bytes or more, which is over the limit of {limit}"
    )


def decode_msgpack(decoder: msgspec.msgpack.Decoder[_T], body: bytes, key: str) -> _T:
    """Decode one MessagePack value that fills `body`."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise bad_file(key, f"not the MessagePack that was expected: {error}") from None
    except UnicodeDecodeError as error:
        raise bad_file(key, f"a string is not UTF-8: {error}") from None
    except RecursionError:
        raise bad_file(key, "MessagePack is nested too deeply") from None
    except TypeError as error:
        raise bad_file(key, f"a map has a key that cannot be one: {error}") from None


_encoder = msgspec.msgpack.Encoder()


def encode_msgpack(value: Any) -> bytes:
    """Encode a value; raises InvalidInputError for what MessagePack cannot hold."""
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"metadata consists of what JSON has, with integers of 64 bits: {error}"
        ) from None
