"""Conditions on arrays and on dimensions, for preloading and splitting manifests.

A condition is an immutable, hashable value that says whether it holds. Regular expressions are
searched for (not anchored). An invalid one never matches: a typo in a rule must not keep anyone
from opening a repository.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import msgspec

from icefloe.config.patterns import occurs_in
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_NESTING = 32
"""Conditions nested deeper than this are refused: they come from files that anyone may write."""


class ArrayCondition(msgspec.Struct, frozen=True):
    """The base of conditions on arrays: a kind and its argument."""

    kind: str
    argument: Any = None

    @classmethod
    def or_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Holds if any of the conditions holds."""
        return cls("or", cls._members(conditions))

    @classmethod
    def and_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Holds if all of the conditions hold."""
        return cls("and", cls._members(conditions))

    @classmethod
    def path_matches(cls, regex: str) -> Self:
        """Holds if the regex occurs in the absolute path of the array (`/group/array`)."""
        return cls("path_matches", _text(regex))

    @classmethod
    def name_matches(cls, regex: str) -> Self:
        """Holds if the regex occurs in the last part of the array's path."""
        return cls("name_matches", _text(regex))

    def __and__(self, other: object) -> Self:
        return self._joined("and", other) if isinstance(other, type(self)) else NotImplemented

    def __or__(self, other: object) -> Self:
        return self._joined("or", other) if isinstance(other, type(self)) else NotImplemented

    def _joined(self, kind: str, other: Self) -> Self:
        # A chain `a | b | c` becomes one flat condition, however long it is.
        members = self.argument if self.kind == kind else (self,)
        return type(self)(kind, (*members, other))

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.kind in {"or", "and"}:
            return f"{name}.{self.kind}_conditions({list(self.argument)!r})"
        if self.argument is None:
            return f"{name}.{'AnyArray' if self.kind == 'any_array' else self.kind}()"
        arguments = self.argument if isinstance(self.argument, tuple) else (self.argument,)
        return f"{name}.{self.kind}({', '.join(map(repr, arguments))})"

    @classmethod
    def _members(cls, conditions: Iterable[Any]) -> tuple[Self, ...]:
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
                return occurs_in(self.argument, path)
            case "name_matches":
                return occurs_in(self.argument, path.rpartition("/")[2])
            case "num_refs":
                lowest, end = self.argument
                return (lowest is None or num_refs >= lowest) and (end is None or num_refs < end)
            case _:
                return self.kind in {"true", "any_array"}


class ManifestPreloadCondition(ArrayCondition, frozen=True):
    """A condition on arrays whose manifests are read as soon as a session starts.

    >>> from icefloe import ManifestPreloadCondition as Preload
    >>> small_times = Preload.name_matches("^time$") & Preload.num_refs(None, 1_000)
    >>> small_times.matches("/model/time", num_refs=10)
    True
    """

    @classmethod
    def num_refs(cls, from_refs: int | None, to_refs: int | None) -> Self:
        """Holds if the manifest has at least `from_refs` and fewer than `to_refs` references."""
        return cls("num_refs", (_bound(from_refs), _bound(to_refs)))

    @classmethod
    def true(cls) -> Self:
        """Always holds."""
        return cls("true")

    @classmethod
    def false(cls) -> Self:
        """Never holds."""
        return cls("false")


class ManifestSplitCondition(ArrayCondition, frozen=True):
    """A condition on arrays that a splitting rule applies to.

    >>> from icefloe import ManifestSplitCondition as Split
    >>> condition = Split.name_matches("^temperature$") | Split.path_matches("^/forecast/")
    >>> condition.matches("/analysis/temperature")
    True
    """

    @classmethod
    def AnyArray(cls) -> Self:  # noqa: N802 (the name that users know)
        """Holds for every array."""
        return cls("any_array")


class ManifestSplitDimCondition(msgspec.Struct, frozen=True):
    """A condition on the dimensions of an array that a split size applies to."""

    Axis: ClassVar[type[AxisCondition]]
    DimensionName: ClassVar[type[DimensionNameCondition]]
    Any: ClassVar[type[AnyDimensionCondition]]

    def matches(self, axis: int, dimension_name: str | None) -> bool:
        """Whether the condition holds for the dimension at position `axis`."""
        raise NotImplementedError


class AxisCondition(ManifestSplitDimCondition, frozen=True, tag="axis"):
    """Holds for the dimension at one position, counted from 0."""

    axis: Annotated[int, msgspec.Meta(ge=0)]

    def __post_init__(self) -> None:
        _whole_number(self.axis, "an axis, counted from 0")

    def __repr__(self) -> str:
        return f"ManifestSplitDimCondition.Axis({self.axis!r})"

    def matches(self, axis: int, dimension_name: str | None) -> bool:  # noqa: ARG002
        """Whether the dimension is at the position."""
        return axis == self.axis


class DimensionNameCondition(ManifestSplitDimCondition, frozen=True, tag="dimension_name"):
    """Holds for dimensions in whose name a regex occurs."""

    regex: str

    def __post_init__(self) -> None:
        _text(self.regex)

    def __repr__(self) -> str:
        return f"ManifestSplitDimCondition.DimensionName({self.regex!r})"

    def matches(self, axis: int, dimension_name: str | None) -> bool:  # noqa: ARG002
        """Whether the name of the dimension matches."""
        return dimension_name is not None and occurs_in(self.regex, dimension_name)


class AnyDimensionCondition(ManifestSplitDimCondition, frozen=True, tag="any"):
    """Holds for every dimension; put it last, since the first condition that holds decides."""

    def __repr__(self) -> str:
        return "ManifestSplitDimCondition.Any()"

    def matches(self, axis: int, dimension_name: str | None) -> bool:  # noqa: ARG002
        """Always true."""
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
