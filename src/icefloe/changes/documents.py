"""Compares and merges zarr.json documents by meaning, not by spelling.

Documents are JSON: white space, the order of keys and whether attributes are in a file of their own
mean nothing. Of a key that occurs twice the last one counts, as it does for zarr. All functions
take whole documents, with their attributes; see `Node.outline` where these are not needed.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icefloe.errors import FormatError
from icefloe.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

_ABSENT: Any = object()
ATTRIBUTES = "attributes"


class DocumentConflict(Record, frozen=True):
    """A key that both sides changed to different values."""

    key: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.key}: ours {_shown(self.ours)}, theirs {_shown(self.theirs)}"


def merge_documents(
    base: bytes, ours: bytes, theirs: bytes, settled: dict[str, Any] | None = None
) -> tuple[bytes, list[DocumentConflict]]:
    """Merge what two sides made of a document.

    Attributes are merged by their key, all else by its key at the top level. What one side alone
    changed is taken; equal changes of both sides are one.

    Args:
        base: The document that both started from.
        ours: What we made of it.
        theirs: What they made of it.
        settled: Values of keys at the top level that were decided otherwise.

    Returns:
        The merged document, with their value where there is a conflict, and the conflicts.
    """
    resolved = settled or {}
    conflicts: list[DocumentConflict] = []
    own_way = {ATTRIBUTES, *resolved}
    with _reading():
        first, mine, other = map(parsed, (base, ours, theirs))
        merged = _merge(first, mine, other, "", own_way, conflicts)
        sides = [side.get(ATTRIBUTES) or {} for side in (first, mine, other)]
        attributes = _merge(sides[0], sides[1], sides[2], f"{ATTRIBUTES}.", set(), conflicts)
        if attributes or ATTRIBUTES in other:
            merged[ATTRIBUTES] = attributes
        return json.dumps({**merged, **resolved}, indent=2).encode(), conflicts


def parsed(document: bytes) -> dict[str, Any]:
    """What a document says; raises FormatError unless it is a JSON object."""
    with _reading():
        content = json.loads(document)
    if not isinstance(content, dict):
        raise _not_json(f"an object was expected, found {document[:40]!r}")
    return content


def same_document(left: bytes, right: bytes) -> bool:
    """Whether two documents mean the same."""
    return left == right or not differing_keys(left, right)


def differing_keys(left: bytes, right: bytes) -> set[str]:
    """The keys at the top level whose values are not the same."""
    with _reading():
        mine, other = parsed(left), parsed(right)
        return {
            key
            for key in {*mine, *other}
            if not _same(mine.get(key, _ABSENT), other.get(key, _ABSENT))
        }


@contextmanager
def _reading() -> Iterator[None]:
    """Raise FormatError for what is not JSON, such as attributes in a file that was damaged."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise _not_json(str(error)) from error


def _not_json(reason: str) -> FormatError:
    return FormatError(
        f"a zarr.json cannot be compared with another one: it is not valid JSON ({reason}); "
        "write the metadata of the node again"
    )


def _merge(
    base: dict[str, Any],
    ours: dict[str, Any],
    theirs: dict[str, Any],
    prefix: str,
    left_out: set[str],
    conflicts: list[DocumentConflict],
) -> dict[str, Any]:
    merged = {}
    for key in dict.fromkeys((*theirs, *ours)):
        if key in left_out:
            continue
        first, mine, other = (side.get(key, _ABSENT) for side in (base, ours, theirs))
        value = other
        if _same(first, other):
            value = mine
        elif not _same(first, mine) and not _same(mine, other):
            conflicts.append(DocumentConflict(prefix + key, _plain(mine), _plain(other)))
        if value is not _ABSENT:
            merged[key] = value
    return merged


def _same(left: Any, right: Any) -> bool:
    """Equality by which 1, 1.0 and true differ, and NaN equals NaN."""
    if left is _ABSENT or right is _ABSENT:
        return left is right
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _plain(value: Any) -> Any:
    return None if value is _ABSENT else value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
