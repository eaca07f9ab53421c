"""Selects arrays by path, by a group that contains them, or by a pattern."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from icefloe.errors import NodeNotFoundError
from icefloe.model.paths import ROOT, is_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    ArrayChoice = str | Iterable[str] | None

_ALL = "/*"
_SHOWN = 5


def chosen_arrays(choice: ArrayChoice, paths: Iterable[str]) -> list[str]:
    """Those of the arrays at `paths` that are chosen.

    Args:
        choice: Paths of arrays or groups, or patterns such as `/era5/t*`, one or many; None for
            all arrays.
        paths: Canonical paths of all arrays that there are.

    Raises:
        NodeNotFoundError: One of the given names means no array: it may be misspelled.
    """
    there = list(paths)
    if choice is None:
        return there
    given = [choice] if isinstance(choice, str) else list(choice)
    patterns = [f"/{name.strip('/')}" for name in given]
    for name, pattern in zip(given, patterns, strict=True):
        if pattern not in (ROOT, _ALL) and not any(_means(pattern, path) for path in there):
            raise NodeNotFoundError(
                f"node not found: no array is at {name!r}, below it or fits it as a pattern; "
                f"there are {_some(there)}",
                name,
            )
    return [path for path in there if any(_means(pattern, path) for pattern in patterns)]


def _means(pattern: str, path: str) -> bool:
    return is_within(path, pattern) or fnmatchcase(path, pattern)


def _some(paths: Sequence[str]) -> str:
    if not paths:
        return "no arrays"
    more = f" and {len(paths) - _SHOWN} others" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more
