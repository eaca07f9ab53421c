"""Suggestions for names that do not exist: existing names that are spelled alike."""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_COMPARED = 2_000
"""How many names are compared: an error need not take seconds in a repository of millions."""
_LONGEST = 200
"""Longer names are no typing errors."""
_SHOWN = 5


def suggestion(name: str, known: Iterable[str], what: str = "there are") -> str:
    """The end of a message about a missing name: names like it, else some of those there are.

    >>> suggestion("mian", ["experiment", "main"])
    "; did you mean 'main'?"
    >>> suggestion("v7", ["experiment", "main"], "branches are")
    "; branches are 'experiment', 'main'"
    """
    names = sorted(islice(known, _COMPARED))
    if len(name) <= _LONGEST:
        by_lower_case = {each.lower(): each for each in reversed(names)}
        near = difflib.get_close_matches(name.lower(), by_lower_case, n=3)
        if near:
            return f"; did you mean {' or '.join(repr(by_lower_case[each]) for each in near)}?"
    if not names:
        return ""
    more = ", …" if len(names) > _SHOWN else ""
    return f"; {what} {', '.join(map(repr, names[:_SHOWN]))}{more}"
