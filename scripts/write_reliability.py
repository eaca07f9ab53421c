"""Write the counts of a deep test run, with their date, into docs/explanation/reliability.md.

    .venv/bin/python scripts/write_reliability.py build/deep-tests.json build/mutants.json

The first file is what pytest leaves under ICEFLOE_TEST_COUNTS, the second the summary of
scripts/run_mutants.py. `make test-deep` runs all three.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "reliability.md"
BEGIN = "<!-- Counts of a deep run, written by scripts/write_reliability.py. -->"
END = "<!-- End of the counts. -->"


def table(tests: dict[str, Any], mutants: dict[str, int], day: date) -> str:
    """The counts as Markdown; `tests` has `counts`, and `seconds` by folder."""
    lines = [f"Counted on {day.isoformat()}:", "", "| what | how many |", "|--|--:|"]
    lines += [f"| {name} | {number:,} |" for name, number in tests["counts"].items()]
    lines += [f"| {name} | {number:,} |" for name, number in mutants.items()]
    lines += ["", "| folder | minutes of work |", "|--|--:|"]
    lines += [
        f"| `{folder}` | {seconds / 60:,.1f} |"
        for folder, seconds in tests["seconds"].items()
        if seconds >= 30
    ]
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """The page with another table between the marks."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"{PAGE.name} has the marks of the counts exactly once")
    return pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page)


def main(arguments: list[str]) -> int:
    tests, mutants = (json.loads(Path(each).read_text(encoding="utf-8")) for each in arguments)
    text = table(tests, mutants, datetime.now(UTC).date())
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
