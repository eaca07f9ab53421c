"""Every requirement that must hold has a test, and losing one is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts import list_requirements

if TYPE_CHECKING:
    from pathlib import Path

# Put together, so that this file marks nothing itself.
A, B, C = (f"R9-{number}" for number in ("01a", "01b", "02"))
TESTS = '''"""A module (R9-04)."""

PLACE = 1  # R9-05


def show():  # R9-06
    ...


# R9-07
@decorated("R9-08")
def test_one():  # R9-01, R9-12..14
    ...


class TestMany:
    """R9-09 to R9-10: so it is."""

    x = 1  # R9-11

    async def test_two(self):
        assert 1  # R9-02
'''


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(list_requirements, "ROOT", tmp_path)
    monkeypatch.setattr(list_requirements, "MARKS", list_requirements.marks_of("R9"))
    (tmp_path / "tests").mkdir()
    path = tmp_path / "tests" / "test_x.py"
    path.write_text(TESTS)
    return path


def rows(*numbers: str) -> list[list_requirements.Row]:
    return [list_requirements.Row(number, "M", "words") for number in numbers]


@pytest.mark.usefixtures("tests")
def test_marks_belong_to_the_tests_that_they_are_in() -> None:
    others = [f"R9-{number:02}" for number in range(3, 16)]
    found = list_requirements.find_tests(rows(A, B, C, *others))
    module, one = "tests/test_x.py", "tests/test_x.py::test_one"
    assert found == {
        A: [one],
        B: [one],
        C: [f"{module}::TestMany::test_two"],
        "R9-04": [module],
        "R9-07": [one],
        "R9-08": [one],
        "R9-09": [f"{module}::TestMany"],
        "R9-10": [f"{module}::TestMany"],
        "R9-12": [one],
        "R9-13": [one],
        "R9-14": [one],
    }


def test_a_lost_test_and_a_stale_page_are_told(
    tests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tests.parent / "page.md"
    monkeypatch.setattr(list_requirements, "PAGE", page)
    monkeypatch.setattr(list_requirements, "SOURCES", {"R9": "A specification"})
    asked = rows(*sorted(list_requirements.find_tests([])))

    def told() -> list[str]:
        return [p.partition(" ")[0] for p in list_requirements.problems(asked, held())]

    def held() -> dict[str, list[str]]:
        return list_requirements.find_tests(asked)

    assert told() == ["tests/page.md"]
    page.write_text(list_requirements.page(asked, held()))
    assert told() == []
    tests.write_text(TESTS.replace("R9-02", "lost").replace("R9-07", "R9-99"))
    assert told() == [C, "R9-07", "R9-99", "tests/page.md"]
    monkeypatch.setattr(list_requirements, "NOT_YET", {C: "lost", "R9-08": "is there"})
    assert told() == ["R9-07", "R9-08", "R9-99", "tests/page.md"]


def test_every_requirement_has_a_test_and_the_page_says_which() -> None:
    asked = list_requirements.read_rows()
    assert len({row.number for row in asked}) == len(asked) > 400
    assert list_requirements.problems(asked, list_requirements.find_tests(asked)) == []
