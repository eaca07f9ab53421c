"""The tests that the documentation names as proof of its promises are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_ROW = "| guarantee | shown by |\n|--|--|\n"


@pytest.mark.parametrize("name", ["transactions", "concurrency", "maintenance"])
def test_every_promise_names_a_test_that_exists(name: str) -> None:
    page = (ROOT / "docs" / "explanation" / f"{name}.md").read_text()
    table = page.split(FIRST_ROW)[1].split("\n\n")[0]
    rows = table.splitlines()
    assert len(rows) >= 5
    for row in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert files, row
        text = "".join((ROOT / file).read_text() for file in files)
        for name in re.findall(r"`(test_\w+)`", row):
            assert f"def {name}(" in text, name
