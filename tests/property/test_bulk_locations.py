"""Many locations are checked as strictly as each of them alone (H-46)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from icefloe.config import VirtualChunkContainer
from icefloe.errors import InvalidInputError
from icefloe.objects.foreign import VirtualChunkResolver
from icefloe.storage.access.stores import s3_store

STORE = s3_store(region="us-east-1")
RESOLVER = VirtualChunkResolver(
    {
        prefix: VirtualChunkContainer(prefix, STORE, name)
        for prefix, name in (("s3://bucket/data/", "data"), ("s3://bucket/more/deep/", None))
    }
)
FOLDERS = (
    "s3://bucket/data",
    "s3://bucket/data/2020",
    "s3://bucket/data-evil",
    "s3://bucket/more",
    "s3://bucket/more/deep",
    "S3://bucket/data",
    "vcc://data",
    "vcc://nothing/x",
)
SEGMENTS = st.sampled_from(["a", "b.nc", "", ".", "..", ".hidden", "..x", "a b", "%2E%2E", "x:y@z"])


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
    return list(zip(canonical, accepted.tolist(), strict=True))


@given(neighbours())
def test_locations_together_are_judged_as_each_alone(urls: list[str]) -> None:
    alone = [outcome([url]) for url in urls]
    together = outcome(urls)
    if any(isinstance(each, str) for each in alone):
        assert together == "InvalidInputError"
    else:
        assert together == [pair for each in alone for pair in each]


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
    alone = outcome(urls)
    if isinstance(alone, str):
        assert together == alone
    else:
        assert together == [
            *((u, True) for u in many[:25]),
            *alone,
            *((u, True) for u in many[25:]),
        ]
