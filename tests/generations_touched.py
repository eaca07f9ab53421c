"""Notices which generations a test really runs on: a requirement of one is shown on that one.

A pytest plugin. A comment that names a requirement proves little. While a test that names a
requirement of spec 000 to 003 runs, calls into the code of each generation's folder are noticed,
and the run fails if no test of a requirement called into its generation. What a search for a
repository tries, and what one generation uses of another, does not count.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import icefloe
from scripts import list_requirements

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = str(Path(icefloe.__file__).parent)
PROPERTY = "generations touched"
SOURCES = {"R0": "dataset", "R3": "store", "R1": "repository", "R2": "repository"}
"""The generation that each specification describes; spec 004 holds for all of them."""


def generation_of(number: str) -> str | None:
    """The generation on which a requirement must be shown; None if any will do."""
    is_shared = number in list_requirements.BELOW_GENERATIONS
    return None if is_shared else SOURCES.get(number.partition("-")[0])


class _Folders(dict[str, str]):
    """The generation that a source file belongs to, by its name; empty for other files."""

    def __missing__(self, file: str) -> str:
        match = re.search(r"icefloe/formats/(dataset|store|repository)/(\w+)\.py$", file)
        # What `generation.py` does is choosing one, not using it.
        self[file] = match[1] if match and match[2] != "generation" else ""
        return self[file]


_FOLDERS = _Folders()


class Watch:
    """Notices calls into the folders of generations, until all that are wanted were called."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self._wanted = set(wanted)
        self.touched: set[str] = set()
        self._patches = ExitStack()

    def __enter__(self) -> Watch:
        if self._wanted - self.touched:
            self._patches.enter_context(
                mock.patch.object(ThreadPoolExecutor, "submit", self._watched_submit())
            )
            threading.setprofile(self._profile)
            sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._patches.close()

    def _stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _watched_submit(self) -> Callable[..., Any]:
        """Submit work that is watched as well, also in threads that were there before."""
        submit = ThreadPoolExecutor.submit

        def watched(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **kwargs: Any) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                sys.setprofile(self._profile)
                try:
                    return work(*args, **kwargs)
                finally:
                    sys.setprofile(None)

            return submit(pool, run, *args, **kwargs)

        return watched

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        generation = _FOLDERS[frame.f_code.co_filename]
        if generation and generation not in self.touched and _is_own_call(frame, generation):
            self.touched.add(generation)
            if self.touched >= self._wanted:
                self._stop()


def _is_own_call(frame: FrameType, generation: str) -> bool:
    """Whether a call is made for its own generation, and not by an import or by a search."""
    outer: FrameType | None = frame
    while outer is not None:
        code = outer.f_code
        name = code.co_name
        if _FOLDERS[code.co_filename] not in {"", generation}:
            return False
        is_import = name == "<module>" and code.co_filename.startswith(PACKAGE)
        if name == "_main_tip" or is_import:
            return False
        outer = outer.f_back
    return True


# --- which tests name what


class Citations:
    """The requirements that tests name, by the names that pytest has for these tests."""

    def __init__(self) -> None:
        self.rows = [row for row in list_requirements.read_rows() if row.kind in ("M", "D")]
        self.tests = list_requirements.find_tests(list_requirements.read_rows())
        self._numbers: dict[str, set[str]] = defaultdict(set)
        for row in self.rows:
            for test in self.tests.get(row.number, ()):
                self._numbers[test].add(row.number)

    def numbers(self, item: pytest.Item) -> set[str]:
        """The requirements that a test names, or its class or module for it."""
        return {number for name in names_of(item) for number in self._numbers.get(name, ())}


def names_of(item: pytest.Item) -> list[str]:
    """The names under which a test, its class and its module are listed."""
    function = getattr(item, "originalname", item.name)
    owner = getattr(item, "cls", None)
    for base in owner.__mro__ if owner else ():
        if function in vars(base):
            path = _path(sys.modules[base.__module__].__file__)
            return [f"{path}::{base.__name__}::{function}", f"{path}::{base.__name__}", path]
    path = _path(item.path)
    return [f"{path}::{function}", path]


def _path(file: Any) -> str:
    path = Path(file)
    # A suite to inherit may be imported from a copy of the sources.
    suite = re.search(r"icefloe/testing/\w+\.py$", path.as_posix())
    if suite:
        return f"src/{suite[0]}"
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


# --- hooks


class TouchedPlugin:
    """Watches tests, and says at the end which requirements were not shown on their generation."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.citations = Citations()
        self._watches: dict[str, Watch] = {}
        self._seen: dict[str, set[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        numbers = self.citations.numbers(item)
        wanted = {generation for each in numbers if (generation := generation_of(each))}
        watch = Watch(wanted)
        self._watches[item.nodeid] = watch
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        with self._watches[item.nodeid]:
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        watch = self._watches[item.nodeid]
        with watch:
            yield
        names = names_of(item)
        item.user_properties.append((PROPERTY, [names, sorted(watch.touched)]))

    def touched(self, item: pytest.Item) -> set[str]:
        """The generations that a test has touched so far."""
        return self._watches[item.nodeid].touched

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "call" and report.passed:
                observed: Any = value
                tests, touched = observed
                for test in tests:
                    self._seen.setdefault(test, set()).update(touched)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        option = self._config.option
        is_part = option.keyword or option.markexpr or any("::" in a for a in self._config.args)
        if hasattr(self._config, "workerinput") or is_part:
            return
        self.problems = self.find_problems()
        if self.problems and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def find_problems(self) -> list[str]:
        """Requirements of which all tests ran, and none on their generation."""
        problems = []
        for row in self.citations.rows:
            generation = generation_of(row.number)
            tests = self.citations.tests.get(row.number, [])
            if generation is None or not tests or not all(test in self._seen for test in tests):
                continue
            if not any(generation in self._seen[test] for test in tests):
                problems.append(f"{row.number} ({row.words}) is not shown on {generation!r}")
        return problems

    problems: list[str]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for problem in getattr(self, "problems", ()):
            terminalreporter.write_line(f"REQUIREMENT {problem}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(TouchedPlugin(config), "generations-touched")
