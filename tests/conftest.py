"""Settings shared by all tests: how hard property tests try, and the object stores they talk to.

`ICEFLOE_TEST_PROFILE` chooses: `default` is repeatable and quick; `deep` (`make test-deep`) tries
many more and longer examples, new ones each time. Tests should not set `max_examples` themselves,
so that the profile can; where a test must, it divides or multiplies the profile's number.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
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
    with collector.with_value(note):
        yield
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


EXAMPLES = "examples of property tests and state machines"
COUNTED = {
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
    max_examples=50,
    stateful_step_count=30,
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
settings.load_profile(os.environ.get("ICEFLOE_TEST_PROFILE", "default"))
