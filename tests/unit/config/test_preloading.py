"""What is fetched in advance: which manifests, how many, in which order (R4-39 to R4-42, H-42)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import (
    ManifestPreload,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    PreloadArrays,
    PreloadRule,
)
from icefloe.config.patterns import matching
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = {"big": 60_000, "coordinates": 300, "times": 20, "more": 20, "edge": 50_000}


def chosen(
    preload: ManifestPreload | ManifestPreloadConfig | None, arrays: dict[str, list[str]]
) -> list[str]:
    return PreloadRule.from_config(preload).chosen(arrays, arrays.__getitem__, SIZES.__getitem__)


def paths(*regexes: str, **limits: int) -> ManifestPreload:
    return ManifestPreload(arrays=[PreloadArrays(path=regex) for regex in regexes], **limits)


class TestByPaths:
    @pytest.mark.parametrize("preload", [None, ManifestPreload(), ManifestPreloadConfig()])
    def test_by_default_the_smallest_manifest_of_a_coordinate(
        self, preload: ManifestPreload | ManifestPreloadConfig | None
    ) -> None:  # R4-42, H-41
        arrays = {
            "/temperature": ["more"],
            "/time": ["coordinates"],
            "/time_bnds": ["more"],
            "/group/latitude": ["big", "times"],
        }

        assert chosen(preload, arrays) == ["times"]
        assert chosen(preload, {"/longitude": ["edge"]}) == ["edge"]
        assert chosen(preload, {"/longitude": ["big"]}) == []

    def test_smallest_first_and_each_once(self) -> None:
        arrays = {"/a": ["coordinates", "times"], "/b": ["times", "more"], "/c": ["coordinates"]}

        assert chosen(paths(".*", max_manifests=9), arrays) == ["times", "more", "coordinates"]
        assert chosen(paths(".*", max_manifests=2), arrays) == ["times", "more"]

    def test_no_larger_ones_than_allowed(self) -> None:
        arrays = {"/a": ["coordinates", "times"]}

        assert chosen(paths(".*", max_manifests=9, max_manifest_size=299), arrays) == ["times"]
        assert len(chosen(paths(".*", max_manifests=9, max_manifest_size=300), arrays)) == 2

    def test_the_whole_path_must_match(self) -> None:  # H-40
        assert chosen(paths("time"), {"/time": ["times"]}) == []
        assert chosen(paths(".*/time"), {"/time_bnds": ["times"]}) == []

    def test_zero_and_no_arrays_turn_it_off_without_looking(self) -> None:
        def looked_at() -> Iterator[str]:
            pytest.fail("nobody need look")
            yield

        for preload in (paths(".*", max_manifests=0), paths()):
            rule = PreloadRule.from_config(preload)
            assert rule.wants_nothing
            assert rule.chosen(looked_at(), SIZES.__getitem__, SIZES.__getitem__) == []  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"max_manifests": -1}, "ManifestPreload.max_manifests cannot be -1"),
            ({"max_manifest_size": -1}, "ManifestPreload.max_manifest_size cannot be -1"),
            ({"arrays": [PreloadArrays(path="(")]}, r"manifest.preload.arrays\[0\].path"),
            ({"arrays": [PreloadArrays(path="a")] * 1_001}, "at most 1000 entries"),
            ({"arrays": [".*"]}, "ManifestPreload.arrays cannot be"),
        ],
    )
    def test_what_is_wrong_is_named(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            ManifestPreload(**given)


class TestByCondition:
    @pytest.mark.parametrize("name", ["time", "lat", "longitude", "time_bnds", "x", "level"])
    def test_without_a_condition_small_manifests_of_coordinates(self, name: str) -> None:
        rule = PreloadRule.from_config(ManifestPreloadConfig(max_arrays_to_scan=3))
        sizes = {"small": 1_000, "large": 1_001}

        both, small = ["large", "small"], ["small"]
        assert rule.chosen([f"/a/{name}"], lambda _: both, sizes.get) == ["small"]
        assert rule.chosen([f"/{name}/temperature"], lambda _: small, sizes.get) == []

    def test_conditions_are_about_the_manifest_too(self) -> None:
        few = ManifestPreloadConfig(preload_if=ManifestPreloadCondition.num_refs(21, None))

        assert chosen(few, {"/a": ["times", "coordinates"]}) == ["coordinates"]

    def test_the_references_of_all_are_limited(self) -> None:
        def preload(total: int | None) -> ManifestPreloadConfig:
            return ManifestPreloadConfig(total, ManifestPreloadCondition.true())

        arrays = {"/a": ["coordinates", "times"], "/b": ["more", "edge"]}

        assert chosen(preload(39), arrays) == ["times"]
        assert chosen(preload(40), arrays) == ["times", "more"]
        assert chosen(preload(None), arrays) == ["times", "more", "coordinates"]
        assert chosen(preload(100_000), arrays) == ["times", "more", "coordinates", "edge"]
        assert PreloadRule.from_config(preload(0)).wants_nothing

    def test_arrays_beyond_those_to_scan_are_not_looked_at(self) -> None:
        every = ManifestPreloadCondition.true()
        arrays = {"/a": ["coordinates"], "/b": ["times"]}

        assert chosen(ManifestPreloadConfig(None, every, 1), arrays) == ["coordinates"]
        assert chosen(ManifestPreloadConfig(None, every, 0), arrays) == []

    def test_a_condition_that_holds_never(self) -> None:
        never = ManifestPreloadConfig(preload_if=ManifestPreloadCondition.false())

        assert chosen(never, {"/time": ["times"]}) == []


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 100), min_size=1).flatmap(
        lambda sizes: st.tuples(
            st.just(sizes), st.lists(st.lists(st.sampled_from(sorted(sizes))), max_size=4)
        )
    ),
    st.builds(
        PreloadRule,
        wanted=st.just((PreloadArrays(path=".*"),)) | st.just(ManifestPreloadCondition.true()),
        max_manifest_size=st.none() | st.integers(0, 100),
        max_manifests=st.none() | st.integers(0, 5),
        max_total_refs=st.none() | st.integers(0, 300),
    ),
)
def test_limits_hold_and_nothing_that_would_fit_is_left_out(snapshot: Any, rule: Any) -> None:
    sizes, lists = snapshot
    arrays = {f"/{number}": manifests for number, manifests in enumerate(lists)}

    found = rule.chosen(arrays, arrays.__getitem__, sizes.__getitem__)

    assert len(set(found)) == len(found)
    assert sorted(found, key=sizes.get) == found
    total = sum(sizes[name] for name in found)
    assert rule.max_total_refs is None or total <= rule.max_total_refs
    assert rule.max_manifests is None or len(found) <= rule.max_manifests
    largest = float("inf") if rule.max_manifest_size is None else rule.max_manifest_size
    assert all(sizes[name] <= largest for name in found)
    left = {name for manifests in lists for name in manifests} - set(found)
    if not rule.wants_nothing and rule.max_manifests != len(found):
        for name in left:
            fits = rule.max_total_refs is None or total + sizes[name] <= rule.max_total_refs
            assert sizes[name] > largest or not fits


class TestMatching:
    def test_texts_are_found_by_any_regex(self) -> None:
        texts = ["/time", "/a/time", "time", "/a\n/time", "/times", "/lat"]
        assert matching([".*/time"], texts) == ["/time", "/a/time"]
        assert matching([".*/time", "/l.t"], texts) == ["/time", "/a/time", "/lat"]
        assert matching([".*/time", ".*/lat"], texts) == ["/time", "/a/time", "/lat"]
        assert matching(["(", ".*/lat"], texts) == ["/lat"]
        assert matching([], texts) == []
        assert matching([".*ime"], texts) == ["/time", "/a/time", "time"]
