"""Locations of virtual chunks: one canonical form, and nothing that can be read in two ways."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config.locations import Location, parse_location
from icefloe.errors import InvalidInputError


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        # R2-31, api-facts 40: empty segments are dropped, `.` and `..` resolved
        ("s3://o//x/../y", "s3://o/y"),
        ("s3://o/x/./y", "s3://o/x/y"),
        ("s3://o/../../y", "s3://o/y"),
        ("s3://o/x/", "s3://o/x"),
        ("s3://o/x/%2e%2e/y", "s3://o/y"),
        ("s3://o/x/.%2E/y", "s3://o/y"),
        ("s3://o/x/%252e%252e/y", "s3://o/x/%252e%252e/y"),
        ("s3://o/a%2e%2e/y", "s3://o/a../y"),
        ("s3://o/a b", "s3://o/a%20b"),
        ("s3://o/a%20b", "s3://o/a%20b"),
        ("s3://o/50%", "s3://o/50%25"),
        ("s3://o/ü", "s3://o/%C3%BC"),
        ("S3://Bucket/Key", "s3://Bucket/Key"),
        ("gs://my_bucket/x", "gs://my_bucket/x"),
        ("s3://o/time=2020-01-01T00:00/x@1", "s3://o/time=2020-01-01T00:00/x@1"),
        ("HTTPS://Example.ORG:443/Data", "https://example.org/Data"),
        ("http://example.org:80/x", "http://example.org/x"),
        ("http://example.org:8080/x", "http://example.org:8080/x"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("file:///a/../b", "file:///b"),
        ("file:/a", "file:///a"),
        ("file://localhost/a", "file:///a"),
        ("vcc://name/x", "vcc://name/x"),
        ("vcc://name/../../x", "vcc://name/x"),
    ],
)
def test_canonical_form(url: str, canonical: str) -> None:
    location = parse_location(url)

    assert str(location) == canonical
    assert parse_location(canonical) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/x",
        "relative/path",
        "bucket/key",
        "://x",
        "3s://bucket/x",
        "s3:bucket/x",
        "s3:/x",
        "s3:///x",
        "file:x",
        "file://server/share",
        "s3://bucket\\x",
        "https://good\\@evil/x",
        "s3://bucket/a\nb",
        "s3://bucket/a%0Ab",
        "s3://bucket/a%00b",
        "s3://bucket/a%2fb",
        "s3://bucket/a%5Cb",
        "s3://bucket/%ff",
        "s3://bucket/x?versionId=3",
        "s3://bucket/x#part",
        "https://exämple.org/x",
        "https://example.org:0/x",
        "https://example.org:99999/x",
        "https://example.org:/x",
        "https://a b/x",
        " s3://bucket/x",
        "https://%65xample.org/x",
    ],
)
def test_what_is_no_clear_location_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="error parsing"):
        parse_location(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@example.org/x",
        "https://hunter2@example.org/x",
        "s3://AKIA:hunter2@bucket/x",
        "https://user:hunter2@example.org/x?y",
        "//user:hunter2@example.org/x",
    ],
)
def test_passwords_are_refused_and_never_repeated(url: str) -> None:
    with pytest.raises(InvalidInputError, match="error parsing") as error:
        parse_location(url)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "below"),
    [
        ("s3://bucket/data/x", True),
        ("s3://bucket/data/sub/x", True),
        ("s3://bucket/data//./x", True),
        ("s3://bucket/data", False),
        ("s3://bucket/data/", False),
        ("s3://bucket/data-evil/x", False),
        ("s3://bucket-evil/data/x", False),
        ("s3://bucket/data/../x", False),
        ("s3://bucket/data/%2e%2e/x", False),
        ("s3://bucket/data/%2E./x", False),
        ("s3://Bucket/data/x", False),
        ("gs://bucket/data/x", False),
    ],
)
def test_below_compares_whole_segments(url: str, below: bool) -> None:
    assert parse_location(url).is_below(parse_location("s3://bucket/data/")) is below


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["C"], exclude_characters="/\\"), min_size=1),
        min_size=1,
    )
)
def test_every_key_has_a_canonical_location(names: Any) -> None:
    segments = tuple(name for name in names if name not in {".", ".."})
    location = Location("s3", "bucket", segments)

    assert parse_location(str(location)) == location
    assert location.key == "/".join(segments)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        location = parse_location(f"s3://bucket/{text}")
    except InvalidInputError:
        return
    assert parse_location(str(location)) == location
    assert not {"", ".", ".."} & set(location.segments)
