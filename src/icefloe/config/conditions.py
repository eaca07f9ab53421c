"""Conditions on arrays and dimensions, as used by the preloading and the splitting of manifests.

A condition is an immutable, hashable value that can say whether it holds. Regular expressions are
searched for (not anchored), and one that does not compile never matches: a typing error in a rule
must not keep anyone from opening a repository.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from icefloe.config.patterns import found
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NESTING = 32
"""Conditions nested deeper than this are refused: they come from files, and files may lie."""

_SPELLINGS = {"any_array": "AnyArray"}
"""Kinds whose factory method is not spelled like the kind."""


class Condition(msgspec.Struct, frozen=True):
    """What conditions on arrays share: a kind and its argument."""

    kind: str
    argument: Any = None

    def __and__(self, other: object) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._joined("and", other)

    def __or__(self, other: object) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._joined("or", other)

    def _joined(self, kind: str, other: Self) -> Self:
        # A chain `a | b | c` becomes one flat condition, however long it is.
        members = self.argument if self.kind == kind else (self,)
        return type(self)(kind, (*members, other))

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.kind in {"or", "and"}:
            return f"{name}.{self.kind}_conditions({list(self.argument)!r})"
        if self.argument is None:
            return f"{name}.{_SPELLINGS.get(self.kind, self.kind)}()"
        arguments = self.argument if isinstance(self.argument, tuple) else (self.argument,)
        return f"{name}.{self.kind}({', '.join(map(repr, arguments))})"

    @classmethod
    def _all_of_this_kind(cls, conditions: Iterable[Any]) -> tuple[Self, ...]:
        members = tuple(conditions)
        for member in members:
            if not isinstance(member, cls):
                msg = f"expected a list of {cls.__name__}, found {member!r} in it"
                raise InvalidInputError(msg)
        return members

    def matches(self, path: str, num_refs: int = 0) -> bool:
        """Whether the condition holds for the array at `path` and a manifest of that size."""
        match self.kind:
            case "or":
                return any(member.matches(path, num_refs) for member in self.argument)
            case "and":
                return all(member.matches(path, num_refs) for member in self.argument)
            case "path_matches":
                return found(self.argument, path)
            case "name_matches":
                return found(self.argument, path.rpartition("/")[2])
            case "num_refs":
                lowest, end = self.argument
                return (lowest is None or num_refs >= lowest) and (end is None or num_refs < end)
            case _:
                return self.kind in {"true", "any_array"}


class ManifestPreloadCondition(Condition, frozen=True):
    """Which arrays have their manifests read as soon as a session starts."""

    @staticmethod
    def or_conditions(conditions: Iterable[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Holds if any of the conditions does."""
        members = ManifestPreloadCondition._all_of_this_kind(conditions)
        return ManifestPreloadCondition("or", members)

    @staticmethod
    def and_conditions(conditions: Iterable[ManifestPreloadCondition]) -> ManifestPreloadCondition:
        """Holds if all of the conditions do."""
        members = ManifestPreloadCondition._all_of_this_kind(conditions)
        return ManifestPreloadCondition("and", members)

    @staticmethod
    def path_matches(regex: str) -> ManifestPreloadCondition:
        """Holds if the regex is found in the array's absolute path (`/group/array`)."""
        return ManifestPreloadCondition("path_matches", _text(regex))

    @staticmethod
    def name_matches(regex: str) -> ManifestPreloadCondition:
        """Holds if the regex is found in the last part of the array's path."""
        return ManifestPreloadCondition("name_matches", _text(regex))

    @staticmethod
    def num_refs(from_refs: int | None, to_refs: int | None) -> ManifestPreloadCondition:
        """Holds if the manifest has at least `from_refs` and fewer than `to_refs` references."""
        bounds = (_bound(from_refs), _bound(to_refs))
        return ManifestPreloadCondition("num_refs", bounds)

    @staticmethod
    def true() -> ManifestPreloadCondition:
        """Holds always."""
        return ManifestPreloadCondition("true")

    @staticmethod
    def false() -> ManifestPreloadCondition:
        """Holds never."""
        return ManifestPreloadCondition("false")


