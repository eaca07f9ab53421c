"""`make test-newest` runs on the newest Python of the machine, or on those that `NEWEST` names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def interpreter(path: Path, version: str) -> Path:
    """A program that answers like a Python of that version, and repeats other arguments."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo "{version}" || echo "{path.name} $*"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine that has no interpreters but those in `bin` and of `pyenv`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return clean | {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "PYENV_ROOT": str(tmp_path / "pyenv"),
        "XDG_DATA_HOME": str(tmp_path / "share"),
    }


def find(environment: dict[str, str], *versions: str) -> str:
    command = [str(ROOT / "scripts/find_python.sh"), *versions]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_first_wanted_version_is_found(tmp_path: Path, environment: dict[str, str]) -> None:
    older = interpreter(tmp_path / "bin/python9.1", "9.1")
    assert find(environment, "9.2", "9.1") == str(older)
    newer = interpreter(tmp_path / "pyenv/versions/9.2.7/bin/python3", "9.2")
    assert find(environment, "9.2", "9.1") == str(newer)
    assert find(environment, "9.3") == ""


def test_an_interpreter_of_another_version_is_skipped(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    interpreter(tmp_path / "bin/python9.2", "3.6")
    older = interpreter(tmp_path / "bin/python9.1", "9.1")
    assert find(environment, "9.2", "9.1") == str(older)


def run_newest(tmp_path: Path, environment: dict[str, str], *arguments: str) -> str:
    """What the target prints in a folder whose environments exist already."""
    command = ["make", "-C", str(tmp_path), "-f", str(ROOT / "Makefile"), "test-newest", "MAKE=:"]
    done = subprocess.run(
        [*command, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_the_interpreters_of_the_variable_are_used_each_with_its_environment(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    given = [
        str(interpreter(tmp_path / f"anywhere/{version}", version)) for version in ("9.1", "9.2")
    ]
    for version in ("9.1", "9.2"):
        interpreter(tmp_path / f".venv-newest-{version}/bin/python", version)
    printed = run_newest(tmp_path, environment, f"NEWEST={' '.join(given)}")
    for version in ("9.1", "9.2"):
        assert f"The zarr suites on Python {version}:\npython -m pytest" in printed
    assert "SKIPPED" not in printed


def test_without_a_newer_python_the_target_says_what_it_skips(environment: dict[str, str]) -> None:
    printed = run_newest(ROOT, environment, "NEWEST=")
    assert "SKIPPED zarr suites on the newest zarr: no Python of 3.14 3.13" in printed
