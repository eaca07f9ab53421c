"""Numbers and JSON in text from outside, with limits: whatever the text is, errors are expected."""

from __future__ import annotations

import json
import re
from functools import cache
from reprlib import Repr
from typing import Any

MAX_NESTING = 100
_SHOWN = 200


def shortened(text: str) -> str:
    """A text for an error message: its beginning, if it is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def printable(text: object) -> str:
    r"""Text without control characters, which could move the cursor or forge lines.

    >>> print(printable("fine\x1b[2J"))
    fine\x1b[2J
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in str(text)
    )


def first_line(message: str) -> str:
    """The title of a commit, printable."""
    return printable(message.splitlines()[0]) if message else ""


def described(value: object) -> str:
    """A value of any type for an error message, without its contents if it is an array.

    >>> described("north"), described([1, 2]), described(list(range(99)))
    ("'north'", '[1, 2]', '[0, 1, 2, 3, 4, 5, ...]')
    >>> import numpy
    >>> described(numpy.zeros((20, 50)))
    'an array of shape (20, 50)'
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    return shortened(_short_repr().repr(value))


@cache
def _short_repr() -> Repr:
    short = Repr()
    short.maxstring = short.maxother = short.maxlong = _SHOWN
    return short


def whole_number(text: str) -> int | None:
    """The whole number that a text is; None if it is none, or one that 64 bits cannot hold.

    Python's `isdigit` and `int` disagree about characters such as `²`, and `int` refuses
    thousands of digits.
    """
    if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def json_value(text: str | bytes, max_nesting: int | None = MAX_NESTING) -> Any:
    """A value in JSON; raises ValueError, also for nesting that recursive code could not take."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    depth = 0
    while level and max_nesting is not None:
        level = [child for each in level for child in _children(each)]
        depth += 1
        if depth > max_nesting:
            raise ValueError(f"it is nested more than {max_nesting} levels deep")
    return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
