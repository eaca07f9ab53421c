"""Break the source in one small place for each requirement: the tests that name it must notice.

    .venv/bin/python -m scripts.run_mutants                # all mutants of tests/mutants/*.toml
    .venv/bin/python -m scripts.run_mutants R0-32 R2-14    # those of some requirements
    .venv/bin/python -m scripts.run_mutants --jobs 1 --summary build/mutants.json

A mutant is a table of a TOML file: `rows` (the requirements that it breaks), `file` (below
src/icefloe), `old` and `new` text, and optionally `tests` (which of the citing tests to run; all of
them by default). Each mutant gets a copy of the sources of its own and a process of its own, which
runs the tests that cite its rows until each row has a test that failed; for a requirement of one
generation, the failed test must have run on that generation. A mutant whose old text is not there
exactly once is stale. At last the tests that failed are run once on the sources as they are: they
must pass, or their failures meant nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

from scripts import list_requirements

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from tests.generations_touched import TouchedPlugin

ROOT = list_requirements.ROOT
SOURCES = ROOT / "src"
LISTS = ROOT / "tests" / "mutants"
QUICK_FIRST = ("unit", "golden", "conformance/generations", "conformance", "integration")
SUITES = {
    "src/icefloe/testing/generations.py": ("tests/conformance/generations/test_generations.py",),
    "src/icefloe/testing/storage.py": (
        "tests/conformance/storage/test_memory.py",
        "tests/conformance/storage/test_local.py",
        "tests/conformance/storage/test_object_storage.py",
    ),
}
"""The modules that inherit a suite: tests of the suite run there."""
PRELOADED = ["numpy", "pyarrow.parquet", "zarr", "xarray", "jsonschema", "zstandard"]
LONGEST_TEST = 120
"""Seconds after which a test that a mutation made endless fails."""


class Mutant(NamedTuple):
    """A small mistake that tests must notice."""

    rows: tuple[str, ...]
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"{' '.join(self.rows)} in {self.file}"

    def fault(self) -> str | None:
        """Why it cannot be applied; None if it can."""
        path = SOURCES / "icefloe" / self.file
        if not path.exists():
            return f"{self.file} is gone"
        source = path.read_text(encoding="utf-8")
        count = source.count(self.old)
        if count != 1:
            return f"its old text is {count} times in {self.file}, expected once: {self.old!r}"
        if self.old == self.new:
            return "it changes nothing"
        try:
            compile(source.replace(self.old, self.new), self.file, "exec")
        except SyntaxError as error:  # every test would fail, which would prove nothing
            return f"it is not Python: {error}"
        return None


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    """killed, survived, stale or broken."""
    detail: str
    killers: tuple[str, ...] = ()
    seconds: float = 0.0


def read_mutants() -> list[Mutant]:
    """All mutants, in the order of the lists."""
    mutants = []
    for path in sorted(LISTS.glob("*.toml")):
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            tests = tuple(table.pop("tests", ()))
            mutants.append(Mutant(tuple(table.pop("rows")), tests=tests, **table))
    return mutants


def missing_rows(mutants: Iterable[Mutant]) -> list[str]:
    """Requirements that must hold, and that no mutant breaks."""
    covered = {row for mutant in mutants for row in mutant.rows}
    wanted = [row.number for row in list_requirements.read_rows() if row.kind in ("M", "D")]
    return [number for number in wanted if number not in covered]


def sample_of(mutants: Iterable[Mutant], count: int) -> list[Mutant]:
    """Some mutants, the same in each run: those whose names and changes hash lowest."""

    def digest(mutant: Mutant) -> str:
        return hashlib.sha256(f"{mutant.name}\n{mutant.new}".encode()).hexdigest()

    return sorted(mutants, key=digest)[:count]


def tests_of(mutant: Mutant, cited: dict[str, list[str]]) -> list[str]:
    """What pytest is to run: the tests that cite a mutant's rows, quick folders first."""
    names = {test for row in mutant.rows for test in cited.get(row, ())}
    if mutant.tests:
        unknown = sorted(set(mutant.tests) - names)
        if unknown:
            raise ValueError(f"{mutant.name}: {unknown[0]} names none of its requirements")
        names = set(mutant.tests)
    found = set()
    for name in names:
        path = name.partition("::")[0]
        if path not in SUITES:
            found.add(name)
            continue
        found.update(SUITES[path])  # all of their tests; those that were not chosen are left out
    return sorted(found, key=_rank)


def _rank(test: str) -> tuple[int, str]:
    folder = test.removeprefix("tests/")
    places = (place for place, part in enumerate(QUICK_FIRST) if folder.startswith(part))
    return next(places, len(QUICK_FIRST)), test


# --- in the process of a mutant


