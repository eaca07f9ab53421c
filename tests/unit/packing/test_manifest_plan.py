from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config.manifest_sets import ChunkManifests, ManifestRule, ManifestSet
from icefloe.model.ids import ManifestId, NodeId
from icefloe.packing.manifest_plan import (
    Item,
    Plan,
    Standing,
    apply_rules,
    closure,
    in_overflow_order,
    pack_by_number,
    pack_by_size,
    plan_manifests,
    set_for,
)


def item(name: str, size: int, path: str | None = None, refs: int | None = None) -> Item[str]:
    node_id = NodeId(name.encode().ljust(8, b".")[:8])
    return Item(name, node_id, path or f"/{name}", size, size if refs is None else refs)


def planned(
    items: list[Item[str]],
    config: ChunkManifests,
    standing: dict[str, tuple[str, int]] | None = None,
) -> Plan[str]:
    """Plan over manifests of one item each, given as name → (set, size)."""
    manifests = {ManifestId(n.encode().ljust(12, b".")): v for n, v in (standing or {}).items()}
    return plan_manifests(
        items,
        [Standing(m, set_name, size) for m, (set_name, size) in manifests.items()],
        config,
        lambda m: [item(m.decode().rstrip("."), manifests[m][1])],
    )


def contents(plan: Plan[str]) -> list[tuple[str, list[str]]]:
    return sorted((m.set_name, sorted(i.content for i in m.items)) for m in plan.manifests)


# R4-52: the worked example of the seed.
MANIFESTS = {b"M1": "ab", b"M2": "abc", b"M3": "c"}


@pytest.mark.parametrize("modified", ["a", "ab", "abc", "c"])
def test_closure_of_the_worked_example(modified: str) -> None:  # R4-52
    visited: list[bytes] = []

    def members(manifest: Any) -> str:
        visited.append(manifest)
        return MANIFESTS[manifest]

    found, seen = closure(
        modified,
        lambda a: [m for m, arrays in MANIFESTS.items() if a in arrays],  # type: ignore[misc]
        members,
    )
    assert found == set("abc")
    assert seen == set(MANIFESTS)
    assert sorted(visited) == sorted(MANIFESTS)  # R4-57: each manifest once


def test_closure_of_nothing_and_of_new_arrays() -> None:  # R4-54, R4-55
    assert closure([], lambda _: [], lambda _: []) == (set(), set())
    assert closure(["new"], lambda _: [], lambda _: []) == ({"new"}, set())


def test_small_arrays_share_one_manifest_by_default() -> None:  # R4-11, R4-42
    config = ChunkManifests().complete()
    plan = planned([item("time", 100), item("lat", 1), item("t2m", 60_000)], config)
    assert contents(plan) == [("coordinates", ["lat", "time"]), ("default", ["t2m"])]


def test_arrays_larger_than_the_default_set_are_alone() -> None:  # R4-31, R4-65
    config = ChunkManifests(sets=(), rules=()).complete()
    sizes = {"huge": 5_000_000, "a": 600_000, "b": 300_000, "larger": 6_000_000}
    assert contents(planned([item(*each) for each in sizes.items()], config)) == [
        ("default", ["a", "b"]),
        ("default", ["huge"]),
        ("default", ["larger"]),
    ]


def test_a_rule_takes_the_arrays_whose_whole_path_its_expression_matches() -> None:  # R4-34
    axes = ManifestSet(name="axes", max_manifest_size=100)
    rule = ManifestRule(target="axes", path=r"/(lat|lon)\d?")
    config = ChunkManifests(sets=(axes,), rules=(rule,)).complete()
    items = [item(name, 10) for name in ("lat", "lon2", "latitude", "t")]
    assert contents(planned(items, config)) == [
        ("axes", ["lat", "lon2"]),
        ("default", ["latitude", "t"]),
    ]


def test_arrays_that_a_full_set_has_no_place_for_go_to_the_default_set() -> None:
    # R4-62, R4-67
    few = ManifestSet(name="few", max_manifest_size=10, cardinality=1)
    config = ChunkManifests(sets=(few,), rules=(ManifestRule(target="few"),)).complete()
    items = [item("a", 8), item("b", 9), item("c", 7)]
    assert contents(planned(items, config)) == [("default", ["a", "c"]), ("few", ["b"])]


def test_arrays_that_are_split_are_alone_and_others_share_manifests() -> None:  # R4-14, R4-42
    config = ChunkManifests().complete()
    items = [item("dense", 40_000), item("a", 40_000, refs=9), item("b", 40_000, refs=9)]
    assert contents(planned(items, config)) == [("default", ["a", "b"]), ("default", ["dense"])]


