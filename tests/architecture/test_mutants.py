"""The list of mutants is complete and fits the sources, and the tests of a sample notice theirs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from scripts import list_requirements, run_mutants
from scripts.run_mutants import Mutant

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = 10
# Put together, so that this file shows none of them itself.
HIERARCHY, SMALL = (f"R0-{number:02}" for number in (1, 57))


def test_every_requirement_that_must_hold_has_a_mutant() -> None:
    assert run_mutants.missing_rows(run_mutants.read_mutants()) == []


def test_no_mutant_is_stale() -> None:
    faults = {mutant.name: mutant.fault() for mutant in run_mutants.read_mutants()}
    assert {name: fault for name, fault in faults.items() if fault is not None} == {}


def test_mutants_name_tests_that_cite_their_requirements() -> None:
    cited = list_requirements.find_tests(list_requirements.read_rows())
    for mutant in run_mutants.read_mutants():
        assert run_mutants.tests_of(mutant, cited), mutant.name
        for row in mutant.rows if mutant.tests else ():
            assert set(mutant.tests) & set(cited[row]), f"{mutant.name}: no test of {row}"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("first", "last", None),
        ("nothing", "x", "0 times"),
        ("twice", "x", "2 times"),
        ("first", "first", "changes nothing"),
        ("first", "first first", "not Python"),
    ],
)
def test_a_mutant_that_cannot_be_applied_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, fault: str | None
) -> None:
    monkeypatch.setattr(run_mutants, "SOURCES", tmp_path)
    (tmp_path / "icefloe").mkdir()
    (tmp_path / "icefloe" / "x.py").write_text("first, twice, twice")
    found = Mutant((HIERARCHY,), "x.py", old, new).fault()
    assert found is None if fault is None else fault in str(found)
    assert "gone" in str(Mutant((HIERARCHY,), "y.py", old, new).fault())


def test_a_test_that_does_not_cite_the_requirement_is_refused() -> None:
    mutant = Mutant((HIERARCHY,), "x.py", "a", "b", ("tests/x.py::test_other",))
    with pytest.raises(ValueError, match="names none of its requirements"):
        run_mutants.tests_of(mutant, {HIERARCHY: ["tests/x.py::test_it"]})


def test_a_sample_of_mutants_is_killed() -> None:
    command = [sys.executable, "-m", "scripts.run_mutants", "--sample", str(SAMPLE), "--jobs", "1"]
    done = subprocess.run(
        command, cwd=run_mutants.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"mutants killed: {SAMPLE}" in done.stdout


def test_a_mutation_that_no_test_notices_is_reported() -> None:
    # In a process of its own: processes that other tests have started know the package already.
    code = (
        "from scripts.run_mutants import Mutant, run_mutants, summary_of\n"
        f"mutant = Mutant(({SMALL!r},), 'formats/dataset/coordinates.py', 'MAX_LENGTH = 9', "
        "'MAX_LENGTH = 9  # same')\n"
        "(verdict,) = run_mutants([mutant], jobs=1)\n"
        "print(verdict.outcome, verdict.killers, summary_of([verdict])['mutants survived'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=run_mutants.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "survived () 1"
