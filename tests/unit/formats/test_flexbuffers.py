"""FlexBuffers: values of JSON as bytes, also as other writers lay them out, and damaged ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.errors import FormatError, InvalidInputError
from icefloe.formats.icechunk.flexbuffers import MAX_NESTING, decode, encode

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
_KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert decode(encode(value), "a value") == value


@given(VALUES, st.data())
def test_damaged_bytes_are_a_format_error_or_another_value(value: Any, data: st.DataObject) -> None:
    damaged = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for each in (bytes(damaged), bytes(damaged[:cut]), bytes(damaged[cut:])):
        try:
            decode(each, "a value")
        except FormatError as error:
            assert "a value" in str(error)  # noqa: PT017 (either outcome is right)


def packed(kind: int, width: int = 1) -> int:
    return kind << 2 | (1, 2, 4, 8).index(width)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (bytes([5, packed(1), 1]), 5),
        (bytes([0xFB, packed(1), 1]), -5),
        (bytes([0xFB, packed(2), 1]), 251),
        (struct.pack("<h", -300) + bytes([packed(1), 2]), -300),
        (struct.pack("<f", 1.5) + bytes([packed(3), 4]), 1.5),
        (struct.pack("<e", 1.5) + bytes([packed(3), 2]), 1.5),
        (struct.pack("<q", -(2**40)) + bytes([8, packed(6, 8), 1]), -(2**40)),
        (struct.pack("<d", 2.5) + bytes([8, packed(8, 8), 1]), 2.5),
        (bytes([3]) + b"abc\0" + bytes([4, packed(5), 1]), "abc"),
        (b"abc\0" + bytes([4, packed(4), 1]), "abc"),
        (bytes([3, 1, 2, 255, 3, packed(11), 1]), [1, 2, -1]),
        (bytes([3, 1, 2, 255, 3, packed(12), 1]), [1, 2, 255]),
        (bytes([2, 1, 0, 2, packed(36), 1]), [True, False]),
        (bytes([1, 2, 2, packed(16), 1]), [1, 2]),
        (bytes([1, 2, 3, 3, packed(20), 1]), [1, 2, 3]),
        (struct.pack("<2f", 0.5, 1.5) + bytes([8, packed(18, 4), 1]), [0.5, 1.5]),
        (bytes([1]) + b"x\0" + bytes([1, 3, 1, packed(15), 1]), ["x"]),
        (b"k\0" + bytes([1, 3]) + bytes([1, 1, 1, 7, packed(1), 2, packed(9), 1]), {"k": 7}),
        (bytes([0, 0, packed(10), 1]), []),
    ],
)
def test_other_writers_choose_narrow_slots_and_typed_vectors(data: bytes, value: Any) -> None:
    assert decode(data, "a value") == value


def test_a_value_that_holds_itself_is_refused() -> None:
    # A vector of four slots, each of which leads to the vector.
    vector = bytes([4, 0, 1, 2, 3] + 4 * [packed(10)])
    with pytest.raises(FormatError, match=r"over and over|deep"):
        decode(vector + bytes([8, packed(10), 1]), "a value")


def test_many_slots_may_share_a_text_but_not_without_limit() -> None:
    text = b"x" * 60_000
    count = 60_000
    head = struct.pack("<I", len(text)) + text + b"\0" + bytes(3)
    start = len(head) + 4
    slots = b"".join(struct.pack("<I", start + 4 * n - 4) for n in range(count))
    body = head + struct.pack("<I", count) + slots + bytes([packed(5, 4)]) * count
    end = struct.pack("<I", len(body) - start)
    with pytest.raises(FormatError, match="texts"):
        decode(body + end + bytes([packed(10, 4), 4]), "a value")


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, b"bytes", {1: 2}, {"a\0": 1}, {3}, "\ud800"]
)
def test_what_json_does_not_have_is_not_written(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        encode(value)


def test_nesting_has_a_limit_on_both_sides() -> None:
    value: Any = 1
    for _ in range(MAX_NESTING):
        value = [value]
    assert decode(encode(value), "a value") == value
    with pytest.raises(InvalidInputError, match="deep"):
        encode([value])
