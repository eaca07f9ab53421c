"""FlexBuffers: JSON values as bytes, as version 2 keeps metadata and the configuration.

The last byte of a buffer is the width of the root's slot, the byte before it the root's type, and
the slot is before that. A slot holds a number itself, or how many bytes before the slot its value
begins. A type is six bits that name it and two for the width of what is behind it.

The reader takes every type that JSON values may have, and no more memory than the buffer deserves:
several slots may share a value, so what is read is counted. The writer makes all slots 8 bytes
wide.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

from icefloe.errors import FormatError, InvalidInputError

MAX_NESTING = 100
_MAX_TEXT_BYTES = 64 * 1024 * 1024
"""All texts of a buffer together; slots may share a text."""
_WIDTHS = (1, 2, 4, 8)


class _Type(IntEnum):
    """The numbers of the types, which are part of the format."""

    NULL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    KEY = 4
    STRING = 5
    INDIRECT_INT = 6
    INDIRECT_UINT = 7
    INDIRECT_FLOAT = 8
    MAP = 9
    VECTOR = 10
    VECTOR_INT = 11
    VECTOR_UINT = 12
    VECTOR_FLOAT = 13
    VECTOR_KEY = 14
    VECTOR_STRING = 15
    BOOL = 26
    VECTOR_BOOL = 36


_NUMBERS = {_Type.INT: "bhiq", _Type.UINT: "BHIQ", _Type.FLOAT: " efd", _Type.BOOL: "BHIQ"}
_INDIRECT = {
    _Type.INDIRECT_INT: _Type.INT,
    _Type.INDIRECT_UINT: _Type.UINT,
    _Type.INDIRECT_FLOAT: _Type.FLOAT,
}
_TYPED = {
    _Type.VECTOR_INT: _Type.INT,
    _Type.VECTOR_UINT: _Type.UINT,
    _Type.VECTOR_FLOAT: _Type.FLOAT,
    _Type.VECTOR_KEY: _Type.KEY,
    _Type.VECTOR_STRING: _Type.STRING,
    _Type.VECTOR_BOOL: _Type.BOOL,
}
_FIRST_FIXED, _LAST_FIXED = 16, 24
"""Vectors of 2, 3 and 4 numbers, of three types each, which do not say their length."""
_MIN_INT, _MAX_UINT = -(2**63), 2**64 - 1


def decode(data: bytes, what: str) -> Any:
    """Read a buffer; raises FormatError, which names `what`, unless it is a value of JSON."""
    return _Reader(data, what).root()


class _Reader:
    """One buffer that is being read."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        # Without sharing every value has at least one byte of its own.
        self._values_left = len(data)
        self._text_left = _MAX_TEXT_BYTES

    def root(self) -> Any:
        if len(self._data) < 3:
            raise self._bad(f"{len(self._data)} bytes are no FlexBuffers value")
        packed, width = self._data[-2:]
        if width not in _WIDTHS:
            raise self._bad(f"a slot of {width} bytes")
        return self._value(len(self._data) - 2 - width, width, packed, 0)

    def _value(self, slot: int, width: int, packed: int, depth: int) -> Any:
        """The value of a slot."""
        self._values_left -= 1
        if self._values_left < 0:
            raise self._bad("its parts refer to each other over and over")
        if depth > MAX_NESTING:
            raise self._bad(f"nested more than {MAX_NESTING} deep")
        kind, inner = packed >> 2, 1 << (packed & 3)
        if kind == _Type.NULL:
            return None
        if kind in _NUMBERS:
            number = self._number(slot, width, _Type(kind))
            return bool(number) if kind == _Type.BOOL else number
        return self._elsewhere(self._target(slot, width), kind, inner, depth)

    def _elsewhere(self, start: int, kind: int, inner: int, depth: int) -> Any:
        """The value of a slot that leads to it."""
        if kind in _INDIRECT:
            return self._number(start, inner, _INDIRECT[_Type(kind)])
        if kind == _Type.KEY:
            return self._key(start)
        if kind == _Type.STRING:
            return self._text(start, self._number(start - inner, inner, _Type.UINT))
        if kind == _Type.MAP:
            return self._map(start, inner, depth)
        if kind == _Type.VECTOR:
            return self._vector(start, inner, depth)
        if kind in _TYPED:
            length = self._number(start - inner, inner, _Type.UINT)
            return self._typed(start, inner, length, _TYPED[_Type(kind)], depth)
        if _FIRST_FIXED <= kind <= _LAST_FIXED:
            length, of = divmod(kind - _FIRST_FIXED, 3)
            item = (_Type.INT, _Type.UINT, _Type.FLOAT)[of]
            return self._typed(start, inner, length + 2, item, depth)
        raise self._bad(f"type {kind} is no value of JSON")

    def _vector(self, start: int, width: int, depth: int) -> list[Any]:
        length = self._number(start - width, width, _Type.UINT)
        types = self._types(start, width, length)
        return [
            self._value(start + place * width, width, packed, depth + 1)
            for place, packed in enumerate(types)
        ]

    def _typed(self, start: int, width: int, length: int, item: _Type, depth: int) -> list[Any]:
        self._slice(start, length * width)
        # Strings matter here in a deprecated type only: their lengths are as wide as the slots.
        packed = item << 2 | _WIDTHS.index(width)
        return [
            self._value(start + place * width, width, packed, depth + 1) for place in range(length)
        ]

    def _map(self, start: int, width: int, depth: int) -> dict[str, Any]:
        keys_at = self._target(start - 3 * width, width)
        keys_width = self._number(start - 2 * width, width, _Type.UINT)
        if keys_width not in _WIDTHS:
            raise self._bad(f"the keys of a map are {keys_width} bytes wide")
        keys_length = self._number(keys_at - keys_width, keys_width, _Type.UINT)
        keys = self._typed(keys_at, keys_width, keys_length, _Type.KEY, depth)
        values = self._vector(start, width, depth)
        found = dict(zip(keys, values, strict=False))
        if len(keys) != len(values) or len(found) != len(keys):
            raise self._bad(f"a map has {len(values)} values and {len(found)} different keys")
        return found

    # --- bytes, with their bounds checked

    def _number(self, start: int, width: int, kind: _Type) -> Any:
        code = _NUMBERS[kind][_WIDTHS.index(width)]
        if code == " ":
            raise self._bad("a float of one byte")
        return struct.unpack(f"<{code}", self._slice(start, width))[0]

    def _target(self, slot: int, width: int) -> int:
        return slot - int(self._number(slot, width, _Type.UINT))

    def _types(self, start: int, width: int, length: int) -> bytes:
        return self._slice(start + length * width, length)

    def _key(self, start: int) -> str:
        self._slice(start, 1)
        end = self._data.find(b"\0", start)
        if end < 0:
            raise self._bad("a key does not end")
        return self._text(start, end - start)

    def _text(self, start: int, length: int) -> str:
        self._text_left -= length
        if self._text_left < 0:
            raise self._bad(f"its texts have more than {_MAX_TEXT_BYTES} bytes")
        try:
            return self._slice(start, length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._bad(f"a text is not UTF-8: {error}") from None

    def _slice(self, start: int, length: int) -> bytes:
        if start < 0 or start + length > len(self._data):
            raise self._bad(f"{length} bytes at {start} are outside of its {len(self._data)} bytes")
        return self._data[start : start + length]

    def _bad(self, reason: str) -> FormatError:
        return FormatError(f"{self._what}: damaged FlexBuffers: {reason}")


def encode(value: Any) -> bytes:
    """The buffer of a value of JSON; raises InvalidInputError for anything else."""
    writer = _Writer()
    packed, content = writer.add(value, 0)
    writer.pad()
    writer.slot(content)
    return bytes(writer.data) + bytes((packed, 8))


class _Writer:
    """A buffer that is being written: what slots refer to is written before them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._keys: dict[str, int] = {}

    def add(self, value: Any, depth: int) -> tuple[int, bytes | int]:
        """Write what a slot of a value refers to.

        Returns its packed type, and the slot itself or the position that it refers to.
        """
        if depth > MAX_NESTING:
            raise InvalidInputError(f"a value is nested at most {MAX_NESTING} deep")
        if value is None:
            return _packed(_Type.NULL), bytes(8)
        if isinstance(value, bool):
            return _packed(_Type.BOOL), struct.pack("<Q", value)
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return _packed(_Type.FLOAT), struct.pack("<d", value)
        if isinstance(value, str):
            return _packed(_Type.STRING), self._string(value)
        if isinstance(value, list | tuple):
            return _packed(_Type.VECTOR), self._vector(value, depth)
        if isinstance(value, dict):
            return _packed(_Type.MAP), self._map(value, depth)
        raise InvalidInputError(
            f"a value consists of what JSON has, found {value!r} of type {type(value).__name__}"
        )

    def pad(self) -> None:
        """Fill up to a multiple of 8 bytes."""
        self.data += bytes(-len(self.data) % 8)

    def slot(self, content: bytes | int) -> None:
        """Write a slot: what it holds, or how far back the position is that it refers to."""
        if isinstance(content, int):
            content = struct.pack("<Q", len(self.data) - content)
        self.data += content

    @staticmethod
    def _integer(value: int) -> tuple[int, bytes]:
        if not _MIN_INT <= value <= _MAX_UINT:
            raise InvalidInputError(f"an integer has 64 bits, found {value}")
        if value < 2**63:
            return _packed(_Type.INT), struct.pack("<q", value)
        return _packed(_Type.UINT), struct.pack("<Q", value)

    def _string(self, text: str) -> int:
        encoded = _utf8(text)
        self.pad()
        self.data += struct.pack("<Q", len(encoded))
        start = len(self.data)
        self.data += encoded + b"\0"
        return start

    def _key(self, name: Any) -> int:
        if not isinstance(name, str) or "\0" in name:
            raise InvalidInputError(f"a key is text without NUL, found {name!r}")
        start = self._keys.get(name)
        if start is None:
            start = self._keys[name] = len(self.data)
            self.data += _utf8(name) + b"\0"
        return start

    def _vector(self, items: list[Any] | tuple[Any, ...], depth: int) -> int:
        slots = [self.add(item, depth + 1) for item in items]
        self.pad()
        return self._slots(slots)

    def _slots(self, slots: list[tuple[int, bytes | int]]) -> int:
        self.data += struct.pack("<Q", len(slots))
        start = len(self.data)
        for _, content in slots:
            self.slot(content)
        self.data += bytes(packed for packed, _ in slots)
        return start

    def _map(self, items: dict[Any, Any], depth: int) -> int:
        names = sorted(items, key=_sort_key)
        keys = [self._key(name) for name in names]
        slots = [self.add(items[name], depth + 1) for name in names]
        self.pad()
        self.data += struct.pack("<Q", len(keys))
        keys_start = len(self.data)
        for key in keys:
            self.slot(key)
        self.slot(keys_start)
        self.data += struct.pack("<Q", 8)
        return self._slots(slots)


def _packed(kind: _Type) -> int:
    return kind << 2 | 3


def _sort_key(name: Any) -> bytes:
    return _utf8(name) if isinstance(name, str) else b""


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"a text must be valid Unicode: {error}") from None
