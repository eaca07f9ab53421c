"""Numbers and JSON of any text: a value, or an error that callers expect."""

from __future__ import annotations

import pytest

from icefloe.model.bounded_text import MAX_NESTING, json_value, shortened, whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-7", -7),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        *[(text, None) for text in ("", "-", "--1", "+1", "1.0", " 1", "²", "٣", "9" * 5000)],
        (str(2**63), None),
    ],
)
def test_whole_numbers_are_ascii_digits_of_64_bits(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_json_is_bounded_in_depth() -> None:
    nested = "[" * (MAX_NESTING - 1) + "]" * (MAX_NESTING - 1)
    assert json_value(nested) is not None
    for depth in (MAX_NESTING + 1, 100_000):
        with pytest.raises(ValueError, match="nested"):
            json_value("[" * depth + "]" * depth)
    for wrong in ("", "{", "9" * 5000, b"\xff"):
        with pytest.raises(ValueError, match=r".+"):
            json_value(wrong)
    assert json_value(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}


def test_long_texts_are_shown_by_their_beginning() -> None:
    assert shortened("abc") == "abc"
    assert len(shortened("x" * 1_000_000)) == 201
