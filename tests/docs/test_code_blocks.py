"""Every Python block of the README and of the documentation runs, and prints what it says.

The blocks of one page run in order, in one namespace, in an empty folder. A `text` block directly
after a Python block is its expected output; `...` in it stands for anything. Pages may also
mention `make` targets and files: these must exist.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
)
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)\b")


class Block(NamedTuple):
    language: str
    code: str
    line: int
    follows_directly: bool


def blocks_of(text: str) -> list[Block]:
    blocks = []
    previous_end = 0
    for match in FENCE.finditer(text):
        indent, language, body = match.groups()
        code = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        follows_directly = text[previous_end : match.start()].strip() == "" and previous_end > 0
        line = text.count("\n", 0, match.start()) + 2
        blocks.append(Block(language, code, line, follows_directly))
        previous_end = match.end()
    return blocks


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_python(pages: list[Path]) -> list[Path]:
    return [p for p in pages if any(b.language == "python" for b in blocks_of(p.read_text()))]


# What pyspark warns about is not ours to mend.
@pytest.mark.filterwarnings("ignore::FutureWarning:pyspark.*")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("page", with_python(PAGES), ids=page_id)
def test_python_blocks_of_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page_under_test")  # a real one, so that functions of a page can be pickled
    monkeypatch.setitem(sys.modules, module.__name__, module)
    blocks = blocks_of(page.read_text())
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language != "python":
            continue
        # Newlines in front make line numbers in tracebacks those of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, vars(module))
        if following is not None and following.language == "text" and following.follows_directly:
            assert_printed(following.code, printed.getvalue(), page, following.line)


def assert_printed(expected: str, printed: str, page: Path, line: int) -> None:
    def trimmed(text: str) -> str:
        return "\n".join(row.rstrip() for row in text.strip().splitlines()) + "\n"

    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(trimmed(expected), trimmed(printed), options):
        pytest.fail(f"{page_id(page)}:{line} says\n{expected}\nbut this was printed\n{printed}")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_and_make_targets_of_page_exist(page: Path) -> None:
    text = page.read_text()
    prose = FENCE.sub("", text)
    broken = [link for link in LINK.findall(prose) if not (page.parent / link).exists()]
    assert broken == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"`([^`\n]+)`", prose)
    commands += [block.code for block in blocks_of(text) if block.language == "sh"]
    assert set(MAKE.findall("\n".join(commands))) <= targets


def test_the_readme_has_code_that_is_run() -> None:
    assert ROOT / "README.md" in with_python(PAGES)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = set(re.findall(r"(?:- |: )(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in sorted(pages) if page not in navigation] == []
