"""Base classes of the parts of a configuration: checked fields, merging and copying."""

from __future__ import annotations

import copy
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, NoReturn, Protocol, Self, get_args, runtime_checkable

import msgspec

from icefloe.errors import InvalidInputError
from icefloe.model.bounded_text import described, shortened

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of things or bytes; zero is allowed."""

PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""A limit that makes no sense at zero."""

Concurrency = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
"""How many things may happen at the same time."""

_MAX_SHOWN = 200
"""Characters of a value or a path that an error shows: files may hold megabytes of either."""


def refuse(path: str, expected: str, found: object) -> NoReturn:
    """Raise the InvalidInputError that says what was expected at a path, and what was found."""
    raise invalid_at(path, f"expected {expected}", found)


def invalid_at(path: str, reason: str, found: object) -> InvalidInputError:
    """The error for a value at a path of a configuration."""
    where, shown = path or "(top)", repr(found)
    if len(where) > _MAX_SHOWN:
        where = f"…{where[-_MAX_SHOWN:]}"
    if len(shown) > _MAX_SHOWN:
        shown = f"{shown[:_MAX_SHOWN]}…"
    return InvalidInputError(
        f"the configuration is not valid at `{where}`: {reason}, found {shown}"
    )


@runtime_checkable
class Mergeable(Protocol):
    """A value with fields of its own: merging goes into it instead of replacing it."""

    def merge(self, other: Any) -> Any:
        """This value, overridden by the fields that `other` sets."""


class Section(msgspec.Struct, forbid_unknown_fields=True, repr_omit_defaults=True):
    """One section of the configuration: mutable, every field optional; `None` means "not set".

    Fields are checked by the constructor and on assignment, so that a mistake shows where it was
    made and not when the repository is opened.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None:
                # Assigning checks the value, and stores it as msgspec converted it.
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None:
            # Nothing is looked up for what is not set, which is most of a configuration.
            expected = field_types(type(self)).get(name)
            if expected is not None:
                value = self._checked(name, value, expected)
        super().__setattr__(name, value)

    @classmethod
    def _checked(cls, name: str, value: Any, expected: Any) -> Any:
        """The value as the type of its field; raises InvalidInputError if it has another type."""
        if isinstance(value, Enum) and type(value) in get_args(expected):
            return value  # msgspec converts members from their values only
        return _converted(cls, name, value, expected)

    def merge(self, other: Self) -> Self:
        """A new value with the fields that `other` sets; those that are None there stay as here.

        Merging goes into sections. Everything else is replaced as a whole, also a section by one
        of another type.
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
        """A copy that shares no mutable value with this one."""
        return copy.deepcopy(self)


class CheckedValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An immutable part of the configuration, checked when it is created and merged as a whole."""

    def __post_init__(self) -> None:
        for name, expected in field_types(type(self)).items():
            checked = _converted(type(self), name, getattr(self, name), expected)
            msgspec.structs.force_setattr(self, name, checked)


def _converted(owner: type, name: str, value: Any, expected: Any) -> Any:
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        msg = f"{owner.__name__}.{name} cannot be {described(value)}: {shortened(str(error))}"
        raise InvalidInputError(msg) from None


@lru_cache
def field_types(owner: type[Any]) -> dict[str, Any]:
    """The types of the fields of a struct, by name."""
    return {field.name: field.type for field in msgspec.structs.fields(owner)}
