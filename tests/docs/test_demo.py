"""The demo of `make demo` runs to its end, and what it says and draws is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JVM_SAYS = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.mark.slow
def test_demo_tells_its_story(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "--folder", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.replace(JVM_SAYS, "").strip() == ""
    for said in (
        "virtual: 22 new, 0 replaced, 0 unchanged, 1 broken files",
        "quarantined",
        "virtual: 2 new, 0 replaced, 22 unchanged, 0 broken files",
        "24 files unchanged, no commit",
        "copy: 24 new",
        "november: 669 days, 2023-01-01 to 2024-11-30",
        "main: 731 days, 2023-01-01 to 2024-12-31",
    ):
        assert said in done.stdout
    for picture in ("climatology.png", "places.png", "december.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
        assert f'src="{picture}"' in (folder / "report.html").read_text()