def test_a_set_that_splits_takes_arrays_of_any_size_and_packs_the_others() -> None:  # R4-14
    small = ManifestSet(name="small", max_manifest_size=10, overflow_to="pieces")
    pieces = ManifestSet(name="pieces", max_manifest_size=20, split_size=8)
    rules = (ManifestRule(target="small"),)
    config = ChunkManifests(sets=(small, pieces), rules=rules).complete()
    items = [
        item("a", 11),
        item("b", 9, refs=9),
        item("c", 12, refs=3),
        item("d", 21, refs=8),
        item("e", 100, refs=9),
    ]
    plan = planned(items, config)
    assert contents(plan) == [
        ("default", ["d"]),  # few references, and a grid too large for both
        ("pieces", ["a"]),
        ("pieces", ["c"]),
        ("pieces", ["e"]),
        ("small", ["b"]),
    ]
    sets = [set_for(each, config).name for each in items]
    assert sets == ["pieces", "small", "pieces", "default", "pieces"]


def test_rules_stop_at_the_first_match() -> None:  # R4-33, R4-68, H-35, H-40
    # R4-16, R4-36, R4-37, R4-64
    config = ChunkManifests(
        sets=(
            ManifestSet(name="one", max_manifest_size=10),
            ManifestSet(name="two", max_manifest_size=10),
        ),
        rules=(
            ManifestRule(target="one", path=".*/(latitude|time)", metadata_chunks=(0, 5)),
            ManifestRule(target="two", metadata_chunks=(None, 5)),
        ),
    ).complete()
    assert apply_rules(item("a", 3, "/g/time"), config) == "one"
    assert apply_rules(item("a", 3, "/g/time_bnds"), config) == "two"
    assert apply_rules(item("a", 6, "/g/time"), config) == "default"


def test_sets_that_only_receive_overflow_are_filled() -> None:  # H-34, R4-59
    config = ChunkManifests(
        sets=(
            ManifestSet(name="first", max_manifest_size=10, overflow_to="second"),
            ManifestSet(name="second", max_manifest_size=10, cardinality=1),
        ),
        rules=(ManifestRule(target="first", path=".*"),),
    ).complete()
    plan = planned([item("a", 10), item("b", 9), item("c", 8)], config)
    assert contents(plan) == [("default", ["c"]), ("first", ["a"]), ("second", ["b"])]


def test_overflow_order_is_topological_then_as_configured() -> None:  # R4-61, R4-69, R4-81
    sets = (
        ChunkManifests(
            sets=(
                ManifestSet(name="c", max_manifest_size=1, overflow_to="default"),
                ManifestSet(name="a", max_manifest_size=1, overflow_to="c"),
                ManifestSet(name="b", max_manifest_size=1, overflow_to="a"),
                ManifestSet(name="free", max_manifest_size=1),
            ),
            rules=(),
        )
        .complete()
        .sets
    )
    assert [s.name for s in in_overflow_order(sets)] == ["b", "a", "c", "free", "default"]


def test_cardinality_holds_across_commits() -> None:  # H-38
    config = ChunkManifests().complete()
    plan = planned([item("new", 10)], config, {"old": ("coordinates", 100)})
    assert contents(plan) == [("coordinates", ["new", "old"])]
    assert len(plan.pulled) == 1


def test_a_full_set_overflows_and_is_not_written_again() -> None:
    config = ChunkManifests().complete()
    plan = planned([item("new", 4_000)], config, {"old": ("coordinates", 50_000)})
    assert contents(plan) == [("default", ["new"])]
    assert plan.pulled == []


def test_the_smallest_arrays_overflow_first_from_a_set_of_numbers() -> None:  # H-44
    sets = (ManifestSet(name="pairs", arrays_per_manifest=2), ManifestSet(name="default"))
    rules = (ManifestRule(target="pairs", path=".*"),)
    items = [item(name, size) for size, name in enumerate("abcdef", start=1)]
    plan = planned(items, ChunkManifests(sets=sets, rules=rules).complete())
    assert contents(plan) == [("default", ["a", "b", "c", "d"]), ("pairs", ["e", "f"])]


def test_a_set_of_numbers_has_so_many_arrays_in_each_manifest() -> None:  # R4-24
    pairs = ManifestSet(name="pairs", arrays_per_manifest=2, cardinality=None)
    config = ChunkManifests(
        sets=(pairs, ManifestSet(name="default")), rules=(ManifestRule(target="pairs", path=".*"),)
    )
    plan = planned([item(name, 1) for name in "abcde"], config.complete())
    assert [(m.set_name, len(m.items)) for m in plan.manifests] == [
        ("pairs", 2),
        ("pairs", 2),
        ("pairs", 1),
    ]


def test_packing_by_number_mixes_large_and_small() -> None:  # R4-71 to R4-73
    sizes = {name: size for size, name in enumerate("abcdefg")}
    bins = pack_by_number("abcdefg", 2, lambda n: sizes[n])
    assert [sorted(b) for b in bins] == [["a", "g"], ["b", "f"], ["c", "e"], ["d"]]


