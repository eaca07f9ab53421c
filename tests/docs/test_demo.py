"""The demo of `make demo` runs to its end and draws its picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_demo_tells_its_story(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "examples/demo.py", "--folder", str(tmp_path / "demo")],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    picture = tmp_path / "demo" / "two-versions.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Correct the sensor fault of 17 January" in done.stdout
    assert (tmp_path / "demo" / "repository" / "refs").is_dir()
