"""The counts of a deep run find their place in the page on reliability."""

from __future__ import annotations

from datetime import date

import pytest

from scripts import write_reliability
from scripts.write_reliability import BEGIN, END, table, with_table

TESTS = {
    "counts": {"tests passed": 12_345, "crash points": 7},
    "seconds": {"tests/faults": 600, "tests/docs": 3},
}


def test_counts_stand_with_their_date() -> None:
    text = table(TESTS, {"mutants killed": 270}, date(2026, 1, 31))
    assert text.splitlines()[0] == "Counted on 2026-01-31:"
    assert "| tests passed | 12,345 |" in text
    assert "| mutants killed | 270 |" in text
    assert "| `tests/faults` | 10.0 |" in text
    assert "tests/docs" not in text, "folders of a few seconds are left out"


def test_the_page_has_the_place_for_them() -> None:
    page = write_reliability.PAGE.read_text(encoding="utf-8")
    once = with_table(page, "one")
    assert f"{BEGIN}\n\none\n\n{END}" in once
    assert with_table(once, "two") == with_table(page, "two")
    with pytest.raises(ValueError, match="exactly once"):
        with_table(page.replace(END, ""), "three")
