"""The demo of `make demo` runs to its end and draws its pictures."""

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
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The JVM announces a module of its own; nothing else may complain.
    assert [line for line in done.stderr.splitlines() if "incubator" not in line] == []
    for picture in ("climatology.png", "places.png", "december.png"):
        assert (tmp_path / "demo" / picture).read_bytes().startswith(b"\x89PNG")
    assert "22 new, 0 replaced, 0 unchanged, 1 broken files" in done.stdout
    assert "24 files unchanged, no commit" in done.stdout
    assert "Chunks for time series" in done.stdout
    assert "climatology.png" in (tmp_path / "demo" / "report.html").read_text()
