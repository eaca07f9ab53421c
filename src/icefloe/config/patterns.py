"""The regular expressions of a configuration: the one place that compiles and applies them.

They come from files that anybody may have written, and with Python's own engine a short hostile
expression keeps every reader of a repository busy for ever. RE2 takes time in proportion to the
text, whatever the expression; it has no backreferences and cannot look around.
"""

from __future__ import annotations

import re
from functools import lru_cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PATTERN_LENGTH = 1_000
"""Longer ones are refused: they come from files, and files may lie."""


def pattern_error(regex: str) -> str | None:
    """What is wrong with a regular expression; None if it is one."""
    compiled = _compiled(regex)
    return compiled if isinstance(compiled, str) else None


def found(regex: str, text: str) -> bool:
    """Whether the regex occurs in the text; never, if it is no regex."""
    compiled = _compiled(regex)
    return not isinstance(compiled, str) and compiled.search(text) is not None


def matches_whole(regex: str, text: str) -> bool:
    """Whether the regex describes the whole text (H-40); never, if it is no regex."""
    if regex == ".*":
        return "\n" not in text  # the usual one
    compiled = _compiled(regex)
    return not isinstance(compiled, str) and compiled.fullmatch(text) is not None


def matching(regexes: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Those of many texts that any of some regexes describes as a whole."""
    valid = [each for each in regexes if pattern_error(each) is None]
    if are_endings(valid):
        endings = tuple(map(_ending, valid))
        # Thousands of paths are looked through when a session starts.
        texts = filter(methodcaller("endswith", endings), texts)
    return [text for text in texts if any(matches_whole(each, text) for each in valid)]


def are_endings(regexes: Iterable[str]) -> bool:
    """Whether texts are told by how they end, so that thousands are looked through in no time."""
    return all(map(_ending, regexes))


_ENDING = re.compile(r"\.\*([\w/ -]+)", re.ASCII)


def _ending(regex: str) -> str:
    """The plain text that all texts end with which the regex describes, where that is plain."""
    found = _ENDING.fullmatch(regex)
    return "" if found is None else found[1]


@lru_cache(maxsize=1_024)
def _compiled(regex: str) -> Any:
    """The compiled expression, or why there is none."""
    if len(regex) > MAX_PATTERN_LENGTH:
        return f"it has {len(regex)} characters, more than {MAX_PATTERN_LENGTH}"
    import re2  # not at the top: most processes never see an expression

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it is not valid"
        return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    except UnicodeEncodeError:
        return "it has characters that are not valid Unicode"
