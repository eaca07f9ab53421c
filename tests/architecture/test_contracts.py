"""The architecture holds: layers, no cycles, a core free of heavy libraries, telling names."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from icefloe.formats.registry import GENERATIONS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "icefloe"

NAMES_THAT_HIDE_A_CONCEPT = {"utils", "util", "helpers", "helper", "common", "misc"}


def test_import_contracts_are_kept() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
            "--no-logo",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(contracts)} kept, 0 broken" in done.stdout


def test_module_names_say_what_is_inside() -> None:
    unclear = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if path.stem in NAMES_THAT_HIDE_A_CONCEPT
    ]
    assert unclear == []


def test_only_formats_name_a_generation() -> None:
    """Other code asks what a generation can do: a new one is a folder and a line."""
    names = GENERATIONS.keys() - {"store"}  # which is also what zarr calls its stores
    naming = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in {"formats", "testing"}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert naming == []


def test_every_package_folder_is_importable() -> None:
    """A folder without `__init__.py` would be left out by tools that walk packages."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    missing = sorted(
        str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()
    )
    assert missing == []


def test_contributing_names_every_folder_of_tests() -> None:
    """And unit tests are in the folders of the code that they test."""
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").glob("*/**/*.py")}
    folders |= {path.parent.relative_to(ROOT) for path in (ROOT / "tests").glob("*/*.toml")}
    named = (ROOT / "CONTRIBUTING.md").read_text()
    missing = {f"`{'/'.join(folder.parts[:2])}`" for folder in folders} - set(named.split())
    assert {name for name in missing if f"{name}," not in named} == set()
    strays = {
        str(folder)
        for folder in folders
        if folder.parts[1] == "unit" and not PACKAGE.joinpath(*folder.parts[2:]).is_dir()
    }
    assert strays == set()


SESSION = "icefloe.session"
MAKE_SESSIONS = {
    "repository.py",
    "distributed.py",
    "spark/engine/worker.py",
    "spark/jobs/copy.py",
    "xarray.py",
    "xarray_engine.py",
}
"""Modules that make sessions, or tell them from other things."""
NAME_SESSIONS = {
    "dask.py": "gathers the forks that tasks return",
    "ingest/local.py": "the function that users give a session to",
    "spark/engine/job.py": "commits what tasks wrote",
    "spark/jobs/ingesting.py": "sends the session to workers",
    "spark/jobs/inputs.py": "sends the session to workers",
    "spark/jobs/map_blocks.py": "the function that users give a session to",
    "spark/jobs/reduce.py": "the function that users give a session to",
    "spark/jobs/map_updates.py": "compares the session with those of earlier runs",
    "spark/jobs/reduce_updates.py": "compares the session with those of earlier runs",
    "spark/publishing/check_plan.py": "sends the session to workers",
    "spark/statements/changes.py": "gives a job the session that a statement began with",
    "spark/statements/queries.py": "opens the sessions that a query reads",
    "spark/tables/read_table.py": "sends the session to workers",
    "tables/table_scan.py": "the function that users give a session to",
    "tables/versions.py": "opens sessions of a repository",
    "testing/generations.py": "tests of sessions",
    "virtual/datasets.py": "the function that users give a session to",
    "zarr_store/store.py": "`IcefloeStore.session`, which users call",
}
"""Modules that name sessions in types only, and why the port would not do."""
HOLDERS = {"session", "fork", "part", "tree", "publication"}


def imports_of_sessions(path: Path) -> list[tuple[bool, int]]:
    """Whether each import of `icefloe.session` in a module is for types only, and its line."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return [
        (id(node) in for_types, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == SESSION
    ]


def test_who_imports_sessions() -> None:
    """Others take the port (`zarr_store/session_port.py`), or the tree, not the mutable class."""
    at_run_time: set[str] = set()
    for_types: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).as_posix()
        for is_for_types, _ in imports_of_sessions(path):
            (for_types if is_for_types else at_run_time).add(module)
    assert at_run_time == MAKE_SESSIONS
    assert for_types - MAKE_SESSIONS == NAME_SESSIONS.keys()


def test_nobody_touches_what_is_private_to_sessions() -> None:
    touched = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and ast.unparse(node.value).rpartition(".")[2].lstrip("_") in HOLDERS
    ]
    assert touched == []
