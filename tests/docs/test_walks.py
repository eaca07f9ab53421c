"""The walks of ARCHITECTURE.md are those that the code takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.walks import WALKS

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = {
    "chunk": "A chunk is set through zarr",
    "commit": "A commit",
    "read": "A box is read through zarr",
    "ingest": "A file is ingested",
    "query": "A table is queried",
    "collection": "A garbage collection",
}
HOP = re.compile(r"^\d+\. (?:and )?`([\w.]+)`", re.MULTILINE)


def hops(heading: str) -> list[str]:
    """The functions that a walk of the page names, in order."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    return HOP.findall(section)


def first_missing(names: list[str], calls: list[str]) -> str | None:
    """The first of some names that is not called after those before it."""
    at = 0
    for name in names:
        try:
            at = calls.index(name, at)
        except ValueError:
            return name
    return None


def test_every_walk_is_on_the_page() -> None:
    assert set(HEADINGS) == set(WALKS)
    assert all(len(hops(heading)) >= 5 for heading in HEADINGS.values())


@pytest.mark.parametrize("name", HEADINGS)
def test_the_code_takes_the_walk(name: str) -> None:
    command = [sys.executable, "-m", "tests.walks", name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    calls = run.stdout.splitlines()
    missing = first_missing(hops(HEADINGS[name]), calls)
    assert missing is None, f"{missing} is not called, or in another order"


def test_a_hop_that_is_not_taken_is_noticed() -> None:
    assert first_missing(["a", "c"], ["a", "b", "c"]) is None
    assert first_missing(["a", "d"], ["a", "b", "c"]) == "d"
    assert first_missing(["c", "a"], ["a", "b", "c"]) == "a"
