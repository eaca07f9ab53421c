"""The tests that the documentation names as proof of its promises are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "maintenance.md"


def test_every_promise_names_a_test_that_exists() -> None:
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("| ")][2:]
    assert len(rows) > 10
    for row in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert files, row
        text = "".join((ROOT / file).read_text() for file in files)
        for name in re.findall(r"`(test_\w+)`", row):
            assert f"def {name}(" in text, name
