"""Conditions as plain trees, and back: `{"or": [...]}`, `{"axis": 0}`, `"any"`.

The spellings of the reference implementation's files are read too: CamelCase names, bounds as
`{"Included": 1}`, `{"Excluded": 5}` or `"Unbounded"`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from icefloe.config.conditions import (
    MAX_NESTING,
    AxisCondition,
    Condition,
    DimensionNameCondition,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
)
from icefloe.config.plain_reading import refuse
from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

ConditionT = TypeVar("ConditionT", ManifestPreloadCondition, ManifestSplitCondition)

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def choice(plain: Any, path: str, names: Sequence[str]) -> tuple[str, Any]:
    """A choice among names and its argument: `"name"` or `{"name": argument}`."""
    expected = f"one of {', '.join(names)}"
    if isinstance(plain, dict) and len(plain) == 1:
        [(name, argument)] = plain.items()
    elif isinstance(plain, bool):
        name, argument = str(plain), None
    else:
        name, argument = plain, None
    if not isinstance(name, str):
        refuse(path, expected, plain)
    canonical = _WORD_BOUNDARY.sub("_", name).replace("-", "_").lower()
    if canonical not in names:
        refuse(path, expected, name)
    return canonical, argument


def condition_to_plain(condition: Condition, depth: int = 0) -> Any:
    """An array condition as a plain tree."""
    if depth > MAX_NESTING:
        msg = f"conditions can be nested {MAX_NESTING} deep, found one that is deeper"
        raise InvalidInputError(msg)
    match condition.kind:
        case "or" | "and":
            members = [condition_to_plain(member, depth + 1) for member in condition.argument]
            return {condition.kind: members}
        case "path_matches" | "name_matches":
            return {condition.kind: {"regex": condition.argument}}
        case "num_refs":
            bounds = zip(("from", "to"), condition.argument, strict=True)
            return {"num_refs": {name: bound for name, bound in bounds if bound is not None}}
        case _:
            return condition.kind


def preload_condition_from_plain(plain: Any, path: str) -> ManifestPreloadCondition:
    """A preload condition out of a plain tree."""
    return _condition(ManifestPreloadCondition, _PRELOAD_KINDS, plain, path, 0)


def split_condition_from_plain(plain: Any, path: str) -> ManifestSplitCondition:
    """A splitting rule's array condition out of a plain tree."""
    return _condition(ManifestSplitCondition, _SPLIT_KINDS, plain, path, 0)


def dimension_to_plain(condition: ManifestSplitDimCondition) -> Any:
    """A dimension condition as a plain tree."""
    match condition:
        case AxisCondition():
            return {"axis": condition.axis}
        case DimensionNameCondition():
            return {"dimension_name": condition.regex}
        case _:
            return "any"


def dimension_from_plain(plain: Any, path: str) -> ManifestSplitDimCondition:
    """A dimension condition out of a plain tree."""
    kind, argument = choice(plain, path, ("axis", "dimension_name", "any"))
    match kind:
        case "axis":
            return AxisCondition(_whole_number(argument, f"{path}.axis"))
        case "dimension_name":
            return DimensionNameCondition(_text(argument, f"{path}.dimension_name"))
        case _:
            _no_argument(argument, path)
            return ManifestSplitDimCondition.Any()


_JOINED = ("or", "and", "path_matches", "name_matches")
_PRELOAD_KINDS = (*_JOINED, "num_refs", "true", "false")
_SPLIT_KINDS = (*_JOINED, "any_array")


def _condition(
    condition: type[ConditionT], kinds: Sequence[str], plain: Any, path: str, depth: int
) -> ConditionT:
    if depth > MAX_NESTING:
        refuse(path, f"conditions nested at most {MAX_NESTING} deep", "a deeper one")
    kind, argument = choice(plain, path, kinds)
    path = f"{path}.{kind}"
    match kind:
        case "or" | "and":
            if not isinstance(argument, list):
                refuse(path, "a list of conditions", argument)
            members = tuple(
                _condition(condition, kinds, member, f"{path}[{index}]", depth + 1)
                for index, member in enumerate(argument)
            )
            return condition(kind, members)
        case "path_matches" | "name_matches":
            if not isinstance(argument, dict) or set(argument) != {"regex"}:
                refuse(path, "a dict with the one key `regex`", argument)
            return condition(kind, _text(argument["regex"], f"{path}.regex"))
        case "num_refs":
            return condition(kind, _bounds(argument, path))
        case _:
            _no_argument(argument, path)
            return condition(kind)


def _bounds(plain: Any, path: str) -> tuple[int | None, int | None]:
    if not isinstance(plain, dict) or not set(plain) <= {"from", "to"}:
        refuse(path, "a dict with the keys `from` and `to`", plain)
    lowest = _bound(plain.get("from"), f"{path}.from", including=0, excluding=1)
    end = _bound(plain.get("to"), f"{path}.to", including=1, excluding=0)
    return lowest, end


def _bound(plain: Any, path: str, *, including: int, excluding: int) -> int | None:
    if plain is None or isinstance(plain, int):
        return None if plain is None else _whole_number(plain, path)
    kind, count = choice(plain, path, ("included", "excluded", "unbounded"))
    if kind == "unbounded":
        return None
    return _whole_number(count, path) + (including if kind == "included" else excluding)


def _whole_number(plain: Any, path: str) -> int:
    if isinstance(plain, bool) or not isinstance(plain, int) or plain < 0:
        refuse(path, "a whole number, 0 or more", plain)
    return int(plain)


def _text(plain: Any, path: str) -> str:
    if not isinstance(plain, str):
        refuse(path, "text", plain)
    return str(plain)


def _no_argument(argument: Any, path: str) -> None:
    if argument is not None:
        refuse(path, "the name alone", argument)
