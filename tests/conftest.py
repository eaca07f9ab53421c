"""Settings shared by all tests: how hard property tests try, and the object stores they talk to.

`ICEFLOE_TEST_PROFILE` chooses: `default` is repeatable and quick; `deep` (`make test-deep`) tries
many more and longer examples, new ones each time, as many for each folder as two hours allow. Tests
should not set `max_examples` themselves, so that the profile can; where a test must, it divides or
multiplies the profile's number. `ICEFLOE_TEST_COUNTS` names a file for the counts of a run.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.statistics import collector

if TYPE_CHECKING:
    from collections.abc import Generator

TESTS = Path(__file__).parent
# `tests.endpoints` must be importable however pytest was started.
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import class_archive, counting  # noqa: E402
from tests.profiles import PROFILE  # noqa: E402

pytest_plugins = ["tests.endpoints.fixtures", "tests.formats", "tests.generations_touched"]


SLOW_FIRST = (
    "spark/test_clusters.py",
    "spark",
    "docs",
    "concurrency",
    "faults",
    "engines",
    "property",
)
"""Files that take minutes begin first, or one process works on them when all else is done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by how long they take; the order within each stays."""

    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        starts = (number for number, part in enumerate(SLOW_FIRST) if path.startswith(part))
        return next(starts, len(SLOW_FIRST))

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Note how many examples a test tried, where the reports of all processes are gathered."""
    suite = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""

    def note(statistics: dict[str, Any]) -> None:
        phases = [value for key, value in statistics.items() if key.endswith("-phase")]
        tried = sum(len(phase["test-cases"]) for phase in phases)
        item.user_properties.append((f"{EXAMPLES} in tests/{suite}", tried))

    # State machines that tests run themselves; of tests with @given, hypothesis keeps count.
    with collector.with_value(note):  # type: ignore[arg-type]
        yield
    for name, number in counting.take().items():
        item.user_properties.append((name, number))
    told = getattr(item, "hypothesis_statistics", "")
    if told:
        tried = sum(map(int, re.findall(r"(\d+) (?:passing|failing|invalid)", told)))
        item.user_properties.append((f"{EXAMPLES} in tests/{suite}", tried))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cases the tests went through that count theirs (`record_property`)."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name in COUNTED or name.startswith(EXAMPLES):
                counts[name] += value
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"{name}: {count:,}")
    place = os.environ.get("ICEFLOE_TEST_COUNTS")
    if place:
        passed = {"tests passed": len(terminalreporter.stats.get("passed", []))}
        seconds = _seconds(terminalreporter)
        for folder, duration in seconds.items():
            terminalreporter.write_line(f"seconds in {folder}: {duration:,}")
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        summary = {"counts": passed | dict(sorted(counts.items())), "seconds": seconds}
        Path(place).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _seconds(terminalreporter: pytest.TerminalReporter) -> dict[str, int]:
    """Seconds of work in each folder, of all test processes together."""
    spent: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent["/".join(report.nodeid.split("/")[:2])] += report.duration
    return {
        folder: round(seconds)
        for folder, seconds in sorted(spent.items(), key=lambda item: -item[1])
    }


EXAMPLES = "examples of property tests and state machines"
COUNTED = {
    counting.CELLS,
    counting.FAULTS,
    counting.FILES,
    counting.KILLED,
    counting.RACES,
    "calls of linearizable histories",
    "crash points",
    "failed operations",
    "pauses of the collection machine",
    "states of a disk without power",
    "steps of the collection machine",
}


# No deadlines: how long an example takes depends on the machine, and no test may.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=30,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=500,
    stateful_step_count=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# A mutant needs one example that fails, not the smallest.
settings.register_profile(
    "mutants", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate]
)
# No test asks a network for the role of this machine.
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
settings.load_profile(PROFILE)
class_archive.use_everywhere()

UNIT_EXAMPLES = 15
"""Unit tests with examples run often, so each tries few; the laws are in `tests/property`."""

DEEP_EXAMPLES = {
    "conformance": 60,
    "faults": 200,
    "integration": 80,
    "property": 120,
    "spark": 60,
    "unit": 250,
    "virtual": 100,
}
"""Examples of a deep run by folder, so that it ends within two hours on two cores.

Most tests of `integration` and `property` try this many on each of six formats.
"""


def _use_budget_of(path: Path) -> None:
    """Let a test try as many examples as its folder has time for."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    budgets = {"deep": DEEP_EXAMPLES, "default": {"unit": UNIT_EXAMPLES}}.get(PROFILE, {})
    if folder not in budgets:
        settings.load_profile(PROFILE)
        return
    name = f"{PROFILE} {folder}"
    settings.register_profile(name, settings.get_profile(PROFILE), max_examples=budgets[folder])
    settings.load_profile(name)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Tests that share the number of examples ask for it when their module is imported."""
    if isinstance(collector, pytest.Module):
        _use_budget_of(collector.path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that leave the number of examples to the profile ask for it when they run."""
    _use_budget_of(item.path)
