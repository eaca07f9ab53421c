"""The public interface: what we promised before, and what the official package has."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import icefloe

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

list_api = runpy.run_path(str(ROOT / "scripts" / "list_api.py"))
list_package, parameters = list_api["list_package"], list_api["parameters"]
write_stubs = runpy.run_path(str(ROOT / "scripts" / "write_stubs.py"))

Listing = dict[str, list[str] | None]

OURS: Listing = list_package("icefloe")
PROMISED: Listing = json.loads((HERE / "public_api.json").read_text())
OFFICIAL: Listing = json.loads((HERE / "official_api.json").read_text())

NEVER_CONSTRUCTED = {
    "ConflictError",
    "ForkSession",
    "IcechunkStore",
    "RebaseFailedError",
    "Repository",
    "Session",
}
"""Classes that users get but do not call: their constructors are private."""

RUST_VARIANT = "an inner class of the official's enum; its static methods make the same values"
FORK = "a fork refuses it, whatever the arguments"
DASK_INTERNAL = "a helper inside the official module"

DIFFERENT_ON_PURPOSE = {
    "ForkSession.commit": FORK,
    "ForkSession.commit_async": FORK,
    "ForkSession.flush": FORK,
    "ForkSession.flush_async": FORK,
    "ManifestPreloadCondition.And": RUST_VARIANT,
    "ManifestPreloadCondition.False": RUST_VARIANT,
    "ManifestPreloadCondition.NameMatches": RUST_VARIANT,
    "ManifestPreloadCondition.NumRefs": RUST_VARIANT,
    "ManifestPreloadCondition.Or": RUST_VARIANT,
    "ManifestPreloadCondition.PathMatches": RUST_VARIANT,
    "ManifestPreloadCondition.True": RUST_VARIANT,
    "ManifestSplitCondition.And": RUST_VARIANT,
    "ManifestSplitCondition.NameMatches": RUST_VARIANT,
    "ManifestSplitCondition.Or": RUST_VARIANT,
    "ManifestSplitCondition.PathMatches": RUST_VARIANT,
    "ManifestSplittingConfig.to_dict": "its only official parameter is the object itself",
    "dask.computing_meta": DASK_INTERNAL,
    "dask.merge_sessions_array_kwargs": DASK_INTERNAL,
}
"""Official names that are absent or take other arguments here, and why."""


def test_public_interface_is_the_listed_one() -> None:
    """After a deliberate change, `make api` renews the listing."""
    assert OURS == PROMISED


@pytest.mark.parametrize("package", write_stubs["PACKAGES"])
def test_stub_has_every_public_name(package: str) -> None:
    """After a change of PUBLIC_NAMES, `make api` renews the stub."""
    assert write_stubs["stub_path"](package).read_text() == write_stubs["stub_text"](package)


@pytest.mark.parametrize("package", write_stubs["PACKAGES"])
def test_every_public_name_is_there_and_listed(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'icefloe' has no attribute 'Nothing'"):
        getattr(icefloe, "Nothing")  # noqa: B009 (mypy knows that it is not there)


def wanted_positional(parameters: list[str]) -> list[str]:
    before_star = parameters[: parameters.index("*")] if "*" in parameters else parameters
    return [name.rstrip("=") for name in before_star if not name.startswith("*")]


def keyword_names(parameters: list[str]) -> set[str]:
    return {name.rstrip("=") for name in parameters if name != "*"}


def resolve(dotted: str) -> Any:
    """The thing of that name, or None for an attribute that only instances have."""
    first, *rest = dotted.split(".")
    if first in ("xarray", "dask", "distributed"):
        value: Any = importlib.import_module(f"icefloe.{first}")
    else:
        value = getattr(icefloe, first)
    for name in rest:
        if not hasattr(value, name) and sets_attribute(value, name):
            return None
        value = getattr(value, name)
    return value


def sets_attribute(cls: type, name: str) -> bool:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("icefloe")]
    return any(re.search(rf"self\.{name}\b.* = ", inspect.getsource(base)) for base in ours)


@pytest.mark.parametrize("name", sorted(set(OFFICIAL) - set(DIFFERENT_ON_PURPOSE)))
def test_official_name_is_offered_with_its_arguments(name: str) -> None:
    value = resolve(name)
    official = OFFICIAL[name]
    if value is None or not official or name in NEVER_CONSTRUCTED:
        return
    ours = parameters(value)
    assert ours is not None
    if all(parameter.startswith("_") for parameter in official):
        assert len(ours) >= len(official)
        return
    positional = wanted_positional(official)
    assert wanted_positional(ours)[: len(positional)] == positional
    if not any(parameter.startswith("**") for parameter in ours):
        assert keyword_names(official) <= keyword_names(ours)


def test_exceptions_name_official_things() -> None:
    assert set(DIFFERENT_ON_PURPOSE) | NEVER_CONSTRUCTED <= set(OFFICIAL)


def test_submodules_are_offered_after_importing_the_package() -> None:
    program = (
        "import icefloe, sys\n"
        "assert not {'pyspark', 'xarray'} & set(sys.modules)\n"
        "assert {'spark', 'virtual', 'conflicts'} <= set(dir(icefloe))\n"
        "assert not {'lazy_names', 'PUBLIC_NAMES', 'SUBMODULES'} & set(dir(icefloe))\n"
        "print('reference_files' in dir(icefloe.virtual), 'ingest' in dir(icefloe.spark))\n"
        "print(*(getattr(icefloe, name).__name__ for name in icefloe.SUBMODULES.split()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "True True"
    assert all(name.startswith("icefloe.") for name in second.split())


def test_ipython_completes_names_of_submodules() -> None:
    program = (
        "from IPython.core.completer import provisionalcompleter\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('import icefloe.spark, icefloe.virtual, icefloe.conflicts')\n"
        "for line in ('icefloe.spark.ing', 'icefloe.virtual.ref', 'icefloe.conflicts.Bas'):\n"
        "    with provisionalcompleter():\n"
        "        found = list(shell.Completer.completions(line, len(line)))\n"
        "    print(*(each.text for each in found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    spark, virtual, conflicts = done.stdout.splitlines()
    assert "ingest" in spark.split()
    assert "reference_files" in virtual.split()
    assert "BasicConflictSolver" in conflicts.split()
