"""Docstrings, comments and messages avoid the phrases of the table in CONTRIBUTING."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "icefloe"

INSTEAD = {
    r"(for|as) ever": "always, never",
    r"says which": "has, lists, returns which",
    r"(is|are) told": "gets, raises",
    r"what is there|what nothing (reaches|refers to)": "the existing array, unreachable objects",
    r"of ours": "icefloe's, our",
    r"under way": "in progress",
    r"goes on|comes? back": "continues, is returned",
    r"once more|anew|if need be": "again, if necessary",
    r"also (if|while)": "even if, even while",
    r"takes? over|puts? (together|right)": "includes, combines, repairs",
    r"stands? for|where .* stands": "means, replaces, points",
    r"(lies?|stands?) (at|in|on|below|behind|inside|end to end|there|under)": "is in, is stored in",
    r"the world is|knows? nothing of": "the storage failed, does not depend on",
    r"rooms (above|below|of)|these (two )?rooms": "packages",
    r"at a place|of a place": "at a location",
}
"""What not to write, as expressions, and what to write instead."""
_AVOIDED = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in INSTEAD), re.IGNORECASE)
_MODULE = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`")


def matches(expression: re.Pattern[str], source: str) -> Iterator[tuple[int, re.Match[str]]]:
    """What an expression finds in strings and comments, with the number of the line."""
    if expression.search(source) is None:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield from ((number, match) for match in expression.finditer(line))


def instead_of(phrase: str) -> str:
    return next(words for avoided, words in INSTEAD.items() if re.fullmatch(avoided, phrase, re.I))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Chunks lie in packs."""\n', [(1, "lie in")]),
        ("x = 1  # as ever\n", [(1, "as ever")]),
        ('def f():\n    """Read.\n\n    It goes on.\n    """\n', [(4, "goes on")]),
        ('raise ValueError(f"{x} lies in wait")\n', [(1, "lies in")]),
        ("lies = at(1)\n", []),
        ('"""Works for every array, and for forever."""\n', []),
    ],
)
def test_phrases_are_noticed_in_strings_and_comments(
    source: str, found: list[tuple[int, str]]
) -> None:
    assert [(line, match.group()) for line, match in matches(_AVOIDED, source)] == found


def test_docstrings_comments_and_messages_are_plain_english() -> None:
    phrases = [
        f"{path.relative_to(ROOT)}:{line}: {match.group()!r}, write: {instead_of(match.group())}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, match in matches(_AVOIDED, path.read_text())
    ]
    assert phrases == []


def test_modules_that_docstrings_name_exist() -> None:
    stale = [
        f"{path.relative_to(ROOT)}:{line}: {match[1]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, match in matches(_MODULE, path.read_text())
        if not any((folder / match[1]).exists() for folder in (PACKAGE, *path.parents))
        and not any(path.parent.glob(f"*/{match[1]}"))
    ]
    assert stale == []
