"""Manifest sets and rules (seed 004): values, files, what is refused, what holds in the end."""

from __future__ import annotations

import json
import logging
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from icefloe.config import (
    ChunkManifests,
    ManifestConfig,
    ManifestPreload,
    ManifestPreloadConfig,
    ManifestRule,
    ManifestSet,
    PreloadArrays,
    PreloadRule,
    RepositoryConfig,
    from_json,
    from_yaml,
    to_json,
)
from icefloe.config.manifest_sets import MAX_RULES, MAX_SETS
from icefloe.errors import FormatError, InvalidInputError
from tests.seed_configurations import DEFAULTS, EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable

COORDINATES = ["time", "latitude", "longitude"]
EXAMPLE_CONFIG = ManifestConfig(
    sets=[
        ManifestSet(name="coord1", max_manifest_size=10_000, overflow_to="coord2", cardinality=2),
        ManifestSet(name="coord2", max_manifest_size=10_000, overflow_to="default", cardinality=1),
        ManifestSet(name="big-array", arrays_per_manifest=1, cardinality=None),
        ManifestSet(
            name="default", max_manifest_size=1_000_000, overflow_to=None, cardinality=None
        ),
    ],
    rules=[
        ManifestRule(
            path=".*/(latitude|longitude|time)", metadata_chunks=(0, 500), target="coord1"
        ),
        ManifestRule(metadata_chunks=(0, 200), target="coord2"),
        ManifestRule(metadata_chunks=(2_000_000, None), target="big-array"),
    ],
    preload=ManifestPreload(
        max_manifest_size=50_000,
        max_manifests=10,
        arrays=[PreloadArrays(path=f".*/{name}") for name in COORDINATES],
    ),
)


def one_set(**properties: Any) -> ManifestSet:
    return ManifestSet(**{"name": "a", "max_manifest_size": 10, **properties})


def json_of(section: dict[str, object]) -> bytes:
    return json.dumps({"chunk-manifests": section}).encode()


class TestValues:
    def test_what_is_omitted_is_as_the_seed_says(self) -> None:  # R4-25, R4-27
        each = ManifestSet(name="a", max_manifest_size=10)

        assert (each.overflow_to, each.cardinality) == ("default", 1)
        assert each.arrays_per_manifest is None

    def test_no_limit_of_manifests_is_not_an_omitted_one(self) -> None:  # R4-26
        assert ManifestSet(name="a", max_manifest_size=10, cardinality=None).cardinality is None

    @pytest.mark.parametrize(
        ("given", "size", "number"),
        [
            ({}, 1_000_000, None),
            ({"max_manifest_size": 7}, 7, None),
            ({"arrays_per_manifest": 3}, None, 3),
        ],
    )
    def test_the_default_set_is_unlimited_by_nature(
        self, given: dict[str, Any], size: int | None, number: int | None
    ) -> None:  # R4-29 to R4-32
        each = ManifestSet(name="default", **given)

        assert each.max_manifest_size == size
        assert each.arrays_per_manifest == number
        assert (each.cardinality, each.overflow_to) == (None, None)

    @pytest.mark.parametrize(
        "given",
        [
            {"max_manifest_size": 0},
            {"max_manifest_size": -1},
            {"max_manifest_size": "10"},
            {"max_manifest_size": 1.5},
            {"max_manifest_size": True},
            {"arrays_per_manifest": 0},
            {"cardinality": 0},
            {"split_size": 0},
            {"split_size": "5"},
            {"overflow_to": 3},
            {"name": None},
        ],
    )
    def test_types_of_sets_are_checked_when_they_are_made(
        self, given: dict[str, Any]
    ) -> None:  # R4-45
        with pytest.raises(InvalidInputError, match=f"ManifestSet.{next(iter(given))} cannot be"):
            ManifestSet(**{"name": "a", **given})

    @pytest.mark.parametrize(
        "given",
        [
            {"target": None},
            {"path": 3},
            {"metadata_chunks": 3},
            {"metadata_chunks": (1,)},
            {"metadata_chunks": (1, 2, 3)},
            {"metadata_chunks": (-1, 2)},
            {"metadata_chunks": (0, 1.5)},
            {"initialized_chunks": (0, "2")},
        ],
    )
    def test_types_of_rules_are_checked_when_they_are_made(
        self, given: dict[str, Any]
    ) -> None:  # R4-45, R4-50
        with pytest.raises(InvalidInputError, match=f"ManifestRule.{next(iter(given))} cannot be"):
            ManifestRule(**{"target": "a", **given})

    def test_a_rule_holds_if_all_its_conditions_do(self) -> None:  # R4-33 to R4-35, H-40
        rule = ManifestRule(
            target="a",
            path=".*/time",
            metadata_chunks=[2, 5],  # type: ignore[arg-type]
            initialized_chunks=(None, 3),
        )

        assert rule.matches("/x/time", 2, 0)
        assert rule.matches("/time", 5, 3)
        assert not rule.matches("/time_bnds", 2, 0)
        assert not rule.matches("/time", 1, 0)
        assert not rule.matches("/time", 6, 0)
        assert not rule.matches("/time", 5, 4)
        assert ManifestRule(target="a").matches("/anything", 0, 0)
        assert ManifestRule(target="a", metadata_chunks=(5, None)).matches("/a", 2**60, 0)