class ManifestSplitCondition(Condition, frozen=True):
    """Which arrays a splitting rule is for."""

    @staticmethod
    def or_conditions(conditions: Iterable[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Holds if any of the conditions does."""
        members = ManifestSplitCondition._all_of_this_kind(conditions)
        return ManifestSplitCondition("or", members)

    @staticmethod
    def and_conditions(conditions: Iterable[ManifestSplitCondition]) -> ManifestSplitCondition:
        """Holds if all of the conditions do."""
        members = ManifestSplitCondition._all_of_this_kind(conditions)
        return ManifestSplitCondition("and", members)

    @staticmethod
    def path_matches(regex: str) -> ManifestSplitCondition:
        """Holds if the regex is found in the array's absolute path (`/group/array`)."""
        return ManifestSplitCondition("path_matches", _text(regex))

    @staticmethod
    def name_matches(regex: str) -> ManifestSplitCondition:
        """Holds if the regex is found in the last part of the array's path."""
        return ManifestSplitCondition("name_matches", _text(regex))

    @staticmethod
    def AnyArray() -> ManifestSplitCondition:  # noqa: N802 (the name that users know)
        """Holds for every array."""
        return ManifestSplitCondition("any_array")


class ManifestSplitDimCondition(msgspec.Struct, frozen=True):
    """Which dimensions of an array a split size is for."""

    Axis: ClassVar[type[AxisCondition]]
    DimensionName: ClassVar[type[DimensionNameCondition]]
    Any: ClassVar[type[AnyDimensionCondition]]

    def matches(self, axis: int, dimension_name: str | None) -> bool:
        """Whether the dimension at position `axis` is meant."""
        raise NotImplementedError


class AxisCondition(ManifestSplitDimCondition, frozen=True):
    """Holds for the dimension at one position, counted from 0."""

    axis: int

    def __post_init__(self) -> None:
        _whole_number(self.axis, "an axis, counted from 0")

    def __repr__(self) -> str:
        return f"ManifestSplitDimCondition.Axis({self.axis!r})"

    def matches(self, axis: int, dimension_name: str | None) -> bool:  # noqa: ARG002
        """Whether the dimension is at the position."""
        return axis == self.axis


class DimensionNameCondition(ManifestSplitDimCondition, frozen=True):
    """Holds for dimensions in whose name a regex is found."""

    regex: str

    def __post_init__(self) -> None:
        _text(self.regex)

    def __repr__(self) -> str:
        return f"ManifestSplitDimCondition.DimensionName({self.regex!r})"

    def matches(self, axis: int, dimension_name: str | None) -> bool:  # noqa: ARG002
        """Whether the dimension has a fitting name."""
        return dimension_name is not None and found(self.regex, dimension_name)


class AnyDimensionCondition(ManifestSplitDimCondition, frozen=True):
    """Holds for every dimension; put it last, since the first condition that holds decides."""

    def __repr__(self) -> str:
        return "ManifestSplitDimCondition.Any()"

    def matches(self, axis: int, dimension_name: str | None) -> bool:  # noqa: ARG002
        """Whether the dimension is one."""
        return True


ManifestSplitDimCondition.Axis = AxisCondition
ManifestSplitDimCondition.DimensionName = DimensionNameCondition
ManifestSplitDimCondition.Any = AnyDimensionCondition


def _text(regex: object) -> str:
    if not isinstance(regex, str):
        msg = f"expected a regex as text, found {regex!r}"
        raise InvalidInputError(msg)
    return regex


def _bound(count: object) -> int | None:
    return None if count is None else _whole_number(count, "a number of references or None")


def _whole_number(value: object, meaning: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = f"expected {meaning}, found {value!r}"
        raise InvalidInputError(msg)
    return value
