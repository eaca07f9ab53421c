"""Runs programs with a Spark session of their own, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Variables with which another Python finds this package and the tests."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_program(program: Path | str, *arguments: str, timeout: float = 240) -> str:
    """Run a program that must succeed; returns what it printed."""
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
