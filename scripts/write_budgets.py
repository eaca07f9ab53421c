"""Count the requests of all operations again, and write them where tests and readers find them.

    .venv/bin/python -m scripts.write_budgets

writes tests/budgets/budgets.csv, which the tests compare with what operations do, and the table in
docs/reference/round-trips.md. `make budgets` runs it, after a change that needs other budgets.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from tests.budgets.budgets import FILE, OFFICIAL, REASONS, Budget, Budgets, read_budgets
from tests.budgets.operations import OPERATIONS, Scene, count
from tests.formats import ALL_GENERATIONS, chosen

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "round-trips.md"
BEGIN = "<!-- Budgets, written by scripts/write_budgets.py. -->"
END = "<!-- End of the budgets. -->"


def measure() -> Budgets:
    """The budget of each operation on each generation, as it is now."""
    before = read_budgets() if FILE.exists() else {}
    found: Budgets = {}
    for generation in ALL_GENERATIONS:
        with chosen(generation):
            scene = Scene()
            for name in OPERATIONS:
                counts = count(scene, name)
                found[name, generation] = Budget.of(counts, before.get((name, generation)))
    return found


def table(budgets: Budgets) -> str:
    """The budgets as Markdown: requests and rounds by generation, and of the official package."""
    lines = [
        "| operation | " + " | ".join(f"`{each}`" for each in ALL_GENERATIONS) + " | official |",
        "|--|" + "--:|" * (len(ALL_GENERATIONS) + 1),
    ]
    for name in OPERATIONS:
        cells = [budgets[name, generation] for generation in ALL_GENERATIONS]
        lines.append(
            f"| {name} | "
            + " | ".join(f"{each.requests} in {each.rounds}" for each in cells)
            + f" | {_official(name)} |"
        )
    lines += ["", "Where icefloe needs more than the official package:", ""]
    for name, reason in REASONS.items():
        text = f"- *{_upper(name)}*: {reason}."
        lines += textwrap.wrap(text, 118, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def _official(name: str) -> str:
    found = OFFICIAL.get(name)
    return "" if found is None else f"{found.requests} in {found.rounds}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def with_table(page: str, text: str) -> str:
    """The page with another table between the marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    changed, found = pattern.subn(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page)
    if found != 1:
        raise ValueError(f"expected the marks of the budgets exactly once, found {found}")
    return changed


def main() -> None:
    """Measure, and write both files."""
    budgets = measure()
    lines = ["operation,generation,requests,rounds,kib_read,kib_written"]
    lines += [
        f'"{name}",{generation},{each.requests},{each.rounds},{each.kib_read},{each.kib_written}'
        for (name, generation), each in budgets.items()
    ]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(budgets)), encoding="utf-8")
    sys.stdout.write(table(budgets) + "\n")


if __name__ == "__main__":
    main()
