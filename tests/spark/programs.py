"""Runs programs with a Spark session of their own, in a process of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from icefloe.model.record import Record

ROOT = Path(__file__).parents[2]


class Done(Record, frozen=True):
    """How a program ended, and what it told by lines of `RESULT`, a name and JSON."""

    code: int
    told: dict[str, Any]
    printed: str

    def __getitem__(self, name: str) -> Any:
        """What it told; an error that shows all that it printed, if it did not come so far."""
        assert name in self.told, f"ended with {self.code} before {name!r}:\n{self.printed}"
        return self.told[name]


def tell(name: str, value: Any) -> None:
    """In a program: print a result for the test that asks for it."""
    print("RESULT", name, json.dumps(value), flush=True)


def environment() -> dict[str, str]:
    """Variables with which another Python finds this package and the tests."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_program(program: str, *arguments: str, timeout: float = 800) -> Done:
    """Run a program of this folder; whatever it started ends with it."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / program), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    told = {}
    for line in output.splitlines():
        if line.startswith("RESULT "):
            _, name, value = line.split(" ", 2)
            told[name] = json.loads(value)
    return Done(process.returncode, told, output + errors[-4000:])
