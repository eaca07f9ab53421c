"""The regular expressions of a configuration: the one place that compiles and applies them.

They come from files that anyone may have written, and with Python's own engine a short hostile
expression keeps every reader of a repository busy forever. RE2 takes time in proportion to the
text, whatever the expression; it has no backreferences and no lookaround.

Expressions such as `.*/time`, which the defaults are made of, are matched without it, so that most
processes never load RE2.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PATTERN_LENGTH = 1_000
"""Longer expressions are refused."""

_SUFFIX = re.compile(r"\.\*([\w/ -]*)", re.ASCII)


def pattern_error(regex: str) -> str | None:
    """What is wrong with a regular expression; None if it is valid."""
    if _suffix(regex) is not None:
        return None
    compiled = _compiled(regex)
    return compiled if isinstance(compiled, str) else None


def occurs_in(regex: str, text: str) -> bool:
    """Whether the regex matches somewhere in the text; an invalid one never does."""
    compiled = _compiled(regex)
    return not isinstance(compiled, str) and compiled.search(text) is not None


def matches_whole(regex: str, text: str) -> bool:
    """Whether the regex matches the whole text (H-40); an invalid one never does."""
    if (suffix := _suffix(regex)) is not None:
        return text.endswith(suffix) and "\n" not in text
    compiled = _compiled(regex)
    return not isinstance(compiled, str) and compiled.fullmatch(text) is not None


def matching(regexes: Iterable[str], texts: Iterable[str]) -> list[str]:
    """The texts that any of the regexes matches as a whole."""
    patterns = list(regexes)
    if are_suffixes(patterns):
        suffixes = tuple(filter(None, map(_suffix, patterns)))
        texts = list(texts)
        # Of thousands of paths, when a session starts, mostly none: one search sees it.
        joined = "\0".join(texts) + "\0"
        if not any(f"{suffix}\0" in joined for suffix in suffixes):
            return []
        texts = [text for text in texts if text.endswith(suffixes)]
    return [text for text in texts if any(matches_whole(each, text) for each in patterns)]


def are_suffixes(regexes: Iterable[str]) -> bool:
    """Whether all of them only compare how a text ends, so that thousands are matched at once."""
    return all(map(_suffix, regexes))


@lru_cache(maxsize=1_024)
def _suffix(regex: str) -> str | None:
    """The literal that a regex such as `.*/time` wants at the end; None for all other regexes."""
    match = _SUFFIX.fullmatch(regex) if len(regex) <= MAX_PATTERN_LENGTH else None
    return None if match is None else match[1]


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
