"""Runs programs with a Spark session of their own, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    """Run a program of this folder."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / program), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(),
        check=False,
    )
    told = {}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            _, name, value = line.split(" ", 2)
            told[name] = json.loads(value)
    return Done(done.returncode, told, done.stdout + done.stderr[-4000:])
