"""List the decision records in their index and in the navigation of the site: `make decisions`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "decisions"
INDEX, NAVIGATION = FOLDER / "index.md", ROOT / "mkdocs.yml"


def replaced(text: str, pattern: str, lines: list[str]) -> str:
    """The text with new lines where lines of that pattern were."""
    first = re.search(pattern, text, re.MULTILINE)
    start = first.start() if first else len(text)
    before, after = text[:start], re.sub(pattern, "", text[start:], flags=re.MULTILINE)
    return before + "".join(f"{line}\n" for line in lines) + after


def listed() -> dict[Path, str]:
    """Both files as they should be."""
    records = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))
    titles = [(FOLDER / name).read_text().splitlines()[0].removeprefix("# ") for name in records]
    index = [f"- [{title}]({name})" for title, name in zip(titles, records, strict=True)]
    navigation = [f"      - decisions/{name}" for name in records]
    return {
        INDEX: replaced(INDEX.read_text(), r"^- \[\d+\..+\]\(\d.+\.md\)\n", index),
        NAVIGATION: replaced(NAVIGATION.read_text(), r"^ +- decisions/\d.+\.md\n", navigation),
    }


if __name__ == "__main__":
    for path, text in listed().items():
        path.write_text(text)
