"""Checks what a committer says: a text, and properties made of values that JSON can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.model.snapshot import INTERNAL_PREFIX

MAX_DEPTH = 64
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


def check_message(message: Any) -> str:
    """The message of a commit; raises InvalidTypeError unless it is text that can be stored."""
    if not isinstance(message, str):
        raise InvalidTypeError(f"a commit message is a string, found {type(message).__name__}")
    return _text(message)


def plain_metadata(metadata: Any) -> dict[str, Any]:
    """A copy of commit metadata made of plain JSON values; shares nothing with the original.

    Raises InvalidTypeError for anything that JSON does not have.
    """
    if not isinstance(metadata, dict):
        raise InvalidTypeError(
            f"commit metadata is a dict; a {type(metadata).__name__} object cannot be cast to it"
        )
    for key in metadata:
        if isinstance(key, str) and key.startswith(INTERNAL_PREFIX):
            raise InvalidInputError(f"keys that start with {INTERNAL_PREFIX!r} are icefloe's own")
    copied: dict[str, Any] = _plain(metadata, 0)
    return copied


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"commit metadata nests deeper than {MAX_DEPTH} levels")
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None | bool():
            return value
        case str():
            return _text(value)
        case int():
            return _integer(value)
        case float():
            return float(value)
        case list() | tuple():
            return [_plain(item, depth + 1) for item in value]
        case dict():
            return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    raise InvalidTypeError(
        f"{type(value).__name__!r} object cannot be cast to JSON; commit metadata has strings, "
        "numbers, booleans, None, lists and dicts"
    )


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidTypeError(
            f"keys of commit metadata are strings, found {type(key).__name__}: {key!r}"
        )
    return _text(key)


def _integer(value: int) -> int:
    if not _SMALLEST <= value <= _LARGEST:
        raise InvalidInputError(
            f"integers of commit metadata have 64 bits, found {value}; give it as a string"
        )
    return int(value)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{value!r} is no valid Unicode text: {error.reason}") from None
    return str(value)
