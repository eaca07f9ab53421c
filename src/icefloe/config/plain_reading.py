"""Strict reading of plain trees: whatever is not accepted is named by the path of its key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from icefloe.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    Reader = Callable[[Any, str], Any]

_logger = logging.getLogger(__name__)


def refuse(path: str, expected: str, found: object) -> NoReturn:
    """Raise the error that says what was expected at a path and what was found."""
    shown = repr(found)
    if len(shown) > 200:
        shown = f"{shown[:200]}…"
    msg = (
        f"the configuration is not valid at `{path or '(top)'}`: expected {expected}, found {shown}"
    )
    raise InvalidInputError(msg)


def mapping(plain: Any, path: str) -> dict[str, Any]:
    """The tree as a mapping."""
    if not isinstance(plain, dict):
        refuse(path, "a mapping", plain)
    return plain


def items(plain: Any, path: str) -> Iterator[tuple[Any, str]]:
    """The items of a list, each with its path."""
    if not isinstance(plain, list):
        refuse(path, "a list", plain)
    return ((item, f"{path}[{index}]") for index, item in enumerate(plain))


def fields(
    plain: Any, path: str, names: Collection[str], aliases: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Any, str]]:
    """The name, value and path of each key: known ones only, each once, in either spelling."""
    seen = set()
    for key, value in mapping(plain, path).items():
        spelled, here = key.replace("-", "_"), f"{path}.{key}".lstrip(".")
        name = (aliases or {}).get(spelled, spelled)
        if name not in names:
            refuse(here, f"one of the keys {', '.join(names)}", key)
        if name in seen:
            refuse(here, "each key once", f"{name} in two spellings")
        if name != spelled:
            _logger.warning("the configuration has `%s`: please write %s", here, name)
        seen.add(name)
        yield name, value, here


def value_of(expected: Any) -> Reader:
    """A reader of plain values of a type."""

    def read(plain: Any, path: str) -> Any:
        try:
            return msgspec.convert(plain, expected)
        except msgspec.ValidationError as error:
            msg = f"the configuration is not valid at `{path}`: {error}, found {plain!r}"
            raise InvalidInputError(msg) from None

    return read


def section(section_type: type[Any], **readers: Reader) -> Reader:
    """A reader of one section; fields without a reader of their own hold plain values."""
    types = {field.name: field.type for field in msgspec.structs.fields(section_type)}

    def read(plain: Any, path: str) -> Any:
        if plain is None:
            return None
        given = {
            name: readers.get(name, value_of(types[name]))(value, here)
            for name, value, here in fields(plain, path, types)
            if value is not None
        }
        return section_type(**given)

    return read
