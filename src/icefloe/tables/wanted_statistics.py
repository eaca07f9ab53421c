"""Which of the arrays that a job writes get statistics of their chunks."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypeAlias

from icefloe.errors import InvalidInputError
from icefloe.model import paths
from icefloe.tables.columns import variable_of
from icefloe.tables.summarizing import has_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icefloe.session import Session
    from icefloe.tables.columns import Variable

Wanted: TypeAlias = "bool | str | Sequence[str]"
"""Which arrays of a job get statistics: all or none of them, or some by name."""


def wanted_arrays(
    session: Session, given: Wanted, written: Iterable[str], group: str = "/"
) -> tuple[str, ...]:
    """Which of the arrays that a job writes are to have statistics.

    Args:
        session: Has the arrays.
        given: All of them that have more than one chunk (of numbers), none, or some by name.
        written: Paths of the arrays.
        group: What names are relative to.
    """
    if given is False:
        return ()
    root = session.get_node(paths.ROOT)
    beside_root = root is None or not root.is_array
    known = {path: variable_of(session, path) for path in written if beside_root}
    numbers = [path for path, variable in known.items() if has_numbers(variable.decoding)]
    if given is True:
        return tuple(path for path in numbers if chunk_count(known[path]) > 1)
    named = [given] if isinstance(given, str) else list(given)
    chosen = []
    for name in named:
        inside = paths.canonical(f"{group.rstrip('/')}/{name.lstrip('/')}")
        path = inside if inside in known else paths.canonical(name)
        if path not in numbers:
            raise InvalidInputError(
                f"no statistics of {name!r}: they are made of arrays of numbers that the tasks of "
                f"this job write, which are {', '.join(sorted(numbers)) or 'none'}"
            )
        chosen.append(path)
    return tuple(dict.fromkeys(chosen))


def chunk_count(variable: Variable) -> int:
    """How many chunks the grid of an array has."""
    return prod(-(-size // unit) for size, unit in zip(variable.shape, variable.units, strict=True))
