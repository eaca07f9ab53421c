"""Which strings are keys: one check, shared by every storage, so that all refuse the same ones."""

from __future__ import annotations

import re

from icefloe.errors import InvalidInputError

RESERVED_SEGMENT = ".icefloe-tmp"
"""Where local storage keeps its temporary files. No key may have a segment that starts so."""

# An empty, "." or ".." segment (which covers leading, trailing and doubled slashes), a control
# character, a lone surrogate (it has no UTF-8 form), or the reserved segment.
_FORBIDDEN = re.compile(
    r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f\ud800-\udfff]|(?:^|/)" + re.escape(RESERVED_SEGMENT)
)


def check_key(key: str) -> str:
    """Return `key` if it is a legal object key, else raise InvalidInputError."""
    if _FORBIDDEN.search(key):
        raise InvalidInputError(
            f"{key!r} is not a legal object key: expected segments joined by single slashes, none "
            f"of them empty, '.', '..' or starting with {RESERVED_SEGMENT!r}, and no control "
            "characters"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if keys can start with it, else raise InvalidInputError.

    A prefix is plain text, not a folder: "a/b" covers "a/b", "a/bc" and "a/b/c".
    """
    if prefix and _FORBIDDEN.search(prefix + "x"):
        raise InvalidInputError(
            f"{prefix!r} cannot start an object key: it has an empty, '.' or '..' segment, a "
            "control character or a reserved name"
        )
    return prefix


def check_folder(folder: str) -> str:
    """Return a folder's name with no slash at its end ("" for the root), else raise."""
    return check_key(folder.removesuffix("/")) if folder else ""


def check_range(key: str, start: int, length: int | None) -> None:
    """Refuse negative ranges."""
    if start < 0 or (length is not None and length < 0):
        raise InvalidInputError(
            f"cannot read {length} bytes of {key!r} from byte {start}: both must be at least 0"
        )
