"""No operation sends more requests, or waits for more rounds of them, than its budget says."""

from __future__ import annotations

import pytest

from scripts.write_budgets import PAGE, table, with_table
from tests.budgets.budgets import OFFICIAL, REASONS, read_budgets
from tests.budgets.operations import OPERATIONS, Scene, count
from tests.formats import ALL_GENERATIONS

BUDGETS = read_budgets()


@pytest.fixture(scope="module")
def scene(each_generation: str) -> Scene:
    del each_generation
    return Scene()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_keeps_its_budget(scene: Scene, each_generation: str, name: str) -> None:
    counts = count(scene, name)
    budget = BUDGETS[name, each_generation]
    assert (counts.requests, counts.rounds) == (budget.requests, budget.rounds), str(counts)
    assert counts.bytes_read <= budget.kib_read * 1024
    assert counts.bytes_written <= budget.kib_written * 1024


def test_there_is_a_budget_for_each_operation_and_no_other() -> None:
    assert set(BUDGETS) == {(name, each) for name in OPERATIONS for each in ALL_GENERATIONS}


def test_what_needs_more_than_the_official_package_has_a_reason() -> None:
    above = {
        name
        for (name, _), budget in BUDGETS.items()
        if name in OFFICIAL
        and (budget.requests > OFFICIAL[name].requests or budget.rounds > OFFICIAL[name].rounds)
    }
    assert above == REASONS.keys()


def test_only_lists_of_files_and_tags_take_more_round_trips_than_the_official_package() -> None:
    above = {
        (name, generation)
        for (name, generation), budget in BUDGETS.items()
        if name in OFFICIAL and budget.rounds > OFFICIAL[name].rounds
    }
    others = ("repository", "store", "dataset")  # than icechunk, which has one file for all
    assert above == {
        ("list 21 branches", "store"),
        *(("history of 32", each) for each in others),
        *(("create a tag", each) for each in others),
    }


def test_the_documentation_has_the_budgets() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, table(BUDGETS)) == page, "run `make budgets`"
