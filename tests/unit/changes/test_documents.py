"""Documents are compared and merged by what they mean."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.changes.documents import differing_keys, merge_documents, same_document
from icefloe.errors import FormatError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
documents = st.dictionaries(st.text(max_size=5), values, max_size=4)


def respelled(value: object) -> object:
    """The same, with keys in the opposite order."""
    if isinstance(value, dict):
        return {key: respelled(each) for key, each in reversed(value.items())}
    return [respelled(each) for each in value] if isinstance(value, list) else value


@given(document=documents, indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_spelling_means_nothing(document: dict[str, object], indent: int, ascii_only: bool) -> None:
    one = json.dumps(document).encode()
    text = json.dumps(respelled(document), indent=indent, ensure_ascii=ascii_only)
    try:
        other = text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, which only escapes can spell
        other = json.dumps(respelled(document), indent=indent).encode()
    assert same_document(one, other)
    assert differing_keys(one, other) == set()
    merged, conflicts = merge_documents(one, other, one)
    assert (same_document(merged, one), conflicts) == (True, [])


@given(document=documents, key=st.text(max_size=5), one=values, other=values)
def test_other_values_mean_something_else(
    document: dict[str, object], key: str, one: object, other: object
) -> None:
    left, right = (json.dumps({**document, key: value}).encode() for value in (one, other))
    # Python takes 1, 1.0 and true for equal and NaN for unequal; their texts tell.
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert same_document(left, right) is is_same
    assert differing_keys(left, right) == (set() if is_same else {key})


@pytest.mark.parametrize(
    ("left", "right", "is_same"),
    [
        (b'{"a": 1, "a": 2}', b'{"a": 2}', True),
        (b'{"a": 1, "a": 2}', b'{"a": 1}', False),
        (b'{"a": 1.0}', b'{"a": 1.00e0}', True),
        (b'{"a": NaN}', b'{ "a" : NaN }', True),
        (b'{"a": -0.0}', b'{"a": 0.0}', False),
        (b'{"a": null}', b"{}", False),
        ('{"ä": "ö"}'.encode(), b'{"\\u00e4": "\\u00f6"}', True),
    ],
)
def test_what_json_leaves_open(left: bytes, right: bytes, is_same: bool) -> None:
    assert same_document(left, right) is is_same
    assert same_document(right, left) is is_same


@pytest.mark.parametrize(
    "broken",
    [
        b'{"attributes": }',
        b"[]",
        b"\xff",
        b'{"a": %b}' % (b"1" * 5000),
        b'{"a": %b1%b}' % (b"[" * 100_000, b"]" * 100_000),
    ],
    ids=["cut", "a list", "no text", "digits", "nesting"],
)
def test_what_is_no_document_is_refused(broken: bytes) -> None:
    with pytest.raises(FormatError, match="not valid JSON"):
        same_document(broken, b"{}")
    with pytest.raises(FormatError, match="write the metadata of the node again"):
        merge_documents(b"{}", broken, b"{}")
    assert same_document(broken, broken)
