"""What a committer may say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.engine.commit.commit_metadata import MAX_DEPTH, check_message, plain_metadata
from icefloe.errors import InvalidInputError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values))
def test_json_values_stay_as_they_are(metadata: dict[str, Any]) -> None:
    assert plain_metadata(metadata) == metadata


def test_the_copy_shares_nothing() -> None:
    given_by_user: dict[str, Any] = {"list": [1], "dict": {"a": [2]}}
    copied = plain_metadata(given_by_user)
    given_by_user["list"].append(3)
    given_by_user["dict"]["a"].append(4)
    assert copied == {"list": [1], "dict": {"a": [2]}}


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (np.int64(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(1.5), 1.5),
        (np.float64(1.5), 1.5),
        (np.bool_(True), True),
        (Text("x"), "x"),
    ],
)
def test_relatives_of_json_values_become_plain(value: Any, plain: Any) -> None:
    found = plain_metadata({"k": value})["k"]
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize("value", [{1}, b"x", datetime.now(UTC), object(), 1 + 2j, np.zeros(2)])
def test_other_objects_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="object cannot be cast"):
        plain_metadata({"a": [value]})


@pytest.mark.parametrize("metadata", [[1], "x", 5, None])
def test_metadata_is_a_dict(metadata: Any) -> None:
    with pytest.raises(TypeError, match="commit metadata is a dict"):
        plain_metadata(metadata)


@pytest.mark.parametrize("metadata", [{1: 2}, {"a": {1: 2}}, {"a": [{None: 1}]}])
def test_keys_are_strings(metadata: Any) -> None:
    with pytest.raises(TypeError, match="keys of commit metadata are strings"):
        plain_metadata(metadata)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integers_have_64_bits(value: int) -> None:
    with pytest.raises(InvalidInputError, match="64 bits"):
        plain_metadata({"a": value})


def test_deep_nesting_is_refused_before_it_hurts() -> None:
    nested: Any = 1
    for _ in range(MAX_DEPTH - 1):
        nested = [nested]
    assert plain_metadata({"a": nested})
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidInputError, match="nests deeper"):
        plain_metadata({"a": nested})


def test_our_own_keys_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="icefloe's own"):
        plain_metadata({"__icefloe.nonce": 1})


@pytest.mark.parametrize("message", [5, None, b"x"])
def test_a_message_is_text(message: Any) -> None:
    with pytest.raises(TypeError, match="a commit message is a string"):
        check_message(message)


def test_text_that_cannot_be_stored_is_refused() -> None:
    assert check_message("ü\n\0") == "ü\n\0"
    with pytest.raises(InvalidInputError, match="no valid Unicode"):
        check_message("\ud800")
    with pytest.raises(InvalidInputError, match="no valid Unicode"):
        plain_metadata({"a": ["\ud800"]})
    with pytest.raises(InvalidInputError, match="no valid Unicode"):
        plain_metadata({"\ud800": 1})
