"""Identifiers of objects and nodes, and their text form in Crockford's base 32."""

from __future__ import annotations

import os
from functools import partial
from typing import ClassVar, Self

from icefloe.errors import InvalidInputError

_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUV"
"""What `int` takes for the digits of base 32."""
_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [chr(high) + chr(low) for high in _CROCKFORD for low in _CROCKFORD]
# Readers of the format accept lower case and the look-alikes I, L (one) and O (zero).
_FROM_CROCKFORD = bytes.maketrans(
    _CROCKFORD + _CROCKFORD[10:].lower() + b"ILOilo",
    _DIGITS + _DIGITS[10:] + b"110110",
)
_ACCEPTED = frozenset(_CROCKFORD + _CROCKFORD[10:].lower() + b"ILOilo")


def encode_base32(data: bytes) -> str:
    """Crockford base 32, most significant bit first, zero bits appended on the right."""
    # Two characters at a time from a table: this runs once per chunk.
    length = (len(data) * 8 + 4) // 5
    even = length + length % 2
    number = int.from_bytes(data, "big") << (even * 5 - len(data) * 8)
    pairs = [_PAIRS[number >> shift & 1023] for shift in range(even * 5 - 10, -1, -10)]
    return "".join(pairs)[:length]


def decode_base32(text: str, size: int) -> bytes:
    """Decode `size` bytes; raises ValueError if the text has another length or alphabet."""
    raw = text.encode("ascii", errors="replace")
    expected = (size * 8 + 4) // 5
    if len(raw) != expected:
        raise ValueError(f"expected {expected} characters of base 32, found {len(raw)}")
    if not _ACCEPTED.issuperset(raw):
        raise ValueError(f"{text!r} has characters outside Crockford's base 32")
    number = int(raw.translate(_FROM_CROCKFORD), 32) >> (expected * 5 - size * 8)
    return number.to_bytes(size, "big")


NAME_MARK = b"\xff" * 15 + b"\xfe"
"""The prefix of ids that are names: as many bytes as the longest other id."""
_MAX_NAME_BYTES = 1024


class Identifier(bytes):
    """Random bytes that identify an object or a node; printed in Crockford's base 32.

    One subclass per kind, so that a type checker stops a manifest id used as a chunk id. A format
    that leaves names free has ids that are names, of any length (see `named`).
    """

    SIZE: ClassVar[int] = 12
    WIDE_SIZE: ClassVar[int] = 16
    """Ids of the oldest generations have as many bytes. Ours are filled up with zeros there, which
    are left out again here, so that each id has one form."""
    __slots__ = ()

    def __new__(cls, data: bytes) -> Self:
        """Take SIZE bytes, or WIDE_SIZE bytes or a name that another implementation chose.

        Zeros may follow, as in a column that is as wide as its longest id.
        """
        if len(data) > cls.SIZE:
            data = cls._without_padding(data)
        if len(data) not in {cls.SIZE, cls.WIDE_SIZE} and not cls._is_name(data):
            raise InvalidInputError(
                f"a {cls.__name__} has {cls.SIZE} bytes, found {len(data)}: {bytes(data[:32])!r}"
            )
        return super().__new__(cls, data)

    @classmethod
    def of_column(cls, data: bytes) -> list[Self]:
        """The ids of a column, of SIZE bytes each; half the time of making them one by one.

        >>> ManifestId.of_column(bytes(24)) == [ManifestId(bytes(12))] * 2
        True
        """
        size = cls.SIZE
        if len(data) % size:
            raise InvalidInputError(
                f"a column of {cls.__name__} has {size} bytes for each, found {len(data)} in all"
            )
        make = partial(bytes.__new__, cls)
        return [make(data[at : at + size]) for at in range(0, len(data), size)]

    @classmethod
    def _without_padding(cls, data: bytes) -> bytes:
        if cls._is_name(data):
            return data.rstrip(b"\0")
        for size in (cls.SIZE, cls.WIDE_SIZE):
            if not any(data[size:]):
                return data[:size]
        return data

    @classmethod
    def _is_name(cls, data: bytes) -> bool:
        return len(data) > len(NAME_MARK) == cls.WIDE_SIZE and data.startswith(NAME_MARK)

    @classmethod
    def named(cls, name: str) -> Self:
        """The id of something that another implementation named, in a format that leaves it free.

        Raises InvalidInputError for a name that could lead out of the folder of such things.
        """
        try:
            octets = name.encode()
        except UnicodeEncodeError:
            octets = b""
        parts = name.removeprefix("/").split("/")
        is_good = name.isprintable() and not {"", ".", ".."}.intersection(parts)
        if not is_good or not 0 < len(octets) <= _MAX_NAME_BYTES or cls.SIZE == cls.WIDE_SIZE:
            raise InvalidInputError(f"{name[:100]!r} is not a {cls.__name__}, nor a good file name")
        return cls(NAME_MARK + octets)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Undo `str`, also of ids that are names; raises InvalidInputError."""
        try:
            found = cls.parse(text)
        except InvalidInputError:
            return cls.named(text)
        return found if str(found) == text else cls.named(text)

    @property
    def is_name(self) -> bool:
        """Whether another implementation chose it, and it is a name."""
        return self._is_name(self)

    @classmethod
    def random(cls) -> Self:
        """A fresh id."""
        return cls(os.urandom(cls.SIZE))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form."""
        is_wide = len(text) > (cls.SIZE * 8 + 4) // 5
        try:
            return cls(decode_base32(text, cls.WIDE_SIZE if is_wide else cls.SIZE))
        except ValueError as error:
            raise InvalidInputError(f"{text!r} is not a {cls.__name__}: {error}") from None

    def __str__(self) -> str:
        return self[len(NAME_MARK) :].decode() if self.is_name else encode_base32(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (bytes(self),)


class SnapshotId(Identifier):
    """Names a snapshot and its transaction log."""

    __slots__ = ()


class ManifestId(Identifier):
    """Names a manifest."""

    __slots__ = ()


class ChunkFileId(Identifier):
    """Names a chunk file, which holds one chunk or a pack of many."""

    __slots__ = ()


class AttributesId(Identifier):
    """Names an attribute file."""

    __slots__ = ()


class NodeId(Identifier):
    """Names an array or group for life, whatever its path."""

    SIZE: ClassVar[int] = 8
    WIDE_SIZE: ClassVar[int] = 8
    __slots__ = ()


FIRST_SNAPSHOT_ID = SnapshotId.parse("1CECHNKREP0F1RSTCMT0")
"""Id of the snapshot that every new repository starts with."""
