"""Canonical node paths: absolute, `/`-separated, `/` for the root (R2-35)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.errors import InvalidInputError, InvalidTypeError
from icefloe.model.bounded_text import described

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = "/"
MAX_PATH_BYTES = 65_535
DERIVED_GROUP = "/.statistics"
"""Values computed from chunks, which they name: they may be left out, and are never wrong."""


def canonical(path: str) -> str:
    """The canonical form of a user's path, e.g. `a/b/` → `/a/b`.

    Raises InvalidInputError for segments that no node can have, InvalidTypeError for no string.
    """
    if not isinstance(path, str):
        raise InvalidTypeError(f"a path is a string, found {described(path)}")
    stripped = path.strip("/")
    if not stripped:
        return ROOT
    result = "/" + stripped
    check_canonical(result)
    return result


def check_canonical(path: str) -> None:
    """Raise InvalidInputError unless `path` is canonical."""
    if path == ROOT:
        return
    if not path.startswith("/"):
        raise InvalidInputError(f"a node path starts with '/', found {path!r}")
    try:
        encoded = path.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"a node path is valid Unicode, found {path!r}: {error}") from None
    if "\0" in path or len(encoded) > MAX_PATH_BYTES:
        raise InvalidInputError(f"a node path has no NUL and at most {MAX_PATH_BYTES} bytes")
    for segment in path[1:].split("/"):
        if segment in {"", ".", ".."}:
            raise InvalidInputError(
                f"a node path has no empty, '.' or '..' segments, found {path!r}"
            )


def parent(path: str) -> str | None:
    """The path of the enclosing group; None for the root."""
    if path == ROOT:
        return None
    head, _, _ = path.rpartition("/")
    return head or ROOT


def above(path: str) -> Iterator[str]:
    """The paths of the enclosing groups, the innermost first."""
    place = parent(path)
    while place is not None:
        yield place
        place = parent(place)


def name(path: str) -> str:
    """The last segment; empty for the root."""
    return path.rpartition("/")[2]


def child_prefix(path: str) -> str:
    """The prefix of the paths of all descendants."""
    return ROOT if path == ROOT else path + "/"


def is_within(path: str, ancestor: str) -> bool:
    """Whether `path` is `ancestor` or below it."""
    return path == ancestor or path.startswith(child_prefix(ancestor))
