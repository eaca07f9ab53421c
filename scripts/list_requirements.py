"""Write docs/reference/requirements.md: which test shows which requirement of the specifications.

    .venv/bin/python scripts/list_requirements.py           # write the page anew
    .venv/bin/python scripts/list_requirements.py --check   # fail if it is stale, or a test is lost

The requirements are rows of tests/requirements.csv. A test says what it shows by naming numbers in
a comment or a docstring: `# R4-52`, `R4-29 to R4-32`, `R0-47` for all of R0-47a to R0-47o. A mark
belongs to the test function that it is in (with its decorators and the comment just above them), or
to the class or the module in whose docstring it is. Marks anywhere else do not count.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tests" / "requirements.csv"
PAGE = ROOT / "docs" / "reference" / "requirements.md"
SUITES = ("tests/**/test_*.py", "src/icefloe/testing/*.py")

NOT_YET: dict[str, str] = {}
"""Rows that must hold and have no test, with the reason; the check lets them pass until they do."""

BELOW_GENERATIONS: dict[str, str] = {
    "R0-13": "a storage reads ranges, whatever is kept there",
    "R3-13": "a storage shows what was written, whatever is kept there",
    "R3-14": "a storage creates a key once, whatever is kept there",
    "R3-15": "a storage reads ranges, whatever is kept there",
    "R3-16": "a storage deletes, whatever is kept there",
    "R3-17": "a storage lists in order, whatever is kept there",
    "R1-05": "these are the operations of a storage, whatever is kept there",
}
"""Rows about storages, on which all generations stand: their tests need open none of them."""

NEEDS_TEST = ("M", "D", "A")


def marks_of(sources: str) -> re.Pattern[str]:
    """What marks look like: a number, or the first and the last of a range."""
    number = rf"(?:{sources})-\d{{2,3}}[a-z]?"
    return re.compile(rf"\b({number})\b(?:(?: to |\.\.)({number}|\d{{2,3}})\b)?")


MARKS = marks_of("R[0-4]|H|F8")
SOURCES = {
    "R0": "The `dataset` generation (spec 000)",
    "R3": "The `store` generation (spec 003)",
    "R1": "The `repository` generation (spec 001)",
    "R2": "Files of the `repository` generation (spec 002)",
    "R4": "Manifest sets (spec 004)",
    "H": "What the specifications leave open",
    "F8": "The official formats (generation `icechunk`)",
}
KINDS = {
    "M": "must",
    "D": "follows",
    "S": "should",
    "O": "may",
    "T": "left open",
    "I": "to know",
    "H": "our answer",
    "A": "agreed with official",
}
HEAD = """# Requirements and their tests

<!-- Written by scripts/list_requirements.py from tests/requirements.csv and the tests. -->

This page lists every requirement of the specifications that icefloe implements, and the tests that
verify it. Requirements are numbered: `R0` to `R4` for the five documents, `H` for what they leave
open, `F8` for the interoperability of icefloe and the official package on that package's formats.
`make check` fails if a requirement that *must* hold, that *follows* from one, or that is *agreed
with official*, has no test. A class or a module means all of its tests.

A test that only names a number proves nothing, so two more checks exist:

- A requirement of one generation must be tested on that generation: `R0` on `dataset`, `R3` on
  `store`, `R1` and `R2` on `repository`. `make test` records which generation's code each of these
  tests calls, and fails if no test of a requirement calls into its generation. Requirements of the
  storage, which all generations share, are exempt.
- The tests must be able to fail. `tests/mutants` has a small bug for each requirement that must
  hold; `make mutants` applies one after the other to a copy of the source, and a test that names
  the requirement must fail. `make test` tries some of them, `make test-deep` all.
  [Reliability](../explanation/reliability.md) has the numbers.
"""


class Row(NamedTuple):
    """A requirement: its number, its kind (a key of KINDS), and what it asks for in our words."""

    number: str
    kind: str
    words: str


def read_rows() -> list[Row]:
    with ROWS.open(encoding="utf-8", newline="") as lines:
        return [Row(r["number"], r["kind"], r["words"]) for r in csv.DictReader(lines)]


def marks_in(text: str, order: dict[str, int]) -> set[str]:
    """The numbers that a text names; a range means every row between its ends."""
    found = set()
    numbers = list(order)
    for first, last in MARKS.findall(text):
        if not last:
            parts = [number for number in numbers if number[:-1] == first and number[-1].isalpha()]
            found.update(parts or [first])
            continue
        end = last if "-" in last else f"{first.split('-')[0]}-{last}"
        if first in order and end in order:
            found.update(numbers[order[first] : order[end] + 1])
        else:
            found.update((first, end))
    return found


def tests_in(path: Path) -> dict[str, str]:
    """The text in which marks count, for each test, test class and the module."""
    source = path.read_text(encoding="utf-8")
    if not MARKS.search(source):
        return {}
    lines = source.splitlines()
    tree = ast.parse(source)
    name = path.relative_to(ROOT).as_posix()
    texts = {name: ast.get_docstring(tree) or ""}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and ("Test" in node.name or "/testing/" in name):
            texts[f"{name}::{node.name}"] = ast.get_docstring(node) or ""
            for member in node.body:
                add_test(texts, f"{name}::{node.name}", member, lines)
        else:
            add_test(texts, name, node, lines)
    return texts


def add_test(texts: dict[str, str], owner: str, node: ast.stmt, lines: list[str]) -> None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if not node.name.startswith("test"):
        return
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    texts[f"{owner}::{node.name}"] = "\n".join(lines[first : node.end_lineno])


def find_tests(rows: list[Row]) -> dict[str, list[str]]:
    """The tests that name each number, as path::name, sorted."""
    order = {row.number: place for place, row in enumerate(rows)}
    held = defaultdict(set)
    for pattern in SUITES:
        for path in ROOT.glob(pattern):
            for test, text in tests_in(path).items():
                for number in marks_in(text, order):
                    held[number].add(test)
    return {number: sorted(tests) for number, tests in held.items()}


def page(rows: list[Row], held: dict[str, list[str]]) -> str:
    parts = [HEAD]
    for source, title in SOURCES.items():
        parts.append(f"\n## {title}\n\n| number | kind | what | shown by |\n|--|--|--|--|\n")
        for row in rows:
            if row.number.split("-")[0] != source:
                continue
            shown = "<br>".join(f"`{test}`" for test in held.get(row.number, []))
            if not shown and row.number in NOT_YET:
                shown = f"not yet: {NOT_YET[row.number]}"
            parts.append(f"| {row.number} | {KINDS[row.kind]} | {row.words} | {shown} |\n")
    return "".join(parts)


def problems(rows: list[Row], held: dict[str, list[str]]) -> list[str]:
    known = {row.number for row in rows}
    found = [
        f"{row.number} ({row.words}) has no test: mark the one that shows it with `# {row.number}`"
        for row in rows
        if row.kind in NEEDS_TEST and row.number not in held and row.number not in NOT_YET
    ]
    found += [f"{n} has a test now: take it from NOT_YET" for n in NOT_YET if n in held]
    found += [
        f"{number} is no row of tests/requirements.csv, but {held[number][0]} names it"
        for number in sorted(held.keys() - known)
    ]
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(rows, held):
        found.append(f"{PAGE.relative_to(ROOT)} is out of date: run scripts/list_requirements.py")
    return found


def main(arguments: list[str]) -> int:
    rows = read_rows()
    held = find_tests(rows)
    if "--check" not in arguments:
        PAGE.write_text(page(rows, held), encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)}: {len(rows)} requirements")
    found = problems(rows, held)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
