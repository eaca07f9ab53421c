"""Many locations are checked as strictly as each of them alone (H-46)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from icefloe.config import VirtualChunkContainer
from icefloe.errors import InvalidInputError
from icefloe.model.chunk_refs import VirtualRef
from icefloe.objects.foreign import VirtualChunkResolver
from icefloe.storage.access.stores import http_store, local_filesystem_store, s3_store

STORE = s3_store(region="us-east-1")
RESOLVER = VirtualChunkResolver(
    {
        prefix: VirtualChunkContainer(prefix, STORE, name)
        for prefix, name in (
            ("s3://bucket/data/", "data"),
            ("s3://bucket/more/deep/", None),
        )
    }
    | {
        "file:///data/": VirtualChunkContainer("file:///data/", local_filesystem_store("/data")),
        "https://host/data/": VirtualChunkContainer("https://host/data/", http_store()),
    }
)
FOLDERS = (
    "s3://bucket/data",
    "s3://bucket/data/2020",
    "s3://bucket/data-evil",
    "s3://bucket/more",
    "s3://bucket/more/deep",
    "s3://bucket",
    "S3://bucket/data",
    "s3:/bucket/data",
    "vcc://data",
    "vcc://nothing/x",
    "file:///data",
    "file:///data/2020",
    "file://localhost/data",
    "file:////data",
    "https://host/data",
    "https://host:443/data",
    "https://HOST/data",
    "x/s3://bucket/data",
    "",
)
SEGMENTS = st.sampled_from(
    [
        *("a", "b.nc", "", ".", "..", ".hidden", "..x", "...", "a b", "%2E%2E", "x:y@z", "%41"),
        *("s3:", "s3://bucket/data/a", "file:///data", "a?b", "a#b", "a\\b", "a\nb", "\x7f", "é"),
        *("%2f", "%", "%zz", "data", "bucket"),
    ]
)


@st.composite
def neighbours(draw: st.DrawFn) -> list[str]:
    """Locations of which most are below one folder."""
    folder = draw(st.sampled_from(FOLDERS))
    below = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)
    urls = [f"{folder}/{rest}" for rest in draw(st.lists(below, min_size=1, max_size=8))]
    if draw(st.booleans()):
        other = f"{draw(st.sampled_from(FOLDERS))}/{draw(below)}"
        urls.insert(draw(st.integers(0, len(urls))), other)
    return urls


def outcome(urls: list[str]) -> list[tuple[str, bool]] | str:
    try:
        canonical, accepted = RESOLVER.check_locations(urls)
    except InvalidInputError as error:
        return type(error).__name__
    return list(zip(canonical.tolist(), accepted.tolist(), strict=True))


def one_by_one(urls: list[str]) -> list[tuple[str, bool]] | str:
    """What the check of a single reference says of each of them."""
    judged = []
    for url in urls:
        ref = VirtualRef(url, 0, 1)
        try:
            canonical = RESOLVER.check(ref, validate_container=False).location
        except InvalidInputError as error:
            return type(error).__name__
        try:
            judged.append((canonical, RESOLVER.check(ref).location == canonical))
        except InvalidInputError:
            judged.append((canonical, False))
    return judged


@given(neighbours())
@example(["s3://bucket/data/a/s3://bucket/data/b", "s3://bucket/x/a", "s3://bucket/data/c"])
@example(["s3://bucket/da", "ta/x", "s3://bucket/data/x"])
@example(["file:///data/a", "file:////data/a", "file:///data/b"])
@example(["s3://bucket/data/a", "", "s3://bucket/data/b"])
@example(["s3://bucket/data/.", "s3://bucket/data/b"])
@example(["s3://bucket/data/b", "s3://bucket/data/.."])
def test_locations_together_are_judged_as_each_alone(urls: list[str]) -> None:
    assert outcome(urls) == one_by_one(urls)


@given(neighbours(), st.sampled_from(["data/ok", "data/2020/ok"]))
@example(["s3://bucket/data/./x"], "data/ok")
@example(["s3://bucket/data/a/../../secret/x"], "data/ok")
@example(["s3://bucket/data//x"], "data/ok")
@example(["s3://bucket/data/.."], "data/ok")
@example(["s3://bucket/data-evil/x"], "data/ok")
def test_a_location_behind_many_good_ones_gets_no_verdict_of_theirs(
    urls: list[str], good: str
) -> None:
    many = [f"s3://bucket/{good}-{number}" for number in range(50)]
    together = outcome([*many[:25], *urls, *many[25:]])
    alone = one_by_one(urls)
    if isinstance(alone, str):
        assert together == alone
    else:
        assert together == [
            *((u, True) for u in many[:25]),
            *alone,
            *((u, True) for u in many[25:]),
        ]
