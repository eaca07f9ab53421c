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


def test_numbers_have_no_gaps() -> None:
    numbers = [int(name.split("-")[0]) for name in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1)), "run `make decisions`"
    assert [int(title_of(name).split(".")[0]) for name in RECORDS] == numbers


def test_a_gap_is_closed_with_its_references() -> None:
    new_names = list_decisions.numbered(["0001-a.md", "0003-b.md", "0003-c.md", "0069-d.md"])
    assert list(new_names.values()) == ["0001-a.md", "0002-b.md", "0003-c.md", "0004-d.md"]
    text = "see [69](0069-d.md), [decision 3](../decisions/0003-b.md) and 3 others [3](0003-c.md)"
    assert list_decisions.renamed(text, new_names) == (
        "see [4](0004-d.md), [decision 2](../decisions/0002-b.md) and 3 others [3](0003-c.md)"
    )


def test_references_name_the_file_of_a_record() -> None:
    # A number alone would be wrong after records were renumbered.
    paths = [path for suffix in ("md", "py", "yml", "toml") for path in ROOT.glob(f"*.{suffix}")]
    for folder in ("src", "tests", "scripts", "docs", "examples", "benchmarks"):
        paths += [path for suffix in ("md", "py") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    texts = {path: path.read_text() for path in paths if path != Path(__file__)}
    bare = re.compile(r"\bdecisions? \d+(?!\d*\]\()", re.IGNORECASE)
    assert not {path.name: bare.findall(text) for path, text in texts.items() if bare.search(text)}
    assert sum(len(re.findall(r"\d{4}-[a-z-]+\.md", text)) for text in texts.values()) > len(
        RECORDS
    )


def test_references_lead_to_a_record() -> None:
    for folder in ("src", "tests", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != Path(__file__):
                names = re.findall(r"\b0\d{3}-[a-z0-9-]+\.md", path.read_text())
                assert set(names) <= set(RECORDS), path
