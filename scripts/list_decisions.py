"""Number the decision records without gaps, and list them: `make decisions`.

They are listed in their index and in the navigation of the site.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "decisions"
INDEX, NAVIGATION = FOLDER / "index.md", ROOT / "mkdocs.yml"


def names() -> list[str]:
    """The files of the records, in order."""
    return sorted(path.name for path in FOLDER.glob("[0-9]*.md"))


def numbered(records: list[str]) -> dict[str, str]:
    """Each file by the name it should have: numbers from 1 on, in the present order."""
    return {
        name: f"{number:04}-{name.split('-', 1)[1]}" for number, name in enumerate(records, start=1)
    }


def renamed(text: str, new_names: dict[str, str]) -> str:
    """The text with links to records by their new names, and their numbers in the link texts."""
    for old, new in new_names.items():
        if old == new or old not in text:
            continue
        before, after = int(old.split("-")[0]), int(new.split("-")[0])
        pattern = rf"(\[[^\]\[]*?)\b{before}(\]\([^)]*{re.escape(old)})"
        text = re.sub(pattern, rf"\g<1>{after}\g<2>", text).replace(old, new)
    return text


def close_gaps() -> None:
    """Rename records so that their numbers have no gaps, with every reference in the repository."""
    new_names = numbered(names())
    moved = {old: new for old, new in new_names.items() if old != new}
    if not moved:
        return
    tracked = subprocess.run(
        ["git", "grep", "--untracked", "-lE", "[0-9]{4}-[a-z-]+[.]md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for path in (ROOT / line for line in tracked.stdout.splitlines()):
        text = path.read_text()
        if (new_text := renamed(text, moved)) != text:
            path.write_text(new_text)
    for old, new in moved.items():
        heading, _, body = (FOLDER / old).read_text().partition("\n")
        title = heading.split(". ", 1)[1]
        (FOLDER / old).unlink()
        (FOLDER / new).write_text(f"# {int(new.split('-')[0])}. {title}\n{body}")


def replaced(text: str, pattern: str, lines: list[str]) -> str:
    """The text with new lines where lines of that pattern were."""
    first = re.search(pattern, text, re.MULTILINE)
    start = first.start() if first else len(text)
    before, after = text[:start], re.sub(pattern, "", text[start:], flags=re.MULTILINE)
    return before + "".join(f"{line}\n" for line in lines) + after


def listed() -> dict[Path, str]:
    """Both files as they should be."""
    records = names()
    titles = [(FOLDER / name).read_text().splitlines()[0].removeprefix("# ") for name in records]
    index = [f"- [{title}]({name})" for title, name in zip(titles, records, strict=True)]
    navigation = [f"      - decisions/{name}" for name in records]
    return {
        INDEX: replaced(INDEX.read_text(), r"^- \[\d+\..+\]\(\d.+\.md\)\n", index),
        NAVIGATION: replaced(NAVIGATION.read_text(), r"^ +- decisions/\d.+\.md\n", navigation),
    }


if __name__ == "__main__":
    close_gaps()
    for path, text in listed().items():
        path.write_text(text)
