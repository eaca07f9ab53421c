"""What a benchmark case is, and how the cases of `benchmarks/cases/` are found.

Importing this module must stay cheap: the child process that measures import time loads it.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.peers import Peer

Parameters = dict[str, Any]
OFFICIAL = ("icechunk", "icechunk-newest")
"""The peers that ratios are relative to, unless a case says otherwise."""


@dataclass(frozen=True)
class Setting:
    """Where and how one measurement is done: what the functions of a case are given."""

    peer: Peer
    folder: Path
    parameters: Parameters
    fixture: Path | None = None
    """Where the files were written that all peers of the case get a copy of, if they do."""

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]


def just_the_setting(setting: Setting) -> Setting:
    """The `start` of cases that need no other state."""
    return setting


@dataclass(frozen=True)
class Case:
    """One thing to measure, done by several peers.

    A case runs in up to two processes: one for `prepare`, then a fresh one for `start` and `run`,
    so that nothing is warm but the operating system's file cache and what `start` warmed.

    Attributes:
        name: Short, for `--cases` and file names.
        title: One line for the tables; parameters may be named in braces.
        peers: Names of the peers that can do it, from `benchmarks.peers.PEERS`.
        run: One operation, the only thing that is timed: called as `run(state, number)`.
        start: Makes the state that `run` gets, in the same process: imports, opening, making data.
        prepare: Writes what the case needs on disk, in a process of its own.
        parameters: What `Setting` carries. The parameter `operations` says how often `run` is
            called (once if absent).
        quick: Parameters that `--quick` replaces.
        report_total: Report the time of all operations together instead of their median.
        prepared_by: The peer that prepares, once for all: each measurement gets a copy of the same
            files. Without it, every peer prepares its own.
        adds_little: The operation adds next to nothing to what took long to write, so each peer
            prepares once, and all repetitions and cases that prepare alike run on the same files.
        against: Ratios are relative to the better of these peers.
        in_processes: Count the CPU time of the processes that the measuring one started, too.
        counts: More figures, such as requests to a server; called before the operations, which
            starts the count, and after them, with their number.
    """

    name: str
    title: str
    peers: tuple[str, ...]
    run: Callable[[Any, int], object]
    start: Callable[[Setting], Any] = just_the_setting
    prepare: Callable[[Setting], object] | None = None
    parameters: Parameters = field(default_factory=dict)
    quick: Parameters = field(default_factory=dict)
    report_total: bool = False
    prepared_by: str = ""
    adds_little: bool = False
    against: tuple[str, ...] = OFFICIAL
    in_processes: bool = False
    counts: Callable[[int], dict[str, float]] | None = None

    def parameters_for(self, *, quick: bool) -> Parameters:
        """The parameters of a full run, or of a quick one."""
        return {**self.parameters, **self.quick} if quick else dict(self.parameters)


def all_cases() -> dict[str, Case]:
    """Every `Case` in the `CASES` of every module of `benchmarks.cases`, by name."""
    package = importlib.import_module("benchmarks.cases")
    found: dict[str, Case] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"benchmarks.cases.{module_info.name}")
        for case in module.CASES:
            if case.name in found:
                raise ValueError(f"two benchmark cases are named {case.name!r}")
            found[case.name] = case
    return found