def fewest_bins(sizes: list[int], bin_size: int) -> int:
    """The smallest possible number of bins, by trying every way to share them out."""
    largest_first = sorted(sizes, reverse=True)

    def fits(place: int, room: list[int]) -> bool:
        if place == len(largest_first):
            return True
        tried = set()
        for number, left in enumerate(room):
            if left >= largest_first[place] and left not in tried:
                tried.add(left)
                rest = [*room[:number], left - largest_first[place], *room[number + 1 :]]
                if fits(place + 1, rest):
                    return True
        return False

    return next(count for count in range(len(sizes) + 1) if fits(0, [bin_size] * count))


@given(st.lists(st.integers(1, 20), max_size=9), st.integers(20, 30))
def test_bins_are_few_and_never_too_full(sizes: list[int], bin_size: int) -> None:  # R4-60, R4-70
    # R4-81
    bins = pack_by_size(range(len(sizes)), bin_size, lambda i: sizes[i])
    assert sorted(i for b in bins for i in b) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in b) <= bin_size for b in bins)
    assert len(bins) <= 11 / 9 * fewest_bins(sizes, bin_size) + 6 / 9


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(100, 300))
def test_no_two_bins_would_fit_into_one(sizes: list[int], bin_size: int) -> None:  # R4-60
    bins = pack_by_size(range(len(sizes)), bin_size, lambda i: sizes[i])
    filled = sorted(sum(sizes[i] for i in b) for b in bins)
    assert len(filled) < 2 or filled[0] + filled[1] > bin_size


def test_the_largest_come_first_and_each_goes_where_least_room_is_left() -> None:  # R4-60
    # In the order of the list, these need a third bin.
    bins = pack_by_size([2, 3, 4, 5, 6], 10, lambda size: size)
    assert sorted(map(sorted, bins)) == [[2, 3, 5], [4, 6]]
    # So do these if the last one goes to the first bin with room, or to the emptiest.
    bins = pack_by_size([6, 7, 4, 3], 10, lambda size: size)
    assert sorted(map(sorted, bins)) == [[3, 7], [4, 6]]


names = ["one", "two", "three"]


@st.composite
def configs(draw: st.DrawFn) -> ChunkManifests:
    sets = []
    for place, name in enumerate(names):
        by_number = draw(st.booleans())
        sets.append(
            ManifestSet(
                name=name,
                max_manifest_size=None if by_number else draw(st.integers(1, 50)),
                arrays_per_manifest=draw(st.integers(1, 4)) if by_number else None,
                overflow_to=draw(st.sampled_from([*names[place + 1 :], "default"])),
                cardinality=draw(st.one_of(st.none(), st.integers(1, 3))),
            )
        )
    sets.append(
        ManifestSet(
            name="default",
            max_manifest_size=draw(st.integers(10, 60)),
            overflow_to=None,
            cardinality=None,
        )
    )
    rules = draw(
        st.lists(
            st.builds(
                lambda target, low, high: ManifestRule(
                    target=target, metadata_chunks=(low, max(low, high))
                ),
                st.sampled_from([*names, "default"]),
                st.integers(0, 40),
                st.integers(0, 80),
            ),
            max_size=4,
        )
    )
    return ChunkManifests(sets=tuple(draw(st.permutations(sets))), rules=tuple(rules)).complete()


@given(
    config=configs(),
    sizes=st.lists(st.integers(0, 80), max_size=25),
    standing=st.lists(st.tuples(st.sampled_from([*names, "default"]), st.integers(1, 40))),
)
def test_every_item_is_placed_once_and_limits_hold(
    config: ChunkManifests, sizes: list[int], standing: list[tuple[str, int]]
) -> None:  # R4-62, R4-67, R4-23, R4-24, R4-66, H-37, R4-65
    items = [item(f"n{i}", size) for i, size in enumerate(sizes)]
    before = {f"s{i}": place for i, place in enumerate(standing)}
    plan = planned(items, config, before)
    placed = [i.content for m in plan.manifests for i in m.items]
    pulled = {m.decode().rstrip(".") for m in plan.pulled}
    assert Counter(placed) == Counter([i.content for i in items] + sorted(pulled))
    for each in config.sets:
        mine = [m for m in plan.manifests if m.set_name == each.name]
        left = [n for n, (s, _) in before.items() if s == each.name and n not in pulled]
        if each.cardinality is not None and mine:
            assert len(mine) + len(left) <= max(each.cardinality, len(left))
        for manifest in mine:
            size = sum(i.metadata_chunks for i in manifest.items)
            if each.max_manifest_size is not None and size > each.max_manifest_size:
                assert each.name == "default"
                assert len(manifest.items) == 1
            if each.arrays_per_manifest is not None:
                assert len(manifest.items) <= each.arrays_per_manifest
