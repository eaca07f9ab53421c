"""The page of versions says what pyproject.toml asks for and what the tests run with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARIES = ("zarr", "numpy", "xarray", "dask", "PySpark", "pyarrow")


def row(name: str) -> tuple[str, str]:
    """The oldest and the newest version that the page has for a name."""
    match = re.search(rf"^\| {name} \| (\S+) \| (\S*) ?\|", PAGE, re.MULTILINE)
    assert match, name
    return match[1], match[2]


def requirements() -> list[str]:
    optional = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(line for lines in optional for line in lines)]


@pytest.mark.parametrize("library", LIBRARIES)
def test_oldest_versions_are_those_that_are_asked_for(library: str) -> None:
    pattern = re.compile(rf"{library.lower()}(?:\[\w+\])?>=([\d.]+)")
    asked_for = {match[1] for line in requirements() if (match := pattern.match(line))}
    assert asked_for == {row(library)[0]}


@pytest.mark.parametrize("library", LIBRARIES)
def test_newest_versions_are_those_that_are_pinned(library: str) -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    pinned = re.findall(rf"^{library.lower()}==([\d.]+)", constraints, re.MULTILINE)
    newest = max(pinned, key=lambda version: [int(part) for part in version.split(".")])
    assert row(library)[1] == newest


def test_versions_of_python_are_those_of_the_package() -> None:
    minor = [
        line.rsplit(" ", 1)[1]
        for line in PROJECT["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    makefile = (ROOT / "Makefile").read_text()
    tried = re.search(r"^NEWEST_PYTHONS := (\S+)", makefile, re.MULTILINE)
    assert tried is not None
    assert tried[1] == minor[-1]
    assert row("Python") == (minor[0], minor[-1])
    assert PROJECT["requires-python"] == f">={minor[0]}"
    assert f"| Python | {minor[0]} to {minor[-1]} |" in (ROOT / "docs/start/install.md").read_text()
    # Versions are pinned for each of them.
    assert f"for v in {' '.join(minor)}; do" in makefile


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_the_dockerfile_installs_what_the_demo_needs() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    image = next(line for line in lines if line.startswith("FROM "))
    assert image == f"FROM python:{PROJECT['requires-python'].removeprefix('>=')}-slim"
    install = next(line for line in lines if "--group" in line)
    extras = re.search(r'"\.\[([\w,-]+)\]"', install)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert install.split("--group ")[1].split()[0] in groups
    copied = {
        name
        for line in lines
        if line.startswith("COPY ")
        for name in line.removeprefix("COPY ").split()[:-1]
    }
    assert all((ROOT / name).exists() for name in copied)
    # What the context leaves out cannot be copied.
    let_in = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert copied == set(let_in)
    imported = "".join(path.read_text() for path in (ROOT / "examples").glob("demo*.py"))
    asked_for = " ".join(filter(lambda each: isinstance(each, str), groups["demo"]))
    assert "import netCDF4" not in imported or "netCDF4" in asked_for
