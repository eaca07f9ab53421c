"""What all parts of the configuration have in common: checked fields, merging and copying."""

from __future__ import annotations

import copy
from enum import Enum
from functools import cache
from typing import Annotated, Any, Protocol, Self, get_args, runtime_checkable

import msgspec

from icefloe.errors import InvalidInputError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of things or bytes; zero is allowed."""

PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""A limit that makes no sense at zero."""

Concurrency = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
"""How many things go on at the same time."""


@runtime_checkable
class Mergeable(Protocol):
    """A value with inner fields of its own: merging goes into it instead of replacing it."""

    def merge(self, other: Any) -> Any:
        """This value with what `other` gives laid over it."""


class Section(msgspec.Struct, forbid_unknown_fields=True):
    """One part of the configuration: mutable, every field optional, `None` meaning "not given".

    Fields are checked when they are given, in the constructor and on assignment, so that a
    mistake shows where it was made and not when the repository is opened.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            # Assigning checks, and stores the form that the check settled on.
            setattr(self, name, getattr(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        expected = _field_types(type(self)).get(name)
        if expected is not None and value is not None:
            value = self._checked(name, value, expected)
        super().__setattr__(name, value)

    @classmethod
    def _checked(cls, name: str, value: Any, expected: Any) -> Any:
        """The value as the field takes it; raises InvalidInputError if it does not."""
        if isinstance(value, Enum) and type(value) in get_args(expected):
            return value  # msgspec only knows members by their values
        return _converted(cls, name, value, expected)

    def merge(self, other: Self) -> Self:
        """A new value: what `other` gives wins, what it leaves at None stays as it is here.

        Merging goes into sections; everything else is replaced as a whole, and so is a section
        by one of another kind.
        """
        merged = {}
        for name in self.__struct_fields__:
            ours, theirs = getattr(self, name), getattr(other, name)
            if isinstance(ours, Mergeable) and type(ours) is type(theirs):
                merged[name] = ours.merge(theirs)
            else:
                merged[name] = ours if theirs is None else theirs
        return copy.deepcopy(type(self)(**merged))

    def copy(self) -> Self:
        """A copy that shares nothing that can change."""
        return copy.deepcopy(self)


class CheckedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the configuration that is replaced as a whole, checked when it is made."""

    def __post_init__(self) -> None:
        for name, expected in _field_types(type(self)).items():
            checked = _converted(type(self), name, getattr(self, name), expected)
            msgspec.structs.force_setattr(self, name, checked)


def _converted(owner: type, name: str, value: Any, expected: Any) -> Any:
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        msg = f"{owner.__name__}.{name} cannot be {value!r}: {error}"
        raise InvalidInputError(msg) from None


@cache
def _field_types(owner: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(owner)}