class TestFiles:
    def test_the_example_of_the_seed(
        self,
    ) -> None:  # R4-21, R4-22, R4-23, R4-24, R4-28, R4-36, R4-37
        config = from_yaml(EXAMPLE)

        assert config == RepositoryConfig(manifest=EXAMPLE_CONFIG)
        assert config.effective().chunk_manifests == ChunkManifests(
            sets=tuple(EXAMPLE_CONFIG.sets), rules=tuple(EXAMPLE_CONFIG.rules)
        )
        assert config.effective().preload == PreloadRule(max_manifests=10)

    def test_the_default_configuration_of_the_seed_is_ours_but_for_the_split(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        # R4-42, R4-20, R4-14
        seeds, ours = from_yaml(DEFAULTS).effective(), RepositoryConfig().effective()

        assert [each.split_size for each in seeds.chunk_manifests.sets] == [None, None]
        assert [each.split_size for each in ours.chunk_manifests.sets] == [None, 32_768]
        split = replace(seeds.chunk_manifests.sets[1], split_size=32_768)
        sets = (seeds.chunk_manifests.sets[0], split)
        assert ours == replace(seeds, chunk_manifests=replace(seeds.chunk_manifests, sets=sets))
        assert "please write arrays_per_manifest" in caplog.text

    def test_the_default_set_of_other_sets_is_the_seeds(self) -> None:  # R4-14, R4-29
        config = from_json(json_of({"sets": [{"a": {"max-manifest-size": 10}}]}))

        assert config.effective().chunk_manifests.set_named("default") == ManifestSet(
            name="default", max_manifest_size=1_000_000, split_size=None
        )

    @pytest.mark.parametrize("key", ["split-size", "split_size"])
    def test_sets_that_split_arrays(self, key: str) -> None:  # R4-14
        sets = [{"default": {key: 1000}}, {"a": {"arrays-per-manifest": 3, key: 7}}]
        read = from_json(json_of({"sets": sets}))

        assert read.manifest.sets == [
            ManifestSet(name="default", split_size=1000),
            ManifestSet(name="a", arrays_per_manifest=3, split_size=7, cardinality=None),
        ]
        assert from_json(to_json(read)) == read
        assert json.loads(to_json(read))["manifest"]["sets"][1]["a"]["split_size"] == 7
        assert [each.splits(7) for each in read.manifest.sets] == [False, False]
        assert [each.splits(8) for each in read.manifest.sets] == [False, True]

    def test_splitting_can_be_switched_off(self) -> None:  # R4-14
        read = from_json(json_of({"sets": [{"default": {"split-size": None}}]}))

        assert not any(each.splits(2**60) for each in read.effective().chunk_manifests.sets)
        assert b"split_size" not in to_json(read)

    @pytest.mark.parametrize("document", [EXAMPLE, DEFAULTS])
    def test_the_documents_survive_as_json(self, document: str) -> None:
        config = from_yaml(document)

        assert from_json(to_json(config)) == config
        assert from_yaml(to_json(config)) == config
        assert pickle.loads(pickle.dumps(config)) == config == config.copy()

    def test_the_form_that_is_written(self, caplog: pytest.LogCaptureFixture) -> None:
        written = json.loads(to_json(from_yaml(DEFAULTS)))

        assert written == {
            "manifest": {
                "preload": {
                    "max_manifest_size": 50_000,
                    "max_manifests": 1,
                    "arrays": [{"path": f".*/{name}"} for name in COORDINATES],
                },
                "sets": [
                    {
                        "coordinates": {
                            "max_manifest_size": 50_000,
                            "overflow_to": "default",
                            "cardinality": 1,
                        }
                    },
                    {
                        "default": {
                            "max_manifest_size": 1_000_000,
                            "overflow_to": None,
                            "cardinality": None,
                        }
                    },
                ],
                "rules": [{"target": "coordinates", "path": ".*", "metadata_chunks": [0, 5_000]}],
            }
        }
        caplog.clear()
        from_json(json.dumps(written).encode())
        assert not caplog.records

    def test_both_spellings_and_both_places_are_read(self) -> None:
        expected = ManifestConfig(
            sets=[one_set()], rules=[ManifestRule(target="a", initialized_chunks=(None, 3))]
        )
        for top in ("chunk-manifests", "chunk_manifests", "manifest"):
            for size, chunks in (
                ("max-manifest-size", "initialized-chunks"),
                ("max_manifest_size", "initialized_chunks"),
            ):
                tree = {
                    "sets": [{"a": {size: 10}}],
                    "rules": [{chunks: [None, 3], "target": "a"}],
                }
                read = from_json(json.dumps({top: tree}).encode())
                assert read.manifest == expected

    def test_the_two_places_complement_each_other(self) -> None:
        config = from_yaml("""
        manifest: {rules: [{target: a, path: /x}], max_concurrent_manifest_fetches_during_commit: 3}
        chunk-manifests: {sets: [a: {max-manifest-size: 10}]}
        """)

        assert config.manifest == ManifestConfig(
            sets=[one_set()],
            rules=[ManifestRule(target="a", path="/x")],
            max_concurrent_manifest_fetches_during_commit=3,
        )

    @pytest.mark.parametrize("section", ["null", "{}", "{sets: null, rules: null, preload: null}"])
    def test_an_empty_section_gives_nothing(self, section: str) -> None:
        read = from_yaml(f"chunk-manifests: {section}")

        assert read.effective() == RepositoryConfig().effective()

    def test_other_names_of_keys_are_read_with_a_warning(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        read = from_json(
            json_of({"sets": [{"a": {"max-size": 10}}, {"b": {"max_arrays_per_manifest": 2}}]})
        )

        assert read.manifest.sets == [one_set(), ManifestSet(name="b", arrays_per_manifest=2)]
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
        assert "`chunk-manifests.sets[0].a.max-size`: please write max_manifest_size" in caplog.text
        assert b"max_size" not in to_json(read)

    def test_preloading_that_gives_nothing_keeps_its_kind(self) -> None:
        for preload in (ManifestPreload(), ManifestPreloadConfig(), ManifestPreload(arrays=[])):
            config = RepositoryConfig(manifest=ManifestConfig(preload=preload))
            assert from_json(to_json(config)) == config


S = {"max_manifest_size": 10}
BAD_SETS = [
    ([one_set(overflow_to="a")], r"sets\[0\].a.overflow_to`.* found 'a -> a'"),
    (
        [one_set(overflow_to="b"), one_set(name="b", overflow_to="a")],
        r"sets\[0\].a.overflow_to`.* found 'a -> b -> a'",
    ),
    (
        [
            one_set(name="start", overflow_to="a"),
            one_set(overflow_to="b"),
            one_set(name="b", overflow_to="c"),
            one_set(name="c", overflow_to="a"),
        ],
        r"sets\[0\].start.overflow_to`.* found 'a -> b -> c -> a'",
    ),
    (
        [one_set(max_manifest_size=None)],
        r"sets\[0\].a`: expected exactly one of .* \(None, None\)",
    ),
    ([one_set(arrays_per_manifest=2)], r"sets\[0\].a`: expected exactly one of .* \(10, 2\)"),
    (
        [one_set(split_size=5, cardinality=3)],
        r"sets\[0\].a.cardinality`: expected null, since split_size is given.* found 3",
    ),
    ([one_set(split_size=11)], r"sets\[0\].a.split_size`: expected at most .* 10.* found 11"),
    (
        [one_set(), ManifestSet(name="default", cardinality=3)],
        r"sets\[1\].default.cardinality`: expected null.* found 3",
    ),
    (
        [one_set(), ManifestSet(name="default", overflow_to="a")],
        r"sets\[1\].default.overflow_to`: expected null.* found 'a'",
    ),
    (
        [ManifestSet(name="default", max_manifest_size=1, arrays_per_manifest=1)],
        r"sets\[0\].default`: expected exactly one",
    ),
    (
        [one_set(), one_set(name="b", overflow_to="nowhere")],
        r"sets\[1\].b.overflow_to`: expected .* one of a, b, default, found 'nowhere'",
    ),
    ([one_set(overflow_to=None)], r"sets\[0\].a.overflow_to`: expected .*, found None"),
    ([one_set(), one_set()], r"sets\[0\].a`: expected a name that no other set has"),
    ([one_set(name="")], r"sets\[0\]`: expected a set with a name"),
    ([one_set(name=str(n)) for n in range(MAX_SETS + 1)], "sets`: expected at most 1000 sets"),
]
BAD_RULES = [
    ([ManifestRule(target="a", path="(")], r"rules\[0\].path`: expected a regular expression"),
    ([ManifestRule(target="a", path="x" * 1_001)], r"rules\[0\].path`.*1001 characters"),
    ([ManifestRule(target="a", path="(" * 900)], r"rules\[0\].path`: expected a regular"),
    (
        [ManifestRule(target="a", metadata_chunks=(3, 2))],
        r"rules\[0\].metadata_chunks`: expected a range \[low, high\], found \[3, 2\]",
    ),
    (
        [
            ManifestRule(target="default", path="/x"),
            ManifestRule(target="a", initialized_chunks=(3, 2)),
        ],
        r"rules\[1\].initialized_chunks`",
    ),
    (
        [ManifestRule(target="a"), ManifestRule(target="default", path="/x")],
        r"rules\[0\]`: expected conditions, since only the last rule may take every array",
    ),
    (
        [ManifestRule(target="a", path="/x")] * (MAX_RULES + 1),
        "rules`: expected at most 1000 rules",
    ),
]
BAD_RANGES: list[Any] = [[1], [1, 2, 3], [-1, 2], [0, 1.5], ["0", 1], 5, {}]
BAD_FILES = [
    ({"set": []}, r"`chunk-manifests.set`: expected one of the keys sets, rules, preload"),
    ({"sets": {}}, r"`chunk-manifests.sets`: expected a list, found {}"),
    ({"sets": [S]}, r"`chunk-manifests.sets\[0\].max_manifest_size`: expected a mapping"),
    ({"sets": [{}]}, r"`chunk-manifests.sets\[0\]`: expected a mapping of one key"),
    ({"sets": [{"a": S, "b": S}]}, r"`chunk-manifests.sets\[0\]`: expected a mapping of one key"),
    ({"sets": ["a"]}, r"`chunk-manifests.sets\[0\]`: expected a mapping of one key"),
    ({"sets": [{"a": {**S, "x": 1}}]}, r"`chunk-manifests.sets\[0\].a.x`: expected one of the"),
    ({"sets": [{"a": {**S, "name": "b"}}]}, r"`chunk-manifests.sets\[0\].a.name`: expected one"),
    ({"sets": [{"a": {**S, "max-size": 1}}]}, r"`chunk-manifests.sets\[0\].a.max-size`.*once"),
    (
        {"sets": [{"a": {"max-manifest-size": 0}}]},
        r"`chunk-manifests.sets\[0\].a.max-manifest-size`: Expected `int` >= 1, found 0",
    ),
    (
        {"sets": [{"a": {**S, "cardinality": "two"}}]},
        r"`chunk-manifests.sets\[0\].a.cardinality`: Expected `int | null`",
    ),
    ({"sets": [{"a": None}]}, r"`manifest.sets\[0\].a`: expected exactly one"),
    ({"rules": [{}]}, r"`chunk-manifests.rules\[0\].target`: expected the name of a set"),
    (
        {"rules": [{"target": None}]},
        r"`chunk-manifests.rules\[0\].target`: Expected `str`, got `null`",
    ),
    (
        {"rules": [{"target": "default", "paths": "/x"}]},
        r"`chunk-manifests.rules\[0\].paths`: expected one of the keys target, path",
    ),
    *(
        (
            {"rules": [{"target": "default", "metadata-chunks": chunks}]},
            r"`chunk-manifests.rules\[0\].metadata-chunks`",
        )
        for chunks in BAD_RANGES
    ),
    ({"preload": {"max-manifests": -1}}, "`chunk-manifests.preload.max-manifests`.* found -1"),
    ({"preload": {"max_manifest_size": -1}}, "`chunk-manifests.preload.max_manifest_size`"),
    ({"preload": {"max_total_refs": 1}}, "`chunk-manifests.preload.max_total_refs`: expected one"),
    ({"preload": {"arrays": ".*"}}, "`chunk-manifests.preload.arrays`: expected a list"),
    ({"preload": {"arrays": [{}]}}, r"`chunk-manifests.preload.arrays\[0\].path`"),
    ({"preload": {"arrays": [".*"]}}, r"`chunk-manifests.preload.arrays\[0\]`"),
    ({"preload": {"arrays": [{"path": 1}]}}, r"`chunk-manifests.preload.arrays\[0\].path`"),
    (
        {"preload": {"arrays": [{"path": ".*", "name": "x"}]}},
        r"`chunk-manifests.preload.arrays\[0\].name`",
    ),
    (
        {"preload": {"arrays": [{"path": "/x"}, {"path": "["}]}},
        r"`manifest.preload.arrays\[1\].path`: expected a regular expression",
    ),
]


class TestValidation:
    """R4-44 to R4-50: what is wrong is refused before it is saved, and named by its key."""

    @pytest.mark.parametrize(("sets", "message"), BAD_SETS)
    def test_sets(self, sets: list[Any], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            ManifestConfig(sets=sets)

    @pytest.mark.parametrize(("rules", "message"), BAD_RULES)
    def test_rules(self, rules: list[Any], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            ManifestConfig(sets=[one_set()], rules=rules)

    @pytest.mark.parametrize(("section", "message"), BAD_FILES)
    def test_files(self, section: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            from_json(json_of(section))
        with pytest.raises(FormatError, match=message):
            from_yaml(json_of(section), key="config.yaml")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "chunk-manifests: {rules: []}\nmanifest: {rules: []}",
                "`chunk-manifests.rules`.*once",
            ),
            (
                "chunk-manifests: {}\nchunk_manifests: {}",
                "`chunk_manifests`: expected each key once",
            ),
            ("chunk-manifests: 3", "`chunk-manifests`: expected a mapping"),
            (
                "manifest: {preload: {max_manifests: 1, max_total_refs: 1}}",
                "`manifest.preload.max_t",
            ),
            ("manifest: {preload: {nope: 1}}", "`manifest.preload.nope`"),
        ],
    )
    def test_sections(self, text: str, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            from_yaml(text)

    @pytest.mark.parametrize("use", [to_json, RepositoryConfig.effective])
    def test_targets_must_exist_among_the_sets_that_hold(
        self, use: Callable[..., Any]
    ) -> None:  # R4-46
        config = RepositoryConfig(
            manifest=ManifestConfig(
                sets=[one_set()],
                rules=[ManifestRule(target="a", path="/x"), ManifestRule(target="b", path="/y")],
            )
        )

        message = r"`manifest.rules\[1\].target`: expected .* one of a, default, found 'b'"
        with pytest.raises(InvalidInputError, match=message):
            use(config)

    @pytest.mark.parametrize("use", [to_json, RepositoryConfig.effective])
    def test_lists_that_were_changed_in_place_are_checked_again(
        self, use: Callable[..., Any]
    ) -> None:  # R4-44
        config = RepositoryConfig(manifest=ManifestConfig(sets=[one_set()]))
        config.manifest.sets.append(one_set())

        with pytest.raises(InvalidInputError, match="no other set has"):
            use(config)

        preload = ManifestPreload(arrays=[])
        preload.arrays.append(PreloadArrays(path="("))
        with pytest.raises(InvalidInputError, match=r"preload.arrays\[0\].path"):
            use(RepositoryConfig(manifest=ManifestConfig(preload=preload)))

    @pytest.mark.parametrize(
        ("rules", "unreachable"),
        [
            ([("/x", (0, 10)), ("/x", (2, 3))], [1]),
            ([(".*", (None, 10)), ("/x", (0, 10))], [1]),
            ([(".*", None), ("/x", (5, None)), (None, None)], [1, 2]),
            ([("/x", (0, 10)), ("/x", (2, 11))], []),
            ([("/x", (1, 10)), ("/x", (None, 3))], []),
            ([("/x", (0, 10)), ("/y", (2, 3))], []),
            ([("/x", (0, 10)), ("/x", None)], []),
        ],
    )
    def test_rules_that_are_never_reached_are_told_of(
        self, rules: list[Any], unreachable: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        config = ManifestConfig(
            rules=[
                ManifestRule(target="default", path=path, metadata_chunks=chunks)
                for path, chunks in rules
            ]
        )

        RepositoryConfig(manifest=config).effective()

        told = [record.getMessage().split(" is never")[0] for record in caplog.records]
        assert told == [f"manifest.rules[{place}]" for place in unreachable]

    def test_many_sets_in_one_long_way_are_checked_quickly(self) -> None:
        names = [f"s{n}" for n in range(MAX_SETS - 1)]
        sets = [
            one_set(name=name, overflow_to=after)
            for name, after in zip(names, [*names[1:], "default"], strict=True)
        ]

        manifests = ManifestConfig(sets=sets).chunk_manifests()
        assert len(manifests.sets) == MAX_SETS


class TestEffective:
    def test_the_default_set_is_always_there(self) -> None:  # R4-29
        settings = RepositoryConfig(manifest=ManifestConfig(sets=[one_set()])).effective()

        assert settings.chunk_manifests.sets == (one_set(), ManifestSet(name="default"))
        assert settings.chunk_manifests.rules == ()

    def test_no_sets_and_no_rules_put_everything_in_default(self) -> None:
        settings = RepositoryConfig(manifest=ManifestConfig(sets=[], rules=[])).effective()

        assert settings.chunk_manifests == ChunkManifests(
            sets=(ManifestSet(name="default"),), rules=()
        )

    def test_the_usual_rule_holds_for_a_set_of_its_name(self) -> None:
        coordinates = ManifestSet(name="coordinates", max_manifest_size=7)

        manifests = ManifestConfig(sets=[coordinates]).chunk_manifests()

        assert manifests.rules == ChunkManifests().rules
        assert manifests.set_named("coordinates") == coordinates

    def test_given_rules_find_the_usual_sets(self) -> None:
        rule = ManifestRule(target="coordinates", path=".*/time")

        manifests = ManifestConfig(rules=[rule]).chunk_manifests()

        assert manifests == ChunkManifests(rules=(rule,))

    def test_settings_do_not_follow_later_changes(self) -> None:
        config = RepositoryConfig(manifest=ManifestConfig(sets=[one_set()]))

        settings = config.effective()
        config.manifest.sets.append(one_set(name="b"))

        assert len(settings.chunk_manifests.sets) == 2
        assert pickle.loads(pickle.dumps(settings)) == settings


class TestMerge:
    """R4-19: overridden on open like any other value."""

    def test_lists_are_replaced_as_a_whole(self) -> None:
        kept = RepositoryConfig(manifest=EXAMPLE_CONFIG)
        rules = [ManifestRule(target="coord2", path="/x")]

        merged = kept.merge(RepositoryConfig(manifest=ManifestConfig(rules=rules)))

        assert merged.manifest.sets == EXAMPLE_CONFIG.sets
        assert merged.manifest.preload == EXAMPLE_CONFIG.preload
        assert merged.effective().chunk_manifests.rules == tuple(rules)

    def test_an_override_may_name_sets_of_the_repository_only(self) -> None:
        override = from_yaml("chunk-manifests: {rules: [{target: coord1, path: /x}]}")

        assert RepositoryConfig(manifest=EXAMPLE_CONFIG).merge(override).effective()
        with pytest.raises(InvalidInputError, match=r"rules\[0\].target"):
            override.effective()

    def test_merging_goes_into_preloading_of_the_same_kind(self) -> None:
        kept = RepositoryConfig(manifest=EXAMPLE_CONFIG)
        override = from_yaml("chunk-manifests: {preload: {max-manifests: 0}}")

        merged = kept.merge(override)

        assert merged.manifest.preload == ManifestPreload(
            max_manifest_size=50_000, max_manifests=0, arrays=EXAMPLE_CONFIG.preload.arrays
        )

    def test_preloading_of_the_other_kind_replaces(self) -> None:
        by_path = ManifestConfig(preload=ManifestPreload(max_manifests=3))
        by_condition = ManifestConfig(preload=ManifestPreloadConfig(max_total_refs=3))

        assert by_path.merge(by_condition) == by_condition
        assert by_condition.merge(by_path) == by_path

    def test_a_merge_that_shares_nothing(self) -> None:
        kept = RepositoryConfig(manifest=ManifestConfig(sets=[one_set()]))

        merged = kept.merge(RepositoryConfig())
        merged.manifest.sets.append(one_set(name="b"))

        assert kept.manifest.sets == [one_set()]
