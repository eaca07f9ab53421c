"""The site: every public name has its place in the reference, and drawings say what pages say."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import yaml

from icefloe import errors
from scripts import check_links, draw_performance, write_api_pages

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_the_api_pages_are_those_of_the_public_names() -> None:
    texts = write_api_pages.pages()
    assert {path: path.read_text() for path in write_api_pages.FOLDER.glob("*.md")} == texts, (
        "run `make api`"
    )


def test_every_public_name_is_on_exactly_one_page_of_the_api() -> None:
    listed = [
        path
        for page in write_api_pages.FOLDER.glob("*.md")
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(listed) == sorted(set(write_api_pages.public_names().values()))


def test_every_error_is_explained_on_the_page_of_errors() -> None:
    classes = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.IcefloeError)
    ]
    explained = re.findall(r"^\| `(\w+)` \|", (REFERENCE / "errors.md").read_text(), re.MULTILINE)
    assert sorted([*explained, "IcefloeError"]) == sorted(classes)


def test_the_plots_show_the_tables_of_the_performance_page() -> None:
    for path, picture in draw_performance.pictures().items():
        assert path.read_text() == picture, f"{path.name}: run `make plots`"


def test_times_in_tables_are_understood() -> None:
    assert draw_performance.seconds_in("1.9, 0.83 s") == [1.9, 0.83]
    assert draw_performance.seconds_in("**15 to 21 ms**") == pytest.approx([0.018])
    assert draw_performance.seconds_in("1.7 MB") == []


def test_the_navigation_lists_no_page_twice_and_none_that_is_missing() -> None:
    def pages(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case dict():
                return [page for value in entry.values() for page in pages(value)]
            case list():
                return [page for value in entry for page in pages(value)]
        return []

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(listed) == len(set(listed))
    assert [page for page in listed if not (ROOT / "docs" / page).exists()] == []


def test_the_link_checker_finds_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">good</a><a href="b.html#gone">bad</a><img src="none.png">'
        '<a href="https://example.org/">elsewhere</a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1><a href="a.html">back</a>')
    broken, looked_at = check_links.broken_links(tmp_path)
    assert looked_at == 4
    assert broken == [
        "a.html: https://example.org/x.js is fetched from another server",
        "a.html: no anchor b.html#gone",
        "a.html: none.png does not exist",
    ]


def test_the_proofs_of_claims_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "claims.md").read_text()
    proofs = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert len(proofs) > 40
    assert [proof for proof in proofs if not (ROOT / proof).is_file()] == []
    for line in re.findall(r"^\| (?!claim|--)(.+) \| (.+) \|$", page, re.MULTILINE):
        assert re.search(r"`(tests/|make )", line[1]), line[0]


def test_phrases_to_avoid_are_avoided() -> None:
    """Some of those of CONTRIBUTING.md, which cannot be right in any context."""
    phrases = re.compile(
        r"\b(came by|for ever|(is|are) told|in the making|as ever|world is wrong|anew|if need be|"
        r"goes on|puts right|all is well|what is there)\b"
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    generated = "requirements.md"  # its rows are named after tests
    users = [page for page in pages if "decisions" not in page.parts and page.name != generated]
    found = [
        (page.name, match[0]) for page in users for match in phrases.finditer(page.read_text())
    ]
    assert found == []
