"""Every decision record is listed once, in the order of the numbers, under its own title."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import list_decisions

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))


def title_of(name: str) -> str:
    return (FOLDER / name).read_text().splitlines()[0].removeprefix("# ")


def test_the_index_lists_each_record_under_its_title() -> None:
    index = (FOLDER / "index.md").read_text()
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", index, re.MULTILINE)
    assert listed == [(title_of(name), name) for name in RECORDS]


def test_the_site_lists_each_record() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert re.findall(r"^ +- decisions/(\d.+\.md)$", navigation, re.MULTILINE) == RECORDS


def test_both_lists_are_what_the_script_writes() -> None:
    for path, text in list_decisions.listed().items():
        assert path.read_text() == text, "run `make decisions`"


def test_numbers_are_used_once() -> None:
    numbers = [int(name.split("-")[0]) for name in RECORDS]
    assert numbers == sorted(set(numbers))