class Jury:
    """A pytest plugin that stops once each row of a mutant has a test that failed."""

    def __init__(self, mutant: Mutant) -> None:
        self.left = set(mutant.rows)
        self.killers: list[str] = []
        self.failures: list[str] = []
        self._chosen = set(mutant.tests)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what was not chosen of modules that inherit a suite; what is quick is first."""
        from tests.generations_touched import generation_of, names_of

        numbers = self._plugin(config).citations.numbers
        generations = [name for row in self.left if (name := generation_of(row))]

        def is_chosen(item: pytest.Item) -> bool:
            cites = bool(self.left & numbers(item))
            return cites and (not self._chosen or not self._chosen.isdisjoint(names_of(item)))

        def rank(item: pytest.Item) -> tuple[int, bool]:
            return _rank(item.nodeid)[0], not any(name in item.nodeid for name in generations)

        items[:] = sorted(filter(is_chosen, items), key=rank)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._judge(item)
        return report

    def _judge(self, item: pytest.Item) -> None:
        from tests.generations_touched import generation_of

        plugin = self._plugin(item.config)
        killed = {
            row
            for row in self.left & plugin.citations.numbers(item)
            if generation_of(row) in {None, *plugin.touched(item)}
        }
        self.failures.append(item.nodeid)
        if killed:
            self.left -= killed
            self.killers.append(item.nodeid)
        if not self.left:
            item.session.shouldstop = "each row has a test that failed"

    @staticmethod
    def _plugin(config: pytest.Config) -> TouchedPlugin:
        plugin: Any = config.pluginmanager.get_plugin("generations-touched")
        return cast("TouchedPlugin", plugin)


def _pytest(arguments: Sequence[str], plugins: Sequence[object], log: Path) -> int:
    """Run pytest in this process, its output in a file."""
    options = [
        "-q",
        "--tb=line",
        "--assert=plain",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:randomly",
    ]
    options += ["-o", f"timeout={LONGEST_TEST}", "-o", "addopts=--import-mode=importlib"]
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        return int(pytest.main([*options, *arguments], plugins=list(plugins)))


def _enter(folder: Path) -> None:
    os.chdir(ROOT)
    sys.path[:0] = [str(folder), str(ROOT)]
    os.environ["ICEFLOE_TEST_PROFILE"] = "mutants"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])


def try_mutant(mutant: Mutant, tests: list[str]) -> Verdict:
    """Apply a mutant to a copy of the sources and run tests on it."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        folder = Path(place) / "src"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCES, folder, ignore=ignored, copy_function=shutil.copyfile)
        path = folder / "icefloe" / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        _enter(folder)
        jury = Jury(mutant)
        log = Path(place) / "log"
        code = _pytest(tests, [jury], log)
        imported = sys.modules.get("icefloe")
        used = str(getattr(imported, "__file__", ""))
        tail = " | ".join(log.read_text(encoding="utf-8").splitlines()[-6:])
    seconds = time.monotonic() - begun
    if not jury.left:
        return Verdict(mutant, "killed", "", tuple(jury.killers), seconds)
    if code not in {0, 1, 2} or not used.startswith(str(folder)):
        return Verdict(mutant, "broken", f"pytest ended with {code}: {tail}", (), seconds)
    if code == 2 and not jury.failures:
        return Verdict(mutant, "broken", f"the tests cannot be collected: {tail}", (), seconds)
    detail = f"no test of {' '.join(sorted(jury.left))} failed"
    if jury.failures:
        detail += f"; failures elsewhere: {' '.join(jury.failures[:3])}"
    return Verdict(mutant, "survived", detail, tuple(jury.killers), seconds)


def run_control(tests: list[str]) -> str:
    """Run tests on the sources as they are; returns what failed."""
    _enter(SOURCES)
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        log = Path(place) / "log"
        code = _pytest(["-ra", *tests], [], log)
        return "" if code == 0 else log.read_text(encoding="utf-8")[-3000:]


# --- in the process that runs them all


def run_mutants(mutants: Sequence[Mutant], jobs: int) -> list[Verdict]:
    """Try mutants, some at a time; prints each verdict."""
    cited = list_requirements.find_tests(list_requirements.read_rows())
    verdicts = []
    for mutant in mutants:
        fault = mutant.fault()
        if fault is not None:
            verdicts.append(_print(Verdict(mutant, "stale", fault)))
    fresh = [mutant for mutant in mutants if mutant.fault() is None]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        futures = [pool.submit(try_mutant, each, tests_of(each, cited)) for each in fresh]
        verdicts += [_print(future.result()) for future in as_completed(futures)]
        killers = sorted({test for verdict in verdicts for test in verdict.killers})
        failed = pool.submit(run_control, killers).result() if killers else ""
    if failed:
        print(f"CONTROL: these tests fail without any mutation:\n{failed}")
        verdicts.append(Verdict(mutants[0], "broken", "tests fail without any mutation"))
    return verdicts


def _print(verdict: Verdict) -> Verdict:
    detail = f": {verdict.detail}" if verdict.detail else ""
    print(
        f"{verdict.outcome:8} {verdict.seconds:5.1f} s  {verdict.mutant.name}{detail}", flush=True
    )
    return verdict


def summary_of(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many mutants came to which end, and how many requirements were tried."""
    outcomes = ("killed", "survived", "stale", "broken")
    counts = {f"mutants {end}": sum(v.outcome == end for v in verdicts) for end in outcomes}
    rows = {row for v in verdicts if v.outcome == "killed" for row in v.mutant.rows}
    return {**counts, "requirements whose mutants were killed": len(rows)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", help="requirements, or beginnings of their numbers")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--summary", type=Path, help="write the counts to this file, as JSON")
    parser.add_argument("--sample", type=int, help="try so many of them, always the same")
    options = parser.parse_args(arguments)
    every = read_mutants()
    chosen = [
        mutant
        for mutant in every
        if not options.rows or any(row.startswith(tuple(options.rows)) for row in mutant.rows)
    ]
    if options.sample is not None:
        chosen = sample_of(chosen, options.sample)
    is_part = options.rows or options.sample is not None
    missing = [] if is_part else missing_rows(every)
    begun = time.monotonic()
    verdicts = run_mutants(chosen, options.jobs)
    counts = summary_of(verdicts)
    for row in missing:
        print(f"{row} has no mutant in {LISTS.relative_to(ROOT)}")
    for name, count in counts.items():
        print(f"{name}: {count}")
    print(f"seconds: {time.monotonic() - begun:.0f}")
    if options.summary:
        with contextlib.suppress(FileExistsError):
            options.summary.parent.mkdir(parents=True)
        options.summary.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return 1 if missing or any(verdict.outcome != "killed" for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
