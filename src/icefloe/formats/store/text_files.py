"""JSON files of a store: written line by line, closed by a checksum of the text before it."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.formats.container import bad_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T = TypeVar("_T")

_TAIL = re.compile(rb',\n"checksum":"crc32:([0-9a-f]{8})"}\n\Z')
_TAIL_SIZE = len(',\n"checksum":"crc32:00000000"}\n')
_MAX_FILE_BYTES = 4 * 1024**3


def encode(value: Any) -> bytes:
    """JSON of a value; raises InvalidInputError for what JSON cannot hold."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(f"metadata consists of what JSON has: {error}") from None


def json_object(members: Mapping[str, bytes]) -> bytes:
    """A file that is one object: a line for each member, and finally a checksum (invariant 10)."""
    lines = [b'"%b":%b' % (name.encode("ascii"), value) for name, value in members.items()]
    body = b"{\n" + b",\n".join(lines)
    return body + b',\n"checksum":"crc32:%08x"}\n' % zlib.crc32(body)


def lines_object(lines: Sequence[bytes]) -> bytes:
    """An object with a line for each member, which is JSON already."""
    return b"{\n" + b",\n".join(lines) + b"\n}" if lines else b"{}"


def decode(decoder: msgspec.json.Decoder[_T], data: bytes, key: str) -> _T:
    """Read a file whose checksum, if it has one, is right."""
    if len(data) > _MAX_FILE_BYTES:
        raise bad_file(key, f"{len(data)} bytes are more than any JSON file of a store has")
    tail = _TAIL.search(data, max(0, len(data) - _TAIL_SIZE))
    is_right = tail is not None and int(tail[1], 16) == zlib.crc32(data[: tail.start()])
    rest = data[-_TAIL_SIZE:]
    if not is_right and (b'"checksum":"' in rest or b'"crc32:' in rest):
        raise bad_file(
            key,
            "the checksum does not match: the file is damaged (whoever edits one by hand removes "
            "the member 'checksum')",
        )
    return decode_json(decoder, data, key)


def decode_json(decoder: msgspec.json.Decoder[_T], data: bytes | msgspec.Raw, key: str) -> _T:
    """Decode JSON; anything that is not as expected is a FormatError."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise bad_file(key, f"not what the JSON Schema of spec 003 says: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_file(key, f"not JSON, or cut off: {error}") from None
