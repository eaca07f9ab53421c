"""Conditions on arrays and dimensions, and the splitting rules made of them (api-facts 38)."""

from __future__ import annotations

import pickle
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.config import (
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

Preload = ManifestPreloadCondition
Split = ManifestSplitCondition
Axis = ManifestSplitDimCondition.Axis
DimensionName = ManifestSplitDimCondition.DimensionName
AnyDimension = ManifestSplitDimCondition.Any


class TestConditions:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (Preload.true(), True),
            (Preload.false(), False),
            (Preload.name_matches("temp"), True),
            (Preload.name_matches("^temp$"), False),
            (Preload.name_matches("outputs"), False),
            (Preload.path_matches("^/model/outputs"), True),
            (Preload.path_matches("outputs/temp"), True),
            (Preload.path_matches("^outputs"), False),
            (Preload.name_matches("temp("), False),
            (Preload.num_refs(None, None), True),
            (Preload.num_refs(100, None), True),
            (Preload.num_refs(101, None), False),
            (Preload.num_refs(None, 100), False),
            (Preload.num_refs(None, 101), True),
            (Preload.or_conditions([]), False),
            (Preload.and_conditions([]), True),
            (Preload.or_conditions([Preload.false(), Preload.true()]), True),
            (Preload.and_conditions([Preload.false(), Preload.true()]), False),
        ],
    )
    def test_hold_for_an_array(self, condition: ManifestPreloadCondition, expected: bool) -> None:
        assert condition.matches("/model/outputs/temperature", 100) is expected

    def test_operators_are_the_factories(self) -> None:
        a, b, c = (Preload.name_matches(name) for name in "abc")

        assert a & b == Preload.and_conditions([a, b])
        assert a | b | c == Preload.or_conditions([a, b, c])
        assert a & b | c == Preload.or_conditions([a & b, c])

    def test_long_chains_stay_flat(self) -> None:
        names = [Split.name_matches(f"^v{number}$") for number in range(5_000)]

        condition = reduce(or_, names)

        assert condition.matches("/v4999")
        assert not condition.matches("/v5000")

    def test_kinds_do_not_mix(self) -> None:
        with pytest.raises(TypeError):
            Preload.true() & Split.AnyArray()
        with pytest.raises(TypeError):
            Split.AnyArray() | 3
        with pytest.raises(InvalidInputError, match="ManifestSplitCondition"):
            Split.or_conditions([Preload.true()])  # type: ignore[list-item]

    def test_are_values(self) -> None:
        condition = Split.name_matches("a") | Split.AnyArray()

        assert {condition: 1}[Split.name_matches("a") | Split.AnyArray()] == 1
        assert Split.name_matches("a") != Split.path_matches("a")
        assert Axis(1) == Axis(1) != Axis(2)
        assert len({Axis(0), DimensionName("x"), AnyDimension(), AnyDimension()}) == 3
        assert pickle.loads(pickle.dumps(condition)) == condition

    def test_repr_is_how_to_write_it(self) -> None:
        condition = Preload.num_refs(None, 5) & Preload.name_matches("a") & Preload.true()
        names = {"ManifestPreloadCondition": ManifestPreloadCondition}

        assert eval(repr(condition), names) == condition
        assert repr(Split.AnyArray()) == "ManifestSplitCondition.AnyArray()"
        assert repr(Axis(1)) == "ManifestSplitDimCondition.Axis(1)"

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Preload.name_matches(3),  # type: ignore[arg-type]
            lambda: Preload.num_refs(-1, None),
            lambda: Preload.num_refs(True, None),
            lambda: Axis(-1),
            lambda: Axis("0"),  # type: ignore[arg-type]
            lambda: DimensionName(None),
        ],
    )
    def test_wrong_arguments_are_refused(self, make: Callable[..., Any]) -> None:
        with pytest.raises(InvalidInputError, match="expected"):
            make()

    def test_dimension_conditions_are_kinds_of_one_class(self) -> None:
        assert all(
            isinstance(condition, ManifestSplitDimCondition)
            for condition in (Axis(0), DimensionName("x"), AnyDimension())
        )


class TestSplitting:
    def test_the_first_array_condition_that_holds_decides(self) -> None:
        splitting = ManifestSplittingConfig.from_dict(
            {
                Split.name_matches("^temp"): {Axis(0): 3},
                Split.AnyArray(): {Axis(0): 5},
            }
        )

        assert splitting.sizes_for("/temperature", ["t", "x"]) == [3, None]
        assert splitting.sizes_for("/salinity", ["t", "x"]) == [5, None]

    def test_the_first_dimension_condition_that_holds_decides(self) -> None:
        rules = {Split.AnyArray(): {DimensionName("^lon"): 2, Axis(0): 3, AnyDimension(): 9}}
        splitting = ManifestSplittingConfig.from_dict(rules)

        assert splitting.sizes_for("/a", ["time", "longitude", None]) == [3, 2, 9]
        assert splitting.sizes_for("/a", ["longitude", "time"]) == [2, 9]

    def test_any_before_axis_shadows_it(self) -> None:
        splitting = ManifestSplittingConfig.from_dict(
            {Split.AnyArray(): {AnyDimension(): 9, Axis(0): 3}}
        )

        assert splitting.sizes_for("/a", [None, None]) == [9, 9]

    def test_dicts_round_trip_in_order(self) -> None:
        rules = {
            Split.name_matches("b"): {AnyDimension(): 9, Axis(0): 3},
            Split.name_matches("a"): {DimensionName("x"): 1},
        }

        splitting = ManifestSplittingConfig.from_dict(rules)  # type: ignore[arg-type]

        assert splitting.to_dict() == rules
        assert list(splitting.to_dict()) == list(rules)
        assert ManifestSplittingConfig(splitting.split_sizes) == splitting

    def test_lists_are_taken_too(self) -> None:
        listed = ManifestSplittingConfig([[Split.AnyArray(), [[Axis(0), 3]]]])  # type: ignore[arg-type]

        assert listed == ManifestSplittingConfig.from_dict({Split.AnyArray(): {Axis(0): 3}})

    @pytest.mark.parametrize(
        "rules",
        [
            3,
            [Split.AnyArray()],
            [(Split.AnyArray(), [(Axis(0), 0)])],
            [(Split.AnyArray(), [(Axis(0), True)])],
            [(Split.AnyArray(), [("time", 3)])],
            [("temperature", [(Axis(0), 3)])],
            [(Preload.true(), [(Axis(0), 3)])],
        ],
    )
    def test_wrong_rules_are_refused(self, rules: int | list[Any]) -> None:
        with pytest.raises(InvalidInputError, match="split"):
            ManifestSplittingConfig(rules)  # type: ignore[arg-type]
